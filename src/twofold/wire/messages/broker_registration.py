"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 62."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class Listener(Message):
    __slots__ = ("name", "host", "port", "security_protocol")
    name: str
    host: str
    port: int
    security_protocol: int

    def __init__(self, *, name: str, host: str, port: int, security_protocol: int) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.security_protocol = security_protocol


class Feature(Message):
    __slots__ = ("name", "min_supported_version", "max_supported_version")
    name: str
    min_supported_version: int
    max_supported_version: int

    def __init__(self, *, name: str, min_supported_version: int, max_supported_version: int) -> None:
        self.name = name
        self.min_supported_version = min_supported_version
        self.max_supported_version = max_supported_version


class BrokerRegistrationRequest(Message):
    """API key 62, versions 0-4."""

    __slots__ = (
        "broker_id",
        "cluster_id",
        "incarnation_id",
        "listeners",
        "features",
        "rack",
        "is_migrating_zk_broker",
        "log_dirs",
        "previous_broker_epoch",
    )
    broker_id: int
    cluster_id: str
    incarnation_id: UUID | None
    listeners: Sequence[Listener]
    features: Sequence[Feature]
    rack: str | None
    is_migrating_zk_broker: bool
    log_dirs: Sequence[UUID | None]
    previous_broker_epoch: int

    def __init__(
        self,
        *,
        broker_id: int,
        cluster_id: str,
        incarnation_id: UUID | None,
        listeners: Sequence[Listener],
        features: Sequence[Feature],
        rack: str | None,
        is_migrating_zk_broker: bool = False,
        log_dirs: Sequence[UUID | None] = (),
        previous_broker_epoch: int = -1,
    ) -> None:
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.incarnation_id = incarnation_id
        self.listeners = listeners
        self.features = features
        self.rack = rack
        self.is_migrating_zk_broker = is_migrating_zk_broker
        self.log_dirs = log_dirs
        self.previous_broker_epoch = previous_broker_epoch


class BrokerRegistrationResponse(Message):
    """API key 62, versions 0-4."""

    __slots__ = ("throttle_time_ms", "error_code", "broker_epoch")
    throttle_time_ms: int
    error_code: int
    broker_epoch: int

    def __init__(self, *, throttle_time_ms: int = 0, error_code: int, broker_epoch: int = -1) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.broker_epoch = broker_epoch
