"""The command line as a user runs it: a process, its output, its exit code.

Interrupts, closed pipes and terminals are tried with an interpreter of its own, and so is a walk through the verbs."""

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kits.processes import commands
from kits.processes.commands import Done, cold
from kits.processes.server import TwofoldServer

pytestmark = pytest.mark.interop


long = pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="TWOFOLD_LONG=1 asks Apache Kafka too")


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("cli")) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow, long])])
def server(request: pytest.FixtureRequest) -> str:
    node: Any = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    return str(node.bootstrap_servers)


def twofold(server: str | None, *args: str, stdin: str = "", code: int = 0) -> Done:
    """Run a command against a server and check its exit code; a traceback is a failure whatever the code."""
    return checked(commands.run(*args, server=server, stdin=stdin, env={"COLUMNS": "80"}), code)


def checked(done: Done, code: int = 0) -> Done:
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def name(prefix: str = "t") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def error_lines(done: Done) -> list[str]:
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 2, done.stderr
    assert lines[0].startswith("twofold: ")
    return lines


# Topics


def test_topics_live_their_life(server: str) -> None:
    topic = name()
    created = twofold(server, "topic", "create", topic, "-p", "2", "--config", "segment.bytes=2000000")
    assert created.stdout == f"created {topic} (2 partitions, replication factor 1)\n"
    assert any(line.split() == [topic, "2", "1"] for line in twofold(server, "topic", "list").stdout.splitlines())

    described = twofold(server, "topic", "describe", topic).stdout
    assert f"topic       {topic}\n" in described and "settings    segment.bytes=2000000\n" in described

    altered = twofold(
        server,
        "topic",
        "alter",
        topic,
        "--partitions",
        "3",
        "--config",
        "retention.ms=99",
        "--delete-config",
        "segment.bytes",
    )
    assert altered.stdout == f"altered {topic}: retention.ms=99, segment.bytes back to its default, 3 partitions\n"
    (after,) = json.loads(twofold(server, "topic", "describe", topic, "--format", "json").stdout)
    assert after["configs"] == {"retention.ms": {"value": "99", "source": "DYNAMIC_TOPIC_CONFIG"}}
    assert [row["partition"] for row in after["partitions"]] == [0, 1, 2]
    assert all(row["start_offset"] == row["end_offset"] == 0 for row in after["partitions"])

    assert twofold(server, "topic", "delete", topic, "--yes").stdout == f"deleted {topic}\n"
    assert topic not in twofold(server, "topic", "list").stdout


def test_json_is_what_programs_need(server: str) -> None:
    topic = name()
    (created,) = json.loads(twofold(server, "topic", "create", topic, "-p", "2", "--format", "json").stdout)
    assert created["name"] == topic and created["partitions"] == 2 and len(created["topic_id"]) == 22
    listed = json.loads(twofold(server, "topic", "list", "--format", "json").stdout)
    (row,) = (row for row in listed if row["name"] == topic)
    assert row == {**created, "internal": False}
    assert json.loads(twofold(server, "topic", "delete", topic, "-y", "--format", "json").stdout) == {
        "deleted": [topic]
    }


def test_what_the_broker_refuses_is_said_in_a_line_with_what_to_do(server: str) -> None:
    topic, missing = name(), name("missing")
    twofold(server, "topic", "create", topic)
    assert "--if-not-exists accepts that" in error_lines(twofold(server, "topic", "create", topic, code=1))[0]
    twofold(server, "topic", "create", topic, "--if-not-exists")
    unknown = error_lines(twofold(server, "topic", "describe", missing, code=1))[0]
    assert missing in unknown and server in unknown and "twofold topic list" in unknown
    assert missing in error_lines(twofold(server, "topic", "delete", missing, "--yes", code=1))[0]
    twofold(server, "topic", "delete", missing, "--yes", "--if-exists")
    assert "bad name" in error_lines(twofold(server, "topic", "create", "bad name", code=1))[0]
    error_lines(twofold(server, "topic", "create", missing, "--config", "no.such.key=1", code=1))
    error_lines(twofold(server, "topic", "alter", topic, "--partitions", "1", code=1))
    assert missing in error_lines(twofold(server, "topic", "alter", missing, "--config", "retention.ms=1", code=1))[0]


def test_a_part_that_fails_does_not_hide_the_part_that_works(server: str) -> None:
    topic, missing = name(), name("missing")
    twofold(server, "topic", "create", topic)
    done = twofold(server, "topic", "delete", topic, missing, "--yes", code=1)
    assert done.stdout == f"deleted {topic}\n" and missing in done.stderr


def test_deleting_asks_and_a_script_must_say_yes(server: str) -> None:
    topic = name()
    twofold(server, "topic", "create", topic)
    assert "add --yes" in error_lines(twofold(server, "topic", "delete", topic, code=2))[0]
    assert topic in twofold(server, "topic", "list").stdout


# Produce and consume


def test_lines_go_in_and_come_out(server: str) -> None:
    topic = name()
    twofold(server, "topic", "create", topic)
    assert twofold(server, "produce", topic, stdin="one\ntwo\n\nlast without newline").stdout == ""
    assert twofold(server, "consume", topic, "-e").stdout == "one\ntwo\n\nlast without newline\n"
    assert twofold(server, "consume", topic, "-e", "-o", "-2").stdout == "\nlast without newline\n"
    assert twofold(server, "consume", topic, "-e", "-o", "1", "-c", "1").stdout == "two\n"
    assert twofold(server, "consume", topic, "-c", "2").stdout == "one\ntwo\n"
    assert twofold(server, "consume", topic, "-e", "-o", "end").stdout == ""


def test_keys_headers_partitions_and_templates(server: str) -> None:
    topic = name()
    twofold(server, "topic", "create", topic, "-p", "3")
    twofold(
        server,
        "produce",
        topic,
        "-K",
        ":",
        "-p",
        "1",
        "-H",
        "a=1",
        "-H",
        "b=x=y",
        "-z",
        "lz4",
        stdin="k1:v1\nv2\nk3:\n",
    )
    shown = twofold(server, "consume", topic, "-e", "-f", r"%t %p %o %k|%s|%K|%S|%h\n").stdout
    assert shown.splitlines() == [
        f"{topic} 1 0 k1|v1|2|2|a=1,b=x=y",
        f"{topic} 1 1 |v2|-1|2|a=1,b=x=y",
        f"{topic} 1 2 k3||2|0|a=1,b=x=y",
    ]
    assert twofold(server, "consume", topic, "-e", "-p", "1", "-K", "=").stdout == "k1=v1\n=v2\nk3=\n"
    assert twofold(server, "consume", topic, "-e", "-p", "0").stdout == ""
    twofold(server, "produce", topic, "-K", ":", "-p", "2", "-Z", stdin="gone:\n")
    assert twofold(server, "consume", topic, "-e", "-p", "2", "-f", "%k %S").stdout == "gone -1"


def test_json_copies_a_topic_with_everything_in_it(server: str) -> None:
    source, target = name(), name()
    twofold(server, "topic", "create", source, target)
    twofold(server, "produce", source, "-K", ":", "-H", "h=1", stdin="a:1\nb:2\nü:ö\n")
    dump = twofold(server, "consume", source, "-e", "--format", "json").stdout
    records = [json.loads(line) for line in dump.splitlines()]
    assert [(record["key"], record["value"], record["offset"]) for record in records] == [
        ("a", "1", 0),
        ("b", "2", 1),
        ("ü", "ö", 2),
    ]
    twofold(server, "produce", target, "--format", "json", stdin=dump)
    copies = [
        json.loads(line) for line in twofold(server, "consume", target, "-e", "--format", "json").stdout.splitlines()
    ]
    assert copies == [{**record, "topic": target} for record in records]


def test_reading_from_a_time(server: str) -> None:
    topic = name()
    twofold(server, "topic", "create", topic)
    lines = [json.dumps({"value": str(number), "timestamp": 1_700_000_000_000 + number * 1000}) for number in range(10)]
    twofold(server, "produce", topic, "--format", "json", stdin="\n".join(lines))
    assert twofold(server, "consume", topic, "-e", "-o", "@1700000007000").stdout == "7\n8\n9\n"
    assert twofold(server, "consume", topic, "-e", "-o", "@2023-11-14T22:13:28+00:00").stdout == "8\n9\n"


def test_many_records_in_every_compression(server: str) -> None:
    topic = name()
    twofold(server, "topic", "create", topic, "-p", "4")
    lines = "".join(f"{number} some text that compresses\n" for number in range(5_000))
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        twofold(server, "produce", topic, "-z", codec, stdin=lines)
    read = twofold(server, "consume", topic, "-e").stdout.splitlines()
    assert sorted(read) == sorted(lines.splitlines() * 5)


def test_isolation_levels_are_passed_on(server: str) -> None:
    topic = name()
    twofold(server, "topic", "create", topic)
    twofold(server, "produce", topic, stdin="x\n")
    for level in ("read_committed", "read_uncommitted"):
        assert twofold(server, "consume", topic, "-e", "--isolation", level).stdout == "x\n"


def test_a_record_that_the_broker_refuses_is_an_error(server: str) -> None:
    topic = name()
    twofold(server, "topic", "create", topic, "--config", "max.message.bytes=500")
    done = twofold(server, "produce", topic, stdin="short\n" + "x" * 2_000 + "\n", code=1)
    assert "1 record was not written" in error_lines(done)[0] and "MESSAGE_TOO_LARGE" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["consume", "{topic}", "-o", "yesterday"], "--offset 'yesterday'"),
        (["consume", "{topic}", "-o", "@soon"], "@soon is neither"),
        (["consume", "{topic}", "-f", "%q"], "%q"),
        (["consume", "{topic}", "-p", "9"], "has partitions 0 to 0"),
        (["consume", "{topic}", "--isolation", "none"], "isolation_level='none'"),
        (["consume", "{topic}", "-X", "fetch.min.byts=1"], "did you mean 'fetch.min.bytes'?"),
        (["produce", "{topic}", "-p", "9"], "has partitions 0 to 0"),
        (["produce", "{topic}", "-H", "nothing"], "--header 'nothing' is not of the form key=value"),
        (["produce", "{topic}", "-z", "brotli"], "compression_type='brotli'"),
        (["produce", "{topic}", "--acks", "3"], "acks='3'"),
        (["topic", "alter", "{topic}"], "nothing to alter"),
        (["topic", "create", "x", "--config", "nothing"], "--config 'nothing' is not of the form key=value"),
    ],
)
def test_wrong_values_are_named(twofold_server: TwofoldServer, args: Sequence[str], message: str) -> None:
    topic = "wrong-values"
    twofold(twofold_server.bootstrap_servers, "topic", "create", topic, "--if-not-exists")
    done = twofold(twofold_server.bootstrap_servers, *(arg.format(topic=topic) for arg in args), code=2)
    assert message in error_lines(done)[0]


@pytest.mark.parametrize("args", [["nonsense"], ["topic", "list", "--nonsense"], ["topic", "create"], ["consume"]])
def test_wrong_arguments_are_usage_errors(args: Sequence[str]) -> None:
    assert "Usage: twofold" in twofold(None, *args, code=2).stderr


# Nobody there, and people who leave


@pytest.mark.parametrize(
    "args", [["topic", "list"], ["consume", "t"], ["produce", "t"], ["topic", "delete", "t", "-y"]]
)
def test_an_unreachable_broker_is_named_with_what_to_change(args: Sequence[str]) -> None:
    lines = error_lines(twofold("127.0.0.1:1", *args, "--timeout", "0.5", code=3))
    assert lines[0] == "twofold: cannot connect to 127.0.0.1:1: Connection refused"
    assert "--bootstrap-server" in lines[1]


def test_a_bootstrap_server_that_is_no_address_is_a_usage_error() -> None:
    assert "'nowhere'" in error_lines(twofold(None, "topic", "list", "-b", "nowhere", code=2))[0]


def test_an_unknown_topic_is_said_at_once(server: str) -> None:
    start = time.monotonic()
    missing = name("missing")
    assert missing in error_lines(twofold(server, "consume", missing, code=1))[0]
    assert time.monotonic() - start < 10


def test_a_reader_that_goes_away_is_no_error_message(twofold_server: TwofoldServer) -> None:
    server, topic = twofold_server.bootstrap_servers, name()
    twofold(server, "topic", "create", topic)
    twofold(server, "produce", topic, stdin="line\n" * 50_000)
    process = subprocess.Popen(
        cold("consume", topic, "-b", server), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("verb", ["consume", "produce"])
def test_an_interrupt_is_quiet(twofold_server: TwofoldServer, verb: str) -> None:
    server, topic = twofold_server.bootstrap_servers, name()
    twofold(server, "topic", "create", topic)
    twofold(server, "produce", topic, stdin="first\n")
    process = subprocess.Popen(
        cold(verb, topic, "-b", server),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    if verb == "consume":
        assert process.stdout.readline() == "first\n"
    else:
        process.stdin.write("second\n")
        process.stdin.flush()
        assert twofold(server, "consume", topic, "-c", "2").stdout == "first\nsecond\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr.read() == ""
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()


def test_the_verbs_run_in_an_interpreter_of_their_own(twofold_server: TwofoldServer) -> None:
    server, topic = twofold_server.bootstrap_servers, name()

    def alone(*args: str, stdin: str = "") -> str:
        return checked(commands.run_cold(*args, server=server, stdin=stdin)).stdout

    assert alone("topic", "create", topic) == f"created {topic} (1 partition, replication factor 1)\n"
    assert alone("produce", topic, stdin="one\ntwo\n") == ""
    assert alone("consume", topic, "-e") == "one\ntwo\n"


@pytest.mark.parametrize(
    "args",
    [["--help"], ["topic", "list", "--nonsense"], ["log", "dump", "/dev/null"], ["serve", "-o", "x"]],
    ids=lambda args: args[0],
)
def test_a_fork_of_the_warm_interpreter_says_what_an_interpreter_of_its_own_says(args: Sequence[str]) -> None:
    warm, alone = (run(*args, server="127.0.0.1:1") for run in (commands.run, commands.run_cold))
    assert (warm.returncode, warm.stdout, warm.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_tables_fit_and_json_stays_whole_in_a_narrow_terminal(twofold_server: TwofoldServer) -> None:
    server, topic = twofold_server.bootstrap_servers, "x" * 120
    twofold(server, "topic", "create", topic, "--if-not-exists")
    terminal = ["script", "-qec", " ".join(cold("topic", "list", "-b", server)), "/dev/null"]
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    shown = subprocess.run(terminal, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout
    assert max(len(line) for line in shown.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()) <= 60
    assert topic in twofold(server, "topic", "list").stdout, "a file gets whole cells"


def test_help_documents_the_exit_codes() -> None:
    for args in ([], ["topic", "create"], ["consume"], ["produce"]):
        assert "Exit codes:" in " ".join(twofold(None, *args, "--help").stdout.split())
    assert "exit codes:" in twofold(None, "serve", "--help").stdout


def test_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert json.loads(twofold(None, "version", "--format", "json").stdout)["twofold"] == version("twofold")
    assert twofold(None, "version").stdout.startswith(f"twofold {version('twofold')} ")
