"""A producer's transactions against the real broker: what commits and aborts do, whatever happens on the way."""

import asyncio

import pytest

from kits.client.transactions import (
    TOPIC,
    World,
    act_then_hang_up,
    hang_up,
    identity_of,
    play,
    refuse,
    state_of,
)
from twofold.client import Producer, TopicPartition
from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.errors import (
    DeliveryTimeout,
    Fenced,
    IllegalTransactionCall,
    ProducerFailed,
    TransactionAborted,
    TransactionFailed,
)
from twofold.client.transactions.states import ManagerState
from twofold.connections.errors import ClientClosed, GaveUp
from twofold.wire.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    FencedInstanceId,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    NotCoordinator,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TopicAuthorizationFailed,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnknownServerError,
)

ZERO = TopicPartition(TOPIC, 0)
LEVELS = pytest.mark.parametrize("level", [0, 1, 2])


@LEVELS
def test_committed_records_are_read_and_aborted_ones_are_not(level: int) -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        expected = []
        for number in range(6):
            await producer.begin_transaction()
            for partition in range(3):
                await producer.send(TOPIC, b"%d-%d" % (number, partition), partition=partition)
            if number % 2:
                await producer.flush()  # or nothing of it would ever leave
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                expected += [b"%d-%d" % (number, partition) for partition in range(3)]
        assert sorted(await world.read()) == sorted(expected)
        assert len(await world.read("read_uncommitted")) == 18

    play(story, level=level)


def test_with_version_2_nothing_is_added_and_every_end_has_a_new_epoch() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        producer_id, epoch = identity_of(producer)
        for number in range(3):
            async with producer.transaction() as txn:
                await txn.send(TOPIC, b"x", partition=0)
                await txn.send_offsets({ZERO: number}, "group")
            assert identity_of(producer) == (producer_id, epoch + number + 1)
        assert not world.versions("AddPartitionsToTxn") and not world.versions("AddOffsetsToTxn")
        assert (min(world.versions("Produce")), min(world.versions("TxnOffsetCommit"))) == (13, 5)
        assert set(world.versions("EndTxn")) == {5}

    play(story)


@pytest.mark.parametrize("level", [0, 1])
def test_below_version_2_partitions_and_groups_are_added_first_and_the_epoch_stays(level: int) -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        before = identity_of(producer)
        for number in range(3):
            async with producer.transaction() as txn:
                for partition in range(3):
                    await txn.send(TOPIC, b"x", partition=partition)
                await txn.send_offsets({ZERO: number}, "group")
        assert identity_of(producer) == before
        assert set(world.versions("AddPartitionsToTxn")) == {3} and world.count("AddOffsetsToTxn") >= 3
        assert (set(world.versions("Produce")), set(world.versions("TxnOffsetCommit"))) == ({11}, {4})
        assert set(world.versions("EndTxn")) == {4}
        assert len(await world.read()) == 9
        assert await world.committed_offset("group", ZERO) == 2

    play(story, level=level)


def test_sequences_go_on_from_one_transaction_to_the_next_below_version_2() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        for _ in range(3):
            async with producer.transaction() as txn:
                for number in range(5):
                    await (await txn.send(TOPIC, b"%d" % number, partition=0))
        assert producer._sender.backlog.queue(ZERO).sequences.next_sequence == 15

    play(story, level=1)


def test_a_cluster_that_is_raised_to_version_2_is_followed_between_transactions() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"one", partition=0)
        before = identity_of(producer)
        await world.set_level(2)
        world.sim.network.reset("broker", "client")  # features are told when a connection begins
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"two", partition=0)
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"three", partition=0)
        assert world.versions("EndTxn")[-1] == 5 and identity_of(producer) > before
        assert await world.read() == [b"one", b"two", b"three"]

    play(story, level=1)


def test_offsets_are_committed_with_the_records_or_not_at_all() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"x")
            await txn.send_offsets({ZERO: OffsetAndMetadata(5, "five")}, ConsumerGroupMetadata("group"))
            assert await world.committed_offset("group", ZERO) is None
        assert await world.committed_offset("group", ZERO) == 5
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({ZERO: 9}, "group")
        await producer.abort_transaction()
        assert await world.committed_offset("group", ZERO) == 5

    play(story)


def test_a_transaction_without_records_needs_no_word_to_the_coordinator() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        before = identity_of(producer)
        async with producer.transaction():
            pass
        await producer.begin_transaction()
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({}, "group")
        await producer.commit_transaction()
        assert (world.count("EndTxn"), identity_of(producer)) == (0, before)

    play(story)


def test_abort_fails_buffered_records_at_once_and_waits_for_those_on_their_way() -> None:
    async def story(world: World) -> None:
        producer = await world.ready(linger_ms=60_000, delivery_timeout_ms=200_000)
        await producer.begin_transaction()
        sent = await producer.send(TOPIC, b"on its way", partition=0)
        world.sim.network.set_default_link(latency_s=(2.0, 2.0))
        flushing = world.runtime().spawn(producer.flush(), name="flush")
        await world.sleep(0.001)
        buffered = await producer.send(TOPIC, b"buffered", partition=0)
        start = world.sim.now_s
        aborting = world.runtime().spawn(producer.abort_transaction(), name="abort")
        await world.sleep(0.001)
        assert buffered.done() and not sent.done()
        with pytest.raises(TransactionAborted, match=r"transaction of 'id' was aborted"):
            await buffered
        await aborting
        await flushing
        assert sent.done() and world.sim.now_s - start >= 4.0
        assert (await sent).offset >= 0
        world.sim.network.set_default_link(latency_s=(0.0001, 0.0002))
        assert await world.read() == []

    play(story)


@LEVELS
def test_a_failed_record_fails_the_transaction_and_the_next_one_is_whole(level: int) -> None:
    async def story(world: World) -> None:
        producer = await world.ready(batch_size=1)
        await producer.begin_transaction()
        await (await producer.send(TOPIC, b"lost", partition=0))
        world.script("Produce", refuse_records)
        bad = await producer.send(TOPIC, b"bad", partition=0)
        later = await producer.send(TOPIC, b"later", partition=0)
        with pytest.raises(InvalidRecord):
            await bad
        with pytest.raises((InvalidRecord, OutOfOrderSequenceNumber)):  # it was on its way already, or not
            await later
        assert state_of(producer) is ManagerState.ABORTABLE_ERROR
        with pytest.raises(
            TransactionFailed, match=r"send\(\) in state ABORTABLE_ERROR.*INVALID_RECORD.*Call abort_tr"
        ):
            await producer.send(TOPIC, b"more")
        with pytest.raises(TransactionFailed, match=r"commit_transaction\(\) in state ABORTABLE_ERROR"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as txn:
            for number in range(10):
                await txn.send(TOPIC, b"%d" % number, partition=0)
        assert await world.read() == [b"%d" % number for number in range(10)]

    play(story, level=level)


def refuse_records(_: object, request: object) -> object:
    raise InvalidRecord("scripted")


def test_records_that_are_not_acknowledged_in_time_fail_the_transaction() -> None:
    async def story(world: World) -> None:
        producer = await world.ready(delivery_timeout_ms=3_000, request_timeout_ms=1_000)
        await producer.partitions_for(TOPIC)
        await producer.begin_transaction()
        world.sim.network.partition(["client"], ["broker"])
        delivery = await producer.send(TOPIC, b"x", partition=0)
        with pytest.raises(DeliveryTimeout):
            await delivery
        world.sim.network.heal()
        with pytest.raises(TransactionFailed, match="delivery_timeout_ms=3000"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"y", partition=0)
        assert await world.read() == [b"y"]

    play(story)


@LEVELS
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("step", [hang_up, act_then_hang_up])
def test_an_end_whose_answer_is_lost_is_repeated(level: int, commit: bool, step: object) -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        for number in range(2):
            await producer.begin_transaction()
            await (await producer.send(TOPIC, b"%d" % number, partition=0))
            world.script("EndTxn", step)  # type: ignore[arg-type]
            await (producer.commit_transaction() if commit else producer.abort_transaction())
            assert state_of(producer) is ManagerState.READY
        assert await world.read() == ([b"0", b"1"] if commit else [])

    play(story, level=level)


@pytest.mark.parametrize("error", [NotCoordinator, CoordinatorLoadInProgress, ConcurrentTransactions])
@pytest.mark.parametrize("api", ["InitProducerId", "EndTxn", "TxnOffsetCommit"])
def test_a_coordinator_that_is_busy_or_elsewhere_is_asked_again(api: str, error: type) -> None:
    async def story(world: World) -> None:
        world.script(api, refuse(error), refuse(error))
        producer = await world.ready()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"x")
            await txn.send_offsets({ZERO: 1}, "group")
        assert (await world.read(), world.count(api)) == ([b"x"], 3)

    play(story)


def test_a_leader_that_is_still_busy_with_the_last_transaction_gets_the_records_again() -> None:
    async def story(world: World) -> None:
        producer = await world.ready(batch_size=1)
        world.script("Produce", *[refuse(ConcurrentTransactions)] * 5)
        start = world.sim.now_s
        async with producer.transaction() as txn:
            for number in range(5):
                await txn.send(TOPIC, b"%d" % number, partition=0)
        assert await world.read() == [b"0", b"1", b"2", b"3", b"4"]
        assert world.sim.now_s - start < 1.0

    play(story)


def test_a_commit_that_runs_out_of_time_may_be_repeated_and_only_that() -> None:
    async def story(world: World) -> None:
        producer = await world.ready(max_block_ms=2_000, request_timeout_ms=500)
        await producer.begin_transaction()
        await (await producer.send(TOPIC, b"x"))
        world.script("EndTxn", *[refuse(CoordinatorLoadInProgress)] * 100)
        with pytest.raises(GaveUp, match=r"max_block_ms.*not known: call commit_transaction\(\) again"):
            await producer.commit_transaction()
        with pytest.raises(IllegalTransactionCall, match=r"abort_transaction\(\) in state COMMITTING"):
            await producer.abort_transaction()
        world._steps.clear()
        await producer.commit_transaction()
        assert (state_of(producer), await world.read()) == (ManagerState.READY, [b"x"])

    play(story)


def test_init_that_runs_out_of_time_may_be_repeated() -> None:
    async def story(world: World) -> None:
        producer = world.producer(max_block_ms=1_000)
        world.script("InitProducerId", *[refuse(CoordinatorLoadInProgress)] * 100)
        with pytest.raises(GaveUp, match="InitProducerId of 'id'"):
            await producer.init_transactions()
        world._steps.clear()
        await producer.init_transactions()
        assert state_of(producer) is ManagerState.READY

    play(story)


def test_init_that_is_refused_says_what_to_change_and_may_be_repeated() -> None:
    async def story(world: World) -> None:
        producer = world.producer(transaction_timeout_ms=900_001)
        with pytest.raises(
            InvalidTransactionTimeout, match=r"transaction_timeout_ms=900001 is above.*transaction\.max\.timeout\.ms"
        ):
            await producer.init_transactions()
        assert state_of(producer) is ManagerState.UNINITIALIZED
        world.script("InitProducerId", refuse(TransactionalIdAuthorizationFailed))
        with pytest.raises(TransactionalIdAuthorizationFailed, match=r"'id': the principal lacks WRITE on the id"):
            await producer.init_transactions()

    play(story)


@LEVELS
def test_a_second_producer_with_the_same_id_fences_the_first(level: int) -> None:
    async def story(world: World) -> None:
        first = await world.ready()
        await first.begin_transaction()
        await (await first.send(TOPIC, b"first", partition=0))
        second = await world.ready("other")
        with pytest.raises(Fenced, match=r"'id' \(producer id 0, epoch 0\).*we have.*epoch 0, the coordinator has.*2"):
            await first.commit_transaction()
        for call in (first.begin_transaction, first.abort_transaction, lambda: first.send(TOPIC)):
            with pytest.raises(Fenced, match=r"\(\) in state FATAL_ERROR.*Close this producer"):
                await call()
        async with second.transaction() as txn:
            await txn.send(TOPIC, b"second", partition=0)
        assert await world.read() == [b"second"]

    play(story, level=level)


def test_a_fenced_producer_that_only_sends_learns_it_when_it_aborts() -> None:
    async def story(world: World) -> None:
        first = await world.ready()
        await first.begin_transaction()
        await (await first.send(TOPIC, b"first", partition=0))
        await world.ready("other")
        with pytest.raises(InvalidProducerEpoch):
            await (await first.send(TOPIC, b"more", partition=0))
        assert state_of(first) is ManagerState.ABORTABLE_ERROR
        with pytest.raises(Fenced):
            await first.abort_transaction()
        assert state_of(first) is ManagerState.FATAL_ERROR

    play(story)


def test_a_transaction_that_took_too_long_is_said_to_be_aborted_and_the_producer_goes_on() -> None:
    async def story(world: World) -> None:
        producer = await world.ready(transaction_timeout_ms=5_000)
        await producer.begin_transaction()
        await (await producer.send(TOPIC, b"late"))
        await world.sleep(30)
        with pytest.raises(
            TransactionFailed,
            match=r"coordinator has aborted.*epoch 0, the coordinator has.*epoch 1, state CompleteAbort, timeout 5000",
        ):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"in time")
        assert await world.read() == [b"in time"]

    play(story)


@pytest.mark.parametrize("late_call", ["send", "offsets", "abort"])
def test_whatever_is_called_after_a_timeout_the_producer_goes_on_after_an_abort(late_call: str) -> None:
    async def story(world: World) -> None:
        producer = await world.ready(transaction_timeout_ms=5_000)
        await producer.begin_transaction()
        await (await producer.send(TOPIC, b"late", partition=0))
        await world.sleep(30)
        if late_call == "send":
            with pytest.raises(InvalidProducerEpoch):
                await (await producer.send(TOPIC, b"later", partition=0))
        elif late_call == "offsets":
            with pytest.raises(TransactionFailed, match="1 offsets of group 'group' were not taken"):
                await producer.send_offsets_to_transaction({ZERO: 1}, "group")
        await producer.abort_transaction()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"in time")
        assert await world.read() == [b"in time"]

    play(story)


def test_below_version_2_a_transaction_that_took_too_long_costs_the_producer_its_life() -> None:
    async def story(world: World) -> None:
        producer = await world.ready(transaction_timeout_ms=5_000)
        await producer.begin_transaction()
        await (await producer.send(TOPIC, b"late"))
        await world.sleep(30)
        with pytest.raises(Fenced):
            await producer.commit_transaction()

    play(story, level=1)


@pytest.mark.parametrize("error", [IllegalGeneration, FencedInstanceId])
def test_offsets_that_are_refused_fail_the_transaction_and_not_the_producer(error: type[KafkaError]) -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        await producer.begin_transaction()
        await producer.send(TOPIC, b"x")
        world.script("TxnOffsetCommit", refuse(error))
        with pytest.raises(TransactionFailed, match=error.name):
            await producer.send_offsets_to_transaction({ZERO: 1}, ConsumerGroupMetadata("group", 3, "member"))
        await producer.abort_transaction()
        assert state_of(producer) is ManagerState.READY

    play(story)


def test_a_member_of_the_group_is_named_with_its_offsets() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        await producer.begin_transaction()
        with pytest.raises(TransactionFailed, match=r"ILLEGAL_GENERATION|UNKNOWN_MEMBER_ID"):
            await producer.send_offsets_to_transaction({ZERO: 1}, ConsumerGroupMetadata("group", 3, "member", "static"))
        request = next(request for api, _, request in world.requests if api == "TxnOffsetCommit")
        assert (request.generation_id, request.member_id, request.group_instance_id) == (3, "member", "static")
        await producer.abort_transaction()

    play(story)


@pytest.mark.parametrize("error", [InvalidTxnState, UnknownServerError, TransactionalIdAuthorizationFailed])
def test_an_abort_that_is_refused_ends_the_producer(error: type[KafkaError]) -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        await producer.begin_transaction()
        await (await producer.send(TOPIC, b"x"))
        world.script("EndTxn", refuse(error))
        with pytest.raises(ProducerFailed, match=rf"the abort was refused.*{error.name}.*Close this producer"):
            await producer.abort_transaction()
        assert state_of(producer) is ManagerState.FATAL_ERROR

    play(story)


def test_a_commit_that_must_be_aborted_can_be() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        await producer.begin_transaction()
        await (await producer.send(TOPIC, b"x"))
        world.script("EndTxn", refuse(TransactionAbortable))
        with pytest.raises(TransactionFailed, match=r"the commit was refused.*TRANSACTION_ABORTABLE"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert (state_of(producer), await world.read()) == (ManagerState.READY, [])

    play(story)


@pytest.mark.parametrize("level", [0, 1])
def test_a_partition_that_may_not_be_added_fails_the_transaction_and_not_the_producer(level: int) -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        await producer.begin_transaction()
        world.script("AddPartitionsToTxn", refuse(TopicAuthorizationFailed))
        with pytest.raises(TopicAuthorizationFailed, match="t-1 was not added"):
            await (await producer.send(TOPIC, b"x", partition=1))
        with pytest.raises(TransactionFailed, match="TOPIC_AUTHORIZATION_FAILED"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"y", partition=0)
        assert await world.read() == [b"y"]

    play(story, level=level)


def test_an_abort_does_not_leave_a_partition_behind_that_was_just_being_added() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        await producer.partitions_for(TOPIC)
        world.sim.network.set_default_link(latency_s=(0.5, 0.5))
        for number in range(3):
            await producer.begin_transaction()
            await producer.send(TOPIC, b"%d" % number, partition=number)
            await world.sleep(0.1)
            await producer.abort_transaction()
        world.sim.network.set_default_link(latency_s=(0.001, 0.001))
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"y", partition=0)
        assert await world.read() == [b"y"]

    play(story, level=1)


# Blocks


async def send_and_fail(producer: Producer, value: bytes, *, commit: bool = False) -> None:
    async with producer.transaction() as txn:
        await (await txn.send(TOPIC, value))
        if commit:
            await txn.commit()
        raise KeyError("mine")


def test_a_block_commits_at_its_end_and_aborts_on_an_exception() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"good")
        with pytest.raises(KeyError):
            await send_and_fail(producer, b"bad")
        assert state_of(producer) is ManagerState.READY
        assert await world.read() == [b"good"]

    play(story)


def test_a_block_that_ended_its_transaction_itself_is_left_alone() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"gone")
            await txn.abort()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"kept")
            await txn.commit()
        with pytest.raises(KeyError):
            await send_and_fail(producer, b"kept too", commit=True)
        assert sorted(await world.read()) == [b"kept", b"kept too"]

    play(story)


def test_a_block_whose_commit_fails_aborts_and_says_why() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        world.script("Produce", refuse_records)
        with pytest.raises(TransactionFailed, match="INVALID_RECORD") as caught:
            async with producer.transaction() as txn:
                await txn.send(TOPIC, b"bad")
        assert caught.value.__notes__ == ["the block has aborted the transaction: the next one can begin"]
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"good")
        assert await world.read() == [b"good"]

    play(story)


def test_an_abort_that_fails_does_not_hide_the_exception() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        world.script("EndTxn", refuse(ProducerFenced))
        with pytest.raises(KeyError) as caught:
            await send_and_fail(producer, b"bad")
        assert any("could not be aborted either" in note for note in caught.value.__notes__)

    play(story)


def test_a_block_that_is_cancelled_aborts() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()

        async def work() -> None:
            async with producer.transaction() as txn:
                await (await txn.send(TOPIC, b"x"))
                await world.sleep(1_000)

        task = world.runtime().spawn(work(), name="work")
        await world.sleep(1)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled() and state_of(producer) is ManagerState.READY
        assert await world.read() == []

    play(story)


# The end of a producer


def test_close_aborts_an_open_transaction_so_that_readers_need_not_wait() -> None:
    async def story(world: World) -> None:
        async with world.producer() as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await (await producer.send(TOPIC, b"open", partition=0))
        other = await world.ready("other", transactional_id="other")
        async with other.transaction() as txn:
            await txn.send(TOPIC, b"next", partition=0)
        assert await world.read() == [b"next"]
        with pytest.raises(ClientClosed):
            await producer.send(TOPIC)

    play(story)


def test_records_outside_a_transaction_are_refused() -> None:
    async def story(world: World) -> None:
        producer = world.producer()
        with pytest.raises(
            IllegalTransactionCall, match=r"send\(\) in state UNINITIALIZED of 'id': call init_transact"
        ):
            await producer.send(TOPIC, b"x")
        await producer.init_transactions()
        with pytest.raises(IllegalTransactionCall, match=r"send\(\) in state READY of 'id': there is no transaction"):
            await producer.send(TOPIC, b"x")

    play(story)


def test_a_second_call_while_one_is_under_way_is_refused() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        await producer.begin_transaction()
        await (await producer.send(TOPIC, b"x"))
        committing = world.runtime().spawn(producer.commit_transaction(), name="commit")
        await asyncio.sleep(0)
        with pytest.raises(IllegalTransactionCall, match=r"commit_transaction\(\) is under way"):
            await producer.commit_transaction()
        await committing
        assert await world.read() == [b"x"]

    play(story)


def test_a_producer_without_an_id_has_no_transactions() -> None:
    async def story(world: World) -> None:
        producer = world.producer(transactional_id=None)
        for call in (
            producer.init_transactions,
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            producer.prepare_transaction,
        ):
            with pytest.raises(IllegalTransactionCall, match="the producer has no transactional_id"):
                await call()
        assert (await (await producer.send(TOPIC, b"plain"))).offset == 0

    play(story)


@pytest.mark.parametrize("seed", range(6))
def test_transactions_stay_whole_while_the_broker_dies_and_connections_break(seed: int) -> None:
    async def story(world: World) -> None:
        random = world.runtime().random
        producer = await world.ready(max_block_ms=600_000, delivery_timeout_ms=600_000, request_timeout_ms=2_000)
        committed = []

        async def trouble() -> None:
            while True:
                await world.sleep(random.uniform(0.05, 0.5))
                if random.random() < 0.3:
                    await world.restart()
                else:
                    world.sim.network.reset("broker", "client")

        nemesis = world.runtime("nemesis").spawn(trouble(), name="trouble")
        for number in range(40):
            await producer.begin_transaction()
            for part in range(3):
                await producer.send(TOPIC, b"%d-%d" % (number, part), partition=part)
            try:
                if number % 5 == 4:
                    await producer.abort_transaction()
                    continue
                await producer.commit_transaction()
            except TransactionFailed:
                await producer.abort_transaction()
                continue
            committed.append(number)
        nemesis.cancel()
        await world.sleep(2)
        found = await world.read()
        assert sorted(found) == sorted(b"%d-%d" % (number, part) for number in committed for part in range(3))
        assert len(committed) > 20

    play(story, seed=seed)
