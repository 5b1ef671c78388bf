"""OffsetDelete: API key 47, version 0.

1. Without DELETE on the group: GROUP_AUTHORIZATION_FAILED (30). An empty group id: INVALID_GROUP_ID (24). No such
   group: GROUP_ID_NOT_FOUND (69). A group with members of another type than "consumer": NON_EMPTY_GROUP (68). These
   come alone, without rows.
2. Partition by partition: TOPIC_AUTHORIZATION_FAILED (29) without READ on the topic, UNKNOWN_TOPIC_OR_PARTITION (3),
   GROUP_SUBSCRIBED_TO_TOPIC (86) where a member of the group is. The others are deleted together, offsets of open
   transactions as well; one that was never committed counts as deleted.
3. A topic that the request names twice has two rows in the answer; where a row was refused before the group was asked,
   it has one, as Apache Kafka's answer, which then puts two lists together by name.
"""

from collections.abc import Awaitable
from functools import partial

from twofold.broker.coordinators.waiting import when_done
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.offsets import Codes, Wanted
from twofold.wire.errors import (
    NONE,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

KEY = 47


def handle(
    services: Services, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    group_id = request.group_id
    if not services.authorizer.authorize(context, Operation.DELETE, AclResourceType.GROUP, group_id):
        raise GroupAuthorizationFailed(f"no DELETE on group {group_id}")
    shard = services.groups.shard(group_id)
    checked = [_check(services, context, topic) for topic in request.topics]
    wanted = [
        Wanted(topic.name, [index for index, code in rows if code == NONE])
        for topic, rows in zip(request.topics, checked, strict=True)
    ]
    future = shard.write(lambda state, _: shard.offsets.delete(state, group_id, wanted))
    return when_done(future, partial(_answer, request, checked))


def error_response(request: OffsetDeleteRequest, error: KafkaError, version: int) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error.code, topics=())


def _check(services: Services, context: RequestContext, topic: OffsetDeleteRequestTopic) -> list[tuple[int, int]]:
    """The partitions, each with its error so far."""
    may_read = services.authorizer.authorize(context, Operation.READ, AclResourceType.TOPIC, topic.name)
    rows = []
    for row in topic.partitions:
        if not may_read:
            code = TopicAuthorizationFailed.code
        elif services.image.partition(topic.name, row.partition_index) is None:
            code = UnknownTopicOrPartition.code
        else:
            code = NONE
        rows.append((row.partition_index, code))
    return rows


def _answer(
    request: OffsetDeleteRequest, checked: list[list[tuple[int, int]]], deleted: list[tuple[Wanted, Codes]]
) -> OffsetDeleteResponse:
    joins = any(code != NONE for rows in checked for _, code in rows)
    found: dict[tuple[str, int], list[OffsetDeleteResponsePartition]] = {}
    for number, (topic, rows, (_, codes)) in enumerate(zip(request.topics, checked, deleted, strict=True)):
        given = iter(codes)
        found.setdefault((topic.name, 0 if joins else number), []).extend(
            OffsetDeleteResponsePartition(partition_index=index, error_code=next(given) if code == NONE else code)
            for index, code in rows
        )
    topics = [OffsetDeleteResponseTopic(name=name, partitions=partitions) for (name, _), partitions in found.items()]
    return OffsetDeleteResponse(error_code=NONE, topics=topics)
