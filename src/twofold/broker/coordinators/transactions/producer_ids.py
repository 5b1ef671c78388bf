"""Producer ids, handed out from blocks that the controller gives to this broker.

1. No id is handed out twice: a block belongs to one broker, and the controller committed its end before we saw it.
   Ids that were not used when the broker stopped are skipped.
2. `take` never waits. Where no id is at hand it raises COORDINATOR_LOAD_IN_PROGRESS, and clients ask again.
   `arrive` and `take_soon` first wait, for a moment only, for a block that is on its way: cheaper than a client's
   back-off.
3. The next block is asked for when 90 % of the current one are used; one request is in flight at a time, and after a
   failure the next one waits 50 ms. In-flight flag and back-off change together, so that no failure can leave the
   allocator asking never again (KAFKA-19990, KAFKA-20058).
4. A block that begins before the end of the one in use is refused: it would repeat ids (KAFKA-20031).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from twofold.runtime.api import Runtime
from twofold.types import ProducerId
from twofold.wire.errors import NONE, CoordinatorLoadInProgress, error_for
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsResponse

PREFETCH_AT = 0.9
RETRY_BACKOFF_S = 0.05
PATIENCE_S = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Block:
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


class ProducerIdBlocks:
    def __init__(self, request_block: Callable[[], Awaitable[AllocateProducerIdsResponse]], runtime: Runtime) -> None:
        self._request_block = request_block
        self._runtime = runtime
        self._block = Block(0, 0)
        self._next = 0
        self._following: Block | None = None
        self._in_flight = False
        self._retry_at = 0.0
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order in which they came

    def take(self) -> ProducerId:
        """The next producer id."""
        if self._next == self._block.end and self._following is not None:
            self._block, self._following = self._following, None
            self._next = self._block.start
        if self._next == self._block.end:
            self.prefetch()
            raise CoordinatorLoadInProgress("waiting for a block of producer ids from the controller")
        producer_id = ProducerId(self._next)
        self._next += 1
        if self._next - self._block.start >= PREFETCH_AT * self._block.length:
            self.prefetch()
        return producer_id

    @property
    def is_empty(self) -> bool:
        return self._next == self._block.end and self._following is None

    async def take_soon(self) -> ProducerId:
        """The next producer id, of the block that is on its way if need be."""
        await self.arrive()
        return self.take()

    async def arrive(self) -> None:
        """Return when an id is at hand, or when waiting for one would take longer than a moment."""
        if not self.is_empty:
            return
        self.prefetch()
        if not self._in_flight:
            return
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[arrival] = None
        timer = self._runtime.timers.call_later(PATIENCE_S, lambda: _end(arrival))
        try:
            await arrival
        finally:
            timer.cancel()
            del self._waiting[arrival]

    def prefetch(self) -> None:
        """Ask for the next block unless there is one, one is on its way, or the last try failed just now."""
        if self._following is not None or self._in_flight or self._runtime.clock.monotonic() < self._retry_at:
            return
        self._in_flight = True
        self._runtime.spawn(self._fetch(), name="producer id block")

    async def _fetch(self) -> None:
        retry_at = self._runtime.clock.monotonic() + RETRY_BACKOFF_S
        try:
            self._following = self._checked(await self._request_block())
            retry_at = 0.0
        except Exception as error:
            retry_at = self._runtime.clock.monotonic() + RETRY_BACKOFF_S
            logger.warning("no block of producer ids: %s; will ask again", error)
        finally:
            self._in_flight, self._retry_at = False, retry_at
            for arrival in self._waiting:
                _end(arrival)

    def _checked(self, response: AllocateProducerIdsResponse) -> Block:
        if response.error_code != NONE:
            raise error_for(response.error_code)("the controller gave none")
        block = Block(response.producer_id_start, response.producer_id_len)
        if block.length <= 0 or block.start < self._block.end:
            raise ValueError(
                f"ids {block.start} to {block.end} do not come after {self._block.end}, where the current block ends"
            )
        return block


def _end(arrival: "asyncio.Future[None]") -> None:
    if not arrival.done():
        arrival.set_result(None)
