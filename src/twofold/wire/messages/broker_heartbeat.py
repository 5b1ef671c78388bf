"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 63."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequest:
    """API key 63, versions 0-2."""

    broker_id: int
    broker_epoch: int = -1
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: Sequence[UUID | None] = ()
    cordoned_log_dirs: Sequence[UUID | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatResponse:
    """API key 63, versions 0-2."""

    throttle_time_ms: int = 0
    error_code: int
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool
