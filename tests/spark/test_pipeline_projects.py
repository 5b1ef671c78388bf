"""Pipelines as projects: what `init` writes, several sources and sinks, spark-submit on a laptop and on a cluster."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from connector import LONG
from pipeline_kit import Command, check_message
from sink_kit import SETTINGS, Broker, check_exactly_once
from standalone_kit import Standalone

from kits.processes.server import TwofoldServer
from kits.processes.spark import spark_environment
from oracle.processes import free_port

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK"),
]
rest = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all of them")
TWOFOLD = Path(sys.executable).parent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


@pytest.fixture
def command(server: TwofoldServer, tmp_path: Path) -> Iterator[Command]:
    broker = Broker(server.bootstrap_servers)
    made = Command(broker, tmp_path, broker.topic(), broker.topic())
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# init


def commands_of(readme: str) -> list[str]:
    """The indented lines of the first block."""
    block = re.search(r"(?:^    .+\n)+", readme, re.MULTILINE)
    assert block is not None
    return [line.strip() for line in block.group(0).splitlines()]


def test_what_init_writes_runs_by_the_commands_of_its_readme(tmp_path: Path) -> None:
    """Word for word, in a shell; only where the broker listens is this test's, by the environment, and that it waits
    for the broker as long as a person takes to type."""
    address = f"127.0.0.1:{free_port()}"
    env = os.environ | spark_environment() | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    env |= {"TWOFOLD_LISTENERS": f"PLAINTEXT://{address}", "TWOFOLD_BOOTSTRAP_SERVER": address}
    env |= {"PATH": f"{TWOFOLD}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["twofold", "pipeline", "init", "shop"], cwd=tmp_path, env=env, check=True, timeout=60)
    commands = commands_of((tmp_path / "shop" / "README.md").read_text())
    assert len(commands) == 6 and commands[0].endswith("&")
    ready = "until twofold topic list >/dev/null 2>&1; do sleep 0.2; done"
    script = "\n".join(["set -e", commands[0], ready, *commands[1:], "kill %1", "wait"])
    process = subprocess.Popen(
        ["bash", "-c", f"set -m; {script}"],
        cwd=tmp_path / "shop",
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        _end_session(process.pid)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert rows == [{"customer": "ann", "with_tax": 12.0}, {"customer": "bob", "with_tax": 6.0}], output + errors
    check_message(errors, "shop.totals: batch 0, 2 rows")


def _end_session(session: int) -> None:
    """With job control the shell gives each command a group of its own: all of them are of its session."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) == session:
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            continue


def test_init_says_what_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    init = [sys.executable, "-m", "twofold", "pipeline", "init", "."]
    done = subprocess.run(init, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    check_message(done.stderr, ". is not empty (it has mine.py): name another directory, nothing was written")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


# Several sources, several sinks, JSON and plain values, helpers and functions of the user's own

SHOP = '''
from pyspark.sql import functions as f

from rules import with_tax

ORDER = "number int, amount double"


@f.udf("string")
def name_of(number):
    return f"order-{with_tax(number)}"


def configure(spark):
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def transform(orders, returns):
    """JSON from one topic, plain numbers from another; JSON into one, plain values into the other."""
    parsed = orders.select("key", f.from_json(f.col("value").cast("string"), ORDER).alias("o")).select("key", "o.*")
    back = returns.select("key", f.col("value").cast("string").cast("int").alias("number"))
    totals = parsed.select("key", f.to_json(f.struct("number", name_of("number").alias("name"))).alias("value"))
    both = parsed.select("key", "number").unionByName(back)
    return {"totals": totals, "numbers": both.select("key", f.col("number").cast("string").alias("value"))}
'''
RULES = "def with_tax(number):\n    return number + 1000\n"
CONFIG = """
[pipeline]
checkpoint = "state"
bootstrap-server = "{servers}"
master = "local[2]"

[sources.orders]
subscribe = "{orders}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 150

[sources.returns]
subscribe = "{returns}"
startingOffsets = "earliest"

[sinks.totals]
topic = "{totals}"

[sinks.numbers]
topic = "{numbers}"

[spark]
spark.driver.memory = "700m"
spark.driver.extraJavaOptions = "-Duser.language=en -Duser.country=US"
"""


def test_two_sources_and_two_sinks_each_exactly_once(command: Command) -> None:
    """Killed in the middle and run again, by the TOML file alone."""
    broker, directory = command.broker, command.directory
    topics = {name: broker.topic(2) for name in ("orders", "returns", "totals", "numbers")}
    (directory / "shop.py").write_text(SHOP)
    (directory / "rules.py").write_text(RULES)
    config = CONFIG.format(servers=broker.bootstrap_servers, **topics)
    (directory / "shop.toml").write_text(config)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(400):
        producer.produce(topics["orders"], json.dumps({"number": number, "amount": 1.5}), f"k{number % 4}")
    assert producer.flush(60) == 0
    broker.send(topics["returns"], range(1000, 1100))
    run = ["-m", "twofold", "pipeline", "run", "shop.py", "--config", "shop.toml"]
    command.target = topics["numbers"]
    if LONG:
        process = command.spawn(*run, "--trigger", "100 milliseconds")
        command.wait_for_rows(1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    code, output = command.ended(command.spawn(*run, "--trigger", "available-now"))
    assert code == 0, output
    check_message(output, "shop.totals: batch")
    check_message(output, "shop.numbers: batch")
    values = [json.loads(value) for _, _, value in broker.read(topics["totals"])]
    wanted = [{"number": number, "name": f"order-{number + 1000}"} for number in range(400)]
    assert sorted(values, key=lambda row: row["number"]) == wanted
    numbers = sorted(int(value) for _, _, value in broker.read(topics["numbers"]))
    assert numbers == [*range(400), *range(1000, 1100)]
    assert broker.open_transactions() == []
    assert command.left_running() == [], "the JVM has ended before the command"
    assert _prefixes(broker) >= 2, "each sink has ids of its own"


def _prefixes(broker: Broker) -> int:
    """Journals: one for each sink."""
    return sum(name.endswith(".decisions") for name in broker.admin.list_topics(timeout=30).topics)


# spark-submit

SUBMITTED = """
def transform(df):
    return df.select("key", "value")


if __name__ == "__main__":
    from twofold.cli.pipeline.run import main

    main(__file__)
"""


def submit(command: Command, *arguments: str, before: tuple[str, ...] = (), text: str = SUBMITTED) -> tuple[int, str]:
    import pyspark

    (command.directory / "pipe.py").write_text(text)
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    conf = ("--conf", "spark.driver.memory=600m", "--conf", "spark.ui.enabled=false")
    process = command.spawn(*conf, *before, "pipe.py", *command.flags, *arguments, program=program)
    return command.ended(process)


def test_spark_submit_runs_the_same_file(command: Command) -> None:
    command.broker.send(command.source, range(100))
    code, output = submit(command, "--trigger", "available-now", before=("--master", "local[2]"))
    assert code == 0, output
    assert "pipe.out: batch 0, 100 rows" in output
    check_exactly_once(command.broker, command.target, range(100))
    assert command.broker.open_transactions() == []
    assert command.left_running(10) == []


@rest
def test_spark_submit_ends_with_the_code_of_the_pipeline(command: Command) -> None:
    command.broker.send(command.source, range(100))
    wrong = SUBMITTED.replace('df.select("key", "value")', "None")
    code, output = submit(command, "--trigger", "available-now", before=("--master", "local[2]"), text=wrong)
    assert code == 1, output
    assert "returned a NoneType for the sink out, not a DataFrame" in output


@rest
def test_spark_submit_stopped_leaves_nothing_open_and_nothing_running(command: Command) -> None:
    import pyspark

    command.broker.send(command.source, range(200))
    (command.directory / "pipe.py").write_text(SUBMITTED)
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    process = command.spawn("--master", "local[2]", "pipe.py", *command.flags, program=program)
    command.wait_for_rows(200)
    command.broker.send(command.source, range(200, 3_000))
    os.killpg(process.pid, signal.SIGINT)
    command.ended(process)
    assert command.left_running(20) == []
    assert command.broker.open_transactions() == []


@rest
def test_spark_submit_to_a_cluster(command: Command) -> None:
    cluster = Standalone(command.directory)
    cluster.start()
    try:
        command.broker.send(command.source, range(1_000))
        settings = ("spark.executor.memory=500m", "spark.cores.max=2", "spark.driver.host=127.0.0.1")
        before = ("--master", cluster.master, *(word for setting in settings for word in ("--conf", setting)))
        code, output = submit(command, "--trigger", "available-now", before=before)
        assert code == 0, output[-3000:] + cluster.executor_logs()[-3000:]
        check_exactly_once(command.broker, command.target, range(1_000))
        assert command.broker.open_transactions() == []
        assert "executor" in cluster.executor_logs().lower(), "the tasks ran in the cluster"
    finally:
        cluster.stop()


@rest
def test_a_master_of_a_cluster_and_functions_that_executors_do_not_have(command: Command) -> None:
    """`--master`, and a function of the user's file that the executors get with their tasks."""
    cluster = Standalone(command.directory)
    cluster.start()
    text = (
        "from pyspark.sql import functions as f\n\n"
        "def same(value):\n    return value\n\n"
        "@f.udf('binary')\ndef udf(value):\n    return same(value)\n\n"
        "def transform(df):\n    return df.select('key', udf('value').alias('value'))\n"
    )
    try:
        command.broker.send(command.source, range(1_000))
        conf = ("spark.executor.memory=500m", "spark.cores.max=2", "spark.driver.host=127.0.0.1")
        flags = [part for value in conf for part in ("--conf", value)]
        code, output = command.run("--trigger", "available-now", "--master", cluster.master, *flags, text=text)
        assert code == 0, output + cluster.executor_logs()[-3000:]
        check_exactly_once(command.broker, command.target, range(1_000))
    finally:
        cluster.stop()
