"""A broker that joins a cluster whose controller is another node."""

from collections.abc import Awaitable, Callable

from kits.cluster.controller_node import CLUSTER_ID, ControllerNode
from kits.cluster.member_node import MemberNode
from twofold.runtime.sim import Simulation

Story = Callable[[Simulation, ControllerNode, MemberNode], Awaitable[None]]


def play(story: Story, *, seed: int = 1, **settings: object) -> None:
    with Simulation(seed) as sim:

        async def main() -> None:
            node = await ControllerNode(sim.runtime("c1"), host="c1").start()
            member = MemberNode(sim, "b7", 7, node.address, **settings)
            await story(sim, node, member)

        sim.run(main(), timeout_s=600)


def test_a_member_registers_and_is_unfenced() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        registration = node.controller.image.broker(7)
        assert registration is not None and not registration.fenced
        assert [(at.name, at.host, at.port) for at in registration.end_points] == [("PLAINTEXT", "b7", 9092)]
        assert "twofold.version" in {feature.name for feature in registration.features}
        assert member.broker.cluster_id == CLUSTER_ID
        (first, *_) = node.seen("BrokerHeartbeat")
        assert first.want_fence and list(first.cordoned_log_dirs) == list(registration.log_dirs)

    play(story)
