"""One partition read by one request at a time, for code that reads a range and has no subscription.

With a topic id it reads that topic and no other of its name.
"""

from dataclasses import dataclass

from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import PartitionMetadata
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.fetcher import FETCH, LAST_VERSION_WITH_NAMES
from twofold.connections.connection import Connection
from twofold.connections.waiting import Deadline
from twofold.types import TopicId, TopicPartition
from twofold.wire.errors import KafkaError, UnknownTopicOrPartition, error_for
from twofold.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData


class TopicMadeAnew(KafkaError):
    """The topic with the id that was asked for is gone, and another one has its name."""

    name = "TOPIC_MADE_ANEW"


@dataclass(frozen=True, slots=True)
class SingleFetch:
    """What to ask the leader of a partition, in which version, and what its answer means; and the whole of it."""

    cluster: Cluster
    config: ConsumerConfig
    tp: TopicPartition
    topic_id: TopicId | None = None

    async def fetch(self, position: int, wait_ms: int, deadline: Deadline) -> PartitionData:
        """What the leader has at an offset; asked again until it answers or the deadline comes."""

        async def attempt() -> PartitionData:
            return await self._attempt(position, wait_ms, deadline)

        return await self.cluster.retry(f"fetching {self.tp} at offset {position}", attempt, deadline)

    async def _attempt(self, position: int, wait_ms: int, deadline: Deadline) -> PartitionData:
        row = await self.leader(deadline)
        patience = self.cluster.deadline(self.config.request_timeout_ms + wait_ms, "kafka.request.timeout.ms")
        connection = await self.cluster.connection(row.leader, patience)
        request, version = self.request(row, position, wait_ms), self.version(connection)
        response = await self.cluster.ask(connection, request, "Fetch", patience, version=version)
        return self.data(response, row, position)

    async def leader(self, deadline: Deadline) -> PartitionMetadata:
        row = await self.cluster.leader(self.tp, deadline)
        if self.topic_id not in (None, self._cached_id):
            await self.cluster.refresh(deadline)  # what is known may be older than what is asked for
            row = await self.cluster.leader(self.tp, deadline)
            if self.topic_id != self._cached_id:
                raise TopicMadeAnew(f"{self.tp.topic!r} had the id {self.topic_id} and has {self._cached_id} now")
        return row

    def request(self, row: PartitionMetadata, position: int, wait_ms: int) -> FetchRequest:
        config = self.config
        partition = FetchPartition(
            partition=self.tp.partition,
            fetch_offset=position,
            partition_max_bytes=config.max_partition_fetch_bytes,
            current_leader_epoch=row.leader_epoch,
        )
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=config.isolation,
            topics=[FetchTopic(topic=self.tp.topic, topic_id=self._topic_id, partitions=[partition])],
        )

    def version(self, connection: Connection) -> int:
        return connection.version(FETCH, at_most=LAST_VERSION_WITH_NAMES if self._topic_id is None else None)

    def data(self, response: FetchResponse, row: PartitionMetadata, position: int) -> PartitionData:
        """The one row of the answer; raises what it or the answer as a whole says."""
        data = response.responses[0].partitions[0] if response.responses else None
        code = response.error_code or (0 if data is None else data.error_code)
        if code:
            raise error_for(code)(f"Fetch of {self.tp} at offset {position} from broker {row.leader}")
        if data is None:
            raise UnknownTopicOrPartition(f"broker {row.leader} left {self.tp} out of its answer")
        return data

    @property
    def _topic_id(self) -> TopicId | None:
        return self._cached_id if self.topic_id is None else self.topic_id

    @property
    def _cached_id(self) -> TopicId | None:
        topic = self.cluster.cache.topic(self.tp.topic)
        return None if topic is None else topic.topic_id
