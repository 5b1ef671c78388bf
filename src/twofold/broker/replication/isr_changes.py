"""Changes of in-sync replicas on their way to the controller: AlterPartition (key 56, version 3).

1. One request is under way. What is proposed meanwhile goes with the next one, all partitions together.
2. Of a partition the latest change counts, and it is sent only while the partition waits for it.
3. What the controller could not say, for a partition or for all, is asked again after `RETRY_S`, until it is said or
   the metadata brings something newer. A request without an answer may have been carried out: the partition keeps the
   change pending, which is safe (`replication/isr.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias
from uuid import UUID

from twofold.broker.partitions.partition import Partition
from twofold.replication.isr import IsrChange
from twofold.runtime.api import Runtime
from twofold.wire.errors import NONE, KafkaError, error_for
from twofold.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResult,
    TopicData,
)

RETRY_S = 0.05

Alter: TypeAlias = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]
Rows: TypeAlias = dict[tuple[UUID | None, int], PartitionDataResult]

log = logging.getLogger(__name__)


class BrokerIdentity(NamedTuple):
    """This broker, as it is registered now."""

    broker_id: int
    broker_epoch: int


class IsrChanges:
    def __init__(self, runtime: Runtime, identity: Callable[[], BrokerIdentity], alter: Alter) -> None:
        """`identity` is asked at every request: a broker may have to register again."""
        self._runtime = runtime
        self._identity = identity
        self._alter = alter
        self._waiting: dict[Partition, IsrChange] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._complaint = ""

    def propose(self, partition: Partition, change: IsrChange) -> None:
        """Bring it to the controller, and the answer to the partition."""
        self._waiting[partition] = change
        if self._task is None and not self._is_closed:
            self._task = self._runtime.spawn(self._run(), name="changes of in-sync replicas")

    async def close(self) -> None:
        self._is_closed = True
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while batch := self._take():
                if not await self._send(batch):
                    await self._runtime.timers.sleep(RETRY_S)
        finally:
            self._task = None

    def _take(self) -> dict[Partition, IsrChange]:
        batch = {partition: change for partition, change in self._waiting.items() if partition.is_pending(change)}
        self._waiting.clear()
        return batch

    async def _send(self, batch: dict[Partition, IsrChange]) -> bool:
        """Whether every change has found its answer."""
        rows = await self._ask(batch)
        again = 0
        for partition, change in batch.items():
            row = rows.get((partition.topic_id, partition.topic_partition.partition))
            if row is None or partition.isr_answered(change, row):
                self._waiting.setdefault(partition, change)
                again += 1
            elif row.error_code != NONE:
                text = "%s: %s were not made its in-sync replicas: error %d"
                log.info(text, partition, change.broker_ids, row.error_code)
        return not again

    async def _ask(self, batch: dict[Partition, IsrChange]) -> Rows:
        """The rows of the answer; none where the controller could not be asked, or refused all of it."""
        try:
            response = await self._alter(_request(self._identity(), batch))
            if response.error_code != NONE:
                raise error_for(response.error_code)(f"error {response.error_code}")
        except (KafkaError, OSError) as error:
            self._complain(str(error) or repr(error), len(batch))
            return {}
        self._complaint = ""
        return {(topic.topic_id, row.partition_index): row for topic in response.topics for row in topic.partitions}

    def _complain(self, text: str, partitions: int) -> None:
        if text != self._complaint:
            self._complaint = text
            log.warning("cannot change the in-sync replicas of %d partitions, trying on: %s", partitions, text)


def _request(identity: BrokerIdentity, batch: dict[Partition, IsrChange]) -> AlterPartitionRequest:
    topics: dict[UUID, list[PartitionData]] = {}
    for partition, change in batch.items():
        row = PartitionData(
            partition_index=partition.topic_partition.partition,
            leader_epoch=change.leader_epoch,
            partition_epoch=change.partition_epoch,
            new_isr_with_epochs=[
                BrokerState(
                    broker_id=member.broker_id,
                    broker_epoch=(
                        identity.broker_epoch if member.broker_id == identity.broker_id else member.broker_epoch
                    ),
                )
                for member in change.members
            ],
        )
        topics.setdefault(partition.topic_id, []).append(row)
    return AlterPartitionRequest(
        broker_id=identity.broker_id,
        broker_epoch=identity.broker_epoch,
        topics=[TopicData(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()],
    )
