"""Whatever is wrong with a pipeline is told in one message that says what to do, with an exit code that is not 0; the
full trace is in a log file that the message names."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from connector import LONG
from pipeline_kit import COPY, Command, check_message, log_of
from sink_kit import SETTINGS, Broker, check_exactly_once

from kits.processes import commands
from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK")
rest = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all of them")
ONCE = ("--trigger", "available-now")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    settings = {**SETTINGS, "auto.create.topics.enable": "false"}
    with TwofoldServer(tmp_path_factory.mktemp("server"), settings) as running:
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


# Before a JVM is started


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "has no function transform: write one, such as"),
        ("def transform(df)\n    return df\n", "SyntaxError: expected ':' (pipe.py:1)"),
        ("\nimport nowhere_at_all\n", "No module named 'nowhere_at_all' (pipe.py:2)"),
        ("def transform(a, b):\n    return a\n", "must take one DataFrame"),
    ],
    ids=["no transform", "syntax", "import", "arguments"],
)
def test_a_file_that_is_no_pipeline(command: Command, text: str, message: str) -> None:
    code, output = command.refused(text=text)
    assert code == 2
    check_message(output, message)
    if "Error" in message or "module" in message:
        assert "Traceback" in log_of(output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py",), "nowhere.py is not there"),
        ((".",), "is a directory"),
        (("notes.txt",), "its name must end in .py"),
        (("pipe.py",), "nothing to read"),
        (("pipe.py", "--config", "nowhere.toml"), "nowhere.toml cannot be read: No such file or directory"),
        (("pipe.py", "--source", "a", "--sink", "b"), "where is the checkpoint to be?"),
        (("pipe.py", "--source", "a", "--sink", "b", "--checkpoint", "c", "-b", "host"), "host"),
        (("pipe.py", "--conf", "spark.x"), "--conf 'spark.x' is not of the form key=value"),
    ],
    ids=["not there", "directory", "not Python", "no topics", "no toml", "no checkpoint", "no port", "no value"],
)
def test_arguments_that_make_no_pipeline(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "pipe.py").write_text(COPY)
    (tmp_path / "notes.txt").touch()
    done = commands.run("pipeline", "run", *arguments, cwd=tmp_path, program=commands.WARM_PIPELINE)
    assert done.returncode == 2, done.stderr
    check_message(done.stderr, message)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ("--option", "out.exactlyOnces=2pc"),
            2,
            "sink out: unknown option 'exactlyOnces' (did you mean 'exactlyOnce'",
        ),
        (("--option", "in.startingOffsets=now"), 2, "source in: startingOffsets"),
        (("--option", "in.subscribe=not-there"), 1, "source in: topic 'not-there' does not exist at 127.0.0.1:"),
        (("--option", "out.topic=not-there"), 1, "Create it with `twofold topic create not-there -b 127.0.0.1:"),
        (("--checkpoint", "pipe.py"), 1, "is a file: name a directory with --checkpoint"),
        (("--checkpoint", "/proc/none/c"), 1, "cannot be made"),
    ],
    ids=["option", "value", "source topic", "sink topic", "checkpoint is a file", "no checkpoint"],
)
def test_options_topics_and_checkpoints_that_are_wrong(
    command: Command, flags: tuple[str, ...], code: int, message: str
) -> None:
    found, output = command.refused(*ONCE, *flags)
    assert found == code, output
    check_message(output, message)
    assert "what Spark says" not in output, "without a JVM"


def test_a_broker_that_does_not_answer(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    code, output = command.refused("-b", address)
    assert code == 3
    check_message(output, f"Is a broker running at {address}? Name another with --bootstrap-server.")


@pytest.mark.parametrize("how", ["JAVA_HOME", "PATH", "old"])
def test_without_a_jdk_it_says_so(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    directory = tmp_path / "bin"
    directory.mkdir()
    env = {"PATH": str(directory), "JAVA_HOME": str(directory)}
    message = f"JAVA_HOME={directory} has no bin/java: set it to a JDK 17 or 21"
    if how == "PATH":
        del env["JAVA_HOME"]
        message = "there is no java in PATH: install one"
    if how == "old":
        java = directory / "java"
        java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
        java.chmod(0o755)
        env = {"JAVA_HOME": str(tmp_path)}
        message = "is Java 8, and Spark needs a JDK 17 or 21"
    code, output = command.refused(**env)
    assert code == 1
    check_message(output, message)


@pytest.mark.parametrize("line", ['{"other-topic":{"0":7}}', '{"logOffset":3}', "17"], ids=["topic", "files", "rate"])
def test_a_checkpoint_of_another_query(command: Command, line: str) -> None:
    offsets = command.directory / "checkpoint" / "out" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "9").write_text('v1\n{"batchWatermarkMs":0}\n{"an-older-batch":{"0":1}}')
    (offsets / "10").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}')
    code, output = command.refused(*ONCE)
    assert code == 1
    found = "read other-topic" if "other" in line else f"read something that is no topic ({line})"
    check_message(output, f"out is of another query: its last batch {found}, and this pipeline reads {command.source}")
    assert "Name another directory with --checkpoint" in output


def test_a_checkpoint_that_is_a_querys_own(command: Command) -> None:
    (command.directory / "checkpoint" / "offsets").mkdir(parents=True)
    (command.directory / "checkpoint" / "metadata").write_text("{}")
    code, output = command.refused(*ONCE)
    assert code == 1
    check_message(output, "is that of a query which was started otherwise")


# With one


UDF = """
from pyspark.sql import functions as f

def divided(text):
    return str(10 // (int(text) - 5))

@f.udf("string")
def division(value):
    return divided(value)

def transform(df):
    return df.select("key", division(f.col("value").cast("string")).alias("value"))
"""


@needs_java
@pytest.mark.parametrize(
    ("text", "flags", "message", "trace"),
    [
        (
            "def transform(df):\n    x = {}\n    return x['nope']\n",
            (),
            "transform() in pipe.py failed: KeyError: 'nope' (pipe.py:3)",
            "KeyError: 'nope'",
        ),
        pytest.param(
            UDF,
            (),
            "ZeroDivisionError: integer division or modulo by zero (pipe.py:5)",
            "org.apache.spark",
            id="in an executor",
        ),
        pytest.param(
            "def transform(df):\n    return df.select('nope')\n",
            (),
            "`nope` cannot be resolved",
            "AnalysisException",
            marks=rest,
            id="column",
        ),
        pytest.param(
            "def transform(df):\n    return df.select('key')\n",
            (),
            "no column 'value' to write",
            "OptionError",
            marks=rest,
            id="no value",
        ),
        pytest.param(
            "def transform(df):\n    df.select('key', 'value')\n",
            (),
            "transform() in pipe.py returned a NoneType for the sink out, not a DataFrame: is a `return` missing?",
            "PipelineFailed",
            marks=rest,
            id="no frame",
        ),
        pytest.param(
            "def transform(df):\n    return df.sparkSession.sql(\"select 'a' value\")\n",
            (),
            "a DataFrame that is not made from a source",
            "PipelineFailed",
            marks=rest,
            id="no stream",
        ),
        pytest.param(
            "def transform(df):\n    return df.groupBy('key').count().selectExpr('key', 'string(count) value')\n",
            (),
            "watermark",
            "AnalysisException",
            marks=rest,
            id="output mode",
        ),
        pytest.param(
            f"{COPY}\ndef configure(spark):\n    spark.conf.set('spark.driver.memory', '9g')\n",
            (),
            "configure() in pipe.py failed:",
            "spark.driver.memory",
            marks=rest,
            id="configure",
        ),
        pytest.param(
            COPY, ("--conf", "spark.driver.memory=1k"), "the JVM did not start", "JAVA_GATEWAY", marks=rest, id="memory"
        ),
        pytest.param(
            COPY,
            ("--master", "spurk://a:7077"),
            "JVM did not start: look at the master",
            "Master must either be yarn or start with spark",
            marks=rest,
            id="master",
        ),
    ],
)
def test_what_fails_in_spark_is_told_in_one_message_that_names_the_log(
    command: Command, text: str, flags: tuple[str, ...], message: str, trace: str
) -> None:
    command.broker.send(command.source, range(10))
    code, output = command.run(*ONCE, *flags, text=text)
    assert code == 1, output
    check_message(output, message)
    assert trace in log_of(output)
    assert command.left_running() == []
    assert command.broker.open_transactions() == []


@needs_java
@rest
def test_a_checkpoint_whose_query_had_other_sources_or_state(command: Command) -> None:
    """What Spark itself finds out, in words that say what to do; with the old file everything goes on."""
    command.broker.send(command.source, range(10))
    other = command.broker.topic()
    assert command.run(*ONCE)[0] == 0
    two = "def transform(one, more):\n    return one.unionByName(more).select('key', 'value')\n"
    (command.directory / "two.py").write_text(two)
    flags = ["--source", f"one={command.source}", "--source", f"more={other}", "--sink", f"out={command.target}"]
    flags += ["--checkpoint", "checkpoint", "-b", command.broker.bootstrap_servers, *ONCE]
    code, output = command.ended(command.spawn("-m", "twofold", "pipeline", "run", "two.py", *flags))
    assert code == 1, output
    check_message(output, "the checkpoint is of another query: There are [1] sources in the checkpoint")
    command.broker.send(command.source, range(10, 20))
    assert command.run(*ONCE)[0] == 0
    check_exactly_once(command.broker, command.target, range(20))


@needs_java
@rest
def test_a_broker_that_goes_away_for_good(command: Command, tmp_path: Path) -> None:
    with TwofoldServer(tmp_path / "own", SETTINGS) as server:
        command.broker = Broker(server.bootstrap_servers)
        command.source, command.target = command.broker.topic(), command.broker.topic()
        command.broker.send(command.source, range(100))
        timeouts = [f"--option={name}.kafka.default.api.timeout.ms=5000" for name in ("in",)]
        process = command.start("--trigger", "200 milliseconds", *timeouts)
        command.wait_for_rows(100)
    code, output = command.ended(process)
    assert code == 1, output
    check_message(output, "The full trace is in")
    assert "could not be ended" in output and "twofold pipeline recover --prefix" in output
    assert command.left_running() == []


def test_json_of_a_failure_is_still_a_message(command: Command) -> None:
    code, output = command.refused("--format", "json", "--option", "in.subscribe=not-there")
    assert code == 1
    check_message(output, "does not exist")
    assert not [line for line in output.splitlines() if line.startswith("{") and json.loads(line)]
