"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 60."""

from collections.abc import Sequence

from twofold.wire.message import Message


class DescribeClusterRequest(Message):
    """API key 60, versions 0-2."""

    __slots__ = ("include_cluster_authorized_operations", "endpoint_type", "include_fenced_brokers")
    include_cluster_authorized_operations: bool
    endpoint_type: int
    include_fenced_brokers: bool

    def __init__(
        self,
        *,
        include_cluster_authorized_operations: bool,
        endpoint_type: int = 1,
        include_fenced_brokers: bool = False,
    ) -> None:
        self.include_cluster_authorized_operations = include_cluster_authorized_operations
        self.endpoint_type = endpoint_type
        self.include_fenced_brokers = include_fenced_brokers


class DescribeClusterBroker(Message):
    __slots__ = ("broker_id", "host", "port", "rack", "is_fenced")
    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool

    def __init__(
        self, *, broker_id: int, host: str, port: int, rack: str | None = None, is_fenced: bool = False
    ) -> None:
        self.broker_id = broker_id
        self.host = host
        self.port = port
        self.rack = rack
        self.is_fenced = is_fenced


class DescribeClusterResponse(Message):
    """API key 60, versions 0-2."""

    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "error_message",
        "cluster_id",
        "controller_id",
        "brokers",
        "cluster_authorized_operations",
        "endpoint_type",
    )
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    cluster_id: str
    controller_id: int
    brokers: Sequence[DescribeClusterBroker]
    cluster_authorized_operations: int
    endpoint_type: int

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        error_message: str | None = None,
        cluster_id: str,
        controller_id: int = -1,
        brokers: Sequence[DescribeClusterBroker],
        cluster_authorized_operations: int = -2147483648,
        endpoint_type: int = 1,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.brokers = brokers
        self.cluster_authorized_operations = cluster_authorized_operations
        self.endpoint_type = endpoint_type
