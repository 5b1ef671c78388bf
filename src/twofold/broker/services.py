"""What API handlers may use of the broker, and nothing else of it.

1. `Broker` makes it once. It is handed to the dispatcher, which hands it to every handler.
2. Settings, image, controller and authorizer are read through `core` at each use, because they are replaced as a whole.
3. No module below `broker/` imports `Broker`: a part takes `BrokerCore`, or the parts that it needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from twofold.broker.codec.produce import Endpoint
from twofold.broker.coordinators.groups.service import GroupService
from twofold.broker.coordinators.transactions.producer_ids import ProducerIdBlocks
from twofold.broker.coordinators.transactions.service import TransactionService
from twofold.broker.core import BrokerCore
from twofold.broker.fetch.entry import Entry
from twofold.broker.fetch.sessions import FetchSessionCache
from twofold.broker.network.aside import Aside
from twofold.broker.network.authorizer import Authorizer
from twofold.broker.partitions.replicas import ReplicaManager
from twofold.broker.topics.auto_creation import AutoTopics
from twofold.broker.topics.rows import TopicRowCache
from twofold.config.settings import Settings
from twofold.controller.image import MetadataImage
from twofold.log.manager import LogManager
from twofold.quorum.controller import Controller
from twofold.runtime.api import Runtime


@dataclass(frozen=True, slots=True)
class Services:
    core: BrokerCore
    runtime: Runtime
    logs: LogManager
    replicas: ReplicaManager
    groups: GroupService
    transactions: TransactionService
    producer_ids: ProducerIdBlocks
    auto_topics: AutoTopics
    topic_rows: TopicRowCache
    fetch_sessions: FetchSessionCache[Entry]
    aside: Aside
    max_response_bytes: Callable[[], int]
    """How much memory the server can give to one more answer."""

    @property
    def node_id(self) -> int:
        return self.core.node_id

    @property
    def cluster_id(self) -> str:
        return self.core.cluster_id

    @property
    def settings(self) -> Settings:
        return self.core.settings

    @property
    def image(self) -> MetadataImage:
        return self.core.image

    @property
    def controller(self) -> Controller:
        """Of a node that is its own controller. In a member, what needs it is forwarded and comes to no handler."""
        return cast(Controller, self.core.controller)

    @property
    def authorizer(self) -> Authorizer:
        return self.core.authorizer

    def endpoint(self, node_id: int, listener: str) -> Endpoint | None:
        """Where clients of a listener find a broker."""
        registration = self.core.image.broker(node_id)
        found = None if registration is None else registration.end_point(listener)
        if registration is None or found is None:
            return None
        return Endpoint(node_id, found.host, found.port, registration.rack)
