"""Commits of a consumer's offsets: those that are awaited, those that are not, and the automatic ones.

1. Commits take effect in the order in which they were asked for: one is on its way at a time.
2. A commit belongs to the generation of its call. The coordinator refuses it when that generation is over, so that a
   member that was replaced cannot overwrite the offsets of its successor.
3. Callbacks run inside `poll`, `commit` and `close`, never in between.
4. An automatic commit has the positions at the beginning of a `poll`: everything that earlier calls returned.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from twofold.client.admin.group_model import OffsetAndMetadata
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.group.calls import Patience
from twofold.client.consumer.group.membership import Identity
from twofold.client.errors import CommitFailed
from twofold.connections.errors import ClientClosed
from twofold.connections.waiting import Deadline, done_within, spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, RebalanceInProgress

log = logging.getLogger(__name__)

MAX_PENDING = 1_000
"""So many commits may wait for their turn before `commit_async` refuses another."""

CommitOffsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[CommitOffsets, KafkaError | None], Awaitable[None] | None]


class CommitSender(Protocol):
    async def commit(
        self, identity: Identity, offsets: CommitOffsets, deadline: Deadline, patience: Patience
    ) -> None: ...


class CommitSource(NamedTuple):
    """What commits need of the consumer."""

    identity: Callable[[], Identity]  # raises what keeps the consumer from committing now
    refused: Callable[[KafkaError, Identity], KafkaError]  # what an error of the coordinator means
    positions: Callable[[], dict[TopicPartition, OffsetAndMetadata]]


class _Done(NamedTuple):
    callback: CommitCallback | None
    offsets: CommitOffsets
    error: KafkaError | None


class _Turn:
    """The place of a commit among those that were asked for before and after it."""

    __slots__ = ("_before", "over")

    def __init__(self, before: "asyncio.Future[None] | None") -> None:
        self._before = before
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def comes(self, runtime: Runtime, deadline: Deadline) -> None:
        if self._before is not None and not await done_within(runtime, self._before, deadline.remaining_s()):
            raise deadline.gave_up("a commit that was asked for earlier")

    def end(self) -> None:
        """Also of a commit that was cancelled before its turn came: the next one still waits for those before it."""
        if self._before is None or self._before.done():
            _complete(self.over)
        else:
            self._before.add_done_callback(lambda _: _complete(self.over))


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Commits:
    """Of one consumer."""

    def __init__(self, runtime: Runtime, config: ConsumerConfig, calls: CommitSender, source: CommitSource) -> None:
        self._runtime = runtime
        self._config = config
        self._calls = calls
        self._source = source
        self._last: asyncio.Future[None] | None = None  # done when all commits so far are
        self._pending: set[asyncio.Task[None]] = set()
        self._done: deque[_Done] = deque()
        self._next_auto = runtime.clock.monotonic() + config.auto_commit_interval_ms / 1000

    async def commit(self, offsets: CommitOffsets, deadline: Deadline) -> None:
        """Until it is done or has failed for good. To commit nothing is no error, whatever the group does meanwhile."""
        if offsets:
            await self._commit(offsets, deadline)
        await self.tell()

    async def _commit(self, offsets: CommitOffsets, deadline: Deadline, *, patience: Patience = Patience.FULL) -> None:
        identity = self._source.identity()
        turn = self._take_turn()
        try:
            await turn.comes(self._runtime, deadline)
            await self._send(identity, offsets, deadline, patience)
        finally:
            turn.end()

    def commit_soon(self, offsets: CommitOffsets, callback: CommitCallback | None, deadline: Deadline) -> None:
        """One attempt, of which the callback hears."""
        try:
            if len(self._pending) >= MAX_PENDING:
                raise CommitFailed(f"{MAX_PENDING} commits wait for the coordinator: this one is not sent")
            identity = self._source.identity()
        except KafkaError as error:
            self._done.append(_Done(callback, offsets, error))
            return

        turn = self._take_turn()

        async def attempt() -> None:
            error: KafkaError | None = None
            try:
                await turn.comes(self._runtime, deadline)
                await self._send(identity, offsets, deadline, Patience.NONE)
            except KafkaError as caught:
                error = caught
            except asyncio.CancelledError:
                error = ClientClosed("the consumer was closed before the coordinator answered this commit")
                raise
            finally:
                self._done.append(_Done(callback, offsets, error))

        task = spawn_shared(self._runtime, attempt(), name="consumer commits")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        task.add_done_callback(lambda _: turn.end())

    def _take_turn(self) -> "_Turn":
        turn = _Turn(self._last)
        self._last = turn.over
        return turn

    async def _send(self, identity: Identity, offsets: CommitOffsets, deadline: Deadline, patience: Patience) -> None:
        if not offsets:
            return
        try:
            await self._calls.commit(identity, offsets, deadline, patience)
        except KafkaError as error:
            raise self._source.refused(error, identity) from error

    async def tell(self) -> None:
        """Call the callbacks of the commits that are done."""
        while self._done:
            callback, offsets, error = self._done.popleft()
            if callback is not None:
                waits = callback(offsets, error)
                if inspect.isawaitable(waits):
                    await waits
            elif error is not None:
                log.warning("offsets %s were not committed: %s", _words(offsets), error)

    # Automatic ones

    def commit_if_due(self, now: float) -> None:
        """Called at the beginning of a poll."""
        if not self._config.auto_commits or now < self._next_auto:
            return
        self._next_auto = now + self._config.auto_commit_interval_ms / 1000
        offsets = self._source.positions()
        if offsets:
            deadline = Deadline(self._runtime.clock, self._config.request_timeout_ms, "request_timeout_ms")
            self.commit_soon(offsets, self._on_automatic, deadline)

    async def commit_before_rebalance(self, deadline: Deadline) -> None:
        """What was read so far, where commits are automatic. A failure is no reason to keep the group waiting, and
        neither is a topic that was deleted."""
        offsets = self._source.positions() if self._config.auto_commits else {}
        if not offsets:
            return
        try:
            await self._commit(offsets, deadline, patience=Patience.WITHOUT_TOPICS)
        except KafkaError as error:
            self._on_automatic(offsets, error)

    def _on_automatic(self, offsets: CommitOffsets, error: KafkaError | None) -> None:
        if error is None:
            return
        if error.retriable or isinstance(error, RebalanceInProgress):
            log.debug("the automatic commit of %s failed: %s", _words(offsets), error)
            self._next_auto = min(
                self._next_auto, self._runtime.clock.monotonic() + self._config.retry_backoff_ms / 1000
            )
        else:
            log.warning("the automatic commit of %s failed: %s", _words(offsets), error)

    async def finish(self, deadline: Deadline) -> None:
        """Wait for what is on its way, and tell of it."""
        pending = list(self._pending)
        if pending:
            await done_within(self._runtime, asyncio.gather(*pending, return_exceptions=True), deadline.remaining_s())
        left = list(self._pending)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        await self.tell()


def _words(offsets: CommitOffsets) -> str:
    return ", ".join(f"{tp}: {row.offset}" for tp, row in offsets.items())
