"""The clock that stands still while the broker cannot listen: by itself, and in a broker that is paused."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from broker.coordinators.transactions.test_heartbeats_served import Beating
from kits.node.sim_node import NODE
from kits.node.sim_node import simulated as simulated_node
from twofold.broker.network.attention import PERIOD_S, SLACK_S, AttentionClock
from twofold.runtime.api import TimerHandle


class Clocks:
    """Both clocks of a machine, and timers that nobody uses: the test turns the clock itself."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.skew_ms = 0

    def monotonic(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return int(self.seconds * 1000) + self.skew_ms

    def call_later(self, delay_s: float, callback: object) -> TimerHandle:
        raise AssertionError("the test turns the clock")

    async def sleep(self, delay_s: float) -> None:
        raise AssertionError("the test turns the clock")


class Attentive:
    def __init__(self) -> None:
        self.clocks = Clocks()
        self.clock = AttentionClock(self.clocks, self.clocks)
        self.clock.begin()
        self.started = self.clock.monotonic()

    def turns(self, times: int, late_s: float = 0.0) -> None:
        for _ in range(times):
            self.clocks.seconds += PERIOD_S + late_s
            self.clock.turn()

    @property
    def passed(self) -> float:
        return self.clock.monotonic() - self.started


def test_while_the_loop_turns_in_time_the_clock_goes_like_any_other() -> None:
    it = Attentive()
    for _ in range(100):
        for _ in range(4):
            it.clocks.seconds += PERIOD_S / 4
            assert it.passed == pytest.approx(it.clocks.seconds - 1000)
        it.clock.turn()
    assert it.clock.deaf_s == 0


def test_turns_that_are_late_by_ordinary_scheduling_are_not_granted() -> None:
    it = Attentive()
    it.turns(100, late_s=SLACK_S * 0.9)
    assert it.passed == pytest.approx(it.clocks.seconds - 1000)
    assert it.clock.deaf_s == 0


@pytest.mark.parametrize("deaf_s", [1, 60, 86_400])
def test_a_pause_is_granted_whole_and_exactly_once(deaf_s: float) -> None:
    it = Attentive()
    it.turns(10)
    it.clocks.seconds += deaf_s
    before = it.passed
    assert before == pytest.approx(10 * PERIOD_S), "a reader that wakes before the turn finds no time passed"
    it.clock.turn()
    assert it.passed == before, "nor has it, until what had arrived was read"
    it.turns(10)
    assert before + 10 * PERIOD_S - 1e-6 <= it.passed <= before + 11 * PERIOD_S + 1e-6
    assert it.clock.deaf_s == pytest.approx(deaf_s, abs=PERIOD_S + 1e-6)


def test_a_client_that_is_heard_on_waking_has_its_whole_time() -> None:
    """Time before it was heard must not be counted after it: its session would end early."""
    it = Attentive()
    it.turns(10)
    it.clocks.seconds += 3
    it.clock.turn()
    heard, at = it.passed, it.clocks.seconds
    it.turns(10)
    assert it.passed - heard <= it.clocks.seconds - at + 1e-6


def test_what_was_told_just_before_a_pause_is_not_taken_back() -> None:
    it = Attentive()
    it.clocks.seconds += PERIOD_S * 0.9
    told = it.passed
    it.clocks.seconds += 30
    assert it.passed == told
    it.turns(1)
    assert it.passed == told


def test_many_late_turns_add_up() -> None:
    """No turn takes a second, and together the loop was away for half an hour."""
    it = Attentive()
    it.turns(3600, late_s=0.5)
    assert it.passed == pytest.approx(3600 * PERIOD_S, abs=2 * PERIOD_S)
    assert it.clock.deaf_s == pytest.approx(1800, abs=1)


def test_a_loop_that_is_late_at_every_turn_still_lets_time_pass() -> None:
    it = Attentive()
    seen = []
    for _ in range(50):
        it.turns(1, late_s=5.0)
        seen.append(it.passed)
    assert seen == sorted(seen)
    assert seen[-1] >= 49 * PERIOD_S - 1e-6


@pytest.mark.parametrize("jump_ms", [-86_400_000, -5000, 5000, 86_400_000])
def test_a_wall_clock_that_jumps_lets_no_time_pass(jump_ms: int) -> None:
    it = Attentive()
    it.turns(10)
    it.clocks.skew_ms += jump_ms
    it.turns(10)
    assert it.passed == pytest.approx(20 * PERIOD_S)


def test_a_suspended_machine_is_known_by_its_wall_clock(caplog: pytest.LogCaptureFixture) -> None:
    """Its monotonic clock stood still: nothing has to be granted, and the log says for how long nobody was heard."""
    it = Attentive()
    it.clocks.skew_ms += 90_000
    with caplog.at_level(logging.WARNING):
        it.turns(1)
    assert it.clock.deaf_s == pytest.approx(90)
    assert "the wall clock went ahead by 90.0 s (the machine was suspended, or its clock was set)" in caplog.text
    assert "granted to every heartbeat, transaction timeout and group session" in caplog.text


# In a broker


class Pausing(Beating):
    async def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT that much later. What was due meanwhile comes first."""
        self.sim.pause(NODE)
        await asyncio.sleep(seconds)
        self.sim.resume(NODE)
        await asyncio.sleep(0.001)

    async def ended(self) -> str:
        while (state := await self.state()).startswith("Prepare"):
            await self.sleep(0.01)
        return str(state)


def pausing(**settings: object) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    settings = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 100, **settings}
    return simulated_node(Pausing, **settings)


@pausing()
async def test_a_pause_of_the_broker_ends_no_transaction_whose_client_beats(node: Pausing) -> None:
    pair = await node.start_with(500)
    await node.produce(pair, 0, version=12)
    for seconds in (2, 30, 3600):
        await node.sleep(0.4)
        assert await node.beat(pair) == 0
        await node.pause(seconds)
        assert await node.state() == "Ongoing"
        await node.sleep(0.4)
        assert await node.beat(pair) == 0
    assert await node.state() == "Ongoing"
    assert node.broker.transactions.counts.silent == 0
    assert node.broker.attention.deaf_s == pytest.approx(3632, abs=1)


@pausing()
async def test_a_client_that_died_while_the_broker_was_paused_is_ended_within_three_intervals(node: Pausing) -> None:
    pair = await node.start_with(500)
    await node.produce(pair, 0, version=12)
    await node.sleep(0.4)
    assert await node.beat(pair) == 0
    await node.pause(60)
    woke = node.sim.now_s
    while await node.state() == "Ongoing":
        await node.sleep(0.05)
    assert 1.0 < node.sim.now_s - woke <= 1.5 + 0.25 + 2 * PERIOD_S
    assert node.broker.transactions.counts.silent == 1


@pausing()
async def test_the_transaction_timeout_does_not_run_while_the_broker_is_paused(node: Pausing) -> None:
    pair = await node.start_with(0, timeout=5000)
    await node.produce(pair, 0, version=12)
    await node.sleep(3)
    await node.pause(600)
    await node.sleep(1.5)
    assert await node.state() == "Ongoing"
    await node.sleep(1)
    assert await node.ended() == "CompleteAbort", "the time in which the broker listened counts"
    assert node.broker.transactions.counts.timed_out == 1


@pausing()
async def test_the_transaction_timeout_does_not_run_while_the_machine_sleeps(node: Pausing) -> None:
    """A suspended virtual machine: its wall clock jumps, and then jumps back when it is set."""
    pair = await node.start_with(0, timeout=5000)
    await node.produce(pair, 0, version=12)
    for jump_ms in (3_600_000, -3_600_000, 7_200_000):
        node.sim.jump_clock(NODE, jump_ms)
        await node.sleep(1.5)
        assert await node.state() == "Ongoing"
    await node.sleep(1)
    assert await node.ended() == "CompleteAbort"


@pausing()
async def test_after_a_restart_a_transaction_is_as_old_as_the_wall_clock_says(node: Pausing) -> None:
    pair = await node.start_with(0, timeout=5000)
    await node.produce(pair, 0, version=12)
    await node.sleep(3)
    await node.restart()
    await node.sleep(1.5)
    assert await node.state() == "Ongoing"
    await node.sleep(1)
    assert await node.ended() == "CompleteAbort"


@pausing(connections_max_idle_ms=3000)
async def test_a_pause_does_not_make_connections_idle(node: Pausing) -> None:
    client = node.sim.runtime("client")
    closed = []

    class Quiet(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            closed.append(node.sim.now_s)

    async def connect() -> None:
        await client.network.connect(Quiet, NODE, 9092)

    await client.spawn(connect(), name="connect")
    await node.sleep(2)
    await node.pause(60)
    woke = node.sim.now_s
    await node.sleep(0.5)
    assert closed == []
    await node.sleep(3)
    assert len(closed) == 1 and closed[0] > woke + 0.5
