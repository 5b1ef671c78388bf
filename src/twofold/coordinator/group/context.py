"""What the machine is given, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from twofold.config.settings import Settings
from twofold.coordinator.group.classic import Token
from twofold.coordinator.group.records import LogRecord
from twofold.wire.errors import KafkaError
from twofold.wire.messages.join_group import JoinGroupResponse
from twofold.wire.messages.leave_group import LeaveGroupResponse
from twofold.wire.messages.sync_group import SyncGroupResponse

MINUTE_MS = 60_000
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * MINUTE_MS


class Instant(NamedTuple):
    """The time: what is written down is wall time, what is waited for is measured on a clock that never jumps."""

    wall_ms: int
    monotonic_ms: int


class Client(NamedTuple):
    """The client that asks, and the version of its request."""

    version: int
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class GroupConfig:
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 10_080 * MINUTE_MS

    @classmethod
    def from_settings(cls, settings: Settings) -> "GroupConfig":
        return cls(
            min_session_timeout_ms=settings.int("group.min.session.timeout.ms"),
            max_session_timeout_ms=settings.int("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=settings.int("group.initial.rebalance.delay.ms"),
            max_size=settings.int("group.max.size"),
            offset_metadata_max_bytes=settings.int("offset.metadata.max.bytes"),
            offsets_retention_ms=settings.int("offsets.retention.minutes") * MINUTE_MS,
        )


Response = JoinGroupResponse | SyncGroupResponse | LeaveGroupResponse


@dataclass(slots=True)
class Outcome:
    """What a step of the membership decided.

    `replies` may be given at once. `records` are to be written, and then `then` is to be called: with None when they
    are committed, with the error when they are not. A step writes once at most.
    """

    replies: list[tuple[Token, Response]] = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)
    then: "Callable[[KafkaError | None, Instant], Outcome] | None" = None

    def reply(self, token: Token | None, response: Response) -> None:
        if token is not None:
            self.replies.append((token, response))

    def write(self, record: LogRecord, then: "Callable[[KafkaError | None, Instant], Outcome]") -> None:
        if self.then is not None:
            raise ValueError(f"{record} is the second write of one step, after {self.records}")
        self.records.append(record)
        self.then = then
