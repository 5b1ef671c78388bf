"""The consumer for code without asyncio: the calls of `twofold.aio.Consumer` on a loop thread of its own.

    with twofold.Consumer(bootstrap_servers="127.0.0.1:9092", group_id="readers") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            print(record.value)

1. Heartbeats and fetches go on while the application works on its records.
2. One thread at a time may call. Any thread, and a signal handler, may call `wakeup`.
3. Listeners and the callbacks of commits run in the calling thread, inside its call, and may call the consumer.
4. Ctrl-C ends the call that waits. Records that had arrived by then are what the next `poll` returns.
5. A loop over the consumer polls batches, and a record counts as read when the loop gets it. A commit leaves out what
   is left of the batch. A call that sees or changes positions puts it back first: it is read again.
"""

import asyncio
import inspect
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.config import ConsumerConfig, ConsumerOptions, from_dotted, from_keywords
from twofold.client.consumer import consumer as aio
from twofold.client.consumer.calling import CallingThread, Interrupted
from twofold.client.consumer.consumer import (
    CLOSE_TIMEOUT_MS,
    ITERATION_POLL_MS,
    CommitCallback,
    ConsumerRecord,
    Offsets,
)
from twofold.client.consumer.group.listener import Partitions, RebalanceListener
from twofold.client.errors import IllegalConsumerCall, WokenUp
from twofold.client.loop_thread import LoopThread
from twofold.connections.errors import ClientClosed
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[aio.Consumer, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[Consumer, P], T]":
    @wraps(method)
    def call(self: "Consumer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda: method(self._core, *args, **kwargs))

    return call


def _at_positions(
    method: Callable[Concatenate[aio.Consumer, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[Consumer, P], T]":
    """The same for a call that sees positions or changes them."""

    @wraps(method)
    def call(self: "Consumer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda: method(self._core, *args, **kwargs), put_back=True)

    return call


def _on_loop(method: Callable[Concatenate[aio.Consumer, P], T]) -> "Callable[Concatenate[Consumer, P], T]":
    @wraps(method)
    def call(self: "Consumer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._at_once(lambda: method(self._core, *args, **kwargs), put_back=True)

    return call


class _CallersListener(RebalanceListener):
    """Runs the application's listener in the application's thread."""

    def __init__(self, listener: RebalanceListener, caller: CallingThread) -> None:
        self._listener = listener
        self._caller = caller

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        await self._tell(self._listener.on_partitions_revoked, partitions)

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        await self._tell(self._listener.on_partitions_assigned, partitions)

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        await self._tell(self._listener.on_partitions_lost, partitions)

    async def _tell(self, method: Callable[[Partitions], Awaitable[None] | None], partitions: Partitions) -> None:
        waits = await self._caller.in_caller(method, partitions)
        if inspect.isawaitable(waits):
            await waits


class Consumer:
    """`with Consumer(bootstrap_servers=...) as consumer`. Leaving the block closes it: see `close`."""

    def __init__(self, **options: Unpack[ConsumerOptions]) -> None:
        self._start(from_keywords(ConsumerConfig, options))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Consumer":
        """With Kafka's own names: `{"bootstrap.servers": "...", "group.id": "readers"}`."""
        consumer = cls.__new__(cls)
        consumer._start(from_dotted(ConsumerConfig, config))
        return consumer

    def _start(self, config: ConsumerConfig) -> None:
        self.config = config
        self._pid = os.getpid()
        self._in_use = threading.RLock()
        self._closed = False
        self._woken = False
        self._polling: asyncio.Task[Any] | None = None
        self._unread: deque[ConsumerRecord] = deque()  # polled, and not given to the loop over the consumer yet
        self._thread = LoopThread("twofold-consumer")
        self._core, self._loop = self._thread.run(_made(config))
        self._caller = CallingThread(self._loop)

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(lambda: self._core.__aexit__(kind, error, trace))

    def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """See `twofold.aio.Consumer.close`. May be called more than once."""
        self._close(lambda: self._core.close(timeout_ms))

    def _close(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._calling():  # a call that is refused closes nothing
            if self._closed:
                return
            self._check_not_in_listener("close")
            try:
                self._run(make, put_back=True)
            finally:
                self._closed = True
                self._thread.close()

    # Groups: see `twofold.aio.Consumer`, whose methods these are

    def subscribe(
        self, topics: Iterable[str] = (), *, pattern: str | None = None, listener: RebalanceListener | None = None
    ) -> None:
        """See `twofold.aio.Consumer.subscribe`. The listener runs in the thread that calls `poll`, inside `poll`."""
        told = None if listener is None else _CallersListener(listener, self._caller)
        self._at_once(lambda: self._core.subscribe(topics, pattern=pattern, listener=told), put_back=True)

    def unsubscribe(self) -> None:
        """See `twofold.aio.Consumer.unsubscribe`."""
        with self._calling():
            self._check_not_in_listener("unsubscribe")
            self._run(self._core.unsubscribe, put_back=True)

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed; of a pattern those that match as far as is known."""
        return self._at_once(lambda: self._core.subscription)

    def commit(self, offsets: Offsets | None = None) -> None:
        """See `twofold.aio.Consumer.commit`."""
        self._run(lambda: self._core.commit(self._to_commit(offsets)))

    def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> None:
        """See `twofold.aio.Consumer.commit_async`. The callback runs in the calling thread."""
        if callback is None:
            self._at_once(lambda: self._core.commit_async(self._to_commit(offsets)))
            return

        async def tell(done: Mapping[TopicPartition, OffsetAndMetadata], error: KafkaError | None) -> None:
            waits = await self._caller.in_caller(callback, done, error)
            if inspect.isawaitable(waits):
                await waits

        self._at_once(lambda: self._core.commit_async(self._to_commit(offsets), tell))

    def _to_commit(self, offsets: Offsets | None) -> Offsets | None:
        """On the loop: the positions, as far as the loop over the consumer has come."""
        if offsets is not None or not self._unread:
            return offsets
        positions = self._core._member("commit").positions()
        return positions | {tp: offset for tp, offset in self._first_unread().items() if tp in positions}

    committed = _blocking(aio.Consumer.committed)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """See `twofold.aio.Consumer.group_metadata`."""
        return self._at_once(self._core.group_metadata)

    enforce_rebalance = _on_loop(aio.Consumer.enforce_rebalance)

    # What to read, and from where

    assign = _on_loop(aio.Consumer.assign)

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        return self._at_once(lambda: self._core.assignment)

    seek = _on_loop(aio.Consumer.seek)
    seek_to_beginning = _on_loop(aio.Consumer.seek_to_beginning)
    seek_to_end = _on_loop(aio.Consumer.seek_to_end)
    seek_to_timestamp = _at_positions(aio.Consumer.seek_to_timestamp)
    position = _at_positions(aio.Consumer.position)
    pause = _on_loop(aio.Consumer.pause)
    resume = _on_loop(aio.Consumer.resume)

    # Reading

    def poll(self, timeout_ms: float = 0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records in the order of their partitions; empty when there were none within `timeout_ms`."""
        with self._calling():
            self._check_not_in_listener("poll")
            return self._run(lambda: self._poll(timeout_ms, max_records), put_back=True)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records without end."""
        while True:
            if not self._unread:
                self._run(self._fill)
            elif self._core._is_quiet():  # plain values of the loop's thread: no lock is needed to look at them
                yield self._unread.popleft()
            else:
                # The group wants something, or the rest of the batch may be another member's: a poll tells.
                yield from self.poll(ITERATION_POLL_MS, max_records=1)

    async def _fill(self) -> None:
        """On the loop, so that an interrupt of the thread loses nothing."""
        self._unread.extend(await self._poll(ITERATION_POLL_MS, None))

    def wakeup(self) -> None:
        """End the `poll` that waits, or else the next one, with WokenUp. Any thread may call it, and a signal
        handler. A listener that runs is not interrupted."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._woken = True
        if self._polling is not None and not self._caller.runs_a_function:
            self._polling.cancel()

    async def _poll(self, timeout_ms: float, max_records: int | None) -> list[ConsumerRecord]:
        self._check_woken()
        self._polling = asyncio.current_task()
        try:
            return await self._core.poll(timeout_ms, max_records=max_records)
        except asyncio.CancelledError:
            self._check_woken()
            raise
        finally:
            self._polling = None

    def _check_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise WokenUp("wakeup() was called")

    # Asking about offsets

    beginning_offsets = _blocking(aio.Consumer.beginning_offsets)
    end_offsets = _blocking(aio.Consumer.end_offsets)
    lag = _at_positions(aio.Consumer.lag)
    offsets_for_times = _blocking(aio.Consumer.offsets_for_times)
    partitions_for = _blocking(aio.Consumer.partitions_for)
    topic_id = _blocking(aio.Consumer.topic_id)

    # The loop

    def _run(self, make: Callable[[], Coroutine[Any, Any, T]], *, put_back: bool = False) -> T:
        async def call() -> T:
            if put_back and self._unread:
                self._put_back()
            return await make()

        with self._calling():
            if self._closed:
                raise ClientClosed("the consumer is closed")
            try:
                return self._caller.run(call())
            except Interrupted as interrupted:
                self._take_back(interrupted.result)
                raise interrupted.cause from None

    @contextmanager
    def _calling(self) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise IllegalConsumerCall("this process was forked from the one that made the consumer: make another here")
        if not self._in_use.acquire(blocking=False):
            raise IllegalConsumerCall("another thread is in a call of this consumer: it may only call wakeup()")
        try:
            yield
        finally:
            self._in_use.release()

    def _check_not_in_listener(self, call: str) -> None:
        if self._caller.is_in_function:
            raise IllegalConsumerCall(
                f"a listener or a callback must not call {call}(): it runs inside another call of the consumer"
            )

    def _at_once(self, function: Callable[[], T], *, put_back: bool = False) -> T:
        async def call() -> T:
            return function()

        return self._run(call, put_back=put_back)

    def _take_back(self, result: object) -> None:
        """What a poll had found when it was interrupted."""
        if isinstance(result, list):
            self._unread.extend(record for record in result if isinstance(record, ConsumerRecord))

    def _put_back(self) -> None:
        """On the loop: what is unread is polled again."""
        first = self._first_unread()
        self._unread.clear()
        for tp, offset in first.items():
            if tp in self._core.assignment:
                self._core.seek(tp, offset)

    def _first_unread(self) -> dict[TopicPartition, OffsetAndMetadata]:
        first: dict[TopicPartition, OffsetAndMetadata] = {}
        for record in self._unread:
            offset = OffsetAndMetadata(record.offset, leader_epoch=record.leader_epoch)
            first.setdefault(TopicPartition(record.topic, record.partition), offset)
        return first


async def _made(config: ConsumerConfig) -> tuple[aio.Consumer, asyncio.AbstractEventLoop]:
    """On the loop that it is going to use."""
    return aio.Consumer.of(config), asyncio.get_running_loop()
