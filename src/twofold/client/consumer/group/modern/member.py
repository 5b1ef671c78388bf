"""A consumer in a group of the new protocol (KIP-848), with I/O: what a poll does, and what the application is told.

1. `step`, which every `poll` begins with, does what the application may see: it commits, calls the listener, and hands
   partitions over. Heartbeats are a task, which goes on between two polls.
2. After a step, records may be handed out if `may_hand_out` says so, in the same turn of the event loop.
3. A consumer that does not poll for `max_poll_interval_ms` leaves the group, because another member may make use of its
   partitions.
4. Whatever the coordinator says is judged by `EpochMembership`; here is what follows from the verdict.
"""

import asyncio
import base64
import logging
import uuid
from collections import deque

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.fetcher import Fetcher
from twofold.client.consumer.group.calls import MemberCalls
from twofold.client.consumer.group.commits import Commits, CommitSource
from twofold.client.consumer.group.handover import Handover, words
from twofold.client.consumer.group.membership import Identity
from twofold.client.consumer.group.modern.heartbeats import EpochHeartbeats, EpochHooks
from twofold.client.consumer.group.modern.membership import (
    EpochMembership,
    MemberTerms,
    PartitionId,
    SentHeartbeat,
    WantedTopics,
    leaving,
)
from twofold.client.consumer.group.modern.names import TopicNames
from twofold.client.consumer.group.modern.retries import EpochCommits
from twofold.client.consumer.group.modern.states import EpochState, EpochVerdict
from twofold.client.consumer.group.subscription import Subscription
from twofold.client.errors import CommitFailed, IllegalConsumerCall, InstanceFenced
from twofold.connections.waiting import Deadline, done_within, spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalGeneration,
    KafkaError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
)

log = logging.getLogger(__name__)

_NOT_A_MEMBER = (UnknownMemberId, StaleMemberEpoch, FencedMemberEpoch, IllegalGeneration)


class ModernMember:
    """Of one consumer with a `group_id` and `group_protocol="consumer"`. Without a subscription it only commits."""

    def __init__(self, runtime: Runtime, config: ConsumerConfig, cluster: Cluster, fetcher: Fetcher) -> None:
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._fetcher = fetcher
        self._group = config.group_id or ""
        self.membership = EpochMembership(
            MemberTerms(
                self._group,
                _new_member_id(runtime),
                config.group_instance_id,
                config.client_rack or None,
                config.group_remote_assignor,
                config.max_poll_interval_ms,
                config.session_timeout_ms / 1000,
            )
        )
        self.calls = MemberCalls(cluster, config)
        hooks = EpochHooks(self._on_failed, self._expire, fetcher.news.set)
        self._heartbeats = EpochHeartbeats(runtime, config, self.calls, self.membership, hooks)
        sender = EpochCommits(runtime, config, self.calls, self.membership, self._heartbeats, lambda: fetcher.assigned)
        self.commits = Commits(runtime, config, sender, CommitSource(self._identity, self._refused, self.positions))
        self.subscription: Subscription | None = None
        self._failures: deque[Exception] = deque()
        self._fatal: KafkaError | None = None
        self.handover = Handover(runtime, config, self.commits, self._failures, fetcher.news.set)
        self._names = TopicNames(runtime, cluster, fetcher.news.set)
        self._partitions: dict[PartitionId, TopicPartition] = {}  # that the application has
        self._step_over: asyncio.Future[None] | None = None
        self._is_leaving = False
        self._reported: dict[str, str] = {}  # errors of subscribed topics that the application knows of
        self._tracked: frozenset[str] = frozenset()
        fetcher.positions.committed = self.calls.committed

    # The subscription

    def subscribe(self, subscription: Subscription) -> None:
        """The next step joins the group, or tells it."""
        self.subscription = subscription
        self.membership.wanted = WantedTopics(subscription.topics, subscription.pattern or "")
        self._track()
        self._heartbeats.look()
        self._fetcher.news.set()

    async def unsubscribe(self, deadline: Deadline, reason: str, *, commit: bool) -> None:
        """Leave the group. What the listener raises comes last."""
        if self.subscription is None or self._is_leaving:
            return
        self._is_leaving = True
        try:
            await self._leave(deadline, commit=commit)
        finally:
            self._is_leaving = False
            self._end_here()
            self.subscription = None
            self._reported.clear()
            self._track()

    def enforce_rebalance(self, reason: str) -> None:
        raise IllegalConsumerCall(
            "enforce_rebalance has no meaning with group_protocol='consumer': the broker assigns, and sees changes "
            "itself"
        )

    def assigned(self) -> None:
        """The application assigns partitions itself: no member reads them."""
        self.membership.reads_as = Identity()

    def metadata(self) -> ConsumerGroupMetadata:
        """Of the epoch in which the application has its partitions, also when that is over: offsets in a transaction
        that name no epoch are not fenced."""
        member_id, epoch = self.membership.reads_as
        return ConsumerGroupMetadata(self._group, epoch, member_id, self._config.group_instance_id)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Of all assigned partitions that have one."""
        return {
            tp: OffsetAndMetadata(entry.position, "", entry.epoch)
            for tp, entry in self._fetcher.assigned.items()
            if entry.position is not None
        }

    # What a poll does

    def may_hand_out(self) -> bool:
        if self.subscription is None:
            return True
        is_free = not (self.handover.is_telling or self.handover.is_committing or self._is_leaving)
        return is_free and self.membership.may_hand_out(self._runtime.clock.monotonic())

    def is_quiet(self) -> bool:
        """Whether a record may be handed out, and a step would have nothing else to do before the next is due. An
        application that asks takes records all the time: that counts as polling."""
        if self.subscription is None:
            return True
        membership, now = self.membership, self._runtime.clock.monotonic()
        is_settled = membership.is_at(EpochState.STABLE) or membership.is_at(EpochState.ACKNOWLEDGING)
        if not is_settled or not self.may_hand_out() or membership.is_poll_overdue(now):
            return False
        membership.polled(now)
        return True

    def wait_s(self) -> float:
        """How long a poll may wait before it calls `step` again, when there is no news."""
        longest = self._config.max_poll_interval_ms / 2_000
        if self._config.auto_commits:
            longest = min(longest, self._config.auto_commit_interval_ms / 1000)
        if not self.may_hand_out():
            longest = min(longest, self._config.retry_backoff_max_ms / 1000)
        return longest

    async def step(self, patience_s: float) -> None:
        """Waits that long for a commit before partitions go. Raises what the application has to know: of the group, of
        its listener, of its callbacks."""
        if self._is_leaving:
            return
        if self.subscription is None:
            self.commits.commit_if_due(self._runtime.clock.monotonic())
            await self.commits.tell()
            return
        over = self._step_over = asyncio.get_running_loop().create_future()
        try:
            await self._step(self.subscription, self._cluster.deadline(patience_s * 1000, "timeout_ms"))
        finally:
            over.set_result(None)
            self._step_over = None

    async def _step(self, subscription: Subscription, deadline: Deadline) -> None:
        membership, now = self.membership, self._runtime.clock.monotonic()
        if membership.is_poll_overdue(now):
            self._expire()
        membership.polled(now)
        await self.handover.told()
        await self._check_failed()
        await self.commits.tell()
        self._look_at_metadata(subscription)
        if membership.is_member:
            self.commits.commit_if_due(now)
        if membership.is_at(EpochState.UNJOINED) and not self._is_leaving:
            await self._join(self.subscription or subscription)
        if membership.is_at(EpochState.RECONCILING) and not self._is_leaving:
            await self._reconcile(self.subscription or subscription, deadline)
        now = self._runtime.clock.monotonic()
        if membership.must_ask(now):
            self._heartbeats.ask()
        else:
            self._heartbeats.look()
        membership.polled(now)
        if self._failures:
            raise self._failures.popleft()

    async def _check_failed(self) -> None:
        if self._fatal is not None:
            await self._lose()
            raise self._fatal

    async def _lose(self) -> None:
        """Tell that what is assigned belongs to others."""
        lost = tuple(self._fetcher.assigned)
        if lost and self.subscription is not None:
            log.warning("group %r: %s belong to other members now", self._group, words(lost))
            await self.handover.tell(self.subscription.listener.on_partitions_lost, lost, lambda: self._have({}))

    async def _join(self, subscription: Subscription) -> None:
        await self._lose()
        if self.membership.is_at(EpochState.UNJOINED) and not self._is_leaving:
            self.membership.join()
            self._heartbeats.start()

    async def _reconcile(self, subscription: Subscription, deadline: Deadline) -> None:
        """Give up what the coordinator does not want this member to have, then take what is new."""
        membership, listener = self.membership, subscription.listener
        revoked = membership.change(()).revoked
        if revoked:
            if not await self.handover.committed(deadline) or not membership.is_at(EpochState.RECONCILING):
                return

            def give_up() -> None:
                membership.gave_up(revoked)
                self._have({one: tp for one, tp in self._partitions.items() if one not in revoked})

            going = tuple(self._partitions[one] for one in revoked if one in self._partitions)
            await self.handover.tell(listener.on_partitions_revoked, going, give_up)
            if not membership.is_at(EpochState.RECONCILING) or self._is_leaving:
                return
        names = self._names.resolve(topic_id for topic_id, _ in membership.target)
        change = membership.change(one for one in membership.target if one[0] in names)
        if change.revoked:
            return  # the coordinator has changed its mind meanwhile: the next step gives up more
        added = {one: TopicPartition(names[one[0]], one[1]) for one in change.added}
        is_over = membership.took(change.added)
        self._have({**self._partitions, **added})
        if added or is_over:
            log.info("group %r: epoch %d has %s", self._group, membership.epoch,
                     words(self._partitions.values()) or "nothing")  # fmt: skip
            await self.handover.tell(listener.on_partitions_assigned, tuple(added.values()))

    def _have(self, partitions: dict[PartitionId, TopicPartition]) -> None:
        """The application has these and no others."""
        self._partitions = partitions
        self._fetcher.assign(partitions.values(), from_commit=True)
        subscription = self.subscription
        if subscription is not None and subscription.pattern is not None:
            subscription.topics = frozenset(tp.topic for tp in partitions.values())
        self._track()

    # What the coordinator says

    def _on_failed(self, sent: SentHeartbeat, error: KafkaError) -> None:
        epoch = self.membership.epoch
        verdict = self.membership.failed(sent, error)
        if verdict is EpochVerdict.FAIL:
            self._fatal = self._in_words(error)
            log.error("%s", self._fatal)
        elif verdict is EpochVerdict.TELL:
            self._failures.append(error)
        elif verdict is EpochVerdict.REJOIN:
            log.warning(
                "group %r: the coordinator does not know member %r at epoch %d any more (%s): it joins again, and what "
                "it had is lost", self._group, self.membership.terms.member_id, epoch, error.name,
            )  # fmt: skip

    def _in_words(self, error: KafkaError) -> KafkaError:
        instance = self._config.group_instance_id
        if isinstance(error, FencedInstanceId):
            return InstanceFenced(
                f"another consumer has joined group {self._group!r} with group_instance_id={instance!r}: close this "
                "one, or give it a group_instance_id of its own"
            )
        if isinstance(error, UnreleasedInstanceId):
            return InstanceFenced(
                f"group {self._group!r} has a member with group_instance_id={instance!r} already, or one that ended "
                "without close: wait until its session is over, or give this consumer a group_instance_id of its own"
            )
        return error

    def _identity(self) -> Identity:
        """For a commit."""
        if self.subscription is None:
            return Identity()
        if self._fatal is not None:
            raise self._fatal
        if self.membership.is_member:
            return self.membership.identity
        raise self._not_a_member()

    def _not_a_member(self) -> CommitFailed:
        config = self._config
        return CommitFailed(
            f"this consumer is no member of group {self._group!r} with the epoch in which it read, and other members "
            "may have its partitions: nothing was committed, and poll joins again. Where that happens because records "
            f"take long: raise max_poll_interval_ms={config.max_poll_interval_ms}, or lower max_poll_records="
            f"{config.max_poll_records}"
        )

    def _refused(self, error: KafkaError, sent: Identity) -> KafkaError:
        """What an error of OffsetCommit means to the application."""
        if not isinstance(error, _NOT_A_MEMBER):
            return error
        if sent == Identity():
            return CommitFailed(
                f"group {self._group!r} has members, and only they may commit: use another group_id for assigned "
                "partitions"
            )
        if isinstance(error, UnknownMemberId) and self.membership.refused(sent):
            self._fetcher.news.set()
        return self._not_a_member()

    # Leaving

    def _expire(self) -> None:
        config = self._config
        log.warning(
            "group %r: member %r has not polled for max_poll_interval_ms=%d and leaves: what it had goes to other "
            "members. Raise max_poll_interval_ms, or lower max_poll_records=%d",
            self._group, self.membership.terms.member_id, config.max_poll_interval_ms, config.max_poll_records,
        )  # fmt: skip
        self._heartbeats.stop()
        self.membership.dropped()
        spawn_shared(self._runtime, self._say_goodbye(self.calls.deadline_of_heartbeat()), name="leave the group")
        self._fetcher.news.set()

    async def _say_goodbye(self, deadline: Deadline) -> None:
        try:
            await self.calls.speak(leaving(self.membership.terms), deadline)
        except KafkaError as error:
            log.info("group %r: member %r could not leave, and is removed after its session: %s",
                     self._group, self.membership.terms.member_id, error)  # fmt: skip

    async def _leave(self, deadline: Deadline, *, commit: bool) -> None:
        membership, subscription = self.membership, self.subscription
        assert subscription is not None
        if self._step_over is not None:  # of a poll in another task
            await done_within(self._runtime, self._step_over, deadline.remaining_s())
        await self.handover.finish_telling(deadline)
        await self.handover.finish_committing(deadline)
        if commit and membership.is_member:
            await self.commits.commit_before_rebalance(deadline)
        await self.commits.finish(deadline)
        while self._failures:  # of assignments that do not matter any more
            log.warning("group %r: %s", self._group, self._failures.popleft())
        owned = tuple(self._fetcher.assigned)
        listener = subscription.listener
        if owned:
            is_lost = not membership.is_member
            await self.handover.tell(listener.on_partitions_lost if is_lost else listener.on_partitions_revoked, owned)
        await self._heartbeats.end()
        may_leave = self._may_leave
        self._end_here(send=False)
        if may_leave:
            await self._say_goodbye(deadline)
        if self._failures:
            raise self._failures.popleft()

    @property
    def _may_leave(self) -> bool:
        return not (self.membership.is_at(EpochState.UNJOINED) or self.membership.is_at(EpochState.FAILED))

    def _end_here(self, *, send: bool = True) -> None:
        """The end of the membership on this side, at once, also when the call that leaves was cancelled."""
        self.handover.cancel()
        self._heartbeats.stop()
        self._partitions = {}
        self._fetcher.assign(())
        if send and self._may_leave:
            spawn_shared(self._runtime, self._say_goodbye(self.calls.deadline_of_heartbeat()), name="leave the group")
        if not self.membership.is_at(EpochState.FAILED):
            self.membership.dropped()

    async def close(self, deadline: Deadline, *, commit: bool) -> None:
        try:
            if self.subscription is not None:
                await self.unsubscribe(deadline, "the consumer was closed", commit=commit)
            else:
                if commit:
                    await self.commits.commit_before_rebalance(deadline)
                await self.commits.finish(deadline)
        finally:
            self._names.cancel()
            self.calls.close()

    # Metadata

    def _look_at_metadata(self, subscription: Subscription) -> None:
        """A topic that cannot be read is told to the application once."""
        self._cluster.refresh_if_old()
        for topic in subscription.topics:
            error = self._cluster.cache.error_of(topic)
            if error is not None and not error.retriable and self._reported.get(topic) != error.name:
                self._reported[topic] = error.name
                self._failures.append(error)

    def _track(self) -> None:
        """Ask for the metadata of what is subscribed or read."""
        topics = frozenset() if self.subscription is None else self.subscription.topics
        wanted = topics | {tp.topic for tp in self._fetcher.assigned}
        self._cluster.untrack(self._tracked - wanted)
        self._cluster.track(wanted)
        if wanted - self._tracked:
            self._cluster.invalidate()
        self._tracked = wanted


def _new_member_id(runtime: Runtime) -> str:
    """22 characters of base64, as Apache Kafka's clients make them (KIP-1082)."""
    made = uuid.UUID(int=runtime.random.getrandbits(128), version=4)
    return base64.urlsafe_b64encode(made.bytes).decode().rstrip("=")
