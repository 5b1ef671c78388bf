"""The segments of one log, from the first to the active one: finding them, beginning new ones, taking old ones away.

1. Segments are in the order of their offsets; only the last one, the active one, is written to.
2. Nothing is on disk before the first append: no directory, no file.
3. Each new segment starts at the log end, so that a hole in the files can be told from one in the offsets.
4. A segment that goes is renamed to `.deleted` at once; its files go after file.delete.delay.ms.
"""

import logging
from bisect import bisect_left, bisect_right

from twofold.log.bounds import LogBounds
from twofold.log.durability.health import LogHealth
from twofold.log.durability.points import Durability
from twofold.log.environment import LogContext
from twofold.log.indexes.offset_index import MAX_RELATIVE_OFFSET
from twofold.log.producers.log_producers import LogProducers
from twofold.log.recovery.checkpoints import read_topic_id, write_topic_id
from twofold.log.segments.retention import should_roll
from twofold.log.segments.segment import Segment, rename_to_deleted

log = logging.getLogger("twofold.log")


class SegmentList:
    __slots__ = ("all", "bases", "_bounds", "_context", "_deleted", "_durability", "_health", "_producers")

    def __init__(
        self,
        context: LogContext,
        bounds: LogBounds,
        health: LogHealth,
        durability: Durability,
        producers: LogProducers,
    ) -> None:
        self._context = context
        self._bounds = bounds
        self._health = health
        self._durability = durability
        self._producers = producers
        self.all: list[Segment] = []
        self.bases: list[int] = []  # of the segments in `all`, to be searched
        self._deleted: list[tuple[int, list[str]]] = []  # (when to remove them, files that were renamed)

    def adopt(self, segments: list[Segment]) -> None:
        """Take over what an opening found."""
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]

    # Finding

    def floor(self, offset: int) -> int:
        """The place of the segment that holds `offset`."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def floor_base(self, offset: int) -> int:
        """The base of the segment that holds `offset`."""
        return self.bases[self.floor(offset)]

    def end_of(self, at: int) -> int:
        return self.bases[at + 1] if at + 1 < len(self.bases) else self._bounds.log_end_offset

    # Beginning a segment

    def for_batch(self, size: int, base_offset: int, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """The segment that takes the next bytes: the active one, or a new one."""
        self._durability.unchanged_since_clean_shutdown = False
        if not self.all:
            return self.create(self._start_for(base_offset, last_offset))
        active = self.all[-1]
        if should_roll(active, self._context.config, size, last_offset, max_timestamp, now_ms):
            start = self._start_for(base_offset, last_offset)
            if active.size:
                return self._roll_at(start)
            if not active.fits(last_offset):
                self.remove([active])
                return self.create(start)
        return active

    def _start_for(self, base_offset: int, last_offset: int) -> int:
        """Where a new segment starts: at the log end, unless a leader's hole is larger than a relative offset spans."""
        end = self._bounds.log_end_offset
        return end if last_offset - end <= MAX_RELATIVE_OFFSET else base_offset

    def create(self, base_offset: int) -> Segment:
        context = self._context
        environment, config = context.environment, context.config
        if not self.all:
            self._create_directory()
        now_ms = environment.clock.wall_ms()
        segment = Segment(environment.files, environment.indexes, context.directory, base_offset, 0, now_ms)
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        if jitter_ms:
            segment.jitter_ms = environment.random.randrange(jitter_ms)
        segment.create()
        self.all.append(segment)
        self.bases.append(base_offset)
        self._durability.names.note()
        return segment

    def _create_directory(self) -> None:
        context = self._context
        disk, directory, topic_id = context.environment.disk, context.directory, context.topic_id
        if disk.is_dir(directory) and (topic_id is None or read_topic_id(disk, directory) == topic_id):
            return
        disk.make_dirs(directory)
        self.write_topic_id()
        log.info("%s: created", directory)

    def write_topic_id(self) -> None:
        """Say in the directory which topic it belongs to."""
        self._durability.note_directory()
        if self._context.topic_id is not None:
            write_topic_id(self._context.environment.disk, self._context.directory, self._context.topic_id)

    def roll(self) -> None:
        """Seal the active segment and begin a new one; nothing where nothing was written."""
        if self.all and self.all[-1].size:
            try:
                self._roll_at(self._bounds.log_end_offset)
            except OSError as error:
                self._health.fail("cannot begin a new segment", error)

    def _roll_at(self, base_offset: int) -> Segment:
        self._durability.unchanged_since_clean_shutdown = False
        sealed = self.all[-1]
        sealed.seal()
        self._producers.snapshot_at(base_offset)
        if base_offset <= self._bounds.log_start_offset:
            # With the new segment all before it is below the log start, and not looked at after a crash.
            self._producers.snapshots.sync(base_offset)
        segment = self.create(base_offset)
        self._context.environment.indexes.touch(sealed)
        log.debug("%s: rolled at offset %d", self._context.directory, base_offset)
        self._context.segment_rolled()
        return segment

    # Taking segments away

    def remove(self, segments: list[Segment]) -> None:
        for segment in segments:
            at = bisect_left(self.bases, segment.base_offset)
            del self.all[at], self.bases[at]
            self._retire(segment)
        self._durability.names.note()

    def replace(self, at: int, count: int, new: Segment) -> None:
        """Put a segment in the place of those that it was made from."""
        for replaced in self.all[at : at + count]:
            self._retire(replaced)
        self.all[at : at + count] = [new]
        self.bases[at : at + count] = [new.base_offset]
        self._durability.names.note()

    def _retire(self, segment: Segment) -> None:
        environment = self._context.environment
        environment.indexes.forget(segment)
        remove_at_ms = environment.steady_ms() + self._context.config.file_delete_delay_ms
        self._deleted.append((remove_at_ms, rename_to_deleted(environment.files, segment)))

    def take_deleted_files(self, steady_ms: int) -> list[str]:
        """Files that were renamed to .deleted at least file.delete.delay.ms ago; the caller removes them."""
        due = [path for at_ms, paths in self._deleted if at_ms <= steady_ms for path in paths]
        if due:
            self._deleted = [entry for entry in self._deleted if entry[0] > steady_ms]
        return due

    def close_files(self) -> None:
        for segment in self.all:
            segment.close_files()

    def abandon(self) -> None:
        """Give the files up, because they get another name or another log object."""
        for segment in self.all:
            self._context.environment.indexes.forget(segment)
            segment.close_files()
