"""Answers that a coordinator gives as futures: a handler answers at once where the future is done, else it waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from twofold.wire.errors import KafkaError

R = TypeVar("R")
T = TypeVar("T")


def is_done(answer: Awaitable[object]) -> bool:
    return isinstance(answer, asyncio.Future) and answer.done()


def when_done(answer: Awaitable[T], convert: Callable[[T], R]) -> R | Awaitable[R]:
    """The converted result: at once if it is there, else to be awaited."""
    if isinstance(answer, asyncio.Future) and answer.done():
        return convert(answer.result())
    return _later(answer, convert)


async def _later(answer: Awaitable[T], convert: Callable[[T], R]) -> R:
    return convert(await answer)


def guarded(
    start: Callable[[], Awaitable[T]], convert: Callable[[T], R], failed: Callable[[KafkaError], R]
) -> R | Awaitable[R]:
    """Like `when_done`, for requests whose errors have a place in each row."""
    try:
        answer = start()
        if isinstance(answer, asyncio.Future) and answer.done():
            return convert(answer.result())
    except KafkaError as error:
        return failed(error)
    return _guarded_later(answer, convert, failed)


async def _guarded_later(answer: Awaitable[T], convert: Callable[[T], R], failed: Callable[[KafkaError], R]) -> R:
    try:
        return convert(await answer)
    except KafkaError as error:
        return failed(error)
