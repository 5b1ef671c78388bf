"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 11."""

from collections.abc import Sequence

from twofold.wire.message import Message


class JoinGroupRequestProtocol(Message):
    __slots__ = ("name", "metadata")
    name: str
    metadata: bytes

    def __init__(self, *, name: str, metadata: bytes) -> None:
        self.name = name
        self.metadata = metadata


class JoinGroupRequest(Message):
    """API key 11, versions 0-9."""

    __slots__ = (
        "group_id",
        "session_timeout_ms",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "group_instance_id",
        "reason",
    )
    group_id: str
    session_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: Sequence[JoinGroupRequestProtocol]
    rebalance_timeout_ms: int
    group_instance_id: str | None
    reason: str | None

    def __init__(
        self,
        *,
        group_id: str,
        session_timeout_ms: int,
        member_id: str,
        protocol_type: str,
        protocols: Sequence[JoinGroupRequestProtocol],
        rebalance_timeout_ms: int = -1,
        group_instance_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.session_timeout_ms = session_timeout_ms
        self.member_id = member_id
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.group_instance_id = group_instance_id
        self.reason = reason


class JoinGroupResponseMember(Message):
    __slots__ = ("member_id", "metadata", "group_instance_id")
    member_id: str
    metadata: bytes
    group_instance_id: str | None

    def __init__(self, *, member_id: str, metadata: bytes, group_instance_id: str | None = None) -> None:
        self.member_id = member_id
        self.metadata = metadata
        self.group_instance_id = group_instance_id


class JoinGroupResponse(Message):
    """API key 11, versions 0-9."""

    __slots__ = (
        "error_code",
        "generation_id",
        "protocol_name",
        "leader",
        "member_id",
        "members",
        "throttle_time_ms",
        "protocol_type",
        "skip_assignment",
    )
    error_code: int
    generation_id: int
    protocol_name: str | None
    leader: str
    member_id: str
    members: Sequence[JoinGroupResponseMember]
    throttle_time_ms: int
    protocol_type: str | None
    skip_assignment: bool

    def __init__(
        self,
        *,
        error_code: int,
        generation_id: int = -1,
        protocol_name: str | None,
        leader: str,
        member_id: str,
        members: Sequence[JoinGroupResponseMember],
        throttle_time_ms: int = 0,
        protocol_type: str | None = None,
        skip_assignment: bool = False,
    ) -> None:
        self.error_code = error_code
        self.generation_id = generation_id
        self.protocol_name = protocol_name
        self.leader = leader
        self.member_id = member_id
        self.members = members
        self.throttle_time_ms = throttle_time_ms
        self.protocol_type = protocol_type
        self.skip_assignment = skip_assignment
