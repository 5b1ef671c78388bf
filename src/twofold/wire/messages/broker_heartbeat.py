"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 63."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class BrokerHeartbeatRequest(Message):
    """API key 63, versions 0-2."""

    __slots__ = (
        "broker_id",
        "broker_epoch",
        "current_metadata_offset",
        "want_fence",
        "want_shut_down",
        "offline_log_dirs",
        "cordoned_log_dirs",
    )
    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: Sequence[UUID | None]
    cordoned_log_dirs: Sequence[UUID | None] | None

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: int = -1,
        current_metadata_offset: int,
        want_fence: bool,
        want_shut_down: bool,
        offline_log_dirs: Sequence[UUID | None] = (),
        cordoned_log_dirs: Sequence[UUID | None] | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.current_metadata_offset = current_metadata_offset
        self.want_fence = want_fence
        self.want_shut_down = want_shut_down
        self.offline_log_dirs = offline_log_dirs
        self.cordoned_log_dirs = cordoned_log_dirs


class BrokerHeartbeatResponse(Message):
    """API key 63, versions 0-2."""

    __slots__ = ("throttle_time_ms", "error_code", "is_caught_up", "is_fenced", "should_shut_down")
    throttle_time_ms: int
    error_code: int
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        is_caught_up: bool = False,
        is_fenced: bool = True,
        should_shut_down: bool,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.is_caught_up = is_caught_up
        self.is_fenced = is_fenced
        self.should_shut_down = should_shut_down
