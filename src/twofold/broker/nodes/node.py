"""What the two kinds of node have in common for the broker that starts on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from twofold.broker.controller_port import ControllerPort
from twofold.broker.lifecycle import ClusterTerms, Lifecycle
from twofold.config.authorization import AuthorizerSettings
from twofold.config.settings import Settings
from twofold.runtime.api import Runtime
from twofold.wire.errors import KafkaError
from twofold.wire.messages.broker_registration import Feature


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a node is made of. `fail` is told once when it cannot go on."""

    runtime: Runtime
    settings: Settings
    directory: str
    node_id: int
    authorizer: AuthorizerSettings | None
    fail: Callable[[KafkaError], None]


@dataclass(frozen=True, slots=True)
class OpenedNode:
    """The metadata is here, and this node may serve it."""

    cluster_id: str
    directory_id: UUID
    controller: ControllerPort


class BrokerNode(Protocol):
    membership: ClusterTerms | None
    """What registration and heartbeats say beyond those of a node alone. Set by `open`."""

    async def open(self) -> OpenedNode:
        """Come by the metadata. DataDirectoryError, CannotJoin or another error, where this node cannot serve it."""
        ...

    def features(self) -> Sequence[Feature]:
        """What this node registers."""
        ...

    def registered(self, lifecycle: Lifecycle) -> None:
        """The broker is registered; from now on the node may ask it to be fenced."""
        ...

    async def leave(self) -> None:
        """Before the broker stops to serve."""
        ...

    async def close(self) -> None:
        """Give back what `open` has taken, as far as it came."""
        ...
