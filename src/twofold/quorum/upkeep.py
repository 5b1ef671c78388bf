"""What an active controller does by itself for brokers of other processes.

1. A broker whose session is over is fenced, eight times a session is looked at, one broker at a time.
2. First replicas lead again where they can, and topics that prefer a leader to all of their records get one.
3. An idle controller writes a NoOp, so that its followers can tell it from a dead one.
4. What fails is a line in the log and is tried again at the next time; a controller that does not lead does nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twofold.controller.context import Context
from twofold.controller.image import MetadataImage
from twofold.controller.operation import Operation
from twofold.controller.records import NoOp
from twofold.quorum.quorum_controller import QuorumController
from twofold.runtime.api import Runtime
from twofold.wire.errors import KafkaError

LOOKS_PER_SESSION = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """The defaults are Kafka's; None is never."""

    session_timeout_s: float = 9.0  # that of the controller
    balance_s: float | None = 300.0
    elect_unclean_s: float | None = 300.0
    idle_s: float | None = 0.5


class Upkeep:
    """Start it when the controller leads; stop it before the controller."""

    def __init__(self, runtime: Runtime, controller: QuorumController, options: UpkeepOptions) -> None:
        self._runtime = runtime
        self._controller = controller
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        options, controller = self._options, self._controller
        controller.watch_sessions()
        self._repeat("fence stale brokers", options.session_timeout_s / LOOKS_PER_SESSION, self._fence)
        if options.balance_s is not None:
            self._repeat("balance leaders", options.balance_s, controller.balance_leaders)
        if options.elect_unclean_s is not None:
            self._repeat("elect unclean leaders", options.elect_unclean_s, controller.elect_unclean_leaders)
        if options.idle_s is not None:
            self._tasks.append(self._runtime.spawn(self._write_when_idle(options.idle_s), name="idle controller"))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def _repeat(self, name: str, interval_s: float, act: Callable[[], Awaitable[bool]]) -> None:
        async def run() -> None:
            while True:
                await self._runtime.timers.sleep(interval_s)
                await self._try(name, act)

        self._tasks.append(self._runtime.spawn(run(), name=name))

    async def _try(self, name: str, act: Callable[[], Awaitable[bool]]) -> None:
        try:
            while self._controller.is_leader and await act():
                await self._runtime.timers.sleep(0)
        except KafkaError as error:
            log.warning("%s: %s", name, error)

    async def _fence(self) -> bool:
        return await self._controller.fence_one_stale_broker()

    async def _write_when_idle(self, interval_s: float) -> None:
        seen = self._controller.image.offset
        while True:
            await self._runtime.timers.sleep(interval_s)
            if self._controller.image.offset == seen:
                await self._try("an idle controller's record", self._write_nothing)
            seen = self._controller.image.offset

    async def _write_nothing(self) -> bool:
        await self._controller.perform(_nothing, "NoOp")
        return False


def _nothing(image: MetadataImage, context: Context) -> Operation[None]:
    yield NoOp()
