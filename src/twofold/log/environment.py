"""What all logs of a broker share."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Protocol

from twofold.log.indexes.cache import IndexCache
from twofold.log.reserve import Reserve
from twofold.log.segments.files import FilePool
from twofold.runtime.api import Blocking, Clock, Disk, Spawn

if TYPE_CHECKING:
    from twofold.log.state import LogState
    from twofold.log.syncing import SyncedLog


class Owner(Protocol):
    """Whoever keeps the checkpoints of a log and does its work in the background."""

    def recovery_point_changed(self, log: "SyncedLog") -> None:
        """Return when the recovery point is on disk: the log is cut there."""
        ...

    def log_start_changed(self, log: "SyncedLog") -> None:
        """Return when the log start is on disk: segments are about to go."""
        ...

    def cleaned_offset_changed(self, log: "SyncedLog") -> None:
        """Return when it is on disk: the log is cut below what was compacted."""
        ...

    def log_failed(self, log: "LogState") -> None:
        """The log takes nothing more until it was opened again."""
        ...

    def segment_rolled(self, log: "SyncedLog") -> None:
        """A segment was sealed and wants to be synced, without hurry."""
        ...

    def flush_wanted(self, log: "SyncedLog", delay_ms: int) -> None:
        """Something was appended that is to be synced within flush.ms."""
        ...


class NoOwner:
    """For a log on its own: it has no checkpoints, so it is always recovered from its start."""

    def recovery_point_changed(self, log: "SyncedLog") -> None:
        """Nothing is written, so nothing has to be corrected."""

    def log_start_changed(self, log: "SyncedLog") -> None:
        """The first segment tells where the log starts."""

    def cleaned_offset_changed(self, log: "SyncedLog") -> None:
        """Nothing is written, so nothing has to be corrected."""

    def log_failed(self, log: "LogState") -> None:
        """The caller gets the error."""

    def segment_rolled(self, log: "SyncedLog") -> None:
        """The caller flushes."""

    def flush_wanted(self, log: "SyncedLog", delay_ms: int) -> None:
        """The caller flushes."""


@dataclass(slots=True)
class LogEnvironment:
    disk: Disk
    clock: Clock
    random: Random
    blocking: Blocking
    spawn: Spawn
    files: FilePool
    indexes: IndexCache = field(default_factory=IndexCache)
    owner: Owner = field(default_factory=NoOwner)
    guards: Iterator[int] = field(default_factory=lambda: count(1))
    verification_enabled: bool = True
    producer_id_expiration_ms: int = 86_400_000
    reserve: Reserve | None = None

    def steady_ms(self) -> int:
        """On a clock that does not jump, for what is to happen later."""
        return int(self.clock.monotonic() * 1000)
