"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 11."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequestProtocol:
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    """API key 11, versions 0-9."""

    group_id: str
    session_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: Sequence[JoinGroupRequestProtocol]
    rebalance_timeout_ms: int = -1
    group_instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponseMember:
    member_id: str
    metadata: bytes
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    """API key 11, versions 0-9."""

    error_code: int
    generation_id: int = -1
    protocol_name: str | None
    leader: str
    member_id: str
    members: Sequence[JoinGroupResponseMember]
    throttle_time_ms: int = 0
    protocol_type: str | None = None
    skip_assignment: bool = False
