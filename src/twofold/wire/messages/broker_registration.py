"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 62."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationRequest:
    """API key 62, versions 0-4."""

    broker_id: int
    cluster_id: str
    incarnation_id: UUID | None
    listeners: Sequence[Listener]
    features: Sequence[Feature]
    rack: str | None
    is_migrating_zk_broker: bool = False
    log_dirs: Sequence[UUID | None] = ()
    previous_broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationResponse:
    """API key 62, versions 0-4."""

    throttle_time_ms: int = 0
    error_code: int
    broker_epoch: int = -1
