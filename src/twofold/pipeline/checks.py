"""What can be told before a JVM is started for nothing: options, brokers that answer, topics, the checkpoint, a JDK.

1. Whatever is refused here is refused within seconds, and in words that say what to write or to do instead.
2. What cannot be looked at from here (a checkpoint in a store that only Spark reaches) is left to Spark.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twofold.extras import install_command, require
from twofold.pipeline.config import PipelineConfig, PipelineConfigError, PipelineFailed, PipelineSink

if TYPE_CHECKING:
    from twofold.client.cluster.cluster import Cluster
    from twofold.spark.options import ReadOptions, WriteOptions

ASK_TIMEOUT_MS = 10_000
PATIENCE_MS = 2_000
CREATE_PATIENCE_MS = 3_000
OLDEST_JAVA = 17
JAVA_VERSIONS = "17 or 21"
OFFSETS_VERSION = "v1"
NO_OFFSET = "-"


def import_spark() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineFailed(f"PySpark is missing ({error}): {install_command('spark')}") from None
    return SparkSession


# Options


@dataclass(frozen=True, slots=True)
class Checked:
    """The options of the sources and sinks, by their names."""

    sources: "Mapping[str, ReadOptions]"
    sinks: "Mapping[str, WriteOptions]"


def check_options(config: PipelineConfig) -> Checked:
    """The same checks as Spark's processes make, and the same words."""
    import_spark()
    from twofold.spark.errors import OptionError
    from twofold.spark.options import read_options, write_options

    sources, sinks = {}, {}
    for source in config.sources:
        try:
            sources[source.name] = read_options(config.options_of(source), streaming=True)
        except OptionError as error:
            raise PipelineConfigError(f"source {source.name}: {error}") from None
    for sink in config.sinks:
        try:
            sinks[sink.name] = write_options(config.options_of(sink), streaming=True)
        except OptionError as error:
            raise PipelineConfigError(f"sink {sink.name}: {error}") from None
    return Checked(sources, sinks)


# Brokers and topics


async def check_topics(checked: Checked) -> None:
    """KafkaError where no broker answers. A sink's topic is made, as its first row would have made it, where brokers
    do so (auto.create.topics.enable)."""
    for name, options in checked.sources.items():
        await _check_source(name, options)
    for name, chosen in checked.sinks.items():
        await _check_sink(name, chosen)


async def _check_source(name: str, options: "ReadOptions") -> None:
    from twofold.client.cluster.cluster import Cluster
    from twofold.runtime.real import real_runtime
    from twofold.spark.options import Assign, Subscribe

    config = replace(options.consumer, default_api_timeout_ms=ASK_TIMEOUT_MS, request_timeout_ms=ASK_TIMEOUT_MS)
    cluster = Cluster(real_runtime(), config)
    try:
        await cluster.bootstrap(PATIENCE_MS)
        strategy = options.strategy
        if isinstance(strategy, Subscribe):
            await _check_there(cluster, strategy.topics, f"source {name}")
        elif isinstance(strategy, Assign):
            await _check_there(cluster, sorted({tp.topic for tp in strategy.partitions}), f"source {name}")
    finally:
        await cluster.close()


async def _check_there(cluster: "Cluster", topics: Any, whose: str) -> None:
    cluster.track(topics)
    await cluster.refresh(cluster.deadline())
    for topic in topics:
        if cluster.cache.topic(topic) is None:
            raise _missing(cluster, topic, whose)


async def _check_sink(name: str, options: "WriteOptions") -> None:
    from twofold.client.cluster.cluster import Cluster
    from twofold.connections.errors import GaveUp
    from twofold.runtime.real import real_runtime
    from twofold.wire.errors import UnknownTopicOrPartition

    config = replace(
        options.producer,
        default_api_timeout_ms=ASK_TIMEOUT_MS,
        request_timeout_ms=ASK_TIMEOUT_MS,
        delivery_timeout_ms=ASK_TIMEOUT_MS,
        linger_ms=0,
    )
    cluster = Cluster(real_runtime(), config, allow_auto_create=True)
    try:
        await cluster.bootstrap(PATIENCE_MS)
        if options.topic is not None:
            await cluster.topic(options.topic, cluster.deadline(CREATE_PATIENCE_MS))
    except GaveUp as error:
        if isinstance(error.last, UnknownTopicOrPartition):
            raise _missing(cluster, options.topic or "", f"sink {name}") from None
        raise
    finally:
        await cluster.close()


def _missing(cluster: "Cluster", topic: str, whose: str) -> PipelineFailed:
    servers = cluster.config.bootstrap_servers
    error = cluster.cache.error_of(topic)
    said = f"topic {topic!r} does not exist" if error is None else error.message
    return PipelineFailed(
        f"{whose}: {said} at {servers}. Create it with `twofold topic create {topic} -b {servers}`, or name another; "
        f"`twofold topic list -b {servers}` shows those that there are"
    )


# The checkpoint


def check_metrics(config: PipelineConfig) -> None:
    """A port that another process has would be found out when the JVM has started."""
    if config.metrics is None:
        return
    from twofold.config.listeners import parse_host_port
    from twofold.runtime.real import check_can_listen

    require("server", "metrics")
    address = parse_host_port(config.metrics, "metrics")
    try:
        check_can_listen(address.host, address.port)
    except OSError as error:
        raise PipelineFailed(
            f"metrics={config.metrics}: {error.strerror or error}. Choose another address with --metrics, or 0 for any "
            "free port"
        ) from None


def check_checkpoint(config: PipelineConfig, checked: Checked) -> None:
    """Refuse one that another query has left: Spark would say that data is lost, or worse, go on."""
    root = _local(config.checkpoint)
    if root is None:
        return
    if root.exists() and not root.is_dir():
        raise PipelineFailed(f"the checkpoint {root} is a file: name a directory with --checkpoint")
    if (root / "offsets").is_dir() and (root / "metadata").is_file():
        raise PipelineFailed(
            f"the checkpoint {root} is that of a query which was started otherwise (it has offsets/ and metadata); a "
            "pipeline keeps one directory for each sink in its own. Name another directory with --checkpoint"
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PipelineFailed(
            f"the checkpoint {root} cannot be made: {error.strerror}. Name another with --checkpoint"
        ) from None
    if not os.access(root, os.W_OK):
        raise PipelineFailed(f"the checkpoint {root} cannot be written: name another with --checkpoint")
    for sink in config.sinks:
        _check_offsets(config, sink, checked)


def _check_offsets(config: PipelineConfig, sink: PipelineSink, checked: Checked) -> None:
    directory = _local(checked.sinks[sink.name].checkpoint_location or "")
    if directory is None:
        return
    wanted = ", ".join(_reads(options) for options in checked.sources.values())
    for line in _last_offsets(directory):
        topics = _topics_of(line)
        if topics is None:
            found = f"read something that is no topic ({line[:60]})"
        elif any(_shares(options, topics) for options in checked.sources.values()):
            continue
        else:
            found = f"read {', '.join(sorted(topics))}"
        raise PipelineFailed(
            f"the checkpoint {directory} is of another query: its last batch {found}, and this pipeline reads "
            f"{wanted}. Name another directory with --checkpoint to begin anew, or the sources that it belongs to"
        )


def _last_offsets(directory: Path) -> list[str]:
    """A line for each source, as the newest batch has them; nothing where there is none, or one of another form."""
    try:
        batches = [int(path.name) for path in (directory / "offsets").iterdir() if path.name.isdecimal()]
        if not batches:
            return []
        lines = (directory / "offsets" / str(max(batches))).read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines[2:] if line != NO_OFFSET] if lines[:1] == [OFFSETS_VERSION] else []


def _topics_of(line: str) -> set[str] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not all(isinstance(offsets, dict) for offsets in value.values()):
        return None
    return {name for name in value if not name.startswith(":")}


def _shares(options: "ReadOptions", topics: set[str]) -> bool:
    """Whether a source reads one of them at least: topics may have come or gone since."""
    from twofold.spark.options import Assign, Subscribe

    strategy = options.strategy
    if not topics:
        return True
    if isinstance(strategy, Subscribe):
        return bool(topics & set(strategy.topics))
    if isinstance(strategy, Assign):
        return bool(topics & {tp.topic for tp in strategy.partitions})
    return any(strategy.matches(topic) for topic in topics)


def _reads(options: "ReadOptions") -> str:
    from twofold.spark.options import Assign, Subscribe

    strategy = options.strategy
    if isinstance(strategy, Subscribe):
        return ", ".join(strategy.topics)
    if isinstance(strategy, Assign):
        return ", ".join(sorted({tp.topic for tp in strategy.partitions}))
    return strategy.pattern


def _local(location: str) -> Path | None:
    plain = re.sub(r"^file:/+", "/", location)
    return None if "://" in plain or not plain else Path(plain)


# Java


def check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if home is None else shutil.which("java", path=str(Path(home) / "bin"))
    if java is None and home is not None:
        raise PipelineFailed(f"JAVA_HOME={home} has no bin/java: set it to a JDK {JAVA_VERSIONS}, or leave it out")
    if java is None:
        raise PipelineFailed(
            f"Spark needs a JDK {JAVA_VERSIONS}, and there is no java in PATH: install one (Debian: apt-get install "
            "default-jdk-headless), or set JAVA_HOME"
        )
    version = _java_version(java)
    if version is not None and version < OLDEST_JAVA:
        raise PipelineFailed(
            f"{java} is Java {version}, and Spark needs a JDK {JAVA_VERSIONS}: install one, and set JAVA_HOME to it"
        )


def _java_version(java: str) -> int | None:
    """None where it does not say: then Spark finds out."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match.group(1)) if match else None
