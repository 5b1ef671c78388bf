"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 14."""

from collections.abc import Sequence

from twofold.wire.message import Message


class SyncGroupRequestAssignment(Message):
    __slots__ = ("member_id", "assignment")
    member_id: str
    assignment: bytes

    def __init__(self, *, member_id: str, assignment: bytes) -> None:
        self.member_id = member_id
        self.assignment = assignment


class SyncGroupRequest(Message):
    """API key 14, versions 0-5."""

    __slots__ = (
        "group_id",
        "generation_id",
        "member_id",
        "assignments",
        "group_instance_id",
        "protocol_type",
        "protocol_name",
    )
    group_id: str
    generation_id: int
    member_id: str
    assignments: Sequence[SyncGroupRequestAssignment]
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None

    def __init__(
        self,
        *,
        group_id: str,
        generation_id: int,
        member_id: str,
        assignments: Sequence[SyncGroupRequestAssignment],
        group_instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.generation_id = generation_id
        self.member_id = member_id
        self.assignments = assignments
        self.group_instance_id = group_instance_id
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name


class SyncGroupResponse(Message):
    """API key 14, versions 0-5."""

    __slots__ = ("error_code", "assignment", "throttle_time_ms", "protocol_type", "protocol_name")
    error_code: int
    assignment: bytes
    throttle_time_ms: int
    protocol_type: str | None
    protocol_name: str | None

    def __init__(
        self,
        *,
        error_code: int,
        assignment: bytes,
        throttle_time_ms: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> None:
        self.error_code = error_code
        self.assignment = assignment
        self.throttle_time_ms = throttle_time_ms
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
