"""Groups of stock clients under test: members as processes, a feed of numbered records, and what must hold.

A record's value is its offset. What the members write down (`support.group_member`) is checked for

1. cover: every record up to the last committed one was processed by somebody;
2. no gaps: an owner starts where all records before are processed already;
3. no return: an owner does not start before what was acknowledged as committed when it got the partition;
4. one owner at any time: a member of the new protocol has given a partition up before another one gets it, unless its
   membership was over, which it is told;
5. one owner: once settled, the broker and the members agree on who has what, and every partition has one owner.
"""

import functools
import json
import os
import shutil
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any, NamedTuple, Protocol

import pytest
from confluent_kafka import Producer

from kits.clients.remote import go_program
from kits.groups.member import HEARTBEAT_MS, SESSION_TIMEOUT_MS, Partition
from oracle.driver import Connection, WireClosed
from oracle.java_programs import program
from oracle.kafka import jars_or_skip, java_or_fail, oracle_flags
from oracle.processes import spawn, stop, tail

CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
OURS = ("twofold", "twofold-aio")
MODERN = (*OURS, "confluent-kafka", "java", "franz-go")
"""Those that speak the protocol of KIP-848 as well."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.max.size": "100",
    "log.retention.ms": "-1",
    # The broker's word for members of the new protocol; classic ones say themselves what they want.
    "group.consumer.max.size": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.assignment.interval.ms": "200",
}
GROUP_RESOURCE = 32
SESSION_S = SESSION_TIMEOUT_MS / 1000
PATIENCE_S = 40.0
HERE = Path(__file__).parent


def java_member() -> list[str]:
    """Apache Kafka's own client; skips where there is no JDK."""
    jars = jars_or_skip()
    if shutil.which("javac") is None:
        pytest.skip("a member with Apache Kafka's client needs a JDK: install openjdk-17-jdk-headless")
    source = HERE.parents[1] / "interop" / "java" / "GroupMember.java"
    return [java_or_fail(), *oracle_flags(jars), *program(source, jars)]


@functools.cache
def go_member() -> list[str]:
    """franz-go, built once per run; skips where it cannot be."""
    return go_program("member")


class Server(Protocol):
    host: str
    port: int

    @property
    def bootstrap_servers(self) -> str: ...


def python_member() -> list[str]:
    return [sys.executable, str(HERE / "member.py")]


REMOTE: dict[str, Callable[[], list[str]]] = {"java": java_member, "franz-go": go_member}


class Described(NamedTuple):
    state: str
    owners: dict[str, set[Partition]]
    """By client id, which is the member's name here, or the static member's."""
    epoch: int = -1
    """Of a group of the new protocol."""


class Member:
    """One process. Its journal grows while it runs and stays when it is gone."""

    def __init__(self, directory: Path, options: dict[str, Any]) -> None:
        self.name: str = options["name"]
        self.client_id: str = options["client_id"]
        self.is_modern = options["protocol"] == "consumer"
        self.journal = directory / f"{self.name}.jsonl"
        self.output = directory / f"{self.name}.log"
        self.journal.touch()
        self._read = 0
        self._events: list[dict[str, Any]] = []
        given = json.dumps({**options, "journal": str(self.journal)})
        program = REMOTE.get(options["client"], python_member)()
        self._process = spawn([*program, given], output=self.output)

    def events(self) -> list[dict[str, Any]]:
        with self.journal.open() as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition("\n")
        if whole:
            self._read += len(whole) + 1
            for line in whole.split("\n"):
                event = json.loads(line)
                for key in ("at", "owned", "gained", "lost"):
                    if key in event:
                        event[key] = tuple(event[key]) if key == "at" else {tuple(row) for row in event[key]}
                self._events.append(event)
        return self._events

    def owned(self) -> set[Partition]:
        return next((event["owned"] for event in reversed(self.events()) if event["event"] == "owns"), set())

    def check_running(self) -> None:
        assert self._process.poll() is None, f"{self.name} ended by itself:\n{tail(self.output)}"

    def leave(self) -> None:
        """As its client does when the program ends."""
        code = stop(self._process, how=SIGTERM, patience_s=20)
        assert code == 0, f"{self.name} ended with {code}:\n{tail(self.output)}"

    def crash(self) -> None:
        """kill -9: its sockets close without a word."""
        stop(self._process, how=SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: its sockets stay open, and nothing comes."""
        os.killpg(self._process.pid, SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, SIGCONT)


class Crew:
    """The members of one group, present and past."""

    def __init__(
        self, server: Server, directory: Path, group: str, topics: Sequence[str], partitions: int, *, pattern: str = ""
    ) -> None:
        self.server, self.group = server, group
        self.directory = directory / group
        self.directory.mkdir(parents=True)
        self.topics = list(topics)
        self.partitions_a_topic = partitions
        self.pattern = pattern
        self.present: list[Member] = []
        self.past: list[Member] = []
        self._count = 0

    @property
    def partitions(self) -> set[Partition]:
        return {(topic, index) for topic in self.topics for index in range(self.partitions_a_topic)}

    def add(
        self,
        client: str,
        *,
        instance: str | None = None,
        strategy: str = "range",
        session_ms: int = SESSION_TIMEOUT_MS,
        protocol: str = "classic",
    ) -> Member:
        self._count += 1
        name = f"{self.group}-{self._count}-{client}"
        options = {
            "name": name,
            "client_id": instance or name,
            "client": client,
            "address": self.server.bootstrap_servers,
            "group": self.group,
            "topics": self.topics,
            "pattern": self.pattern,
            "instance": instance,
            "strategy": strategy,
            "session_ms": session_ms,
            "protocol": protocol,
        }
        member = Member(self.directory, options)
        self.present.append(member)
        return member

    def leave(self, member: Member) -> None:
        member.leave()
        self._gone(member)

    def crash(self, member: Member) -> None:
        member.crash()
        self._gone(member)

    def pause(self, member: Member) -> None:
        """It is still there, and the others do not hear of it."""
        member.pause()
        self._gone(member)

    def go_on(self, member: Member) -> None:
        self.past.remove(member)
        self.present.append(member)
        member.go_on()

    def _gone(self, member: Member) -> None:
        self.present.remove(member)
        self.past.append(member)

    def crash_all(self) -> None:
        for member in list(self.present):
            self.crash(member)
        for member in self.past:
            member.crash()  # one that is paused

    # What the broker says

    def describe(self) -> Described:
        """Of the new protocol, if the group is one of that."""
        with Connection(self.server.host, self.server.port) as connection:
            (row,) = connection.ask(
                "ConsumerGroupDescribe", 0, group_ids=[self.group], include_authorized_operations=False
            )["groups"]
        if row["error_code"]:
            return self._describe_classic()
        modern: dict[str, set[Partition]] = defaultdict(set)
        for member in row["members"]:
            topics = member["assignment"]["topic_partitions"]
            modern[member["client_id"]] |= {(one["topic_name"], n) for one in topics for n in one["partitions"]}
        return Described(row["group_state"], dict(modern), row["group_epoch"])

    def _describe_classic(self) -> Described:
        with Connection(self.server.host, self.server.port) as connection:
            (row,) = connection.ask("DescribeGroups", 5, groups=[self.group])["groups"]
        owners: dict[str, set[Partition]] = defaultdict(set)
        for member in row["members"]:
            owners[member["client_id"]] |= assigned(member["member_assignment"])
        return Described(row["group_state"], dict(owners))

    def committed(self) -> dict[Partition, int]:
        rows = [{"name": topic, "partition_indexes": list(range(self.partitions_a_topic))} for topic in self.topics]
        with Connection(self.server.host, self.server.port) as connection:
            answer = connection.ask("OffsetFetch", 7, group_id=self.group, topics=rows, require_stable=False)
        assert answer["error_code"] == 0, answer
        return {
            (topic["name"], part["partition_index"]): max(part["committed_offset"], 0)
            for topic in answer["topics"]
            for part in topic["partitions"]
        }

    # What must come to be

    def settle(self, patience_s: float = PATIENCE_S) -> float:
        """Wait until every partition has one owner, by the broker and by the members; returns how long it took."""
        started = time.monotonic()
        why = "?"
        while time.monotonic() < started + patience_s:
            for member in self.present:
                member.check_running()
            why = self._why_unsettled()
            if not why:
                return time.monotonic() - started
            time.sleep(0.05)
        raise AssertionError(f"{self.group} has not settled within {patience_s} s: {why}")

    def _why_unsettled(self) -> str:
        try:
            state, owners, _ = self.describe()
        except (OSError, WireClosed) as error:
            return f"no broker: {error}"
        if state != "Stable":
            return f"the group is {state}"
        if owners.keys() != {member.client_id for member in self.present}:
            return f"the broker knows {sorted(owners)}"
        if sorted(at for owned in owners.values() for at in owned) != sorted(self.partitions):
            return f"the broker has assigned {owners}"
        for member in self.present:
            mine, told = member.owned(), owners[member.client_id]
            if mine != told:
                return f"{member.name} works on {sorted(mine)}, the broker says {sorted(told)}"
        return ""

    def await_first_commits(self, patience_s: float = PATIENCE_S) -> None:
        """Every partition has a committed offset. librdkafka 2.16 may start again at the beginning of one that had none
        when its member was paused, whatever was committed meanwhile: a timer of the lost assignment goes on."""
        deadline = time.monotonic() + patience_s
        while not all((found := self.committed()).values()):
            assert time.monotonic() < deadline, f"{self.group}: committed {found}"
            time.sleep(0.05)

    def await_committed(self, wanted: dict[Partition, int], patience_s: float = PATIENCE_S) -> None:
        """Until all of it is committed, which no member can do without having read it."""
        deadline = time.monotonic() + patience_s
        while (found := self.committed()) != wanted:
            for member in self.present:
                member.check_running()
            assert time.monotonic() < deadline, f"{self.group}: committed {found}, written {wanted}"
            time.sleep(0.05)

    def acknowledged(self) -> dict[Partition, int]:
        """The highest commit that a member was told has succeeded."""
        highest: dict[Partition, int] = defaultdict(int)
        for member in (*self.present, *self.past):
            for event in member.events():
                if event["event"] == "committed":
                    highest[event["at"]] = max(highest[event["at"]], event["offset"])
        return dict(highest)

    def commits(self) -> int:
        members = (*self.present, *self.past)
        return sum(event["event"] == "committed" for member in members for event in member.events())

    def check(self) -> None:
        """Rules 1 to 4, over all that ever happened; members may be at work meanwhile."""
        before = self.committed()
        rows = [
            (event["time"], order, member.name, event)
            for member in (*self.present, *self.past)
            for order, event in enumerate(member.events())
        ]
        rows.sort(key=lambda row: row[:3])
        after = self.committed()
        modern = {member.name for member in (*self.present, *self.past) if member.is_modern}
        for at in self.partitions:
            check_one_owner(at, [(name, event) for _, _, name, event in rows], modern)
            done, acknowledged = check_partition(at, [(name, event) for _, _, name, event in rows])
            assert done >= before[at], f"{at}: {before[at]} records are committed and only {done} processed"
            assert after[at] >= acknowledged, f"{at}: {after[at]} is committed, and {acknowledged} was acknowledged"


def check_one_owner(at: Partition, events: Sequence[tuple[str, dict[str, Any]]], modern: Collection[str]) -> None:
    """Of what happened to one partition, in order. A member that crashed or is paused gives up nothing; one that goes
    on hears that its membership is over."""
    owners: set[str] = set()
    taken_by: dict[str, str] = {}
    for name, event in events:
        if event["event"] != "owns":
            continue
        if at in event["gained"]:
            taken_by |= dict.fromkeys(owners - {name}, name)
            owners.add(name)
        if at in event["lost"]:
            owners.discard(name)
            other = taken_by.pop(name, None)
            is_late = other is not None and name in modern and not event.get("expired")
            assert not is_late, f"{name} was asked to give {at} up when {other} had it already"


def check_partition(at: Partition, events: Sequence[tuple[str, dict[str, Any]]]) -> tuple[int, int]:
    """What happened to one partition, in order; returns how far it is processed, and committed as members know."""
    done = 0  # all records below are processed
    acknowledged = 0
    starts_at: dict[str, int] = {}  # who has gained the partition and not read yet: the least offset it may read
    for name, event in events:
        kind = event["event"]
        if kind == "owns" and at in event["gained"]:
            starts_at[name] = acknowledged
        elif event.get("at") != at:
            continue
        elif kind == "processed":
            first, last = event["first"], event["last"]
            least = starts_at.pop(name, None)
            if least is not None:
                assert first >= least, f"{name} reads {at} from {first}, and {least} was committed when it got it"
                assert first <= done, f"{name} reads {at} from {first}, and nobody has processed {done} to {first - 1}"
            done = max(done, last + 1)
        elif kind == "committed":
            acknowledged = max(acknowledged, event["offset"])
    return done, acknowledged


def assigned(data: bytes) -> set[Partition]:
    """The partitions in an assignment of the consumer protocol."""
    if not data:
        return set()
    found: set[Partition] = set()
    (count,) = struct.unpack_from(">i", data, 2)
    position = 6
    for _ in range(count):
        (size,) = struct.unpack_from(">h", data, position)
        topic = data[position + 2 : position + 2 + size].decode()
        position += 2 + size
        (many,) = struct.unpack_from(">i", data, position)
        found |= {(topic, index) for index in struct.unpack_from(f">{many}i", data, position + 4)}
        position += 4 + 4 * many
    return found


class Feed(threading.Thread):
    """Writes numbered records to all partitions of some topics until it is stopped; the value is the offset."""

    def __init__(self, server: Server, partitions: set[Partition], *, pause_s: float = 0.02) -> None:
        super().__init__(daemon=True)
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self.sent: dict[Partition, int] = dict.fromkeys(sorted(partitions), 0)
        self._failures: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": server.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": 300_000,
                "log_level": 0,
            }
        )
        self.start()

    def run(self) -> None:
        while not self._stopping.is_set():
            for (topic, index), number in self.sent.items():
                try:
                    self._producer.produce(topic, b"%d" % number, partition=index, on_delivery=self._on_delivery)
                except BufferError:
                    break
                self.sent[topic, index] = number + 1
            self._producer.poll(0)
            self._stopping.wait(self._pause_s)

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failures.append(str(error))

    def finish(self) -> dict[Partition, int]:
        """Stop, and tell how many records each partition has."""
        self._stopping.set()
        self.join(20)
        assert self._producer.flush(30) == 0
        assert not self._failures, self._failures[:3]
        return dict(self.sent)


@contextmanager
def crew(
    server: Server, directory: Path, group: str, topics: Sequence[str], partitions: int, **options: Any
) -> Iterator[Crew]:
    """A group whose members do not outlive the test."""
    made = Crew(server, directory, group, topics, partitions, **options)
    try:
        yield made
    finally:
        made.crash_all()


def create_topic(server: Server, name: str, partitions: int) -> None:
    row = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    with Connection(server.host, server.port) as connection:
        answer = connection.ask("CreateTopics", 5, topics=[row], timeout=10_000)["topics"][0]
        assert answer["error_code"] == 0, answer
        deadline = time.monotonic() + 10
        rows = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
        while time.monotonic() < deadline:
            offsets = connection.ask("ListOffsets", 2, replica_id=-1, topics=[{"name": name, "partitions": rows}])
            if all(part["error_code"] == 0 for part in offsets["topics"][0]["partitions"]):
                return
            time.sleep(0.02)
    raise AssertionError(f"{name} has no leaders")


def configure_group(server: Server, group: str, **settings: str) -> None:
    """Of the group alone, as `kafka-configs.sh --entity-type groups` does."""
    rows = [{"name": name.replace("_", "."), "config_operation": 0, "value": value} for name, value in settings.items()]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": rows}
    with Connection(server.host, server.port) as connection:
        (answer,) = connection.ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)["responses"]
    assert answer["error_code"] == 0, answer
