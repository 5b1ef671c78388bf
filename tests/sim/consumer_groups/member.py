"""Members of a group that the coordinator assigns: those of the new protocol, as simple as it allows, and classic ones
beside them.

A member owns a partition, by its own belief, from the answer that gives it until it decides to give it up, which it
says in its next heartbeat. Until then it commits, also for what it was told to give up.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

from sim.broker.watch import require
from sim.consumer_groups.beliefs import Belief
from sim.consumer_groups.check import ConsumerHistory
from sim.consumer_groups.plan import SeatPlan
from sim.groups.check import GROUP
from sim.groups.member import GroupMember, Place, assignment, spread
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    IllegalGeneration,
    KafkaError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    raise_for,
)
from twofold.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from twofold.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from twofold.wire.messages.sync_group import SyncGroupRequestAssignment

JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
Partitions = frozenset[TopicPartition]
_LOST_ITS_PLACE = (UnknownMemberId, FencedMemberEpoch, GroupIdNotFound)
_REFUSED = (UnknownMemberId, FencedMemberEpoch, GroupIdNotFound, StaleMemberEpoch, IllegalGeneration)
_ASKS_FIRST = (StaleMemberEpoch, IllegalGeneration)


class Seat(GroupMember):
    """What members of both protocols share here."""

    is_classic = True

    def __init__(self, runtime: Runtime, plan: SeatPlan, history: ConsumerHistory, name: str, bootstrap: str) -> None:
        super().__init__(runtime, plan, history, name, bootstrap)
        self._seat = plan
        self._grants = history
        self._before: Place | None = None
        """What it had and has no more: a thread that is late may still commit it."""

    def belief(self) -> Belief | None:
        place = self.place
        if place is None:
            return None
        return Belief(self._name, place.member_id, self.is_classic, place.generation, frozenset(place.owned))

    async def _commit_late(self) -> None:
        before, place = self._before, self.place
        if before is None or place is None or before.generation >= place.generation or self._random.random() < 0.7:
            return
        self._before = None
        with suppress(*_REFUSED):
            await self._commit(before)

    def _next_commit(self, tp: TopicPartition, place: Place) -> int:
        return self._grants.next_commit(tp, self._grants.grant_of(tp, place.member_id))


class ClassicSeat(Seat):
    """Gives up everything before it joins. Where it leads, its assignment is one that an upgrade can take over."""

    async def _fetch(self, place: Place) -> None:
        self._grants.look()
        await super()._fetch(place)

    def _assign(self, members: Sequence[Any]) -> list[SyncGroupRequestAssignment]:
        names = sorted(member.member_id for member in members)
        self._random.shuffle(names)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment(owned, b""))
            for member_id, owned in spread(names, self._history.partitions).items()
        ]


class ModernSeat(Seat):
    """Its place has the epoch for a generation, and no leader."""

    is_classic = False

    def __init__(
        self,
        runtime: Runtime,
        plan: SeatPlan,
        history: ConsumerHistory,
        name: str,
        bootstrap: str,
        topic_ids: Mapping[str, UUID],
    ) -> None:
        super().__init__(runtime, plan, history, name, bootstrap)
        self._topic_ids = topic_ids
        self._topic_names = {topic_id: topic for topic, topic_id in topic_ids.items()}
        self._told: Partitions = frozenset()
        self._said: Partitions | None = None
        """What the coordinator knows of what it owns; None where an answer is missing."""
        self._beat_s = 0.0
        self._new_id()

    def _new_id(self) -> None:
        """Clients of version 1 make their ids (KIP-1082)."""
        by_client = self._seat.heartbeat_version >= 1
        self._member_id = f"{self._name} {self._random.getrandbits(40):010x}" if by_client else ""

    # Heartbeats

    async def _join(self) -> Place:
        self._told, self._said = frozenset(), None
        answer = await self._say(JOINS, frozenset(), is_full=True)
        require(answer.member_epoch > JOINS, f"{self._name} has joined in epoch {answer.member_epoch}")
        self._member_id = answer.member_id or self._member_id
        self._told, self._said = self._assigned(answer) or frozenset(), frozenset()
        return Place(self._member_id, answer.member_epoch, "", ())

    async def _say(self, epoch: int, owned: Partitions, *, is_full: bool) -> ConsumerGroupHeartbeatResponse:
        plan = self._seat
        names = sorted(self._topic_ids)
        by_pattern = plan.heartbeat_version >= 1 and bool(plan.pattern)
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=epoch,
            instance_id=plan.instance_id,
            rebalance_timeout_ms=plan.rebalance_timeout_ms if is_full else -1,
            subscribed_topic_names=names if is_full and not by_pattern else None,
            subscribed_topic_regex=plan.pattern if is_full and by_pattern else None,
            server_assignor=plan.assignor if is_full else None,
            topic_partitions=self._rows(owned) if is_full or owned != self._said else None,
        )
        self._said = None
        version = plan.heartbeat_version
        answer: ConsumerGroupHeartbeatResponse = await self._ask(request, "ConsumerGroupHeartbeat", version=version)
        raise_for(answer.error_code, "ConsumerGroupHeartbeat")
        self._said = owned
        self._beat_s = answer.heartbeat_interval_ms / 1000
        return answer

    def _rows(self, owned: Partitions) -> list[TopicPartitions]:
        return [
            TopicPartitions(topic_id=topic_id, partitions=sorted(tp.partition for tp in owned if tp.topic == name))
            for name, topic_id in sorted(self._topic_ids.items())
            if any(tp.topic == name for tp in owned)
        ]

    def _assigned(self, answer: ConsumerGroupHeartbeatResponse) -> Partitions | None:
        if answer.assignment is None:
            return None
        return frozenset(
            TopicPartition(self._topic_names[row.topic_id], index)
            for row in answer.assignment.topic_partitions
            if row.topic_id is not None
            for index in row.partitions
        )

    async def _beat(self) -> None:
        place = self.place
        assert place is not None
        answer = await self._say(place.generation, frozenset(place.owned), is_full=self._said is None)
        if self.place is not place:
            return
        told = self._assigned(answer)
        require(
            answer.member_epoch >= place.generation,
            f"{self._name} was told of epoch {answer.member_epoch} after {place.generation}",
        )
        self.place = replace(place, generation=answer.member_epoch)
        self._told = self._told if told is None else told

    # Working

    async def _work(self, place: Place) -> None:
        clock = self._runtime.clock
        next_beat = clock.monotonic()
        while not self.leaving:
            assert self.place is not None
            owned = frozenset(self.place.owned)
            if self._told != owned:
                await self._reconcile(owned)
                next_beat = clock.monotonic()
            if self._said is None or clock.monotonic() >= next_beat:
                if self.place.owned and self._random.random() < 0.2:
                    await self._commit(self.place)  # after a pause, before it can know what has become of it
                await self._beat()
                next_beat = clock.monotonic() + self._beat_s
                continue
            until_beat = max(0.001, next_beat - clock.monotonic())  # less may be no step of the clock at all
            await self._sleep(min(until_beat, self._random.uniform(0.5, 1.5) * self.plan.commit_pause_s))
            await self._commit_late()
            if self.place.owned and self._random.random() < 0.8:
                await self._commit(self.place)

    async def _reconcile(self, owned: Partitions) -> None:
        """Finish what goes, and say so first; then take what is new, from where the last owner has committed."""
        assert self.place is not None
        gone = owned - self._told
        if gone:
            if self._random.random() < 0.5:
                await self._sleep(self._random.uniform(0, 0.3))
            if self._random.random() < 0.7:
                await self._commit(self.place)
            self._before = replace(self.place, owned=tuple(sorted(gone)))
            self._own(owned - gone)
            return
        added = self._told - owned
        self._own(self._told)
        try:
            await self._fetch(replace(self.place, owned=tuple(sorted(added))))
        except KafkaError:
            self._own(owned)  # it does not know where to begin: it takes them later
            raise

    def _own(self, owned: Partitions) -> None:
        assert self.place is not None
        self.place = replace(self.place, owned=tuple(sorted(owned)))
        self._grants.look()

    def _asked_for(self, place: Place, topics: list[OffsetFetchRequestTopics]) -> OffsetFetchRequestGroup:
        return OffsetFetchRequestGroup(
            group_id=GROUP, topics=topics, member_id=place.member_id, member_epoch=place.generation
        )

    # Trouble

    def _recover(self, error: KafkaError) -> None:
        if isinstance(error, _LOST_ITS_PLACE):
            before = self.place or self._before
            self._before, self.place = before if before is not None and before.owned else None, None
        elif isinstance(error, FencedInstanceId):
            self._before = self.place = None
            self._new_id()
        elif isinstance(error, UnreleasedInstanceId):
            require(self.place is None, f"{self._name} has its place and was told {error!r}")
        elif isinstance(error, _ASKS_FIRST):
            self._said = None
        else:
            self._said = None
            super()._recover(error)

    async def _leave(self) -> None:
        self.place = None
        if not self._member_id:
            return
        for_a_while = self.plan.instance_id is not None and self._random.random() < 0.7
        with suppress(KafkaError):  # then it is not heard of again, which is good enough
            await self._say(LEAVES_FOR_A_WHILE if for_a_while else LEAVES, frozenset(), is_full=False)


def beliefs(seats: Iterable[GroupMember]) -> list[Belief]:
    found = (seat.belief() for seat in seats if isinstance(seat, Seat))
    return [belief for belief in found if belief is not None]
