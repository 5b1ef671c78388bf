"""ElectLeaders, and the elections that the controller holds by itself.

1. A preferred election of a partition that its first replica leads, and an unclean one of a partition that has a
   leader: ELECTION_NOT_NEEDED (84).
2. A preferred election that changes nothing: PREFERRED_LEADER_NOT_AVAILABLE (80); an unclean one: 83.
3. An unclean election that was asked for is held whatever the topic allows; by itself the controller asks the topic.
4. Of all topics only rows with something to tell are given.
"""

from collections.abc import Iterator

from twofold.controller.context import Context
from twofold.controller.image import MetadataImage, PartitionState, TopicImage
from twofold.controller.operation import Operation
from twofold.controller.records import PartitionChange
from twofold.controller.replicas.change import Election, Goal, change_partition
from twofold.controller.replicas.rules import ClusterRules
from twofold.wire.errors import (
    NONE,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidRequest,
    KafkaError,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PREFERRED, UNCLEAN = 0, 1
ELECTIONS = {PREFERRED: Election.PREFERRED, UNCLEAN: Election.UNCLEAN}
NOT_AVAILABLE = {PREFERRED: PreferredLeaderNotAvailable, UNCLEAN: EligibleLeadersNotAvailable}
MOST_AT_ONCE = 1000  # elections that the controller holds by itself in one turn


def elect_leaders(
    image: MetadataImage, request: ElectLeadersRequest, context: Context
) -> Operation[ElectLeadersResponse]:
    kind, everything = request.election_type, request.topic_partitions is None
    if kind not in ELECTIONS and (everything or request.topic_partitions):
        raise InvalidRequest(f"there is no election of type {kind}: 0 is preferred, 1 is unclean")
    cluster = ClusterRules(image, context)
    results = []
    for name, indexes in _asked(image, request):
        rows = []
        for index in indexes:
            error: KafkaError | None = None
            change: PartitionChange | None = None
            try:
                change = _elected(image, cluster, name, index, kind)
            except KafkaError as failed:
                error = failed
            yield change
            if not (everything and isinstance(error, ElectionNotNeeded)):
                rows.append(_row(index, error))
        results.append(ReplicaElectionResult(topic=name, partition_result=tuple(rows)))
    return ElectLeadersResponse(error_code=NONE, replica_election_results=tuple(results))


def _asked(image: MetadataImage, request: ElectLeadersRequest) -> Iterator[tuple[str, list[int]]]:
    if request.topic_partitions is None:
        return ((topic.name, sorted(topic.partitions)) for topic in image.topics_in_order())
    return ((topic.topic, list(topic.partitions)) for topic in request.topic_partitions)


def _elected(image: MetadataImage, cluster: ClusterRules, name: str, index: int, kind: int) -> PartitionChange:
    topic = image.topic(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {name!r}")
    old = topic.partitions.get(index)
    if old is None:
        raise UnknownTopicOrPartition(f"topic {name} has no partition {index}")
    if old.leader == old.replicas[0] if kind == PREFERRED else old.has_leader:
        raise ElectionNotNeeded(f"broker {old.leader} leads {name}-{index}")
    change = _election(cluster, topic, index, old, ELECTIONS[kind])
    if change is None:
        raise NOT_AVAILABLE[kind](f"none of the replicas {list(old.replicas)} of {name}-{index} can lead it now")
    return change


def _election(
    cluster: ClusterRules, topic: TopicImage, index: int, old: PartitionState, election: Election
) -> PartitionChange | None:
    goal = Goal(election=election)
    return change_partition(index, topic.topic_id, old, goal, cluster.of(topic), cluster.accepts(old))


def _row(index: int, error: KafkaError | None) -> PartitionResult:
    if error is None:
        return PartitionResult(partition_id=index, error_code=NONE, error_message=None)
    return PartitionResult(partition_id=index, error_code=error.code, error_message=error.message or None)


def balance_leaders(image: MetadataImage, context: Context) -> Operation[int]:
    """Let first replicas lead again where they can; returns how many elections that were."""
    return (yield from _elect_many(image, context, Election.PREFERRED))


def elect_unclean(image: MetadataImage, context: Context) -> Operation[int]:
    """Give partitions without a leader one that may lack records, where the topic prefers that to waiting."""
    return (yield from _elect_many(image, context, Election.UNCLEAN))


def _elect_many(image: MetadataImage, context: Context, election: Election) -> Operation[int]:
    cluster = ClusterRules(image, context)
    count = 0
    for topic in image.topics_in_order():
        rules = None
        for index, old in topic.in_order():
            is_due = old.leader != old.replicas[0] if election is Election.PREFERRED else not old.has_leader
            if is_due and rules is None:
                rules = cluster.of(topic)
            if not is_due or rules is None or not (election is Election.PREFERRED or rules.allows_unclean):
                yield None
                continue
            accepts = cluster.accepts(old)
            change = change_partition(index, topic.topic_id, old, Goal(election=election), rules, accepts)
            yield change
            count += change is not None
            if count == MOST_AT_ONCE:
                return count
    return count
