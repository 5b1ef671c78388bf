"""Settings of a broker: the keys and defaults of server.properties, typed and immutable.

1. A value comes from the first of these that has one: a change made while running (this broker's, then the
   cluster's), the command line, the environment (`TWOFOLD_NUM_PARTITIONS` is `num.partitions`), the file, the default.
2. A value that its key does not allow stops the start with a `ConfigError` that names key, value, source and what is
   allowed.
3. An unknown key is an error that names the nearest known key. In a file it is only logged: the file may have
   been written for another version, or for Apache Kafka. Other programs may own variables of the environment, so there
   only a near miss of a known key counts.
4. What would be believed and is not there (clusters, replicas, stores) stops the start (`twofold.config.servable`).
5. A transactional id is kept for longer than any transaction may last (KIP-98): otherwise a producer that was fenced
   could be forgotten before its transaction is aborted.
6. Replication factor and min ISR of the internal topics are capped by the number of brokers unless they are set
   (`twofold.config.internal_topics`).
"""

import builtins
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from twofold.config.definition import ConfigError, ConfigSource, Value
from twofold.config.keys import (
    DEFINITIONS,
    LISTENER_PREFIX,
    REFUSED_NAMES,
    foreign_family,
    is_known,
    listener_key,
    refused_key,
)
from twofold.config.keys.key import SettingKey
from twofold.config.properties import parse_properties

__all__ = [
    "DEFINITIONS",
    "Settings",
    "Source",
    "data_directory",
    "data_settings",
    "environment_values",
    "parse_properties",
    "why_ignored",
]

logger = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "TWOFOLD_"
NEAR_MISS = 0.85  # how alike a variable and a key have to be, from 0 to 1


@dataclass(frozen=True, slots=True)
class Source:
    """Texts by key, and the name of the place where they were written.

    `lenient`: an unknown key is ignored with a log line instead of being an error.
    """

    name: str
    texts: Mapping[str, str]
    lenient: bool = False


def environment_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings among environment variables: TWOFOLD_NUM_PARTITIONS=3 sets num.partitions.

    Other programs may own variables with this prefix, so one that is not a setting is passed on, as an error, only if
    it is a near miss of one.
    """
    values = {}
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
            if is_known(key) or _nearest(key, cutoff=NEAR_MISS):
                values[key] = text
    return values


@dataclass(frozen=True, slots=True)
class _Layer:
    source: ConfigSource
    texts: Mapping[str, str]
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Given:
    """A text that was given, and where."""

    text: str
    source: str


class Settings:
    """Typed access to every setting."""

    __slots__ = ("_layers", "_values", "given")

    def __init__(self, layers: tuple[_Layer, ...] = (), given: Mapping[str, Given] | None = None) -> None:
        # As the sources of the start have it, and what is no key of Twofold's but must not be believed.
        self.given: Mapping[str, Given] = given or {}
        values = {key.name: key.default for key in DEFINITIONS.values()}
        for layer in reversed(layers):
            values.update(layer.values)
        self._layers = layers
        self._values = values

    @classmethod
    def from_mapping(cls, texts: Mapping[str, str], *, source: str = "") -> "Settings":
        return cls.from_sources(Source(source, texts))

    @classmethod
    def from_sources(cls, *sources: Source) -> "Settings":
        """The later source wins: give the file first, then the environment, then the command line."""
        texts: dict[str, str] = {}
        values: dict[str, Value] = {}
        given: dict[str, Given] = {}
        for source in sources:
            for name, text in source.texts.items():
                key = DEFINITIONS.get(name)
                if key is not None:
                    values[name] = key.parse(text, source=source.name)
                    texts[name] = text
                of_listener = listener_key(name)
                if of_listener is not None:
                    _parse_for_listener(of_listener.key, name, text, source.name)
                if is_known(name):
                    given[name] = Given(text, source.name)
                elif not source.lenient:
                    raise ConfigError(name, None, why_ignored(name), source.name)
                is_read = key is not None or of_listener is not None
                if refused_key(name) is None and (not is_read or foreign_family(name) is not None):
                    logger.warning("%s%s is ignored: %s", name, _from(source.name), why_ignored(name))
        _join_node_id(texts, values)
        settings = cls((_Layer(ConfigSource.STATIC_BROKER_CONFIG, texts, values),), given)
        _check_expiry(settings)
        return settings

    def with_dynamic(self, *, broker: Mapping[str, str], cluster: Mapping[str, str]) -> "Settings":
        """These settings under the changes that were made while running. What cannot be read is left out: a change
        was checked when it was made, perhaps by a version that knew more."""
        static = tuple(layer for layer in self._layers if layer.source is ConfigSource.STATIC_BROKER_CONFIG)
        return Settings(
            (
                _dynamic_layer(ConfigSource.DYNAMIC_BROKER_CONFIG, broker),
                _dynamic_layer(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, cluster),
                *static,
            ),
            self.given,
        )

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def is_set(self, key: str) -> bool:
        """Whether this value was chosen."""
        if key not in DEFINITIONS:
            raise KeyError(key)
        return any(key in layer.values for layer in self._layers)

    def int(self, key: str) -> int:
        value = self._values[key]
        if type(value) is not int:
            raise _wrong_type(key, value, "an integer")
        return value

    def optional_int(self, key: str) -> builtins.int | None:
        return None if self._values[key] is None else self.int(key)

    def bool(self, key: str) -> bool:
        value = self._values[key]
        if type(value) is not bool:
            raise _wrong_type(key, value, "a boolean")
        return value

    def float(self, key: str) -> float:
        value = self._values[key]
        if type(value) is not float:
            raise _wrong_type(key, value, "a floating-point number")
        return value

    def string(self, key: str) -> str:
        value = self._values[key]
        if type(value) is not str:
            raise _wrong_type(key, value, "a string")
        return value

    def optional_string(self, key: str) -> str | None:
        return None if self._values[key] is None else self.string(key)

    def list(self, key: str) -> tuple[str, ...]:
        value = self._values[key]
        if value is None:
            return ()
        if type(value) is not tuple:
            raise _wrong_type(key, value, "a list")
        return value

    def for_listener(self, listener: str, key: str, mechanism: str | None = None) -> Value:
        """The value of the listener's mechanism, of the listener, or of all, whichever is written down first."""
        name = self.listener_name(listener, key, mechanism)
        return self._values[key] if name == key else DEFINITIONS[key].parse(self.given[name].text)

    def listener_name(self, listener: str, key: str, mechanism: str | None = None) -> str:
        """Under which name the value for a listener is written down; the key itself where it has no own value."""
        prefix = f"listener.name.{listener.lower()}."
        names = [f"{prefix}{key}"]
        if mechanism is not None:
            names.insert(0, f"{prefix}{mechanism.lower()}.{key}")
        return next((name for name in names if name in self.given), key)

    def history(self, key: str) -> Iterator[tuple[ConfigSource, str]]:
        """Where the key has a value written down, strongest first, without the default."""
        for layer in self._layers:
            if key in layer.texts:
                yield layer.source, layer.texts[key]

    def explicit(self) -> dict[str, str]:
        """The texts of the keys that the command line, the environment or the file set."""
        return {
            name: text
            for layer in self._layers
            if layer.source is ConfigSource.STATIC_BROKER_CONFIG
            for name, text in layer.texts.items()
        }

    def __repr__(self) -> str:
        shown = {name: "***" if DEFINITIONS[name].is_sensitive else text for name, text in self.explicit().items()}
        return f"Settings({shown})"


def data_settings(directory: str) -> dict[str, str]:
    """What a data directory that was named outside of the settings is in their words. It wins over both keys."""
    return {"log.dirs": directory, "log.dir": directory}


def data_directory(settings: Settings) -> str:
    """The one directory that the settings name."""
    directories = settings.list("log.dirs") or settings.list("log.dir")
    if len(directories) != 1:
        raise ConfigError("log.dirs", ",".join(directories), f"names {len(directories)} directories: choose one")
    return directories[0]


def _wrong_type(key: str, value: Value, asked: str) -> TypeError:
    return TypeError(f"{key} is {DEFINITIONS[key].type.name} with value {value!r}, not {asked}")


def _dynamic_layer(source: ConfigSource, texts: Mapping[str, str]) -> _Layer:
    values: dict[str, Value] = {}
    for name, text in texts.items():
        if name in DEFINITIONS:
            try:
                values[name] = DEFINITIONS[name].parse(text, source=source.name)
            except ConfigError as error:
                logger.warning("ignored: %s", error)
    return _Layer(source, {name: texts[name] for name in values}, values)


def _parse_for_listener(key: SettingKey, name: str, text: str, source: str) -> Value:
    try:
        return key.parse(text, source=source)
    except ConfigError as error:
        raise ConfigError(name, error.value, error.allowed, source) from None


def _join_node_id(texts: dict[str, str], values: dict[str, Value]) -> None:
    """broker.id is the older name of node.id; files may hold either, or both with one value."""
    older, newer = values.get("broker.id"), values.get("node.id")
    if older is not None and newer is not None and older != newer:
        raise ConfigError("broker.id", texts["broker.id"], f"must equal node.id={texts['node.id']}; remove one of them")
    for have, want in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if have in values and want not in values:
            values[want] = DEFINITIONS[want].parse(texts[have])
            texts[want] = texts[have]


def _check_expiry(settings: Settings) -> None:
    """KIP-98: the expiration of transactional ids is strictly longer than the timeout of transactions."""
    expiry, timeout = "transactional.id.expiration.ms", "transaction.max.timeout.ms"
    values = {name: settings.int(name) for name in (expiry, timeout)}
    if values[expiry] > values[timeout]:
        return
    name, other, must = (expiry, timeout, "longer") if expiry in settings.given else (timeout, expiry, "shorter")
    reason = "an id must not be forgotten before its transaction times out"
    raise ConfigError(
        name,
        str(values[name]),
        f"must be {must} than {other}={values[other]}, because {reason}; change one of them",
        settings.given[name].source,
    )


def _from(source: str) -> str:
    return f" (from {source})" if source else ""


def why_ignored(name: str) -> str:
    """What a key is that is none of Twofold's."""
    if (what := foreign_family(name)) is not None:
        return f"Twofold has no {what}"
    if name.startswith(LISTENER_PREFIX):
        return "a listener has no such setting of its own"
    nearest = _nearest(name)
    return f"no such setting; did you mean {nearest}?" if nearest else "no such setting; docs/settings.md has all"


def _nearest(name: str, cutoff: float = 0.6) -> str | None:
    return next(iter(get_close_matches(name, (*DEFINITIONS, *REFUSED_NAMES), n=1, cutoff=cutoff)), None)
