"""Which partitions have lost what an open transaction wrote to them, to explain a commit that was refused.

EndTxn answers with a code alone. What is gone can be seen from outside: a topic that does not exist any more, or a
partition that knows nothing of the producer because the topic was created anew.
"""

from collections.abc import Iterable

from twofold.client.admin.transaction_model import TransactionDescription
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import group_by_topic
from twofold.connections.waiting import Deadline
from twofold.types import TopicPartition
from twofold.wire.errors import NONE, KafkaError, UnknownTopicOrPartition
from twofold.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from twofold.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

TIMEOUT_MS = 2_000


async def lost_partitions(cluster: Cluster, found: TransactionDescription) -> list[TopicPartition]:
    """Sorted; none where none is lost, or where the brokers do not say."""
    partitions = sorted(partition for partition in found.partitions if not partition.topic.startswith("__"))
    deadline = cluster.deadline(TIMEOUT_MS, "DescribeProducers")
    try:
        leaders = await _leaders(cluster, partitions, deadline)
        deleted = [partition for partition in partitions if partition not in leaders]
        return deleted or await _unknown_to(cluster, found.producer_id, leaders, deadline)
    except KafkaError:
        return []


async def _leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Of those that exist. Asked past the cache, and so that nothing is created by it."""
    wanted = set(partitions)
    names = sorted({partition.topic for partition in wanted})
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    response: MetadataResponse = await cluster.request(None, request, "Metadata", deadline)
    found = {
        TopicPartition(row.name, partition.partition_index): partition.leader_id
        for row in response.topics
        if row.name is not None and row.error_code != UnknownTopicOrPartition.code
        for partition in row.partitions
    }
    return {partition: leader for partition, leader in found.items() if partition in wanted}


async def _unknown_to(
    cluster: Cluster, producer_id: int, leaders: dict[TopicPartition, int], deadline: Deadline
) -> list[TopicPartition]:
    lost: list[TopicPartition] = []
    for node_id in sorted(set(leaders.values())):
        led = [partition for partition, leader in leaders.items() if leader == node_id]
        topics = [TopicRequest(name=name, partition_indexes=ids) for name, ids in group_by_topic(led).items()]
        request = DescribeProducersRequest(topics=topics)
        response: DescribeProducersResponse = await cluster.request(node_id, request, "DescribeProducers", deadline)
        for topic in response.topics:
            for row in topic.partitions:
                known = {producer.producer_id for producer in row.active_producers}
                if row.error_code == NONE and producer_id not in known:
                    lost.append(TopicPartition(topic.name, row.partition_index))
    return sorted(lost)
