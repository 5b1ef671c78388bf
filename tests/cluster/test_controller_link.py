"""Requests to whichever controller leads: what was under way when another one took over is asked again there."""

from collections.abc import Awaitable, Callable

import pytest

from kits.cluster.controller_node import SILENCE, ControllerNode
from twofold.cluster.controller_link import ControllerOptions, Controllers
from twofold.cluster.errors import NoController
from twofold.connections.connection import Address
from twofold.runtime.sim import Simulation
from twofold.wire.apis import KEYS
from twofold.wire.errors import NotController, RequestTimedOut
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest

ALLOCATE = KEYS["AllocateProducerIds"]
REQUEST = AllocateProducerIdsRequest(broker_id=7, broker_epoch=1)
STALE = 77  # the answer of a controller that does not know the broker
Story = Callable[[Simulation, Controllers, ControllerNode, ControllerNode], Awaitable[None]]


def play(story: Story) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            one = await ControllerNode(sim.runtime("c1"), host="c1", node_id=1).start()
            two = await ControllerNode(sim.runtime("c2"), host="c2", node_id=2).start()
            options = ControllerOptions(bootstrap=(Address("c1", 9093), Address("c2", 9093)))
            await story(sim, Controllers(sim.runtime("b7"), options), one, two)

        sim.run(main(), timeout_s=600)


def test_a_request_waits_for_a_controller_to_be_known() -> None:
    async def story(sim: Simulation, controllers: Controllers, one: ControllerNode, two: ControllerNode) -> None:
        runtime = sim.runtime("b7")
        asked = runtime.spawn(controllers.channel("ids").ask(REQUEST, ALLOCATE, timeout_ms=5000), name="ask")
        await runtime.timers.sleep(1)
        assert not asked.done()
        controllers.learn(1, 1, Address("c1", 9093))
        assert (await asked).error_code == STALE

    play(story)


def test_without_a_controller_the_time_of_a_request_ends_with_an_error_that_may_be_tried_again() -> None:
    async def story(sim: Simulation, controllers: Controllers, one: ControllerNode, two: ControllerNode) -> None:
        with pytest.raises(NoController, match="within 100 ms at c1:9093, c2:9093") as refused:
            await controllers.channel("ids").ask(REQUEST, ALLOCATE, timeout_ms=100)
        assert refused.value.retriable

    play(story)


def test_what_is_in_flight_at_the_old_controller_is_asked_again_at_the_new_one() -> None:
    async def story(sim: Simulation, controllers: Controllers, one: ControllerNode, two: ControllerNode) -> None:
        runtime, channel = sim.runtime("b7"), controllers.channel("ids")
        one.script("AllocateProducerIds", lambda _: SILENCE)
        controllers.learn(1, 1, Address("c1", 9093))
        first = runtime.spawn(channel.ask(REQUEST, ALLOCATE, timeout_ms=60_000), name="first")
        await runtime.timers.sleep(0.5)
        controllers.learn(2, 2, Address("c2", 9093))
        second = await channel.ask(REQUEST, ALLOCATE, timeout_ms=1000)
        assert second.error_code == (await first).error_code == STALE
        assert (len(one.seen("AllocateProducerIds")), len(two.seen("AllocateProducerIds"))) == (1, 2)

    play(story)


def test_a_controller_that_leads_no_more_is_asked_again_until_another_is_known() -> None:
    async def story(sim: Simulation, controllers: Controllers, one: ControllerNode, two: ControllerNode) -> None:
        def leads_no_more(_: object) -> None:
            raise NotController("the tests")

        one.script("AllocateProducerIds", *([leads_no_more] * 1000))
        controllers.learn(1, 1, Address("c1", 9093))
        runtime = sim.runtime("b7")
        asked = runtime.spawn(controllers.channel("ids").ask(REQUEST, ALLOCATE, timeout_ms=60_000), name="ask")
        await runtime.timers.sleep(0.5)
        controllers.learn(2, 2, Address("c2", 9093))
        assert (await asked).error_code == STALE
        assert 3 < len(one.seen("AllocateProducerIds")) < 100

    play(story)


def test_a_heartbeat_is_sent_once_whatever_comes_of_it() -> None:
    async def story(sim: Simulation, controllers: Controllers, one: ControllerNode, two: ControllerNode) -> None:
        one.script("AllocateProducerIds", lambda _: SILENCE)
        controllers.learn(1, 1, Address("c1", 9093))
        with pytest.raises(RequestTimedOut):
            await controllers.channel("lifecycle").ask(REQUEST, ALLOCATE, timeout_ms=1000, once=True)
        assert len(one.seen("AllocateProducerIds")) == 1

    play(story)


def test_old_news_about_the_leader_changes_nothing() -> None:
    async def story(sim: Simulation, controllers: Controllers, one: ControllerNode, two: ControllerNode) -> None:
        assert controllers.learn(2, 5, Address("c2", 9093))
        assert not controllers.learn(1, 4, Address("c1", 9093))
        assert not controllers.learn(2, 5, Address("c2", 9093))
        known = controllers.leader
        assert known is not None and known.node_id == 2
        assert controllers.learn(-1, 6, None)  # an election is on
        assert controllers.epoch == 6
        assert controllers.leader is None

    play(story)
