"""Settings of a broker."""

from collections.abc import Mapping

from twofold.config.definition import Value


class Settings:
    """Typed values of the keys that somebody set."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    def is_set(self, key: str) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Value:
        return self._values[key]
