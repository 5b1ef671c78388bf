"""What a task does: fetch one range of a partition and hand out its rows.

1. The range ends at an offset that the driver saw, so what is asked for is there and no request waits for it.
2. While rows are worked on, the next answer is on its way, and never more than one.
3. Records that are gone end the task (failOnDataLoss) or are stepped over with a warning; both name the offsets.
"""

import logging
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from twofold.client.cluster.metadata import PartitionMetadata
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.offsets import OffsetSpec, list_offsets
from twofold.client.consumer.single_fetch import SingleFetch, TopicMadeAnew
from twofold.connections.waiting import Deadline
from twofold.records.batch import Buffer, iter_headers
from twofold.records.columnar import Decoder
from twofold.spark.clients import SparkClient, client_for
from twofold.spark.errors import DataLoss
from twofold.spark.fetch_socket import FetchSocket, Route
from twofold.spark.offsets import EARLIEST, LATEST, Range
from twofold.spark.options import ReadOptions
from twofold.types import TopicId, TopicPartition
from twofold.wire.errors import KafkaError, OffsetOutOfRange
from twofold.wire.messages.fetch import PartitionData

log = logging.getLogger(__name__)

WAIT_AT_END_MS = 500
# Spark pays for every Arrow batch: larger ones than the decoder would choose cost it a fifth less at 1 KB a value.
CHUNK_BYTES = 4 * 1024 * 1024


class FetchedBatches(NamedTuple):
    """Whole batches, of which rows from `start` on were asked for."""

    records: Buffer
    start: int
    aborted: list[tuple[int, int]] | None


def read_range(options: ReadOptions, asked: Range, topic_id: str = "") -> Iterator[pa.RecordBatch]:
    """The rows of a range, in their order; with an id of that topic and of no other that has its name."""
    client = client_for(options.consumer)
    reader = RangeReader(client, options, asked, uuid.UUID(topic_id) if topic_id else None)
    found = reader.resolve()
    decoder = Decoder(
        *found.tp,
        include_headers=options.include_headers,
        check_crcs=options.consumer.check_crcs,
        chunk_bytes=CHUNK_BYTES,
    )
    for answer in reader.answers():
        for rows, _ in decoder.decode(
            answer.records, aborted=answer.aborted, start_offset=answer.start, end_offset=found.until
        ):
            if rows.num_rows:
                yield rows


class RangeReader:
    """The requests of one task."""

    def __init__(
        self, client: SparkClient, options: ReadOptions, asked: Range, topic_id: TopicId | None = None
    ) -> None:
        self._topic_id = topic_id
        self._client = client
        self._cluster = client.cluster
        self._options = options
        self._config = options.consumer
        self._range = asked
        self._tp = asked.tp

    def _deadline(self) -> Deadline:
        return self._cluster.deadline(self._options.poll_timeout_ms, "kafkaConsumer.pollTimeoutMs")

    def resolve(self) -> Range:
        """The range with offsets instead of EARLIEST and LATEST."""
        tp, start, until = self._range
        if start == EARLIEST:
            start = self._listed(OffsetSpec.EARLIEST)
        if until == LATEST:
            until = self._listed(OffsetSpec.LATEST)
        self._range = Range(tp, start, until)
        return self._range

    def _listed(self, spec: OffsetSpec) -> int:
        question = list_offsets(self._cluster, {self._tp: spec}, self._config.isolation, self._deadline())
        return self._client.run(question)[self._tp].offset

    def answers(self) -> Iterator[FetchedBatches]:
        """Every answer with records in it, until the range is read."""
        exchange = Exchange(self._client, self._config, self._tp, self._topic_id)
        try:
            yield from self._read(exchange)
        except TopicMadeAnew as error:
            raise DataLoss(
                f"the topic {error.message} while a batch reads it, and rows of the old one are gone. Start the query "
                "again: failOnDataLoss says what becomes of it then"
            ) from None
        finally:
            exchange.close()

    def _read(self, exchange: "Exchange") -> Iterator[FetchedBatches]:
        position, until = self._range.start, self._range.until
        deadline, wait_ms = self._deadline(), self._config.fetch_max_wait_ms
        while position < until:
            exchange.ask(position, wait_ms)
            try:
                data = exchange.answer(deadline)
            except OffsetOutOfRange as error:
                position = self._step_over_loss(position, error)
                continue
            if data.records:
                aborted = None
                if self._config.isolation:
                    aborted = [(entry.first_offset, entry.producer_id) for entry in data.aborted_transactions or ()]
                answer = FetchedBatches(data.records, position, aborted)
                position = max(position, _next_offset(data.records))
                deadline, wait_ms = self._deadline(), self._config.fetch_max_wait_ms
                if position < until:
                    exchange.ask(position, wait_ms)  # on its way while the rows of this one are worked on
                yield answer
            elif self._end_of(data) >= until:
                return  # compaction or a marker took what was last in the range
            elif deadline.expired:
                self._report(position, until, f"the log ends at {self._end_of(data)}")
                return
            else:
                wait_ms = max(wait_ms, min(WAIT_AT_END_MS, deadline.remaining_ms()))

    def _end_of(self, data: PartitionData) -> int:
        return data.last_stable_offset if self._config.isolation else data.high_watermark

    def _step_over_loss(self, position: int, error: KafkaError) -> int:
        """Where to go on when the log has no such offset."""
        until = self._range.until
        if self._options.fail_on_data_loss:
            self._report(position, until, str(error))
        first, last = self._listed(OffsetSpec.EARLIEST), self._listed(OffsetSpec.LATEST)
        following = until if position >= last else min(until, max(position, first))
        self._report(position, following, f"the log has offsets {first} to {last}")
        return following

    def _report(self, start: int, until: int, why: str) -> None:
        report_loss(self._options, f"records of {self._tp} from offset {start} to {until} are not there: {why}")


def report_loss(options: ReadOptions, what: str) -> None:
    """Raise or warn, as failOnDataLoss says."""
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{what}. They may have been deleted by retention or with their topic. "
            "Set the option failOnDataLoss to false to go on without them"
        )
    log.warning("%s; going on, because failOnDataLoss is false", what)


def _next_offset(records: Buffer) -> int:
    following = -1
    for _, header in iter_headers(records):
        following = header.next_offset
    return following


class Exchange:
    """One fetch after the other: on a connection of the task's own while all is well, otherwise on the cluster's,
    where a fetch is tried again until its deadline."""

    def __init__(
        self, client: SparkClient, config: ConsumerConfig, tp: TopicPartition, topic_id: TopicId | None = None
    ) -> None:
        self._client = client
        self._cluster = client.cluster
        self._tp = tp
        self._single = SingleFetch(client.cluster, config, tp, topic_id)
        self._asked: tuple[int, int] | None = None
        self._own: tuple[FetchSocket, PartitionMetadata] | None = None

    def ask(self, position: int, wait_ms: int) -> None:
        """Send; what is asked for already is not asked for again."""
        if self._asked is not None:
            return
        self._asked = position, wait_ms
        try:
            if self._own is None:
                row, route = self._client.run(self._find_route())
                self._own = self._client.take_socket(route), row
            connection, row = self._own
            connection.ask(self._single.request(row, position, wait_ms))
        except (OSError, KafkaError) as error:
            self._drop(error)

    def answer(self, deadline: Deadline) -> PartitionData:
        assert self._asked is not None
        position, wait_ms = self._asked
        self._asked = None
        if self._own is not None:
            connection, row = self._own
            try:
                return self._single.data(connection.answer(), row, position)
            except (OffsetOutOfRange, TopicMadeAnew):
                raise
            except (OSError, KafkaError) as error:
                self._drop(error)
        return self._client.run(self._single.fetch(position, wait_ms, deadline))

    def close(self) -> None:
        if self._own is not None:
            self._client.give_back(self._own[0])
            self._own = None

    def _drop(self, error: Exception) -> None:
        log.info("fetching %s: %s; asking again", self._tp, error)
        if self._own is not None:
            self._own[0].close()
            self._own = None

    async def _find_route(self) -> tuple[PartitionMetadata, Route]:
        deadline = self._cluster.deadline()
        row = await self._single.leader(deadline)
        connection = await self._cluster.connection(row.leader, deadline)
        return row, Route(self._cluster.link(row.leader).address, self._single.version(connection))
