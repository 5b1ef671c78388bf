"""A real standalone cluster, a master and two workers, and the ways in which PySpark users bring code to executors: an
installed wheel, `--py-files`, a packed environment. The pipeline is the same as on a laptop."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyspark
import pytest
from connector import CHECKOUT, LONG
from sink_kit import SETTINGS, App, Broker, Orders, check_exactly_once
from standalone_kit import Standalone

from kits.processes.server import TwofoldServer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 starts a Spark cluster"),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK"),
]

HOME = Path(pyspark.__file__).parent
EXECUTORS = {
    "spark.executor.memory": "500m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.memory": "600m",
    "spark.driver.host": "127.0.0.1",
}
# What Twofold needs of others: it is in the environment of the executors, whichever way Twofold itself comes there.
WHERE = (
    "import twofold.spark, twofold.records.columnar as c; from pathlib import Path; "
    "print(Path(twofold.spark.__file__).resolve(), c.warm_up())"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    sources = directory / "sources"  # building leaves files behind
    shutil.copytree(CHECKOUT / "src", sources / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(CHECKOUT / name, sources / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(directory), str(sources)]
    subprocess.run(command, check=True, timeout=300)
    return next(directory.glob("*.whl"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    """Its executors find Twofold only where a test puts it."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    made = Standalone(directory, python_path="")
    try:
        made.start()
        yield made
    finally:
        made.stop()


def run_pipeline(
    server: TwofoldServer, tmp_path: Path, cluster: Standalone, conf: dict[str, str], register: bool = False, **env: str
) -> list[str]:
    """Where the executors and the driver had Twofold from."""
    broker = Broker(server.bootstrap_servers)
    source, target = broker.topic(4), broker.topic(4)
    broker.send(source, range(2_000))
    orders = Orders(tmp_path / "orders")
    app = App(server.bootstrap_servers, source, target, tmp_path, orders, per_batch=500, env=env, register=register)
    hook = {f"spark.executorEnv.{name}": value for name, value in orders.env.items()}
    if "spark.executorEnv.PYTHONPATH" in conf:
        conf["spark.executorEnv.PYTHONPATH"] += f"{os.pathsep}{orders.env['PYTHONPATH']}"
    app.master, app.conf, app.shape = cluster.master, EXECUTORS | hook | conf, "shuffled"
    numbers = [orders.give(step, "where") for step in ("task: opened", "commit: decided")]
    assert app.run() == 0, app.text[-3000:] + cluster.executor_logs()[-3000:]
    check_exactly_once(broker, target, range(2_000))
    broker.wait_until_none_open()
    return [(orders.directory / f"where-{number:03}").read_text() for number in numbers]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path / "server", SETTINGS) as server:
        yield server


def test_an_installed_wheel_in_a_read_only_place(
    running: TwofoldServer, tmp_path: Path, cluster: Standalone, wheel: Path
) -> None:
    """Nothing is registered: Spark finds `pyspark_twofold` in the wheel. The kernels are kept elsewhere."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, timeout=300)
    for path in (site, *site.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    cache = tmp_path / "kernels"
    try:
        where = subprocess.run(
            [sys.executable, "-c", WHERE],
            env=os.environ | {"PYTHONPATH": str(site), "NUMBA_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        assert where.startswith(str(site)), where
        assert f"compiled kernels in {cache}" in where
        conf = {"spark.executorEnv.PYTHONPATH": str(site), "spark.executorEnv.NUMBA_CACHE_DIR": str(cache)}
        found = run_pipeline(running, tmp_path, cluster, conf, PYTHONPATH=str(site), NUMBA_CACHE_DIR=str(cache))
        assert all(path.startswith(str(site)) for path in found), found
    finally:
        for path in (site, *site.rglob("*")):
            path.chmod(0o755)


def test_py_files(running: TwofoldServer, tmp_path: Path, cluster: Standalone, wheel: Path) -> None:
    """A wheel is a zip of Python files, so it can be shipped as one. Spark looks for data sources among installed
    packages only, so that this one has to be registered."""
    shipped = tmp_path / "twofold.zip"
    with zipfile.ZipFile(wheel) as made, zipfile.ZipFile(shipped, "w") as out:
        for name in made.namelist():
            if not re.match(r"twofold-[^/]*/", name):
                out.writestr(name, made.read(name))
    conf = {"spark.submit.pyFiles": str(shipped)}
    found = run_pipeline(running, tmp_path, cluster, conf, register=True)
    assert all("twofold.zip" in path for path in found), found


def test_a_packed_environment(running: TwofoldServer, tmp_path: Path, cluster: Standalone, wheel: Path) -> None:
    """An archive that Spark unpacks beside every executor, with an interpreter of its own in it. Spark runs Python on
    the driver, too, and by the same path: so it has to be unpacked where the driver is started."""
    environment = tmp_path / "environment"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--copies", str(environment)], check=True, timeout=120
    )
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment / "lib" / version / "site-packages"
    ours = Path(pyarrow.__file__).parents[1]
    for path in ours.iterdir():
        # Spark brings PySpark; what only tests need stays behind.
        if not re.match(r"pyspark|twofold|__editable__|mypy|ruff|pip|hypothesis|confluent|setuptools", path.name):
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, site / path.name)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, timeout=300)
    archive = tmp_path / "environment.tar.gz"  # a plain .tar loses the right to execute when Spark unpacks it
    with tarfile.open(archive, "w:gz", compresslevel=1) as out:
        for path in environment.iterdir():
            out.add(path, path.name)
    conf = {"spark.archives": f"{archive}#environment", "spark.pyspark.python": "./environment/bin/python"}
    # Spark as it comes, whose own PySpark the environment uses.
    python = {"PYSPARK_PYTHON": "./environment/bin/python", "SPARK_HOME": str(HOME)}
    executor, driver = run_pipeline(running, tmp_path, cluster, conf, False, **python)
    assert driver.startswith(str(environment)), driver
    assert "/environment/lib/" in executor and str(cluster.directory) in executor


def test_executors_and_driver_killed(running: TwofoldServer, tmp_path: Path, cluster: Standalone) -> None:
    """The crash that a laptop does not have: an executor that is gone, JVM and all; then the driver."""
    broker = Broker(running.bootstrap_servers)
    source, target = broker.topic(4), broker.topic(4)
    broker.send(source, range(2_000))
    orders = Orders(tmp_path / "orders")
    app = App(running.bootstrap_servers, source, target, tmp_path, orders, per_batch=500)
    app.master, app.shape = cluster.master, "shuffled"
    hook = {f"spark.executorEnv.{name}": value for name, value in orders.env.items()}
    app.conf = EXECUTORS | hook
    orders.give("task: written", "kill-driver")  # the nearest JVM above a task is its executor
    orders.give("commit: decided", "kill-driver")
    assert app.run() != 0
    app.run_to_end()
    assert [row[0] for row in orders.done] == ["task: written", "commit: decided"]
    check_exactly_once(broker, target, range(2_000))
    broker.wait_until_none_open()
