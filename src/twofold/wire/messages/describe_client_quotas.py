"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 48."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentData:
    entity_type: str
    match_type: int
    match: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasRequest:
    """API key 48, versions 0-1."""

    components: Sequence[ComponentData]
    strict: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityData:
    entity_type: str
    entity_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueData:
    key: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryData:
    entity: Sequence[EntityData]
    values: Sequence[ValueData]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClientQuotasResponse:
    """API key 48, versions 0-1."""

    throttle_time_ms: int = 0
    error_code: int
    error_message: str | None
    entries: Sequence[EntryData] | None
