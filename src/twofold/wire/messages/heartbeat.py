"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 12."""

from twofold.wire.message import Message


class HeartbeatRequest(Message):
    """API key 12, versions 0-4."""

    __slots__ = ("group_id", "generation_id", "member_id", "group_instance_id")
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None

    def __init__(
        self, *, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None = None
    ) -> None:
        self.group_id = group_id
        self.generation_id = generation_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id


class HeartbeatResponse(Message):
    """API key 12, versions 0-4."""

    __slots__ = ("error_code", "throttle_time_ms")
    error_code: int
    throttle_time_ms: int

    def __init__(self, *, error_code: int, throttle_time_ms: int = 0) -> None:
        self.error_code = error_code
        self.throttle_time_ms = throttle_time_ms
