"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 37."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsAssignment:
    broker_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsTopic:
    name: str
    count: int
    assignments: Sequence[CreatePartitionsAssignment] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    """API key 37, versions 0-3."""

    topics: Sequence[CreatePartitionsTopic]
    timeout_ms: int
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsTopicResult:
    name: str
    error_code: int
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse:
    """API key 37, versions 0-3."""

    throttle_time_ms: int = 0
    results: Sequence[CreatePartitionsTopicResult]
