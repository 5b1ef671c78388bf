"""What a task does: fetch one range of a partition and hand out its rows.

1. The range ends at an offset that the driver saw, so what is asked for is there and no request waits for it.
2. While rows are worked on, the next bytes are on their way, and never more than READ_AHEAD answers wait.
3. Records that are gone end the task (failOnDataLoss) or are stepped over with a warning; both name the offsets.
"""

import asyncio
import logging
import queue
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pyarrow as pa

from twofold.client.cluster import Cluster
from twofold.client.fetcher import FETCH, LAST_VERSION_WITH_NAMES
from twofold.client.metadata import PartitionMetadata
from twofold.client.offsets import OffsetSpec, list_offsets
from twofold.client.waiting import Deadline
from twofold.records.batch import Buffer, iter_headers
from twofold.records.columnar import Decoder
from twofold.spark.clients import Client, client_for
from twofold.spark.errors import DataLoss
from twofold.spark.offsets import EARLIEST, LATEST, Range
from twofold.spark.options import ReadOptions
from twofold.wire.errors import KafkaError, OffsetOutOfRange, UnknownTopicOrPartition, error_for
from twofold.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData

log = logging.getLogger(__name__)

READ_AHEAD = 2
WAIT_AT_END_MS = 500


class Fetched(NamedTuple):
    """Whole batches, of which rows from `start` on were asked for."""

    records: Buffer
    start: int
    aborted: list[tuple[int, int]] | None


def read_range(options: ReadOptions, asked: Range) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in their order."""
    client = client_for(options.consumer)
    reader = RangeReader(client.cluster, options, asked)
    found = client.run(reader.resolve())
    decoder = Decoder(*found.tp, include_headers=options.include_headers, check_crcs=options.consumer.check_crcs)
    with ReadAhead(client, reader.answers()) as answers:
        for answer in answers:
            for rows, _ in decoder.decode(
                answer.records, aborted=answer.aborted, start_offset=answer.start, end_offset=found.until
            ):
                if rows.num_rows:
                    yield rows


class RangeReader:
    """The requests of one task; all of it runs on the client's loop."""

    def __init__(self, cluster: Cluster, options: ReadOptions, asked: Range) -> None:
        self._cluster = cluster
        self._options = options
        self._config = options.consumer
        self._range = asked
        self._tp = asked.tp

    def _deadline(self) -> Deadline:
        return self._cluster.deadline(self._options.poll_timeout_ms, "kafkaConsumer.pollTimeoutMs")

    async def resolve(self) -> Range:
        """The range with offsets instead of EARLIEST and LATEST."""
        tp, start, until = self._range
        if start == EARLIEST:
            start = await self._listed(OffsetSpec.EARLIEST)
        if until == LATEST:
            until = await self._listed(OffsetSpec.LATEST)
        self._range = Range(tp, start, until)
        return self._range

    async def _listed(self, spec: OffsetSpec) -> int:
        found = await list_offsets(self._cluster, {self._tp: spec}, self._config.isolation, self._deadline())
        return found[self._tp].offset

    async def answers(self) -> AsyncIterator[Fetched]:
        """Every answer with records in it, until the range is read."""
        position, until = self._range.start, self._range.until
        deadline = self._deadline()
        wait_ms = self._config.fetch_max_wait_ms
        while position < until:
            try:
                data = await self._fetch(position, wait_ms, deadline)
            except OffsetOutOfRange as error:
                position = await self._step_over_loss(position, error)
                continue
            if data.records:
                aborted = None
                if self._config.isolation:
                    aborted = [(entry.first_offset, entry.producer_id) for entry in data.aborted_transactions or ()]
                answer = Fetched(data.records, position, aborted)
                position = max(position, _next_offset(data.records))
                deadline, wait_ms = self._deadline(), self._config.fetch_max_wait_ms
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

    async def _fetch(self, position: int, wait_ms: int, deadline: Deadline) -> PartitionData:
        async def attempt() -> PartitionData:
            row = await self._cluster.leader(self._tp, deadline)
            return await self._ask(row, position, wait_ms)

        return await self._cluster.retry(f"fetching {self._tp} at offset {position}", attempt, deadline)

    async def _ask(self, row: PartitionMetadata, position: int, wait_ms: int) -> PartitionData:
        config = self._config
        deadline = self._cluster.deadline(config.request_timeout_ms + wait_ms, "kafka.request.timeout.ms")
        connection = await self._cluster.connection(row.leader, deadline)
        topic = self._cluster.cache.topic(self._tp.topic)
        topic_id = None if topic is None else topic.topic_id
        partition = FetchPartition(
            partition=self._tp.partition,
            fetch_offset=position,
            partition_max_bytes=config.max_partition_fetch_bytes,
            current_leader_epoch=row.leader_epoch,
        )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=config.isolation,
            topics=[FetchTopic(topic=self._tp.topic, topic_id=topic_id, partitions=[partition])],
        )
        version = connection.version(FETCH, at_most=LAST_VERSION_WITH_NAMES if topic_id is None else None)
        response: FetchResponse = await self._cluster.ask(connection, request, "Fetch", deadline, version=version)
        data = response.responses[0].partitions[0] if response.responses else None
        code = response.error_code or (0 if data is None else data.error_code)
        if code:
            raise error_for(code)(f"Fetch of {self._tp} at offset {position} from broker {row.leader}")
        if data is None:
            raise UnknownTopicOrPartition(f"broker {row.leader} left {self._tp} out of its answer")
        return data

    async def _step_over_loss(self, position: int, error: KafkaError) -> int:
        """Where to go on when the log has no such offset."""
        until = self._range.until
        if self._options.fail_on_data_loss:
            self._report(position, until, str(error))
        first, last = await self._listed(OffsetSpec.EARLIEST), await self._listed(OffsetSpec.LATEST)
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
    log.warning("%s; going on, for failOnDataLoss is false", what)


def _next_offset(records: Buffer) -> int:
    following = -1
    for _, header in iter_headers(records):
        following = header.next_offset
    return following


class ReadAhead:
    """An asynchronous iterator, run a few items ahead of the thread that takes them."""

    def __init__(self, client: Client, source: AsyncIterator[Fetched]) -> None:
        self._client = client
        self._source = source
        self._items: queue.SimpleQueue[Fetched | BaseException | None] = queue.SimpleQueue()

    def __enter__(self) -> Iterator[Fetched]:
        self._loop, self._room, self._task = self._client.run(self._start())
        return self._take()

    async def _start(self) -> "tuple[asyncio.AbstractEventLoop, asyncio.Semaphore, asyncio.Task[None]]":
        room = asyncio.Semaphore(READ_AHEAD)
        return asyncio.get_running_loop(), room, asyncio.create_task(self._run(room), name="read ahead")

    async def _run(self, room: asyncio.Semaphore) -> None:
        try:
            await room.acquire()
            async for item in self._source:
                self._items.put(item)
                await room.acquire()
            self._items.put(None)
        except BaseException as error:
            self._items.put(error)

    def _take(self) -> Iterator[Fetched]:
        while (item := self._items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            self._loop.call_soon_threadsafe(self._room.release)
            yield item

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
