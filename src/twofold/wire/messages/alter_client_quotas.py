"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 49."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityData:
    entity_type: str
    entity_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpData:
    key: str
    value: float
    remove: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryData:
    entity: Sequence[EntityData]
    ops: Sequence[OpData]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasRequest:
    """API key 49, versions 0-1."""

    entries: Sequence[EntryData]
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityDataResult:
    entity_type: str
    entity_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDataResult:
    error_code: int
    error_message: str | None
    entity: Sequence[EntityDataResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotasResponse:
    """API key 49, versions 0-1."""

    throttle_time_ms: int = 0
    entries: Sequence[EntryDataResult]
