"""One Spark session and one broker for all tests here; a session costs seconds and a core while it starts."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from connector import LONG, connector_jars
from sink_kit import SETTINGS
from spark_kit import Kit

from kits.processes.server import TwofoldServer
from kits.processes.spark import spark_environment

# A session on a busy machine takes its time, and the first test that needs it pays.
TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For temporary files of the session. Writes without a prefix lease one of the host's, which are there: those of
    tests that run beside these are not met."""
    return tmp_path_factory.mktemp("tmp")


@pytest.fixture(scope="session")
def spark(spark_directory: Path) -> Iterator[Any]:
    """Two cores, little memory, no web pages, sockets of the kind that Python workers are fast with."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs a JDK: install openjdk-17-jdk-headless")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
    }
    if LONG:
        settings["spark.jars"] = ",".join(map(str, connector_jars()))
    builder = SparkSession.builder.master("local[2]").appName("twofold tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment().items():
            patch.setenv(name, value)
        patch.setenv("TMPDIR", str(spark_directory))
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    settings = {
        "log.retention.check.interval.ms": "100",
        "message.max.bytes": "20000000",
        "replica.fetch.max.bytes": "20000000",
        **SETTINGS,
    }
    with TwofoldServer(tmp_path_factory.mktemp("server"), settings) as running:
        yield running


@pytest.fixture(
    params=["twofold", pytest.param("kafka", marks=pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 compares"))]
)
def form(request: pytest.FixtureRequest) -> str:
    """The format that is asked: what a test expects of ours, Spark's own does too."""
    return str(request.param)


@pytest.fixture
def kit(spark: Any, server: TwofoldServer, form: str, tmp_path: Path) -> Iterator[Kit]:
    """Both formats with all tests."""
    kit = Kit(spark, server.bootstrap_servers, form, tmp_path)
    yield kit
    kit.close()


@pytest.fixture
def ours(spark: Any, server: TwofoldServer, tmp_path: Path) -> Iterator[Kit]:
    """Our format only, for what Spark's own has not."""
    kit = Kit(spark, server.bootstrap_servers, "twofold", tmp_path)
    yield kit
    kit.close()
