"""The log against a model that keeps everything in a list and derives what it needs by walking it."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kits.log.partition import NOW, Kit, data_batch, headers, marker
from twofold.log.api import Bound, Origin
from twofold.log.producers.entry import ForeignBatch
from twofold.records.batch import Header
from twofold.records.control import read_end_marker
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)


@dataclass
class Batch:
    base: int
    count: int
    pid: int = -1
    epoch: int = -1
    seq: int = -1
    txn: bool = False
    commit: bool | None = None  # of a marker; None for data
    coordinator_epoch: int = -1

    @property
    def end(self) -> int:
        return self.base + self.count


@dataclass
class Producer:
    """What one producer's batches in a list amount to."""

    epoch: int = -1
    last_seq: int = -1
    first_offset: int | None = None
    coordinator_epoch: int = -1
    window: list[Batch] = field(default_factory=list)

    def take(self, batch: Batch) -> None:
        if batch.epoch != self.epoch:
            self.window, self.last_seq, self.epoch = [], -1, batch.epoch
        if batch.commit is not None:
            self.first_offset = None
            self.coordinator_epoch = batch.coordinator_epoch
            return
        self.window = [*self.window[-4:], batch]
        self.last_seq = batch.seq + batch.count - 1
        if batch.txn and self.first_offset is None:
            self.first_offset = batch.base


class LogModel(RuleBasedStateMachine):
    @initialize(segment=st.sampled_from([250, 700, 5000]), interval=st.sampled_from([0, 200]))
    def start(self, segment: int, interval: int) -> None:
        self.kit = Kit(segment_bytes=segment, index_interval_bytes=interval)
        self.batches: list[Batch] = []
        self.sure = 0  # batches from here on are in the windows for sure; before, their segment was gone at a restart
        self.reloaded = False
        self.high_watermark = 0
        self.log_start = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def producer(self, pid: int) -> Producer | None:
        own = [batch for batch in self.batches if batch.pid == pid]
        producer = Producer()
        for batch in own:
            producer.take(batch)
        return producer if own else None

    # Appending

    @rule(count=st.integers(1, 3))
    def append_plain(self, count: int) -> None:
        assert self.append(data_batch(count)) == self.end
        self.batches.append(Batch(self.end, count))

    @rule(
        pid=st.integers(1, 3),
        count=st.integers(1, 2),
        txn=st.booleans(),
        epoch_step=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
        seq_step=st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1, -2]),
    )
    def append_of_producer(self, pid: int, count: int, txn: bool, epoch_step: int, seq_step: int) -> None:
        known = self.producer(pid)
        epoch = max(0, (known.epoch if known else 0) + epoch_step)
        due = 0 if known is None or epoch != known.epoch else known.last_seq + 1
        seq = max(0, due + seq_step)
        batch = data_batch(count, pid=pid, epoch=epoch, seq=seq, txn=txn)
        expected = self.expect_data(known, epoch, seq, count, txn)
        got = self.append(batch)
        assert got in expected, (got, expected)
        if got == self.end:
            self.batches.append(Batch(self.end, count, pid, epoch, seq, txn))

    def expect_data(self, known: Producer | None, epoch: int, seq: int, count: int, txn: bool) -> list[object]:
        """What may come of a batch: its offset, the offset of the one it repeats, or an error."""
        if known is None:
            return [self.end]
        if epoch == known.epoch:
            for batch in known.window:
                if (batch.seq, batch.count) == (seq, count):
                    sure = batch is known.window[-1] or self.batches.index(batch) >= self.sure
                    return (
                        [batch.base] if sure else [batch.base, OutOfOrderSequenceNumber, InvalidTxnState, ForeignBatch]
                    )
        if epoch < known.epoch:
            return [InvalidProducerEpoch]
        if not txn and (known.coordinator_epoch >= 0 or known.first_offset is not None):
            return [ForeignBatch]
        if seq != (known.last_seq + 1 if epoch == known.epoch else 0):
            return [OutOfOrderSequenceNumber]
        return [self.end]

    @rule(
        pid=st.integers(1, 3),
        commit=st.booleans(),
        version=st.sampled_from([0, 2]),
        epoch_step=st.sampled_from([0, 0, 1, 1, -1]),
        coordinator_epoch=st.sampled_from([3, 3, 3, 4, 2]),
    )
    def append_marker(self, pid: int, commit: bool, version: int, epoch_step: int, coordinator_epoch: int) -> None:
        known = self.producer(pid)
        epoch = max(0, (known.epoch if known else 0) + epoch_step)
        expected: object = self.end
        if known is not None and known.coordinator_epoch > coordinator_epoch:
            expected = TransactionCoordinatorFenced
        if known is not None and (
            epoch < known.epoch or (version == 2 and epoch == known.epoch and known.first_offset is not None)
        ):
            expected = InvalidProducerEpoch
        batch = marker(pid, epoch, commit=commit, coordinator_epoch=coordinator_epoch)
        got = self.append(batch, origin=Origin.COORDINATOR, transaction_version=version)
        assert got == expected
        if got == self.end:
            self.batches.append(Batch(self.end, 1, pid, epoch, -1, True, commit, coordinator_epoch))

    def append(self, batch: bytes, **options: object) -> object:
        try:
            return self.kit.log.append(batch, leader_epoch=0, **options).base_offset  # type: ignore[arg-type]
        except KafkaError as error:
            return type(error)

    # The rest

    @rule(part=st.floats(0, 1))
    def advance_high_watermark(self, part: float) -> None:
        self.high_watermark += round((self.end - self.high_watermark) * part)
        self.kit.log.advance_high_watermark(self.high_watermark)

    @rule()
    def roll(self) -> None:
        self.kit.log.roll()

    @rule()
    def flush(self) -> None:
        self.kit.log.flush()

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log_start, self.end))
        keep = [batch for batch in self.batches if batch.end <= offset]
        if self.batches and offset <= self.kit.log._segments.bases[0] and len(keep) < len(self.batches):
            return  # below what is there: it starts anew, which has its own tests
        self.kit.log.truncate_to(offset)
        self.batches = keep
        self.reload()
        self.log_start = min(self.log_start, self.end)
        self.high_watermark = min(self.high_watermark, self.end)
        assert self.kit.log.log_end_offset == self.end

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        self.log_start += round((self.high_watermark - self.log_start) * part)
        self.kit.log.advance_log_start(self.log_start)

    @rule()
    def apply_retention(self) -> None:
        self.kit.log.apply_retention(NOW)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if not clean:
            self.kit.log.flush()
            self.kit.manager.checkpoint()
        self.kit.restart() if clean else self.kit.crash(power_cut=False)
        assert self.kit.log.log_start_offset == self.log_start
        self.reload()

    def reload(self) -> None:
        """The producers were found again in what is on disk."""
        self.kit.log.ensure_open()
        self.reloaded = True
        there = self.kit.log._segments.bases[0] if self.kit.log._segments.bases else self.end
        self.sure = max(self.sure, sum(batch.base < there for batch in self.batches))

    # What always holds

    def first_unstable(self) -> int:
        """The first offset of a transaction whose marker is not below the high watermark."""
        unstable = self.end
        opened: dict[int, int] = {}
        for batch in self.batches:
            if batch.commit is None and batch.txn:
                opened.setdefault(batch.pid, batch.base)
            elif batch.commit is not None:
                first = opened.pop(batch.pid, None)
                if first is not None and batch.base >= self.high_watermark:
                    unstable = min(unstable, first)
        return min([unstable, *opened.values()])

    @invariant()
    def bounds(self) -> None:
        if not hasattr(self, "kit"):
            return
        log = self.kit.log
        assert (log.log_start_offset, log.log_end_offset) == (self.log_start, self.end)
        assert log.high_watermark == max(self.high_watermark, self.log_start)
        # Of transactions that ended before a restart the log remembers only whether they are open.
        opened = [
            known.first_offset for pid in (1, 2, 3) if (known := self.producer(pid)) and known.first_offset is not None
        ]
        least = min([self.first_unstable(), log.high_watermark])
        most = min([*opened, log.high_watermark])
        assert max(least, self.log_start) <= log.last_stable_offset <= max(most, self.log_start)
        if not self.reloaded or self.high_watermark == self.end:
            assert log.last_stable_offset == max(min(self.first_unstable(), log.high_watermark), self.log_start)

    @invariant()
    def a_committed_reader_sees_what_was_committed(self) -> None:
        if not hasattr(self, "kit"):
            return
        log = self.kit.log
        stable = log.last_stable_offset
        outcome: dict[int, bool] = {}
        for index, batch in enumerate(self.batches):
            if batch.commit is None and batch.txn:
                ends = (later for later in self.batches[index:] if later.pid == batch.pid and later.commit is not None)
                marked = next(ends, None)
                outcome[batch.base] = marked is not None and bool(marked.commit)
            else:
                outcome[batch.base] = batch.commit is None
        expected = [
            batch.base for batch in self.batches if self.log_start < batch.end <= stable and outcome[batch.base]
        ]
        assert read_committed(self.kit, self.log_start) == expected


def read_committed(kit: Kit, offset: int) -> list[int]:
    """Base offsets of the data batches that a consumer with isolation.level=read_committed hands out (KIP-98)."""
    found: list[int] = []
    aborted: set[int] = set()
    while True:
        result = kit.log.read(offset, 400, Bound.LAST_STABLE)
        assert result.aborted is not None
        if not result.records:
            return found
        pending = sorted(result.aborted, key=lambda entry: entry.first_offset)
        position = 0
        for header in headers(result.records):
            while pending and pending[0].first_offset <= header.last_offset:
                aborted.add(pending.pop(0).producer_id)
            if header.is_control:
                if is_abort(result.records, position):
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found.append(header.base_offset)
            position += header.size
            offset = next_offset(header)


def is_abort(records: bytes, position: int) -> bool:
    found = read_end_marker(records, position)
    return found is not None and not found.commit


def next_offset(header: Header) -> int:
    return header.next_offset


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
