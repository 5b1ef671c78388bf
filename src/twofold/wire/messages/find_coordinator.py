"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 10."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    """API key 10, versions 0-6."""

    key: str = ""
    key_type: int = 0
    coordinator_keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    key: str
    node_id: int
    host: str
    port: int
    error_code: int
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    """API key 10, versions 0-6."""

    error_code: int = 0
    node_id: int = 0
    host: str = ""
    port: int = 0
    throttle_time_ms: int = 0
    error_message: str | None = None
    coordinators: Sequence[Coordinator] = ()
