"""The checkers of transactional runs, each shown a small history that it must refuse, and what it must let pass."""

from collections.abc import Sequence

import pytest

from sim.broker.watch import Violation
from sim.transactions.check import (
    acknowledged_stays,
    all_or_nothing,
    at_most_once,
    check_logs,
    copied_once,
    in_order,
    not_mixed,
    nothing_is_open,
    offsets_follow,
    reached_the_end,
    readers_see_committed,
)
from sim.transactions.cycles import edges, find_cycle, no_cycles
from sim.transactions.history import History, OffsetRead, Outcome, Polled, Reading, Txn, Value, Write, at, decode_value
from sim.transactions.log import LogTruth
from twofold.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Made:
    """A history and its logs, written down by hand."""

    def __init__(self) -> None:
        self.history = History()
        self.logs = {A: LogTruth(A), B: LogTruth(B)}

    def txn(self, label: str, producer_id: int = 1, epoch: int = 0, *, told: Outcome | None = Outcome.COMMITTED) -> Txn:
        instance, _, number = label.rpartition(".")
        txn = Txn(label, instance.partition("/")[0], instance, int(number), (producer_id, epoch), told=told)
        if told is not Outcome.ABORTED:
            txn.commit_sent_s, txn.ended_s = 10.0, 11.0
        self.history.txns.append(txn)
        return txn

    def write(self, txn: Txn, tp: TopicPartition, *, source: str = "", hops: int = 0) -> bytes:
        value = Value(txn.label, len(txn.writes), hops, source).encode()
        txn.writes.append(Write(tp, value, self.logs[tp].end))
        self.logs[tp].write(*txn.identity, [value])
        return value

    def end(self, txn: Txn, tp: TopicPartition, *, commit: bool = True) -> None:
        self.logs[tp].mark(txn.identity[0], txn.identity[1] + 1, commit)

    def reader(self, rows: Sequence[tuple[TopicPartition, int]], *, committed: bool = True, lso: int = 100) -> Reading:
        reading = Reading("reader", committed)
        for tp, offset in rows:
            reading.polled.append(Polled(tp, offset, self.logs[tp].entries[offset].value, 20.0, lso, 100))
        reading.positions = {tp: log.end for tp, log in self.logs.items()}
        self.history.readings.append(reading)
        return reading


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture
def whole(made: Made) -> Made:
    """w/1.0 committed over two partitions, w/1.1 aborted, w/1.2 committed."""
    first, second, third = (
        made.txn("w/1.0"),
        made.txn("w/1.1", epoch=1, told=Outcome.ABORTED),
        made.txn("w/1.2", epoch=2),
    )
    made.write(first, A)
    made.write(first, B)
    made.end(first, A)
    made.end(first, B)
    made.write(second, A)
    made.end(second, A, commit=False)
    made.write(third, A)
    made.end(third, A)
    return made


def test_a_run_in_which_nothing_is_wrong_passes(whole: Made) -> None:
    check_logs(whole.history, whole.logs)
    whole.reader([(A, 0), (A, 4), (B, 0)])
    whole.reader([(A, 0), (A, 2), (A, 4), (B, 0)], committed=False)
    readers_see_committed(whole.history, whole.logs)
    no_cycles(whole.history, whole.logs)


def test_the_label_of_a_value_can_be_read_back() -> None:
    value = Value("w0/2.17", 3, 1, at(A, 42))
    assert decode_value(value.encode()) == value
    assert value.encode() == b"w0/2.17|3|1|t-0@42"


def test_a_transaction_that_stays_open(made: Made) -> None:
    made.write(made.txn("w/1.0", told=None), A)
    with pytest.raises(Violation, match=r"w/1.0 from offset 0 on is still open"):
        nothing_is_open(made.logs)


def test_two_transactions_in_one(made: Made) -> None:
    made.write(made.txn("w/1.0", told=Outcome.ABORTED), A)
    made.write(made.txn("w/1.1"), A)
    with pytest.raises(Violation, match="one transaction with records of"):
        not_mixed(made.history, made.logs)


def test_a_transaction_that_goes_on_under_another_epoch(made: Made) -> None:
    txn = made.txn("w/1.0")
    made.write(txn, A)
    txn.identity = (1, 1)
    made.write(txn, A)
    with pytest.raises(Violation, match=r"epochs \[0, 1\]"):
        not_mixed(made.history, made.logs)


def test_an_epoch_that_is_not_the_writers(made: Made) -> None:
    txn = made.txn("w/1.0")
    made.write(txn, A)
    txn.identity = (1, 5)
    with pytest.raises(Violation, match="wrote as"):
        not_mixed(made.history, made.logs)


def test_a_commit_that_is_lost(made: Made) -> None:
    txn = made.txn("w/1.0")
    made.write(txn, A)
    made.end(txn, A, commit=False)
    with pytest.raises(Violation, match=r"lost: w/1.0"):
        all_or_nothing(made.history, made.logs)


def test_a_commit_of_what_was_aborted(made: Made) -> None:
    txn = made.txn("w/1.0", told=Outcome.ABORTED)
    made.write(txn, A)
    made.end(txn, A)
    with pytest.raises(Violation, match="was not committed"):
        all_or_nothing(made.history, made.logs)


@pytest.mark.parametrize("told", [None, Outcome.COMMITTED])
def test_a_torn_transaction(made: Made, told: Outcome | None) -> None:
    txn = made.txn("w/1.0", told=told)
    made.write(txn, A)
    made.write(txn, B)
    made.end(txn, A)
    made.end(txn, B, commit=False)
    with pytest.raises(Violation, match=r"torn|lost"):
        all_or_nothing(made.history, made.logs)


@pytest.mark.parametrize("commit", [False, True])
def test_a_transaction_of_unknown_outcome_may_be_either(made: Made, commit: bool) -> None:
    txn = made.txn("w/1.0", told=None)
    for tp in (A, B):
        made.write(txn, tp)
        made.end(txn, tp, commit=commit)
    all_or_nothing(made.history, made.logs)


def test_a_transaction_whose_commit_was_never_sent_is_aborted(made: Made) -> None:
    txn = made.txn("w/1.0", told=None)
    txn.commit_sent_s = None
    made.write(txn, A)
    made.end(txn, A)
    with pytest.raises(Violation, match="was not committed"):
        all_or_nothing(made.history, made.logs)


def test_a_duplicate(made: Made) -> None:
    txn = made.txn("w/1.0")
    value = made.write(txn, A)
    made.logs[A].write(*txn.identity, [value])
    with pytest.raises(Violation, match="duplicate"):
        at_most_once(made.logs)


def test_records_out_of_order(made: Made) -> None:
    first, second = made.txn("w/1.0"), made.txn("w/1.1", epoch=1)
    made.write(second, A)
    made.end(second, A)
    made.write(first, A)
    with pytest.raises(Violation, match="after"):
        in_order(made.logs)


def test_two_writers_may_interleave_in_a_partition(made: Made) -> None:
    """G0 is what the protocol allows."""
    first, second = made.txn("v/1.0"), made.txn("w/1.0", producer_id=2)
    for tp, order in ((A, (first, second, first)), (B, (second, first, second))):
        for txn in order:
            made.write(txn, tp)
        made.end(first, tp)
        made.end(second, tp)
    check_logs(made.history, made.logs)
    no_cycles(made.history, made.logs)


def test_an_acknowledged_record_that_is_not_where_it_was_told(made: Made) -> None:
    txn = made.txn("w/1.0")
    made.write(txn, A)
    txn.writes[0].offset = 7
    with pytest.raises(Violation, match="was acknowledged at t-0@7"):
        acknowledged_stays(made.history, made.logs)


# Readers


def test_an_aborted_read(whole: Made) -> None:
    whole.reader([(A, 0), (A, 2), (A, 4), (B, 0)])
    with pytest.raises(Violation, match="aborted read"):
        readers_see_committed(whole.history, whole.logs)


def test_a_read_before_the_commit_was_asked_for(whole: Made) -> None:
    reading = whole.reader([(A, 0), (A, 4), (B, 0)])
    reading.polled[0] = reading.polled[0]._replace(time_s=9.0)
    with pytest.raises(Violation, match="pre-committed read"):
        readers_see_committed(whole.history, whole.logs)


def test_an_intermediate_read(whole: Made) -> None:
    """The record is below the last stable offset and the marker of its transaction is not even in the log."""
    reading = whole.reader([(A, 0), (A, 4), (B, 0)])
    reading.polled[0] = reading.polled[0]._replace(last_stable_offset=1, high_watermark=1)
    with pytest.raises(Violation, match="intermediate read"):
        readers_see_committed(whole.history, whole.logs)


def test_a_record_beyond_the_last_stable_offset(whole: Made) -> None:
    reading = whole.reader([(A, 0), (A, 4), (B, 0)])
    reading.polled[1] = reading.polled[1]._replace(last_stable_offset=4)
    with pytest.raises(Violation, match="with a last stable offset of 4"):
        readers_see_committed(whole.history, whole.logs)


def test_one_partition_may_be_seen_before_the_other(whole: Made) -> None:
    """G1b across partitions is what the protocol allows."""
    reading = whole.reader([(A, 0), (A, 4)])
    reading.positions[B] = 0
    readers_see_committed(whole.history, whole.logs)


@pytest.mark.parametrize("committed", [True, False])
def test_a_skipped_poll(whole: Made, committed: bool) -> None:
    whole.reader([(A, 0), (B, 0)], committed=committed)
    with pytest.raises(Violation, match="records of t-0"):
        readers_see_committed(whole.history, whole.logs)


def test_aborted_data_that_a_reader_of_uncommitted_data_does_not_get(whole: Made) -> None:
    whole.reader([(A, 0), (A, 4), (B, 0)], committed=False)
    with pytest.raises(Violation, match="read 2 of 3 records"):
        readers_see_committed(whole.history, whole.logs)


def test_a_poll_that_goes_back(whole: Made) -> None:
    whole.reader([(A, 4), (A, 0), (B, 0)])
    with pytest.raises(Violation, match="was polled after"):
        readers_see_committed(whole.history, whole.logs)


def test_a_reader_that_stops_early(whole: Made) -> None:
    reading = whole.reader([(A, 0)])
    reading.positions[A] = 2
    with pytest.raises(Violation, match="stopped at 2 of t-0"):
        reached_the_end(reading, whole.logs)


# Offsets


def with_offset(made: Made, label: str, offset: int, *, epoch: int, commit: bool = True) -> Txn:
    txn = made.txn(label, epoch=epoch, told=Outcome.COMMITTED if commit else Outcome.ABORTED)
    txn.group, txn.offsets = "group", {A: offset}
    made.write(txn, A)
    made.end(txn, A, commit=commit)
    return txn


def seen_offset(made: Made, offset: int, *, stable: bool = True, asked_s: float = 20.0) -> None:
    made.history.offset_reads.append(OffsetRead("group", A, offset, stable, asked_s, asked_s + 0.1))


def test_offsets_that_follow_their_transactions(made: Made) -> None:
    seen_offset(made, -1, asked_s=1.0)
    with_offset(made, "w/1.0", 5, epoch=0)
    with_offset(made, "w/1.1", 6, epoch=1, commit=False)
    seen_offset(made, -1, stable=False, asked_s=12.0)  # its marker may be late
    seen_offset(made, 5)
    offsets_follow(made.history, made.logs)


def test_offsets_of_an_aborted_transaction_are_not_seen(made: Made) -> None:
    with_offset(made, "w/1.0", 5, epoch=0, commit=False)
    seen_offset(made, 5)
    with pytest.raises(Violation, match="aborted read"):
        offsets_follow(made.history, made.logs)


def test_offsets_are_not_seen_before_the_commit_was_asked_for(made: Made) -> None:
    with_offset(made, "w/1.0", 5, epoch=0)
    seen_offset(made, 5, asked_s=9.0)
    with pytest.raises(Violation, match="pre-committed read"):
        offsets_follow(made.history, made.logs)


def test_stable_offsets_show_what_was_committed_before(made: Made) -> None:
    with_offset(made, "w/1.0", 5, epoch=0)
    seen_offset(made, -1)
    with pytest.raises(Violation, match="lost"):
        offsets_follow(made.history, made.logs)


def test_offsets_do_not_come_apart_from_the_records_of_their_transaction(made: Made) -> None:
    with_offset(made, "w/1.0", 5, epoch=0)
    with_offset(made, "w/1.1", 6, epoch=1).told = None
    seen_offset(made, 5)
    with pytest.raises(Violation, match="torn"):
        offsets_follow(made.history, made.logs)


# Copies


def copy(made: Made, *, times: int = 1, source: str = "t-0@0") -> None:
    made.write(original := made.txn("w/1.0"), A)
    made.end(original, A)
    for number in range(times):
        txn = made.txn(f"c/1.{number}", producer_id=2, epoch=number)
        made.write(txn, B, source=source, hops=1)
        made.end(txn, B)


def renamed(made: Made) -> dict[TopicPartition, LogTruth]:
    return {A: made.logs[A], TopicPartition("out", 0): made.logs[B]}


def test_a_record_that_is_copied_once(made: Made) -> None:
    copy(made)
    copied_once(renamed(made), {"t": "out"}, 1)


@pytest.mark.parametrize("times", [0, 2])
def test_a_record_that_is_not_copied_once(made: Made, times: int) -> None:
    copy(made, times=times)
    with pytest.raises(Violation, match=f"copied {times} times"):
        copied_once(renamed(made), {"t": "out"}, 1)


def test_a_copy_of_what_is_not_there(made: Made) -> None:
    copy(made, source="t-0@9")
    with pytest.raises(Violation, match=r"not committed|copied 0 times"):
        copied_once(renamed(made), {"t": "out"}, 1)


# Cycles


def test_two_transactions_that_read_each_other(made: Made) -> None:
    first, second = made.txn("v/1.0"), made.txn("w/1.0", producer_id=2)
    mine, yours = made.write(first, A), made.write(second, B)
    made.end(first, A)
    made.end(second, B)
    second.reads.append((A, 0, mine))
    no_cycles(made.history, made.logs)
    first.reads.append((B, 0, yours))
    with pytest.raises(Violation, match="circular flow"):
        no_cycles(made.history, made.logs)


def test_a_transaction_that_read_what_was_written_after_it(made: Made) -> None:
    """wr and ww: first is over in A before second begins there, and yet first read what second wrote."""
    first, second = made.txn("v/1.0"), made.txn("w/1.0", producer_id=2)
    made.write(first, A)
    made.end(first, A)
    value = made.write(second, A)
    made.end(second, A)
    first.reads.append((A, 2, value))
    with pytest.raises(Violation, match="circular flow"):
        no_cycles(made.history, made.logs)


def test_an_earlier_transaction_of_a_session_that_depends_on_a_later_one(made: Made) -> None:
    first, other, last = made.txn("v/1.0"), made.txn("w/1.0", producer_id=2), made.txn("v/1.1", epoch=1)
    made.write(first, B)
    made.end(first, B)
    value = made.write(last, A)
    made.end(last, A)
    other.reads.append((A, 0, value))
    hand = made.write(other, B)
    made.end(other, B)
    no_cycles(made.history, made.logs)
    first.reads.append((B, 2, hand))
    with pytest.raises(Violation, match="circular flow"):
        no_cycles(made.history, made.logs)


def test_two_copiers_that_began_at_the_same_position(made: Made) -> None:
    first, second = made.txn("c/1.0"), made.txn("c/2.0", producer_id=2)
    for txn in (first, second):
        txn.group, txn.consumed_from = "group", {A: 4}
        made.write(txn, B)
        made.end(txn, B)
    with pytest.raises(Violation, match="offsets t-0@4"):
        no_cycles(made.history, made.logs)
    second.consumed_from = {A: 5}
    no_cycles(made.history, made.logs)


def test_what_was_aborted_has_no_edges(made: Made) -> None:
    first, second = made.txn("v/1.0"), made.txn("w/1.0", producer_id=2, told=Outcome.ABORTED)
    value = made.write(first, A)
    made.end(first, A)
    second.reads.append((A, 0, value))
    made.write(second, B)
    made.end(second, B, commit=False)
    assert edges(made.history, made.logs) == []
    assert find_cycle([]) == []


def test_an_identity_is_given_to_one_and_never_the_last_epoch() -> None:
    history = History()
    history.given("w/1", (1, 0))
    history.given("w/1", (1, 0))
    with pytest.raises(Violation, match="given to w/1 and to w/2"):
        history.given("w/2", (1, 0))
    with pytest.raises(Violation, match="was given"):
        history.given("w/3", (1, 32767))
