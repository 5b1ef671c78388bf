"""OffsetCommit: API key 8, versions 2-10.

1. Without READ on the group: GROUP_AUTHORIZATION_FAILED (30) everywhere. Topics are named by id from version 10 on.
2. Partition by partition: UNKNOWN_TOPIC_ID (100), TOPIC_AUTHORIZATION_FAILED (29) without READ on the topic,
   UNKNOWN_TOPIC_OR_PARTITION (3), OFFSET_METADATA_TOO_LARGE (12) for metadata of more than `offset.metadata.max.bytes`
   characters. The others are committed together. Any offset is taken, and the same partition twice: the last one wins.
3. What concerns all of them: no group of that generation ILLEGAL_GENERATION (22), from version 9 on GROUP_ID_NOT_FOUND
   (69); no member 25, fenced 82, another generation 22; REBALANCE_IN_PROGRESS (27) between join and sync.
4. Without generation and member: a group that has no members, or does not exist yet, takes commits from any client;
   one that has members does not: 25.
5. A commit keeps the session of its member alive.
6. `retention_time_ms` (versions 2 to 4) gives the offset a time of its own at which it expires.
7. The answer waits until the offsets are safe.
"""

from collections.abc import Awaitable, Callable

from twofold.broker.coordinators.groups.committed_topics import CommitRows
from twofold.broker.coordinators.waiting import guarded
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.offsets import Committer
from twofold.wire.errors import GroupAuthorizationFailed, KafkaError
from twofold.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

KEY = 8

TOPIC_IDS_SINCE = 10


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    group_id = request.group_id
    if not services.authorizer.authorize(context, Operation.READ, AclResourceType.GROUP, group_id):
        raise GroupAuthorizationFailed(f"no READ on group {group_id}")
    rows = CommitRows(services.core, context, request.topics, by_id=context.version >= TOPIC_IDS_SINCE)
    answer = _answer(request, rows)
    if not rows.commits:
        return answer([])
    committer = Committer(group_id, request.generation_id_or_member_epoch, request.member_id, request.group_instance_id)

    def commit() -> "Awaitable[list[int]]":
        shard = services.groups.shard(group_id, allow_empty=True)
        services.groups.check_room()
        now = shard.now()
        return shard.write(
            lambda state, _: shard.offsets.commit(
                state, committer, rows.commits, context.version, now, request.retention_time_ms
            )
        )

    return guarded(commit, answer, lambda error: answer([error.code] * len(rows.commits)))


def error_response(request: OffsetCommitRequest, error: KafkaError, version: int) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error.code)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(request: OffsetCommitRequest, rows: CommitRows) -> Callable[[list[int]], OffsetCommitResponse]:
    def answer(codes: list[int]) -> OffsetCommitResponse:
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)
                        for row, code in zip(topic.partitions, told, strict=True)
                    ],
                )
                for topic, told in zip(request.topics, rows.merged(codes), strict=True)
            ]
        )

    return answer
