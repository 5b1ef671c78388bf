"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 49."""

from collections.abc import Sequence

from twofold.wire.message import Message


class EntityData(Message):
    __slots__ = ("entity_type", "entity_name")
    entity_type: str
    entity_name: str | None

    def __init__(self, *, entity_type: str, entity_name: str | None) -> None:
        self.entity_type = entity_type
        self.entity_name = entity_name


class OpData(Message):
    __slots__ = ("key", "value", "remove")
    key: str
    value: float
    remove: bool

    def __init__(self, *, key: str, value: float, remove: bool) -> None:
        self.key = key
        self.value = value
        self.remove = remove


class EntryData(Message):
    __slots__ = ("entity", "ops")
    entity: Sequence[EntityData]
    ops: Sequence[OpData]

    def __init__(self, *, entity: Sequence[EntityData], ops: Sequence[OpData]) -> None:
        self.entity = entity
        self.ops = ops


class AlterClientQuotasRequest(Message):
    """API key 49, versions 0-1."""

    __slots__ = ("entries", "validate_only")
    entries: Sequence[EntryData]
    validate_only: bool

    def __init__(self, *, entries: Sequence[EntryData], validate_only: bool) -> None:
        self.entries = entries
        self.validate_only = validate_only


class EntityDataResult(Message):
    __slots__ = ("entity_type", "entity_name")
    entity_type: str
    entity_name: str | None

    def __init__(self, *, entity_type: str, entity_name: str | None) -> None:
        self.entity_type = entity_type
        self.entity_name = entity_name


class EntryDataResult(Message):
    __slots__ = ("error_code", "error_message", "entity")
    error_code: int
    error_message: str | None
    entity: Sequence[EntityDataResult]

    def __init__(self, *, error_code: int, error_message: str | None, entity: Sequence[EntityDataResult]) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.entity = entity


class AlterClientQuotasResponse(Message):
    """API key 49, versions 0-1."""

    __slots__ = ("throttle_time_ms", "entries")
    throttle_time_ms: int
    entries: Sequence[EntryDataResult]

    def __init__(self, *, throttle_time_ms: int = 0, entries: Sequence[EntryDataResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.entries = entries
