"""A clock that a test moves: the timers in the stretch fire in their order, each at its own moment."""

import asyncio

from kits.node.sockets import on_loop
from twofold.broker.network.attention import AttentionClock
from twofold.runtime.faulty import faulty_runtime


def test_timers_in_the_moved_stretch_fire_in_order_each_at_its_own_moment() -> None:
    @on_loop
    async def scenario() -> None:
        time = faulty_runtime().time
        start, fired = time.monotonic(), list[tuple[str, float]]()

        def later(name: str, delay_s: float) -> None:
            time.call_later(delay_s, lambda: fired.append((name, time.monotonic() - start)))

        later("hour", 3600)
        later("minute", 60)
        later("day", 86400)
        time.call_later(30, lambda: later("set on the way", 10))
        cancelled = time.call_later(20, lambda: fired.append(("cancelled", 0)))
        time.call_later(10, cancelled.cancel)
        await time.advance(3600)
        assert [name for name, _ in fired] == ["set on the way", "minute", "hour"]
        for (_, at), due in zip(fired, (40, 60, 3600), strict=True):
            assert due <= at < due + 1

    scenario()


def test_a_timer_beyond_the_stretch_keeps_the_rest_of_its_delay() -> None:
    @on_loop
    async def scenario() -> None:
        time = faulty_runtime().time
        fired = asyncio.Event()
        time.call_later(100, fired.set)
        await time.advance(99.9)
        assert not fired.is_set()
        await asyncio.wait_for(fired.wait(), 10)  # 0.1 s of the real clock

    scenario()


def test_both_clocks_move_together_and_never_go_back() -> None:
    @on_loop
    async def scenario() -> None:
        time = faulty_runtime(moved_s=5).time
        wall, monotonic = time.wall_ms(), time.monotonic()
        await time.advance(7)
        assert 7000 <= time.wall_ms() - wall < 8000
        assert 7 <= time.monotonic() - monotonic < 8
        assert time.moved_s == 12

    scenario()


def test_the_broker_listens_through_the_moved_time() -> None:
    """The clock of sessions and transactions stands still for a broker that is late; a moved clock makes none late."""

    @on_loop
    async def scenario() -> None:
        time = faulty_runtime().time
        attention = AttentionClock(time, time)
        turning = asyncio.ensure_future(attention.run())
        await asyncio.sleep(0)
        before = attention.monotonic()
        await time.advance(600)
        assert 599 < attention.monotonic() - before < 601
        assert attention.deaf_s < 1
        turning.cancel()

    scenario()


def test_the_time_stands_still_while_a_thread_works() -> None:
    @on_loop
    async def scenario() -> None:
        faulty = faulty_runtime()
        faulty.disk.sync_s = 0.05
        found: list[float] = []

        async def work() -> None:
            await faulty.runtime.timers.sleep(1)
            began = faulty.time.moved_s
            await faulty.runtime.blocking(faulty.disk.sync_dir, ".")
            found.append(faulty.time.moved_s - began)

        working = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        await faulty.time.advance(1000)
        await working
        assert found == [0.0]

    scenario()
