"""One member of a consumer group as a program, with the client that it is told to use.

It reads, commits what it has read and writes down what happens, one line of JSON an event, each with a time that all
processes of the machine share. SIGTERM lets it leave as its client does; kill -9 is a crash.

    owns       the partitions that it has now; `gained` are those for which it reads the committed offset; `expired`
               says that what is `lost` was another member's by then
    processed  offsets `first` to `last` of a partition, in order
    committed  the broker has acknowledged `offset` for a partition
    refused    a commit that failed; its records may be read again by the next owner
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SESSION_TIMEOUT_MS = 6000
HEARTBEAT_MS = 300
POLL_S = 0.1
BATCH = 200

Partition = tuple[str, int]


class Journal:
    """What happened, in a file that the test reads while it is written."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self.owned: set[Partition] = set()

    def write(self, event: str, **what: Any) -> None:
        self._file.write(json.dumps({"event": event, "time": time.monotonic(), **what}) + "\n")

    def gained(self, partitions: Iterable[Partition]) -> None:
        gained = set(partitions)
        self.owned |= gained
        self.write("owns", owned=sorted(self.owned), gained=sorted(gained), lost=[])

    def lost(self, partitions: Iterable[Partition], *, expired: bool = False) -> None:
        """Asked to give them up, or too late for that: the membership is over already."""
        lost = set(partitions)
        self.owned -= lost
        self.write("owns", owned=sorted(self.owned), gained=[], lost=sorted(lost), expired=expired)

    def processed(self, at: Partition, offsets: Sequence[int], numbers: Sequence[int]) -> None:
        assert list(offsets) == list(range(offsets[0], offsets[-1] + 1)), f"{at}: a gap in {offsets}"
        assert list(offsets) == list(numbers), f"{at}: the record at an offset carries its number"
        self.write("processed", at=at, first=offsets[0], last=offsets[-1])

    def committed(self, offsets: dict[Partition, int]) -> None:
        for at, offset in offsets.items():
            self.write("committed", at=at, offset=offset)

    def refused(self, error: BaseException) -> None:
        self.write("refused", error=f"{type(error).__name__}: {error}")


class Stop:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def confluent(options: SimpleNamespace, journal: Journal, stop: Stop) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings: dict[str, Any] = {
        "bootstrap.servers": options.address,
        "client.id": options.client_id,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "group.protocol": options.protocol,
        "topic.metadata.refresh.interval.ms": 500,
        "metadata.max.age.ms": 2000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 300,
        "fetch.wait.max.ms": 100,
        "log_level": 0,
    }
    if options.protocol == "classic":
        settings["session.timeout.ms"] = options.session_ms
        settings["heartbeat.interval.ms"] = HEARTBEAT_MS
        settings["partition.assignment.strategy"] = options.strategy
    if options.instance:
        settings["group.instance.id"] = options.instance
    consumer = Consumer(settings)

    def names(partitions: Iterable[Any]) -> list[Partition]:
        return [(row.topic, row.partition) for row in partitions]

    def on_revoke(_: Any, partitions: Any) -> None:
        journal.lost(names(partitions))

    def on_lost(_: Any, partitions: Any) -> None:
        journal.lost(names(partitions), expired=True)

    topics = [f"^{options.pattern}"] if options.pattern else options.topics
    consumer.subscribe(
        topics, on_assign=lambda _, rows: journal.gained(names(rows)), on_revoke=on_revoke, on_lost=on_lost
    )
    while not stop.asked:
        batches: dict[Partition, list[Any]] = {}
        for message in consumer.consume(BATCH, POLL_S):
            if message.error() is None:
                topic, partition = message.topic(), message.partition()
                assert topic is not None
                assert partition is not None
                batches.setdefault((topic, partition), []).append(message)
        for at, batch in batches.items():
            if at in journal.owned:
                journal.processed(at, [row.offset() for row in batch], [int(row.value()) for row in batch])
        offsets = {at: batch[-1].offset() + 1 for at, batch in batches.items() if at in journal.owned}
        if offsets:
            try:
                rows = [TopicPartition(*at, offset) for at, offset in offsets.items()]
                done = consumer.commit(offsets=rows, asynchronous=False)
                journal.committed({(row.topic, row.partition): row.offset for row in done if row.error is None})
            except KafkaException as error:
                journal.refused(error)
    consumer.close()


def kafka_python(options: SimpleNamespace, journal: Journal, stop: Stop) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            journal.lost((row.topic, row.partition) for row in revoked)

        def on_partitions_assigned(self, assigned: Any) -> None:
            journal.gained((row.topic, row.partition) for row in assigned)

    consumer = KafkaConsumer(
        bootstrap_servers=options.address,
        client_id=options.client_id,
        group_id=options.group,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=[RangePartitionAssignor],
        metadata_max_age_ms=500,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=300,
        fetch_max_wait_ms=100,
        max_poll_records=BATCH,
    )
    if options.pattern:
        consumer.subscribe(pattern=f"^{options.pattern}", listener=Listener())
    else:
        consumer.subscribe(options.topics, listener=Listener())
    while not stop.asked:
        try:
            # It returns as soon as there are records. kafka-python 3.0.12 forgets a join that a new topic has caused
            # when the poll that started it ends before the join does, and then its session expires.
            batches = consumer.poll(timeout_ms=5000)
            for at, batch in batches.items():
                journal.processed(
                    (at.topic, at.partition), [row.offset for row in batch], [int(row.value) for row in batch]
                )
            if batches:
                offsets = {at: OffsetAndMetadata(batch[-1].offset + 1, "", -1) for at, batch in batches.items()}
                consumer.commit(offsets)
                journal.committed({(at.topic, at.partition): row.offset for at, row in offsets.items()})
        except KafkaError as error:
            journal.refused(error)
    consumer.close()


async def aiokafka(options: SimpleNamespace, journal: Journal, stop: Stop) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: Any) -> None:
            journal.lost((row.topic, row.partition) for row in revoked)

        async def on_partitions_assigned(self, assigned: Any) -> None:
            journal.gained((row.topic, row.partition) for row in assigned)

    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.address,
        client_id=options.client_id,
        group_id=options.group,
        group_instance_id=options.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
        partition_assignment_strategy=(RangePartitionAssignor,),
        metadata_max_age_ms=500,
        retry_backoff_ms=50,
        fetch_max_wait_ms=100,
        max_poll_records=BATCH,
    )
    if options.pattern:
        consumer.subscribe(pattern=f"^{options.pattern}", listener=Listener())
    else:
        consumer.subscribe(options.topics, listener=Listener())
    await consumer.start()
    try:
        while not stop.asked:
            try:
                batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                for at, batch in batches.items():
                    journal.processed(
                        (at.topic, at.partition), [row.offset for row in batch], [int(row.value) for row in batch]
                    )
                if batches:
                    offsets = {at: batch[-1].offset + 1 for at, batch in batches.items()}
                    await consumer.commit(offsets)
                    journal.committed({(at.topic, at.partition): offset for at, offset in offsets.items()})
            except KafkaError as error:
                journal.refused(error)
    finally:
        await consumer.stop()


def twofold_settings(options: SimpleNamespace) -> dict[str, Any]:
    classic = {"heartbeat_interval_ms": HEARTBEAT_MS, "partition_assignment_strategy": options.strategy}
    return {
        "bootstrap_servers": options.address,
        "client_id": options.client_id,
        "group_id": options.group,
        "group_instance_id": options.instance,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": options.session_ms,
        "group_protocol": options.protocol,
        **(classic if options.protocol == "classic" else {}),
        "metadata_max_age_ms": 500,
        "retry_backoff_ms": 50,
        "fetch_max_wait_ms": 100,
        "max_poll_records": BATCH,
    }


def twofold_listener(journal: Journal) -> Any:
    from twofold import RebalanceListener

    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions: Any) -> None:
            journal.lost(partitions)

        def on_partitions_assigned(self, partitions: Any) -> None:
            journal.gained(partitions)

        def on_partitions_lost(self, partitions: Any) -> None:
            journal.lost(partitions, expired=True)

    return Listener()


def note_processed(records: Sequence[Any], journal: Journal) -> dict[Partition, int]:
    """What was read of each partition goes into the journal; the offsets to commit."""
    batches: dict[Partition, list[Any]] = {}
    for record in records:
        batches.setdefault((record.topic, record.partition), []).append(record)
    for at, batch in batches.items():
        journal.processed(at, [row.offset for row in batch], [int(row.value) for row in batch])
    return {at: batch[-1].offset + 1 for at, batch in batches.items()}


def twofold(options: SimpleNamespace, journal: Journal, stop: Stop) -> None:
    from twofold import Consumer, TopicPartition
    from twofold.errors import KafkaError

    consumer = Consumer(**twofold_settings(options))
    topics = () if options.pattern else options.topics
    consumer.subscribe(topics, pattern=options.pattern or None, listener=twofold_listener(journal))
    while not stop.asked:
        try:
            offsets = note_processed(consumer.poll(int(POLL_S * 1000)), journal)
            if offsets:
                consumer.commit({TopicPartition(*at): offset for at, offset in offsets.items()})
                journal.committed(offsets)
        except KafkaError as error:
            journal.refused(error)
    consumer.close()


async def twofold_aio(options: SimpleNamespace, journal: Journal, stop: Stop) -> None:
    from twofold.aio import Consumer
    from twofold.errors import KafkaError
    from twofold.types import TopicPartition

    consumer = Consumer(**twofold_settings(options))
    topics = () if options.pattern else options.topics
    consumer.subscribe(topics, pattern=options.pattern or None, listener=twofold_listener(journal))
    while not stop.asked:
        try:
            offsets = note_processed(await consumer.poll(int(POLL_S * 1000)), journal)
            if offsets:
                await consumer.commit({TopicPartition(*at): offset for at, offset in offsets.items()})
                journal.committed(offsets)
        except KafkaError as error:
            journal.refused(error)
    await consumer.close()


SYNCHRONOUS = {"confluent-kafka": confluent, "kafka-python": kafka_python, "twofold": twofold}
ASYNCHRONOUS = {"aiokafka": aiokafka, "twofold-aio": twofold_aio}


def main() -> None:
    options = SimpleNamespace(**json.loads(sys.argv[1]))
    journal, stop = Journal(Path(options.journal)), Stop()
    if options.client in ASYNCHRONOUS:
        asyncio.run(ASYNCHRONOUS[options.client](options, journal, stop))
    else:
        SYNCHRONOUS[options.client](options, journal, stop)
    journal.write("left")


if __name__ == "__main__":
    main()
