"""Signs of life of a member: heartbeats to the coordinator, and polls of the application.

1. Heartbeats go on in the background, also while a round waits for other members: their answers say that the member
   still is one.
2. A member that may have been replaced without knowing (its process was stopped, or the coordinator was silent) asks at
   once when the application polls.
3. A member whose application does not poll for `max_poll_interval_ms` is overdue, whatever its heartbeats say.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from twofold.client.config import ConsumerConfig
from twofold.client.consumer.group.calls import MemberCalls
from twofold.client.consumer.group.membership import ClientMembership, Identity
from twofold.client.consumer.group.states import AnswerVerdict, GroupRequest
from twofold.client.transactions.heartbeats import Heartbeats
from twofold.connections.waiting import spawn_shared
from twofold.runtime.api import Runtime, TimerHandle
from twofold.wire.errors import KafkaError, RebalanceInProgress

log = logging.getLogger(__name__)


class SignHooks(NamedTuple):
    """What the member does about them."""

    judge: Callable[[GroupRequest, KafkaError, Identity], AnswerVerdict]
    report: Callable[[Exception], None]  # to the application
    overdue: Callable[[], None]  # the application has not polled for too long
    wake: Callable[[], None]


class SignsOfLife:
    """Of one member."""

    def __init__(
        self,
        runtime: Runtime,
        config: ConsumerConfig,
        calls: MemberCalls,
        membership: ClientMembership,
        hooks: SignHooks,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._calls = calls
        self._membership = membership
        self._hooks = hooks
        self._heartbeats = Heartbeats(runtime, config.heartbeat_interval_ms / 1000, self._beat, "group heartbeats")
        self._is_asking = False
        self._not_before = 0.0
        self._watch: TimerHandle | None = None

    def start(self) -> None:
        """When there is a generation."""
        self._heartbeats.start()
        if self._watch is None:
            delay_s = self._membership.poll_expires_at() - self._runtime.clock.monotonic()
            self._watch = self._runtime.timers.call_later(max(0.0, delay_s), self._on_watch)

    def stop(self) -> None:
        self._heartbeats.stop()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def ask_if_unsure(self, now: float) -> None:
        """Called by every poll."""
        if self._membership.must_ask(now) and not self._is_asking and now >= self._not_before:
            spawn_shared(self._runtime, self._beat(), name="a heartbeat before records are handed out")

    def _on_watch(self) -> None:
        self._watch = None
        if self._membership.is_poll_overdue(self._runtime.clock.monotonic()):
            self._hooks.overdue()
        elif self._membership.has_generation:
            self.start()

    async def _beat(self) -> bool:
        """Whether the next one comes after the usual time."""
        membership = self._membership
        if self._is_asking or not membership.has_generation:
            return True
        sent, sent_at = membership.identity, self._runtime.clock.monotonic()
        self._is_asking = True
        try:
            await self._calls.heartbeat(sent)
        except KafkaError as error:
            return self._on_error(error, sent, sent_at)
        finally:
            self._is_asking = False
            self._hooks.wake()
        membership.heard(sent, sent_at)
        return True

    def _on_error(self, error: KafkaError, sent: Identity, sent_at: float) -> bool:
        self._not_before = self._runtime.clock.monotonic() + self._config.retry_backoff_ms / 1000
        if error.retriable:
            log.debug("group %r: no answer to a heartbeat: %s", self._config.group_id, error)
            return False
        if isinstance(error, RebalanceInProgress):
            self._membership.heard(sent, sent_at, rebalancing=True)  # said to members only
        if self._hooks.judge(GroupRequest.HEARTBEAT, error, sent) is AnswerVerdict.RAISE:
            self._hooks.report(error)
        return True
