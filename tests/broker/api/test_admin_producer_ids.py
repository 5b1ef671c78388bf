"""The block allocator: ids are unique, prefetched, and never waited for."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from twofold.broker.coordinators.transactions.producer_ids import RETRY_BACKOFF_S, ProducerIdBlocks
from twofold.runtime.api import Runtime
from twofold.wire.errors import CoordinatorLoadInProgress, StaleBrokerEpoch
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsResponse


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


def runtime(clock: ManualClock) -> Runtime:
    unused: Any = None
    return Runtime(
        clock=clock,
        timers=unused,
        disk=unused,
        network=unused,
        random=Random(0),
        spawn=lambda coroutine, *, name: asyncio.get_running_loop().create_task(coroutine, name=name),
        blocking=unused,
    )


def block(start: int, length: int = 10) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(error_code=0, producer_id_start=start, producer_id_len=length)


class Controller:
    """Answers with what the test queued, and counts how often it was asked."""

    def __init__(self, *answers: AllocateProducerIdsResponse | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self) -> AllocateProducerIdsResponse:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_without_a_block_the_answer_is_load_in_progress_and_one_is_asked_for():
    async def scenario() -> None:
        controller = Controller(block(1000))
        ids = ProducerIdBlocks(controller, runtime(ManualClock()))
        for _ in range(3):
            with pytest.raises(CoordinatorLoadInProgress):
                ids.take()
        await settle()
        assert controller.asked == 1
        assert ids.take() == 1000

    run(scenario)


def test_the_next_block_is_asked_for_when_nine_tenths_are_used_and_ids_go_on_without_a_gap():
    async def scenario() -> None:
        controller = Controller(block(0), block(50), block(60))
        ids = ProducerIdBlocks(controller, runtime(ManualClock()))
        ids.prefetch()
        await settle()
        taken = [ids.take() for _ in range(8)]
        assert controller.asked == 1
        taken.append(ids.take())
        await settle()
        assert controller.asked == 2
        taken += [ids.take() for _ in range(3)]
        assert taken == [*range(10), 50, 51]

    run(scenario)


@pytest.mark.parametrize(
    "failure",
    [
        StaleBrokerEpoch("old"),
        RuntimeError("broken"),
        AllocateProducerIdsResponse(error_code=77, producer_id_start=0, producer_id_len=0),
        block(5, 0),
        block(5, -1),
        block(-1000),
    ],
)
def test_a_failed_request_is_repeated_after_the_back_off_and_not_before(failure):
    async def scenario() -> None:
        clock = ManualClock()
        controller = Controller(failure, block(7))
        ids = ProducerIdBlocks(controller, runtime(clock))
        ids.prefetch()
        await settle()
        with pytest.raises(CoordinatorLoadInProgress):
            ids.take()
        await settle()
        assert controller.asked == 1
        clock.now += RETRY_BACKOFF_S
        with pytest.raises(CoordinatorLoadInProgress):
            ids.take()
        await settle()
        assert controller.asked == 2
        assert ids.take() == 7

    run(scenario)


@pytest.mark.parametrize("start", [0, 1000, 1009])
def test_a_block_that_would_repeat_ids_is_refused(start):
    async def scenario() -> None:
        clock = ManualClock()
        controller = Controller(block(1000), block(start), block(1010))
        ids = ProducerIdBlocks(controller, runtime(clock))
        ids.prefetch()
        await settle()
        assert [ids.take() for _ in range(10)] == list(range(1000, 1010))
        await settle()
        with pytest.raises(CoordinatorLoadInProgress):
            ids.take()
        clock.now += 1
        ids.prefetch()
        await settle()
        assert ids.take() == 1010

    run(scenario)
