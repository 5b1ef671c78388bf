"""The readers: batch and micro-batch.

1. What a batch of a stream reads depends on its start and end alone, so a batch that Spark runs again reads the same.
2. A partition that appears while the query runs is read from its first record.
3. Nothing that is read is recorded anywhere but in the query's checkpoint.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from twofold.spark import offsets as o
from twofold.spark.errors import DataLoss, OptionError
from twofold.spark.options import ReadOptions
from twofold.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from twofold.spark.offset_reader import OffsetReader

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, topic: str, partition: int, start: int, until: int) -> None:
        super().__init__((topic, partition, start, until))

    @classmethod
    def of(cls, entry: o.Range) -> "RangePartition":
        return cls(*entry.tp, entry.start, entry.until)

    @property
    def range(self) -> o.Range:
        topic, partition, start, until = self.value
        return o.Range(TopicPartition(topic, partition), start, until)


def _read(options: ReadOptions, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    if not isinstance(partition, RangePartition):
        return iter(())  # what Spark plans when there is nothing to read
    from twofold.spark.fetch import read_range
    from twofold.spark.worker_socket import answer_at_once

    answer_at_once()
    return read_range(options, partition.range)


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

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        raise self._error

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
        self._latest: o.Offsets | None = None
        self._available_now = False
        self._target: o.Offsets | None = None
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
            self._initial = o.fresh(reader.settle(reader.resolve(self._options.starting, starting=True)))
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
        end = latest
        if not isinstance(limit, ReadAllAvailable):
            end = self._within_limits(known, latest)
        if o.is_fresh(start):
            return o.with_initial(end, start)
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
        if self._target is not None:
            self._check_still_there(ends)
        ranges = self._checked_ranges(starts, ends)
        divided = o.split(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [RangePartition.of(entry) for entry in divided]

    def _check_still_there(self, ends: o.Offsets) -> None:
        """A run that reads what was there at its start cannot end when that is gone, whatever failOnDataLoss says."""
        latest = self._offsets.latest(ends)
        for tp, end in ends.items():
            if latest.get(tp, -1) < end:
                found = f"ends at {latest[tp]} now" if tp in latest else "is gone"
                raise DataLoss(
                    f"{tp} was to be read up to offset {end} and {found}: was the topic deleted or made anew?"
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
        """Nothing to do: the checkpoint has the offsets."""
