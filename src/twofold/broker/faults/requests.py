"""What is planned for the next requests: an error, a closed connection, a delay.

1. A plan is for one API or for all, for one client id or for all, and for a number of requests or for all that follow.
2. The plan that was made first and fits a request is used for it, and no other.
3. A request that fails by plan is not carried out. An answer that is lost by plan is of one that was.
4. All of this runs on the broker's loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from twofold.broker.network.context import Answer, CloseConnection, HandlerResult, Later, RequestContext
from twofold.broker.network.dispatch import Handle
from twofold.broker.services import Services
from twofold.wire.errors import KafkaError
from twofold.wire.message import Message


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with this error."""

    error: KafkaError


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the connection instead of an answer; `handled`: after the request was carried out."""

    handled: bool


@dataclass(frozen=True, slots=True)
class Delay:
    """Begin later, on the broker's clock."""

    seconds: float


Fate: TypeAlias = Fail | Drop | Delay


@dataclass(slots=True)
class PlannedFault:
    fate: Fate
    api: str | None
    client_id: str | None
    left: int | None  # None: for all that follow

    def fits(self, api: str, client_id: str | None) -> bool:
        return self.api in (None, api) and self.client_id in (None, client_id)


@dataclass(frozen=True, slots=True)
class Watch:
    """Ends when a request that fits was taken."""

    api: str
    client_id: str | None
    taken: "asyncio.Future[None]"


class RequestFaults:
    def __init__(self) -> None:
        self._plans: list[PlannedFault] = []
        self._watches: list[Watch] = []

    def add(self, fate: Fate, api: str | None, times: int | None, client_id: str | None) -> None:
        self._plans.append(PlannedFault(fate, api, client_id, times))

    def clear(self) -> None:
        self._plans.clear()

    async def next(self, api: str, client_id: str | None) -> None:
        """Return when the broker has taken the next such request."""
        watch = Watch(api, client_id, asyncio.get_running_loop().create_future())
        self._watches.append(watch)
        try:
            await watch.taken
        finally:
            self._watches.remove(watch)

    def wrap(self, api: str, handle: Handle) -> Handle:
        """A handler that looks here first."""
        return partial(self._handle, api, handle)

    def _handle(
        self, api: str, handle: Handle, services: Services, context: RequestContext, request: Any
    ) -> HandlerResult:
        if not self._plans and not self._watches:
            return handle(services, context, request)
        fate = self._take(api, context.client_id)
        try:
            match fate:
                case None:
                    return handle(services, context, request)
                case Fail(error):
                    raise _as_test_failure(api, request, error)
                case Drop(handled=False):
                    raise CloseConnection(f"a test wants this {api} not to arrive")
                case Drop():
                    return _without_answer(api, partial(handle, services, context, request))
                case Delay(seconds):
                    return _later(services, seconds, partial(handle, services, context, request))
        finally:
            self._tell(api, context.client_id)

    def _take(self, api: str, client_id: str | None) -> Fate | None:
        plan = next((plan for plan in self._plans if plan.fits(api, client_id)), None)
        if plan is None:
            return None
        if plan.left is not None:
            plan.left -= 1
            if not plan.left:
                self._plans.remove(plan)
        return plan.fate

    def _tell(self, api: str, client_id: str | None) -> None:
        for watch in self._watches:
            if watch.api == api and watch.client_id in (None, client_id) and not watch.taken.done():
                watch.taken.set_result(None)


def _as_test_failure(api: str, request: Any, error: KafkaError) -> Exception:
    """A Produce with acks=0 has no answer that could name the error."""
    return CloseConnection(f"{api}: {error}") if getattr(request, "acks", 1) == 0 else error


async def _without_answer(api: str, begin: Callable[[], HandlerResult]) -> Answer:
    with suppress(KafkaError):
        await _finished(begin())
    raise CloseConnection(f"a test wants the answer to this {api} to be lost")


async def _later(services: Services, seconds: float, begin: Callable[[], HandlerResult]) -> Message | Answer:
    await services.runtime.timers.sleep(seconds)
    return await _finished(begin())


async def _finished(result: HandlerResult) -> Message | Answer:
    if isinstance(result, Later):
        return await result.answer
    if isinstance(result, Awaitable):
        return await result
    return result
