"""CreateTopics, DeleteTopics and CreatePartitions as operations on the image.

Rules of CreateTopics, in the order in which the first to fail decides: a name given twice (42); the metadata topic
(42); an existing topic (36); an illegal name or one that collides by '.' and '_' with an existing topic (17);
configurations (40); then either the manual assignment (42, 39) or the replication factor (38) and the number of
partitions (37); last, for all three requests, the client's quota of changes (89).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from twofold.config.describe import effective_topic_configs
from twofold.config.internal_topics import CLUSTER_METADATA
from twofold.config.names import check_topic_name, collision_key
from twofold.config.settings import Settings
from twofold.config.topic import validate_topic_configs
from twofold.controller.context import Context, error_row, new_id
from twofold.controller.image import TOPIC_RESOURCE, BrokerRegistration, MetadataImage, TopicImage
from twofold.controller.operation import Operation
from twofold.controller.placement import Placement, StripedPlacer, given_placement
from twofold.controller.records import Config, MetadataRecord, Partition, RemoveTopic, Topic
from twofold.controller.replicas.rules import default_directory
from twofold.wire.errors import (
    NONE,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicException,
    KafkaError,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from twofold.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from twofold.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

USE_DEFAULT = -1


class Permits:
    """Whether a client may change topics any more: its quota, which only the broker knows. This one has no end."""

    def begin(self) -> None:
        """A request is decided from its beginning: what an earlier decision on it took is given back."""

    def take(self, partitions: int) -> None:
        """Raise where too much was taken already; else take what a topic gains or loses."""


UNLIMITED = Permits()


def create_topics(
    image: MetadataImage, request: CreateTopicsRequest, context: Context, permits: Permits = UNLIMITED
) -> Operation[CreateTopicsResponse]:
    permits.begin()
    counts = Counter(topic.name for topic in request.topics)
    placer = StripedPlacer(image.brokers.values(), context)
    settings = context.settings_at(image)
    results: list[CreatableTopicResult] = []
    described: dict[frozenset[tuple[str, str]], tuple[CreatableTopicConfigs, ...]] = {}  # those of a batch are alike
    for topic in request.topics:
        if counts[topic.name] > 1:
            continue
        try:
            created = yield from _decide_topic(image, topic, context, settings, placer)
            permits.take(created.placement.partitions)
        except KafkaError as error:
            results.append(_refused(topic.name, error))
        else:
            own = frozenset(created.configs.items())
            if own not in described:
                described[own] = _described(created.configs, settings)
            results.append(_created(created, described[own]))
            if not request.validate_only:
                yield from _topic_records(image, created)
        yield None
    duplicate = InvalidRequest("the topic is named more than once")
    results += (_refused(name, duplicate) for name, count in counts.items() if count > 1)
    return CreateTopicsResponse(topics=tuple(results))


class _NewTopic(NamedTuple):
    """A topic that nothing speaks against any more."""

    name: str
    topic_id: UUID
    configs: Mapping[str, str]
    placement: Placement


def _refused(name: str, error: KafkaError) -> CreatableTopicResult:
    code, message = error_row(error)
    return CreatableTopicResult(name=name, error_code=code, error_message=message, configs=())


def _described(configs: Mapping[str, str], settings: Settings) -> tuple[CreatableTopicConfigs, ...]:
    return tuple(
        CreatableTopicConfigs(
            name=row.name,
            value=row.value,
            read_only=row.read_only,
            config_source=row.source,
            is_sensitive=row.sensitive,
        )
        for row in effective_topic_configs(configs, settings)
    )


def _created(topic: _NewTopic, configs: tuple[CreatableTopicConfigs, ...]) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=NONE,
        error_message=None,
        num_partitions=topic.placement.partitions,
        replication_factor=topic.placement.factor,
        configs=configs,
    )


def _decide_topic(
    image: MetadataImage, topic: CreatableTopic, context: Context, settings: Settings, placer: StripedPlacer
) -> Operation[_NewTopic]:
    _check_new_name(image, topic.name)
    overrides = _checked_configs(topic, settings)
    topic_id = new_id(context.random)
    while topic_id in image.topic_names:
        topic_id = new_id(context.random)
    if topic.assignments:
        placement = yield from _manual_placement(image, topic)
    else:
        placement = _automatic_placement(topic, context, placer)
    return _NewTopic(topic.name, topic_id, overrides, placement)


def _topic_records(image: MetadataImage, topic: _NewTopic) -> Iterator[MetadataRecord]:
    yield Topic(topic.name, topic.topic_id)
    for name, value in sorted(topic.configs.items()):
        yield Config(TOPIC_RESOURCE, topic.name, name, value)
    yield from _partition_records(image, topic.topic_id, 0, topic.placement)


def _check_new_name(image: MetadataImage, name: str) -> None:
    if name == CLUSTER_METADATA:
        raise InvalidRequest(f"{name} belongs to the broker, which creates it itself")
    if image.topic(name) is not None:
        raise TopicAlreadyExists(f"there is a topic '{name}' already")
    check_topic_name(name)
    others = image.collidable.get(collision_key(name))
    if others:
        raise InvalidTopicException(f"'{name}' differs only by '.' and '_' from: {', '.join(sorted(others))}")


def _checked_configs(topic: CreatableTopic, settings: Settings) -> Mapping[str, str]:
    missing = [config.name for config in topic.configs if config.value is None]
    if missing:
        raise InvalidConfig(f"without a value: {','.join(missing)}")
    overrides = {config.name: config.value for config in topic.configs if config.value is not None}
    if overrides:
        validate_topic_configs(overrides, settings)
    return overrides


def _automatic_placement(topic: CreatableTopic, context: Context, placer: StripedPlacer) -> Placement:
    factor, partitions = topic.replication_factor, topic.num_partitions
    if factor < USE_DEFAULT or factor == 0:
        raise InvalidReplicationFactor(f"replication factor {factor}: give at least 1, or -1 for the default")
    if partitions < USE_DEFAULT or partitions == 0:
        raise InvalidPartitions(f"{partitions} partitions: give at least 1, or -1 for num.partitions")
    if factor == USE_DEFAULT:
        factor = context.settings.int("default.replication.factor")
    if partitions == USE_DEFAULT:
        partitions = context.settings.int("num.partitions")
    return placer.place(partitions, factor)


def _manual_placement(image: MetadataImage, topic: CreatableTopic) -> Operation[Placement]:
    if topic.replication_factor != USE_DEFAULT:
        raise InvalidRequest("an assignment says how many replicas there are: leave the replication factor at -1")
    if topic.num_partitions != USE_DEFAULT:
        raise InvalidRequest("an assignment says how many partitions there are: leave their number at -1")
    found: dict[int, tuple[int, ...]] = {}
    factor: int | None = None
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in found:
            raise InvalidReplicaAssignment(f"partition {index} is assigned more than once")
        replicas = tuple(assignment.broker_ids)
        check_manual_replicas(image, replicas, factor)
        factor = len(replicas)
        found[index] = replicas
        yield None
    if sorted(found) != list(range(len(found))):
        raise InvalidReplicaAssignment(f"partitions {sorted(found)} are not numbered from 0 without a gap")
    return given_placement([found[index] for index in range(len(found))])


def check_manual_replicas(image: MetadataImage, replicas: tuple[int, ...], factor: int | None) -> None:
    """Refuse replicas that cannot be meant, or of which none can lead now."""
    check_replicas(image, replicas, factor)
    if not any(_is_active(image.broker(broker_id)) for broker_id in replicas):
        raise InvalidReplicaAssignment(f"all brokers of the assignment {list(replicas)} are fenced")


def check_replicas(image: MetadataImage, replicas: tuple[int, ...], factor: int | None) -> None:
    """Refuse replicas that cannot be meant."""
    if not replicas:
        raise InvalidReplicaAssignment("an assignment without replicas")
    for broker_id in replicas:
        if image.broker(broker_id) is None:
            raise InvalidReplicaAssignment(f"the assignment names broker {broker_id}, which is not registered")
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(f"the assignment {list(replicas)} names a broker more than once")
    if factor is not None and len(replicas) != factor:
        raise InvalidReplicaAssignment(
            f"The manual assignment {list(replicas)} has {len(replicas)} replica(s), other partitions have {factor}."
        )


def _is_active(broker: BrokerRegistration | None) -> bool:
    return broker is not None and broker.is_active


def _partition_records(
    image: MetadataImage, topic_id: UUID, first: int, placement: Placement
) -> Iterator[MetadataRecord]:
    """The records of partitions numbered from `first`; living replicas are in sync, and the first of them leads."""
    active = {broker_id for broker_id, broker in image.brokers.items() if broker.is_active}
    directories = {broker_id: default_directory(broker) for broker_id, broker in image.brokers.items()}
    alike: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[UUID, ...]]] = {}
    for index, replicas in enumerate(placement.replicas, first):
        found = alike.get(replicas)
        if found is None:
            isr = tuple(broker_id for broker_id in replicas if broker_id in active)
            found = alike[replicas] = isr, tuple(directories[broker_id] for broker_id in replicas)
        isr, placed = found
        yield Partition(index, topic_id, replicas, isr, isr[0], directories=placed)


# -- CreatePartitions


def create_partitions(
    image: MetadataImage, request: CreatePartitionsRequest, context: Context, permits: Permits = UNLIMITED
) -> Operation[CreatePartitionsResponse]:
    permits.begin()
    counts = Counter(topic.name for topic in request.topics)
    placer = StripedPlacer(image.brokers.values(), context)
    results: list[CreatePartitionsTopicResult] = []
    for topic in request.topics:
        if counts[topic.name] > 1:
            continue
        code, message = NONE, None
        try:
            found, placement = yield from _decide_growth(image, topic, placer)
            permits.take(placement.partitions)
        except KafkaError as error:
            code, message = error_row(error)
        else:
            if not request.validate_only:
                yield from _partition_records(image, found.topic_id, len(found.partitions), placement)
        results.append(CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message))
        yield None
    duplicate = InvalidRequest("the topic is named more than once")
    results += (
        CreatePartitionsTopicResult(name=name, error_code=duplicate.code, error_message=duplicate.message)
        for name, count in counts.items()
        if count > 1
    )
    return CreatePartitionsResponse(results=tuple(results))


def _decide_growth(
    image: MetadataImage, topic: CreatePartitionsTopic, placer: StripedPlacer
) -> Operation[tuple[TopicImage, Placement]]:
    found = image.topic(topic.name)
    if found is None:
        raise UnknownTopicOrPartition()
    have = len(found.partitions)
    if topic.count == have:
        raise InvalidPartitions(f"the topic has {have} partitions already")
    if topic.count < have:
        raise InvalidPartitions(
            f"{topic.name} has {have} partitions, and their number only grows: {topic.count} are fewer"
        )
    additional = topic.count - have
    factor = len(found.partitions[0].replicas)
    if topic.assignments is None:
        return found, placer.place(additional, factor)
    if len(topic.assignments) != additional:
        raise InvalidReplicaAssignment(
            f"{additional} partition(s) are to be added, and {len(topic.assignments)} assignment(s) are given."
        )
    assignments = [tuple(assignment.broker_ids) for assignment in topic.assignments]
    for replicas in assignments:
        check_manual_replicas(image, replicas, factor)
        yield None
    return found, given_placement(assignments)


# -- DeleteTopics


class DeletionGuard:
    """Whether a topic may be deleted at all, which only the keeper of its records knows. This one allows everything."""

    def hold(self, topic: str) -> None:
        """Raise why a topic has to stay; else it can be deleted until `release`."""

    def release(self) -> None:
        """What was held is gone, or stays."""


UNGUARDED = DeletionGuard()


def delete_topics(
    image: MetadataImage,
    request: DeleteTopicsRequest,
    context: Context,
    guard: DeletionGuard = UNGUARDED,
    permits: Permits = UNLIMITED,
) -> Operation[DeleteTopicsResponse]:
    """By name up to version 5, by name or id from version 6. A topic that is asked for twice, in any way, stays."""
    try:
        return (yield from _delete_topics(image, request, context, guard, permits))
    except GeneratorExit:
        guard.release()  # it was only looked at, or the controller stops: nothing of it is written
        raise


def _delete_topics(
    image: MetadataImage, request: DeleteTopicsRequest, context: Context, guard: DeletionGuard, permits: Permits
) -> Operation[DeleteTopicsResponse]:
    permits.begin()
    asked = Counter((state.name, state.topic_id) for state in request.topics)
    asked.update((name, None) for name in request.topic_names)
    found: dict[UUID, list[tuple[str | None, UUID | None]]] = {}
    results: list[DeletableTopicResult] = []
    for (name, topic_id), times in asked.items():
        try:
            if times > 1:
                raise InvalidRequest(f"a topic {'id' if name is None else 'name'} is there more than once")
            found.setdefault(_to_delete(image, name, topic_id, context).topic_id, []).append((name, topic_id))
        except KafkaError as error:
            results.append(_kept(name, topic_id, error))
        yield None
    for found_id, ways in found.items():
        name = image.topic_names[found_id]
        try:
            if len(ways) > 1:
                raise InvalidRequest("the topic is given by its name and by its id")
            permits.take(len(image.topics[name].partitions))
            guard.hold(name)
        except KafkaError as error:
            results.append(_kept(name, found_id, error))
            yield None
        else:
            results.append(DeletableTopicResult(name=name, topic_id=found_id, error_code=NONE))
            yield RemoveTopic(found_id)
    return DeleteTopicsResponse(responses=tuple(results))


def _to_delete(image: MetadataImage, name: str | None, topic_id: UUID | None, context: Context) -> TopicImage:
    if not context.settings.bool("delete.topic.enable"):
        raise TopicDeletionDisabled("topics are not deleted here: delete.topic.enable=false")
    if name is not None and topic_id is not None:
        raise InvalidRequest("a topic is given by name or by id, not by both")
    if name is not None:
        topic = image.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic '{name}'")
    elif topic_id is not None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopicId(f"there is no topic with the id {topic_id}")
    else:
        raise InvalidRequest("a topic needs a name or an id")
    return topic


def _kept(name: str | None, topic_id: UUID | None, error: KafkaError) -> DeletableTopicResult:
    code, message = error_row(error)
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
