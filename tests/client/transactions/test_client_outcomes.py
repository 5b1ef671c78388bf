"""What became of a prepared transaction: a caller that holds its state learns it, as often as it asks."""

from typing import Any

import pytest

from kits.client.transactions import TOPIC, World, play, refuse, state_of
from twofold.client import Producer
from twofold.client.admin.transaction_model import EndedTwoPhase
from twofold.client.errors import Fenced, IllegalTransactionCall, PreparedAborted
from twofold.client.transactions.prepared import PreparedTxnState, TransactionOutcome
from twofold.client.transactions.states import ManagerState
from twofold.connections.errors import GaveUp
from twofold.types import Ending
from twofold.wire.errors import CoordinatorLoadInProgress, TransactionalIdNotFound

TWO_PHASE = {"transaction_two_phase_commit_enable": True}
DAY_S = 86_400


async def prepared(world: World, value: bytes = b"x", node: str = "client") -> tuple[Producer, str]:
    producer = await world.ready(node, **TWO_PHASE)
    await producer.begin_transaction()
    await producer.send(TOPIC, value, partition=0)
    return producer, str(await producer.prepare_transaction())


async def recovering(world: World, node: str = "other", **options: Any) -> Producer:
    producer = world.producer(node, **{**TWO_PHASE, **options})
    await producer.init_transactions(keep_prepared_txn=True)
    return producer


def another(stored: str) -> str:
    state = PreparedTxnState(stored)
    return f"{state.producer_id}:{state.epoch + 7}"


# What may be given


def kind_of(given: object) -> str:
    """An id that is the same in every process: the text of a memoryview holds its address."""
    return type(given).__name__


@pytest.mark.parametrize("given", [None, ("0", 0), 7, bytearray(b"0:0"), memoryview(b"0:0"), ["0:0"]], ids=kind_of)
def test_what_is_no_state_is_a_type_error_and_sends_nothing(given: Any) -> None:
    async def story(world: World) -> None:
        producer, stored = await prepared(world)
        sent = len(world.requests)
        with pytest.raises(TypeError, match=rf"is a {type(given).__name__}: a prepared transaction's state is text"):
            await producer.complete_transaction(given)
        assert (state_of(producer), len(world.requests)) == (ManagerState.PREPARED, sent)
        assert await producer.complete_transaction(stored) is TransactionOutcome.COMMITTED
        recovered = await recovering(world)
        with pytest.raises(TypeError):
            await recovered.complete_transaction(given)

    play(story)


@pytest.mark.parametrize("given", ["0:0 ", "0", b"0:-1", b"\xff\xfe", "None", b"0:0:0", "0:99999"], ids=repr)
def test_what_is_malformed_is_a_value_error_and_sends_nothing(given: Any) -> None:
    async def story(world: World) -> None:
        producer, _ = await prepared(world)
        sent = len(world.requests)
        with pytest.raises(ValueError, match=r"is not a prepared transaction's state: PRODUCER_ID:EPOCH"):
            await producer.complete_transaction(given)
        assert (state_of(producer), len(world.requests)) == (ManagerState.PREPARED, sent)

    play(story)


# What is told when nothing was left open


def test_a_repeated_recovery_is_told_committed_again_and_again() -> None:
    async def story(world: World) -> None:
        producer, stored = await prepared(world)
        assert await producer.complete_transaction(stored.encode()) is TransactionOutcome.COMMITTED
        for number in range(3):
            recovered = await recovering(world, f"other{number}")
            for _ in range(2):
                assert await recovered.complete_transaction(stored) is TransactionOutcome.COMMITTED
            await world.restart()
        async with recovered.transaction() as txn:
            await txn.send(TOPIC, b"next", partition=0)
        assert await world.read() == [b"x", b"next"]

    play(story)


def test_an_older_state_is_unknown_an_empty_one_is_nothing_and_a_strange_one_is_unknown() -> None:
    async def story(world: World) -> None:
        producer, first = await prepared(world)
        await producer.complete_transaction(first)
        await producer.begin_transaction()
        await producer.send(TOPIC, b"y", partition=0)
        second = await producer.prepare_transaction()
        await producer.complete_transaction(second)
        recovered = await recovering(world)
        assert await recovered.complete_transaction(first) is TransactionOutcome.UNKNOWN
        assert await recovered.complete_transaction(another(first)) is TransactionOutcome.UNKNOWN
        assert await recovered.complete_transaction("") is TransactionOutcome.NOTHING
        assert await recovered.complete_transaction(PreparedTxnState()) is TransactionOutcome.NOTHING
        assert await recovered.complete_transaction(second) is TransactionOutcome.COMMITTED

    play(story)


def test_what_was_aborted_is_an_error_with_the_cause_and_the_producer_goes_on() -> None:
    async def story(world: World) -> None:
        producer, stored = await prepared(world)
        assert await producer.complete_transaction("") is TransactionOutcome.ABORTED
        recovered = await recovering(world)
        for _ in range(2):
            with pytest.raises(PreparedAborted, match=rf"{stored} of 'id'.*its producer.*aborted it") as caught:
                await recovered.complete_transaction(stored)
            assert (str(caught.value.state), caught.value.cause) == (stored, Ending.ABORTED.cause)
        async with recovered.transaction() as txn:
            await txn.send(TOPIC, b"next", partition=0)
        assert await world.read() == [b"next"]

    play(story)


def test_commit_with_nothing_kept_is_refused_with_advice() -> None:
    async def story(world: World) -> None:
        for node in ("first", "second"):
            recovered = await recovering(world, node)
            with pytest.raises(IllegalTransactionCall, match=r"commit_transaction\(\) in state NOTHING_KEPT.*comple"):
                await recovered.commit_transaction()
            assert state_of(recovered) is ManagerState.NOTHING_KEPT
        await recovered.abort_transaction()
        assert world.count("EndTxn") == 0

    play(story)


def test_an_id_that_expired_meanwhile_is_unknown() -> None:
    async def story(world: World) -> None:
        producer, stored = await prepared(world)
        await producer.complete_transaction(stored)
        await world.sleep(1)
        world.kill()
        await world.age(8 * DAY_S)
        recovered = await recovering(world)
        assert await recovered.complete_transaction(stored) is TransactionOutcome.UNKNOWN

    play(story)


def test_a_coordinator_that_does_not_answer_is_asked_until_the_time_is_up_and_may_be_asked_again() -> None:
    async def story(world: World) -> None:
        world._watch("DescribeTransactions")
        producer, stored = await prepared(world)
        await producer.complete_transaction(stored)
        recovered = await recovering(world, max_block_ms=5_000)
        world.script("DescribeTransactions", *[refuse(CoordinatorLoadInProgress)] * 200)
        with pytest.raises(GaveUp):
            await recovered.complete_transaction(stored)
        world._steps.clear()
        assert await recovered.complete_transaction(stored) is TransactionOutcome.COMMITTED

    play(story)


# What others do to what is prepared here


@pytest.mark.parametrize("call", ["complete", "commit"])
@pytest.mark.parametrize("keeps", [False, True])
def test_an_operators_force_terminate_is_told_to_the_producer_that_holds_the_transaction(
    call: str, keeps: bool
) -> None:
    async def story(world: World) -> None:
        producer, stored = await prepared(world)
        if keeps:
            producer = await recovering(world)
        async with world.admin() as admin:
            await admin.force_terminate_transaction("id")
        with pytest.raises(PreparedAborted, match=rf"{stored} of 'id'.*an administrator ended it by force"):
            await (producer.complete_transaction(stored) if call == "complete" else producer.commit_transaction())
        with pytest.raises(Fenced, match=rf"transaction {stored} was aborted"):
            await producer.begin_transaction()
        assert await world.read() == []
        recovered = await recovering(world, "third")
        with pytest.raises(PreparedAborted):
            await recovered.complete_transaction(stored)

    play(story)


def test_a_producer_is_fenced_and_hears_that_another_one_committed_what_it_had_prepared() -> None:
    async def story(world: World) -> None:
        producer, stored = await prepared(world)
        recovered = await recovering(world)
        assert await recovered.complete_transaction(stored) is TransactionOutcome.COMMITTED
        with pytest.raises(Fenced, match=rf"transaction {stored} was committed"):
            await producer.commit_transaction()
        assert await world.read() == [b"x"]

    play(story)


def test_a_resumed_transaction_that_was_terminated_says_so_and_the_next_can_be_resumed() -> None:
    async def story(world: World) -> None:
        _, stored = await prepared(world)
        async with world.admin() as admin:
            await admin.force_terminate_transaction("id")
        committer = world.producer("committer", transactional_id=None)
        state = PreparedTxnState(stored)
        await committer.resume("id", *state.identity)
        with pytest.raises(PreparedAborted, match=r"of 'id'"):
            await committer.complete_transaction(stored)
        assert state_of(committer) is ManagerState.UNINITIALIZED
        await committer.resume("id", *state.identity)

    play(story)


def test_a_producer_without_two_phase_commit_that_keeps_takes_no_vow_away() -> None:
    async def story(world: World) -> None:
        _, stored = await prepared(world)
        await world.age(DAY_S)
        recovered = await recovering(world, transaction_two_phase_commit_enable=False, transaction_timeout_ms=10_000)
        await world.age(DAY_S)
        assert await world.read("read_uncommitted") == [b"x"]
        assert await recovered.complete_transaction(stored) is TransactionOutcome.COMMITTED
        assert await world.read() == [b"x"]

    play(story, log_retention_ms=-1)


# The administrator


def test_the_administrator_sees_how_the_last_one_ended() -> None:
    async def story(world: World) -> None:
        _, stored = await prepared(world)
        async with world.admin() as admin:
            assert (await admin.describe_transactions(["id"])).get()["id"].last_two_phase is None
            await admin.complete_transaction("id", stored.encode(), commit=True)
            row = (await admin.describe_transactions(["id"])).get()["id"]
            assert row.last_two_phase == EndedTwoPhase(PreparedTxnState(stored), Ending.COMMITTED)
            assert str(row.last_two_phase) == f"{stored} committed"

    play(story)


def test_force_terminate_of_an_unused_id_creates_nothing() -> None:
    async def story(world: World) -> None:
        async with world.admin() as admin:
            with pytest.raises(TransactionalIdNotFound, match="nobody"):
                await admin.force_terminate_transaction("nobody")
            assert world.count("InitProducerId") == 0
            listed = (await admin.list_transactions()).get()
            assert not any(listed.values())

    play(story)
