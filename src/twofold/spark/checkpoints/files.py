"""The directory of a checkpoint, on whatever file system Spark has it.

1. A local directory is read as it is. Everything else is read with Hadoop's own classes, those that Spark loaded, in a
   small JVM beside this process: so that every file system which Spark can use is one that the sink can use.
2. That JVM has Spark's settings: those of the driver's command line, of `spark-defaults.conf`, of the Hadoop
   configuration on Spark's class path and of the environment. What a program sets only after the driver's JVM has
   started does not reach Spark's Python processes; it can be given to the writer as options of the same names.
3. It ends with this process, however that ends.
"""

import glob
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from twofold.spark.checkpoints import driver_jvm

log = logging.getLogger(__name__)

HADOOP = "spark.hadoop."
DEFAULT_FS = "fs.defaultFS"
JAVA_OPTIONS = ("-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
LONGEST_ERROR = 600

Settings = tuple[tuple[str, str], ...]


class FilesError(OSError):
    """A file system does not give what it was asked for; the message is for people."""


class Files(Protocol):
    """Paths are relative to the directory."""

    @property
    def kind(self) -> str:
        """Which file system it is, for people."""

    def read(self, path: str) -> bytes: ...

    def names(self, path: str) -> list[str]: ...


def files_at(location: str, settings: Settings = ()) -> Files:
    """Of the directory `location`, a path or a URI. `settings` count more than those that Spark was started with."""
    if is_local(location, settings):
        return LocalFiles(re.sub(r"^file:(//[^/]*)?(?=/)", "", location))
    return HadoopFiles(location, settings)


def is_local(location: str, settings: Settings = ()) -> bool:
    """Whether the local file system has it, as Spark takes the location."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", location)
    if scheme is not None:
        return scheme.group(1).lower() == "file"
    return not _names_default_fs(settings)


class LocalFiles:
    kind = "the local file system"

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory.removeprefix("file:"))

    def read(self, path: str) -> bytes:
        return (self._directory / path).read_bytes()

    def names(self, path: str) -> list[str]:
        return os.listdir(self._directory / path)


class HadoopFiles:
    """What goes wrong is a FilesError."""

    def __init__(self, location: str, settings: Settings = ()) -> None:
        self._location = location.rstrip("/")
        self._settings = settings
        self._fs: Any = None
        self._root: Any = None
        self.kind = f"Hadoop's file system of {location.partition(':')[0]!r}"

    def read(self, path: str) -> bytes:
        with _Errors():
            stream = self._open().open(self._path(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def names(self, path: str) -> list[str]:
        with _Errors():
            return [str(status.getPath().getName()) for status in self._open().listStatus(self._path(path))]

    def _path(self, path: str) -> Any:
        return _gateway().jvm.org.apache.hadoop.fs.Path(self._root, path)

    def _open(self) -> Any:
        if self._fs is None:
            jvm = _gateway().jvm
            self._root = jvm.org.apache.hadoop.fs.Path(self._location)
            self._fs = self._root.getFileSystem(_configuration(jvm, self._settings))
            self.kind = f"{self._fs.getClass().getSimpleName()} ({self._fs.getUri().toString()})"
        return self._fs


class _Errors:
    """Java's errors as one of Python, with the text that Java has and without its trace."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

        if isinstance(error, Py4JJavaError):
            raise FilesError(_cause(error.java_exception)) from None
        if isinstance(error, Py4JNetworkError):
            _Process.gateway = None
            raise FilesError(f"the JVM beside this process ended: {error}") from None
        if isinstance(error, Py4JError):
            raise FilesError(str(error)[:LONGEST_ERROR]) from None


def _cause(error: Any) -> str:
    """The text of an exception and of the first one behind it, where that says more."""
    texts = [" ".join(str(error.toString()).split())]
    behind = error
    while behind.getCause() is not None:
        behind = behind.getCause()
    last = " ".join(str(behind.toString()).split())
    if last not in texts[0]:
        texts.append(last)
    return ": ".join(text[:LONGEST_ERROR] for text in texts)


# Spark's settings


def _session() -> Any:
    """The session's context, where this is the program that has one and not a process of Spark's."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _names_default_fs(settings: Settings) -> bool:
    """Whether a path without a scheme may be on another file system than the local one. A configuration that says so
    is read by Hadoop itself; here it only matters that there is one."""
    if (context := _session()) is not None:
        return not str(context._jsc.hadoopConfiguration().get(DEFAULT_FS)).startswith("file:")
    if any(name in (HADOOP + DEFAULT_FS, (HADOOP + DEFAULT_FS).lower()) for name, _ in settings):
        return True
    spark = _driver()
    if {HADOOP + DEFAULT_FS, DEFAULT_FS} & spark.conf.keys():
        return True
    found = [os.environ.get("HADOOP_CONF_DIR", ""), os.environ.get("YARN_CONF_DIR", ""), *spark.class_path.split(":")]
    sites = [Path(directory) / "core-site.xml" for directory in found if directory and not directory.endswith("*")]
    properties = map(Path, spark.properties_files)
    return any(_mentions(path, (DEFAULT_FS, "fs.default.name")) for path in (*sites, *properties))


def _mentions(path: Path, words: tuple[str, ...]) -> bool:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return False
    return any(word in text for word in words)


def _driver() -> driver_jvm.CommandLine:
    pid = driver_jvm.find()
    return driver_jvm.CommandLine() if pid is None else driver_jvm.command_line_of(pid)


def _configuration(jvm: Any, settings: Settings) -> Any:
    """As Spark makes it of its own settings."""
    if (context := _session()) is not None:
        return context._jsc.hadoopConfiguration()
    spark = jvm.org.apache.spark.SparkConf(False)
    line = _driver()
    for path in line.properties_files:
        properties = jvm.java.util.Properties()
        reader = jvm.java.io.FileReader(path)
        properties.load(reader)
        reader.close()
        for name in properties.stringPropertyNames():
            spark.set(name, properties.getProperty(name).strip())
    given: Mapping[str, str] = line.conf | dict(settings)
    for name, value in given.items():
        spark.set(name, value)
    configuration = jvm.org.apache.spark.deploy.SparkHadoopUtil().newConfiguration(spark)
    for name, value in given.items():
        if not name.startswith("spark."):  # a setting of the session, which Spark gives to Hadoop as it is
            configuration.set(name, value)
    return configuration


# The JVM


class _Process:
    pid = -1
    gateway: Any = None


def _gateway() -> Any:
    """The one of this process; that of the session where there is one."""
    if (context := _session()) is not None:
        return context._gateway
    if _Process.pid != os.getpid():
        _Process.pid, _Process.gateway = os.getpid(), None
    if _Process.gateway is None:
        _Process.gateway = _launch()
    return _Process.gateway


def _launch() -> Any:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    pid = driver_jvm.find()
    line = _driver()
    jars = _spark_jars()
    class_path = [line.class_path, jars, *([] if pid is None else driver_jvm.open_jars(pid))]
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        class_path.append(os.environ.get(name, ""))
    py4j = [path for path in glob.glob(jars) if os.path.basename(path).startswith("py4j-")]
    if not py4j:
        raise FilesError(f"there are no jars of Spark at {jars}: set SPARK_HOME where Python workers start")
    log.info("a JVM is started to read the checkpoint")
    try:
        port, token = launch_gateway(
            jarpath=py4j[0],
            classpath=os.pathsep.join(dict.fromkeys(filter(None, class_path))),
            javaopts=[*line.options, *JAVA_OPTIONS],
            java_path=line.java or None,
            die_on_exit=True,
            enable_auth=True,
        )
    except (OSError, ValueError) as error:
        raise FilesError(f"no JVM could be started to read it ({error}): set JAVA_HOME") from None
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))


def _spark_jars() -> str:
    from pyspark.find_spark_home import _find_spark_home

    return os.path.join(_find_spark_home(), "jars", "*")
