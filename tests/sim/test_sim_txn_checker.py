"""The test of the transaction simulator: brokers that are broken on purpose are found out, each within a few seeds.

Where it says `blind`, nobody watches the broker: what clients were told and saw is enough to find it.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sim.transactions.plan import TxnPlan, make_txn_plan
from sim.transactions.world import simulate_txn
from twofold.broker.coordinators.transactions.markers import MarkerSender
from twofold.broker.coordinators.transactions.shard import TransactionShard
from twofold.coordinator.group.state import _Draft
from twofold.coordinator.transaction.coordinator import Coordinator, Decision
from twofold.coordinator.transaction.records import TransactionMetadata, TransactionRecord
from twofold.coordinator.transaction.state import TransactionMachine, TransactionsState
from twofold.coordinator.transaction.states import PREPARING, State
from twofold.coordinator.transaction.transitions import ended_with_epoch_kept
from twofold.log.indexes.aborted import AbortedIndex
from twofold.log.producers.table import ProducerTable
from twofold.machine.maps import Map
from twofold.types import ProducerEpoch, ProducerId

pytestmark = pytest.mark.slow

SEEDS = range(7000, 7015)
FAULTS = ("kill", "client kill", "reset")


def found(*faults: str, blind: bool = False, change: Callable[[TxnPlan], TxnPlan] = lambda plan: plan) -> str:
    """What the first seed says that notices."""
    for seed in SEEDS:
        plan = replace(make_txn_plan(seed), faults=faults or FAULTS)
        try:
            simulate_txn(seed, change(plan), blind=blind)
        except AssertionError as violation:
            if not any(f"TWOFOLD_SEED={seed} " in note for note in violation.__notes__):
                raise  # nobody is told how to see it again
            return str(violation)
    raise AssertionError(f"nothing was noticed in {len(SEEDS)} seeds")


def haunted(plan: TxnPlan) -> TxnPlan:
    """Everybody speaks TV2, and what they say is said again."""
    tv2 = make_txn_plan(0).writers[0].versions
    writers = tuple(replace(writer, versions=tv2, pause_s=0.03, abort=0.4) for writer in plan.writers)
    return replace(plan, ghosts=0.03, writers=writers, duration_s=3.0)


def slow(plan: TxnPlan) -> TxnPlan:
    """Synced before it counts: much may happen between a decision and its end."""
    return replace(plan, settings=plan.settings | {"log.flush.interval.messages": "1"}, duration_s=3.0)


blind = pytest.mark.parametrize("blind", [False, True], ids=["watched", "blind"])


@blind
def test_a_coordinator_that_forgets_a_marker(monkeypatch: pytest.MonkeyPatch, blind: bool) -> None:
    original = MarkerSender.send

    def send(self: MarkerSender, shard: int, epoch: int, name: str, value: TransactionMetadata, on_done: Any) -> None:
        fewer = frozenset(sorted(value.partitions)[1:]) or value.partitions
        original(self, shard, epoch, name, value._replace(partitions=fewer), on_done)

    monkeypatch.setattr(MarkerSender, "send", send)
    text = found(blind=blind)
    assert ("stuck" in text or "is still open" in text) if blind else "there is no marker" in text


@blind
def test_a_coordinator_that_answers_before_it_writes(monkeypatch: pytest.MonkeyPatch, blind: bool) -> None:
    original = TransactionShard.decide

    def decide(self: TransactionShard, name: str, decide: Any) -> Any:
        self.check_active()
        entry = self.state.entries.get(name)
        decision = decide(entry, self._runtime.clock.wall_ms(), self.is_pending(name, entry))
        if decision.value is None or decision.value.state is not State.PREPARE_COMMIT:
            return original(self, name, lambda *_: decision)

        def later() -> None:
            if self.is_active and self.state.entries.get(name) is entry:
                original(self, name, lambda *_: decision)

        self._runtime.timers.call_later(0.02, later)
        too_early: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        too_early.set_result(decision)
        return too_early

    monkeypatch.setattr(TransactionShard, "decide", decide)
    text = found(blind=blind)
    assert blind or "was told commit" in text


@blind
def test_a_last_stable_offset_that_overlooks_a_transaction(monkeypatch: pytest.MonkeyPatch, blind: bool) -> None:
    def first_unstable_offset(self: ProducerTable) -> int:
        return next(iter(list(self._ongoing)[1:]), 1 << 62)

    def advance_high_watermark(self: ProducerTable, offset: int) -> int:
        self.high_watermark = offset
        return first_unstable_offset(self)

    monkeypatch.setattr(ProducerTable, "first_unstable_offset", first_unstable_offset)
    monkeypatch.setattr(ProducerTable, "advance_high_watermark", advance_high_watermark)
    text = found(blind=blind)
    assert ("read" in text) if blind else ("has the last stable offset" in text or "LSO" in text)


@blind
def test_a_coordinator_that_lets_an_old_epoch_end_the_next_transaction(
    monkeypatch: pytest.MonkeyPatch, blind: bool
) -> None:
    original = Coordinator.end

    def end(
        self: Coordinator,
        entry: Any,
        name: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        *args: Any,
        **options: Any,
    ) -> Any:
        if entry is not None and entry.state is State.ONGOING and entry.producer_id == producer_id:
            epoch = entry.producer_epoch
        return original(self, entry, name, producer_id, epoch, *args, **options)

    monkeypatch.setattr(Coordinator, "end", end)
    assert found("delay", blind=blind, change=haunted)


@blind
def test_a_coordinator_that_forgets_what_was_decided(monkeypatch: pytest.MonkeyPatch, blind: bool) -> None:
    original = TransactionMachine.apply_all

    def apply_all(self: TransactionMachine, state: TransactionsState, entries: Any) -> TransactionsState:
        numbered = list(entries)
        loaded = original(self, state, numbered)
        return loaded._replace(preparing=Map()) if len(numbered) > 1 else loaded

    monkeypatch.setattr(TransactionMachine, "apply_all", apply_all)
    text = found("kill", "slow disk", blind=blind, change=slow)
    assert "stuck" in text if blind else "decided are" in text or "no replay" in text


@blind
def test_a_coordinator_that_decides_anew_after_a_restart(monkeypatch: pytest.MonkeyPatch, blind: bool) -> None:
    original = TransactionShard.decode_batch

    def decode_batch(self: TransactionShard, *args: Any) -> Iterator[tuple[int, TransactionRecord]]:
        for offset, (name, value) in original(self, *args):
            if value is not None and value.state in PREPARING:
                value = value._replace(state=State.PREPARE_ABORT)
            yield offset, TransactionRecord(name, value)

    monkeypatch.setattr(TransactionShard, "decode_batch", decode_batch)
    assert found("kill", "slow disk", blind=blind, change=slow)


def test_markers_of_an_old_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MarkerSender.send

    def send(self: MarkerSender, shard: int, epoch: int, name: str, value: TransactionMetadata, on_done: Any) -> None:
        original(self, shard, 10 - epoch, name, value, on_done)

    monkeypatch.setattr(MarkerSender, "send", send)
    monkeypatch.setattr("twofold.log.producers.table.check_marker", lambda *args: None)
    assert "coordinator epoch" in found("kill")


@blind
def test_a_coordinator_that_adds_partitions_and_does_not_write_it_down(
    monkeypatch: pytest.MonkeyPatch, blind: bool
) -> None:
    monkeypatch.setattr(Coordinator, "add_partitions", lambda *args, **options: Decision(None))
    monkeypatch.setattr(Coordinator, "verify", lambda *args: {})
    text = found(blind=blind)
    assert blind or "does not know it" in text


@blind
def test_a_coordinator_that_aborts_and_leaves_the_epoch(monkeypatch: pytest.MonkeyPatch, blind: bool) -> None:
    def fence(self: Coordinator, entry: TransactionMetadata, now_ms: int, *, server_version: int) -> Decision:
        return Decision(ended_with_epoch_kept(entry, False, now_ms), decide_again=True)

    monkeypatch.setattr(Coordinator, "fence", fence)
    assert found("pause", "client kill", blind=blind)


def test_a_coordinator_that_calls_an_abort_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Coordinator, "_end_again", lambda self, entry, *_: Decision(None, entry.producer_id, entry.producer_epoch)
    )

    def hanging(plan: TxnPlan) -> TxnPlan:
        return replace(plan, writers=tuple(replace(w, hang=0.4, timeout_ms=600) for w in plan.writers))

    assert found("pause", change=hanging)


def test_a_group_that_shows_offsets_before_their_transaction_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    original = _Draft.commit
    monkeypatch.setattr(_Draft, "commit", lambda self, record, at: original(self, record._replace(producer_id=-1), at))
    text = found()
    assert "aborted read" in text or "pre-committed read" in text or "stable" in text or "torn" in text


def test_a_group_that_drops_the_offsets_of_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = _Draft.end_transaction
    monkeypatch.setattr(
        _Draft, "end_transaction", lambda self, record: original(self, record._replace(committed=False))
    )
    text = found()
    assert "lost" in text or "torn" in text or "copied" in text or "stuck" in text


def test_a_fetch_that_does_not_say_what_was_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AbortedIndex, "between", lambda *args: ())
    assert "aborted read" in found()


def test_a_leader_without_a_duplicate_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerTable, "find_duplicate", lambda *args: None)
    monkeypatch.setattr("twofold.log.producers.table.check_sequence", lambda *args: None)
    text = found("reset", "loss", "delay", change=haunted)
    assert "duplicate" in text or "after" in text
