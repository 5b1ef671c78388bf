"""A node that dies in the middle of what it does: between two disk operations, or inside of one."""

import asyncio

import pytest

from twofold.runtime.api import Runtime
from twofold.runtime.files import read_file
from twofold.runtime.sim import Simulation

LINE = b"twelve bytes"


class Writer(asyncio.Protocol):
    """Writes down what it receives, on the loop, as a broker does."""

    def __init__(self, runtime: Runtime) -> None:
        self._file = runtime.disk.open("lines", create=True)
        self._runtime = runtime

    def data_received(self, data: bytes) -> None:
        self._file.write(self._file.size(), data)


def run_until_it_dies(seed: int, operations: int, *, power_cut: bool) -> bytes:
    """What is left of the lines after the node died in the operation that follows `operations`."""
    with Simulation(seed) as sim:

        async def main() -> None:
            server = sim.runtime("server")
            await server.network.listen(lambda: Writer(server), "", 9092)
            server.disk.sync_dir(".")
            client = sim.runtime("client")
            transport, _ = await client.network.connect(asyncio.Protocol, "server", 9092)
            sim.disk("server").sync_dir(".")
            sim.crash_after("server", operations, power_cut=power_cut)
            for _ in range(10):
                transport.write(LINE)
                await client.timers.sleep(0.1)
            assert sim.runtime("server") is not server
            assert transport.is_closing()

        sim.run(main())
        return read_file(sim.disk("server"), "lines")


def test_a_killed_process_leaves_all_it_wrote_and_a_part_of_the_last_write() -> None:
    left = [run_until_it_dies(seed, 3, power_cut=False) for seed in range(30)]
    assert all((LINE * 4).startswith(text) and len(text) >= 3 * len(LINE) for text in left)
    assert len({len(text) for text in left}) > 5


def test_a_power_cut_in_the_middle_takes_unsynced_writes_too() -> None:
    left = [run_until_it_dies(seed, 3, power_cut=True) for seed in range(30)]
    assert all((LINE * 4).startswith(text) for text in left)
    assert any(len(text) < 3 * len(LINE) for text in left)


@pytest.mark.parametrize("power_cut", [False, True])
def test_the_rest_of_the_simulation_goes_on(power_cut: bool) -> None:
    """The write came through the client's message, but it is the server that died of it."""
    assert len(run_until_it_dies(1, 0, power_cut=power_cut)) <= len(LINE)
