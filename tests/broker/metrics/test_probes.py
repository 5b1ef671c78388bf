"""/readyz on a simulated machine: each condition by itself, as the broker comes to it and loses it."""

import asyncio
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

from kits.node.disk_fault_node import STORAGE_ERROR, FaultyNode
from kits.node.sim_node import NODE, SimNode, simulated
from kits.node.txn_node import Node
from twofold.broker.broker import Broker
from twofold.broker.coordinators.transactions.service import TransactionService
from twofold.broker.coordinators.transactions.shard import TransactionShard
from twofold.broker.metrics.probes import Readiness
from twofold.config.settings import Settings
from twofold.log.manager import LogManager
from twofold.runtime.sim import Simulation

faulty = partial(simulated, FaultyNode)


def readiness(broker: Broker) -> Readiness:
    return Readiness(broker.server, broker.listeners, broker.logs, broker.groups, broker.transactions)


def unmet(broker: Broker) -> dict[str, str]:
    """The conditions that do not hold."""
    return {found.name: found.text for found in readiness(broker).conditions() if not found.holds}


@simulated(SimNode)
async def test_a_started_broker_is_ready_and_says_why(node: SimNode) -> None:
    is_ready, text = readiness(node.broker).probe()
    assert is_ready and text.startswith("ready\n")
    assert f"ok  listener: PLAINTEXT://{NODE}:9092\n" in text
    assert "ok  logs: " in text and "ok  coordinators: " in text and "ok  disk: /data\n" in text


def test_a_broker_is_not_ready_before_it_has_started_nor_while_it_stops() -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            runtime = sim.runtime(NODE)
            broker = Broker(runtime, Settings.from_mapping({"listeners": f"PLAINTEXT://{NODE}:9092"}), "/data")
            assert unmet(broker).keys() == {"listener", "logs"}
            assert readiness(broker).probe()[1].startswith("not ready\nno  listener: not bound yet")
            await runtime.spawn(broker.start(), name="start")
            assert unmet(broker) == {}
            stopping = runtime.spawn(broker.stop(), name="stop")
            await runtime.timers.sleep(0)
            assert "is stopping" in unmet(broker)["listener"]
            await stopping
            assert unmet(broker).keys() == {"listener"}, "a log that is closed has not failed"

        sim.run(main(), timeout_s=60)


@faulty()
async def test_a_broker_that_recovers_its_logs_is_not_ready_and_counts_them_down(node: FaultyNode) -> None:
    assert [await node.put("a", partition=partition) for partition in (0, 1)] == [0, 0]
    node.sim.crash(NODE, power_cut=False)
    seen: list[str] = []
    original = LogManager.load_step_by_step

    def watched(self: LogManager) -> Iterator[None]:
        for _ in original(self):
            seen.append(unmet(broker)["logs"])
            yield

    broker = node.broker = Broker(node.sim.runtime(NODE), node.broker._static_settings, "/data", hostname=NODE)
    with patch.object(LogManager, "load_step_by_step", watched):
        await broker.runtime.spawn(broker.start(), name="start")
    count = len(seen)
    assert count >= 2
    assert seen[0] == f"{count} partitions of {count} still to be recovered"
    assert seen[-1] == f"1 partition of {count} still to be recovered"
    assert unmet(broker) == {}


@simulated(Node)
async def test_a_broker_is_not_ready_while_a_coordinator_loads(node: Node) -> None:
    assert isinstance(await node.init("x"), tuple)
    goes_on = asyncio.Event()
    original = TransactionService.load_shard

    async def slow(self: TransactionService, shard: TransactionShard) -> None:
        await goes_on.wait()
        await original(self, shard)

    node.sim.crash(NODE, power_cut=False)
    broker = node.broker = Broker(node.sim.runtime(NODE), node.broker._static_settings, "/data", hostname=NODE)
    with patch.object(TransactionService, "load_shard", slow):
        await broker.runtime.spawn(broker.start(), name="start")
        assert broker.server.is_open, "others are served meanwhile"
        assert unmet(broker).keys() == {"coordinators"}
        assert unmet(broker)["coordinators"].startswith("1 partition of ")
        goes_on.set()
        while unmet(broker):
            await broker.runtime.timers.sleep(0.01)


@faulty()
async def test_a_broker_is_not_ready_while_a_disk_fails_and_ready_when_the_log_is_repaired(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    node.disk.fail_writes(1, match="/t-0/")
    assert await node.put("b") == STORAGE_ERROR
    assert unmet(node.broker) == {"disk": "1 partition failed and will be repaired: t-0"}
    await node.put_until_taken("c")
    assert unmet(node.broker) == {}
