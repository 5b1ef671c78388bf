"""What a stock client sees at read_committed: how much at each moment, and everything at the end."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, TopicPartition

from access import GROUP
from names import PARTITIONS

READ_TIMEOUT_S = 60


def consumer_of(client: dict[str, str], topics: Sequence[str], *, from_end: bool = False) -> Consumer:
    consumer = Consumer(
        {
            **client,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": not from_end,
            "fetch.wait.max.ms": 50,
            "log_level": 0,  # the broker is killed under it
        }
    )
    start = OFFSET_END if from_end else OFFSET_BEGINNING
    consumer.assign([TopicPartition(topic, number, start) for topic in topics for number in range(PARTITIONS)])
    return consumer


@dataclass(frozen=True, slots=True)
class Row:
    partition: int
    key: str
    value: bytes


def read_all(client: dict[str, str], topic: str) -> list[Row]:
    """All that is visible in a topic, each partition in its order."""
    consumer = consumer_of(client, [topic])
    rows: list[Row] = []
    at_end: set[int] = set()
    deadline = time.monotonic() + READ_TIMEOUT_S
    while len(at_end) < PARTITIONS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} was not read to its end within {READ_TIMEOUT_S} s")
        for message in consumer.consume(1000, timeout=1.0):
            if message.error() is None:
                rows.append(Row(message.partition(), message.key().decode(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
    consumer.close()
    return rows


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    sent: int
    visible: dict[str, int]


class Watcher(threading.Thread):
    """Counts what is visible while everything runs."""

    def __init__(self, client: dict[str, str], topics: Sequence[str], sent: Sequence[object]) -> None:
        super().__init__(name="watcher", daemon=True)
        self.samples: list[Sample] = []
        self.marks: list[tuple[float, str]] = []
        self.visible = Counter(dict.fromkeys(topics, 0))
        self._sent, self._since = sent, time.monotonic()
        self._consumer = consumer_of(client, topics)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(1000, timeout=0.2):
                if message.error() is None:
                    self.visible[message.topic()] += 1
            self.samples.append(Sample(self.now_s, len(self._sent), dict(self.visible)))
        self._consumer.close()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._since

    def mark(self, what: str) -> None:
        self.marks.append((self.now_s, what))

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join()
