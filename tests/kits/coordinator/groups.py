"""A coordinator with a log in memory and a clock in hand."""

import struct
from collections.abc import Iterator
from itertools import count
from typing import Any

from twofold.coordinator.group.context import Client, GroupConfig, Instant, Outcome
from twofold.coordinator.group.membership import Membership
from twofold.coordinator.group.offsets import Commit, Committer, Offsets, Wanted
from twofold.coordinator.group.records import GroupRecord, LogRecord, TransactionEnd
from twofold.coordinator.group.state import GroupMachine, GroupsState
from twofold.coordinator.group.states import GroupState
from twofold.machine.runtime import Result
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import KafkaError
from twofold.wire.messages.heartbeat import HeartbeatRequest
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from twofold.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from twofold.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

WALL = 1_700_000_000_000
SESSION, REBALANCE = 10_000, 30_000
NOT_YET = object()


def subscription(*topics: str) -> bytes:
    out = struct.pack(">hi", 0, len(topics))
    for topic in topics:
        out += struct.pack(">h", len(topic)) + topic.encode()
    return out + struct.pack(">i", -1)


class World:
    """Writes are committed at once, or kept until `commit_all` (`holding`), or refused (`refusal`)."""

    def __init__(self, log: list[LogRecord] | None = None, ids: Iterator[int] | None = None, **config: Any) -> None:
        settings = {"initial_rebalance_delay_ms": 0, **config}
        self.config = GroupConfig(**settings)
        self.machine = GroupMachine()
        self.log: list[LogRecord] = [] if log is None else log
        self.state: GroupsState = self.machine.apply_all(self.machine.initial(), enumerate(self.log))
        self.ids = ids or count(1)
        self.membership = Membership(self.config, lambda: f"{next(self.ids)}")
        self.offsets = Offsets(self.config, self.membership)
        self.monotonic_ms = 0
        self.wall_ms = WALL
        self.answers: dict[int, Any] = {}
        self.refusal: KafkaError | None = None
        self.holding = False
        self.held: list[Outcome] = []
        self._tokens = count()
        self.run(self.membership.load(self.state, self.now))

    @property
    def now(self) -> Instant:
        return Instant(self.wall_ms, self.monotonic_ms)

    def restart(self, **config: Any) -> "World":
        """A new coordinator on the same log."""
        settings = {name: getattr(self.config, name) for name in GroupConfig.__slots__}
        world = World(self.log, self.ids, **(settings | config))
        world.wall_ms = self.wall_ms
        return world

    # --- the log ---

    def write(self, records: list[LogRecord]) -> None:
        if self.refusal is not None:
            raise self.refusal
        base = len(self.log)
        self.state = self.machine.apply_all(self.state, enumerate(records, base))
        self.log.extend(records)

    def run(self, outcome: Outcome) -> None:
        for token, response in outcome.replies:
            assert token not in self.answers, f"{token} is answered twice: {self.answers[token]}, {response}"
            self.answers[token] = response
        if not outcome.records:
            assert outcome.then is None
            return
        try:
            self.write(outcome.records)
        except KafkaError as error:
            self._go_on(outcome, error)
        else:
            if self.holding:
                self.held.append(outcome)
            else:
                self._go_on(outcome, None)

    def _go_on(self, outcome: Outcome, error: KafkaError | None) -> None:
        assert outcome.then is not None
        self.run(outcome.then(error, self.now))
        if error is None:
            for record in outcome.records:
                if isinstance(record, GroupRecord):
                    self.membership.forget(self.state, record.group_id)

    def commit_all(self, error: KafkaError | None = None) -> None:
        held, self.held = self.held, []
        for outcome in held:
            self._go_on(outcome, error)

    def apply(self, result: Result[LogRecord, Any]) -> Any:
        if result.records:
            self.write(list(result.records))
        return result.response

    # --- time ---

    def advance(self, ms: int) -> None:
        """Let time pass, doing what is due when it is due."""
        target = self.monotonic_ms + ms
        while True:
            due = self.membership.deadlines.next_at
            if due is None or due > target:
                break
            step = max(0, due - self.monotonic_ms)
            self.monotonic_ms += step
            self.wall_ms += step
            self.tick()
        self.wall_ms += target - self.monotonic_ms
        self.monotonic_ms = target

    def tick(self) -> None:
        while (outcome := self.membership.tick(self.state, self.now)) is not None:
            self.run(outcome)

    # --- requests ---

    def send_join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        version: int = 5,
        protocols: tuple[str, ...] = ("range",),
        topics: tuple[str, ...] = ("t",),
        protocol_type: str = "consumer",
        session: int = SESSION,
        rebalance: int = REBALANCE,
        client: str = "c",
    ) -> int:
        token = next(self._tokens)
        request = JoinGroupRequest(
            group_id=group,
            member_id=member_id,
            group_instance_id=instance,
            session_timeout_ms=session,
            rebalance_timeout_ms=rebalance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=subscription(*topics)) for name in protocols],
        )
        who = Client(version, client, "/10.0.0.1")
        self.run(self.membership.join(self.state, request, who, token, self.now))
        return token

    def join(self, member_id: str = "", **kwargs: Any) -> JoinGroupResponse:
        """Join, and once more with the id if there was none; the answer must come at once or when time is up."""
        token = self.send_join(member_id, **kwargs)
        self.tick()
        answer = self.answer(token)
        if answer.error_code == 79:
            token = self.send_join(answer.member_id, **kwargs)
            self.tick()
            answer = self.answer(token)
        assert isinstance(answer, JoinGroupResponse)
        return answer

    def send_new(self, **kwargs: Any) -> tuple[str, int]:
        """A dynamic member that has its id and waits for the generation: (member id, token)."""
        answer = self.answer(self.send_join(**kwargs))
        assert answer.error_code == 79, answer
        return answer.member_id, self.send_join(answer.member_id, **kwargs)

    def send_sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> int:
        token = next(self._tokens)
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )
        self.run(self.membership.sync(request, token, self.now))
        return token

    def sync(self, *args: Any, **kwargs: Any) -> SyncGroupResponse:
        answer = self.answer(self.send_sync(*args, **kwargs))
        assert isinstance(answer, SyncGroupResponse)
        return answer

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> int:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return self.membership.heartbeat(request, self.now)

    def send_leave(self, *members: str | tuple[str, str | None], group: str = "g") -> int:
        token = next(self._tokens)
        identities = [
            MemberIdentity(member_id=member)
            if isinstance(member, str)
            else MemberIdentity(member_id=member[0], group_instance_id=member[1])
            for member in members
        ]
        request = LeaveGroupRequest(group_id=group, members=identities)
        self.run(self.membership.leave(self.state, request, token, self.now))
        return token

    def leave(self, *members: str | tuple[str, str | None], group: str = "g") -> LeaveGroupResponse:
        answer = self.answer(self.send_leave(*members, group=group))
        assert isinstance(answer, LeaveGroupResponse)
        return answer

    def answer(self, token: int) -> Any:
        assert token in self.answers, f"request {token} is not answered yet"
        return self.answers[token]

    def is_answered(self, token: int) -> bool:
        return token in self.answers

    # --- stories ---

    def stable(self, members: int = 1, group: str = "g", **kwargs: Any) -> list[str]:
        """A stable group; the first member leads, and each has its own id as assignment."""
        waiting = [self.send_new(group=group, **kwargs) for _ in range(members)]
        self.advance(self.config.initial_rebalance_delay_ms)
        ids = [member_id for member_id, _ in waiting]
        generation = self.generation(group)
        for member_id in (*ids[1:], ids[0]):
            self.send_sync(member_id, generation, {member: member.encode() for member in ids}, group=group)
        assert self.group_state(group) is GroupState.STABLE
        return ids

    def generation(self, group: str = "g") -> int:
        found = self.membership.find(self.state, group)
        assert found is not None
        return found.generation

    def group_state(self, group: str = "g") -> GroupState:
        found = self.membership.find(self.state, group)
        return GroupState.DEAD if found is None else found.state

    def members(self, group: str = "g") -> list[str]:
        found = self.membership.find(self.state, group)
        return [] if found is None else list(found.members)

    # --- offsets ---

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        version: int = 8,
        retention: int = -1,
        **who: Any,
    ) -> list[int]:
        commits = [Commit(topic, None, partition, offset, -1, "") for (topic, partition), offset in offsets.items()]
        committer = Committer(group, **who)
        result = self.offsets.commit(self.state, committer, commits, version, self.now, retention)
        codes: list[int] = self.apply(result)
        return codes

    def commit_in_transaction(
        self, producer_id: int, offsets: dict[tuple[str, int], int], *, group: str = "g", epoch: int = 0, **who: Any
    ) -> list[int]:
        commits = [Commit(topic, None, partition, offset, -1, "") for (topic, partition), offset in offsets.items()]
        result = self.offsets.commit_in_transaction(
            self.state, Committer(group, **who), commits, ProducerId(producer_id), ProducerEpoch(epoch), self.now
        )
        codes: list[int] = self.apply(result)
        return codes

    def end(self, producer_id: int, *, committed: bool) -> None:
        self.write([TransactionEnd(ProducerId(producer_id), ProducerEpoch(0), 0, committed)])

    def offset(self, topic: str = "t", partition: int = 0, *, group: str = "g", stable: bool = False) -> int | str:
        """The committed offset, or the word for why there is none to tell."""
        wanted = [Wanted(topic, [partition])]
        ((_, rows),) = self.offsets.fetch(self.state, group, wanted, require_stable=stable)
        return "unstable" if rows[0].error_code == 88 else rows[0].offset

    def all_offsets(self, group: str = "g") -> dict[tuple[str, int], int]:
        rows = self.offsets.fetch_all(self.state, group, require_stable=False)
        return {(topic, row.partition): row.offset for topic, found in rows for row in found}
