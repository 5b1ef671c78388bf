"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 20."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicState:
    name: str | None = None
    topic_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest:
    """API key 20, versions 1-6."""

    topic_names: Sequence[str] = ()
    timeout_ms: int
    topics: Sequence[DeleteTopicState] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableTopicResult:
    name: str | None
    error_code: int
    error_message: str | None = None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse:
    """API key 20, versions 1-6."""

    throttle_time_ms: int = 0
    responses: Sequence[DeletableTopicResult]
