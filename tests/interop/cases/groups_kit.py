"""What the group cases share: a group of a case, its members over raw connections, the bodies of requests."""

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from oracle.compare import Probe, Topic, attempts
from oracle.driver import CLOSED, SILENT, Connection
from oracle.wire import decode_response, fit

UNKNOWN_MEMBER, ILLEGAL_GENERATION, REBALANCE, MEMBER_ID_REQUIRED = 25, 22, 27, 79
STILL_COMING = {14, 15, 16}
"""The coordinator is being created or loaded."""

JOIN_VERSIONS, SYNC_VERSIONS, HEARTBEAT_VERSIONS, LEAVE_VERSIONS = range(10), range(6), range(5), range(6)
COMMIT_VERSIONS, FETCH_VERSIONS = range(2, 11), range(1, 11)

# What a client that speaks JoinGroup n speaks otherwise.
SYNC_OF = (0, 1, 2, 2, 2, 3, 4, 5, 5, 5)
HEARTBEAT_OF = (0, 1, 2, 2, 2, 3, 4, 4, 4, 4)
LEAVE_OF = (0, 1, 2, 2, 2, 3, 4, 4, 5, 5)

MEMBER_ID = re.compile(r"(.*-)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.DOTALL)

Protocols = Sequence[tuple[str, bytes]]
Answer = dict[str, Any]


def subscription(*topics: str, version: int = 0) -> bytes:
    """The metadata of the consumer protocol: the topics that a member wants."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", version, len(topics)) + names + struct.pack(">i", -1)


RANGE: Protocols = (("range", subscription("some-topic")),)


class Group:
    """A group that only this case uses. Its coordinator is loaded before the first question."""

    def __init__(self, probe: Probe, suffix: str = "group") -> None:
        self.probe = probe
        self.id = coordinated(probe, probe.name(suffix))

    def member(self, name: str, **options: Any) -> "Member":
        return Member(self, name, **options)

    def describe(self, label: str, version: int = 5) -> None:
        body: Answer = {"groups": [self.id], "include_authorized_operations": False}
        self.probe.ask(label, "DescribeGroups", version, fit("DescribeGroups", version, body))

    def await_state(self, state: str, members: int | None = None) -> None:
        """Until what other connections sent has arrived."""
        for _ in attempts():
            (row,) = self.probe.tell("DescribeGroups", 0, groups=[self.id])["groups"]
            if row["group_state"] == state and members in (None, len(row["members"])):
                return
        raise AssertionError(f"{self.id} is {row}, not {state} with {members} members")


def coordinated(probe: Probe, group_id: str) -> str:
    """The same id, once its coordinator answers. On a fresh server `__consumer_offsets` is created by this."""
    for _ in attempts(patience_s=30, pause_s=0.02):
        found = probe.tell("FindCoordinator", 0, key=group_id)["error_code"]
        if found in STILL_COMING:
            continue
        (row,) = probe.tell("DescribeGroups", 0, groups=[group_id])["groups"]
        if row["error_code"] not in STILL_COMING:
            return group_id
    raise AssertionError(f"no coordinator for {group_id} within 30 s")


class Member:
    """One member of a group on a connection of its own; every answer is recorded under its name and a label."""

    def __init__(
        self,
        group: Group,
        name: str,
        *,
        version: int = 9,
        instance: str | None = None,
        protocols: Protocols = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = 60_000,
        rebalance_ms: int = 60_000,
        id: str = "",
    ) -> None:
        self.group, self.name, self.version = group, name, version
        self.probe: Probe = group.probe
        self.instance = instance
        self.protocols, self.protocol_type = protocols, protocol_type
        self.session_ms, self.rebalance_ms = session_ms, rebalance_ms
        self.id, self.generation = id, -1
        self.protocol: str | None = None
        self.connection: Connection = self.probe.connect()

    # Joining

    def join(self, label: str, **over: Any) -> Answer:
        self.send_join(**over)
        return self.joined(label)

    def send_join(self, **over: Any) -> None:
        """Join without waiting: the answer may have to wait for others."""
        body = {
            "group_id": self.group.id,
            "session_timeout": self.session_ms,
            "rebalance_timeout": self.rebalance_ms,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": self.protocol_type,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in self.protocols],
            "reason": "a case",
        } | over
        self._send_ahead("JoinGroup", self.version, body)

    def joined(self, label: str, *, patience_s: float | None = None) -> Answer:
        answer: Answer = self._receive("JoinGroup", self.version, patience_s)
        if isinstance(answer, dict):
            self._learn(answer)
        self._record(label, answer)
        return answer

    def enter(self, label: str) -> Answer:
        """Join as a client does: where an id is required, with the id that was given."""
        self.ask_for_id()
        return self.join(label)

    def send_enter(self) -> None:
        self.ask_for_id()
        self.send_join()

    def ask_for_id(self) -> Self:
        if self.version >= 4 and self.instance is None and not self.id:
            self.send_join()
            answer = self._receive("JoinGroup", self.version)
            assert answer["error_code"] == MEMBER_ID_REQUIRED, answer
            self._learn(answer)
        return self

    def _learn(self, answer: Answer) -> None:
        given = answer["member_id"]
        shape = MEMBER_ID.fullmatch(given)
        if given != self.id and shape is not None:
            self.probe.mask(given, f"{shape.group(1)}<uuid of {self.name}>")
        if answer["error_code"] in (0, MEMBER_ID_REQUIRED):
            self.id = given
        if answer["error_code"] == 0:
            self.generation, self.protocol = answer["generation_id"], answer["protocol_name"]

    # What a member does once it is in

    def sync(self, label: str, assignments: Mapping[str, bytes] = {}, **over: Any) -> Answer:
        self.send_sync(assignments, **over)
        return self.synced(label)

    def send_sync(self, assignments: Mapping[str, bytes] = {}, *, version: int | None = None, **over: Any) -> None:
        rows = [{"member_id": member, "assignment": data} for member, data in assignments.items()]
        named = {"protocol_type": self.protocol_type, "protocol_name": self.protocol}
        body = {**self._identity(), **named, "assignments": rows} | over
        self._sync_version = SYNC_OF[self.version] if version is None else version
        self._send_ahead("SyncGroup", self._sync_version, body)

    def synced(self, label: str, *, patience_s: float | None = None) -> Answer:
        answer: Answer = self._receive("SyncGroup", self._sync_version, patience_s)
        self._record(label, answer)
        return answer

    def lead(self, label: str, *members: "Member") -> Answer:
        """Sync as the leader: every member is assigned its own name."""
        return self.sync(label, {member.id: member.name.encode() for member in (members or (self,))})

    def heartbeat(self, label: str, *, until: int | None = None, **over: Any) -> Answer:
        return self._ask(label, "Heartbeat", HEARTBEAT_OF[self.version], {**self._identity(), **over}, until)

    def heartbeat_elsewhere(self, label: str) -> None:
        """On another connection: its own may be waiting. What it sent before has arrived by then."""
        own, self.connection = self.connection, self.probe.connect()
        self.heartbeat(label)
        self.connection = own

    def leave(self, label: str) -> Answer:
        row = {"member_id": self.id, "group_instance_id": self.instance, "reason": "done"}
        body = {"group_id": self.group.id, "member_id": self.id, "members": [row]}
        return self._ask(label, "LeaveGroup", LEAVE_OF[self.version], body)

    def commit(self, label: str, topic: Topic, offset: int = 5, *, version: int = 9, **over: Any) -> Answer:
        rows = commit_rows(topic, {0: offset})
        identity = {"group_id": self.group.id, "generation_id_or_member_epoch": self.generation}
        identity |= {"member_id": self.id, "group_instance_id": self.instance}
        return self._ask(label, "OffsetCommit", version, {**identity, "topics": rows, **over})

    def _identity(self) -> Answer:
        return {
            "group_id": self.group.id,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }

    # The wire

    def _send(self, api: str, version: int, body: Answer) -> None:
        self.connection.send(api, version, fit(api, version, body))

    def _send_ahead(self, api: str, version: int, body: Answer) -> None:
        """Send what may wait for others. What another connection asks from now on comes after it."""
        self._send(api, version, body)
        self.connection.await_read()
        self.probe.tell("DescribeGroups", 0, groups=[self.group.id])

    def _receive(self, api: str, version: int, patience_s: float | None = None) -> Any:
        payload = self.connection.receive_or_silence(patience_s)
        if payload is None or isinstance(payload, str):
            return CLOSED if payload is None else SILENT
        return decode_response(api, version, payload)[1]

    def _ask(self, label: str, api: str, version: int, body: Answer, until: int | None = None) -> Any:
        for _ in attempts(patience_s=10):
            self._send(api, version, body)
            answer = self._receive(api, version)
            if until is None or answer["error_code"] == until:
                break
        self._record(label, answer)
        return answer

    def _record(self, label: str, answer: Any) -> None:
        self.probe.record(f"{self.name}: {label}", answer)


def settle(members: Sequence[Member], label: str, assign: Callable[[Member], bytes] | None = None) -> None:
    """Everybody joins and syncs; the leader is whoever the server chose."""
    give = assign or (lambda member: member.name.encode())
    for count, member in enumerate(members):
        member.send_enter() if not member.id else member.send_join()
        if count + 1 < len(members):
            member.group.await_state("PreparingRebalance")
    answers = [member.joined(f"{label}, joined") for member in members]
    for member, answer in zip(members, answers, strict=True):
        leads = answer["leader"] == member.id
        member.send_sync({other.id: give(other) for other in members} if leads else {})
    for member in members:
        member.synced(f"{label}, synced")


def alone(group: Group, name: str = "member", **options: Any) -> Member:
    """A member that is the whole group, stable in generation 1."""
    member = group.member(name, **options)
    member.enter("alone, joined")
    member.lead("alone, synced")
    return member


# Offsets


def commit_rows(
    topic: Topic | str, offsets: Mapping[int, int], metadata: str | None = "", epoch: int = -1
) -> list[Answer]:
    """Rows of OffsetCommit and TxnOffsetCommit; `fit` takes away what a version does not have."""
    parts = [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": epoch,
            "committed_metadata": metadata,
        }
        for partition, offset in offsets.items()
    ]
    return [{**named(topic), "partitions": parts}]


def named(topic: Topic | str) -> Answer:
    return {"name": topic} if isinstance(topic, str) else {"name": topic.name, "topic_id": topic.id}


def commit(probe: Probe, label: str, version: int, group_id: str, rows: list[Answer], **more: Any) -> Answer:
    body = {"group_id": group_id, "topics": rows} | more
    answer: Answer = probe.ask(label, "OffsetCommit", version, fit("OffsetCommit", version, body))
    return answer


def committed(probe: Probe, group_id: str, topic: Topic, offsets: Mapping[int, int]) -> None:
    """Set-up: offsets of nobody in particular."""
    body = fit("OffsetCommit", 8, {"group_id": group_id, "topics": commit_rows(topic, offsets)})
    for row in probe.tell("OffsetCommit", 8, **body)["topics"][0]["partitions"]:
        assert row["error_code"] == 0, row


def fetch_body(
    version: int, group_id: str, topics: Iterable[tuple[Topic | str, Sequence[int]]] | None, **more: Any
) -> Answer:
    rows = None if topics is None else [{**named(topic), "partition_indexes": list(parts)} for topic, parts in topics]
    group = {"group_id": group_id, "topics": rows, **more}
    return fit("OffsetFetch", version, {**group, "groups": [group]})


def fetch(
    probe: Probe,
    label: str,
    version: int,
    group_id: str,
    topics: Iterable[tuple[Topic | str, Sequence[int]]] | None = None,
    **more: Any,
) -> Answer:
    answer: Answer = probe.ask(label, "OffsetFetch", version, fetch_body(version, group_id, topics, **more))
    return answer
