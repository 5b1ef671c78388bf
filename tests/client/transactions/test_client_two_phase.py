"""Two-phase commit from the producer's side, against the real broker: nobody but the application decides."""

import asyncio
from typing import Any

import pytest

from kits.client.transactions import TOPIC, World, identity_of, play, refuse, state_of
from twofold.client import Producer
from twofold.client.errors import (
    Fenced,
    IllegalTransactionCall,
    InDoubt,
    PreparedAborted,
    ProducerFailed,
    TransactionFailed,
)
from twofold.client.transactions.prepared import PreparedTxnState, TransactionOutcome
from twofold.client.transactions.states import ManagerState
from twofold.connections.errors import UnsupportedByBroker
from twofold.wire.errors import (
    InvalidRecord,
    InvalidTxnState,
    InvalidUpdateVersion,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnknownServerError,
)

YEAR_S = 365 * 86_400
Decision = PreparedTxnState | str | bytes
TWO_PHASE: dict[str, Any] = {"transaction_two_phase_commit_enable": True}


async def participant(world: World, node: str = "client", *, keep: bool = False) -> Producer:
    producer = world.producer(node, **TWO_PHASE)
    await producer.init_transactions(keep_prepared_txn=keep)
    return producer


async def prepared(world: World, value: bytes = b"x", node: str = "client") -> tuple[Producer, PreparedTxnState]:
    producer = await participant(world, node)
    await producer.begin_transaction()
    await producer.send(TOPIC, value, partition=0)
    return producer, await producer.prepare_transaction()


def test_prepare_returns_when_all_records_are_in_the_log_and_names_the_transaction() -> None:
    async def story(world: World) -> None:
        producer = await participant(world)
        await producer.begin_transaction()
        deliveries = [await producer.send(TOPIC, b"%d" % number, partition=number % 3) for number in range(30)]
        state = await producer.prepare_transaction()
        assert all(delivery.done() for delivery in deliveries)
        assert tuple(state.identity) == identity_of(producer)
        assert (await world.read(), len(await world.read("read_uncommitted"))) == ([], 30)
        await producer.commit_transaction()
        assert len(await world.read()) == 30

    play(story)


@pytest.mark.parametrize("decision", ["equal", "its text", "its bytes", "another", "none", "no bytes"])
def test_complete_commits_its_own_state_and_aborts_at_any_other(decision: str) -> None:
    async def story(world: World) -> None:
        producer, state = await prepared(world)
        other = PreparedTxnState.of(state.producer_id, state.epoch + 1)
        same: dict[str, Decision] = {"equal": state, "its text": str(state), "its bytes": str(state).encode()}
        given = {**same, "another": other, "none": PreparedTxnState(), "no bytes": b""}[decision]
        done = await producer.complete_transaction(given)
        assert done is (TransactionOutcome.COMMITTED if decision in same else TransactionOutcome.ABORTED)
        assert state_of(producer) is ManagerState.READY
        assert await world.read() == ([b"x"] if decision in same else [])
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"next", partition=0)
        assert (await world.read())[-1] == b"next"

    play(story)


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_waits_for_its_decision_through_crashes_and_years(commit: bool) -> None:
    async def story(world: World) -> None:
        _, state = await prepared(world)
        stored = str(state)
        world.kill()
        await world.age(3 * YEAR_S)
        await world.restart()
        await world.age(YEAR_S)
        recovered = await participant(world, "elsewhere", keep=True)
        assert recovered._transactions.prepared == PreparedTxnState(stored)
        assert await world.read() == []
        await recovered.complete_transaction(PreparedTxnState(stored) if commit else PreparedTxnState())
        assert await world.read() == ([b"x"] if commit else [])

    play(story, log_retention_ms=-1)


def test_what_was_kept_may_only_be_ended() -> None:
    async def story(world: World) -> None:
        _, state = await prepared(world)
        recovered = world.producer("other", **TWO_PHASE)
        assert await recovered.init_transactions(keep_prepared_txn=True) == state
        for call in (
            lambda: recovered.send(TOPIC, b"more"),
            recovered.begin_transaction,
            recovered.prepare_transaction,
            recovered.init_transactions,
            lambda: recovered.send_offsets_to_transaction({}, "group"),
        ):
            with pytest.raises(IllegalTransactionCall, match=rf"in state PREPARED {state} of 'id'"):
                await call()
        await recovered.commit_transaction()
        assert await world.read() == [b"x"]

    play(story)


@pytest.mark.parametrize("end", ["abort", "complete", "begin"])
def test_when_nothing_was_left_open_the_decision_has_nothing_to_do(end: str) -> None:
    async def story(world: World) -> None:
        producer, state = await prepared(world)
        await producer.commit_transaction()
        recovered = world.producer("other", **TWO_PHASE)
        assert await recovered.init_transactions(keep_prepared_txn=True) == PreparedTxnState()
        ends = world.count("EndTxn")
        if end == "abort":
            await recovered.abort_transaction()
        elif end == "complete":
            await recovered.complete_transaction(state)
        assert world.count("EndTxn") == ends
        async with recovered.transaction() as txn:
            await txn.send(TOPIC, b"next", partition=0)
        assert await world.read() == [b"x", b"next"]

    play(story)


def test_prepare_without_two_phase_commit_is_an_invalid_state() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        await producer.begin_transaction()
        with pytest.raises(InvalidTxnState, match=r"prepare_transaction\(\) in state IN_TRANSACTION.*two_phase_commit"):
            await producer.prepare_transaction()
        await producer.send(TOPIC, b"goes on", partition=0)
        await producer.commit_transaction()
        assert await world.read() == [b"goes on"]

    play(story)


def test_complete_when_nothing_was_prepared_or_kept_is_an_invalid_state() -> None:
    async def story(world: World) -> None:
        producer = await participant(world)
        for _ in range(2):
            with pytest.raises(InvalidTxnState, match=r"complete_transaction\(\) in state"):
                await producer.complete_transaction("7:0")
            if state_of(producer) is ManagerState.READY:
                await producer.begin_transaction()
        await producer.send(TOPIC, b"x")
        with pytest.raises(InvalidTxnState, match=r"complete_transaction\(\) in state IN_TRANSACTION"):
            await producer.complete_transaction(PreparedTxnState())

    play(story)


def test_prepare_fails_when_a_record_does_and_the_answer_is_no() -> None:
    async def story(world: World) -> None:
        producer = await participant(world)
        await producer.begin_transaction()
        world.script("Produce", refuse(InvalidRecord))
        await producer.send(TOPIC, b"bad")
        with pytest.raises(TransactionFailed, match=r"preparing the transaction.*INVALID_RECORD"):
            await producer.prepare_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"good")
        assert await world.read() == [b"good"]

    play(story)


def test_a_transaction_without_records_is_never_mistaken_for_the_next_one() -> None:
    """Both have the same producer id and epoch, since nothing ever reached the coordinator of the first."""

    async def story(world: World) -> None:
        producer = await participant(world)
        await producer.begin_transaction()
        stored = await producer.prepare_transaction()
        assert stored == PreparedTxnState()
        assert await producer.complete_transaction(stored) is TransactionOutcome.NOTHING
        await producer.begin_transaction()
        await producer.send(TOPIC, b"never decided", partition=0)
        await producer.prepare_transaction()
        world.kill()
        recovered = await participant(world, "other", keep=True)
        await recovered.complete_transaction(stored)
        assert await world.read() == []

    play(story)


# Blocks


class Interrupted(BaseException):
    pass


async def prepare_and_leave(producer: Producer, error: BaseException | None) -> None:
    async with producer.transaction() as txn:
        await txn.send(TOPIC, b"x", partition=0)
        await txn.prepare()
        if error is not None:
            raise error


def test_a_prepared_block_commits_at_its_end() -> None:
    async def story(world: World) -> None:
        await prepare_and_leave(await participant(world), None)
        assert await world.read() == [b"x"]

    play(story)


def test_a_prepared_block_that_is_left_by_an_exception_sends_nothing_and_is_in_doubt() -> None:
    async def story(world: World) -> None:
        producer = await participant(world)
        with pytest.raises(InDoubt, match=r"transaction 0:0 is prepared.*complete_transaction\(\)") as caught:
            await prepare_and_leave(producer, KeyError("mine"))
        assert isinstance(caught.value.__cause__, KeyError)
        assert (state_of(producer), world.count("EndTxn")) == (ManagerState.PREPARED, 0)
        await producer.complete_transaction(caught.value.state)
        assert await world.read() == [b"x"]

    play(story)


@pytest.mark.parametrize("error", [Interrupted(), asyncio.CancelledError()])
def test_an_interrupt_stays_an_interrupt_and_carries_the_doubt_as_a_note(error: BaseException) -> None:
    async def story(world: World) -> None:
        producer = await participant(world)
        with pytest.raises(type(error)) as caught:
            await prepare_and_leave(producer, error)
        assert any("transaction 0:0 is prepared" in note for note in caught.value.__notes__)
        assert (state_of(producer), world.count("EndTxn")) == (ManagerState.PREPARED, 0)

    play(story)


def test_close_leaves_a_prepared_transaction_as_it_is() -> None:
    async def story(world: World) -> None:
        producer, state = await prepared(world)
        await producer.close()
        assert world.count("EndTxn") == 0
        recovered = await participant(world, "other", keep=True)
        await recovered.complete_transaction(state)
        assert await world.read() == [b"x"]

    play(story)


# Errors after the vow


@pytest.mark.parametrize("error", [ProducerFenced, InvalidTxnState, TransactionAbortable, UnknownServerError])
def test_a_commit_of_a_prepared_transaction_that_is_refused_never_becomes_an_abort(error: type[KafkaError]) -> None:
    async def story(world: World) -> None:
        producer, state = await prepared(world)
        world.script("EndTxn", refuse(error))
        with pytest.raises(
            (Fenced, ProducerFailed), match=rf"{error.name}.*transaction {state} was prepared and is in"
        ):
            await producer.commit_transaction()
        assert (state_of(producer), world.count("EndTxn")) == (ManagerState.FATAL_ERROR, 1)
        await producer.close()
        assert world.count("EndTxn") == 1
        recovered = await participant(world, "other", keep=True)
        await recovered.complete_transaction(state)
        assert await world.read() == [b"x"]

    play(story)


def test_of_two_that_recover_at_once_the_second_decides() -> None:
    async def story(world: World) -> None:
        original, state = await prepared(world)
        first = await participant(world, "first", keep=True)
        second = await participant(world, "second", keep=True)
        for late in (original, first):
            with pytest.raises(Fenced, match=r"another producer has taken the transaction over"):
                await late.commit_transaction()
        assert await world.read() == []
        await second.complete_transaction(state)
        assert await world.read() == [b"x"]

    play(story)


def test_a_producer_that_does_not_keep_aborts_what_was_prepared() -> None:
    async def story(world: World) -> None:
        original, state = await prepared(world)
        await participant(world, "other")
        assert await world.read() == []
        with pytest.raises(PreparedAborted, match=rf"transaction {state} of 'id' was prepared, and it was aborted"):
            await original.commit_transaction()

    play(story)


def test_the_decision_under_way_cannot_be_turned_round() -> None:
    async def story(world: World) -> None:
        producer, state = await prepared(world)
        producer._transactions.state = ManagerState.COMMITTING
        with pytest.raises(
            IllegalTransactionCall, match=r"complete_transaction\(''\) in state COMMITTING.*the other one"
        ):
            await producer.complete_transaction(PreparedTxnState())
        await producer.complete_transaction(state)
        assert await world.read() == [b"x"]

    play(story)


# What a broker may lack


def test_a_broker_whose_switch_is_off_is_named_with_the_switch() -> None:
    async def story(world: World) -> None:
        producer = world.producer(**TWO_PHASE)
        with pytest.raises(TransactionalIdAuthorizationFailed, match=r"transaction\.two\.phase\.commit\.enable"):
            await producer.init_transactions()
        assert state_of(producer) is ManagerState.UNINITIALIZED

    play(story, transaction_two_phase_commit_enable="false")


@pytest.mark.parametrize("level", [0, 1])
def test_a_cluster_below_version_2_has_no_two_phase_commit_and_the_client_says_which_feature_to_raise(
    level: int,
) -> None:
    async def story(world: World) -> None:
        producer = world.producer(**TWO_PHASE)
        said = rf"transaction\.version={level}: keep_prepared_txn needs 2"
        with pytest.raises(UnsupportedByBroker, match=said):
            await producer.init_transactions(keep_prepared_txn=True)
        said = rf"transaction\.version={level}: transaction_two_phase_commit_enable needs 2"
        with pytest.raises(UnsupportedByBroker, match=said):
            await producer.init_transactions()
        assert world.count("InitProducerId") == 0, "nothing was sent"

    play(story, level=level)


def test_a_producer_whose_cluster_goes_below_version_2_begins_no_transaction_of_equal_states() -> None:
    async def story(world: World) -> None:
        producer, state = await prepared(world)
        with pytest.raises(InvalidUpdateVersion, match=rf"'id' has {state}.*twofold txn list --two-phase"):
            await world.set_level(1)
        await producer.complete_transaction(state)
        await world.set_level(1)
        await world.restart()
        await producer.begin_transaction()  # it has not heard of it yet
        await producer.send(TOPIC, b"y", partition=0)
        with pytest.raises(ProducerFailed, match=r"preparing the transaction.*UNSUPPORTED_VERSION"):
            await producer.prepare_transaction()
        assert await world.read() == [b"x"]

    play(story)


def test_keep_without_two_phase_commit_is_allowed_and_keeps_the_timeout() -> None:
    async def story(world: World) -> None:
        first = await world.ready(transaction_timeout_ms=30_000)
        await first.begin_transaction()
        await (await first.send(TOPIC, b"x", partition=0))
        second = world.producer("other", transaction_timeout_ms=30_000)
        kept = await second.init_transactions(keep_prepared_txn=True)
        assert tuple(kept.identity) == identity_of(first)
        await world.sleep(60)
        with pytest.raises((Fenced, ProducerFailed)):
            await second.complete_transaction(kept)
        assert await world.read() == []

    play(story)


# Without two-phase commit, as stream engines do it


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_resumed_by_the_process_that_kept_its_identity(level: int, commit: bool) -> None:
    async def story(world: World) -> None:
        gone = await world.ready()
        await gone.begin_transaction()
        await (await gone.send(TOPIC, b"x", partition=0))
        producer_id, epoch = identity_of(gone)
        world.kill()
        committer = world.producer("committer", transactional_id=None)
        await committer.resume("id", producer_id, epoch)
        with pytest.raises(IllegalTransactionCall, match=r"begin_transaction\(\) in state PREPARED"):
            await committer.begin_transaction()
        await (committer.commit_transaction() if commit else committer.abort_transaction())
        assert await world.read() == ([b"x"] if commit else [])

    play(story, level=level)


def test_one_producer_resumes_many_and_one_that_is_gone_does_not_stop_it() -> None:
    async def story(world: World) -> None:
        found = []
        for number in range(3):
            gone = await world.ready(f"node{number}", transactional_id=f"id{number}")
            await gone.begin_transaction()
            await (await gone.send(TOPIC, b"%d" % number, partition=0))
            found.append((f"id{number}", *identity_of(gone)))
        await world.ready("other", transactional_id="id1")
        committer = world.producer("committer", transactional_id=None)
        for transactional_id, producer_id, epoch in found:
            await committer.resume(transactional_id, producer_id, epoch)
            if transactional_id == "id1":
                with pytest.raises(Fenced, match="'id1'"):
                    await committer.commit_transaction()
            else:
                await committer.complete_transaction(PreparedTxnState.of(producer_id, epoch))
            assert state_of(committer) is ManagerState.UNINITIALIZED
        assert await world.read() == [b"0", b"2"]

    play(story)


def test_a_resumed_commit_may_be_repeated_after_a_crash() -> None:
    async def story(world: World) -> None:
        gone = await world.ready()
        await gone.begin_transaction()
        await (await gone.send(TOPIC, b"x", partition=0))
        for node in ("one", "two"):
            committer = world.producer(node)
            await committer.resume("id", *identity_of(gone))
            await committer.commit_transaction()
        assert await world.read() == [b"x"]

    play(story)


def test_a_producer_resumes_only_its_own_id_and_only_before_it_starts() -> None:
    async def story(world: World) -> None:
        producer = world.producer()
        with pytest.raises(ValueError, match="cannot resume 'another'"):
            await producer.resume("another", 1, 0)
        with pytest.raises(ValueError, match="do not name a transaction"):
            await producer.resume("id", -1, 0)
        await producer.init_transactions()
        with pytest.raises(IllegalTransactionCall, match=r"resume\(\) in state READY"):
            await producer.resume("id", 1, 0)

    play(story)


def test_a_producer_whose_transaction_was_taken_over_is_told_by_which_and_what_to_do() -> None:
    """Its own epoch is the one that the coordinator shows, so two equal numbers would explain nothing."""

    async def story(world: World) -> None:
        original, state = await prepared(world)
        await participant(world, "heir", keep=True)
        with pytest.raises(Fenced) as told:
            await original.commit_transaction()
        message = str(told.value)
        assert f"transaction {state} is still open" in message
        assert (
            "another producer has taken the transaction over with init_transactions(keep_prepared_txn=True)" in message
        )
        assert f"it has producer id {state.producer_id}, epoch {state.epoch}" in message
        assert f"`twofold txn complete --transactional-id id --state {state}` and the decision" in message
        assert "but our epoch is" not in message

    play(story)
