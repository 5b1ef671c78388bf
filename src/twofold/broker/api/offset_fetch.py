"""OffsetFetch: API key 9, versions 1-10.

1. One group before version 8, a list of them from then on, each answered for itself and in order. From version 2 on no
   topics (null) means all that is committed; topics are named by id from version 10 on.
2. Without DESCRIBE on the group: GROUP_AUTHORIZATION_FAILED (30) for it. Without DESCRIBE on a topic:
   TOPIC_AUTHORIZATION_FAILED (29) on its partitions, or the topic is left out where all were asked for. An id that no
   topic has: UNKNOWN_TOPIC_ID (100) on its partitions.
3. What was never committed, also in a group, topic or partition that does not exist: offset -1, metadata "", no error.
   The same for what was committed for an earlier topic of the same name.
4. With `require_stable` (version 7) a partition with an offset in a transaction that is not over:
   UNSTABLE_OFFSET_COMMIT (88), and the answer waits until what it tells is safe. Without, it tells what is safe now.
5. Not the coordinator 16, loading 14: for the group; in version 1, which has no place for that, on every partition.
6. Member id and epoch (version 9) count in groups of the consumer protocol, where one is given: UNKNOWN_MEMBER_ID (25),
   STALE_MEMBER_EPOCH (113), for a member of the classic protocol ILLEGAL_GENERATION (22).
"""

from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.offsets import Fetched, Wanted
from twofold.coordinator.group.state import as_coordinator_error
from twofold.machine.runtime import Result
from twofold.wire.errors import (
    NONE,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
)
from twofold.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from twofold.broker.coordinators.groups.shard import GroupShard

KEY = 9

GROUP_ERROR_SINCE = 2
GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10


def handle(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    groups = request.groups if context.version >= GROUPS_SINCE else [_only_group(request)]
    if not request.require_stable:
        return _response(context.version, [_fetch(services, context, group) for group in groups])
    return _fetch_stable(services, context, groups)


def error_response(request: OffsetFetchRequest, error: KafkaError, version: int) -> OffsetFetchResponse:
    groups = request.groups if version >= GROUPS_SINCE else [_only_group(request)]
    return _response(version, [_failed(group, error) for group in groups])


async def _fetch_stable(
    services: Services, context: RequestContext, groups: Sequence[OffsetFetchRequestGroup]
) -> OffsetFetchResponse:
    """The answer shows the newest state, so it waits until that state is committed."""
    found = []
    for group in groups:
        try:
            found.append(await _stable(services, context, group))
        except KafkaError as error:
            found.append(_failed(group, as_coordinator_error(error)))
    return _response(context.version, found)


def _only_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = request.topics
    return OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=row.name, partition_indexes=row.partition_indexes) for row in topics],
    )


def _fetch(services: Services, context: RequestContext, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    try:
        shard = _shard(services, context, group.group_id)
        shard.offsets.check_fetch(shard.committed, group.group_id, group.member_id, group.member_epoch)
        if group.topics is None:
            rows = shard.offsets.fetch_all(shard.committed, group.group_id, require_stable=False)
            return _all(services, context, group.group_id, rows)
        wanted, refused = _wanted(services, context, group.topics)
        found = shard.offsets.fetch(shard.committed, group.group_id, wanted.values(), require_stable=False)
    except KafkaError as error:
        return _failed(group, error)
    return _some(group, wanted, refused, found)


async def _stable(
    services: Services, context: RequestContext, group: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    shard = _shard(services, context, group.group_id)
    shard.offsets.check_fetch(shard.state, group.group_id, group.member_id, group.member_epoch)
    if group.topics is None:
        rows = await shard.write(
            lambda state, _: Result((), shard.offsets.fetch_all(state, group.group_id, require_stable=True), wait=True)
        )
        return _all(services, context, group.group_id, rows)
    wanted, refused = _wanted(services, context, group.topics)
    found = await shard.write(
        lambda state, _: Result(
            (), shard.offsets.fetch(state, group.group_id, wanted.values(), require_stable=True), wait=True
        )
    )
    return _some(group, wanted, refused, found)


def _shard(services: Services, context: RequestContext, group_id: str) -> "GroupShard":
    if not services.authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.GROUP, group_id):
        raise GroupAuthorizationFailed(f"no DESCRIBE on group {group_id}")
    return services.groups.shard(group_id, allow_empty=True)


def _wanted(
    services: Services, context: RequestContext, topics: Iterable[OffsetFetchRequestTopics]
) -> tuple[dict[int, Wanted], dict[int, int]]:
    """By their place in the request: the topics that may be looked up, and the errors of the others."""
    wanted: dict[int, Wanted] = {}
    refused: dict[int, int] = {}
    by_id = context.version >= TOPIC_IDS_SINCE
    for place, row in enumerate(topics):
        name = row.name
        if by_id:
            known = None if row.topic_id is None else services.image.topic_by_id(row.topic_id)
            if known is None:
                refused[place] = UnknownTopicId.code
                continue
            name = known.name
        if not services.authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.TOPIC, name):
            refused[place] = TopicAuthorizationFailed.code
            continue
        topic = services.image.topic(name)
        wanted[place] = Wanted(name, row.partition_indexes, None if topic is None else topic.topic_id)
    return wanted, refused


def _some(
    group: OffsetFetchRequestGroup,
    wanted: dict[int, Wanted],
    refused: dict[int, int],
    found: Iterable[tuple[Wanted, list[Fetched]]],
) -> OffsetFetchResponseGroup:
    rows = dict(zip(wanted, (fetched for _, fetched in found), strict=True))
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=_partitions(
                    rows[place]
                    if place in rows
                    else [Fetched(index, error_code=refused[place]) for index in topic.partition_indexes]
                ),
            )
            for place, topic in enumerate(group.topics or ())
        ],
    )


def _all(
    services: Services, context: RequestContext, group_id: str, rows: Iterable[tuple[str, list[Fetched]]]
) -> OffsetFetchResponseGroup:
    topics = []
    for name, fetched in rows:
        topic = services.image.topic(name)
        if context.version >= TOPIC_IDS_SINCE and topic is None:
            continue  # there is no way to name it
        if services.authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.TOPIC, name, quiet=True):
            topic_id = None if topic is None else topic.topic_id
            topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=_partitions(fetched)))
    return OffsetFetchResponseGroup(group_id=group_id, topics=topics)


def _partitions(rows: Iterable[Fetched]) -> list[OffsetFetchResponsePartitions]:
    return [
        OffsetFetchResponsePartitions(
            partition_index=row.partition,
            committed_offset=row.offset,
            committed_leader_epoch=row.leader_epoch,
            metadata=row.metadata,
            error_code=row.error_code,
        )
        for row in rows
    ]


def _failed(group: OffsetFetchRequestGroup, error: KafkaError) -> OffsetFetchResponseGroup:
    """With a row for each partition, for the version that has no other place for the error."""
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        error_code=error.code,
        topics=[
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=_partitions(Fetched(index, error_code=error.code) for index in topic.partition_indexes),
            )
            for topic in group.topics or ()
        ],
    )


def _response(version: int, groups: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
    if version >= GROUPS_SINCE:
        return OffsetFetchResponse(
            groups=[
                group
                if group.error_code == NONE
                else OffsetFetchResponseGroup(group_id=group.group_id, error_code=group.error_code, topics=())
                for group in groups
            ]
        )
    (group,) = groups
    topics = () if group.error_code != NONE and version >= GROUP_ERROR_SINCE else group.topics
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=row.partition_index,
                        committed_offset=row.committed_offset,
                        committed_leader_epoch=row.committed_leader_epoch,
                        metadata=row.metadata,
                        error_code=row.error_code,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
