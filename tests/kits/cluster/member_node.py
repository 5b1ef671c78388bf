"""A broker that is a member of a simulated cluster, asked through its dispatcher."""

from kits.node.sim_node import SimNode
from twofold.broker.broker import Broker
from twofold.broker.network.context import Peer
from twofold.config.settings import Settings
from twofold.runtime.sim import Simulation
from twofold.wire.errors import KafkaError


class MemberNode(SimNode):
    """`host` is the name of its machine, and of its data."""

    def __init__(self, sim: Simulation, host: str, node_id: int, bootstrap: str, **settings: object) -> None:
        super().__init__(sim, **settings)
        self.host = host
        self.failures: list[KafkaError] = []
        self.settings = {
            "process.roles": "broker",
            "node.id": str(node_id),
            "controller.quorum.bootstrap.servers": bootstrap,
            "cordoned.log.dirs": "*",
            **self.settings,
            "listeners": f"PLAINTEXT://{host}:9092",
        }

    async def start(self) -> "MemberNode":
        runtime = self.sim.runtime(self.host)
        self.broker = Broker(runtime, Settings.from_mapping(self.settings), "/data", hostname=self.host)
        await runtime.spawn(self.broker.start(self.failures.append), name="start")
        self._dispatcher = self.broker.server.dispatcher
        self._peer = Peer("10.0.0.1", 4711, "PLAINTEXT")
        return self

    async def restart(self) -> None:
        """kill -9, and a new process."""
        self.kill()
        await self.start()

    def kill(self) -> None:
        self.sim.crash(self.host, power_cut=False)

    async def stop(self) -> None:
        await self.sim.runtime(self.host).spawn(self.broker.stop(), name="stop")

    async def until(self, condition: object, timeout_s: float = 30.0) -> None:
        clock = self.sim.runtime("watch").clock
        deadline = clock.monotonic() + timeout_s
        while not condition():  # type: ignore[operator]
            assert clock.monotonic() < deadline, "it did not come true in time"
            await self.sim.runtime("watch").timers.sleep(0.01)
