"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 13."""

from collections.abc import Sequence

from twofold.wire.message import Message


class MemberIdentity(Message):
    __slots__ = ("member_id", "group_instance_id", "reason")
    member_id: str
    group_instance_id: str | None
    reason: str | None

    def __init__(self, *, member_id: str, group_instance_id: str | None = None, reason: str | None = None) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.reason = reason


class LeaveGroupRequest(Message):
    """API key 13, versions 0-5."""

    __slots__ = ("group_id", "member_id", "members")
    group_id: str
    member_id: str
    members: Sequence[MemberIdentity]

    def __init__(self, *, group_id: str, member_id: str = "", members: Sequence[MemberIdentity] = ()) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.members = members


class MemberResponse(Message):
    __slots__ = ("member_id", "group_instance_id", "error_code")
    member_id: str
    group_instance_id: str | None
    error_code: int

    def __init__(self, *, member_id: str, group_instance_id: str | None, error_code: int) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.error_code = error_code


class LeaveGroupResponse(Message):
    """API key 13, versions 0-5."""

    __slots__ = ("error_code", "throttle_time_ms", "members")
    error_code: int
    throttle_time_ms: int
    members: Sequence[MemberResponse]

    def __init__(self, *, error_code: int, throttle_time_ms: int = 0, members: Sequence[MemberResponse] = ()) -> None:
        self.error_code = error_code
        self.throttle_time_ms = throttle_time_ms
        self.members = members
