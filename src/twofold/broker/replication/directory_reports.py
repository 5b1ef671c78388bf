"""In which directory the replicas of this broker are: AssignReplicasToDirs (key 73, version 0).

1. The controller gives the lead to no replica whose directory it does not find at its broker, in sync or not. After a
   disk was replaced the metadata name the one before. So what they say otherwise is told, until they say it.
2. Only of a partition that has a leader. Without one this replica could be made the leader for being in the right place
   at last, and in a new directory it has nothing yet: an operator may still have the old disk.
3. One request is under way; what no controller has taken is told again after `RETRY_S`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from uuid import UUID

from twofold.broker.replication.isr_changes import BrokerIdentity
from twofold.controller.delta import ImageDelta
from twofold.controller.features import metadata_version
from twofold.controller.image import MetadataImage, PartitionState
from twofold.controller.levels import LOG_DIRECTORIES
from twofold.runtime.api import Runtime
from twofold.wire.errors import NONE, KafkaError, error_for
from twofold.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)

RETRY_S = 0.5
MOST_AT_ONCE = 2000  # partitions of one request

Assign: TypeAlias = Callable[[AssignReplicasToDirsRequest], Awaitable[AssignReplicasToDirsResponse]]

log = logging.getLogger(__name__)


class DirectoryReports:
    def __init__(
        self, runtime: Runtime, identity: Callable[[], BrokerIdentity], directory_id: UUID, assign: Assign
    ) -> None:
        """`identity` is asked at every request: a broker may have to register again."""
        self._runtime = runtime
        self._identity = identity
        self._directory_id = directory_id
        self._assign = assign
        self._elsewhere: dict[tuple[UUID, int], None] = {}  # replicas that the metadata look for elsewhere
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._complaint = ""

    def look(self, delta: ImageDelta, image: MetadataImage) -> None:
        """A new image: what it says of our replicas."""
        for topic in delta.deleted_topics:
            for index in topic.partitions:
                self._elsewhere.pop((topic.topic_id, index), None)
        if metadata_version(image) < LOG_DIRECTORIES:
            return
        broker_id = self._identity().broker_id
        for change in delta.changed_topics:
            for index, state in change.changed():
                if self._is_elsewhere(state, broker_id):
                    self._elsewhere[change.topic.topic_id, index] = None
                else:
                    self._elsewhere.pop((change.topic.topic_id, index), None)
        if self._elsewhere and self._task is None and not self._is_closed:
            self._task = self._runtime.spawn(self._run(), name="directories of replicas")

    def _is_elsewhere(self, state: PartitionState, broker_id: int) -> bool:
        if broker_id not in state.replicas or not state.has_leader:
            return False
        said = dict(zip(state.replicas, state.directories, strict=False)).get(broker_id)
        return said != self._directory_id

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._elsewhere:
                await self._tell()
                await self._runtime.timers.sleep(RETRY_S)  # the metadata say it by then
        finally:
            self._task = None

    async def _tell(self) -> None:
        replicas = list(self._elsewhere)[:MOST_AT_ONCE]
        try:
            response = await self._assign(self._request(replicas))
            if response.error_code != NONE:
                raise error_for(response.error_code)(f"error {response.error_code}")
        except (KafkaError, OSError) as error:
            text = str(error) or repr(error)
            if text != self._complaint:
                log.warning("cannot tell where %d replicas are, trying on: %s", len(replicas), text)
            self._complaint = text
        else:
            self._complaint = ""
            log.info("%d replicas are in the directory %s now", len(replicas), self._directory_id)

    def _request(self, replicas: list[tuple[UUID, int]]) -> AssignReplicasToDirsRequest:
        topics: dict[UUID, list[PartitionData]] = {}
        for topic_id, index in replicas:
            topics.setdefault(topic_id, []).append(PartitionData(partition_index=index))
        identity = self._identity()
        rows = [TopicData(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]
        directory = DirectoryData(id_=self._directory_id, topics=rows)
        return AssignReplicasToDirsRequest(
            broker_id=identity.broker_id, broker_epoch=identity.broker_epoch, directories=[directory]
        )
