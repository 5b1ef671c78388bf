"""What a pipeline consists of: sources, sinks, checkpoint, trigger; from a TOML file, from flags, or from both. Pure.

1. A flag counts more than the file. Names that neither knows are refused with the nearest that is known.
2. Options of a source or a sink are those of `format("twofold")`, by the same names; Spark's settings are Spark's.
3. Settings of the connection ([kafka], `--command-config`) hold for all sources and sinks that do not say otherwise.
4. Every sink has a checkpoint of its own below the pipeline's, so that sinks fail and go on apart from each other.
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
NAMED = 5
MODES = ("append", "complete")
PIPELINE_KEYS = ("name", "checkpoint", "trigger", "bootstrap-server", "master", "metrics")
DEFAULT_METRICS_HOST = "127.0.0.1"
EXAMPLES = dict(
    zip(
        PIPELINE_KEYS,
        ("orders", "checkpoint", DEFAULT_TRIGGER, DEFAULT_SERVERS, "spark://host:7077", "127.0.0.1:9465"),
        strict=True,
    )
)
SECTIONS = ("pipeline", "sources", "sinks", "spark", "kafka")
KAFKA = "kafka."
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"\d+ *(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?)")


class PipelineConfigError(ValueError):
    """A message for the user: a flag or the file is wrong."""


class PipelineFailed(Exception):
    """What went wrong though everything was written well, for people; the log file has the rest."""

    def __init__(self, message: str, *, is_taken_over: bool = False) -> None:
        super().__init__(message)
        self.is_taken_over = is_taken_over
        """Another run has the pipeline now: what is open is no business of this one any more."""


@dataclass(frozen=True, slots=True)
class PipelineSource:
    name: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PipelineSink:
    name: str
    options: Mapping[str, str]
    mode: str = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    name: str
    sources: tuple[PipelineSource, ...]
    sinks: tuple[PipelineSink, ...]
    checkpoint: str
    trigger: str = DEFAULT_TRIGGER
    bootstrap_servers: str = DEFAULT_SERVERS
    master: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
    metrics: str | None = None
    """HOST:PORT where metrics are served; None: nowhere."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Of the connection to the brokers, by Kafka's names."""

    @property
    def trigger_options(self) -> dict[str, Any]:
        """As DataStreamWriter.trigger takes them."""
        if self.trigger == AVAILABLE_NOW:
            return {"availableNow": True}
        return {"processingTime": self.trigger}

    @property
    def source_names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self.sources)

    def checkpoint_of(self, sink: PipelineSink) -> str:
        return f"{self.checkpoint.rstrip('/')}/{sink.name}"

    def options_of(self, part: PipelineSource | PipelineSink) -> dict[str, str]:
        """As `format("twofold")` takes them."""
        found = {"kafka.bootstrap.servers": self.bootstrap_servers}
        found |= {KAFKA + name: value for name, value in self.kafka.items()}
        if isinstance(part, PipelineSink):
            found["checkpointLocation"] = self.checkpoint_of(part)
        own = {name.lower() for name in part.options}
        return {name: value for name, value in found.items() if name.lower() not in own} | dict(part.options)

    def connection_of(self, part: PipelineSource | PipelineSink) -> dict[str, str]:
        """The settings of its connection, without the prefix."""
        options = {name.lower(): value for name, value in self.options_of(part).items()}
        return {name.removeprefix(KAFKA): value for name, value in options.items() if name.startswith(KAFKA)}


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
    kafka: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    metrics: str | None = None


def build(file: Path, toml: Path | None, flags: Flags) -> PipelineConfig:
    """ConfigError says what to write."""
    found = _from_toml(toml) if toml is not None else _Found(name=file.stem)
    sources = [_named(text, "subscribe", "--source", PipelineSource) for text in flags.sources] or found.sources
    sinks = [_named(text, "topic", "--sink", PipelineSink) for text in flags.sinks] or found.sinks
    sources, sinks = _with_options(sources, sinks, flags.options)
    if not sources:
        raise PipelineConfigError(
            f"nothing to read: name a topic with --source TOPIC, or {_in_toml(file, toml, 'sources')}"
        )
    if not sinks:
        raise PipelineConfigError(
            f"nothing to write: name a topic with --sink TOPIC, or {_in_toml(file, toml, 'sinks')}"
        )
    _check_unique([source.name for source in sources], "source")
    _check_unique([sink.name for sink in sinks], "sink")
    checkpoint = _absolute(flags.checkpoint, Path()) or found.checkpoint
    if not checkpoint:
        raise PipelineConfigError(
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
        metrics=checked_metrics(flags.metrics or found.metrics),
        kafka={**found.kafka, **flags.kafka},
    )


def checked_metrics(text: str | None) -> str | None:
    """HOST:PORT; a port alone is one of this machine, for this machine."""
    if text is None:
        return None
    from twofold.config.listeners import ListenerError, parse_host_port

    full = f"{DEFAULT_METRICS_HOST}:{text}" if text.isdecimal() else text
    try:
        if not parse_host_port(full, "metrics").host:
            raise ListenerError(f"metrics={text} names no host: write {DEFAULT_METRICS_HOST}{text}, or 0.0.0.0{text}")
    except ListenerError as error:
        raise PipelineConfigError(str(error)) from None
    return full


def _in_toml(file: Path, toml: Path | None, section: str) -> str:
    """Where else it could be written."""
    near = sorted(path.name for path in file.parent.glob("*.toml") if path.name != "pyproject.toml")
    if toml is None and near:
        return f"name a TOML file with --config (there is {near[0]} beside {file.name})"
    return f"a [{section}.NAME] in {'a TOML file with --config' if toml is None else toml}"


def _absolute(checkpoint: str | None, base: Path) -> str | None:
    """The sink's transactions are named after it: the same path is to mean the same directory, wherever one is."""
    if not checkpoint or "://" in checkpoint or checkpoint.startswith("file:"):
        return checkpoint
    return str((base / Path(checkpoint).expanduser()).resolve())


def _named(text: str, option: str, flag: str, kind: type[Any]) -> Any:
    """`topic` or `name=topic`."""
    name, separator, topic = text.partition("=")
    if not separator:
        name, topic = re.sub(r"[^A-Za-z0-9_]", "_", text), text
    if not topic or not _NAME.fullmatch(name):
        raise PipelineConfigError(f"{flag} {text!r}: write TOPIC, or NAME=TOPIC with a name of letters, digits and '_'")
    return kind(name, {option: topic})


def _with_options(
    sources: list[PipelineSource], sinks: list[PipelineSink], options: Mapping[str, str]
) -> tuple[list[PipelineSource], list[PipelineSink]]:
    """`name.option=value` belongs to the source or sink of that name."""
    parts: list[Any] = [*sources, *sinks]
    for key, value in options.items():
        name, _, option = key.partition(".")
        meant = [index for index, part in enumerate(parts) if part.name == name]
        if not meant or not option:
            names = ", ".join(dict.fromkeys(part.name for part in parts))
            raise PipelineConfigError(f"--option {key}={value}: write NAME.OPTION=VALUE with one of {names}")
        if len(meant) > 1:
            raise PipelineConfigError(
                f"--option {key}={value}: {name} is a source and a sink: give one another name, as --sink out={name}"
            )
        part = parts[meant[0]]
        # A value that replaces one of the file, however that is spelled.
        others = {known: text for known, text in part.options.items() if known.lower() != option.lower()}
        parts[meant[0]] = replace(part, options={**others, option: value})
    return parts[: len(sources)], parts[len(sources) :]


def _check_unique(names: list[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise PipelineConfigError(f"there are two {what}s with the name {name!r}: give one another, as NAME=TOPIC")


def _checked_trigger(text: str) -> str:
    if text != AVAILABLE_NOW and not _DURATION.fullmatch(text):
        raise PipelineConfigError(f"trigger={text!r} is neither a time such as '5 seconds' nor '{AVAILABLE_NOW}'")
    return text


# The TOML file


@dataclass
class _Found:
    name: str = ""
    sources: list[PipelineSource] = field(default_factory=list)
    sinks: list[PipelineSink] = field(default_factory=list)
    checkpoint: str | None = None
    trigger: str | None = None
    bootstrap_servers: str | None = None
    master: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
    metrics: str | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)


def _from_toml(path: Path) -> _Found:
    try:
        text = path.read_text()
        values = tomllib.loads(text)
    except OSError as error:
        near = sorted(other.name for other in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f" (there is {', '.join(near[:NAMED])})" if near and not path.exists() else ""
        raise PipelineConfigError(f"{path} cannot be read: {error.strerror}{hint}") from None
    except UnicodeDecodeError as error:
        raise PipelineConfigError(f"{path} is not a TOML file: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise PipelineConfigError(f"{path} is not a TOML file: {error}{_line_of(text, str(error))}") from None
    _check_names(values, SECTIONS, f"{path}: [", "]")
    pipeline = _table(values, "pipeline", path)
    _check_names(pipeline, PIPELINE_KEYS, f"{path}: pipeline.", "")
    sources = [
        PipelineSource(name, _texts(row, f"sources.{name}", path)) for name, row in _tables(values, "sources", path)
    ]
    sinks = [_sink(name, row, path) for name, row in _tables(values, "sinks", path)]
    said = {key: _text(pipeline, key, path) for key in PIPELINE_KEYS}
    return _Found(
        name=said["name"] or path.stem,
        sources=sources,
        sinks=sinks,
        checkpoint=_absolute(said["checkpoint"], path.parent),  # beside the file, wherever the command is run
        trigger=said["trigger"],
        bootstrap_servers=said["bootstrap-server"],
        master=said["master"],
        spark=_texts(_table(values, "spark", path), "spark", path),
        metrics=said["metrics"],
        kafka=_texts(_table(values, "kafka", path), "kafka", path),
    )


def _line_of(text: str, error: str) -> str:
    """The line that a parser complains of: most often it has a text without quotes."""
    match = re.search(r"at line (\d+)", error)
    lines = text.splitlines()
    if match is None or int(match.group(1)) > len(lines):
        return ""
    return f": {lines[int(match.group(1)) - 1].strip()!r}; texts are written in quotes"


def _sink(name: str, row: Mapping[str, Any], path: Path) -> PipelineSink:
    options = dict(_texts(row, f"sinks.{name}", path))
    mode = options.pop("mode", "append")
    if mode not in MODES:
        raise PipelineConfigError(f"{path}: sinks.{name}.mode={mode!r} is none of {', '.join(MODES)}")
    return PipelineSink(name, options, mode)


def _check_names(values: Mapping[str, Any], known: tuple[str, ...], before: str, after: str) -> None:
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else f": use one of {', '.join(known)}"
            raise PipelineConfigError(f"{before}{name}{after} is not known{hint}")


def _table(values: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    found = values.get(name, {})
    if not isinstance(found, dict):
        raise PipelineConfigError(f"{path}: {name} must be a table, [{name}]")
    return found


def _tables(values: Mapping[str, Any], name: str, path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    found: list[tuple[str, Mapping[str, Any]]] = []
    for key, row in _table(values, name, path).items():
        if not isinstance(row, dict) or not _NAME.fullmatch(key):
            raise PipelineConfigError(
                f"{path}: write [{name}.NAME] with a name of letters, digits and '_', not {name}.{key}"
            )
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
            raise PipelineConfigError(f"{path}: {where}.{key} must be a text, a number, true or false")
    return found


def _text(row: Mapping[str, Any], name: str, path: Path) -> str | None:
    value = row.get(name)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise PipelineConfigError(
            f'{path}: pipeline.{name} = {value!r} must be a text, such as {name} = "{EXAMPLES[name]}"'
        )
    return value
