"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 48."""

from collections.abc import Sequence

from twofold.wire.message import Message


class ComponentData(Message):
    __slots__ = ("entity_type", "match_type", "match")
    entity_type: str
    match_type: int
    match: str | None

    def __init__(self, *, entity_type: str, match_type: int, match: str | None) -> None:
        self.entity_type = entity_type
        self.match_type = match_type
        self.match = match


class DescribeClientQuotasRequest(Message):
    """API key 48, versions 0-1."""

    __slots__ = ("components", "strict")
    components: Sequence[ComponentData]
    strict: bool

    def __init__(self, *, components: Sequence[ComponentData], strict: bool) -> None:
        self.components = components
        self.strict = strict


class EntityData(Message):
    __slots__ = ("entity_type", "entity_name")
    entity_type: str
    entity_name: str | None

    def __init__(self, *, entity_type: str, entity_name: str | None) -> None:
        self.entity_type = entity_type
        self.entity_name = entity_name


class ValueData(Message):
    __slots__ = ("key", "value")
    key: str
    value: float

    def __init__(self, *, key: str, value: float) -> None:
        self.key = key
        self.value = value


class EntryData(Message):
    __slots__ = ("entity", "values")
    entity: Sequence[EntityData]
    values: Sequence[ValueData]

    def __init__(self, *, entity: Sequence[EntityData], values: Sequence[ValueData]) -> None:
        self.entity = entity
        self.values = values


class DescribeClientQuotasResponse(Message):
    """API key 48, versions 0-1."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "entries")
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    entries: Sequence[EntryData] | None

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        error_message: str | None,
        entries: Sequence[EntryData] | None,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.entries = entries
