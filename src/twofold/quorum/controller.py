"""The controller of a quorum whose only voter is this node: it reads the metadata log of its directory, and leads."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from twofold.config.settings import Settings
from twofold.controller.activation import activation_problem
from twofold.controller.features import metadata_version
from twofold.controller.image import MetadataImage
from twofold.controller.levels import describe
from twofold.controller.lowering import losses
from twofold.controller.records import MetadataRecord, UnsupportedRecord, decode, decode_all
from twofold.controller.replay import ControllerState, InconsistentRecord
from twofold.machine.schema import MalformedRecord
from twofold.metadata_log.control import Voter
from twofold.metadata_log.errors import CorruptMetadataLog, UnusableMetadata
from twofold.metadata_log.metadata_log import MetadataLog
from twofold.metadata_log.options import MetadataLogOptions
from twofold.quorum.quorum_controller import QuorumController
from twofold.quorum.snapshotting import SnapshotGenerator, SnapshotOptions
from twofold.runtime.api import Runtime
from twofold.wire.errors import InvalidRecord, KafkaError, NotController
from twofold.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

NO_DIRECTORY = UUID(int=0)

log = logging.getLogger(__name__)


class QuorumOfOne(NamedTuple):
    """What DescribeQuorum tells of the only voter, which leads."""

    voter: Voter
    epoch: int
    high_watermark: int
    end_offset: int


class Controller(QuorumController):
    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        *,
        log_dir: str,
        cluster_id: str,
        directory_id: UUID,
        on_failure: Callable[[KafkaError], None] | None = None,
        check: Callable[[MetadataImage], str | None] | None = None,
        closed_cleanly: bool = False,
    ) -> None:
        """`on_failure` is told once when the metadata log is lost and the node had better stop.

        `check` says what keeps the node from serving what the log holds, if anything does. `closed_cleanly`: the
        process that had the directory before left it in order.
        """
        node_id = settings.int("node.id")
        metadata_log = MetadataLog(
            runtime,
            log_dir,
            node_id=node_id,
            directory_id=directory_id,
            options=MetadataLogOptions.from_settings(settings),
            closed_cleanly=closed_cleanly,
        )
        super().__init__(runtime, settings, metadata_log, node_id=node_id, cluster_id=cluster_id)
        self._check = check
        self._on_failure = on_failure
        self._log = metadata_log
        self.snapshots = SnapshotGenerator(runtime, metadata_log, SnapshotOptions.from_settings(settings))
        self.subscribe(self.snapshots.changed)
        self._owes_snapshot = False  # an earlier process lowered a level and died before the snapshot that goes with it
        metadata_log.listen(self.committed, self._failed)

    @property
    def leader_epoch(self) -> int:
        return self._log.epoch

    @property
    def metadata_log(self) -> MetadataLog:
        return self._log

    def describe_quorum(self) -> QuorumOfOne:
        """How far the log of the only voter is. Where the voters are not in the log, this node names no directory."""
        voter = self._log.voters[0] if self._log.voters else Voter(self.node_id, NO_DIRECTORY)
        return QuorumOfOne(voter, self._log.epoch, self._log.committed_offset + 1, self._log.end_offset)

    @property
    def log_size_bytes(self) -> int:
        return self._log.size_bytes

    async def start(self) -> None:
        """Replay the log, begin a new epoch and wait until it is committed; then requests are served.

        UnusableMetadata, and nothing is written, where the log is not for this node or this software.
        """
        try:
            bootstrap = self._replay()
            epoch = await self._log.become_leader()
        except UnusableMetadata:
            self._log.abandon()
            raise
        activated = self.lead(epoch, bootstrap)
        await asyncio.gather(self._log.wait_committed(self._log.end_offset - 1), activated)
        self.show()
        if self._owes_snapshot:
            await self.snapshots.write_now()
        log.info("controller %d leads epoch %d from offset %d", self.node_id, epoch, self._log.end_offset)

    def _replay(self) -> list[MetadataRecord]:
        """Load what is in the log; returns the records that an empty one is to begin with, if there are any."""
        where, offset = self._log.directory, -1
        try:
            for batch in self._log.replay():
                offset = batch.base_offset
                before = self._machine.state.image.features
                self.load(decode_all(batch.numbered()), is_snapshot=batch.is_snapshot)
                went_down = _went_down(before, self._machine.state.image.features)
                self._owes_snapshot = not batch.is_snapshot and (self._owes_snapshot or went_down)
            state = self._machine.state
            image = state.image if state.transaction is None else state.transaction.before
            values = self._log.bootstrap_values() if image.is_empty else []
            bootstrap = [record for value in values if (record := decode(value)) is not None]
        except (UnsupportedRecord, MalformedRecord, InconsistentRecord, InvalidRecord) as error:
            raise CorruptMetadataLog(
                f"{where}: the batch at offset {offset} cannot be applied: {error}; was it written by a "
                "newer version, or by Apache Kafka with features that Twofold does not have?"
            ) from error
        self._log.check_quorum()
        if image.is_empty:
            image = self._machine.machine.apply_all(ControllerState(), enumerate(bootstrap)).image
        problem = activation_problem(state, bootstrap)
        if problem is None and self._check is not None:
            problem = self._check(image)
        if problem is not None:
            raise UnusableMetadata(f"{where}: {problem}")
        return bootstrap

    async def stop(self) -> None:
        """Commit what was accepted, abort what is half done, refuse the rest."""
        stopped = NotController("the controller has stopped")
        self._writer.stop(stopped, reason="Controller shutdown")
        if self._log.is_leader:
            await self._log.wait_committed(self._log.end_offset - 1)
        self.resign(stopped)
        await self.snapshots.close()
        await self._log.close()

    def _failed(self, error: KafkaError) -> None:
        self.resign(NotController(f"the metadata log failed: {error}"))
        if self._on_failure is not None:
            self._on_failure(error)

    async def update_features(self, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        before = self.image
        response = await super().update_features(request)
        after = self.image
        if _went_down(before.features, after.features):
            if (level := metadata_version(after)) < metadata_version(before):
                lost = ", ".join(losses(before, level)) or "nothing"
                log.warning("metadata.version went down to %s; this is lost: %s", describe(level), lost)
            # So that software that does not know a level that was given up never meets it in the log.
            await self.snapshots.write_now()
        return response


def _went_down(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    return before is not after and any(after.get(name, 0) < level for name, level in before.items())
