"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 42."""

from collections.abc import Sequence

from twofold.wire.message import Message


class DeleteGroupsRequest(Message):
    """API key 42, versions 0-2."""

    __slots__ = ("groups_names",)
    groups_names: Sequence[str]

    def __init__(self, *, groups_names: Sequence[str] = ()) -> None:
        self.groups_names = groups_names


class DeletableGroupResult(Message):
    __slots__ = ("group_id", "error_code")
    group_id: str
    error_code: int

    def __init__(self, *, group_id: str, error_code: int) -> None:
        self.group_id = group_id
        self.error_code = error_code


class DeleteGroupsResponse(Message):
    """API key 42, versions 0-2."""

    __slots__ = ("throttle_time_ms", "results")
    throttle_time_ms: int
    results: Sequence[DeletableGroupResult]

    def __init__(self, *, throttle_time_ms: int = 0, results: Sequence[DeletableGroupResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results
