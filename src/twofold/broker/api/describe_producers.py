"""DescribeProducers: API key 61, version 0.

1. Every partition asked for gets a row, in the order asked for, duplicates included.
2. For all partitions of a topic: INVALID_TOPIC_EXCEPTION (17) for an illegal name, TOPIC_AUTHORIZATION_FAILED (29)
   without READ on it, UNKNOWN_TOPIC_OR_PARTITION (3) if it does not exist.
3. A partition that does not exist: 3. One of which this broker holds no replica: NOT_LEADER_OR_FOLLOWER (6). Any
   replica answers, not only the leader.
4. A row a producer that the partition remembers, transactional or not; a partition never written to has none.
5. LastTimestamp is that of the producer's newest batch, by its own clock, as Apache Kafka tells it. Two tagged fields
   of ours say since when its transaction is open, by the broker's clock (tag 101), and whether that is only a bound
   (tag 102).
"""

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.config.names import check_topic_name
from twofold.log.log import PartitionLog
from twofold.types import NO_TIMESTAMP, TopicPartition
from twofold.wire.errors import (
    NONE,
    KafkaError,
    NotLeaderOrFollower,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)

KEY = 61


def handle(services: Services, context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    return DescribeProducersResponse(topics=[_topic(services, context, topic) for topic in request.topics])


def error_response(request: DescribeProducersRequest, error: KafkaError, version: int) -> DescribeProducersResponse:
    return DescribeProducersResponse(topics=[_failed(topic, error) for topic in request.topics])


def _topic(services: Services, context: RequestContext, topic: TopicRequest) -> TopicResponse:
    try:
        check_topic_name(topic.name)
        if not services.authorizer.authorize(context, Operation.READ, AclResourceType.TOPIC, topic.name):
            raise TopicAuthorizationFailed(f"no READ on topic {topic.name}")
        if services.image.topic(topic.name) is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic.name}")
    except KafkaError as error:
        return _failed(topic, error)
    return TopicResponse(
        name=topic.name, partitions=[_partition(services, topic.name, index) for index in topic.partition_indexes]
    )


def _failed(topic: TopicRequest, error: KafkaError) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        partitions=[
            PartitionResponse(
                partition_index=index, error_code=error.code, error_message=error.message or None, active_producers=()
            )
            for index in topic.partition_indexes
        ],
    )


def _partition(services: Services, topic: str, index: int) -> PartitionResponse:
    state = services.image.partition(topic, index)
    if state is None:
        return PartitionResponse(partition_index=index, error_code=UnknownTopicOrPartition.code, active_producers=())
    if services.node_id not in state.replicas:
        return PartitionResponse(partition_index=index, error_code=NotLeaderOrFollower.code, active_producers=())
    log = services.logs.get(TopicPartition(topic, index))
    rows = [] if log is None else _rows(log)
    return PartitionResponse(partition_index=index, error_code=NONE, active_producers=rows)


def _rows(log: PartitionLog) -> list[ProducerState]:
    producers = log.producers()
    opened = {transaction.producer_id: transaction for transaction in log.open_transactions()}
    rows = []
    for producer in producers:
        transaction = opened.get(producer.producer_id)
        rows.append(
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_txn_start_offset,
                current_txn_start_time_ms=NO_TIMESTAMP if transaction is None else transaction.since_ms,
                current_txn_start_time_is_bound=transaction is not None and not transaction.is_exact,
            )
        )
    return rows
