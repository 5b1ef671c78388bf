"""The cluster view: shared refreshes, leaders that never go back, back-off, retries with an end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kits.client.scripted_broker import PORT, FakeBroker, hang_up
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ClientConfig
from twofold.connections.errors import BrokerUnreachable, ClientClosed, GaveUp
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition

Story = Callable[[Simulation, FakeBroker, Cluster], Awaitable[None]]


def play(story: Story, **options: Any) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            broker = await FakeBroker(sim.runtime("broker"), "broker", topics={"t": 2, "u": 1}).start()
            config = ClientConfig(**({"bootstrap_servers": f"broker:{PORT}"} | options))
            cluster = Cluster(sim.runtime("client"), config)
            await story(sim, broker, cluster)
            await cluster.close()

        sim.run(main(), timeout_s=3600)


def test_callers_share_refreshes_and_none_gets_an_answer_from_before_its_call() -> None:
    async def story(_: Simulation, broker: FakeBroker, cluster: Cluster) -> None:
        broker.delay_s = 0.1
        await cluster.refresh(cluster.deadline())
        asked = broker.seen["Metadata"]
        await asyncio.gather(*(cluster.refresh(cluster.deadline()) for _ in range(50)))
        assert broker.seen["Metadata"] == asked + 1
        running = asyncio.ensure_future(cluster.refresh(cluster.deadline()))
        await cluster.runtime.timers.sleep(0.05)
        await asyncio.gather(*(cluster.refresh(cluster.deadline()) for _ in range(50)), running)
        assert broker.seen["Metadata"] == asked + 3

    play(story)


def test_metadata_is_known_by_name_and_by_id() -> None:
    async def story(_: Simulation, broker: FakeBroker, cluster: Cluster) -> None:
        topic = await cluster.topic("t", cluster.deadline())
        assert list(topic.partitions) == [0, 1]
        assert cluster.cache.name_of(broker.ids["t"]) == "t"
        await cluster.topic("t", cluster.deadline())
        assert broker.seen["Metadata"] == 1

    play(story)


def test_metadata_grows_old() -> None:
    async def story(_: Simulation, broker: FakeBroker, cluster: Cluster) -> None:
        await cluster.topic("t", cluster.deadline())
        broker.topics["t"] = 3
        await cluster.runtime.timers.sleep(299)
        assert len((await cluster.topic("t", cluster.deadline())).partitions) == 2
        await cluster.runtime.timers.sleep(2)
        assert len((await cluster.topic("t", cluster.deadline())).partitions) == 3

    play(story)


def test_an_older_leader_epoch_never_replaces_a_newer_one() -> None:
    async def story(_: Simulation, broker: FakeBroker, cluster: Cluster) -> None:
        tp = TopicPartition("t", 0)
        broker.nodes[2] = ("other", PORT)
        broker.leaders[tp] = (2, 5)
        assert (await cluster.leader(tp, cluster.deadline())).leader == 2
        broker.leaders[tp] = (1, 4)  # a broker that lags behind
        await cluster.refresh(cluster.deadline())
        assert (await cluster.leader(tp, cluster.deadline())).leader == 2
        broker.leaders[tp] = (1, 6)
        await cluster.refresh(cluster.deadline())
        assert (await cluster.leader(tp, cluster.deadline())).leader == 1

    play(story)


def test_a_topic_that_comes_into_being_is_found_and_one_that_does_not_is_named() -> None:
    async def story(sim: Simulation, broker: FakeBroker, cluster: Cluster) -> None:
        client = sim.runtime("client")
        client.timers.call_later(1.0, lambda: broker.ids.update(new=broker.ids["u"]) or broker.topics.update(new=1))
        await cluster.topic("new", cluster.deadline())
        start = sim.now_s
        with pytest.raises(
            GaveUp, match=r"'never' at broker:9092 did not succeed within 3000 ms \(x\).*does not exist"
        ):
            await cluster.topic("never", cluster.deadline(3_000, "x"))
        assert 1.0 < sim.now_s - start <= 3.0

    play(story)


def test_a_leader_that_is_missing_is_waited_for() -> None:
    async def story(sim: Simulation, broker: FakeBroker, cluster: Cluster) -> None:
        tp = TopicPartition("t", 1)
        broker.leaders[tp] = (-1, 3)
        with pytest.raises(GaveUp, match="LEADER_NOT_AVAILABLE: partition t-1 has no leader"):
            await cluster.leader(tp, cluster.deadline(1_000, "x"))
        sim.runtime("client").timers.call_later(1.0, lambda: broker.leaders.update({tp: (1, 4)}))
        assert (await cluster.leader(tp, cluster.deadline())).leader_epoch == 4

    play(story)


def test_a_broker_that_drops_every_connection_is_tried_with_growing_pauses() -> None:
    async def story(sim: Simulation, broker: FakeBroker, cluster: Cluster) -> None:
        broker.script("ApiVersions", *[hang_up] * 1_000)
        start = sim.now_s
        with pytest.raises(GaveUp, match="closed the connection"):
            await cluster.topic("t", cluster.deadline(20_000, "x"))
        assert sim.now_s - start <= 20.0
        # Pauses of about a second at the end: more than one attempt in 20 s, far fewer than without them.
        assert 10 <= broker.connections <= 40

    play(story)


def test_any_bootstrap_server_that_answers_is_enough() -> None:
    async def story(_: Simulation, broker: FakeBroker, cluster: Cluster) -> None:
        await cluster.bootstrap(0)
        assert cluster.cache.nodes[1].address == ("broker", PORT)

    play(story, bootstrap_servers=f"nowhere:1,broker:{PORT},nobody:2")


def test_silence_everywhere_names_every_address_soon() -> None:
    async def story(sim: Simulation, _: FakeBroker, cluster: Cluster) -> None:
        start = sim.now_s
        with pytest.raises(BrokerUnreachable) as failure:
            await cluster.bootstrap(2_000)
        assert "nowhere:1" in str(failure.value) and "nobody:2" in str(failure.value)
        assert 2.0 <= sim.now_s - start < 4.0

    play(story, bootstrap_servers="nowhere:1,nobody:2")


def test_a_broker_that_moved_is_found_at_its_new_address() -> None:
    async def story(sim: Simulation, broker: FakeBroker, cluster: Cluster) -> None:
        await cluster.refresh(cluster.deadline())
        old = await cluster.connection(1, cluster.deadline())
        other = await FakeBroker(sim.runtime("elsewhere"), "elsewhere", topics={"t": 2}).start()
        broker.nodes[1] = ("elsewhere", PORT)
        await cluster.refresh(cluster.deadline())
        await cluster.connection(1, cluster.deadline())
        assert other.connections == 1 and old.closed

    play(story)


def test_a_closed_client_says_so() -> None:
    async def story(_: Simulation, __: FakeBroker, cluster: Cluster) -> None:
        await cluster.refresh(cluster.deadline())
        await cluster.close()
        with pytest.raises(ClientClosed):
            await cluster.topic("u", cluster.deadline())

    play(story)
