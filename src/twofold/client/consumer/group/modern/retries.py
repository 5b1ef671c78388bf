"""Commits of a member of the new protocol: the epoch may have moved on while one was on its way.

The coordinator refuses an epoch that is too old. Then a heartbeat asks for the newer one, and the commit is sent
again with it, as long as the member still has all the partitions. Without that condition a commit could overwrite the
offsets of the member that has them now: the coordinator takes those of the current epoch for any partition.
"""

from collections.abc import Callable, Collection, Mapping

from twofold.client.admin.group_model import OffsetAndMetadata
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.group.calls import MemberCalls, Patience
from twofold.client.consumer.group.membership import Identity
from twofold.client.consumer.group.modern.heartbeats import EpochHeartbeats
from twofold.client.consumer.group.modern.membership import EpochMembership
from twofold.connections.waiting import Deadline
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import StaleMemberEpoch


class EpochCommits:
    """Of one member."""

    def __init__(
        self,
        runtime: Runtime,
        config: ConsumerConfig,
        calls: MemberCalls,
        membership: EpochMembership,
        heartbeats: EpochHeartbeats,
        assigned: Callable[[], Collection[TopicPartition]],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._calls = calls
        self._membership = membership
        self._heartbeats = heartbeats
        self._assigned = assigned

    async def commit(
        self,
        identity: Identity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: Deadline,
        patience: Patience,
    ) -> None:
        life = self._membership.life
        while True:
            try:
                await self._calls.commit(identity, offsets, deadline, patience)
                return
            except StaleMemberEpoch:
                if patience is Patience.NONE or identity == Identity():
                    raise
                await self._wait_for_epoch(identity, deadline)
                is_same_life = self._membership.is_member and self._membership.life == life
                newer = self._membership.identity
                if newer == identity or not is_same_life or not set(self._assigned()).issuperset(offsets):
                    raise
                identity = newer

    async def _wait_for_epoch(self, identity: Identity, deadline: Deadline) -> None:
        """Until the member has another one, or a heartbeat was answered that brought none."""
        seen = self._heartbeats.answered
        self._heartbeats.ask()
        while self._membership.identity == identity and self._heartbeats.answered == seen and not deadline.expired:
            await self._runtime.timers.sleep(self._config.retry_backoff_ms / 1000)
