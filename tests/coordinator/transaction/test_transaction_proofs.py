"""What a record proves about a transaction, and that it never proves anything false."""

from random import Random

import pytest

from twofold.coordinator.transaction.coordinator import Coordinator, InitRequest, TransactionConfig
from twofold.coordinator.transaction.proofs import Evidence, Missing, Orphan, Pair, by_producer, proven, set_apart
from twofold.coordinator.transaction.records import NEVER_MS, Ended, TransactionMetadata
from twofold.coordinator.transaction.states import PREPARING, State
from twofold.types import Ending, TopicPartition
from twofold.wire.errors import KafkaError

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
TV2 = 2


class History:
    """An id that is walked at random, with all records that it wrote, and how each transaction was decided."""

    def __init__(self, seed: int, *, first_epoch: int = 0) -> None:
        self.random = Random(seed)
        self._ids = iter(range(1, 10_000))
        config = TransactionConfig(two_phase_commit_enable=True)
        self.coordinator = Coordinator(config, lambda: next(self._ids))
        self.entry: TransactionMetadata | None = None
        self.records: list[TransactionMetadata] = []
        self.decided: dict[Pair, bool] = {}
        self.written: set[Pair] = set()
        self._first_epoch = first_epoch

    def write(self, value: TransactionMetadata | None) -> None:
        if value is None:
            return
        before = self.entry
        if before is None:
            value = value._replace(producer_epoch=self._first_epoch)
        if value.state in PREPARING and before is not None and before.state is State.ONGOING:
            self.decided[Pair(before.producer_id, before.producer_epoch)] = value.state is State.PREPARE_COMMIT
        if value.state is State.ONGOING:
            self.written.add(Pair(value.producer_id, value.producer_epoch))
        self.entry = value
        self.records.append(value)
        if value.state in PREPARING:
            self.write(self.coordinator.complete(value, 1))

    def step(self) -> None:
        random, entry, coordinator = self.random, self.entry, self.coordinator
        if entry is None or random.random() < 0.3:
            two_phase, keep = random.random() < 0.5, random.random() < 0.5
            request = InitRequest("x", NEVER_MS if two_phase else 60_000, enable_2pc=two_phase, keep_prepared_txn=keep)
            self.write(coordinator.init_producer_id(entry, request, 1, pending=False, server_version=TV2).value)
            return
        holder = (entry.producer_id, entry.producer_epoch)
        if entry.next_producer_epoch >= 0:
            holder = (entry.next_producer_id, entry.next_producer_epoch)
        if random.random() < 0.5:
            added = frozenset({random.choice((A, B))})
            self.write(
                coordinator.add_partitions(entry, "x", *holder, added, TV2, 1, pending=False, server_version=TV2).value
            )
        else:
            commit = random.random() < 0.5
            self.write(coordinator.end(entry, "x", *holder, commit, 1, version=TV2, pending=False).value)

    def walk(self, steps: int = 60) -> "History":
        for _ in range(steps):
            try:
                self.step()
            except KafkaError:
                continue
        return self


@pytest.mark.parametrize("first_epoch", [0, 32755])
def test_no_record_proves_anything_false_about_a_pair_that_wrote(first_epoch: int) -> None:
    told = 0
    for seed in range(300):
        history = History(seed, first_epoch=first_epoch).walk()
        for record in history.records:
            for pair, commit in proven(record):
                if pair in history.written:
                    assert history.decided[pair] == commit, (seed, record)
                    told += 1
    assert told > 1000


@pytest.mark.parametrize("first_epoch", [0, 32755])
def test_whatever_was_decided_is_proven_by_the_records_of_its_end(first_epoch: int) -> None:
    for seed in range(300):
        history = History(seed, first_epoch=first_epoch).walk()
        found = {pair for record in history.records for pair, _ in proven(record)}
        assert history.decided.keys() <= found, seed


def entry(**fields: object) -> TransactionMetadata:
    usual: dict[str, object] = {"client_version": 2, "previous_producer_id": 7, "last_producer_epoch": 3}
    return TransactionMetadata(7, 4, 60_000, State.COMPLETE_COMMIT)._replace(**(usual | fields))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (entry(), [(Pair(7, 3), True)]),
        (entry(state=State.COMPLETE_ABORT), [(Pair(7, 3), False)]),
        (entry(state=State.PREPARE_COMMIT), [(Pair(7, 3), True)]),
        (entry(state=State.EMPTY), []),
        (entry(state=State.ONGOING), []),
        (entry(client_version=0), []),
        (entry(client_version=1), []),
        (entry(last_producer_epoch=-1), []),
        (entry(last_producer_epoch=32767), []),
        (entry(state=State.EMPTY, last_two_phase=Ended(7, 1, Ending.COMMITTED)), [(Pair(7, 1), True)]),
        (entry(state=State.ONGOING, last_two_phase=Ended(5, 1, Ending.TERMINATED)), [(Pair(5, 1), False)]),
        (entry(state=State.EMPTY, last_two_phase=Ended(7, 1, 99)), []),
        (entry(state=State.PREPARE_COMMIT, next_producer_id=9, next_producer_epoch=1), [(Pair(7, 3), True)]),
    ],
)
def test_a_record_proves(value: TransactionMetadata, expected: list[tuple[Pair, bool]]) -> None:
    assert list(proven(value)) == expected


def judged(orphans: list[Orphan], *records: TransactionMetadata) -> tuple[list[Missing], list[str]]:
    evidence = Evidence(by_producer(orphans))
    for record in records:
        evidence.note("x", record)
    missing, unproven = evidence.judge({"x": records[-1]} if records else {})
    return missing, [row.reason for row in unproven]


def test_what_the_coordinator_still_ends_is_no_orphan() -> None:
    ongoing = entry(state=State.ONGOING, partitions=frozenset({A}))
    assert judged([Orphan(A, Pair(7, 4), 0)], ongoing) == ([], [])
    preparing = entry(state=State.PREPARE_ABORT, partitions=frozenset({A}))
    assert judged([Orphan(A, Pair(7, 3), 0)], preparing) == ([], [])


def test_partitions_of_one_transaction_are_repaired_together() -> None:
    orphans = [Orphan(A, Pair(7, 3), 0), Orphan(B, Pair(7, 3), 5)]
    assert judged(orphans, entry()) == ([Missing("x", Pair(7, 3), True, frozenset({A, B}))], [])


def test_records_that_contradict_each_other_prove_nothing() -> None:
    _, reasons = judged([Orphan(A, Pair(7, 3), 0)], entry(), entry(state=State.COMPLETE_ABORT))
    assert len(reasons) == 1


def test_the_last_epoch_of_the_first_protocol_proves_nothing_when_its_client_changes_to_the_second() -> None:
    old = entry(producer_epoch=3, client_version=0, state=State.COMPLETE_ABORT)
    missing, (reason,) = judged([Orphan(A, Pair(7, 3), 0)], old, entry())
    assert missing == [] and "share one epoch" in reason


@pytest.mark.parametrize(
    ("value", "pair", "reason"),
    [
        (entry(producer_epoch=9, last_producer_epoch=8), Pair(7, 3), "has gone on"),
        (entry(producer_epoch=2, last_producer_epoch=1), Pair(7, 3), "lost its newest records and has epoch 2"),
        (entry(state=State.ONGOING, producer_epoch=3), Pair(7, 3), "open without this partition"),
    ],
)
def test_why_nothing_is_proven(value: TransactionMetadata, pair: Pair, reason: str) -> None:
    missing, (told,) = judged([Orphan(A, pair, 0)], value)
    assert missing == [] and reason in told


def test_an_id_is_set_apart_where_its_pair_could_come_again() -> None:
    def apart(value: TransactionMetadata) -> TransactionMetadata | None:
        return set_apart(value, Pair(7, 5), 1, lambda: 99)

    ended = apart(entry())
    assert ended is not None and ended[:2] == (99, 0) and ended.state is State.EMPTY
    assert ended.previous_producer_id == 7 and ended.last_producer_epoch == -1
    behind = apart(entry(state=State.ONGOING, partitions=frozenset({A})))
    assert behind is not None and behind.state is State.PREPARE_ABORT and behind.next_producer_id == 99
    assert apart(entry(producer_id=8)) is None, "the id has another producer id already"
    assert apart(entry(state=State.ONGOING, producer_epoch=6)) is None, "epochs only rise"
    assert apart(entry(state=State.ONGOING, timeout_ms=NEVER_MS)) is None, "a two-phase one is ended from outside only"
    assert apart(entry(state=State.PREPARE_COMMIT)) is None
