"""What must hold of a group whose coordinator assigns, learnt from what members believe and the coordinator writes.

1. At every write and every answer a partition has one member that owns it by its own belief, and the coordinator's
   log says that it holds the partition. Members that were removed do not count: their commits are refused.
2. A commit is refused once the partition was given to another member before the commit was sent. Offsets only grow:
   who takes a partition over begins where the last acknowledged commit ended, and nothing below is read again.
3. Epochs never go back: of a group, of its target, of a member; nor when a group changes its type with its members.
4. What was written is what is loaded (`GroupWatch`). After a power cut it is at least what members were told, if the
   log is synced before an answer.
5. No deadline of a member ends before its time, on a clock that does not jump.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from unittest.mock import patch
from uuid import UUID

from sim.broker.watch import require
from sim.consumer_groups.beliefs import Belief
from sim.groups.check import GROUP, GroupHistory, GroupWatch
from twofold.broker.coordinators.groups.shard import GroupShard
from twofold.client.admin.group_model import read_assignment
from twofold.coordinator.group.consumer.groups import ConsumerGroups
from twofold.coordinator.group.consumer.state import LEFT_FOR_A_WHILE, ConsumerGroup, ConsumerMember
from twofold.coordinator.group.records import GroupValue
from twofold.coordinator.group.state import GroupsState
from twofold.types import TopicPartition

Owners = Mapping[TopicPartition, str]


class ConsumerHistory(GroupHistory):
    """The place of a generation takes the grant: each partition that the coordinator gives to a member has a number."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        super().__init__(partitions)
        self.grants: dict[TopicPartition, list[tuple[int, str]]] = {tp: [(0, "")] for tp in self.partitions}
        self.look: Callable[[], None] = lambda: None
        """Somebody believes something new."""

    def granted(self, owners: Owners) -> None:
        for tp, owner in owners.items():
            if self.grants[tp][-1][1] != owner:
                self.newest += 1
                self.grants[tp].append((self.newest, owner))

    def grant_of(self, tp: TopicPartition, member_id: str) -> int:
        """The newest of this member."""
        found = [number for number, owner in self.grants[tp] if owner == member_id]
        require(found, f"{member_id} owns {tp}, which the coordinator has not given it")
        return found[-1]

    def synced(
        self, name: str, generation: int, tag: bytes, owned: Iterable[TopicPartition], newest_when_asked: int
    ) -> None:
        """A classic member; `look` comes when it believes this."""

    def accepted(self, tp: TopicPartition, value: int, newest_when_asked: int) -> None:
        mine = self.offsets[tp].generation_of[value]
        newest = max(number for number, _ in self.grants[tp] if number <= newest_when_asked)
        owner = dict(self.grants[tp])
        require(
            mine >= newest,
            f"{tp}: a commit of {owner[mine]} was accepted, after it was given to {owner[newest]}",
        )


class ConsumerGroupWatch(GroupWatch):
    def __init__(self, *, is_durable: bool) -> None:
        super().__init__()
        self.topic_names: dict[UUID, str] = {}
        self.beliefs: Callable[[], list[Belief]] = list
        self.looks = self.upgrades = self.downgrades = self.ended = 0
        self._is_durable = is_durable
        self._due: dict[tuple[str, str, str], tuple[float, int]] = {}
        """When a deadline was set last, and how long it is."""

    def __enter__(self) -> "ConsumerGroupWatch":
        super().__enter__()
        for name, replacement in (("accept", self._accept), ("tick", self._tick)):
            original = getattr(ConsumerGroups, name)
            self._patches.enter_context(patch.object(ConsumerGroups, name, replacement(original)))
        return self

    @property
    def consumer_history(self) -> ConsumerHistory:
        assert isinstance(self.history, ConsumerHistory)
        return self.history

    # What members believe

    def look(self) -> None:
        """Compare beliefs with the log as it is written now."""
        self.looks += 1
        for state in self._states.values():
            group, value = state.consumers.get(GROUP), state.groups.get(GROUP)
            if group is not None:
                self._look_at_consumer_group(group)
            elif value is not None:
                self._look_at_classic_group(value)

    def _look_at_consumer_group(self, group: ConsumerGroup) -> None:
        owners: dict[TopicPartition, str] = {}
        for belief in self.beliefs():
            member = group.members.get(belief.member_id)
            if member is None or member.epoch == LEFT_FOR_A_WHILE or member.is_classic != belief.is_classic:
                continue
            if belief.is_classic and belief.epoch != member.epoch:
                continue  # it is refused wherever it says its generation
            held = self.held_by(member)
            for tp in belief.owned:
                self.require(
                    tp in held,
                    f"{belief.name} owns {tp} in epoch {belief.epoch}, and the coordinator took it away: {member}",
                )
                owner = owners.setdefault(tp, belief.name)
                self.require(owner == belief.name, f"{tp} is owned by {owner} and by {belief.name}")

    def _look_at_classic_group(self, value: GroupValue) -> None:
        members = {row.member_id for row in value.members}
        owners: dict[TopicPartition, str] = {}
        for belief in self.beliefs():
            if belief.is_classic and belief.member_id in members and belief.epoch == value.generation:
                for tp in belief.owned:
                    owner = owners.setdefault(tp, belief.name)
                    self.require(owner == belief.name, f"{tp} is owned by {owner} and by {belief.name}")

    def held_by(self, member: ConsumerMember) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(self.topic_names[topic], index) for topic, index in member.holds())

    # What the coordinator writes and loads

    def _append(self, original: Any) -> Any:
        underneath = super()._append(original)

        def append(port: Any, records: Any, epoch: int) -> int:
            index = port.partition.log.topic_partition.partition
            before = self._states.get(index, GroupsState())
            last: int = underneath(port, records, epoch)
            self._written(before, self._states[index])
            return last

        return append

    def _written(self, before: GroupsState, after: GroupsState) -> None:
        old, new = before.consumers.get(GROUP), after.consumers.get(GROUP)
        old_value, value = before.groups.get(GROUP), after.groups.get(GROUP)
        if old is new and old_value is value:
            return
        if old is not None and new is not None:
            self._check_epochs(old, new)
        elif old is not None and old.members and value is not None and value.members:
            self.downgrades += 1
            epochs = [member.epoch for member in old.members.values()]
            self.require(value.generation >= max(epochs), f"generation {value.generation} follows {epochs}")
        elif old_value is not None and old_value.members and new is not None:
            self.upgrades += 1
            self.require(new.epoch >= old_value.generation, f"epoch {new.epoch} follows {old_value.generation}")
        if new is not None:
            self.consumer_history.granted(self._owners(new))
        elif value is not None:
            is_next = old is None and (old_value is None or value.generation > old_value.generation)
            self.consumer_history.granted(self._owners_by_leader(value, is_next=is_next))
        self.look()

    def _owners_by_leader(self, value: GroupValue, *, is_next: bool) -> Owners:
        """Within a generation, and when the group has just turned classic, a member only takes what was of one that is
        gone: of its former self, if it is a static one."""
        rows = ((row.member_id, read_assignment(row.assignment or b"") or ()) for row in value.members)
        owners = {tp: member_id for member_id, owned in rows for tp in owned}
        if is_next:
            return owners
        members, grants = {row.member_id for row in value.members}, self.consumer_history.grants
        return {tp: owner for tp, owner in owners.items() if grants[tp][-1][1] not in members}

    def _owners(self, group: ConsumerGroup) -> Owners:
        return {
            TopicPartition(self.topic_names[topic], index): member_id
            for member_id, member in group.members.items()
            for topic, indexes in member.current.assigned.items()
            for index in indexes
        }

    def _check_epochs(self, old: ConsumerGroup, new: ConsumerGroup) -> None:
        for what, was, now in (("group", old.epoch, new.epoch), ("target", old.target_epoch, new.target_epoch)):
            self.require(now >= was, f"the epoch of the {what} was {was} and is {now}")
        for member_id, member in new.members.items():
            before = old.members.get(member_id)
            if before is not None and before.epoch > member.epoch != LEFT_FOR_A_WHILE:
                self.require(False, f"the epoch of {member_id} was {before.epoch} and is {member.epoch}")

    def _activate(self, original: Any) -> Any:
        underneath = super()._activate(original)

        def activate(shard: GroupShard) -> None:
            was_cut, before = shard.index in self._cut, self._states.get(shard.index, GroupsState())
            self._due.clear()
            underneath(shard)
            if was_cut and self._is_durable:
                self._check_told(before.consumers.get(GROUP), shard.state)
            value = shard.state.groups.get(GROUP)
            if value is not None:
                # One that has just turned classic, and was to be shared out anew, is loaded as the log says.
                self.consumer_history.granted(self._owners_by_leader(value, is_next=True))
            self.look()

        return activate

    def _check_loaded(self, state: GroupsState) -> None:
        """Generations are not told apart here; see `_check_told`."""

    def _check_told(self, before: ConsumerGroup | None, state: GroupsState) -> None:
        """After a power cut: whoever has an answer of the new protocol is in the log, in that epoch at least."""
        group = state.consumers.get(GROUP)
        for belief in self.beliefs():
            if belief.is_classic or before is None or belief.member_id not in before.members:
                continue
            member = None if group is None else group.members.get(belief.member_id)
            if member is None or LEFT_FOR_A_WHILE != member.epoch < belief.epoch:
                self.require(False, f"{belief.name} was told of epoch {belief.epoch}, and loaded is {member}")

    # Deadlines

    def _accept(self, original: Any) -> Any:
        def accept(consumers: ConsumerGroups, state: GroupsState, decision: Any, now: Any) -> None:
            for timer in decision.timers:
                key = (timer.kind, decision.group_id, timer.member_id)
                if timer.after_ms is not None and not (timer.if_unset and consumers.deadlines.get(key) is not None):
                    self._due[key] = (self.now_s(), timer.after_ms)
            original(consumers, state, decision, now)

        return accept

    def _tick(self, original: Any) -> Any:
        def tick(consumers: ConsumerGroups, state: GroupsState, now: Any) -> Any:
            decision = original(consumers, state, now)
            if decision is not None and decision.retry in self._due:
                since_s, after_ms = self._due[decision.retry]
                passed_ms = 1000 * (self.now_s() - since_s)
                self.ended += 1
                self.require(
                    passed_ms >= after_ms - 2,  # whole milliseconds, twice rounded down
                    f"the deadline {decision.retry} ended after {passed_ms:.0f} of {after_ms} ms",
                )
            return decision

        return tick
