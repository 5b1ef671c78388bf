"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 13."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    """API key 13, versions 0-5."""

    group_id: str
    member_id: str = ""
    members: Sequence[MemberIdentity] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResponse:
    member_id: str
    group_instance_id: str | None
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    """API key 13, versions 0-5."""

    error_code: int
    throttle_time_ms: int = 0
    members: Sequence[MemberResponse] = ()
