"""AssignReplicasToDirs: a broker tells in which of its directories replicas are.

Rows: a topic id (100) or a partition (3) that is not there; a partition without a replica on the broker (6). A
directory that the broker has not registered is taken as one that is offline: its replicas leave the ISR.
"""

from uuid import UUID

from twofold.controller.brokers import checked_broker
from twofold.controller.context import Context
from twofold.controller.features import metadata_version
from twofold.controller.image import BrokerRegistration, MetadataImage, PartitionState, TopicImage
from twofold.controller.levels import LOG_DIRECTORIES, describe
from twofold.controller.operation import Operation
from twofold.controller.records import PartitionChange
from twofold.controller.replicas.change import Election, Goal, change_partition
from twofold.controller.replicas.rules import ClusterRules, is_online
from twofold.wire.errors import (
    NONE,
    KafkaError,
    NotLeaderOrFollower,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from twofold.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryDataResult,
    PartitionDataResult,
    TopicData,
    TopicDataResult,
)


def assign_replicas_to_dirs(
    image: MetadataImage, request: AssignReplicasToDirsRequest, context: Context
) -> Operation[AssignReplicasToDirsResponse]:
    level = metadata_version(image)
    if level < LOG_DIRECTORIES:
        raise UnsupportedVersion(f"metadata.version {describe(level)} knows no directories of replicas")
    broker = checked_broker(image, request.broker_id, request.broker_epoch)
    cluster = ClusterRules(image, context)
    directories = []
    for asked in request.directories:
        topics = []
        for topic in asked.topics:
            topics.append((yield from _assign(image, cluster, broker, asked.id_ or UUID(int=0), topic)))
        directories.append(DirectoryDataResult(id_=asked.id_, topics=tuple(topics)))
    return AssignReplicasToDirsResponse(error_code=NONE, directories=tuple(directories))


def _assign(
    image: MetadataImage, cluster: ClusterRules, broker: BrokerRegistration, directory: UUID, asked: TopicData
) -> Operation[TopicDataResult]:
    topic = image.topic_by_id(asked.topic_id or UUID(int=0))
    rows = []
    for row in asked.partitions:
        code, change = NONE, None
        try:
            partition = _partition(topic, row.partition_index, broker.broker_id)
        except KafkaError as error:
            code = error.code
        else:
            assert topic is not None
            change = _changed(cluster, broker, directory, topic, row.partition_index, partition)
        yield change
        rows.append(PartitionDataResult(partition_index=row.partition_index, error_code=code))
    return TopicDataResult(topic_id=asked.topic_id, partitions=tuple(rows))


def _partition(topic: TopicImage | None, index: int, broker_id: int) -> PartitionState:
    if topic is None:
        raise UnknownTopicId("no topic has this id")
    partition = topic.partitions.get(index)
    if partition is None:
        raise UnknownTopicOrPartition(f"topic {topic.name} has no partition {index}")
    if broker_id not in partition.replicas:
        raise NotLeaderOrFollower(f"{topic.name}-{index} has no replica on broker {broker_id}")
    return partition


def _changed(
    cluster: ClusterRules,
    broker: BrokerRegistration,
    directory: UUID,
    topic: TopicImage,
    index: int,
    old: PartitionState,
) -> PartitionChange | None:
    rules, here = cluster.of(topic), broker.broker_id
    if is_online(directory, broker):
        goal = Goal(directories={here: directory})
        return change_partition(index, topic.topic_id, old, goal, rules, cluster.accepts(old))
    isr = tuple(replica for replica in old.isr if replica != here)
    election = Election.UNCLEAN if rules.allows_unclean else Election.ONLINE
    goal = Goal(isr=isr, directories={here: directory}, election=election)
    return change_partition(index, topic.topic_id, old, goal, rules, cluster.accepts(old, without=here))
