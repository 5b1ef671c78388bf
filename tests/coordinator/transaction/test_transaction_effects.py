"""What decisions ask for besides their records: effects as data, of every kind of decision that has some."""

import pytest

from kits.coordinator.transactions import NOW, ONGOING, TXN, World, a_transaction, a_world_in
from twofold.coordinator.transaction.coordinator import InitRequest
from twofold.coordinator.transaction.damage import Damage
from twofold.coordinator.transaction.effects import Audit, CountAbort, NoteSignOfLife, RememberCause, ReportAbort
from twofold.coordinator.transaction.heartbeats import AbortCause
from twofold.coordinator.transaction.records import NEVER_MS
from twofold.types import TopicPartition
from twofold.wire.errors import InvalidRequest, TransactionAbortable


class Asker:
    principal, client_host, client_id = "User:alice", "10.0.0.1", "app"


ASKER = Asker()
PLAIN = a_transaction(ONGOING)
BEATING = a_transaction(ONGOING, heartbeat_interval_ms=500)
TWO_PHASE = a_transaction(ONGOING, timeout_ms=NEVER_MS, client_version=2)


def end(entry, commit=True, **more):
    pair = (entry.producer_id, entry.producer_epoch)
    return World().coordinator.end(entry, TXN, *pair, commit, NOW, version=2, pending=False, asker=ASKER, **more)


def take_over(entry):
    request = InitRequest(TXN, 1000)
    return World().coordinator.init_producer_id(entry, request, NOW, pending=False, server_version=2, asker=ASKER)


def test_the_commit_of_a_plain_transaction_has_no_effects():
    assert end(PLAIN).effects == ()


@pytest.mark.parametrize(("commit", "outcome"), [(True, "commit"), (False, "abort")])
def test_the_end_of_a_two_phase_transaction_is_audited(commit, outcome):
    assert end(TWO_PHASE, commit).effects == (Audit(ASKER, "EndTxn", outcome, TXN, TWO_PHASE),)


def test_the_end_of_a_transaction_that_another_principal_opened_is_audited_and_that_of_an_own_one_is_not():
    mine, others = (a_transaction(ONGOING, opened_by=name) for name in ("User:alice", "User:bob"))
    assert end(mine).effects == ()
    assert end(others, False).effects == (Audit(ASKER, "EndTxn", "abort", TXN, others),)


def test_the_end_of_a_transaction_with_heartbeats_is_remembered_as_its_clients():
    assert end(BEATING, False).effects == (RememberCause(TXN, AbortCause.CLIENT),)


def test_a_client_that_takes_an_id_over_is_audited_and_counted():
    audit = Audit(ASKER, "InitProducerId", "abort", TXN, BEATING)
    remembered = RememberCause(TXN, AbortCause.FENCE)
    assert take_over(BEATING).effects == (audit, CountAbort(AbortCause.FENCE), remembered)
    assert take_over(PLAIN).effects[1:] == (CountAbort(AbortCause.FENCE),)


@pytest.mark.parametrize("cause", [AbortCause.TIMEOUT, AbortCause.HEARTBEAT])
def test_an_abort_by_the_coordinator_is_reported_and_counted(cause):
    decision = World().coordinator.abort(BEATING, TXN, cause, NOW, server_version=2)
    assert decision.effects == (ReportAbort(cause, TXN, BEATING), CountAbort(cause), RememberCause(TXN, cause))


def test_a_partition_that_is_added_is_a_sign_of_life_where_heartbeats_are_due():
    world = a_world_in(ONGOING, heartbeat_interval_ms=500)
    world.add()
    assert world.effects == [NoteSignOfLife(TXN)]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (Damage(ended_by_hand=TopicPartition("t", 0)), "t-0 was aborted by hand"),
        (Damage(lost=(TopicPartition("t", 0), TopicPartition("t", 1))), "what it wrote to t-0, t-1 is gone"),
    ],
)
def test_a_damaged_transaction_is_not_committed(damage, text):
    with pytest.raises(TransactionAbortable, match=text):
        end(TWO_PHASE, damage=damage)


def test_heartbeats_and_two_phase_commit_are_refused_together_with_a_reason():
    request = InitRequest(TXN, 60_000, enable_2pc=True, heartbeat_interval_ms=500)
    text = "heartbeats cannot be combined with enable2Pc: a two-phase transaction never times out"
    with pytest.raises(InvalidRequest, match=text):
        World().coordinator.check_init(request)
