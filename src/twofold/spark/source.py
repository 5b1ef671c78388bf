"""The readers: batch and micro-batch.

1. What a batch of a stream reads depends on its start and end alone, so a batch that Spark runs again reads the same.
   Spark stores its end. Its start is the end of the batch before; that of the first batch is found again.
2. A partition that appears while the query runs is read from its first record.
3. Nothing that is read is recorded anywhere but in the query's checkpoint.
4. A topic that was deleted and made anew stops a stream or is read from its beginning (`twofold.spark.topics`).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from twofold.spark import offsets as o
from twofold.spark.errors import DataLoss, OptionError
from twofold.spark.options import ReadOptions
from twofold.spark.versions import (
    ONE_BATCH,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from twofold.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from twofold.spark.offset_reader import OffsetReader

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """What one task reads, of the topic with that id; `check` is what it has to find out before (topics.Check)."""

    def __init__(self, topic: str, partition: int, start: int, until: int, topic_id: str = "", check: int = 0) -> None:
        super().__init__((topic, partition, start, until, topic_id, check))

    @classmethod
    def of(cls, entry: o.Range, topic_id: str = "", check: int = 0) -> "RangePartition":
        return cls(*entry.tp, entry.start, entry.until, topic_id, check)

    @property
    def range(self) -> o.Range:
        topic, partition, start, until, _, _ = self.value
        return o.Range(TopicPartition(topic, partition), start, until)

    @property
    def topic_id(self) -> str:
        return str(self.value[4])

    @property
    def check(self) -> int:
        return int(self.value[5])


def _read(options: ReadOptions, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    if not isinstance(partition, RangePartition):
        return iter(())  # what Spark plans when there is nothing to read
    from twofold.spark.fetch import read_range
    from twofold.spark.worker_socket import answer_at_once

    answer_at_once()
    asked = partition.range
    if partition.check:
        from twofold.spark.topics import Check, checked

        asked = checked(options, asked, partition.topic_id, Check(partition.check))
        if asked.size <= 0:
            return iter(())
    return read_range(options, asked, partition.topic_id)


def _ranges_of(starts: o.Offsets, ends: o.Offsets) -> list[o.Range]:
    return [o.Range(tp, starts[tp], ends[tp]) for tp in sorted(ends) if tp in starts]


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition.of(entry) for entry in self._ranges()]

    def _ranges(self) -> list[o.Range]:
        from twofold.spark.offset_reader import OffsetReader

        options = self._options
        reader = OffsetReader(options)
        starts, ends = self._bounds(reader)
        found = _ranges_of(reader.settle(starts), reader.settle(ends))
        for entry in found:
            if entry.size < 0:
                raise OptionError(f"{entry.tp} is to be read from offset {entry.start}, and ends at {entry.until}")
        divided = narrow = self._narrow(reader, found)
        if options.min_partitions is not None or options.max_records_per_partition is not None:
            divided = o.split(narrow, options.min_partitions, options.max_records_per_partition)
        # Ends of the log are found again by the tasks, so that a frame that is used again sees what came since.
        return o.with_ends(divided, _ranges_of(starts, ends)) if narrow is found else divided

    def _bounds(self, reader: "OffsetReader") -> tuple[o.Offsets, o.Offsets]:
        return reader.resolve(self._options.starting, starting=True), reader.resolve(self._options.ending)

    def _narrow(self, reader: "OffsetReader", ranges: list[o.Range]) -> list[o.Range]:
        return ranges

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(self._options, partition)


class RefusedStream(DataSourceStreamReader):
    """Stands in for a reader whose options are wrong: Spark shows what its methods raise, and hides what is raised when
    it is made behind an error of its own."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        raise self._error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self._error

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        raise self._error  # a PySpark before 4.2 gives no arguments, and asks for nothing else first

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        raise self._error


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One lives as long as the query and plans its batches; copies of another read in the tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reader: OffsetReader | None = None
        self._initial: o.OffsetJson | None = None
        self._moving: frozenset[TopicPartition] = frozenset()
        self._planned = False
        self._latest: o.Offsets | None = None
        self._available_now = False
        self._target: o.Offsets | None = None
        self._topics = TopicWatch()
        self._delay: o.TriggerDelay | None = None
        if options.min_offsets_per_trigger is not None:
            self._delay = o.TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay_ms)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}

    @property
    def _offsets(self) -> "OffsetReader":
        if self._reader is None:
            from twofold.spark.offset_reader import OffsetReader

            self._reader = OffsetReader(self._options)
        return self._reader

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            reader = self._offsets
            bound = reader.resolve(self._options.starting, starting=True)
            self._moving = frozenset(tp for tp, offset in bound.items() if offset == o.LATEST)
            self._initial = o.fresh(reader.settle(bound))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Only one limit can be named; latestOffset knows both. That one is named tells a trigger that wants everything
        # from one that does not.
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known = o.from_json(start)
        latest = self._latest = self._find_latest(known)
        self._note_ids()
        known |= self._beginnings(known)
        end = latest
        if not isinstance(limit, ReadAllAvailable):
            end = self._within_limits(known, latest)
        if o.is_fresh(start):
            # "Latest" is later when the first batch is read again: it ends where it starts, so that the checkpoint has
            # the start.
            self._planned = True
            return o.to_json(end | {tp: known[tp] for tp in self._moving if tp in end})
        return start if end == known else o.to_json(end)

    def _find_latest(self, known: o.Offsets) -> o.Offsets:
        if not self._available_now:
            return self._offsets.latest(known)
        if self._target is None:
            self._target = self._offsets.latest(known)
        return self._target

    def _within_limits(self, known: o.Offsets, latest: o.Offsets) -> o.Offsets:
        available = sum(end - known.get(tp, 0) for tp, end in latest.items())
        if self._delay is not None and self._delay.holds_back(available, self._offsets.now_ms()):
            return known
        limit = self._options.max_offsets_per_trigger
        if limit is None:
            return latest
        return o.limited(limit, known | self._offsets.earliest(latest.keys() - known.keys()), latest)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else o.to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        starts, ends = o.start_of(start, end), o.from_json(end)
        is_replay = self._topics.is_replayed(end)
        if not self._topics.ids:
            self._offsets.look_up_ids()
            self._note_ids()
        if o.is_fresh(start) and not o.remembers_start(end):
            starts = self._start_again(starts, ends)
        if self._target is not None:
            self._check_still_there(ends)
        starts |= self._beginnings(starts)
        ranges = self._checked_ranges(starts, ends)
        divided = o.split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        unsure = set() if o.is_fresh(start) and not is_replay else self._topics.unsure(ranges)
        self._topics.plan(end, ranges, is_replay=is_replay)
        return self._tasks(divided, ranges, unsure)

    def _tasks(self, divided: list[o.Range], ranges: list[o.Range], unsure: set[str]) -> list[RangePartition]:
        """Of a topic that may have been made anew every partition has a task, also where the batch reads nothing."""
        ids = self._topics.ids
        tasks, seen = [], set()
        for entry in [*divided, *(one for one in ranges if one.size <= 0 and one.tp.topic in unsure)]:
            topic = entry.tp.topic
            check = 0 if topic not in unsure else 2 if entry.tp in seen else 1
            seen.add(entry.tp)
            tasks.append(RangePartition.of(entry, ids.get(topic, ""), check))
        return tasks

    def _note_ids(self) -> None:
        """Raise, or begin anew, where a topic is not the one that this run has read."""
        for topic, (old, new) in self._topics.note(self._offsets.ids).items():
            from twofold.spark.topics import report_anew

            report_anew(self._options, topic, f"its id was {old} and is {new}")

    def _beginnings(self, known: o.Offsets) -> o.Offsets:
        """Of topics that were made anew while the query runs: where they are read from now."""
        anew = [tp for tp in known if tp.topic in self._topics.anew]
        return self._offsets.earliest(anew) if anew else {}

    def _start_again(self, starts: o.Offsets, ends: o.Offsets) -> o.Offsets:
        """Of the first batch, which a run before this one has planned: its end is in the checkpoint, and its start is
        found again. What was to start at the latest offset had nothing to read in it. What is new is for a later batch.
        """
        if self._planned:
            return starts
        again = {
            tp: min(start, ends[tp]) if tp in self._moving else start for tp, start in starts.items() if tp in ends
        }
        if self._latest is None:
            log.warning(
                "the first batch of this query is read again, from startingOffsets as they are now, %s, to its end in "
                "the checkpoint, %s",
                o.to_json(again), o.to_json(ends),
            )  # fmt: skip
        return again

    def _check_still_there(self, ends: o.Offsets) -> None:
        """A run that reads what was there at its start cannot end when that is gone, whatever failOnDataLoss says."""
        latest = self._offsets.latest(ends)
        for tp, end in ends.items():
            if latest.get(tp, -1) < end:
                found = f"ends at {latest[tp]} now" if tp in latest else "is gone"
                raise DataLoss(
                    f"{tp} was to be read up to offset {end} and {found}: was the topic deleted or made anew?"
                )
        self._note_ids()
        if self._topics.anew:
            raise DataLoss(
                f"{', '.join(sorted(self._topics.anew))} was deleted and made anew after this run was planned: start "
                "the query again"
            )

    def _checked_ranges(self, starts: o.Offsets, ends: o.Offsets) -> list[o.Range]:
        added = sorted(ends.keys() - starts.keys())
        found = self._offsets.earliest(added) if added else {}
        for tp in added:
            if tp not in found:
                self._report(f"{tp} was added and is gone again")
            elif found[tp] != 0:
                self._report(f"{tp} was added and starts at offset {found[tp]} instead of 0")
        gone = sorted(starts.keys() - ends.keys())
        if gone:
            self._report(f"partitions are gone: {', '.join(map(str, gone))}")
        known = starts | found
        ranges = _ranges_of(known, ends)
        for entry in ranges:
            if entry.size < 0:
                self._report(f"{entry.tp} went back from offset {entry.start} to {entry.until}")
        return ranges

    def _report(self, what: str) -> None:
        from twofold.spark.fetch import report_loss

        report_loss(self._options, what)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint has the offsets; the topics that the batch has read are known to be the right ones."""
        self._topics.commit(end)


class UnlimitedStreamReader(StreamReader):
    """For a PySpark that does not say from where the next batch is to go on (before 4.2). It asks for the end of the
    first batch before its start."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._at: o.OffsetJson = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._at = super().initialOffset()
        return self._at

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        if self._latest is None:
            log.warning(ONE_BATCH)
        return super().latestOffset(self._at, ReadAllAvailable())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._at = end
        return super().partitions(start, end)


class TopicWatch:
    """The ids of the topics that one run of a query reads."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.anew: dict[str, str] = {}
        """Topics that begin at their beginning in the next batch, with their ids."""
        self._sure: set[str] = set()
        """Topics that tasks have compared with the journal, or that need not be."""
        self._planned: tuple[dict[str, Any], set[str], dict[str, str]] | None = None
        self._replayed: dict[str, Any] | None = None

    def is_replayed(self, end: dict[str, Any]) -> bool:
        """Whether the batch was planned by a run before: this one has not looked for an end yet. Spark may ask more
        than once for the tasks of one batch, as of a query that uses its stream more than once."""
        if not self.ids:
            self._replayed = end
        return self._replayed == end

    def note(self, found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """What was made anew since it was noted last, with its ids before and now."""
        changed = {
            topic: (self.ids[topic], topic_id)
            for topic, topic_id in found.items()
            if self.ids.get(topic, topic_id) != topic_id
        }
        self.anew |= {topic: new for topic, (_, new) in changed.items()}
        self.ids |= found
        return changed

    def unsure(self, ranges: Sequence[o.Range]) -> set[str]:
        """Topics of which something is read that may not be what the run before has read."""
        return {entry.tp.topic for entry in ranges if entry.size != 0} - self._sure - self.anew.keys()

    def plan(self, end: dict[str, Any], ranges: Sequence[o.Range], *, is_replay: bool) -> None:
        """A batch that comes again may have been written before its topic was made anew: it makes nothing sure."""
        read = set() if is_replay else {entry.tp.topic for entry in ranges if entry.size != 0}
        self._planned = end, read, dict(self.anew)

    def commit(self, end: dict[str, Any]) -> None:
        if self._planned is None or self._planned[0] != end:
            return
        _, read, begun = self._planned
        self._sure |= read
        for topic, topic_id in begun.items():
            if self.anew.get(topic) == topic_id:
                del self.anew[topic]
