"""What the Spark examples have in common: a broker, a session, a stock client that writes and reads, a crash."""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from rich.console import Console

TWO_PHASE_COMMIT = {"transaction.two.phase.commit.enable": "true", "transaction.heartbeat.enable": "true"}
PATIENCE_S = 30


@dataclass(frozen=True, slots=True)
class Row:
    partition: int
    key: str | None
    value: str


def session(name: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that has Twofold, for Spark's workers too
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.python.unix.domain.socket.enabled": "true",  # 40 ms less for every task
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def create(servers: str, *topics: str, partitions: int = 2, **settings: str) -> None:
    wanted = [NewTopic(topic, partitions, config=settings) for topic in topics]
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics(wanted).values():
        created.result(PATIENCE_S)


def delete(servers: str, *topics: str) -> None:
    """Those that are not there are no problem."""
    admin = AdminClient({"bootstrap.servers": servers})
    for deleted in admin.delete_topics(list(topics)).values():
        deleted.exception(PATIENCE_S)


def send(servers: str, topic: str, rows: Iterable[tuple[str, str | None]]) -> None:
    """Keys and values; a value of None is a tombstone."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for key, value in rows:
        producer.produce(topic, value, key)
    if left := producer.flush(PATIENCE_S):
        raise TimeoutError(f"{left} records for {topic} were not acknowledged within {PATIENCE_S} s")


def read(servers: str, topic: str) -> list[Row]:
    """All that a stock client sees at read_committed, each partition in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        rows: list[Row] = []
        at_end: set[int] = set()
        while len(at_end) < len(partitions):
            message = consumer.poll(PATIENCE_S)
            if message is None:
                raise TimeoutError(f"{topic} was not read to its end within {PATIENCE_S} s")
            if message.error() is None:
                key = message.key()
                rows.append(Row(message.partition(), key and key.decode(), message.value().decode()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise KafkaException(message.error())
        return rows
    finally:
        consumer.close()


def forget_last_commit(checkpoint: Path) -> int:
    """What a driver leaves that dies after the rows of a batch are visible and before Spark has noted that it is done:
    everything but the note. The batch's number."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last


def conclude(proven: Mapping[str, bool]) -> int:
    """Says what was proven and what was not; the exit code."""
    console = Console()
    for claim, holds in proven.items():
        console.print(f"[green]proven[/]  {claim}" if holds else f"[bold red]FALSE   {claim}", soft_wrap=True)
    return 0 if proven and all(proven.values()) else 1
