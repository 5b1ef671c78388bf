"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 67."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """API key 67, versions 0-0."""

    broker_id: int
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """API key 67, versions 0-0."""

    throttle_time_ms: int = 0
    error_code: int
    producer_id_start: int
    producer_id_len: int
