"""Readers for tests of transactions: fetched bytes as a consumer of either isolation level sees them, and offsets."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kits.wire.requests import GROUP_KEY, Wire, by_topic
from twofold.records.batch import iter_records
from twofold.records.filtering import visible_batches
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import OffsetOutOfRange, raise_for
from twofold.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from twofold.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from twofold.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
FETCH_VERSION = 12  # the last that names topics
LIST_VERSION = 7
OFFSET_FETCH_VERSION = 9
LATEST, EARLIEST = -1, -2


class Seen(NamedTuple):
    """One record that an application gets."""

    topic_partition: TopicPartition
    offset: int
    key: bytes | None
    value: bytes | None
    producer_id: int
    producer_epoch: int


class TxnReader(Wire):
    """Reads partitions from a position on. `answers` keeps the last raw answer of each partition."""

    def __init__(
        self,
        runtime: Runtime,
        bootstrap_servers: str,
        partitions: Iterable[TopicPartition],
        *,
        committed: bool = True,
        max_bytes: int = 1 << 20,
        **options: Any,
    ) -> None:
        super().__init__(runtime, bootstrap_servers, **{"client_id": "reader", **options})
        self.positions = dict.fromkeys(partitions, 0)
        self.isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
        self.max_bytes = max_bytes
        self.answers: dict[TopicPartition, PartitionData] = {}
        self._polls = -1

    async def fetch(
        self, positions: Mapping[TopicPartition, int], *, max_wait_ms: int = 0, isolation: int | None = None
    ) -> Any:
        """One raw Fetch, to the leader of the first partition, without a session."""
        topics = [
            FetchTopic(
                topic=name,
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=positions[TopicPartition(name, index)],
                        partition_max_bytes=self.max_bytes,
                    )
                    for index in indexes
                ],
            )
            for name, indexes in by_topic(positions).items()
        ]
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=self.max_bytes * max(1, len(positions)),
            isolation_level=self.isolation if isolation is None else isolation,
            topics=topics,
            session_id=0,
            session_epoch=-1,
        )
        node_id = await self.leader(next(iter(positions)))
        return await self.ask(node_id, request, "Fetch", FETCH_VERSION)

    async def poll(self, max_wait_ms: int = 0) -> list[Seen]:
        """What one Fetch brings; positions move over what is not for the application too."""
        answer = await self.fetch(self._in_turn(), max_wait_ms=max_wait_ms)
        raise_for(answer.error_code, "Fetch")
        found: list[Seen] = []
        failed: list[tuple[int, TopicPartition]] = []
        for topic in answer.responses:
            for row in topic.partitions:
                tp = TopicPartition(topic.topic, row.partition_index)
                assert row.error_code != OffsetOutOfRange.code, f"{tp}: {self.positions[tp]} is out of range"
                if row.error_code:
                    failed.append((row.error_code, tp))
                else:
                    self.answers[tp] = row
                    found += self._take(tp, row)
        if failed:
            self.forget()
            if not found:  # what others gave must not be lost over it: their positions have moved
                raise_for(failed[0][0], f"{failed[0][1]}")
        return found

    def _in_turn(self) -> dict[TopicPartition, int]:
        """Each poll asks for another partition first: the first is the one that never comes away empty."""
        self._polls += 1
        rows = list(self.positions.items())
        first = self._polls % len(rows)
        return dict(rows[first:] + rows[:first])

    def _take(self, tp: TopicPartition, row: PartitionData) -> list[Seen]:
        committed = self.isolation == READ_COMMITTED
        aborted = [(entry.first_offset, entry.producer_id) for entry in row.aborted_transactions or ()]
        data = bytes(row.records or b"")
        found: list[Seen] = []
        for position, header, is_visible in visible_batches(data, aborted if committed else None):
            if is_visible:
                found += [
                    Seen(tp, record.offset, record.key, record.value, header.producer_id, header.producer_epoch)
                    for record in iter_records(data, position)
                    if record.offset >= self.positions[tp]
                ]
            self.positions[tp] = max(self.positions[tp], header.next_offset)
        return found

    async def read_to_end(self, max_wait_ms: int = 0) -> list[Seen]:
        """Everything up to the ends (LSO or high watermark) that were there when this was called."""
        ends = await self.ends()
        found: list[Seen] = []
        while any(self.positions[tp] < end for tp, end in ends.items()):
            found += await self.poll(max_wait_ms)
        return found

    async def ends(self, timestamp: int = LATEST) -> dict[TopicPartition, int]:
        """ListOffsets at this reader's isolation level."""
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self.isolation,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in indexes],
                )
                for name, indexes in by_topic(self.positions).items()
            ],
        )
        node_id = await self.leader(next(iter(self.positions)))
        answer = await self.ask(node_id, request, "ListOffsets", LIST_VERSION)
        found = {}
        for topic in answer.topics:
            for row in topic.partitions:
                raise_for(row.error_code, "ListOffsets")
                found[TopicPartition(topic.name, row.partition_index)] = row.offset
        return found

    async def fetch_offsets(self, group: str, partitions: Iterable[TopicPartition], *, stable: bool = True) -> Any:
        """The group's row of a raw OffsetFetch."""
        rows = [
            OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(sorted(partitions)).items()
        ]
        request = OffsetFetchRequest(
            require_stable=stable, groups=[OffsetFetchRequestGroup(group_id=group, topics=rows)]
        )
        node_id = await self.coordinator(group, GROUP_KEY)
        return (await self.ask(node_id, request, "OffsetFetch", OFFSET_FETCH_VERSION)).groups[0]

    async def committed(
        self, group: str, partitions: Iterable[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, int]:
        """Committed offsets, -1 where there is none; raises 88 while one is open and `stable` is asked for."""
        row = await self.fetch_offsets(group, partitions, stable=stable)
        raise_for(row.error_code, group)
        found = {}
        for topic in row.topics:
            for entry in topic.partitions:
                tp = TopicPartition(topic.name, entry.partition_index)
                raise_for(entry.error_code, f"{group} {tp}")
                found[tp] = entry.committed_offset
        return found
