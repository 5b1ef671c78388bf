"""The stage `a broker`: one broker on a simulated machine, asked through its dispatcher, in virtual time."""

from collections.abc import Awaitable, Callable

from kits.stories.apps import Apps, Operator
from kits.stories.looks import Looks
from kits.stories.machine import Machine
from kits.stories.members import Members
from kits.stories.node import SETTINGS, StoryNode
from kits.stories.producers import Producers
from kits.stories.steps import Stage
from twofold.runtime.sim import Simulation

MONTH_S = 30 * 86_400


class BrokerStage(Stage):
    def __init__(self, node: StoryNode) -> None:
        self._node = node
        self._members = Members(node)
        self._apps = Apps(node)
        producers = Producers(node, self._members)
        machine = Machine(node, self._members.forget_requests)
        super().__init__(producers, self._members, self._apps, Operator(node), Looks(node), machine)

    async def do(self, command: str) -> list[str]:
        said = await super().do(command)
        await self._node.settle()
        return said + await self._members.news()

    async def close(self) -> None:
        await self._apps.close()
        await self._node.broker.stop()


def settings_of(description: str) -> dict[str, str]:
    """`with transaction.max.timeout.ms=60000 ...`"""
    if not description:
        return {}
    word, *pairs = description.split()
    assert word == "with", description
    return {name.replace(".", "_"): value for name, _, value in (pair.partition("=") for pair in pairs)}


def play_on_a_broker(description: str, tell: Callable[[Stage], Awaitable[None]]) -> None:
    settings = SETTINGS | settings_of(description)
    with Simulation(1) as sim:

        async def main() -> None:
            node = await StoryNode(sim, **settings).start()
            stage = BrokerStage(node)
            await tell(stage)
            await stage.close()

        sim.run(main(), timeout_s=MONTH_S)
