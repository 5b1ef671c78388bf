"""What a pipeline consists of: sources, sinks, checkpoint, trigger; from a TOML file, from flags, or from both. Pure.

1. A flag counts more than the file. Names that neither knows are refused with the nearest that is known.
2. Options of a source or a sink are those of `format("twofold")`, by the same names; Spark's settings are Spark's.
3. Every sink has a checkpoint of its own below the pipeline's, so that sinks fail and go on apart from each other.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

DEFAULT_SERVERS = "127.0.0.1:9092"
DEFAULT_MASTER = "local[*]"
DEFAULT_TRIGGER = "1 second"
AVAILABLE_NOW = "available-now"
MODES = ("append", "complete")
PIPELINE_KEYS = ("name", "checkpoint", "trigger", "bootstrap-server", "master", "format")
SECTIONS = ("pipeline", "sources", "sinks", "spark")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"\d+ *(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?)")


class ConfigError(ValueError):
    """A message for whoever wrote the flag or the file."""


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sink:
    name: str
    options: Mapping[str, str]
    mode: str = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    name: str
    sources: tuple[Source, ...]
    sinks: tuple[Sink, ...]
    checkpoint: str
    trigger: str = DEFAULT_TRIGGER
    bootstrap_servers: str = DEFAULT_SERVERS
    master: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def trigger_options(self) -> dict[str, Any]:
        """As DataStreamWriter.trigger takes them."""
        if self.trigger == AVAILABLE_NOW:
            return {"availableNow": True}
        return {"processingTime": self.trigger}

    def checkpoint_of(self, sink: Sink) -> str:
        return f"{self.checkpoint.rstrip('/')}/{sink.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What was said on the command line; None and nothing for what was not."""

    sources: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    checkpoint: str | None = None
    trigger: str | None = None
    bootstrap_servers: str | None = None
    master: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


def build(file: Path, toml: Path | None, flags: Flags) -> PipelineConfig:
    """ConfigError says what to write."""
    found = _from_toml(toml) if toml is not None else _Found(name=file.stem)
    sources = [_named(text, "subscribe", "--source", Source) for text in flags.sources] or found.sources
    sinks = [_named(text, "topic", "--sink", Sink) for text in flags.sinks] or found.sinks
    sources, sinks = _with_options(sources, sinks, flags.options)
    if not sources:
        raise ConfigError("nothing to read: name a topic with --source TOPIC, or a [sources.NAME] in the TOML file")
    if not sinks:
        raise ConfigError("nothing to write: name a topic with --sink TOPIC, or a [sinks.NAME] in the TOML file")
    _check_unique([source.name for source in sources], "source")
    _check_unique([sink.name for sink in sinks], "sink")
    checkpoint = flags.checkpoint or found.checkpoint
    if not checkpoint:
        raise ConfigError(
            "where is the checkpoint to be? Set --checkpoint DIRECTORY, or checkpoint in the TOML file: it makes a "
            "restart go on where the last run ended, so keep it as long as the pipeline lives"
        )
    return PipelineConfig(
        name=found.name or file.stem,
        sources=tuple(sources),
        sinks=tuple(sinks),
        checkpoint=checkpoint,
        trigger=_checked_trigger(flags.trigger or found.trigger or DEFAULT_TRIGGER),
        bootstrap_servers=flags.bootstrap_servers or found.bootstrap_servers or DEFAULT_SERVERS,
        master=flags.master or found.master,
        spark={**found.spark, **flags.spark},
    )


def _named(text: str, option: str, flag: str, kind: type[Any]) -> Any:
    """`topic` or `name=topic`."""
    name, separator, topic = text.partition("=")
    if not separator:
        name, topic = re.sub(r"[^A-Za-z0-9_]", "_", text), text
    if not topic or not _NAME.fullmatch(name):
        raise ConfigError(f"{flag} {text!r}: write TOPIC, or NAME=TOPIC with a name of letters, digits and '_'")
    return kind(name, {option: topic})


def _with_options(
    sources: list[Source], sinks: list[Sink], options: Mapping[str, str]
) -> tuple[list[Source], list[Sink]]:
    """`name.option=value` belongs to the source or sink of that name."""
    found: dict[str, Any] = {source.name: source for source in sources} | {sink.name: sink for sink in sinks}
    for key, value in options.items():
        name, _, option = key.partition(".")
        if name not in found or not option:
            raise ConfigError(f"--option {key}={value}: write NAME.OPTION=VALUE with one of {', '.join(found)}")
        found[name] = replace(found[name], options={**found[name].options, option: value})
    return [found[source.name] for source in sources], [found[sink.name] for sink in sinks]


def _check_unique(names: list[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"there are two {what}s with the name {name!r}: give one another, as NAME=TOPIC")


def _checked_trigger(text: str) -> str:
    if text != AVAILABLE_NOW and not _DURATION.fullmatch(text):
        raise ConfigError(f"trigger={text!r} is neither a time such as '5 seconds' nor '{AVAILABLE_NOW}'")
    return text


# The TOML file


@dataclass
class _Found:
    name: str = ""
    sources: list[Source] = field(default_factory=list)
    sinks: list[Sink] = field(default_factory=list)
    checkpoint: str | None = None
    trigger: str | None = None
    bootstrap_servers: str | None = None
    master: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)


def _from_toml(path: Path) -> _Found:
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None
    _check_names(values, SECTIONS, f"{path}: [", "]")
    pipeline = _table(values, "pipeline", path)
    _check_names(pipeline, PIPELINE_KEYS, f"{path}: pipeline.", "")
    sources = [Source(name, _texts(row, f"sources.{name}", path)) for name, row in _tables(values, "sources", path)]
    sinks = [_sink(name, row, path) for name, row in _tables(values, "sinks", path)]
    checkpoint = _text(pipeline, "checkpoint")
    if checkpoint is not None and "://" not in checkpoint:
        checkpoint = str((path.parent / checkpoint).resolve())  # beside the file, wherever the command is run
    return _Found(
        name=_text(pipeline, "name") or path.stem,
        sources=sources,
        sinks=sinks,
        checkpoint=checkpoint,
        trigger=_text(pipeline, "trigger"),
        bootstrap_servers=_text(pipeline, "bootstrap-server"),
        master=_text(pipeline, "master"),
        spark=_texts(_table(values, "spark", path), "spark", path),
    )


def _sink(name: str, row: Mapping[str, Any], path: Path) -> Sink:
    options = dict(_texts(row, f"sinks.{name}", path))
    mode = options.pop("mode", "append")
    if mode not in MODES:
        raise ConfigError(f"{path}: sinks.{name}.mode={mode!r} is none of {', '.join(MODES)}")
    return Sink(name, options, mode)


def _check_names(values: Mapping[str, Any], known: tuple[str, ...], before: str, after: str) -> None:
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else f": use one of {', '.join(known)}"
            raise ConfigError(f"{before}{name}{after} is not known{hint}")


def _table(values: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    found = values.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {name} is to be a table, [{name}]")
    return found


def _tables(values: Mapping[str, Any], name: str, path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for key, row in _table(values, name, path).items():
        if not isinstance(row, dict) or not _NAME.fullmatch(key):
            raise ConfigError(f"{path}: write [{name}.NAME] with a name of letters, digits and '_', not {name}.{key}")
        found.append((key, row))
    return found


def _texts(row: Mapping[str, Any], where: str, path: Path) -> dict[str, str]:
    """Numbers and flags as Spark takes them; a dotted name without quotes is a table to TOML, and meant as a name."""
    found: dict[str, str] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found |= {f"{key}.{rest}": text for rest, text in _texts(value, f"{where}.{key}", path).items()}
        elif isinstance(value, bool):
            found[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            found[key] = str(value)
        else:
            raise ConfigError(f"{path}: {where}.{key} is to be a text, a number, true or false")
    return found


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    return None if value is None else str(value)
