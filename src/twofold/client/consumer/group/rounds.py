"""Rounds: JoinGroup, the leader's assignment, SyncGroup. A task that goes on between two polls.

1. A round begins when `poll` has prepared it and ends with an assignment, which `poll` hands to the application.
2. Every member may become the leader. The leader knows what all members are subscribed to, gives each its partitions,
   and joins again when a topic of the group gets more of them, or goes.
3. A round that failed is begun again by a later poll, after a pause that grows.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.assignors import Assignor
from twofold.client.consumer.group.calls import MemberCalls
from twofold.client.consumer.group.listener import Partitions
from twofold.client.consumer.group.membership import ClientMembership, Identity
from twofold.client.consumer.group.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from twofold.client.consumer.group.states import AnswerVerdict, GroupRequest, MembershipState
from twofold.connections.waiting import spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, MemberIdRequired
from twofold.wire.messages.join_group import JoinGroupResponse


class RoundHooks(NamedTuple):
    """What the member does about a round."""

    judge: Callable[[GroupRequest, KafkaError, Identity], AnswerVerdict]
    report: Callable[[Exception], None]  # to the application
    owned: Callable[[], Iterable[TopicPartition]]
    joined: Callable[[], None]  # there is a generation: heartbeats begin
    track: Callable[[], None]  # other topics than before are of interest
    wake: Callable[[], None]


class Rounds:
    """Of one member."""

    def __init__(
        self,
        runtime: Runtime,
        config: ConsumerConfig,
        cluster: Cluster,
        calls: MemberCalls,
        membership: ClientMembership,
        assignors: dict[str, Assignor],
        hooks: RoundHooks,
    ) -> None:
        self.assignment: Partitions = ()  # of the last round that succeeded
        self.led: dict[str, int] = {}  # the topics of the group with their partitions, as this leader assigned them
        self._joined_topics: frozenset[str] = frozenset()
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._calls = calls
        self._membership = membership
        self._assignors = assignors
        self._hooks = hooks
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = 0.0

    # The task

    def may_begin(self, now: float) -> bool:
        return self._task is None and now >= self._not_before

    def begin(self, topics: frozenset[str]) -> None:
        """Of a member that is prepared."""
        self._joined_topics = topics
        self._task = spawn_shared(self._runtime, self._run(), name="group round")

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def forget(self) -> None:
        """Of a member that has left."""
        self.assignment = ()
        self.led = {}

    def is_outdated(self, topics: frozenset[str]) -> str:
        """Why another round is needed: empty if it is not."""
        if topics != self._joined_topics:
            return "the subscription has changed"
        if self.led and self._counts(self.led) != self.led:
            return "partitions of the subscribed topics have changed"
        return ""

    async def _run(self) -> None:
        try:
            await self._join()
        except Exception as error:  # of an assignor, or a mistake of ours: the application hears of it
            self._hooks.report(error)
            if self._membership.is_at(MembershipState.JOINING):
                self._membership.again()
            elif self._membership.is_at(MembershipState.SYNCING):
                self._membership.dropped(forget=False)
            self._hold_back()
        finally:
            self._task = None
            self._hooks.wake()

    # What it does

    async def _join(self) -> None:
        membership = self._membership
        while membership.is_at(MembershipState.PREPARED):
            reason = membership.sent()
            sent = membership.identity
            try:
                response = await self._calls.join(sent.member_id, self._protocols(), reason)
            except KafkaError as error:
                self._on_error(GroupRequest.JOIN, error, sent)
                return
            if not membership.is_at(MembershipState.JOINING):
                return
            if response.error_code == MemberIdRequired.code:
                membership.take_member_id(response.member_id)
                continue
            membership.joined(Identity(response.member_id, response.generation_id))
            self._hooks.joined()
            await self._sync(response)

    def _protocols(self) -> list[tuple[str, bytes]]:
        generation = self._membership.generation
        owned = tuple(self._hooks.owned())
        return [
            (
                name,
                encode_subscription(
                    self._joined_topics,
                    user_data=assignor.user_data(generation),
                    owned=owned,
                    generation=generation,
                    rack=self._config.client_rack or None,
                ),
            )
            for name, assignor in self._assignors.items()
        ]

    async def _sync(self, response: JoinGroupResponse) -> None:
        membership = self._membership
        identity = membership.identity
        try:
            assignments = await self._lead(response)
            sent_at = self._runtime.clock.monotonic()
            answer = await self._calls.sync(identity, response.protocol_name, assignments)
            assignment = decode_assignment(answer.assignment)
        except KafkaError as error:
            self._on_error(GroupRequest.SYNC, error, identity)
            return
        if membership.is_at(MembershipState.SYNCING) and membership.identity == identity:
            membership.synced(sent_at)
            self.assignment = assignment
            self._failures = 0

    async def _lead(self, response: JoinGroupResponse) -> dict[str, bytes]:
        """The assignments of all members. None from a member that does not lead the group, or leads it again after a
        restart as a static member that changes nothing (KIP-814)."""
        self.led = {}
        if response.leader != response.member_id:
            return {}
        members = [decode_subscription(row.member_id, row.group_instance_id, row.metadata) for row in response.members]
        self.led = dict.fromkeys((topic for member in members for topic in member.topics), 0)
        self._hooks.track()
        await self._cluster.refresh(self._cluster.deadline(self._config.request_timeout_ms, "request_timeout_ms"))
        self.led = self._counts(self.led)
        if response.skip_assignment:
            return {}
        known = {topic: count for topic, count in self.led.items() if count}
        found = self._assignors[response.protocol_name or ""].assign(members, known)
        return {member: encode_assignment(partitions) for member, partitions in found.items()}

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        cached = {topic: self._cluster.cache.topic(topic) for topic in topics}
        return {topic: 0 if found is None else len(found.partitions) for topic, found in cached.items()}

    def _on_error(self, request: GroupRequest, error: KafkaError, sent: Identity) -> None:
        verdict = self._hooks.judge(request, error, sent)
        if verdict is AnswerVerdict.RAISE and not error.retriable:
            self._hooks.report(error)
        self._hold_back()

    def _hold_back(self) -> None:
        self._failures += 1
        delay_s = self._config.retry_backoff.delay_s(self._failures, self._runtime.random)
        self._not_before = self._runtime.clock.monotonic() + delay_s
