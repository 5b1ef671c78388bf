"""Offsets of groups on the wire: what an administrator and a member of a group ask and read alike."""

from collections.abc import Iterable, Mapping
from typing import Any

from twofold.client.admin.group_model import OffsetAndMetadata
from twofold.client.admin.model import Results
from twofold.connections.errors import UnsupportedByBroker
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, error_for
from twofold.wire.messages.offset_commit import OffsetCommitRequestPartition
from twofold.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

BY_NAME_UNTIL = 9
"""The last version of OffsetFetch and OffsetCommit that names topics."""
BATCHED_SINCE = 8
STABLE_SINCE = 7

GroupOffsets = Results[TopicPartition, OffsetAndMetadata]


def fetch_requests(
    wanted: Mapping[str, Mapping[str, list[int]] | None], version: int, require_stable: bool
) -> list[OffsetFetchRequest]:
    """One for all groups from version 8 on, before that one each."""
    if version >= BATCHED_SINCE:
        groups = [
            OffsetFetchRequestGroup(
                group_id=name,
                topics=None
                if topics is None
                else [OffsetFetchRequestTopics(name=topic, partition_indexes=ids) for topic, ids in topics.items()],
            )
            for name, topics in wanted.items()
        ]
        return [OffsetFetchRequest(groups=groups, require_stable=require_stable)]
    if version < 2 and None in wanted.values():
        raise UnsupportedByBroker(f"OffsetFetch v{version} must name its partitions")
    if version < STABLE_SINCE and require_stable:
        raise UnsupportedByBroker(f"OffsetFetch v{version} knows no stable offsets")
    return [
        OffsetFetchRequest(
            group_id=name,
            topics=None
            if topics is None
            else [OffsetFetchRequestTopic(name=topic, partition_indexes=ids) for topic, ids in topics.items()],
            require_stable=require_stable,
        )
        for name, topics in wanted.items()
    ]


def read_offsets(topics: Iterable[Any]) -> GroupOffsets:
    values: dict[TopicPartition, OffsetAndMetadata] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for topic in topics:
        for row in topic.partitions:
            tp = TopicPartition(topic.name, row.partition_index)
            if row.error_code:
                errors[tp] = error_for(row.error_code)(str(tp))
            elif row.committed_offset >= 0:
                values[tp] = OffsetAndMetadata(row.committed_offset, row.metadata or "", row.committed_leader_epoch)
    return Results(dict(sorted(values.items())), dict(sorted(errors.items())))


def commit_row(partition: int, value: OffsetAndMetadata | int) -> OffsetCommitRequestPartition:
    wanted = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=wanted.offset,
        committed_metadata=wanted.metadata,
        committed_leader_epoch=wanted.leader_epoch,
    )
