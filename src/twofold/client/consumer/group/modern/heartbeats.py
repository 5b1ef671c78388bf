"""Heartbeats of a member of the new protocol: a task from the first poll on until the member leaves or is removed.

1. One is on its way at a time. The broker says how long until the next; one that has something new to say leaves at
   once.
2. After one that failed the next waits for a pause that grows. One that had no answer in its time, or no connection,
   says nothing about the member.
3. They go on while the application works on its records. A member whose application does not poll for
   `max_poll_interval_ms` is overdue, whatever its heartbeats say.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from twofold.client.config import ConsumerConfig
from twofold.client.consumer.group.calls import MemberCalls
from twofold.client.consumer.group.modern.membership import EpochMembership, SentHeartbeat
from twofold.client.consumer.group.modern.states import EpochState
from twofold.connections.errors import GaveUp
from twofold.connections.waiting import spawn_shared
from twofold.runtime.api import Runtime
from twofold.wire.errors import KafkaError

log = logging.getLogger(__name__)


class EpochHooks(NamedTuple):
    """What the member does about them."""

    failed: Callable[[SentHeartbeat, KafkaError], None]  # an error that does not pass by itself
    overdue: Callable[[], None]  # the application has not polled for too long
    wake: Callable[[], None]


class EpochHeartbeats:
    """Of one member."""

    def __init__(
        self,
        runtime: Runtime,
        config: ConsumerConfig,
        calls: MemberCalls,
        membership: EpochMembership,
        hooks: EpochHooks,
    ) -> None:
        self.answered = 0  # how many were
        self._runtime = runtime
        self._config = config
        self._calls = calls
        self._membership = membership
        self._hooks = hooks
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._due = 0.0
        self._not_before = 0.0
        self._failures = 0

    def start(self) -> None:
        """Of a member that joins."""
        self.stop()
        self._task = spawn_shared(self._runtime, self._run(), name="group heartbeats")

    def stop(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None

    async def end(self) -> None:
        task = self._task
        self.stop()
        if task is not None:
            await asyncio.wait((task,))

    def look(self) -> None:
        """There may be something to say."""
        self._news.set()

    def ask(self) -> None:
        """The next one is due."""
        self._due = float("-inf")
        self._news.set()

    async def _run(self) -> None:
        membership = self._membership
        while not (membership.is_at(EpochState.UNJOINED) or membership.is_at(EpochState.FAILED)):
            self._news.clear()
            now = self._runtime.clock.monotonic()
            if membership.is_poll_overdue(now):
                self._hooks.overdue()
                return
            due = max(self._not_before, float("-inf") if membership.must_speak else self._due)
            if due <= now:
                await self._beat()
                continue
            timer = self._runtime.timers.call_later(min(due, membership.poll_expires_at()) - now, self._news.set)
            try:
                await self._news.wait()
            finally:
                timer.cancel()

    async def _beat(self) -> None:
        membership = self._membership
        sent, sent_at = membership.speak(), self._runtime.clock.monotonic()
        deadline = self._calls.deadline_of_heartbeat()
        try:
            response = await self._calls.speak(sent.request, deadline)
        except KafkaError as error:
            self._on_error(sent, error)
        else:
            membership.answered(sent, response, sent_at)
            self.answered += 1
            self._failures = 0
            self._due = sent_at + membership.heartbeat_interval_s
        finally:
            self._hooks.wake()

    def _on_error(self, sent: SentHeartbeat, error: KafkaError) -> None:
        self._failures += 1
        delay_s = self._config.retry_backoff.delay_s(self._failures, self._runtime.random)
        self._due = self._not_before = self._runtime.clock.monotonic() + delay_s
        # GaveUp: the time of this heartbeat is over. Whether it could not connect or had no answer, the next one may.
        if error.retriable or isinstance(error, GaveUp):
            log.debug("group %r: no answer to a heartbeat: %s", self._config.group_id, error)
            self._membership.unanswered(sent)
        else:
            self._hooks.failed(sent, error)
