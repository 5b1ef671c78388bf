"""What a producer says when a part of its two-phase transaction is gone: which part, by name."""

import pytest

from kits.client.transactions import TOPIC, World, play
from twofold.client import NewTopic
from twofold.client.errors import ProducerFailed
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

OTHER = "other"


async def lose(world: World, name: str) -> None:
    """What DeleteTopics refuses, done all the same."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name, topic_id=None)], timeout_ms=1000)
    answer = await world.broker.controller.delete_topics(request)
    assert answer.responses[0].error_code == 0


async def create(world: World, name: str) -> None:
    async with world.admin() as admin:
        (await admin.create_topics([NewTopic(name=name, num_partitions=2)])).get()


@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("recovered", [False, True])
def test_a_commit_of_what_is_gone_fails_and_names_the_partitions(recreated: bool, recovered: bool) -> None:
    async def story(world: World) -> None:
        await create(world, OTHER)
        producer = await world.ready(transaction_two_phase_commit_enable=True)
        await producer.begin_transaction()
        await producer.send(TOPIC, b"here", partition=0)
        for partition in (0, 1):
            await producer.send(OTHER, b"there", partition=partition)
        state = await producer.prepare_transaction()
        await lose(world, OTHER)
        if recreated:
            await create(world, OTHER)
        if recovered:
            world.kill()
            producer = world.producer("next", transaction_two_phase_commit_enable=True)
            await producer.init_transactions(keep_prepared_txn=True)
        with pytest.raises(ProducerFailed) as failure:
            await producer.complete_transaction(state)
        told = str(failure.value)
        assert f"what the transaction wrote to {OTHER}-0, {OTHER}-1 is gone, so it can only be aborted" in told
        assert TOPIC + "-0" not in told
        assert str(state) in told, "it is still prepared"
        assert await world.read() == [], "and nothing of it is committed"
        last = world.producer("last", transaction_two_phase_commit_enable=True)
        await last.init_transactions(keep_prepared_txn=True)
        await last.abort_transaction()
        assert await world.read() == []

    play(story)
