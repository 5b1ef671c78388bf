"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 60."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterRequest:
    """API key 60, versions 0-2."""

    include_cluster_authorized_operations: bool
    endpoint_type: int = 1
    include_fenced_brokers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterBroker:
    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterResponse:
    """API key 60, versions 0-2."""

    throttle_time_ms: int = 0
    error_code: int
    error_message: str | None = None
    cluster_id: str
    controller_id: int = -1
    brokers: Sequence[DescribeClusterBroker]
    cluster_authorized_operations: int = -2147483648
    endpoint_type: int = 1
