"""A consumer in its group, with I/O: what a poll does about rounds and heartbeats, and what the application is told.

1. `step`, which every `poll` begins with, does what the application may see: it commits, calls the listener, and hands
   partitions over. JoinGroup, SyncGroup and heartbeats are tasks, which go on between two polls.
2. After a step, records may be handed out if `may_hand_out` says so, in the same turn of the event loop.
3. A consumer that does not poll for `max_poll_interval_ms` leaves the group, because another member may make use of its
   partitions.
4. Whatever the coordinator says is judged by `ClientMembership`; here is what follows from the verdict.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.assignors import assignor_named
from twofold.client.consumer.fetcher import Fetcher
from twofold.client.consumer.group.calls import MemberCalls
from twofold.client.consumer.group.commits import Commits, CommitSource
from twofold.client.consumer.group.listener import Partitions
from twofold.client.consumer.group.membership import ClientMembership, Identity, common_protocol
from twofold.client.consumer.group.rounds import RoundHooks, Rounds
from twofold.client.consumer.group.signs import SignHooks, SignsOfLife
from twofold.client.consumer.group.states import AnswerVerdict, GroupRequest, MembershipState
from twofold.client.consumer.group.subscription import Subscription
from twofold.client.errors import CommitFailed, InstanceFenced
from twofold.connections.waiting import Deadline, spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import IllegalGeneration, KafkaError, RebalanceInProgress, UnknownMemberId

log = logging.getLogger(__name__)


class GroupMember:
    """Of one consumer that has a `group_id`. Without a subscription it only commits, for assigned partitions."""

    def __init__(self, runtime: Runtime, config: ConsumerConfig, cluster: Cluster, fetcher: Fetcher) -> None:
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._fetcher = fetcher
        self._group = config.group_id or ""
        self._is_static = config.group_instance_id is not None
        assignors = {name: assignor_named(name) for name in config.assignors}
        self.membership = ClientMembership(
            common_protocol(list(assignors.values())),
            config.session_timeout_ms / 1000,
            config.max_poll_interval_ms / 1000,
        )
        self.calls = MemberCalls(cluster, config)
        self.commits = Commits(runtime, config, self.calls, CommitSource(self._identity, self._refused, self.positions))
        self.subscription: Subscription | None = None
        self._failures: deque[Exception] = deque()
        self._fatal: KafkaError | None = None
        wake, report = fetcher.news.set, self._failures.append
        sign_hooks = SignHooks(self._judge, report, self._expire, wake)
        self._signs = SignsOfLife(runtime, config, self.calls, self.membership, sign_hooks)
        round_hooks = RoundHooks(self._judge, report, lambda: fetcher.assigned, self._signs.start, self._track, wake)
        self._rounds = Rounds(runtime, config, cluster, self.calls, self.membership, assignors, round_hooks)
        self._matching: asyncio.Task[None] | None = None
        self._tracked: frozenset[str] = frozenset()
        fetcher.positions.committed = self.calls.committed

    # The subscription

    def subscribe(self, subscription: Subscription) -> None:
        """The next step joins the group, or joins it again."""
        self.subscription = subscription
        self._track()
        self._fetcher.news.set()

    async def unsubscribe(self, deadline: Deadline, reason: str, *, commit: bool) -> None:
        """Leave the group. What the listener raises comes last."""
        if self.subscription is None:
            return
        try:
            await self._leave(deadline, reason, commit=commit)
        finally:
            self.subscription = None
            self._rounds.forget()
            self._track()

    def metadata(self) -> ConsumerGroupMetadata:
        member_id, generation = self.membership.identity if self.subscription is not None else Identity()
        return ConsumerGroupMetadata(self._group, generation, member_id, self._config.group_instance_id)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Of all assigned partitions that have one."""
        return {
            tp: OffsetAndMetadata(entry.position, "", entry.epoch)
            for tp, entry in self._fetcher.assigned.items()
            if entry.position is not None
        }

    # What a poll does

    def may_hand_out(self) -> bool:
        return self.subscription is None or self.membership.may_hand_out(self._runtime.clock.monotonic())

    def is_quiet(self) -> bool:
        """Whether records may be handed out, and a step would have nothing else to do before the next is due."""
        if self.subscription is None:
            return True
        membership = self.membership
        return membership.is_at(MembershipState.STABLE) and not membership.rejoin_reason and self.may_hand_out()

    def wait_s(self) -> float:
        """How long a poll may wait before it calls `step` again, when there is no news."""
        longest = self._config.max_poll_interval_ms / 2_000
        if self._config.auto_commits:
            longest = min(longest, self._config.auto_commit_interval_ms / 1000)
        if self.membership.needs_round or not self.may_hand_out():
            longest = min(longest, self._config.retry_backoff_max_ms / 1000)
        return longest

    async def step(self) -> None:
        """Raises what the application has to know: of the group, of its listener, of its callbacks."""
        if self.subscription is None:
            self.commits.commit_if_due(self._runtime.clock.monotonic())
            await self.commits.tell()
            return
        membership = self.membership
        now = self._runtime.clock.monotonic()
        if membership.is_poll_overdue(now):
            self._expire()
        membership.polled(now)
        await self._check_fenced()
        await self.commits.tell()
        self._look_at_metadata(self.subscription, now)
        if membership.may_commit:
            self.commits.commit_if_due(now)
        if membership.is_at(MembershipState.ASSIGNED):
            await self._take(self.subscription)
        if membership.needs_round:
            await self._advance(self.subscription)
        now = self._runtime.clock.monotonic()
        self._signs.ask_if_unsure(now)
        membership.polled(now)
        if self._failures:
            raise self._failures.popleft()

    async def _check_fenced(self) -> None:
        if self._fatal is not None:
            owned = tuple(self._fetcher.assigned)
            if owned and self.subscription is not None:
                self._fetcher.assign(())
                await self._tell(self.subscription.listener.on_partitions_lost, owned)
            raise self._fatal

    async def _advance(self, subscription: Subscription) -> None:
        """Begin the round that is needed, as far as the application has to do with it."""
        now = self._runtime.clock.monotonic()
        if not self._rounds.may_begin(now):
            return
        if subscription.is_due(now, float("inf")):
            return  # a pattern that was never matched: there is nothing to ask for yet
        if not self.membership.is_at(MembershipState.PREPARED):
            await self._prepare(subscription)
        if self.membership.is_at(MembershipState.PREPARED) and self._rounds.may_begin(now):
            self._rounds.begin(subscription.topics)

    async def _prepare(self, subscription: Subscription) -> None:
        membership = self.membership
        owned = tuple(self._fetcher.assigned)
        given = membership.prepare(owned, subscription.topics)
        if not given.is_lost:
            await self.commits.commit_before_rebalance(self._patience())
            if not membership.is_at(MembershipState.PREPARING):
                return  # the coordinator has said that the member is none: the next step tells what is lost
        if given.partitions:
            listener = subscription.listener
            if given.is_lost:
                log.warning("group %r: %s belong to other members now", self._group, _words(given.partitions))
            await self._tell(
                listener.on_partitions_lost if given.is_lost else listener.on_partitions_revoked, given.partitions
            )
            gone = set(given.partitions)
            self._fetcher.assign([tp for tp in owned if tp not in gone], from_commit=True)
        if membership.is_at(MembershipState.PREPARING):
            membership.prepared()

    async def _take(self, subscription: Subscription) -> None:
        """Hand the partitions of a new generation to the application."""
        membership = self.membership
        assigned = [tp for tp in self._rounds.assignment if tp.topic in subscription.topics]
        owned = tuple(self._fetcher.assigned)
        change = membership.change(owned, assigned)
        if change.revoked:
            await self.commits.commit_before_rebalance(self._patience())
            if not membership.is_at(MembershipState.ASSIGNED):
                return
            await self._tell(subscription.listener.on_partitions_revoked, change.revoked)
            gone = set(change.revoked)
            self._fetcher.assign([tp for tp in owned if tp not in gone], from_commit=True)
            if not membership.is_at(MembershipState.ASSIGNED):
                return
        self._fetcher.assign(assigned, from_commit=True)
        self._track()
        membership.taken(change)
        log.info("group %r: generation %d has %s", self._group, membership.generation, _words(assigned) or "nothing")
        await self._tell(subscription.listener.on_partitions_assigned, change.added)

    async def _tell(self, method: Callable[[Partitions], Awaitable[None] | None], partitions: Partitions) -> None:
        """What the listener raises is kept until the step is done: the group must not wait for it."""
        try:
            waits = method(tuple(sorted(partitions)))
            if inspect.isawaitable(waits):
                await waits
        except Exception as error:
            self._failures.append(error)

    # What the coordinator says

    def _judge(self, request: GroupRequest, error: KafkaError, sent: Identity) -> AnswerVerdict:
        verdict = self.membership.failed(request, error, sent)
        if verdict is AnswerVerdict.FENCED:
            self._signs.stop()
            self._fatal = InstanceFenced(
                f"another consumer has joined group {self._group!r} with group_instance_id="
                f"{self._config.group_instance_id!r}: close this one, or give it a group_instance_id of its own"
            )
            log.error("%s", self._fatal)
        elif verdict in (AnswerVerdict.RESET_GENERATION, AnswerVerdict.RESET_MEMBER):
            self._signs.stop()
            log.warning(
                "group %r: member %r is not in generation %d any more (%s): it joins again, and what it had is lost",
                self._group, sent.member_id, sent.generation, error.name,
            )  # fmt: skip
        self._fetcher.news.set()
        return verdict

    def _identity(self) -> Identity:
        """For a commit."""
        membership = self.membership
        if self.subscription is None:
            return Identity()
        if self._fatal is not None:
            raise self._fatal
        if membership.may_commit:
            return membership.identity
        if membership.is_in_round:
            raise RebalanceInProgress(
                f"group {self._group!r} rebalances: poll until it is done, then commit what is still assigned"
            )
        raise self._not_a_member()

    def _not_a_member(self) -> CommitFailed:
        config = self._config
        return CommitFailed(
            f"this consumer is not in its generation of group {self._group!r} any more, and other members may have its "
            f"partitions: nothing was committed, and poll joins again. Where that happens because records take long: "
            f"raise max_poll_interval_ms={config.max_poll_interval_ms}, or lower max_poll_records="
            f"{config.max_poll_records}"
        )

    def _refused(self, error: KafkaError, sent: Identity) -> KafkaError:
        """What an error of OffsetCommit means to the application."""
        if self.subscription is None and sent == Identity():
            if isinstance(error, UnknownMemberId | IllegalGeneration):
                return CommitFailed(
                    f"group {self._group!r} has members, and only they may commit: use another group_id for assigned "
                    "partitions"
                )
            return error
        verdict = self._judge(GroupRequest.COMMIT, error, sent)
        if verdict is AnswerVerdict.FENCED and self._fatal is not None:
            return self._fatal
        if isinstance(error, UnknownMemberId | IllegalGeneration):
            if verdict is AnswerVerdict.IGNORE and self.membership.is_in_round:
                return RebalanceInProgress(f"group {self._group!r} rebalances: {error}")
            return self._not_a_member()
        return error

    # Leaving

    def _expire(self) -> None:
        config, member_id = self._config, self.membership.member_id
        log.warning(
            "group %r: member %r has not polled for max_poll_interval_ms=%d and leaves: what it had goes to other "
            "members. Raise max_poll_interval_ms, or lower max_poll_records=%d",
            self._group, member_id, config.max_poll_interval_ms, config.max_poll_records,
        )  # fmt: skip
        self._signs.stop()
        self._rounds.cancel()
        self.membership.dropped(forget=not self._is_static)
        if not self._is_static:
            leave = self._leave_group(member_id, "it has not polled for max.poll.interval.ms", self._patience())
            spawn_shared(self._runtime, leave, name="leave the group")
        self._fetcher.news.set()

    async def _leave_group(self, member_id: str, reason: str, deadline: Deadline) -> None:
        try:
            await self.calls.leave(member_id, reason, deadline)
        except KafkaError as error:
            log.info("group %r: member %r could not leave, and is removed after its session: %s",
                     self._group, member_id, error)  # fmt: skip

    async def _leave(self, deadline: Deadline, reason: str, *, commit: bool) -> None:
        membership, subscription = self.membership, self.subscription
        assert subscription is not None
        await self._rounds.end()
        if commit and membership.may_commit:
            await self.commits.commit_before_rebalance(deadline)
        await self.commits.finish(deadline)
        owned = tuple(self._fetcher.assigned)
        listener = subscription.listener
        if owned:
            is_lost = not membership.has_generation
            await self._tell(listener.on_partitions_lost if is_lost else listener.on_partitions_revoked, owned)
        self._fetcher.assign(())
        self._signs.stop()
        member_id = membership.member_id
        if not membership.is_at(MembershipState.FENCED):
            membership.dropped(forget=not self._is_static)
            if member_id and not self._is_static:
                await self._leave_group(member_id, reason, deadline)
        if self._failures:
            raise self._failures.popleft()

    async def close(self, deadline: Deadline, *, commit: bool) -> None:
        try:
            if self.subscription is not None:
                await self.unsubscribe(deadline, "the consumer was closed", commit=commit)
            else:
                if commit:
                    await self.commits.commit_before_rebalance(deadline)
                await self.commits.finish(deadline)
        finally:
            if self._matching is not None:
                self._matching.cancel()
            self.calls.close()

    # Metadata

    def _look_at_metadata(self, subscription: Subscription, now: float) -> None:
        """Join again when the subscription or the partitions of the group have changed."""
        max_age_s = self._config.metadata_max_age_ms / 1000
        if subscription.is_due(now, max_age_s) and self._matching is None:
            self._matching = spawn_shared(self._runtime, self._match(subscription), name="match topics")
        self._cluster.refresh_if_old()
        reason = self._rounds.is_outdated(subscription.topics)
        if reason and self.membership.is_at(MembershipState.STABLE):
            self.membership.request_rejoin(reason)

    async def _match(self, subscription: Subscription) -> None:
        try:
            deadline = self._patience()
            connection = await self._cluster.any_connection(deadline)
            response = await self._cluster.fetch_metadata(connection, None, deadline)
            subscription.match(response, self._runtime.clock.monotonic())
            self._track()
        except KafkaError as error:
            log.debug("group %r: the topics could not be listed: %s", self._group, error)
            await self._runtime.timers.sleep(self._config.retry_backoff_ms / 1000)
        finally:
            self._matching = None
            self._fetcher.news.set()

    def _track(self) -> None:
        """Ask for the metadata of what is subscribed, read, or led."""
        topics = set() if self.subscription is None else set(self.subscription.topics)
        wanted = frozenset(topics | {tp.topic for tp in self._fetcher.assigned} | set(self._rounds.led))
        self._cluster.untrack(self._tracked - wanted)
        self._cluster.track(wanted)
        if wanted - self._tracked:
            self._cluster.invalidate()
        self._tracked = wanted

    def _patience(self) -> Deadline:
        return self._cluster.deadline(self._config.request_timeout_ms, "request_timeout_ms")


def _words(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(tp) for tp in partitions)
