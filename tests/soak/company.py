"""Those who read and change things meanwhile.

group     members of two clients share a topic; now and then one crashes and another joins (`support.groups`)
copies    two clients copy in transactions, exactly once; now and then an instance is replaced (`support.txn_copies`)
readers   kafka-python in a fetch session, and twofold.aio.Consumer: every record of a hundred partitions once, and in
          order, as it comes
admin     topics are made, changed, grown and deleted; what was acknowledged is so
"""

import asyncio
import random
import threading
import time
from pathlib import Path

from kits.copying import copies as txn_copies
from kits.copying.copies import INPUT, SOURCES, Copy
from kits.groups.groups import Crew, Feed, Server, create_topic
from oracle.driver import Connection, WireClosed
from soak.loads import PATIENCE_S, Numbered

TOPIC_CONFIG = 2
SET = 0


class Group:
    """Two members, one of them replaced from time to time."""

    CLIENTS = ("confluent-kafka", "kafka-python")
    PARTITIONS = 4

    def __init__(self, server: Server, directory: Path, change_every_s: float) -> None:
        self.name = "group"
        self._topic = "grouped"
        create_topic(server, self._topic, self.PARTITIONS)
        self._crew = Crew(server, directory, "soak-group", [self._topic], self.PARTITIONS)
        self._server = server
        self._every_s = change_every_s
        self._turn = 0
        self.replaced = 0

    def start(self) -> None:
        self._feed = Feed(self._server, self._crew.partitions, pause_s=0.1)
        for client in self.CLIENTS:
            self._crew.add(client)
        self._next_s = time.monotonic() + self._every_s

    @property
    def done(self) -> int:
        return sum(self._feed.sent.values())

    def complaint(self) -> str:
        try:
            for member in self._crew.present:
                member.check_running()
        except AssertionError as error:
            return str(error)
        return ""

    def tick(self) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + self._every_s
        self._crew.crash(self._crew.present[0])
        self._crew.add(self.CLIENTS[self._turn % 2])
        self._turn += 1
        self.replaced += 1

    def finish(self) -> None:
        self._crew.await_committed(self._feed.finish(), PATIENCE_S)
        for member in list(self._crew.present):
            self._crew.leave(member)

    def check(self) -> dict[str, int]:
        self._crew.check()
        return {"records": self.done, "commits": self._crew.commits(), "members replaced": self.replaced}

    def close(self) -> None:
        self._crew.crash_all()


class Copies:
    """One input, copied by two clients at once, each to a topic of its own."""

    CLIENTS = ("confluent-kafka", "kafka-python")

    def __init__(
        self, server: txn_copies.Server, directory: Path, seconds: float, rate: float, change_every_s: float
    ) -> None:
        self.name = "copies"
        self._count = int(seconds * rate)
        create_topic(server, INPUT, SOURCES)
        self._feed = txn_copies.Feed(server, self._count, seconds)
        self._copies = [Copy(server, directory, client, self._count) for client in self.CLIENTS]
        self._every_s = change_every_s
        self._turn = 0
        self._done = 0
        self._ended: set[str] = set()
        self.replaced = 0

    def start(self) -> None:
        for copy in self._copies:
            copy.start()
        self._feed.start()
        self._next_s = time.monotonic() + self._every_s

    @property
    def done(self) -> int:
        return self._done

    def complaint(self) -> str:
        for copy in self._copies:
            for instance in copy.instances:
                if instance.running or instance.name in self._ended or instance.name in copy.crashed:
                    continue
                self._ended.add(instance.name)  # its journal is long: look once
                if not instance.has("fenced"):
                    return instance.why_it_ended()
        return "; ".join(self._feed.failures[:3])

    def tick(self) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + self._every_s
        copy = self._copies[self._turn % len(self._copies)]
        if copy.is_settled:
            copy.replace() if self._turn % 4 < 2 else copy.take_over()
            self.replaced += 1
        self._turn += 1

    def finish(self) -> None:
        self._feed.join(PATIENCE_S)
        assert not self._feed.is_alive(), "the input of the copies is not written"
        assert not self._feed.failures, self._feed.failures[:3]
        deadline = time.monotonic() + PATIENCE_S
        while not all(copy.finished() for copy in self._copies):
            assert time.monotonic() < deadline, "not all of the input is copied"
            assert not self.complaint(), self.complaint()
            time.sleep(0.2)
        for copy in self._copies:
            copy.end()
        self._done = self._count * len(self._copies)

    def check(self) -> dict[str, int]:
        happened = [copy.check() for copy in self._copies]
        return {
            "records": self._done,
            "committed": sum(row.get("committed", 0) for row in happened),
            "aborted": sum(row.get("aborting", 0) for row in happened),
            "instances replaced": self.replaced,
        }

    def close(self) -> None:
        for copy in self._copies:
            copy.crash()


class Reader(threading.Thread):
    """Follows a load and wants each record once, in the order of the offsets."""

    def __init__(self, load: Numbered, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.name = name
        self.load = load
        self.next = [0] * load.partitions
        self.failures: list[str] = []
        self.stopping = threading.Event()

    @property
    def done(self) -> int:
        return sum(self.next)

    def complaint(self) -> str:
        return self.failures[0] if self.failures else ""

    def tick(self) -> None:
        pass

    def saw(self, partition: int, offset: int) -> None:
        if offset != self.next[partition]:
            self.failures.append(f"{self.name}: partition {partition}: {offset} instead of {self.next[partition]}")
        self.next[partition] = offset + 1

    def run(self) -> None:
        try:
            self.read()
        except BaseException as error:
            self.failures.append(f"{self.name}: {error!r}")

    def read(self) -> None:
        """kafka-python, which opens a fetch session."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=self.load.server.bootstrap_servers, enable_auto_commit=False, group_id=None,
            auto_offset_reset="earliest", reconnect_backoff_ms=20, reconnect_backoff_max_ms=200, retry_backoff_ms=20,
        )  # fmt: skip
        consumer.assign([TopicPartition(self.load.name, index) for index in range(self.load.partitions)])
        while not self.stopping.is_set():
            for rows in consumer.poll(timeout_ms=200).values():
                for row in rows:
                    self.saw(row.partition, row.offset)
        consumer.close()

    def finish(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.done < self.load.sent and not self.failures:
            assert time.monotonic() < deadline, f"{self.name}: {self.done} of {self.load.sent} were read"
            time.sleep(0.05)
        self.stopping.set()
        self.join(30)

    def check(self) -> dict[str, int]:
        assert not self.failures, self.failures[:3]
        assert self.done == self.load.sent, f"{self.done} were read and {self.load.sent} written"
        return {"records": self.done}


class OurReader(Reader):
    """twofold.aio.Consumer."""

    def read(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        from twofold.aio import Consumer
        from twofold.types import TopicPartition
        from twofold.wire.errors import RetriableError

        async with Consumer(
            bootstrap_servers=self.load.server.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([TopicPartition(self.load.name, index) for index in range(self.load.partitions)])
            while not self.stopping.is_set():
                try:
                    rows = await consumer.poll(200)
                except RetriableError:
                    continue  # the broker is away for longer than a request may take
                for row in rows:
                    self.saw(row.partition, row.offset)


class Admin(threading.Thread):
    """Keeps a list of topics as it was told they are; where it was told nothing, it looks."""

    PAUSE_S = 0.5
    MOST = 12

    def __init__(self, server: Server, seed: int) -> None:
        super().__init__(daemon=True, name="admin")
        self.name = "admin"
        self._server = server
        self._chance = random.Random(seed)
        self._topics: dict[str, int] = {}  # partitions
        self._count = 0
        self._steps = 0
        self._unknown = 0
        self._stopping = threading.Event()
        self.failures: list[str] = []

    @property
    def done(self) -> int:
        return self._steps

    def complaint(self) -> str:
        return self.failures[0] if self.failures else ""

    def tick(self) -> None:
        pass

    def run(self) -> None:
        while not self._stopping.wait(self.PAUSE_S):
            doing = ""
            try:
                with Connection(self._server.host, self._server.port) as connection:
                    doing = self._chance.choice(list(self._topics)) if self._topics else ""
                    if doing:
                        self._look(connection, doing)
                    doing = self._step(connection, doing)
                    self._steps += 1
            except (OSError, WireClosed):
                if doing:
                    self._unknown += 1
                    self._topics.pop(doing, None)  # either is right
            except AssertionError as error:
                self.failures.append(f"admin: {error}")
                return

    def _step(self, connection: Connection, name: str) -> str:
        """Returns the topic that it is about; where the connection breaks the state of that one is not known."""
        if not name or (len(self._topics) < self.MOST and self._chance.random() < 0.4):
            self._count += 1
            name = f"soak-admin-{self._count}"
            row = {"name": name, "num_partitions": 2, "replication_factor": 1}
            answer = connection.ask("CreateTopics", 5, topics=[row], timeout=10_000)["topics"][0]
            assert answer["error_code"] == 0, f"{name}: {answer}"
            self._topics[name] = 2
            return name
        what = self._chance.random()
        known = self._topics.pop(name)  # until the answer is there
        if what < 0.35:
            rows = [{"name": name, "count": known + 1, "assignments": None}]
            answer = connection.ask("CreatePartitions", 1, topics=rows, timeout=10_000, validate_only=False)
            assert answer["results"][0]["error_code"] == 0, f"{name}: {answer}"
            self._topics[name] = known + 1
        elif what < 0.7:
            value = str(self._chance.randint(1, 9) * 100_000)
            configs = [{"name": "retention.ms", "config_operation": SET, "value": value}]
            rows = [{"resource_type": TOPIC_CONFIG, "resource_name": name, "configs": configs}]
            answer = connection.ask("IncrementalAlterConfigs", 0, resources=rows, validate_only=False)
            assert answer["responses"][0]["error_code"] == 0, f"{name}: {answer}"
            self._topics[name] = known
        else:
            answer = connection.ask("DeleteTopics", 4, topic_names=[name], timeout=10_000)
            assert answer["responses"][0]["error_code"] == 0, f"{name}: {answer}"
            self._look(connection, name)
        return name

    def _look(self, connection: Connection, name: str) -> None:
        answer = connection.ask("Metadata", 4, topics=[{"name": name}], allow_auto_topic_creation=False)
        (row,) = answer["topics"]
        found = len(row["partitions"]) if row["error_code"] == 0 else 0
        wanted = self._topics.get(name, 0)
        assert found == wanted, f"{name} has {found} partitions, and {wanted} were acknowledged"

    def finish(self) -> None:
        self._stopping.set()
        self.join(30)

    def check(self) -> dict[str, int]:
        assert not self.failures, self.failures[0]
        with Connection(self._server.host, self._server.port) as connection:
            for name in self._topics:
                self._look(connection, name)
        return {"records": 0, "changes": self._steps, "cut short": self._unknown}
