"""What must hold of a group, learnt from what members are told and from what the coordinator writes.

1. Within a generation everybody has the assignment of one leader, and a partition has one owner.
2. No member is told of an assignment in a generation older than one that somebody had before it asked.
3. A commit of a generation is refused once somebody has an assignment in a newer one.
4. Values that are committed only grow. What somebody was told is committed is there, whatever happens to the broker;
   only a commit of the same generation whose fate its sender does not know may still come late.
5. A coordinator that was loaded is what its predecessor was when it died, up to the one write that was under way.
6. A session ends when nothing was heard for as long as the member had asked for, measured on a clock that never jumps.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from sim.broker.watch import Violation, require
from twofold.broker.coordinators.groups.shard import GroupPort, GroupShard
from twofold.coordinator.group.membership import Membership
from twofold.coordinator.group.rounds import ClassicRounds
from twofold.coordinator.group.state import SIMPLE_GROUP, GroupMachine, GroupsState
from twofold.machine.maps import Map
from twofold.types import TopicPartition

GROUP = "group"


@dataclass
class Generation:
    tag: bytes
    owners: dict[TopicPartition, str] = field(default_factory=dict)


@dataclass
class Committed:
    """The commits of one partition."""

    next_value: int = 1
    generation_of: dict[int, int] = field(default_factory=lambda: {0: 0})
    seen: int = 0
    """The greatest value that somebody was told is committed."""
    uncertain: set[int] = field(default_factory=set)
    """Sent, and not answered (yet)."""

    @property
    def least(self) -> int:
        generation = self.generation_of[self.seen]
        late = (value for value in self.uncertain if self.generation_of[value] >= generation)
        return min(self.seen, min(late, default=self.seen))


class GroupHistory:
    """What all members together were told."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = list(partitions)
        self.generations: dict[int, Generation] = {}
        self.newest = 0
        self.offsets = {tp: Committed() for tp in self.partitions}
        self.acknowledged = 0
        self.refused = 0

    def synced(
        self, name: str, generation: int, tag: bytes, owned: Iterable[TopicPartition], newest_when_asked: int
    ) -> None:
        require(generation >= newest_when_asked, f"{name} got generation {generation} after {newest_when_asked}")
        self.newest = max(self.newest, generation)
        known = self.generations.setdefault(generation, Generation(tag))
        require(tag == known.tag, f"{name} got the assignment {tag!r} of generation {generation}, not {known.tag!r}")
        for tp in owned:
            owner = known.owners.setdefault(tp, name)
            require(owner == name, f"{tp} belongs to {owner} and to {name} in generation {generation}")

    def next_commit(self, tp: TopicPartition, generation: int) -> int:
        row = self.offsets[tp]
        value = row.next_value
        row.next_value += 1
        row.generation_of[value] = generation
        row.uncertain.add(value)
        return value

    def committed(self, tp: TopicPartition, value: int, newest_when_asked: int) -> None:
        self.accepted(tp, value, newest_when_asked)
        self.ended(tp, value)

    def accepted(self, tp: TopicPartition, value: int, newest_when_asked: int) -> None:
        """As part of a transaction: it counts when that is committed."""
        generation = self.offsets[tp].generation_of[value]
        require(
            generation >= newest_when_asked,
            f"{tp}: a commit of generation {generation} was accepted after generation {newest_when_asked}",
        )

    def ended(self, tp: TopicPartition, value: int) -> None:
        row = self.offsets[tp]
        row.uncertain.discard(value)
        row.seen = max(row.seen, value)
        self.acknowledged += 1

    def not_committed(self, tp: TopicPartition, value: int) -> None:
        """Told an error: it is in the log now or never."""
        self.offsets[tp].uncertain.discard(value)
        self.refused += 1

    def least(self) -> dict[TopicPartition, int]:
        """To be asked for before the offsets are read."""
        return {tp: row.least for tp, row in self.offsets.items()}

    def fetched(self, who: str, found: dict[TopicPartition, int], least: dict[TopicPartition, int]) -> None:
        for tp, value in found.items():
            row = self.offsets[tp]
            require(value in row.generation_of, f"{who} found {value} for {tp}, which nobody committed")
            require(value >= least[tp], f"{who} found {value} for {tp}, where {least[tp]} was committed")
            row.seen = max(row.seen, value)


def essence(state: GroupsState) -> GroupsState:
    """Without groups of which there is nothing but the name. A transaction that commits offsets for a group makes it;
    when it was aborted and the cleaner has taken the offsets, only those remember the name who were there."""
    kept = {
        name: value
        for name, value in state.groups.items()
        if value != SIMPLE_GROUP or state.topics(name) or state.has_open(name)
    }
    return replace(state, groups=Map(kept))


class GroupWatch:
    """`with GroupWatch() as watch:` around a simulation: follows what the coordinator writes and loads."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.history: GroupHistory | None = None
        self.now_s: Callable[[], float] = lambda: 0.0
        self.loads = 0
        self.expired = 0
        self.restored_doubts = 0
        self._states: dict[int, GroupsState] = {}
        self._doubts: dict[int, GroupsState] = {}
        self._cut: set[int] = set()
        """Shards whose log was cut since they were last loaded."""
        self._renewed: dict[tuple[str, str], float] = {}
        self._patches = ExitStack()

    def __enter__(self) -> "GroupWatch":
        for owner, name, replacement in (
            (GroupPort, "append", self._append),
            (GroupShard, "_activate", self._activate),
            (ClassicRounds, "renew", self._renew),
            (Membership, "_session_is_over", self._session_is_over),
        ):
            self._patches.enter_context(patch.object(owner, name, replacement(getattr(owner, name))))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def crash(self, power_cut: bool) -> None:
        if power_cut:
            # What nobody was told may be gone with it; what was told is for the members to find.
            self._cut |= set(self._states) | set(self._doubts)

    def stopped_cleanly(self) -> None:
        pass

    def require(self, condition: object, text: str) -> None:
        """A broker answers an error of its own with an error code: remember what was wrong."""
        if not condition:
            self.violations.append(Violation(text))
            raise self.violations[-1]

    def check_replay(self, shard: GroupShard) -> None:
        """The running coordinator, its log, and all that was ever written are one and the same."""
        machine = GroupMachine()
        replayed = machine.initial()
        for _, entries in shard.slices(-1, 1 << 20):
            replayed = machine.apply_all(replayed, entries)
        replayed = essence(replayed)
        self.require(essence(shard.state) == replayed, f"{shard}: the state is no replay of the log")
        if shard.partition.log.high_watermark == shard.partition.log.log_end_offset:  # nothing waits for a sync
            self.require(essence(shard.committed) == replayed, f"{shard}: what is shown is no replay of the log")
        written = essence(self._states[shard.index])
        self.require(written == replayed, f"{shard}: the state is not what was written")

    # What is patched

    def _append(self, original: Any) -> Any:
        def append(port: GroupPort, records: Any, epoch: int) -> int:
            index = port.partition.log.topic_partition.partition
            state = self._states.get(index, GroupsState())
            self._doubts[index] = GroupMachine().apply_all(state, enumerate(records, port.end_offset))
            last: int = original(port, records, epoch)
            self._states[index] = self._doubts.pop(index)
            return last

        return append

    def _activate(self, original: Any) -> Any:
        def activate(shard: GroupShard) -> None:
            known = self._states.get(shard.index, GroupsState())
            doubt = self._doubts.pop(shard.index, None)
            if essence(shard.state) != essence(known) and shard.index not in self._cut:
                self.require(
                    doubt is not None and essence(shard.state) == essence(doubt),
                    f"{shard}: what was loaded is not what was written",
                )
                self.restored_doubts += 1
            self._cut.discard(shard.index)
            self._states[shard.index] = shard.state
            self.loads += 1
            self._check_loaded(shard.state)
            self._renewed.clear()
            original(shard)

        return activate

    def _check_loaded(self, state: GroupsState) -> None:
        value = state.groups.get(GROUP)
        newest = self.history.newest if self.history is not None else 0
        if value is not None:
            self.require(value.generation >= newest, f"loaded generation {value.generation} after {newest}")

    def _renew(self, original: Any) -> Any:
        def renew(rounds: ClassicRounds, group: Any, member: Any, now: Any) -> None:
            self._renewed[group.group_id, member.member_id] = self.now_s()
            original(rounds, group, member, now)

        return renew

    def _session_is_over(self, original: Any) -> Any:
        def session_is_over(membership: Membership, group: Any, member_id: str, now: Any, out: Any) -> None:
            member = group.members.get(member_id)
            renewed = self._renewed.get((group.group_id, member_id))
            if member is not None and not member.is_waiting:
                self.expired += 1
                silent_ms = 1000 * (self.now_s() - renewed) if renewed is not None else 1e9
                self.require(
                    silent_ms >= member.session_timeout_ms - 2,  # whole milliseconds, twice rounded down
                    f"the session of {member_id} ended after {silent_ms:.0f} of {member.session_timeout_ms} ms",
                )
            original(membership, group, member_id, now, out)

        return session_is_over
