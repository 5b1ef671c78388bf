"""Compaction against a model that never forgets: every record ever written, and how its transaction ended."""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kits.log.cleaning import CleanKit, Pair, committed_view, pairs
from twofold.records.compression import Codec
from twofold.types import NO_PRODUCER_ID

KEYS = ("a", "b", "c", "k" * 20, "k" * 21)


@dataclass
class Written:
    offset: int
    key: str
    value: str | None
    pid: int = NO_PRODUCER_ID
    committed: bool | None = True  # None while its transaction is open


@dataclass
class Sent:
    """The last batch of a producer, to be sent again."""

    offset: int
    rows: list[Pair]
    seq: int
    epoch: int
    txn: bool


class CompactedLog(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[Written] = []
        self.sent: dict[int, Sent] = {}
        self.next: dict[int, tuple[int, int]] = {}  # (epoch, sequence) of a producer's next batch
        self.open: set[int] = set()
        self.count = 0
        self.cleaned = False

    @initialize(segment_bytes=st.sampled_from((300, 700, 5000)), retention=st.sampled_from((0, 1000)))
    def begin(self, segment_bytes: int, retention: int) -> None:
        self.kit = CleanKit(segment_bytes=segment_bytes, delete_retention_ms=retention)

    def teardown(self) -> None:
        if hasattr(self, "kit"):
            self.kit.stop()

    # Writing

    rows = st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=3)

    def append(self, rows: list[tuple[str, bool]], pid: int = NO_PRODUCER_ID, *, txn: bool = False) -> None:
        self.count += 1
        values: list[Pair] = [(key, f"{self.count}" if keep else None) for key, keep in rows]
        epoch, seq = self.next.get(pid, (0, 0))
        codec = Codec.NONE if self.count % 3 else Codec.ZSTD
        offset = self.kit.put(*values, pid=pid, seq=seq, epoch=epoch, txn=txn, codec=codec)
        if pid >= 0:
            self.next[pid] = epoch, seq + len(rows)
            self.sent[pid] = Sent(offset, values, seq, epoch, txn)
        state = None if txn else True
        self.written += [Written(offset + at, key, value, pid, state) for at, (key, value) in enumerate(values)]

    @rule(rows=rows)
    def put(self, rows: list[tuple[str, bool]]) -> None:
        self.append(rows)

    @rule(rows=rows, pid=st.integers(1, 2))
    def put_idempotent(self, rows: list[tuple[str, bool]], pid: int) -> None:
        self.append(rows, pid)

    @rule(rows=rows, pid=st.integers(11, 13))
    def put_in_transaction(self, rows: list[tuple[str, bool]], pid: int) -> None:
        self.append(rows, pid, txn=True)
        self.open.add(pid)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans(), bump=st.booleans())
    def end_transaction(self, data: st.DataObject, commit: bool, bump: bool) -> None:
        pid = data.draw(st.sampled_from(sorted(self.open)))
        epoch, _ = self.next[pid]
        self.kit.mark(pid, epoch + bump, commit=commit, tv=2 if bump else 0)
        if bump:
            self.next[pid] = epoch + 1, 0
            del self.sent[pid]
        self.open.discard(pid)
        for record in self.written:
            if record.pid == pid and record.committed is None:
                record.committed = commit

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """A retry is a duplicate, whatever became of its records."""
        pid = data.draw(st.sampled_from(sorted(self.sent)))
        sent, end = self.sent[pid], self.kit.log.log_end_offset
        offset = self.kit.put(*sent.rows, pid=pid, seq=sent.seq, epoch=sent.epoch, txn=sent.txn)
        assert (offset, self.kit.log.log_end_offset) == (sent.offset, end)

    # What happens to the log

    @rule()
    def roll(self) -> None:
        self.kit.log.roll()

    @rule(again=st.booleans())
    def clean(self, again: bool) -> None:
        self.cleaned = self.kit.clean(again=again)

    @rule(ms=st.sampled_from((1, 500, 1001)))
    def pass_time(self, ms: int) -> None:
        self.kit.clock.now_ms += ms

    @rule(how=st.sampled_from(("stop", "kill", "power")))
    def restart(self, how: str) -> None:
        rows = self.kit.log.producers()
        if how == "stop":
            self.kit.restart()
        else:
            self.kit.log.flush()
            self.kit.crash(power_cut=how == "power")
        self.kit.log.ensure_open()
        self.kit.log.advance_high_watermark(self.kit.log.log_end_offset)
        assert sorted(row[:3] for row in self.kit.log.producers()) == sorted(row[:3] for row in rows)

    # What must hold

    @invariant()
    def the_end_is_known(self) -> None:
        if self.written and hasattr(self, "kit"):
            assert self.kit.log.log_end_offset > self.written[-1].offset
            assert self.kit.log.log_start_offset == 0

    @invariant()
    def readers_of_committed_records_see_the_same_table(self) -> None:
        if not hasattr(self, "kit"):
            return
        table: dict[str, str] = {}
        for record in self.written:
            if record.offset >= self.kit.log.last_stable_offset:
                break
            if record.committed:
                table.pop(record.key, None)
                if record.value is not None:
                    table[record.key] = record.value
        assert committed_view(self.kit.log) == table

    @invariant()
    def records_are_what_was_written_and_every_suffix_can_be_read(self) -> None:
        if not hasattr(self, "kit"):
            return
        left = pairs(self.kit.log)
        assert set(left) <= {(record.offset, record.key, record.value) for record in self.written}
        assert left == sorted(left, key=lambda row: row[0])
        assert {row[0] for row in left} >= {
            record.offset
            for record in self.written
            if record.offset >= self.kit.log.cleaned_offset and record.committed is None
        }
        for start in {0, self.kit.log.log_end_offset // 2, self.kit.log.log_end_offset}:
            suffix = [row for row in pairs(self.kit.log, start) if row[0] >= start]
            assert suffix == [row for row in left if row[0] >= start]

    @invariant()
    def of_what_was_cleaned_each_key_has_one_record(self) -> None:
        if not self.cleaned:
            return
        self.cleaned = False
        log = self.kit.log
        keys = [key for offset, key, _ in pairs(log) if offset < log.cleaned_offset]
        assert len(keys) == len(set(keys))
        aborted = {record.offset for record in self.written if record.committed is False}
        assert not aborted & {offset for offset, _, _ in pairs(log) if offset < log.cleaned_offset}


CompactedLog.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCompactionAgreesWithAModelThatNeverForgets = CompactedLog.TestCase
