"""What all logs of a broker share, and what all parts of one log share."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Protocol
from weakref import ref

from twofold.config.topic import LogConfig
from twofold.log.directory.reserve import Reserve
from twofold.log.indexes.cache import IndexCache
from twofold.log.segments.files import FilePool
from twofold.runtime.api import Blocking, Clock, Disk, Spawn
from twofold.types import TopicId, TopicPartition

if TYPE_CHECKING:
    from twofold.log.log import PartitionLog


class Owner(Protocol):
    """Keeps the checkpoints of a log and does its work in the background."""

    def recovery_point_changed(self, log: "PartitionLog") -> None:
        """Return when the recovery point is on disk: the log is cut there."""
        ...

    def log_start_changed(self, log: "PartitionLog") -> None:
        """Return when the log start is on disk: segments are about to go."""
        ...

    def high_watermark_fell(self, log: "PartitionLog") -> None:
        """Return when it is on disk: the log is cut below what was safe."""
        ...

    def cleaned_offset_changed(self, log: "PartitionLog") -> None:
        """Return when it is on disk: the log is cut below what was compacted."""
        ...

    def log_failed(self, log: "PartitionLog") -> None:
        """The log takes nothing more until it was opened again."""
        ...

    def segment_rolled(self, log: "PartitionLog") -> None:
        """A segment was sealed. It should be synced, without hurry."""
        ...

    def flush_wanted(self, log: "PartitionLog", delay_ms: int) -> None:
        """Something was appended that is to be synced within flush.ms."""
        ...


class NoOwner:
    """For a log on its own: it has no checkpoints, so it is always recovered from its start."""

    def recovery_point_changed(self, log: "PartitionLog") -> None:
        """Nothing is written, so nothing has to be corrected."""

    def log_start_changed(self, log: "PartitionLog") -> None:
        """The first segment tells where the log starts."""

    def high_watermark_fell(self, log: "PartitionLog") -> None:
        """Nothing is written, so nothing has to be corrected."""

    def cleaned_offset_changed(self, log: "PartitionLog") -> None:
        """Nothing is written, so nothing has to be corrected."""

    def log_failed(self, log: "PartitionLog") -> None:
        """The caller gets the error."""

    def segment_rolled(self, log: "PartitionLog") -> None:
        """The caller flushes."""

    def flush_wanted(self, log: "PartitionLog", delay_ms: int) -> None:
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
        """Milliseconds of a clock that does not jump: for delays, not for times of day."""
        return int(self.clock.monotonic() * 1000)


class LogContext:
    """What the parts of one log share: where the log is, its settings, and its owner.

    A part tells the owner about the log without holding the log. It knows the log weakly, so that a log without users
    goes at once: the garbage collector does not look at what was made while the broker started.
    """

    __slots__ = ("config", "directory", "environment", "topic_id", "topic_partition", "_log")

    def __init__(
        self,
        log: "PartitionLog",
        environment: LogEnvironment,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        topic_id: TopicId | None,
    ) -> None:
        self._log = ref(log)
        self.environment = environment
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.topic_id = topic_id

    @property
    def log(self) -> "PartitionLog":
        log = self._log()
        assert log is not None, "the log calls its parts, so it is there"
        return log

    def recovery_point_changed(self) -> None:
        self.environment.owner.recovery_point_changed(self.log)

    def log_start_changed(self) -> None:
        self.environment.owner.log_start_changed(self.log)

    def high_watermark_fell(self) -> None:
        self.environment.owner.high_watermark_fell(self.log)

    def cleaned_offset_changed(self) -> None:
        self.environment.owner.cleaned_offset_changed(self.log)

    def log_failed(self) -> None:
        log = self._log()
        if log is not None:  # a sync that was under way may fail after its log went: there is nothing left to mend
            self.environment.owner.log_failed(log)

    def segment_rolled(self) -> None:
        self.environment.owner.segment_rolled(self.log)

    def flush_wanted(self, delay_ms: int) -> None:
        self.environment.owner.flush_wanted(self.log, delay_ms)
