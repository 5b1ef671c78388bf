"""Requests that the controller answers, on behalf of a client.

Where the controllers are elsewhere, the bytes of such a request go there as they came, with the name of its user
(`Forwarder`); the controller decides and authorizes. Where the controller is in this process, its API module asks it
(`forward`):

1. The client's timeout bounds the waiting, not the work: what the controller accepted goes on, and the client is told
   REQUEST_TIMED_OUT (7).
2. The controller answers when its records are committed and this broker has seen them: what was created can be used,
   and what was deleted is gone, by the time the client hears of it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from twofold.broker.network.context import Frame, RequestContext
from twofold.runtime.api import Runtime
from twofold.wire.apis import APIS, KEYS
from twofold.wire.errors import RequestTimedOut

T = TypeVar("T")

_CHANGES = (
    "AlterClientQuotas", "AlterConfigs", "AlterPartitionReassignments", "AlterUserScramCredentials", "CreateAcls",
    "CreatePartitions", "CreateTopics", "DeleteAcls", "DeleteTopics", "ElectLeaders", "IncrementalAlterConfigs",
    "UnregisterBroker", "UpdateFeatures",
)  # fmt: skip
_QUESTIONS = ("DescribeQuorum", "ListPartitionReassignments")
_CHANGING = frozenset(KEYS[name] for name in _CHANGES)
FORWARDED = _CHANGING | frozenset(KEYS[name] for name in _QUESTIONS)
"""The APIs that only the active controller answers."""


class ForwardingPort(Protocol):
    """The controller, where it is elsewhere."""

    async def forward(self, request: bytes, *, principal: str, client_host: str, what: str) -> bytes: ...

    async def seen(self) -> None: ...


class Forwarder:
    """Asks a controller elsewhere. When the client hears of a change, this node has seen it."""

    def __init__(self, controller: Callable[[], ForwardingPort]) -> None:
        self._controller = controller

    async def answer(self, context: RequestContext, request: bytes) -> Frame:
        """`request` is header and body, without the length."""
        controller = self._controller()
        answer = await controller.forward(
            request,
            principal=context.principal,
            client_host=context.client_host,
            what=APIS[context.api_key].name,
        )
        if context.api_key in _CHANGING:
            await controller.seen()
        return Frame([len(answer).to_bytes(4, "big") + answer])


async def forward(runtime: Runtime, call: Coroutine[Any, Any, T], *, timeout_ms: int, name: str) -> T:
    """What the controller answers to `call` within the client's patience."""
    task = runtime.spawn(call, name=f"forwarded {name}")
    patience: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = runtime.timers.call_later(max(0, timeout_ms) / 1000, lambda: _end(patience))
    try:
        waited: tuple[asyncio.Future[Any], ...] = (task, patience)
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        patience.cancel()
    if task.done():
        return task.result()
    task.add_done_callback(_forget)
    raise RequestTimedOut(f"the controller did not answer {name} within {timeout_ms} ms; it may still happen")


def _end(patience: "asyncio.Future[None]") -> None:
    if not patience.done():
        patience.set_result(None)


def _forget(task: "asyncio.Task[T]") -> None:
    """No request waits any more: asyncio must not report the error as never retrieved."""
    if not task.cancelled():
        task.exception()
