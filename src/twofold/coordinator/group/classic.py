"""One classic group while it lives: its members, what each of them waits for, and the protocol they agree on.

What is here and not in the log is lost with the coordinator: protocols that were not chosen, members that were joining.
The next coordinator builds the group from the log (`from_value`), stable or empty, and those members join again.

1. The leader is a member whenever there are members.
2. A protocol is chosen only if every member supports it; the one that most members prefer wins.
3. A member waits for one join and one sync at most; a group instance id names one member at most.
"""

import struct
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias

from twofold.coordinator.group.records import GroupValue, MemberValue
from twofold.coordinator.group.states import GroupEvent, GroupState, may, next_state
from twofold.wire.errors import FencedInstanceId, UnknownMemberId
from twofold.wire.messages.join_group import JoinGroupResponseMember

Token: TypeAlias = Any  # a request that is answered later
Protocols: TypeAlias = tuple[tuple[str, bytes], ...]  # name and metadata, in the order of preference

CONSUMER_PROTOCOL_TYPE = "consumer"


class Member:
    __slots__ = (
        "member_id", "group_instance_id", "client_id", "client_host", "rebalance_timeout_ms", "session_timeout_ms",
        "protocols", "assignment", "is_new", "awaiting_join", "awaiting_sync",
    )  # fmt: skip

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False  # has not learned its id yet, so that it cannot send heartbeats
        self.awaiting_join: Token | None = None
        self.awaiting_sync: Token | None = None

    @property
    def is_awaiting_join(self) -> bool:
        return self.awaiting_join is not None

    @property
    def is_waiting(self) -> bool:
        """The member waits for us, so its session cannot expire, unless it is new and its client may be gone."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Iterable[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    __slots__ = (
        "group_id", "state", "previous_state", "state_timestamp_ms", "generation", "protocol_type", "protocol",
        "leader", "members", "static_members", "pending_joins", "pending_syncs", "new_member_added", "initial_delay",
        "subscribed_topics", "_supported", "_awaiting_join",
    )  # fmt: skip

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.state_timestamp_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_joins: set[str] = set()  # ids that were given out and have not come back
        self.pending_syncs: set[str] = set()
        self.new_member_added = False
        self.initial_delay: tuple[int, int] | None = None  # of the first rebalance: this round and what is left, in ms
        self.subscribed_topics: frozenset[str] | None = None  # None: not known
        self._supported: Counter[str] = Counter()
        self._awaiting_join = 0

    @classmethod
    def from_value(cls, group_id: str, value: GroupValue) -> "ClassicGroup":
        group = cls(group_id, value.state_timestamp_ms)
        group.state = GroupState.STABLE if value.members else GroupState.EMPTY
        group.previous_state = group.state
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.leader = value.leader
        for known in value.members:
            member = Member(
                known.member_id,
                known.group_instance_id,
                known.client_id,
                known.client_host,
                known.rebalance_timeout_ms,
                known.session_timeout_ms,
                ((value.protocol or "", known.subscription),),
                known.assignment,
            )
            group.add(member, value.protocol_type)
        group.subscribed_topics = group.compute_subscribed_topics()
        return group

    def to_value(self, assignments: dict[str, bytes] | None = None) -> GroupValue:
        """The group with these assignments, or with those that its members have."""
        return GroupValue(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            self.state_timestamp_ms,
            tuple(
                MemberValue(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol),
                    member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    # --- state ---

    def take(self, event: GroupEvent, now_ms: int) -> None:
        following = next_state(self.state, event)
        self.previous_state = self.state
        self.state = following
        self.state_timestamp_ms = now_ms

    def may(self, event: GroupEvent) -> bool:
        return may(self.state, event)

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- members ---

    def check_member(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member, if it is one and no other member has taken its instance id."""
        if group_instance_id is not None:
            known = self.static_members.get(group_instance_id)
            if known is None:
                raise UnknownMemberId(f"group {self.group_id} has no member with the instance id {group_instance_id}")
            if known != member_id:
                raise FencedInstanceId(
                    f"group {self.group_id}: the instance id {group_instance_id} belongs to {known}, not to {member_id}"
                )
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"{member_id} is no member of group {self.group_id}")
        return member

    def add(self, member: Member, protocol_type: str, token: Token | None = None) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        self.pending_joins.discard(member.member_id)
        self.await_join(member, token)

    def remove(self, member_id: str) -> Member | None:
        """Also takes back an id that was given out."""
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        if member.is_awaiting_join:
            self._awaiting_join -= 1
        instance_id = member.group_instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, old: Member, new_id: str) -> Member:
        """The same member under a new id, with the same place and assignment. Its requests go on waiting."""
        new = Member(
            new_id,
            old.group_instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        if old.is_awaiting_join:
            self._awaiting_join -= 1
        self.pending_syncs.discard(old.member_id)
        self.members = {
            new_id if member_id == old.member_id else member_id: new if member is old else member
            for member_id, member in self.members.items()
        }
        if self.leader == old.member_id:
            self.leader = new_id
        assert old.group_instance_id is not None
        self.static_members[old.group_instance_id] = new_id
        return new

    def update(self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        self._count(member, -1)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._count(member, 1)

    def await_join(self, member: Member, token: Token | None) -> Token | None:
        """Let a member wait, or stop waiting (None); returns the request that waited before."""
        before = member.awaiting_join
        self._awaiting_join += (token is not None) - (before is not None)
        member.awaiting_join = token
        return before

    @property
    def joining(self) -> int:
        return self._awaiting_join

    @property
    def all_joined(self) -> bool:
        return self._awaiting_join == len(self.members) and not self.pending_joins

    def elect_joined_leader(self) -> bool:
        """A leader that has not come back is replaced by a member that has; False when there is none."""
        if self.leader is None:
            return False
        leader = self.members.get(self.leader)
        if leader is not None and leader.is_awaiting_join:
            return True
        joined = next((member.member_id for member in self.members.values() if member.is_awaiting_join), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def next_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.pending_syncs.clear()
        self.initial_delay = None
        self.new_member_added = False
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.take(GroupEvent.JOINED if self.members else GroupEvent.EMPTIED, now_ms)

    def view(self) -> list[JoinGroupResponseMember]:
        """What the leader gets to know of the members."""
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members.values()
        ]

    # --- protocols ---

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a client with these protocols could join the present members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and any(
            self._supported[name] == len(self.members) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Of those that all support, the one that most put first; in a draw the one that was put first earliest."""
        members = len(self.members)
        candidates = {name for name, count in self._supported.items() if count == members}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _count(self, member: Member, by: int) -> None:
        for name in {name for name, _ in member.protocols}:
            self._supported[name] += by
            if not self._supported[name]:
                del self._supported[name]

    # --- subscriptions ---

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """The topics of all members of a consumer group; None where they are not known."""
        if not self.is_consumer_group:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol))
            if topics is None:
                return None
            found |= topics
        return frozenset(found)

    def is_subscribed_to(self, topic: str) -> bool:
        """If unsure, True: offsets of a subscribed group must not be deleted."""
        return self.is_consumer_group if self.subscribed_topics is None else topic in self.subscribed_topics


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics in a consumer's subscription, of any version; None if it is none."""
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            return None
        topics = set()
        at = 6
        for _ in range(count):
            size = struct.unpack_from(">h", metadata, at)[0]
            at += 2
            if size < 0 or at + size > len(metadata):
                return None
            topics.add(metadata[at : at + size].decode())
            at += size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
