"""One partition read by one request at a time, for those who read a range and not a subscription."""

from twofold.client.cluster import Cluster
from twofold.client.config import ConsumerConfig
from twofold.client.fetcher import FETCH, LAST_VERSION_WITH_NAMES
from twofold.client.waiting import Deadline
from twofold.types import TopicPartition
from twofold.wire.errors import UnknownTopicOrPartition, error_for
from twofold.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData


async def fetch_partition(
    cluster: Cluster, config: ConsumerConfig, tp: TopicPartition, position: int, wait_ms: int, deadline: Deadline
) -> PartitionData:
    """What the leader has at an offset; asked again until it answers or the deadline comes."""

    async def attempt() -> PartitionData:
        return await _fetch(cluster, config, tp, position, wait_ms, deadline)

    return await cluster.retry(f"fetching {tp} at offset {position}", attempt, deadline)


async def _fetch(
    cluster: Cluster, config: ConsumerConfig, tp: TopicPartition, position: int, wait_ms: int, deadline: Deadline
) -> PartitionData:
    row = await cluster.leader(tp, deadline)
    patience = cluster.deadline(config.request_timeout_ms + wait_ms, "kafka.request.timeout.ms")
    connection = await cluster.connection(row.leader, patience)
    topic = cluster.cache.topic(tp.topic)
    topic_id = None if topic is None else topic.topic_id
    partition = FetchPartition(
        partition=tp.partition,
        fetch_offset=position,
        partition_max_bytes=config.max_partition_fetch_bytes,
        current_leader_epoch=row.leader_epoch,
    )
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        isolation_level=config.isolation,
        topics=[FetchTopic(topic=tp.topic, topic_id=topic_id, partitions=[partition])],
    )
    version = connection.version(FETCH, at_most=LAST_VERSION_WITH_NAMES if topic_id is None else None)
    response: FetchResponse = await cluster.ask(connection, request, "Fetch", patience, version=version)
    data = response.responses[0].partitions[0] if response.responses else None
    code = response.error_code or (0 if data is None else data.error_code)
    if code:
        raise error_for(code)(f"Fetch of {tp} at offset {position} from broker {row.leader}")
    if data is None:
        raise UnknownTopicOrPartition(f"broker {row.leader} left {tp} out of its answer")
    return data
