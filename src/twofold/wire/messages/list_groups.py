"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 16."""

from collections.abc import Sequence

from twofold.wire.message import Message


class ListGroupsRequest(Message):
    """API key 16, versions 0-5."""

    __slots__ = ("states_filter", "types_filter")
    states_filter: Sequence[str]
    types_filter: Sequence[str]

    def __init__(self, *, states_filter: Sequence[str] = (), types_filter: Sequence[str] = ()) -> None:
        self.states_filter = states_filter
        self.types_filter = types_filter


class ListedGroup(Message):
    __slots__ = ("group_id", "protocol_type", "group_state", "group_type")
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str

    def __init__(self, *, group_id: str, protocol_type: str, group_state: str = "", group_type: str = "") -> None:
        self.group_id = group_id
        self.protocol_type = protocol_type
        self.group_state = group_state
        self.group_type = group_type


class ListGroupsResponse(Message):
    """API key 16, versions 0-5."""

    __slots__ = ("error_code", "groups", "throttle_time_ms")
    error_code: int
    groups: Sequence[ListedGroup]
    throttle_time_ms: int

    def __init__(self, *, error_code: int, groups: Sequence[ListedGroup], throttle_time_ms: int = 0) -> None:
        self.error_code = error_code
        self.groups = groups
        self.throttle_time_ms = throttle_time_ms
