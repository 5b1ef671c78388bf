"""The partitions of a commit: which of them can be committed, and the others' errors."""

from collections.abc import Iterator, Sequence
from typing import Protocol
from uuid import UUID

from twofold.broker.core import BrokerCore
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.coordinator.group.offsets import Commit
from twofold.wire.errors import NONE, TopicAuthorizationFailed, UnknownTopicId, UnknownTopicOrPartition


class PartitionRow(Protocol):
    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


class TopicRow(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[PartitionRow]: ...


class CommitRows:
    """`commits` are those that may go on; `merged` puts their codes back where they belong."""

    def __init__(
        self, core: BrokerCore, context: RequestContext, topics: Sequence[TopicRow], *, by_id: bool = False
    ) -> None:
        self.commits: list[Commit] = []
        self._codes = [self._check(core, context, topic, by_id) for topic in topics]

    def merged(self, codes: Sequence[int]) -> Iterator[list[int]]:
        """By topic, the code of each partition: its own error, or the next of `codes`."""
        given = iter(codes)
        return ([next(given) if code == NONE else code for code in row] for row in self._codes)

    def _check(self, core: BrokerCore, context: RequestContext, topic: TopicRow, by_id: bool) -> list[int]:
        rows = topic.partitions
        image = core.image
        name = topic.name
        if by_id:
            topic_id: UUID | None = getattr(topic, "topic_id", None)
            known = None if topic_id is None else image.topic_by_id(topic_id)
            if known is None:
                return [UnknownTopicId.code] * len(rows)
            name = known.name
        if not core.authorizer.authorize(context, Operation.READ, AclResourceType.TOPIC, name):
            return [TopicAuthorizationFailed.code] * len(rows)
        found = image.topic(name)
        if found is None:
            return [UnknownTopicOrPartition.code] * len(rows)
        partitions = found.partitions
        codes = []
        for row in rows:
            index = row.partition_index
            if index not in partitions:
                codes.append(UnknownTopicOrPartition.code)
                continue
            codes.append(NONE)
            self.commits.append(
                Commit(
                    name,
                    found.topic_id,
                    index,
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.committed_metadata,
                )
            )
        return codes
