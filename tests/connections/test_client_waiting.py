"""Retry policy: bounded by a deadline, exponential with jitter, on the runtime's clock only."""

import itertools
from random import Random

import pytest

from twofold.connections.errors import GaveUp
from twofold.connections.waiting import Backoff, Deadline, retry
from twofold.runtime.sim import Simulation
from twofold.wire.errors import InvalidTopicException, NotLeaderOrFollower


def test_back_off_doubles_to_its_maximum_and_is_spread_by_a_fifth() -> None:
    backoff = Backoff(100, 1_000)
    random = Random(7)
    for failures, term in [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (6, 1.0), (10_000, 1.0)]:
        delays = [backoff.delay_s(failures, random) for _ in range(200)]
        assert 0.8 * term <= min(delays) < 0.85 * term
        assert 1.15 * term < max(delays) <= 1.2 * term


def test_retries_end_at_the_deadline_with_the_setting_and_the_last_error() -> None:
    attempts: list[float] = []

    async def story() -> None:
        runtime = sim.runtime("client")
        start = runtime.clock.monotonic()
        deadline = Deadline(runtime.clock, 5_000, "default_api_timeout_ms")

        async def attempt() -> None:
            attempts.append(runtime.clock.monotonic() - start)
            raise NotLeaderOrFollower("partition t-0")

        with pytest.raises(GaveUp, match=r"5000 ms \(default_api_timeout_ms\): NOT_LEADER_OR_FOLLOWER: partition t-0"):
            await retry(runtime, Backoff(100, 1_000), deadline, "Fetch", attempt)
        assert runtime.clock.monotonic() - start <= 5.0

    with Simulation(1) as sim:
        sim.run(story())
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert 6 <= len(attempts) <= 10
    assert pauses[0] < 0.13 and pauses[-1] > 0.7


def test_an_error_that_is_not_retriable_ends_the_attempts_at_once() -> None:
    async def story() -> None:
        runtime = sim.runtime("client")
        calls: list[int] = []

        async def attempt() -> None:
            calls.append(1)
            raise InvalidTopicException("bad topic")

        deadline = Deadline(runtime.clock, 5_000, "default_api_timeout_ms")
        with pytest.raises(InvalidTopicException):
            await retry(runtime, Backoff(100, 1_000), deadline, "CreateTopics", attempt)
        assert len(calls) == 1

    with Simulation(1) as sim:
        sim.run(story())
