"""The simulation: one seed, one run; virtual time; crashes that leave nothing alive."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from twofold.runtime.api import Runtime
from twofold.runtime.files import read_file, write_atomically
from twofold.runtime.sim import DeadlockError, Simulation, VirtualTimeout

YEAR_S = 365 * 24 * 3600


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def run_story(seed: int) -> Simulation:
    """Two nodes that talk over a bad link, write, sync, race and crash."""
    with Simulation(seed) as sim:
        sim.network.set_default_link(drop=0.02, split=0.2)

        async def worker(runtime: Runtime, name: str) -> None:
            file = runtime.disk.open(name, create=True)
            for n in range(20):
                file.write(n * 4, runtime.random.randbytes(4))
                await runtime.blocking(file.sync)
                with contextlib.suppress(OSError):
                    transport, _ = await runtime.network.connect(asyncio.Protocol, "server", 9092)
                    transport.write(f"{name} {n} {runtime.clock.wall_ms()}".encode())
                await asyncio.wait([asyncio.ensure_future(runtime.timers.sleep(n / 1000)) for _ in range(3)])

        async def main() -> None:
            await sim.runtime("server").network.listen(Echo, "", 9092)
            client = sim.runtime("client")
            workers = [client.spawn(worker(client, name), name=name) for name in ("x", "y")]
            await workers[0]
            sim.crash("client")
            for name in sim.disk("client").list("."):
                sim.note(read_file(sim.disk("client"), name).hex())

        sim.run(main())
        return sim


def test_same_seed_gives_the_same_run() -> None:
    first, second = run_story(42), run_story(42)
    assert first.trace == second.trace
    assert first.digest() == second.digest()
    assert len(first.trace) > 100


def test_other_seed_gives_another_run() -> None:
    assert len({run_story(seed).digest() for seed in range(5)}) == 5


def test_same_seed_gives_the_same_run_in_another_process_with_other_hashes() -> None:
    tests = str(Path(__file__).parent.parent)
    script = "from runtime.test_sim_runtime import run_story; print(run_story(42).digest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": tests},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert digests == {run_story(42).digest()}


def test_trace_is_bounded_and_the_digest_covers_what_it_dropped() -> None:
    sims = [Simulation(0, trace_limit=3) for _ in range(2)]
    for n, sim in enumerate(sims):
        sim.note(f"only the first line differs: {n}")
        for text in "abc":
            sim.note(text)
    assert sims[0].trace == sims[1].trace == ["0.000000 a", "0.000000 b", "0.000000 c"]
    assert sims[0].digest() != sims[1].digest()


def test_a_year_passes_in_less_than_a_second() -> None:
    with Simulation(0) as sim:
        ticks = list[float]()

        async def main() -> None:
            runtime = sim.runtime("a")
            started_ms, started = runtime.clock.wall_ms(), runtime.clock.monotonic()
            runtime.timers.call_later(YEAR_S / 2, lambda: ticks.append(runtime.clock.monotonic() - started))
            for _ in range(365):
                await runtime.timers.sleep(24 * 3600)
            assert runtime.clock.wall_ms() - started_ms == YEAR_S * 1000
            assert runtime.clock.monotonic() - started == pytest.approx(YEAR_S)

        before = time.perf_counter()
        sim.run(main())
        assert time.perf_counter() - before < 1
        assert ticks == [pytest.approx(YEAR_S / 2)]


def test_timers_of_one_moment_fire_in_the_order_they_were_set_and_cancelled_ones_never() -> None:
    with Simulation(0) as sim:
        fired = list[int]()

        async def main() -> None:
            timers = sim.runtime("a").timers
            handles = [timers.call_later(1.0, lambda n=n: fired.append(n)) for n in range(50)]  # type: ignore[misc]
            for handle in handles[::2]:
                handle.cancel()
            await timers.sleep(1.0)
            await timers.sleep(0)

        sim.run(main())
        assert fired == list(range(1, 50, 2))


def test_clocks_differ_between_nodes_and_jump_without_touching_monotonic_time() -> None:
    with Simulation(1, max_skew_ms=1000) as sim:
        clocks = [sim.runtime(node).clock for node in "abcd"]
        walls = [clock.wall_ms() for clock in clocks]
        assert len(set(walls)) > 1 and max(walls) - min(walls) <= 2000
        before = clocks[0].monotonic()
        sim.jump_clock("a", -3_600_000)
        assert clocks[0].wall_ms() == walls[0] - 3_600_000
        assert clocks[1].wall_ms() == walls[1]
        assert clocks[0].monotonic() == before
        sim.crash("a")
        assert sim.runtime("a").clock.wall_ms() == walls[0] - 3_600_000


def test_deadlock_names_the_tasks_and_where_they_wait() -> None:
    with Simulation(0) as sim:

        async def wait_for_ever() -> None:
            await asyncio.get_running_loop().create_future()

        async def main() -> None:
            await sim.runtime("a").spawn(wait_for_ever(), name="stuck-fetch")

        with pytest.raises(DeadlockError) as raised:
            sim.run(main())
        assert "main in main (test_sim_runtime.py:" in str(raised.value)
        assert "stuck-fetch of a/1 in wait_for_ever (test_sim_runtime.py:" in str(raised.value)


def test_virtual_timeout_ends_a_run_that_never_deadlocks() -> None:
    with Simulation(0) as sim:

        async def retry_for_ever() -> None:
            while True:
                await sim.runtime("a").timers.sleep(1)

        with pytest.raises(VirtualTimeout, match=r"virtual second 60\.000: main in retry_for_ever"):
            sim.run(retry_for_ever(), timeout_s=60)
        assert sim.now_s == 60


def test_threads_are_refused() -> None:
    with Simulation(0) as sim:

        async def main() -> None:
            await asyncio.to_thread(print)

        with pytest.raises(RuntimeError, match=r"use Runtime\.blocking"):
            sim.run(main())


def test_blocking_call_starts_at_once_takes_time_and_reports_result_or_error() -> None:
    with Simulation(0) as sim:
        done_at = list[float]()

        async def main() -> None:
            runtime = sim.runtime("a")
            future = runtime.blocking(lambda: done_at.append(sim.now_s))
            await runtime.timers.sleep(1)  # nobody awaits it yet, as with a thread
            assert 0 < done_at[0] < 0.01
            await future
            assert await runtime.blocking(divmod, 7, 2) == (3, 1)
            with pytest.raises(ZeroDivisionError):
                await runtime.blocking(divmod, 1, 0)

        sim.run(main())


def test_crash_finds_a_blocking_call_before_its_work_or_after_it_but_unreported() -> None:
    outcomes = set[tuple[bool, bool]]()
    for seed in range(40):
        with Simulation(seed) as sim:
            worked, reported = list[int](), list[int]()

            async def sync(runtime: Runtime, worked: list[int], reported: list[int]) -> None:
                await runtime.blocking(worked.append, 1)
                reported.append(1)

            async def main(sim: Simulation, worked: list[int], reported: list[int]) -> None:
                runtime = sim.runtime("a")
                runtime.spawn(sync(runtime, worked, reported), name="sync")
                await asyncio.sleep(0.0015)
                sim.crash("a")
                count = len(worked)
                await asyncio.sleep(1)
                assert len(worked) == count

            sim.run(main(sim, worked, reported))
            outcomes.add((bool(worked), bool(reported)))
    assert outcomes == {(False, False), (True, False), (True, True)}


def test_crash_releases_a_caller_of_another_node_that_awaits_a_blocking_call() -> None:
    async def main(sim: Simulation) -> None:
        call = asyncio.ensure_future(sim.runtime("a").blocking(print))
        sim.crash("a")
        with pytest.raises(asyncio.CancelledError):
            await call

    with Simulation(0) as sim:
        sim.run(main(sim))


def test_crash_cancels_tasks_and_their_children_timers_and_refuses_their_cleanup() -> None:
    with Simulation(0) as sim:
        events = list[str]()

        async def child() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                events.append("child ended")

        async def server(runtime: Runtime) -> None:
            file = runtime.disk.open("f", create=True)
            runtime.timers.call_later(5, lambda: events.append("timer fired"))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(child())
            finally:
                for cleanup in cleanups(runtime, file.sync):
                    with pytest.raises(OSError):
                        cleanup()
                with pytest.raises(OSError):
                    await runtime.network.connect(asyncio.Protocol, "b", 1)
                with pytest.raises(OSError):
                    await runtime.network.listen(asyncio.Protocol, "", 1)
                runtime.timers.call_later(1, lambda: events.append("late timer fired"))
                runtime.spawn(say("late task ran"), name="late")
                with pytest.raises(asyncio.CancelledError):
                    await runtime.blocking(events.append, "late call ran")
                events.append("cleanup was refused")

        def cleanups(runtime: Runtime, sync: Callable[[], None]) -> list[Callable[[], object]]:
            disk = runtime.disk
            return [
                sync,
                lambda: write_atomically(disk, ".kafka_cleanshutdown", b""),
                lambda: disk.exists("f"),
                lambda: disk.make_dirs("d"),
            ]

        async def say(text: str) -> None:
            events.append(text)

        async def main() -> None:
            runtime = sim.runtime("a")
            task = runtime.spawn(server(runtime), name="server")
            await asyncio.sleep(1)
            sim.crash("a")
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(2000)

        sim.run(main())
        assert events == ["child ended", "cleanup was refused"]
        assert not sim.disk("a").exists(".kafka_cleanshutdown")


def test_restarted_node_finds_its_synced_files_and_a_fresh_runtime() -> None:
    with Simulation(0) as sim:
        first = sim.runtime("a")
        assert sim.runtime("a") is first
        write_atomically(first.disk, "checkpoint", b"7")
        lock = first.disk.lock(".lock")
        sim.crash("a")
        second = sim.runtime("a")
        assert second is not first
        assert read_file(second.disk, "checkpoint") == b"7"
        second.disk.lock(".lock")
        lock.release()
        assert first.random.random() != second.random.random()


def test_background_task_that_dies_unobserved_fails_the_run() -> None:
    async def die() -> None:
        raise ValueError("nobody looked")

    async def main(sim: Simulation) -> None:
        sim.runtime("a").spawn(die(), name="retention")
        await asyncio.sleep(1)

    with Simulation(0) as sim, pytest.raises(BaseExceptionGroup, match="seed 0") as raised:
        sim.run(main(sim))
    assert [str(error) for error in raised.value.exceptions] == ["nobody looked"]
    with Simulation(0, strict=False) as sim:
        sim.run(main(sim))
        assert [str(error) for error in sim.failures] == ["nobody looked"]


def test_callback_that_raises_fails_the_run() -> None:
    async def main(sim: Simulation) -> None:
        sim.runtime("a").timers.call_later(0.5, lambda: [][0])
        await asyncio.sleep(1)

    with Simulation(0) as sim, pytest.raises(BaseExceptionGroup) as raised:
        sim.run(main(sim))
    assert isinstance(raised.value.exceptions[0], IndexError)


def test_what_a_run_leaves_in_the_background_goes_on_in_the_next() -> None:
    with Simulation(0) as sim:
        ticks = list[float]()

        async def tick(runtime: Runtime) -> None:
            while True:
                await runtime.timers.sleep(1)
                ticks.append(sim.now_s)

        async def start() -> None:
            sim.runtime("a").spawn(tick(sim.runtime("a")), name="tick")

        sim.run(start())
        sim.run(asyncio.sleep(3.5))
        assert ticks == [1, 2, 3]


def test_close_ends_tasks_even_those_that_resist() -> None:
    ended = list[str]()

    async def obedient() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("obedient")

    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()

    async def start(sim: Simulation) -> None:
        sim.runtime("a").spawn(obedient(), name="obedient")
        asyncio.get_running_loop().create_task(stubborn(), name="stubborn")
        await asyncio.sleep(0)

    with Simulation(0) as sim:
        sim.run(start(sim))
    assert ended == ["obedient"]
    with pytest.raises(RuntimeError, match="closed"):
        sim.loop.call_later(1, print)
