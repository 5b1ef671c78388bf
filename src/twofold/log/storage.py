"""The files of a partition log: opening them, and beginning new ones.

1. Nothing is on disk before the first append: no directory, no file.
2. Each new segment starts at the log end, so that a hole in the files can be told from one in the offsets.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from twofold.config.topic import LogConfig
from twofold.log.environment import LogEnvironment
from twofold.log.indexes.cache import IndexCache
from twofold.log.indexes.offset_index import MAX_RELATIVE_OFFSET, CorruptIndex
from twofold.log.indexes.txn_index import TxnIndex
from twofold.log.producers.entry import NO_OFFSET
from twofold.log.producers.snapshots import encode_snapshot
from twofold.log.recovery.checkpoints import PARTITION_METADATA, encode_partition_metadata, read_topic_id
from twofold.log.recovery.opening import LogOpener, OpenedLog, read_ahead, rebuild_txn_index
from twofold.log.recovery.rescue import is_distrusted, write_anew
from twofold.log.segments.files import FilePool
from twofold.log.segments.retention import should_roll
from twofold.log.segments.scan import InvalidBatch
from twofold.log.segments.segment import Segment, rename_to_deleted
from twofold.log.syncing import SyncedLog
from twofold.types import TopicId

log = logging.getLogger("twofold.log")

FILES_TO_OPEN_WITH = 16


class LogStorage(SyncedLog):
    __slots__ = ()

    def update_config(self, config: LogConfig) -> None:
        self.config = config

    def _check_usable(self) -> None:
        self._check_not_failed()
        if self._listing is not None:
            self._open()

    # Opening

    def ensure_open(self) -> None:
        """Read what is on disk, if that did not happen yet."""
        if self._listing is not None:
            self._check_usable()

    def read_ahead(self) -> Callable[[], None]:
        """What a thread may do before a log is opened, so that the opening does not have to wait for the disk."""
        assert self._listing is not None
        return partial(read_ahead, self._environment.disk, self.directory, self._listing)

    def _open(self) -> None:
        self._check_not_failed()
        try:
            self._adopt(self._read_files(self._environment))
        except (OSError, InvalidBatch) as error:
            self._fail("cannot be opened", error)

    async def open_in_background(self, is_over: Callable[[], bool]) -> None:
        """`ensure_open` in a thread, for a log that nobody uses yet; raises what went wrong."""
        environment = self._environment
        files = FilePool(environment.disk, FILES_TO_OPEN_WITH)
        private = replace(environment, files=files, indexes=IndexCache())
        try:
            opened = await environment.blocking(self._read_files, private, is_over)
        finally:
            files.close()
        for segment in opened.segments:
            segment.move_to(environment.files, environment.indexes)
            segment.close_files()  # whoever read the log that failed meanwhile may have opened what was replaced
        for segment in opened.segments[:-1]:
            if segment.is_loaded:
                environment.indexes.touch(segment)
        self._adopt(opened)

    def _read_files(self, environment: LogEnvironment, is_over: Callable[[], bool] = lambda: False) -> OpenedLog:
        assert self._listing is not None
        if self._distrusted or is_distrusted(environment.disk, self.directory):
            self._trusted = False
            write_anew(environment.disk, self.directory, self._listing.bases, self.recovery_point, is_over)
            self._distrusted = False
        opener = LogOpener(
            environment,
            self.directory,
            self.config,
            self._listing,
            recovery_point=self.recovery_point,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            cleaned_offset=self.cleaned_offset,
        )
        return opener.open(clean=self._trusted)

    def _adopt(self, opened: OpenedLog) -> None:
        expected = self.log_end_offset
        self._listing = None
        self._segments = opened.segments
        self._bases = [segment.base_offset for segment in opened.segments]
        self._aborted_bases = opened.aborted_bases
        self._producers = opened.producers
        self._snapshots = opened.snapshots
        latest, self._epochs = self._epochs.latest, opened.epochs
        self.log_start_offset = opened.log_start_offset
        self.log_end_offset = opened.log_end_offset
        if self._trusted and expected != opened.log_end_offset:
            log.warning("%s ends at %d, its checkpoint said %d", self.directory, opened.log_end_offset, expected)
        self._clean = not opened.recovered
        if self.cleaned_offset > opened.log_end_offset:
            text = "%s: compacted up to %d, its checkpoint says, and it ends at %d; it counts as not compacted"
            log.warning(text, self.directory, self.cleaned_offset, opened.log_end_offset)
            self.cleaned_offset = 0
        if opened.recovered:
            for changes in (self._durability.epochs, self._durability.names, self._durability.parent):
                changes.note()
        if self._durability.cut(opened.recovery_point):
            self._environment.owner.recovery_point_changed(self)
        self._durability.derived_point = opened.derived_point
        self._times_kept_at = opened.producers.end_offset if opened.times_are_kept else NO_OFFSET
        if latest > self._epochs.latest:
            self._assign_epoch(latest, self.log_end_offset)
        self.clamp_high_watermark()

    # Segments

    def _segment_for(self, size: int, base_offset: int, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """The segment that takes the next bytes: the active one, or a new one."""
        self._clean = False
        if not self._segments:
            return self._create_segment(self._start_for(base_offset, last_offset))
        active = self._segments[-1]
        if should_roll(active, self.config, size, last_offset, max_timestamp, now_ms):
            start = self._start_for(base_offset, last_offset)
            if active.size:
                return self._roll_at(start)
            if not active.fits(last_offset):
                self._remove_segments([active])
                return self._create_segment(start)
        return active

    def _start_for(self, base_offset: int, last_offset: int) -> int:
        """Where a new segment starts: at the log end, unless a leader's hole is larger than a relative offset spans."""
        return self.log_end_offset if last_offset - self.log_end_offset <= MAX_RELATIVE_OFFSET else base_offset

    def _create_segment(self, base_offset: int) -> Segment:
        environment = self._environment
        if not self._segments:
            self._create_directory()
        now_ms = environment.clock.wall_ms()
        segment = Segment(environment.files, environment.indexes, self.directory, base_offset, 0, now_ms)
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        if jitter_ms:
            segment.jitter_ms = environment.random.randrange(jitter_ms)
        segment.create()
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._durability.names.note()
        return segment

    def _create_directory(self) -> None:
        disk = self._environment.disk
        known = disk.is_dir(self.directory)
        if known and (self.topic_id is None or read_topic_id(disk, self.directory) == self.topic_id):
            return
        disk.make_dirs(self.directory)
        self._write_topic_id()
        log.info("%s: created", self.directory)

    def set_topic_id(self, topic_id: TopicId) -> None:
        """Say which topic the log belongs to; a log whose file that says so was lost gets it again."""
        if self.topic_id is None:
            self.topic_id = topic_id
            if self.exists:
                self._write_topic_id()

    def _write_topic_id(self) -> None:
        self._durability.parent.note()
        self._durability.names.note()
        if self.topic_id is not None:
            file = self._environment.disk.open(f"{self.directory}/{PARTITION_METADATA}", create=True)
            file.truncate(0)
            file.write(0, encode_partition_metadata(self.topic_id))
            file.close()

    def roll(self) -> None:
        """Seal the active segment and begin a new one; nothing where nothing was written."""
        self._check_usable()
        if self._segments and self._segments[-1].size:
            try:
                self._roll_at(self.log_end_offset)
            except OSError as error:
                self._fail("cannot begin a new segment", error)

    def _roll_at(self, base_offset: int) -> Segment:
        self._clean = False
        sealed = self._segments[-1]
        sealed.seal()
        if base_offset not in self._snapshots:
            self._snapshots.write(base_offset, encode_snapshot(self._producers.entries.values()))
        if base_offset <= self.log_start_offset:
            # With the new segment all before it is below the log start, and not looked at after a crash.
            self._snapshots.sync(base_offset)
        segment = self._create_segment(base_offset)
        self._environment.indexes.touch(sealed)
        log.debug("%s: rolled at offset %d", self.directory, base_offset)
        self._environment.owner.segment_rolled(self)
        return segment

    def _remove_segments(self, segments: list[Segment]) -> None:
        remove_at_ms = self._environment.steady_ms() + self.config.file_delete_delay_ms
        for segment in segments:
            at = bisect_left(self._bases, segment.base_offset)
            del self._segments[at], self._bases[at]
            self._environment.indexes.forget(segment)
            renamed = rename_to_deleted(self._environment.files, segment)
            self._doomed.append((remove_at_ms, renamed))
        self._durability.names.note()

    def _txn_index(self, segment: Segment) -> TxnIndex:
        """A segment's transaction index, built again from the log if its file is damaged."""
        try:
            return segment.txn_index
        except CorruptIndex as error:
            log.warning("%s; building it from the log", error)
            rebuild_txn_index(segment, self._segments, self._snapshots, self._end_of(self._floor(segment.base_offset)))
            return segment.txn_index
