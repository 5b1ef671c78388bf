"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 14."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequestAssignment:
    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    """API key 14, versions 0-5."""

    group_id: str
    generation_id: int
    member_id: str
    assignments: Sequence[SyncGroupRequestAssignment]
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    """API key 14, versions 0-5."""

    error_code: int
    assignment: bytes
    throttle_time_ms: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
