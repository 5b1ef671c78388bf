"""Serializers: plain callables that make bytes of what an application sends.

None stays None: it is how a record without a key, or a tombstone, is written, and no serializer is asked about it.
"""

from typing import Any

from twofold.client.config import ProducerConfig, Serializer


class Serializers:
    __slots__ = ("_key", "_value")

    def __init__(self, config: ProducerConfig) -> None:
        self._key = config.key_serializer
        self._value = config.value_serializer

    def __bool__(self) -> bool:
        return self._key is not None or self._value is not None

    def key(self, key: Any) -> bytes | None:
        return _serialized(self._key, key)

    def value(self, value: Any) -> bytes | None:
        return _serialized(self._value, value)

    def keys(self, column: Any) -> Any:
        return None if column is None else _column(self._key, column)

    def values(self, column: Any) -> Any:
        return _column(self._value, column)


def _serialized(serializer: Serializer | None, item: Any) -> bytes | None:
    return item if serializer is None or item is None else serializer(item)


def _column(serializer: Serializer | None, column: Any) -> Any:
    """Item by item; an Arrow array's items are what they are in Python."""
    if serializer is None:
        return column
    items = column.to_pylist() if hasattr(column, "to_pylist") else column
    return [_serialized(serializer, item) for item in items]
