"""A node that is broker and controller of a cluster of its own: the metadata is in its directory, and it leads."""

import logging
from collections.abc import Sequence

from twofold.broker.lifecycle import ClusterTerms, Lifecycle
from twofold.broker.nodes.node import NodeParts, OpenedNode
from twofold.controller.features import SUPPORTED_FEATURES
from twofold.controller.fitness.openable import first_problem
from twofold.log.directory.identity import identify, was_closed_cleanly
from twofold.log.manager import DataDirectoryError
from twofold.log.recovery.checkpoints import decode_uuid
from twofold.metadata_log.errors import UnusableMetadata
from twofold.quorum.controller import Controller
from twofold.wire.errors import KafkaError
from twofold.wire.messages.broker_registration import Feature

log = logging.getLogger(__name__)


class NodeAlone:
    def __init__(self, parts: NodeParts) -> None:
        self.membership: ClusterTerms | None = None
        self._parts = parts
        self._controller: Controller | None = None

    async def open(self) -> OpenedNode:
        parts = self._parts
        disk = parts.runtime.disk
        identity = identify(disk, parts.directory, parts.node_id, parts.runtime.random)
        directory_id = decode_uuid(identity.meta.directory_id)
        self._controller = controller = Controller(
            parts.runtime,
            parts.settings,
            log_dir=parts.directory,
            cluster_id=identity.meta.cluster_id,
            directory_id=directory_id,
            on_failure=self._fail,
            check=lambda image: first_problem(
                image, node_id=parts.node_id, directory_id=directory_id, authorizer=parts.authorizer
            ),
            closed_cleanly=was_closed_cleanly(disk, parts.directory),
        )
        try:
            await controller.start()
        except UnusableMetadata as error:
            self._controller = None
            raise DataDirectoryError(str(error)) from error
        identity.complete(disk, parts.directory)
        return OpenedNode(identity.meta.cluster_id, directory_id, controller)

    def _fail(self, error: KafkaError) -> None:
        log.critical("the metadata log failed, the broker cannot go on: %s", error)
        self._parts.fail(error)

    def features(self) -> Sequence[Feature]:
        return [
            Feature(
                name=feature.name, min_supported_version=feature.min_version, max_supported_version=feature.max_version
            )
            for feature in SUPPORTED_FEATURES
        ]

    def registered(self, lifecycle: Lifecycle) -> None:
        pass  # its controller lives and dies with it

    async def leave(self) -> None:
        pass  # there is no other broker that could lead

    async def close(self) -> None:
        if self._controller is not None:
            await self._controller.stop()
