"""Those who write: numbered records, at a steady rate, whatever happens to the broker; and what must be there then.

Each load has a topic of its own. The value begins with the number of the record; number n goes to partition n modulo
the number of partitions, and has the key n modulo KEYS.

    idempotent   confluent-kafka: every number once, in order, at the offset that was acknowledged
    ours         twofold.Producer: the same
    wide         the same over a hundred partitions, which two readers follow
    plain        without idempotence, one request at a time: nothing acknowledged is missing, first occurrences in order
    compacted    a few keys over and over, some of them deleted: the last word of each key, and less than was written
    retained     old segments go: the rest is without gaps up to the last number
"""

import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from kits.groups.groups import Server
from kits.wire.look import ends
from oracle.driver import Connection

KEYS = 50
NONE = -1
STEP_S = 0.02
PATIENCE_S = 120.0
PADDING = b" " + b"x" * 100
TOMBSTONE_EVERY = 37


class Load(Protocol):
    """Something that goes on while the broker is killed."""

    name: str

    def start(self) -> None: ...

    @property
    def done(self) -> int:
        """What was acknowledged so far, for the progress bar."""

    def complaint(self) -> str:
        """What is wrong already; empty as long as nothing is."""

    def tick(self) -> None:
        """Called all the time, from one thread."""

    def finish(self) -> None:
        """Write no more, and have everything acknowledged."""

    def check(self) -> dict[str, int]:
        """AssertionError where something is lost, doubled or out of order; else what to report."""


class Read(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None

    @property
    def number(self) -> int:
        assert self.value is not None
        return int(self.value.split(b" ", 1)[0])


def read_all(address: str, topic: str, partitions: int) -> Iterator[Read]:
    """The whole topic at read_committed, by a client that keeps no sessions."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "soak",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    at_end: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(at_end) < partitions:
        assert time.monotonic() < deadline, f"{topic}: only the ends of {sorted(at_end)} were reached"
        for message in consumer.consume(10_000, 0.5):
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None
            if error is None:
                assert offset is not None
                deadline = time.monotonic() + PATIENCE_S
                yield Read(partition, offset, message.key(), message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(partition)
    consumer.close()


def create_topic(server: Server, name: str, partitions: int, configs: Mapping[str, str]) -> None:
    rows = [{"name": key, "value": value} for key, value in configs.items()]
    row = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
    with Connection(server.host, server.port) as connection:
        answer = connection.ask("CreateTopics", 5, topics=[row], timeout=10_000)["topics"][0]
    assert answer["error_code"] == 0, answer


class Numbered(threading.Thread):
    """A confluent-kafka producer in a thread."""

    partitions: ClassVar[int] = 3
    configs: ClassVar[Mapping[str, str]] = {"retention.ms": "-1"}
    options: ClassVar[Mapping[str, Any]] = {"enable.idempotence": True}

    def __init__(self, server: Server, name: str, rate: float) -> None:
        super().__init__(daemon=True, name=name)
        self.name = name
        self.server = server
        self.sent = 0
        self.offsets = array("q")  # by number, NONE until it is acknowledged
        self.failures: list[str] = []
        self._acknowledged = 0
        self._rate = rate
        self._stopping = threading.Event()
        self._over = threading.Event()
        create_topic(server, name, self.partitions, self.configs)

    @property
    def done(self) -> int:
        return self._acknowledged

    def complaint(self) -> str:
        return self.failures[0] if self.failures else ""

    def tick(self) -> None:
        pass

    def run(self) -> None:
        try:
            self.open()
            started = time.monotonic()
            while not self._stopping.wait(STEP_S):
                due = int((time.monotonic() - started) * self._rate)
                while self.sent < due and self.send(self.sent):
                    self.offsets.append(NONE)
                    self.sent += 1
                self.serve()
            self.close()
        except BaseException as error:
            self.failures.append(repr(error))
        finally:
            self._over.set()

    def finish(self) -> None:
        self._stopping.set()
        assert self._over.wait(PATIENCE_S), f"{self.name}: not everything is acknowledged after {PATIENCE_S} s"
        assert not self.failures, f"{self.name}: {self.failures[:3]}"
        assert self._acknowledged == self.sent, f"{self.name}: {self._acknowledged} of {self.sent} are acknowledged"

    def acknowledge(self, number: int, offset: int) -> None:
        self.offsets[number] = offset
        self._acknowledged += 1

    def key(self, number: int) -> bytes:
        return b"%d" % (number % KEYS)

    def value(self, number: int) -> bytes | None:
        return b"%d" % number + PADDING

    # The client

    def open(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.server.bootstrap_servers,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "log_level": 0,
                **self.options,
            }
        )

    def send(self, number: int) -> bool:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(f"{self.name}: number {number} was refused: {error}")
            else:
                self.acknowledge(number, message.offset())

        try:
            self._producer.produce(
                self.name, self.value(number), self.key(number), number % self.partitions, on_delivery=delivered
            )
        except BufferError:
            return False
        return True

    def serve(self) -> None:
        self._producer.poll(0)

    def close(self) -> None:
        left = self._producer.flush(PATIENCE_S)
        assert left == 0, f"{left} records are not acknowledged"
        del self._producer

    # What must hold

    def check(self) -> dict[str, int]:
        rows = list(read_all(self.server.bootstrap_servers, self.name, self.partitions))
        check_once_and_in_order(rows, self.offsets, self.partitions)
        return {"records": self.sent}


class Wide(Numbered):
    partitions: ClassVar[int] = 100


class Ours(Numbered):
    """twofold.Producer, which is idempotent unless told otherwise."""

    def open(self) -> None:
        from twofold import Producer as OurProducer

        self._ours = OurProducer(
            bootstrap_servers=self.server.bootstrap_servers, linger_ms=5, delivery_timeout_ms=300_000
        )
        self._open: deque[tuple[int, Any]] = deque()

    def send(self, number: int) -> bool:
        value, key, partition = self.value(number), self.key(number), number % self.partitions
        self._open.append((number, self._ours.send(self.name, value, key=key, partition=partition)))
        return True

    def serve(self) -> None:
        while self._open and self._open[0][1].done:
            self._settle()

    def _settle(self) -> None:
        number, delivery = self._open.popleft()
        self.acknowledge(number, delivery.result(PATIENCE_S).offset)

    def close(self) -> None:
        self._ours.flush()
        while self._open:
            self._settle()
        self._ours.close()


class Plain(Numbered):
    options: ClassVar[Mapping[str, Any]] = {
        "enable.idempotence": False,
        "acks": "all",
        "max.in.flight.requests.per.connection": 1,
    }

    def check(self) -> dict[str, int]:
        rows = list(read_all(self.server.bootstrap_servers, self.name, self.partitions))
        doubled = check_at_least_once(rows, self.offsets, self.partitions)
        return {"records": self.sent, "doubled, as may be": doubled}


class Compacted(Numbered):
    partitions: ClassVar[int] = 2
    configs: ClassVar[Mapping[str, str]] = {
        "cleanup.policy": "compact",
        "segment.ms": "4000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "1000",
    }

    def value(self, number: int) -> bytes | None:
        return None if number % TOMBSTONE_EVERY == 0 else super().value(number)

    def check(self) -> dict[str, int]:
        rows = list(read_all(self.server.bootstrap_servers, self.name, self.partitions))
        last = {(self.key(n), n % self.partitions): n for n in range(self.sent)}
        check_last_words(rows, {where: (n, self.value(n) is None) for where, n in last.items()})
        return {"records": self.sent, "left": len(rows)}


class Retained(Numbered):
    partitions: ClassVar[int] = 1
    configs: ClassVar[Mapping[str, str]] = {"retention.ms": "10000", "segment.ms": "4000"}

    def check(self) -> dict[str, int]:
        rows = list(read_all(self.server.bootstrap_servers, self.name, self.partitions))
        check_suffix(rows, self.offsets)
        assert ends(self.server, self.name, self.partitions, committed=True) == [self.sent]
        return {"records": self.sent, "left": len(rows)}


# What must hold, on rows in the order of their offsets in each partition


def check_once_and_in_order(rows: list[Read], offsets: "array[int]", partitions: int) -> None:
    numbers: list[list[int]] = [[] for _ in range(partitions)]
    for row in rows:
        numbers[row.partition].append(row.number)
        acknowledged = offsets[row.number]
        assert acknowledged == row.offset, f"{row.number} is at {row.offset}, and {acknowledged} was acknowledged"
    for index, found in enumerate(numbers):
        wanted = list(range(index, len(offsets), partitions))
        if found == wanted:
            continue
        lost = sorted(set(wanted) - set(found))
        twice = [number for number, many in Counter(found).items() if many > 1]
        raise AssertionError(
            f"partition {index}: {len(lost)} lost {lost[:5]}, {len(twice)} doubled {twice[:5]}, "
            f"{'in' if sorted(found) == found else 'out of'} order"
        )


def check_at_least_once(rows: list[Read], offsets: "array[int]", partitions: int) -> int:
    """Returns how many are there more than once."""
    first: list[dict[int, int]] = [{} for _ in range(partitions)]
    for row in rows:
        first[row.partition].setdefault(row.number, row.offset)
    for index, found in enumerate(first):
        lost = sorted(set(range(index, len(offsets), partitions)) - found.keys())
        assert not lost, f"partition {index}: {len(lost)} were acknowledged and are lost: {lost[:5]}"
        assert list(found) == sorted(found), f"partition {index}: first occurrences are out of order"
    return len(rows) - sum(map(len, first))


def check_last_words(rows: list[Read], last: Mapping[tuple[bytes, int], tuple[int, bool]]) -> None:
    """`last`: by key and partition, the number written last and whether that was a deletion."""
    found: dict[tuple[bytes, int], Read] = {}
    for row in rows:
        assert row.key is not None
        where = (row.key, row.partition)
        before = found.get(where)
        if before is not None and before.value is not None and row.value is not None:
            assert before.number < row.number, f"{where}: {row.number} comes after {before.number}"
        found[where] = row
    for where, (number, deleted) in last.items():
        left = found.get(where)
        if deleted:
            assert left is None or left.value is None, f"{where}: deleted by {number}, and {left} is left"
        else:
            assert left is not None, f"{where}: nothing is left, and {number} was written last"
            assert left.value is not None, f"{where}: it is deleted, and {number} was written last"
            assert left.number == number, f"{where}: {left.number} is left, and {number} was written last"


def check_suffix(rows: list[Read], offsets: "array[int]") -> None:
    numbers = [row.number for row in rows]  # none where nothing was written for so long that all of it is gone
    wanted = list(range(numbers[0], len(offsets))) if numbers else []
    assert numbers == wanted, f"gaps between {numbers[0]} and {len(offsets)}"
    for row in rows:
        assert offsets[row.number] == row.offset, f"{row.number} is at {row.offset}, not {offsets[row.number]}"
