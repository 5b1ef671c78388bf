"""Batches as a Produce request of the version that broker and transaction allow, and its answer by batch."""

import asyncio

from twofold.client.cluster.metadata import MetadataCache
from twofold.client.config import ProducerConfig
from twofold.client.producer.accumulator import ProducerBatch
from twofold.client.producer.produce_frame import FIRST_VERSION as FIRST_IN_PIECES
from twofold.client.producer.produce_frame import produce_body
from twofold.client.transactions.current import CurrentTransaction
from twofold.connections.connection import Connection
from twofold.types import TopicId, TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

Rows = dict[str, list[tuple[int, bytes | bytearray]]]
Ids = dict[str, TopicId | None]

PRODUCE = KEYS["Produce"]
LAST_VERSION_WITH_NAMES = 12


class ProduceRequests:
    def __init__(self, config: ProducerConfig, cache: MetadataCache, transaction: CurrentTransaction | None) -> None:
        self._config = config
        self._cache = cache
        self._transaction = transaction

    def send(self, connection: Connection, batches: list[ProducerBatch]) -> "asyncio.Future[ProduceResponse] | None":
        """One batch per partition. Returns the answer, or None where acks=0 wants none."""
        acks = self._config.required_acks
        version, rows, ids = self._laid_out(connection, batches)
        transactional_id = None if self._transaction is None else self._transaction.transactional_id
        timeout_ms = self._config.request_timeout_ms
        if acks != 0 and version >= FIRST_IN_PIECES:
            body = produce_body(version, transactional_id, acks, timeout_ms, rows, ids)
            return connection.send_body(body, PRODUCE, version)
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=_topic_data(rows, ids),
        )
        if acks == 0:
            connection.send_without_answer(request, PRODUCE, version=version)
            return None
        return connection.send(request, PRODUCE, version=version)

    def _laid_out(self, connection: Connection, batches: list[ProducerBatch]) -> tuple[int, Rows, Ids]:
        """Version, batches by topic and partition, ids of the topics."""
        rows: Rows = {}
        for batch in batches:
            batch.attempts += 1
            rows.setdefault(batch.tp.topic, []).append((batch.tp.partition, batch.build()))
        known = {name: self._cache.topic(name) for name in rows}
        ids = {name: None if topic is None else topic.topic_id for name, topic in known.items()}
        by_id = all(topic_id is not None for topic_id in ids.values())
        at_most = None if by_id else LAST_VERSION_WITH_NAMES
        if self._transaction is None:
            version = connection.version(PRODUCE, at_most=at_most)
        else:
            version = self._transaction.produce_version(connection, at_most)
        return version, rows, ids

    def match(
        self, response: ProduceResponse, batches: list[ProducerBatch]
    ) -> tuple[list[tuple[ProducerBatch, PartitionProduceResponse]], list[ProducerBatch]]:
        """Batches with their rows of the answer, and those that the broker left out or named by an id that is not known
        any more."""
        left = {batch.tp: batch for batch in batches}
        matched = []
        for topic in response.responses:
            name = topic.name or self._cache.name_of(topic.topic_id) or ""
            for row in topic.partition_responses:
                batch = left.pop(TopicPartition(name, row.index), None)
                if batch is not None:
                    matched.append((batch, row))
        return matched, list(left.values())


def _topic_data(rows: Rows, ids: Ids) -> list[TopicProduceData]:
    return [
        TopicProduceData(
            name=name,
            topic_id=ids[name],
            partition_data=[PartitionProduceData(index=index, records=batch) for index, batch in partitions],
        )
        for name, partitions in rows.items()
    ]
