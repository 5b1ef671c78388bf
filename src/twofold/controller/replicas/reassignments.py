"""AlterPartitionReassignments and ListPartitionReassignments: moving replicas to other brokers.

1. A move writes the old and the new replicas together, and which are added and removed. It ends by itself when those
   that are added are in sync (`change.py`), at once where there is nothing to wait for.
2. A move while another is under way begins from where that one is.
3. Replicas null goes back to before the move: without one 85. Where that would leave only replicas outside of the ISR,
   it is an unclean election, and 39 unless the topic allows those.
4. An unknown topic or partition 3; replicas that cannot be meant 39; another number of them, unless the request allows
   that, 38. Each in its row.
"""

from twofold.controller.context import Context
from twofold.controller.image import MetadataImage, PartitionState, TopicImage
from twofold.controller.operation import Operation
from twofold.controller.records import PartitionChange
from twofold.controller.replicas.change import Election, Goal, Ids, change_partition
from twofold.controller.replicas.rules import ClusterRules, TopicRules
from twofold.controller.topics import check_replicas
from twofold.wire.errors import (
    NONE,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from twofold.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def alter_partition_reassignments(
    image: MetadataImage, request: AlterPartitionReassignmentsRequest, context: Context
) -> Operation[AlterPartitionReassignmentsResponse]:
    cluster = ClusterRules(image, context)
    responses = []
    for topic in request.topics:
        rows = []
        for asked in topic.partitions:
            error: KafkaError | None = None
            change: PartitionChange | None = None
            try:
                change = _decide(image, cluster, topic.name, asked, request.allow_replication_factor_change)
            except KafkaError as failed:
                error = failed
            yield change
            rows.append(_row(asked.partition_index, error))
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=tuple(rows)))
    return AlterPartitionReassignmentsResponse(
        error_code=NONE,
        error_message=None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=tuple(responses),
    )


def _row(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(partition_index=index, error_code=NONE, error_message=None)
    return ReassignablePartitionResponse(
        partition_index=index, error_code=error.code, error_message=error.message or None
    )


def _decide(
    image: MetadataImage, cluster: ClusterRules, name: str, asked: ReassignablePartition, may_resize: bool
) -> PartitionChange | None:
    topic = image.topic(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {name!r}")
    old = topic.partitions.get(asked.partition_index)
    if old is None:
        raise UnknownTopicOrPartition(f"topic {name} has no partition {asked.partition_index}")
    rules = cluster.of(topic)
    if asked.replicas is None:
        goal = _going_back(topic, asked.partition_index, old, rules)
    else:
        wanted = tuple(asked.replicas)
        check_replicas(image, wanted, None)
        if not may_resize and len(wanted) != _factor(old):
            raise InvalidReplicationFactor(
                f"{name}-{asked.partition_index} has {_factor(old)} replicas, {list(wanted)} are {len(wanted)}"
            )
        goal = _moving(old, wanted)
    return change_partition(asked.partition_index, topic.topic_id, old, goal, rules, cluster.accepts(old))


def _factor(old: PartitionState) -> int:
    """How many replicas there are once a move is over."""
    return len({*old.replicas, *old.adding_replicas} - set(old.removing_replicas))


def _moving(old: PartitionState, wanted: Ids) -> Goal:
    removing = tuple(sorted(set(old.replicas) - set(wanted)))
    adding = tuple(sorted(set(wanted) - set(old.replicas)))
    return Goal(replicas=wanted + removing, adding=adding or None, removing=removing or None)


def _going_back(topic: TopicImage, index: int, old: PartitionState, rules: TopicRules) -> Goal:
    if not old.adding_replicas and not old.removing_replicas:
        raise NoReassignmentInProgress(f"{topic.name}-{index} is not being moved")
    replicas = tuple(replica for replica in old.replicas if replica not in old.adding_replicas)
    isr = tuple(replica for replica in old.isr if replica not in old.adding_replicas)
    if not replicas:
        raise InvalidReplicaAssignment(f"all replicas of {topic.name}-{index} are being added")
    if not isr and not rules.allows_unclean:
        raise InvalidReplicaAssignment(
            f"to take {topic.name}-{index} back to {list(replicas)}, none of which is in sync, would be an unclean "
            "election: set unclean.leader.election.enable of the topic, or let the move end"
        )
    election = Election.UNCLEAN if rules.allows_unclean else Election.ONLINE
    return Goal(isr=isr or replicas[:1], replicas=replicas, adding=(), removing=(), election=election)


def list_partition_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """What is being moved: of all topics, or of those that are named."""
    if request.topics is None:
        asked = [(topic, sorted(topic.partitions)) for topic in image.topics_in_order()]
    else:
        asked = [
            (topic, list(row.partition_indexes))
            for row in request.topics
            if (topic := image.topic(row.name)) is not None
        ]
    found = []
    for topic, indexes in asked:
        rows = [row for index in indexes if (row := _ongoing(topic, index)) is not None]
        if rows:
            found.append(OngoingTopicReassignment(name=topic.name, partitions=tuple(rows)))
    return ListPartitionReassignmentsResponse(error_code=NONE, error_message=None, topics=tuple(found))


def _ongoing(topic: TopicImage, index: int) -> OngoingPartitionReassignment | None:
    state = topic.partitions.get(index)
    if state is None or not (state.adding_replicas or state.removing_replicas):
        return None
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=state.replicas,
        adding_replicas=state.adding_replicas,
        removing_replicas=state.removing_replicas,
    )
