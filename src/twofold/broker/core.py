"""What every part of one broker stands on: its identity, its settings, the metadata image, its logs and its partitions.

1. `Broker` makes it and is the only writer. The parts read an attribute each time they need it, because settings and
   image are replaced as a whole.
2. It knows no part that is built on it: neither a coordinator nor the API handlers (`broker/services.py` has those).
"""

import logging

from twofold.broker.controller_port import ControllerPort
from twofold.broker.network.attention import AttentionClock
from twofold.broker.network.authorizer import AllowAll, Authorizer
from twofold.broker.network.quiet import QuietLog
from twofold.broker.partitions.replicas import ReplicaManager
from twofold.config.cluster import is_member
from twofold.config.settings import Settings
from twofold.controller.image import MetadataImage
from twofold.log.manager import LogManager
from twofold.runtime.api import Runtime

log = logging.getLogger(__name__)


class BrokerCore:
    __slots__ = (
        "attention", "authorizer", "cluster_id", "controller", "image", "is_member", "logs", "node_id", "quiet",
        "replicas", "runtime", "settings",
    )  # fmt: skip

    def __init__(self, runtime: Runtime, settings: Settings, logs: LogManager) -> None:
        self.runtime = runtime
        self.node_id = settings.int("node.id")
        self.is_member = is_member(settings)  # of a cluster whose controllers are elsewhere
        self.settings = settings  # with what was changed while the broker runs
        self.image = MetadataImage()
        self.attention = AttentionClock(runtime.clock, runtime.timers)
        self.authorizer: Authorizer = AllowAll()
        self.quiet = QuietLog(log, runtime.clock)
        self.logs = logs
        self.replicas = ReplicaManager(runtime, settings, logs, self.node_id, lambda: self.attention.now_ms)
        self.cluster_id = ""  # until the data folder is identified
        self.controller: ControllerPort = None  # type: ignore[assignment]  # until the metadata is here
