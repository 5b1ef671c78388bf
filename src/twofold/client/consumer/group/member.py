"""A consumer in its group, with I/O: what a poll does about rounds and heartbeats, and what the application is told.

1. `step`, which every `poll` begins with, does what the application may see: it commits, calls the listener, and hands
   partitions over. JoinGroup, SyncGroup and heartbeats are tasks, which go on between two polls.
2. After a step, records may be handed out if `may_hand_out` says so, in the same turn of the event loop.
3. A consumer that does not poll for `max_poll_interval_ms` leaves the group, because another member may make use of its
   partitions.
4. Whatever the coordinator says is judged by `ClientMembership`; here is what follows from the verdict.
5. A poll may be cancelled at any point. What it has begun (a commit before a rebalance, a listener) goes on, and the
   next poll waits for that instead of beginning it again.
"""

import asyncio
import logging
from collections import deque

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.assignors import assignor_named
from twofold.client.consumer.fetcher import Fetcher
from twofold.client.consumer.group.calls import MemberCalls
from twofold.client.consumer.group.commits import Commits, CommitSource
from twofold.client.consumer.group.handover import Handover, words
from twofold.client.consumer.group.listener import Partitions
from twofold.client.consumer.group.membership import ClientMembership, Identity, common_protocol
from twofold.client.consumer.group.rounds import RoundHooks, Rounds
from twofold.client.consumer.group.signs import SignHooks, SignsOfLife
from twofold.client.consumer.group.states import AnswerVerdict, GroupRequest, MembershipState
from twofold.client.consumer.group.subscription import Subscription
from twofold.client.errors import CommitFailed, InstanceFenced
from twofold.connections.waiting import Deadline, done_within, spawn_shared
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
        self.handover = Handover(runtime, config, self.commits, self._failures, wake)
        self._step_over: asyncio.Future[None] | None = None
        self._is_leaving = False
        self._matching: asyncio.Task[None] | None = None
        self._reported: dict[str, str] = {}  # errors of subscribed topics that the application knows of
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
        if self.subscription is None or self._is_leaving:
            return
        self._is_leaving = True
        try:
            await self._leave(deadline, reason, commit=commit)
        finally:
            self._is_leaving = False
            self._end_here(reason)
            self.subscription = None
            self._reported.clear()
            self._rounds.forget()
            self._track()

    def enforce_rebalance(self, reason: str) -> None:
        self.membership.request_rejoin(reason)
        self._fetcher.news.set()

    def assigned(self) -> None:
        """The application assigns partitions itself: no member reads them."""
        self.membership.reads_as = Identity()

    def metadata(self) -> ConsumerGroupMetadata:
        """Of the generation whose partitions the application has, also when that is over: offsets in a transaction that
        name no generation are not fenced."""
        member_id, generation = self.membership.reads_as
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
        if self.subscription is None:
            return True
        is_free = not self.handover.is_telling and not self._is_leaving
        return is_free and self.membership.may_hand_out(self._runtime.clock.monotonic())

    def is_quiet(self) -> bool:
        """Whether a record may be handed out, and a step would have nothing else to do before the next is due. An
        application that asks takes records all the time: that counts as polling."""
        if self.subscription is None:
            return True
        membership = self.membership
        if not membership.is_at(MembershipState.STABLE) or membership.rejoin_reason:
            return False
        now = self._runtime.clock.monotonic()
        if self.handover.is_telling or not membership.may_hand_out(now) or membership.is_poll_overdue(now):
            return False
        membership.polled(now)
        return True

    def wait_s(self) -> float:
        """How long a poll may wait before it calls `step` again, when there is no news."""
        longest = self._config.max_poll_interval_ms / 2_000
        if self._config.auto_commits:
            longest = min(longest, self._config.auto_commit_interval_ms / 1000)
        if self.membership.needs_round or not self.may_hand_out():
            longest = min(longest, self._config.retry_backoff_max_ms / 1000)
        return longest

    async def step(self, patience_s: float) -> None:
        """Waits that long for a commit before a rebalance. Raises what the application has to know: of the group, of
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
        membership = self.membership
        now = self._runtime.clock.monotonic()
        if membership.is_poll_overdue(now):
            self._expire()
        membership.polled(now)
        await self.handover.told()
        await self._check_fenced()
        await self.commits.tell()
        self._look_at_metadata(subscription, now)
        if membership.may_commit:
            self.commits.commit_if_due(now)
        if membership.is_at(MembershipState.ASSIGNED):
            await self._take(self.subscription or subscription, deadline)
        if membership.needs_round and not self._is_leaving:
            await self._advance(self.subscription or subscription, deadline)
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
                await self.handover.tell(self.subscription.listener.on_partitions_lost, owned)
            raise self._fatal

    async def _advance(self, subscription: Subscription, deadline: Deadline) -> None:
        """Begin the round that is needed, as far as the application has to do with it."""
        now = self._runtime.clock.monotonic()
        if not self._rounds.may_begin(now):
            return
        if subscription.is_due(now, float("inf")):
            return  # a pattern that was never matched: there is nothing to ask for yet
        if not self.membership.is_at(MembershipState.PREPARED):
            await self._prepare(subscription, deadline)
        if self.membership.is_at(MembershipState.PREPARED) and self._rounds.may_begin(now) and not self._is_leaving:
            self._rounds.begin(subscription.topics)

    async def _prepare(self, subscription: Subscription, deadline: Deadline) -> None:
        membership = self.membership
        given = membership.prepare(tuple(self._fetcher.assigned), subscription.topics)
        if not given.is_lost and not await self.handover.committed(deadline):
            return
        if not membership.is_at(MembershipState.PREPARING):
            return  # the coordinator has said that the member is none: the next step tells what is lost

        def give_up() -> None:
            self._drop(given.partitions)
            if membership.is_at(MembershipState.PREPARING):
                membership.prepared()

        if not given.partitions:
            give_up()
            return
        listener = subscription.listener
        if given.is_lost:
            log.warning("group %r: %s belong to other members now", self._group, words(given.partitions))
        method = listener.on_partitions_lost if given.is_lost else listener.on_partitions_revoked
        await self.handover.tell(method, given.partitions, give_up)

    async def _take(self, subscription: Subscription, deadline: Deadline) -> None:
        """Hand the partitions of a new generation to the application."""
        membership = self.membership
        assigned = [tp for tp in self._rounds.assignment if tp.topic in subscription.topics]
        change = membership.change(tuple(self._fetcher.assigned), assigned)
        if change.revoked:
            if not await self.handover.committed(deadline) or not membership.is_at(MembershipState.ASSIGNED):
                return

            def give_up() -> None:
                self._drop(change.revoked)
                if membership.is_at(MembershipState.ASSIGNED):
                    membership.request_rejoin("partitions were revoked")

            await self.handover.tell(subscription.listener.on_partitions_revoked, change.revoked, give_up)
            if not membership.is_at(MembershipState.ASSIGNED) or self._is_leaving:
                return
        self._fetcher.assign(assigned, from_commit=True)
        self._track()
        membership.taken(change)
        log.info("group %r: generation %d has %s", self._group, membership.generation, words(assigned) or "nothing")
        await self.handover.tell(subscription.listener.on_partitions_assigned, change.added)

    def _drop(self, partitions: Partitions) -> None:
        gone = set(partitions)
        self._fetcher.assign([tp for tp in self._fetcher.assigned if tp not in gone], from_commit=True)

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
        if self._step_over is not None:  # of a poll in another task
            await done_within(self._runtime, self._step_over, deadline.remaining_s())
        await self.handover.finish_telling(deadline)
        await self._rounds.end()
        await self.handover.finish_committing(deadline)
        if commit and membership.may_commit:
            await self.commits.commit_before_rebalance(deadline)
        await self.commits.finish(deadline)
        while self._failures:  # of rounds that do not matter any more
            log.warning("group %r: %s", self._group, self._failures.popleft())
        owned = tuple(self._fetcher.assigned)
        listener = subscription.listener
        if owned:
            is_lost = not membership.has_generation
            await self.handover.tell(listener.on_partitions_lost if is_lost else listener.on_partitions_revoked, owned)
        member_id, may_leave = membership.member_id, self._may_leave
        self._end_here(reason, send=False)
        if may_leave:
            await self._leave_group(member_id, reason, deadline)
        if self._failures:
            raise self._failures.popleft()

    @property
    def _may_leave(self) -> bool:
        is_fenced = self.membership.is_at(MembershipState.FENCED)
        return bool(self.membership.member_id) and not self._is_static and not is_fenced

    def _end_here(self, reason: str, *, send: bool = True) -> None:
        """The end of the membership on this side, at once, also when the call that leaves was cancelled."""
        self.handover.cancel()
        self._rounds.cancel()
        self._signs.stop()
        self._fetcher.assign(())
        if send and self._may_leave:
            leave = self._leave_group(self.membership.member_id, reason, self._patience())
            spawn_shared(self._runtime, leave, name="leave the group")
        if not self.membership.is_at(MembershipState.FENCED):
            self.membership.dropped(forget=not self._is_static)

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
        """Join again when the subscription or the partitions of the group have changed. A topic that cannot be read is
        told to the application once."""
        max_age_s = self._config.metadata_max_age_ms / 1000
        if subscription.is_due(now, max_age_s) and self._matching is None:
            self._matching = spawn_shared(self._runtime, self._match(subscription), name="match topics")
        self._cluster.refresh_if_old()
        for topic in subscription.topics:
            error = self._cluster.cache.error_of(topic)
            if error is not None and not error.retriable and self._reported.get(topic) != error.name:
                self._reported[topic] = error.name
                self._failures.append(error)
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
