"""The loop thread: asyncio clients for callers without a loop."""

import asyncio
import threading

import pytest

from twofold.client.loop_thread import LoopThread


async def thread_name() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise KeyError("mine")


def test_coroutines_run_on_the_other_thread_and_their_results_come_back() -> None:
    with LoopThread("there") as loop:
        assert loop.run(thread_name()) == "there"
        with pytest.raises(KeyError, match="mine"):
            loop.run(fail())


def test_work_goes_on_between_calls() -> None:
    done = threading.Event()

    async def start() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, done.set)

    with LoopThread() as loop:
        loop.run(start())
        assert done.wait(10)


def test_a_timeout_cancels_the_coroutine() -> None:
    ended = threading.Event()

    async def wait_forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with LoopThread() as loop:
        with pytest.raises(TimeoutError, match=r"no result within 0.01 s"):
            loop.run(wait_forever(), timeout_s=0.01)
        assert ended.wait(10)


def test_many_threads_may_call_at_once() -> None:
    results: list[int] = []

    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    with LoopThread() as loop:
        threads = [threading.Thread(target=lambda n=n: results.append(loop.run(double(n)))) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == [number * 2 for number in range(20)]


def test_a_call_from_the_loop_itself_is_refused_instead_of_hanging() -> None:
    with LoopThread() as loop:

        async def nested() -> None:
            loop.run(thread_name())

        with pytest.raises(RuntimeError, match="own thread"):
            loop.run(nested())
