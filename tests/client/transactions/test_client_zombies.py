"""A producer whose transactional id another one took over: it is told that it is fenced, and nothing else."""

import pytest

from kits.client.transactions import TOPIC, World, play, refuse, state_of
from twofold.client import Producer, TopicPartition
from twofold.client.errors import Fenced, TransactionFailed
from twofold.client.transactions.states import ManagerState
from twofold.wire.errors import CoordinatorNotAvailable, InvalidProducerEpoch, InvalidRecord

ZERO = TopicPartition(TOPIC, 0)
LEVELS = pytest.mark.parametrize("level", [0, 1, 2])
PASTS = pytest.mark.parametrize("past", ["no transaction yet", "one committed", "one open"])


async def take_over_inside_a_block(world: World, zombie: Producer, past: str, rest: str) -> None:
    """Another producer comes while the zombie is inside its block; `rest` is what the zombie still does there."""
    if past == "one committed":
        async with zombie.transaction() as txn:
            await txn.send(TOPIC, b"before", partition=0)
    async with zombie.transaction() as txn:
        if past == "one open":
            await (await txn.send(TOPIC, b"lost", partition=0))
        await world.ready("other")
        if rest == "sends and leaves":
            await txn.send(TOPIC, b"late", partition=0)
        elif rest == "sends and leaves later":
            await txn.send(TOPIC, b"late", partition=0)
            await world.sleep(5)
        elif rest == "waits for its record":
            await (await txn.send(TOPIC, b"late", partition=0))
        elif rest == "sends again":
            await txn.send(TOPIC, b"late", partition=0)
            await world.sleep(5)
            await txn.send(TOPIC, b"later", partition=0)
        elif rest == "sends offsets":
            await txn.send_offsets({ZERO: 1}, "group")


@LEVELS
@PASTS
@pytest.mark.parametrize(
    "rest", ["sends and leaves", "sends and leaves later", "waits for its record", "sends again", "sends offsets"]
)
def test_a_zombie_that_leaves_its_block_is_fenced_at_once(level: int, past: str, rest: str) -> None:
    async def story(world: World) -> None:
        zombie = await world.ready()
        with pytest.raises(Fenced, match=r"the coordinator has producer id 0, epoch .*Close this producer") as caught:
            await take_over_inside_a_block(world, zombie, past, rest)
        assert "abort_transaction" not in str(caught.value)
        assert state_of(zombie) is ManagerState.FATAL_ERROR
        assert await world.read() == ([b"before"] if past == "one committed" else [])

    play(story, level=level)


@LEVELS
def test_a_zombie_whose_commit_is_refused_is_fenced_at_once(level: int) -> None:
    async def story(world: World) -> None:
        zombie = await world.ready()
        with pytest.raises(Fenced, match=r"the commit was refused.*Close this producer"):
            await take_over_inside_a_block(world, zombie, "one open", "leaves")
        assert state_of(zombie) is ManagerState.FATAL_ERROR

    play(story, level=level)


@pytest.mark.parametrize("call", ["commit_transaction", "prepare_transaction"])
def test_a_zombie_without_a_block_is_fenced_at_its_next_call(call: str) -> None:
    async def story(world: World) -> None:
        zombie = await world.ready(transaction_two_phase_commit_enable=True)
        await zombie.begin_transaction()
        await (await zombie.send(TOPIC, b"lost", partition=0))
        await world.ready("other")
        await zombie.send(TOPIC, b"late", partition=0)
        with pytest.raises(Fenced, match="Close this producer"):
            await getattr(zombie, call)()

    play(story)


def test_a_commit_after_the_refusal_was_seen_is_fenced_as_well() -> None:
    async def story(world: World) -> None:
        zombie = await world.ready()
        await zombie.begin_transaction()
        await (await zombie.send(TOPIC, b"lost", partition=0))
        await world.ready("other")
        with pytest.raises(InvalidProducerEpoch):
            await (await zombie.send(TOPIC, b"late", partition=0))
        with pytest.raises(Fenced, match="Close this producer"):
            await zombie.commit_transaction()

    play(story)


@pytest.mark.parametrize("rest", ["sends and leaves", "sends and leaves later", "waits for its record"])
def test_a_block_that_took_too_long_is_no_zombie_and_the_producer_goes_on(rest: str) -> None:
    async def story(world: World) -> None:
        producer = await world.ready(transaction_timeout_ms=5_000)

        async def take_too_long() -> None:
            async with producer.transaction() as txn:
                await (await txn.send(TOPIC, b"lost", partition=0))
                await world.sleep(30)
                late = await txn.send(TOPIC, b"late", partition=0)
                if rest == "waits for its record":
                    await late
                elif rest == "sends and leaves later":
                    await world.sleep(5)

        with pytest.raises((TransactionFailed, InvalidProducerEpoch)):
            await take_too_long()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"in time", partition=0)
        assert await world.read() == [b"in time"]

    play(story)


@pytest.mark.parametrize(
    ("error", "message"),
    [(InvalidProducerEpoch, "the coordinator has aborted the transaction"), (InvalidRecord, "INVALID_RECORD")],
)
def test_a_block_whose_records_failed_before_its_end_does_not_end_in_silence(error: type, message: str) -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        world.script("Produce", refuse(error))

        async def send_and_stay() -> None:
            async with producer.transaction() as txn:
                await txn.send(TOPIC, b"refused", partition=0)
                await world.sleep(5)

        with pytest.raises(TransactionFailed, match=message):
            await send_and_stay()
        assert state_of(producer) is ManagerState.READY
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"good", partition=0)
        assert await world.read() == [b"good"]

    play(story)


def test_a_coordinator_that_does_not_answer_leaves_the_question_open() -> None:
    async def story(world: World) -> None:
        zombie = await world.ready(max_block_ms=2_000)
        await zombie.begin_transaction()
        await (await zombie.send(TOPIC, b"lost", partition=0))
        await world.ready("other")
        with pytest.raises(InvalidProducerEpoch):
            await (await zombie.send(TOPIC, b"late", partition=0))
        world.script("EndTxn", *[refuse(CoordinatorNotAvailable)] * 1_000)
        with pytest.raises(TransactionFailed, match=r"Call abort_transaction\(\)"):
            await zombie.commit_transaction()
        world._steps.clear()
        with pytest.raises(Fenced):
            await zombie.abort_transaction()

    play(story)
