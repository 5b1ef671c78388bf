"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 15."""

from collections.abc import Sequence

from twofold.wire.message import Message


class DescribeGroupsRequest(Message):
    """API key 15, versions 0-6."""

    __slots__ = ("groups", "include_authorized_operations")
    groups: Sequence[str]
    include_authorized_operations: bool

    def __init__(self, *, groups: Sequence[str] = (), include_authorized_operations: bool = False) -> None:
        self.groups = groups
        self.include_authorized_operations = include_authorized_operations


class DescribedGroupMember(Message):
    __slots__ = ("member_id", "client_id", "client_host", "member_metadata", "member_assignment", "group_instance_id")
    member_id: str
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes
    group_instance_id: str | None

    def __init__(
        self,
        *,
        member_id: str,
        client_id: str,
        client_host: str,
        member_metadata: bytes,
        member_assignment: bytes,
        group_instance_id: str | None = None,
    ) -> None:
        self.member_id = member_id
        self.client_id = client_id
        self.client_host = client_host
        self.member_metadata = member_metadata
        self.member_assignment = member_assignment
        self.group_instance_id = group_instance_id


class DescribedGroup(Message):
    __slots__ = (
        "error_code",
        "group_id",
        "group_state",
        "protocol_type",
        "protocol_data",
        "members",
        "authorized_operations",
        "error_message",
    )
    error_code: int
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: Sequence[DescribedGroupMember]
    authorized_operations: int
    error_message: str | None

    def __init__(
        self,
        *,
        error_code: int,
        group_id: str,
        group_state: str,
        protocol_type: str,
        protocol_data: str,
        members: Sequence[DescribedGroupMember],
        authorized_operations: int = -2147483648,
        error_message: str | None = None,
    ) -> None:
        self.error_code = error_code
        self.group_id = group_id
        self.group_state = group_state
        self.protocol_type = protocol_type
        self.protocol_data = protocol_data
        self.members = members
        self.authorized_operations = authorized_operations
        self.error_message = error_message


class DescribeGroupsResponse(Message):
    """API key 15, versions 0-6."""

    __slots__ = ("groups", "throttle_time_ms")
    groups: Sequence[DescribedGroup]
    throttle_time_ms: int

    def __init__(self, *, groups: Sequence[DescribedGroup], throttle_time_ms: int = 0) -> None:
        self.groups = groups
        self.throttle_time_ms = throttle_time_ms
