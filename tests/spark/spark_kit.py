"""What the tests of the Spark source have in common: topics, records, frames, queries."""

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException

PATIENCE_S = 60
OLD_MS = 1_700_000_000_000


class Kit:
    def __init__(self, spark: Any, bootstrap_servers: str, form: str, directory: Path) -> None:
        self.spark = spark
        self.bootstrap_servers = bootstrap_servers
        self.form = form
        self.directory = directory
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._queries: list[Any] = []

    def close(self) -> None:
        for query in self._queries:
            query.stop()

    # Topics and records

    def topic(self, partitions: int = 2, name: str | None = None, **config: str) -> str:
        name = name or f"t{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        _done(self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
        return name

    def delete(self, topic: str) -> None:
        _done(self.admin.delete_topics([topic]))

    def grow(self, topic: str, partitions: int) -> None:
        _done(self.admin.create_partitions([NewPartitions(topic, partitions)]))

    def send(self, topic: str, values: Iterable[Any], partition: int | None = None, **settings: Any) -> None:
        """Numbers go to partitions 0 and 1 in turn; dicts are what produce() takes."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "message.max.bytes": 20_000_000, **settings})
        for value in values:
            if not isinstance(value, dict):
                value = {"value": b"%d" % value, "partition": value % 2 if partition is None else partition}
            producer.produce(topic, **value)
        assert producer.flush(PATIENCE_S) == 0

    def transaction(self, topic: str, values: Iterable[Any], *, commit: bool = True, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value=b"%d" % value, partition=partition)
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.flush(PATIENCE_S)  # what is aborted must be in the log, not only in the client
            producer.abort_transaction(PATIENCE_S)

    def open_transaction(self, topic: str, values: Iterable[Any], partition: int = 0) -> Producer:
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value=b"%d" % value, partition=partition)
        producer.flush(PATIENCE_S)
        return producer

    def topic_that_lost(self, lost: int, partitions: int = 1) -> str:
        """A topic whose first records retention took away."""
        topic = self.topic(partitions, retention_ms="3600000")
        for partition in range(partitions):
            old = {"value": b"old", "partition": partition, "timestamp": OLD_MS}
            self.send(topic, [old] * lost)
            self.wait_for(partial(self._starts_at, topic, partition, lost))
        return topic

    def _starts_at(self, topic: str, partition: int, offset: int) -> bool:
        return self.watermarks(topic, partition)[0] == offset

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "kit"})
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_S)
        finally:
            consumer.close()

    # Frames

    def batch(self, **options: Any) -> Any:
        return self._load(self.spark.read, options)

    def stream(self, **options: Any) -> Any:
        return self._load(self.spark.readStream, options)

    def _load(self, reader: Any, options: Mapping[str, Any]) -> Any:
        reader = reader.format(self.form).option("kafka.bootstrap.servers", self.bootstrap_servers)
        for name, value in options.items():
            if isinstance(value, dict):
                value = json.dumps(value)
            reader = reader.option(name.replace("__", "."), value)
        return reader.load()

    def values(self, **options: Any) -> list[int]:
        """What a batch query reads, sorted."""
        return sorted(int(row.value) for row in self.batch(**options).collect())

    # Queries

    def start(self, frame: Any, name: str = "q", **trigger: Any) -> "Query":
        """With a checkpoint of that name in the test's directory; rows are collected here."""
        rows: list[Any] = []
        writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        writer = writer.option("checkpointLocation", str(self.directory / name))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self._queries.append(query)
        return Query(query, rows, self.directory / name)

    def run(self, name: str = "q", **options: Any) -> "Query":
        """A query that ends when it has read what there is."""
        query = self.start(self.stream(**options), name, availableNow=True)
        query.query.awaitTermination(PATIENCE_S)
        assert not query.query.isActive, "the query did not end"
        return query

    def fail(self, name: str = "q", **options: Any) -> "Query":
        """A query whose first batch is read and then fails."""

        def broken(batch: Any, _: int) -> None:
            batch.collect()
            raise RuntimeError("as the test asked for")

        writer = self.stream(**options).writeStream.foreachBatch(broken)
        query = writer.option("checkpointLocation", str(self.directory / name)).start()
        self._queries.append(query)
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination(PATIENCE_S)
        assert "as the test asked for" in str(query.exception()), query.exception()
        return Query(query, [], self.directory / name)

    def wait_for(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.05)


class Query:
    def __init__(self, query: Any, rows: list[Any], checkpoint: Path) -> None:
        self.query = query
        self.rows = rows
        self.checkpoint = checkpoint

    @property
    def values(self) -> list[int]:
        return sorted(int(row.value) for row in self.rows)

    @property
    def batches(self) -> list[int]:
        """Rows of each batch."""
        return [progress["numInputRows"] for progress in self.query.recentProgress]

    @property
    def last_batch(self) -> int:
        return max(int(path.name) for path in (self.checkpoint / "offsets").iterdir() if path.name.isdigit())

    def logged(self, batch: int) -> dict[str, Any]:
        """The offset that the checkpoint has for a batch."""
        offset: dict[str, Any] = json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
        return offset

    def process(self) -> list[int]:
        self.query.processAllAvailable()
        return self.values

    def stop(self) -> None:
        """After the batch that runs: one that is stopped between its rows and its commit is read again."""
        self.query.processAllAvailable()
        self.query.stop()
        self.query.awaitTermination(PATIENCE_S)


def _done(futures: Mapping[str, Any]) -> None:
    for future in futures.values():
        future.result(PATIENCE_S)
