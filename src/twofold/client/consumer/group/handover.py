"""What the application has to do with a rebalance: the commit before partitions go, and its listener.

A poll may be cancelled at any point. A commit or a listener that it has begun goes on, and the next poll waits for that
instead of beginning it again.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from twofold.client.config import ConsumerConfig
from twofold.client.consumer.group.commits import Commits
from twofold.client.consumer.group.listener import Partitions
from twofold.client.errors import IllegalConsumerCall
from twofold.connections.waiting import Deadline, done_within, spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition

Listening = Callable[[Partitions], Awaitable[None] | None]


class Handover:
    """Of one member. `failures` gets what the listener raises: the group must not wait for it."""

    def __init__(
        self,
        runtime: Runtime,
        config: ConsumerConfig,
        commits: Commits,
        failures: deque[Exception],
        wake: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._commits = commits
        self._failures = failures
        self._wake = wake
        self._telling: _Telling | None = None
        self._committing: asyncio.Task[None] | None = None  # what is read, before partitions go

    @property
    def is_telling(self) -> bool:
        return self._telling is not None

    @property
    def is_committing(self) -> bool:
        return self._committing is not None

    async def committed(self, deadline: Deadline) -> bool:
        """Whether the automatic commit before partitions go is done, or has failed. One that takes longer than this
        poll may goes on: the next poll waits for it."""
        if not self._config.auto_commits:
            return True
        if self._committing is None:
            patience = Deadline(self._runtime.clock, self._config.request_timeout_ms, "request_timeout_ms")
            commit = self._commits.commit_before_rebalance(patience)
            self._committing = spawn_shared(self._runtime, commit, name="commit before a rebalance")
            await self._runtime.timers.sleep(0)
        if not await done_within(self._runtime, self._committing, deadline.remaining_s()):
            self._committing.add_done_callback(lambda _: self._wake())
            return False
        self._committing = None
        return True

    async def tell(self, method: Listening, partitions: Partitions, then: Callable[[], None] = lambda: None) -> None:
        """Call the listener, then `then`. A poll that is cancelled meanwhile cuts neither short."""
        telling = spawn_shared(self._runtime, self._call(method, partitions), name="tell the listener")
        self._telling = _Telling(telling, then)
        await self.told()

    async def told(self) -> None:
        """The listener has been told what it is being told."""
        telling = self._telling
        if telling is None:
            return
        await asyncio.wait((telling.task,))
        if self._telling is telling:
            self._telling = None
            telling.then()

    async def _call(self, method: Listening, partitions: Partitions) -> None:
        try:
            waits = method(tuple(sorted(partitions)))
            if inspect.isawaitable(waits):
                await waits
        except Exception as error:
            self._failures.append(error)

    def check_not_in_listener(self, call: str) -> None:
        if self._telling is not None and self._telling.task is asyncio.current_task():
            raise IllegalConsumerCall(f"a listener must not call {call}(): it runs inside a poll, close or unsubscribe")

    async def finish_telling(self, deadline: Deadline) -> None:
        """What a cancelled poll has begun; cut short when the deadline comes."""
        if self._telling is not None:
            if not await done_within(self._runtime, self._telling.task, deadline.remaining_s()):
                self._telling.task.cancel()
            await self.told()

    async def finish_committing(self, deadline: Deadline) -> None:
        if self._committing is not None:
            await done_within(self._runtime, self._committing, deadline.remaining_s())

    def cancel(self) -> None:
        if self._telling is not None:
            self._telling.task.cancel()
            self._telling = None
        if self._committing is not None:
            self._committing.cancel()
            self._committing = None


class _Telling(NamedTuple):
    """A listener that runs, and what follows when it is done."""

    task: asyncio.Task[None]
    then: Callable[[], None]


def words(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(tp) for tp in partitions)
