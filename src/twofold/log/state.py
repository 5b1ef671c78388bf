"""What a partition log is while it runs: its segments, its bounds, what is derived from its batches.

1. Segments are in the order of their offsets; only the last one is written to.
2. What a log says about its bounds before it is opened comes from the checkpoints of a clean shutdown.
3. After a failed write or sync nothing more is written until the log was opened again (KAFKA-10778).
"""

import logging
from bisect import bisect_right
from math import inf
from typing import NoReturn

from twofold.config.topic import LogConfig
from twofold.log.durability import Durability
from twofold.log.environment import LogEnvironment
from twofold.log.producers.entry import NO_OFFSET
from twofold.log.producers.snapshot_store import SnapshotStore
from twofold.log.producers.table import ProducerTable
from twofold.log.recovery.epochs import EpochCache
from twofold.log.recovery.opening import DirectoryListing
from twofold.log.recovery.rescue import mark_distrusted
from twofold.log.segments.segment import Segment
from twofold.types import TopicId, TopicPartition
from twofold.wire.errors import KafkaStorageError

log = logging.getLogger("twofold.log")


class LogState:
    __slots__ = (
        "cleaned_offset",
        "config",
        "directory",
        "flush_is_scheduled",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "topic_id",
        "topic_partition",
        "_aborted_bases",
        "_bases",
        "_clean",
        "_complained_at",
        "_distrusted",
        "_doomed",
        "_durability",
        "_environment",
        "_epochs",
        "_failure",
        "_last_stable_offset",
        "_listing",
        "_positions",
        "_producers",
        "_segments",
        "_snapshots",
        "_swap_paths",
        "_times_kept_at",
        "_trusted",
        "__weakref__",
    )

    def __init__(
        self,
        environment: LogEnvironment,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: TopicId | None = None,
        listing: DirectoryListing | None = None,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        cleaned_offset: int = 0,
        distrusted: bool = False,
    ) -> None:
        """With a `listing` the log is there and is opened when it is first used; without, it is a new one."""
        self._environment = environment
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.topic_id = topic_id
        self.log_start_offset = log_start_offset
        self.log_end_offset = max(recovery_point, log_start_offset)
        self.high_watermark = high_watermark
        self._last_stable_offset = high_watermark
        self.cleaned_offset = cleaned_offset  # below it, and in whole segments, compaction has been
        self._listing = listing
        self._trusted = clean  # how to open it: a clean shutdown left it
        self._clean = clean  # nothing changed since: what is on disk is what a clean shutdown leaves
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._aborted_bases: list[int] = []
        self._producers = ProducerTable()
        self._epochs = EpochCache()
        self._snapshots = SnapshotStore(environment.disk, directory)
        self._durability = Durability(recovery_point)
        self._doomed: list[tuple[int, list[str]]] = []
        self._positions: dict[int, tuple[int, int]] = {}
        self._swap_paths: list[str] = []  # files that an opening would take for the segments they were made from
        self._times_kept_at = NO_OFFSET  # the end up to which `producer-times` speaks of the log
        self._failure: str | None = None
        self._distrusted = distrusted  # a sync failed: what is beyond the recovery point is to be written anew
        self._complained_at = -inf
        self.flush_is_scheduled = False

    @property
    def recovery_point(self) -> int:
        return self._durability.recovery_point

    @property
    def durable_log_start(self) -> int:
        """The log start that a checkpoint may claim: what lies below it is not looked at after a crash."""
        if not self._segments:
            return self.log_start_offset
        start = min(self.log_start_offset, max(self.recovery_point, self._bases[0]))
        return start if self._bases[self._floor(start)] <= self._durability.derived_point else self._bases[0]

    @property
    def failure(self) -> str | None:
        """Why the log takes no more appends; None while it does."""
        return self._failure

    @property
    def is_distrusted(self) -> bool:
        """Whether a sync failed, so that pages which can be read need not be on disk."""
        return self._distrusted

    @property
    def is_open(self) -> bool:
        """Whether the files were looked at since the start; a new log is open without having any."""
        return self._listing is None

    @property
    def exists(self) -> bool:
        """Whether there is anything on disk."""
        return bool(self._segments) or self._listing is not None

    @property
    def size_bytes(self) -> int:
        if self._listing is not None:
            path = f"{self.directory}/{{:020d}}.log"
            return sum(self._environment.disk.file_size(path.format(base)) for base in self._listing.bases)
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments) if self._listing is None else len(self._listing.bases)

    def segment_sizes(self) -> list[tuple[int, int]]:
        """(base offset, bytes) of every segment of an open log, the active one last."""
        return [(segment.base_offset, segment.size) for segment in self._segments]

    def __repr__(self) -> str:
        return f"<log {self.topic_partition} [{self.log_start_offset}, {self.log_end_offset})>"

    def distrust(self) -> None:
        """A sync failed: later ones may succeed and mean nothing."""
        self._distrusted = True
        mark_distrusted(self._environment.disk, self.directory)

    def _fail(self, what: str, error: Exception, *, only_written: bool = False) -> NoReturn:
        """Stop: what the files hold is not what is known about them any more. Unless they were `only_written` it may
        have been a sync that failed."""
        if isinstance(error, OSError) and not only_written:
            self.distrust()
        if self._failure is None:
            self._failure = f"{what}: {error}"
            log.error(
                "%s: %s at log end %d: %s; no more appends until it is opened again",
                self.directory,
                what,
                self.log_end_offset,
                error,
            )
            self._environment.owner.log_failed(self)
        raise KafkaStorageError(f"{self.topic_partition}: {what}: {error}") from error

    def _check_not_failed(self) -> None:
        if self._failure is not None:
            raise KafkaStorageError(f"{self.topic_partition} failed and was not opened again since: {self._failure}")

    def clamp_high_watermark(self) -> None:
        """A checkpointed high watermark may lie outside of what is left of the log."""
        self._set_high_watermark(max(min(self.high_watermark, self.log_end_offset), self.log_start_offset))

    def _set_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset
        if self._listing is None:
            first_unstable = self._producers.advance_high_watermark(offset)
            if first_unstable >= offset:  # almost always, and the log start is no further than this
                self._last_stable_offset = offset
            else:
                self._update_stable()

    def _update_stable(self) -> None:
        unstable = max(self._producers.first_unstable_offset(), self.log_start_offset)
        self._last_stable_offset = min(unstable, self.high_watermark)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        if self._epochs.assign(epoch, start_offset):
            self._durability.epochs.note()
            self._clean = False

    def _floor(self, offset: int) -> int:
        """The place of the segment that holds `offset`."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def _end_of(self, at: int) -> int:
        return self._bases[at + 1] if at + 1 < len(self._bases) else self.log_end_offset
