"""Metadata: API key 3, versions 0-13.

1. All topics: a null list, or an empty one in version 0. Otherwise each topic once, in the order asked for.
2. A row names a topic or, from version 12 on, gives its id. As soon as one row has an id, rows without are left out,
   and in a row with both the id wins. An id or a null name in versions 10 and 11 fails the whole request with
   INVALID_REQUEST (42), a row with neither with UNKNOWN_SERVER_ERROR (-1).
3. A name that cannot exist: INVALID_TOPIC_EXCEPTION (17). One that does not: UNKNOWN_TOPIC_OR_PARTITION (3); it is
   created meanwhile if `auto.create.topics.enable` and the request (always before version 4) allow it. An unknown id:
   UNKNOWN_TOPIC_ID (100).
4. Topics that the client may not describe: TOPIC_AUTHORIZATION_FAILED (29) where it named them, else not there at all;
   29 also for a missing topic that it may not create.
5. A partition without a living leader: LEADER_NOT_AVAILABLE (5); one whose leader has no such listener:
   LISTENER_NOT_FOUND (72), before version 6 also 5. Version 0 leaves out replicas that cannot be reached, and then says
   REPLICA_NOT_AVAILABLE (9).
6. Authorized operations are told where asked for; those of the cluster in versions 8 to 10 only.
7. The controller is any living broker: all of them forward.
8. A topic's rows are built once per change of the topic or of the brokers, however often they are asked for.
"""

from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from twofold.broker.network.authorizer import (
    CLUSTER_NAME,
    OPERATIONS_NOT_ASKED,
    AclResourceType,
    Operation,
    authorized_operations,
    cluster_allows,
)
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.broker.topics.rows import ReachableBroker, TopicRows
from twofold.config.internal_topics import is_internal
from twofold.config.names import is_valid_topic
from twofold.wire.errors import (
    InvalidRequest,
    InvalidTopicException,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from twofold.wire.message import replace
from twofold.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)

KEY = 3

FIRST_VERSION_WITH_IDS = 12
CLUSTER_OPERATIONS_VERSIONS = range(8, 11)
TOPIC_OPERATIONS_SINCE = 8


def handle(services: Services, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    rows = services.topic_rows.rows(services.image, context.listener, context.version)
    topics = [*_topics(services, context, request, rows)]
    if request.include_topic_authorized_operations and context.version >= TOPIC_OPERATIONS_SINCE:
        topics = [_with_operations(services, context, topic) for topic in topics]
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=registration.broker_id, host=end_point.host, port=end_point.port, rack=registration.rack
            )
            for registration, end_point in rows.brokers
        ],
        topics=topics,
        controller_id=any_living_broker(services, rows.brokers),
        cluster_id=services.cluster_id,
        cluster_authorized_operations=_cluster_operations(services, context, request),
    )


def error_response(request: MetadataRequest, error: KafkaError, version: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=[],
        topics=[
            MetadataResponseTopic(error_code=error.code, name=topic.name or "", topic_id=topic.topic_id, partitions=())
            for topic in request.topics or ()
        ],
        error_code=error.code,
    )


def any_living_broker(services: Services, alive: Sequence[ReachableBroker]) -> int:
    """This broker if it lives, so that a client saves a connection."""
    ids = [registration.broker_id for registration, _ in alive]
    return services.node_id if services.node_id in ids else min(ids, default=-1)


# Which topics


def _topics(
    services: Services, context: RequestContext, request: MetadataRequest, rows: TopicRows
) -> Iterator[MetadataResponseTopic]:
    if request.topics is None or (context.version == 0 and not request.topics):
        for topic in services.image.topics.values():
            if _may(services, context, Operation.DESCRIBE, topic.name, quiet=True):
                yield rows.row(topic)
        return
    ids = _checked_ids(request, context.version)
    if ids:
        yield from _by_id(services, context, ids, rows)
    else:
        yield from _by_name(services, context, request, rows)


def _checked_ids(request: MetadataRequest, version: int) -> Iterable[UUID]:
    """The ids asked for, each once; nothing where topics are asked for by name."""
    ids: dict[UUID, None] = {}
    nameless = False
    for topic in request.topics or ():
        if topic.topic_id is not None:
            ids[topic.topic_id] = None
        nameless |= topic.name is None
    if version < FIRST_VERSION_WITH_IDS:
        if nameless:
            raise InvalidRequest(f"version {version} names topics: null is no name")
        if ids:
            raise InvalidRequest(f"version {version} asks by name; ids come with version 12")
    elif nameless and not ids:
        raise UnknownServerError("a topic was asked for with neither a name nor an id")
    return ids


def _by_id(
    services: Services, context: RequestContext, ids: Iterable[UUID], rows: TopicRows
) -> Iterator[MetadataResponseTopic]:
    for topic_id in ids:
        topic = services.image.topic_by_id(topic_id)
        if topic is None:
            yield _missing(None, UnknownTopicId.code, topic_id)
        elif _may(services, context, Operation.DESCRIBE, topic.name):
            yield rows.row(topic)
        else:
            yield _missing(None, TopicAuthorizationFailed.code, topic_id)


def _by_name(
    services: Services, context: RequestContext, request: MetadataRequest, rows: TopicRows
) -> Iterator[MetadataResponseTopic]:
    may_create = request.allow_auto_topic_creation and services.settings.bool("auto.create.topics.enable")
    to_create = []
    for name in dict.fromkeys(topic.name for topic in request.topics or () if topic.name is not None):
        topic = services.image.topic(name)
        if not _may(services, context, Operation.DESCRIBE, name):
            yield _missing(name, TopicAuthorizationFailed.code)
        elif topic is not None:
            yield rows.row(topic)
        elif may_create and not _may_create(services, context, name):
            yield _missing(name, TopicAuthorizationFailed.code)
        elif not is_valid_topic(name):
            yield _missing(name, InvalidTopicException.code)
        else:
            if may_create:
                to_create.append(name)
            yield _missing(name, UnknownTopicOrPartition.code)
    if to_create:
        services.auto_topics.create(to_create)


def _missing(name: str | None, error_code: int, topic_id: UUID | None = None) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=topic_id,
        is_internal=name is not None and error_code != TopicAuthorizationFailed.code and is_internal(name),
        partitions=(),
    )


# What the client may do


def _may(services: Services, context: RequestContext, operation: Operation, topic: str, *, quiet: bool = False) -> bool:
    return services.authorizer.authorize(context, operation, AclResourceType.TOPIC, topic, quiet=quiet)


def _may_create(services: Services, context: RequestContext, topic: str) -> bool:
    return cluster_allows(services.authorizer, context, Operation.CREATE, quiet=True) or _may(
        services, context, Operation.CREATE, topic
    )


def _with_operations(
    services: Services, context: RequestContext, topic: MetadataResponseTopic
) -> MetadataResponseTopic:
    if topic.name is None or topic.error_code == TopicAuthorizationFailed.code:
        return topic
    mask = authorized_operations(services.authorizer, context, AclResourceType.TOPIC, topic.name)
    return replace(topic, topic_authorized_operations=mask)


def _cluster_operations(services: Services, context: RequestContext, request: MetadataRequest) -> int:
    if not request.include_cluster_authorized_operations or context.version not in CLUSTER_OPERATIONS_VERSIONS:
        return OPERATIONS_NOT_ASKED
    if not cluster_allows(services.authorizer, context, Operation.DESCRIBE, quiet=True):
        return 0
    return authorized_operations(services.authorizer, context, AclResourceType.CLUSTER, CLUSTER_NAME)
