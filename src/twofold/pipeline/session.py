"""The Spark session of a pipeline: settings that matter, and a log file for everything that is not for people."""

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twofold.pipeline.config import DEFAULT_MASTER, ConfigError, PipelineConfig

SETTINGS = {
    # A task spends 40 ms less in its socket.
    "spark.python.unix.domain.socket.enabled": "true",
    # A Python process for every task would cost a second each, and transactional ids.
    "spark.python.worker.reuse": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.ui.showConsoleProgress": "false",
}
# For one machine: what a cluster's operator has set stays.
LOCAL_SETTINGS = {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
JAVA_VERSIONS = "17 or 21"
LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n%ex
"""


def log_path(name: str) -> Path:
    """One file a run, where the user's caches are."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twofold" / "pipelines"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        base = Path(tempfile.mkdtemp(prefix="twofold-pipeline-"))
    return base / f"{name}-{os.getpid()}.log"


def check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home is not None and not (Path(home) / "bin" / "java").exists():
        raise ConfigError(f"JAVA_HOME={home} has no bin/java: set it to a JDK {JAVA_VERSIONS}, or leave it out")
    if home is None and shutil.which("java") is None:
        raise ConfigError(
            f"Spark needs a JDK {JAVA_VERSIONS}, and there is no java in PATH: install one (Debian: apt-get install "
            "default-jdk-headless), or set JAVA_HOME"
        )


def import_spark() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"PySpark is missing ({error}): pip install 'twofold[spark]'") from None
    return SparkSession


@contextmanager
def session(config: PipelineConfig, log: Path) -> Iterator[Any]:
    """A session that is stopped afterwards. What Spark says meanwhile is in the log file."""
    spark_session = import_spark()
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    properties = log.with_suffix(".log4j2.properties")
    properties.write_text(LOGGING.format(path=log))
    builder = spark_session.builder.appName(config.name)
    for name, value in settings_of(config, properties).items():
        builder = builder.config(name, value)
    if (master := chosen_master(config)) is not None:
        builder = builder.master(master)
    # PySpark prints every mistake of a frame as a page of JSON, before it raises it.
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    with quiet(log):
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        with quiet(log):
            spark.stop()
        properties.unlink(missing_ok=True)


def chosen_master(config: PipelineConfig) -> str | None:
    """spark-submit has chosen one before we run."""
    return config.master or (None if "SPARK_ENV_LOADED" in os.environ else DEFAULT_MASTER)


def settings_of(config: PipelineConfig, properties: Path) -> dict[str, str]:
    local = (chosen_master(config) or "").startswith("local")
    found: dict[str, str] = {**SETTINGS, **(LOCAL_SETTINGS if local else {}), **config.spark}
    options = found.get("spark.driver.extraJavaOptions", "")
    found["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile=file:{properties} {options}".strip()
    return found


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Processes that start here write into the log file what they would write to the terminal."""
    sys.stderr.flush()
    saved = [os.dup(number) for number in (1, 2)]
    try:
        with log.open("ab") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        yield
    finally:
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def as_options(writer: Any, options: Mapping[str, str]) -> Any:
    for name, value in options.items():
        writer = writer.option(name, value)
    return writer
