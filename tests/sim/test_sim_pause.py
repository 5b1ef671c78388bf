"""A node that stands still for a while, as after SIGSTOP or in a long collection of garbage."""

import asyncio

from twofold.runtime.api import Runtime
from twofold.runtime.sim import Simulation


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Listener(asyncio.Protocol):
    def __init__(self, sim: Simulation) -> None:
        self.heard: list[tuple[float, bytes]] = []
        self.ended = False
        self._sim = sim

    def data_received(self, data: bytes) -> None:
        self.heard.append((round(self._sim.now_s, 1), data))

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True


async def tick(runtime: Runtime, sim: Simulation, seen: list[float]) -> None:
    while True:
        await runtime.timers.sleep(0.1)
        seen.append(round(sim.now_s, 1))


def test_nothing_of_a_paused_node_runs_and_the_others_go_on() -> None:
    with Simulation(1) as sim:
        still: list[float] = []
        busy: list[float] = []

        async def main() -> None:
            for node, seen in (("still", still), ("busy", busy)):
                runtime = sim.runtime(node)
                runtime.spawn(tick(runtime, sim, seen), name=node)
            await asyncio.sleep(0.25)
            sim.pause("still")
            await asyncio.sleep(1)
            assert still == [0.1, 0.2]
            sim.resume("still")
            await asyncio.sleep(0.25)

        sim.run(main())
        assert still[2] == 1.2, "what was due runs at once"
        assert len(busy) == 15


def test_messages_wait_for_a_paused_node_and_keep_their_order() -> None:
    with Simulation(2) as sim:
        listener = Listener(sim)

        async def main() -> None:
            server, client = sim.runtime("server"), sim.runtime("client")
            await server.network.listen(Echo, "", 9092)
            transport, _ = await client.network.connect(lambda: listener, "server", 9092)
            transport.write(b"one")
            await asyncio.sleep(0.1)
            sim.pause("server")
            for data in (b"two", b"three"):
                transport.write(data)
                await asyncio.sleep(1)
            assert [data for _, data in listener.heard] == [b"one"]
            sim.resume("server")
            await asyncio.sleep(0.1)
            assert [data for _, data in listener.heard] == [b"one", b"two", b"three"]
            assert not listener.ended

        sim.run(main())


def test_a_paused_node_hears_later_that_its_connection_is_gone() -> None:
    with Simulation(3) as sim:
        listener = Listener(sim)

        async def main() -> None:
            server, client = sim.runtime("server"), sim.runtime("client")
            await server.network.listen(Echo, "", 9092)
            await client.network.connect(lambda: listener, "server", 9092)
            sim.pause("client")
            sim.crash("server", power_cut=False)
            await asyncio.sleep(1)
            assert not listener.ended
            sim.resume("client")
            await asyncio.sleep(0.1)
            assert listener.ended

        sim.run(main())


def test_a_connection_that_is_made_to_a_paused_node_is_served_when_it_goes_on() -> None:
    with Simulation(4) as sim:
        listener = Listener(sim)

        async def main() -> None:
            server, client = sim.runtime("server"), sim.runtime("client")
            await server.network.listen(Echo, "", 9092)
            sim.pause("server")
            transport, _ = await client.network.connect(lambda: listener, "server", 9092)
            transport.write(b"hello")
            await asyncio.sleep(1)
            assert listener.heard == []
            sim.resume("server")
            await asyncio.sleep(0.1)
            assert [data for _, data in listener.heard] == [b"hello"]

        sim.run(main())


def test_blocking_calls_stand_still_too() -> None:
    with Simulation(5) as sim:
        done: list[float] = []

        async def work(runtime: Runtime) -> None:
            await runtime.blocking(lambda: None)
            done.append(round(sim.now_s, 1))

        async def main() -> None:
            runtime = sim.runtime("node")
            runtime.spawn(work(runtime), name="work")
            await asyncio.sleep(0)
            sim.pause("node")
            await asyncio.sleep(2)
            assert done == []
            sim.resume("node")
            await asyncio.sleep(0.1)

        sim.run(main())
        assert done == [2.0]


def test_a_paused_node_can_die_and_its_successor_is_not_paused() -> None:
    with Simulation(6) as sim:
        seen: list[float] = []

        async def main() -> None:
            runtime = sim.runtime("node")
            task = runtime.spawn(tick(runtime, sim, seen), name="tick")
            sim.pause("node")
            await asyncio.sleep(0.5)
            sim.crash("node")
            sim.resume("node")
            await asyncio.sleep(0.1)
            assert task.cancelled()
            assert seen == []
            runtime = sim.runtime("node")
            runtime.spawn(tick(runtime, sim, seen), name="tick")
            await asyncio.sleep(0.15)

        sim.run(main())
        assert seen == [0.7]


def test_pausing_twice_and_resuming_what_is_not_paused_change_nothing() -> None:
    with Simulation(7) as sim:
        seen: list[float] = []

        async def main() -> None:
            runtime = sim.runtime("node")
            runtime.spawn(tick(runtime, sim, seen), name="tick")
            sim.resume("node")
            sim.pause("node")
            sim.pause("node")
            sim.resume("node")
            await asyncio.sleep(0.15)

        sim.run(main())
        assert seen == [0.1]
        assert sim.loop.paused_lives == 0
