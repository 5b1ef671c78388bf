"""The Spark session of a pipeline: settings that matter, and a log file for everything that is not for people."""

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from twofold.pipeline.checks import import_spark
from twofold.pipeline.config import DEFAULT_MASTER, PipelineConfig, PipelineConfigError, PipelineFailed
from twofold.pipeline.words import failure

SETTINGS = {
    # A task spends 40 ms less in its socket.
    "spark.python.unix.domain.socket.enabled": "true",
    # A Python process for every task would cost a second each, and transactional ids.
    "spark.python.worker.reuse": "true",
    # As many as can come between two looks at them.
    "spark.sql.streaming.numRecentProgressUpdates": "50",
    # A stop that waits for a commit which never ends is not to wait for ever.
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.ui.showConsoleProgress": "false",
}
# For one machine: what a cluster's operator has set stays.
LOCAL_SETTINGS = {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
LOGS_KEPT = 20
ROTATE_AT_BYTES = 10 * 2**20
ROTATED_KEPT = 3
JVM_PATIENCE_S = 30
LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c{{1}}: %m%n%ex
"""


# The log file


def log_path(name: str) -> Path:
    """One file a run, where the user's caches are; those of old runs go."""
    plain = plain_name(name)
    try:
        base = logs_directory()
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            pass
        old = sorted(base.glob(f"{plain}-*.log"), key=lambda path: path.stat().st_mtime)[: -LOGS_KEPT + 1]
        for path in old:
            path.unlink(missing_ok=True)
    except (OSError, RuntimeError):
        base = Path(tempfile.mkdtemp(prefix="twofold-pipeline-"))
    return base / f"{plain}-{os.getpid()}.log"


def logs_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twofold" / "pipelines"


def plain_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def log_error(log: Path, error: BaseException) -> None:
    """The full trace, for more than the message says."""
    with log.open("a") as file:
        file.write("".join(traceback.format_exception(error)))


def rotate(log: Path, at_bytes: int = ROTATE_AT_BYTES) -> None:
    """A query that runs for months logs some lines per trigger, also when it is idle. A file that is too large goes to
    `NAME.1.log`, the one that was there to `NAME.2.log`, and so on.

    The file is copied and cut, and not renamed: the JVM, its Python processes and this process append to it.
    """
    try:
        if log.stat().st_size <= at_bytes:
            return
    except FileNotFoundError:  # spark-submit has a log of its own
        return
    rotated = [log.with_suffix(f".{number}.log") for number in range(1, ROTATED_KEPT + 1)]
    with suppress(OSError):  # a disk that is full: what is cut makes room
        for older, newer in zip(rotated[:0:-1], rotated[-2::-1], strict=True):
            if newer.exists():
                newer.replace(older)
        shutil.copyfile(log, rotated[0])
    os.truncate(log, 0)


# The session


def submitted() -> bool:
    """spark-submit has started the JVM, with a master and a way to log that the user has chosen."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(config: PipelineConfig, log: Path, file: Path) -> Iterator[Any]:
    """A session that is stopped afterwards, JVM and all. What Spark says meanwhile is in the log file, and so is the
    trace of what is raised; PipelineFailed or ConfigError is left of it, for Spark's own errors have no words without
    their JVM. What the user's file imports beside itself is there for Python workers on this machine, too."""
    spark_session = import_spark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(file.parent), os.environ.get("PYTHONPATH")]))
    properties = log.with_suffix(".log4j2.properties")
    properties.write_text(LOGGING.format(path=log))
    # PySpark prints every mistake of a frame as a page of JSON, before it raises it.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    # It warns with a trace of what ends in peace when a JVM goes before its Python.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    spark = None
    try:
        with quiet(log):
            builder = spark_session.builder.appName(config.name)
            for name, value in settings_of(config, properties).items():
                builder = builder.config(name, value)
            if (master := chosen_master(config)) is not None:
                builder = builder.master(master)
            spark = builder.getOrCreate()
        yield spark
    except (PipelineFailed, PipelineConfigError) as error:
        log_error(log, error)
        raise
    except Exception as error:
        log_error(log, error)
        raise failure(_words(error), file) from None
    finally:
        with quiet(log):
            _end(spark, log)
        properties.unlink(missing_ok=True)


def _words(error: BaseException) -> str:
    """An error of Spark asks its JVM for its words, which may be what has failed."""
    try:
        return str(error)
    except Exception as nothing:
        return f"{type(error).__name__}: {type(nothing).__name__}"


def _end(spark: Any, log: Path) -> None:
    """Nothing that goes wrong here may hide why it ends."""
    from pyspark import SparkContext

    try:
        if spark is not None:
            spark.stop()
    except Exception as error:
        log_error(log, error)
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    try:
        assert process.stdin is not None, "PySpark keeps it open for as long as the JVM is to live"
        process.stdin.close()
        process.wait(JVM_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        log_error(log, error)
        process.kill()
        process.wait()


def chosen_master(config: PipelineConfig) -> str | None:
    return None if submitted() else config.master or DEFAULT_MASTER


def settings_of(config: PipelineConfig, properties: Path) -> dict[str, str]:
    if submitted():
        wanted = {**SETTINGS, **_without_pandas(), **config.spark}
        return {name: value for name, value in wanted.items() if name not in _given()}
    local = (chosen_master(config) or "").startswith("local")
    found: dict[str, str] = {**SETTINGS, **(LOCAL_SETTINGS if local else {}), **_without_pandas(), **config.spark}
    options = found.get("spark.driver.extraJavaOptions", "")
    found["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile=file:{properties} {options}".strip()
    return found


def _without_pandas() -> dict[str, str]:
    """Functions of Python take the way through Arrow with it only; without, Spark warns of each."""
    if importlib.util.find_spec("pandas") is not None:
        return {}
    return {"spark.sql.execution.pythonUDF.arrow.enabled": "false"}


def _given() -> dict[str, str]:
    """What spark-submit was told counts more."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Processes that start here write into the log file what they would write to the terminal."""
    sys.stdout.flush()
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
