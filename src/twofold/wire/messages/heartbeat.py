"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 12."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """API key 12, versions 0-4."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """API key 12, versions 0-4."""

    error_code: int
    throttle_time_ms: int = 0
