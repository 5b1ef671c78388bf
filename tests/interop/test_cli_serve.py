"""`twofold serve` as a process: one line when ready, one line when not."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kits.processes import commands
from oracle.processes import free_port

pytestmark = pytest.mark.interop

Process = subprocess.Popen[str]


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "twofold", "serve", *args]


@contextmanager
def serving(*args: str, cwd: Path | None = None) -> Iterator[tuple[Process, str]]:
    """A server that has said that it is ready, and what it said."""
    process = subprocess.Popen(command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
    assert process.stdout is not None and process.stderr is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
        process.stderr.close()


def refused(*args: str, code: int, cwd: Path | None = None) -> str:
    """The one line of a server that did not start."""
    done = commands.run("serve", *args, cwd=cwd)
    assert done.returncode == code, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_one_line_says_where_it_is_ready(tmp_path: Path) -> None:
    with serving("--listen", "127.0.0.1:0", "--data", str(tmp_path / "d")) as (process, line):
        prefix, _, rest = line.partition(" ready on 127.0.0.1:")
        assert prefix == "twofold 0.1.0" and rest.endswith(f", data in {tmp_path / 'd'}\n")
        with socket.create_connection(("127.0.0.1", int(rest.partition(",")[0])), timeout=10):
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=30)
        assert process.returncode == 0 and output == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with serving("--listen", "127.0.0.1:0", "--data", str(tmp_path)) as (process, _):
        process.send_signal(number)
        assert process.wait(30) == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_data_goes_into_the_working_directory_unless_told_otherwise(tmp_path: Path) -> None:
    with serving("--listen", "127.0.0.1:0", cwd=tmp_path) as (_, line):
        assert line.endswith(", data in ./twofold-data\n")
    assert (tmp_path / "twofold-data" / "meta.properties").exists()


def test_settings_come_from_file_environment_and_flags_and_the_later_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = tmp_path / "server.properties"
    lines = ["listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path / 'from-file'}", "num.partitions=2"]
    properties.write_text("\n".join(lines))
    assert partitions_of_a_new_topic(tmp_path, "--config", str(properties)) == 2
    monkeypatch.setenv("TWOFOLD_NUM_PARTITIONS", "4")
    assert partitions_of_a_new_topic(tmp_path, "--config", str(properties)) == 4
    assert partitions_of_a_new_topic(tmp_path, "--config", str(properties), "-o", "num.partitions=3") == 3


def partitions_of_a_new_topic(tmp_path: Path, *args: str) -> int:
    with serving(*args) as (_, line):
        address, _, data = line.partition(" ready on ")[2].partition(", data in ")
        assert data == f"{tmp_path / 'from-file'}\n"
        name = f"t{len(args)}-{time.monotonic_ns()}"
        done = commands.run("topic", "create", name, "--format", "json", server=address)
        return int(json.loads(done.stdout)[0]["partitions"])


def test_a_port_in_use_is_named_with_what_to_change(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused("--listen", f"127.0.0.1:{port}", "--data", str(tmp_path), code=1)
    assert f"127.0.0.1:{port}" in line and "Address already in use" in line and "--listen" in line


def test_a_port_in_use_is_noticed_before_a_folder_is_made(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused("--listen", address, "--data", str(tmp_path / "new"), code=1)
        metrics = ["--metrics", address, "--listen", "127.0.0.1:0"]
        assert "metrics.listener" in refused(*metrics, "--data", str(tmp_path / "new"), code=1)
    assert not (tmp_path / "new").exists()


def test_a_broker_on_all_addresses_says_which_one_it_advertises(tmp_path: Path) -> None:
    with serving("--listen", "0.0.0.0:0", "--data", str(tmp_path)) as (process, line):
        port = line.partition(" ready on 0.0.0.0:")[2].partition(",")[0]
        told = f"{socket.gethostname()}:{port}"
        assert line.endswith(f":{port}, advertised as {told}, data in {tmp_path}\n")
        assert told_to_clients(port) == (socket.gethostname(), int(port))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert f"clients are told to connect to {told}, the name of this machine" in errors
    assert "--advertise HOST:PORT (advertised.listeners)" in errors


@pytest.mark.parametrize("advertised", ["localhost", "localhost:4711", "[::1]", "[::1]:4711"])
def test_clients_are_told_the_address_of_advertise(tmp_path: Path, advertised: str) -> None:
    args = ["--listen", "127.0.0.1:0", "--advertise", advertised, "--data", str(tmp_path)]
    with serving(*args) as (_, line):
        port = line.partition(" ready on 127.0.0.1:")[2].partition(",")[0]
        host = advertised.removesuffix(":4711").strip("[]")
        assert told_to_clients(port) == (host, 4711 if "4711" in advertised else int(port))
        assert f", advertised as {f'[{host}]' if ':' in host else host}:" in line


def test_a_client_is_told_the_address_of_the_listener_that_it_came_through(tmp_path: Path) -> None:
    inside, outside = free_port(), free_port()
    settings = {
        "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        "advertised.listeners": f"INSIDE://kafka:{inside},OUTSIDE://localhost:{outside}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    with serving(*options, "--data", str(tmp_path)) as (_, line):
        assert f"ready on 127.0.0.1:{inside}, advertised as kafka:{inside}, data in" in line
        assert told_to_clients(str(inside)) == ("kafka", inside)
        assert told_to_clients(str(outside)) == ("localhost", outside)


def told_to_clients(port: str) -> tuple[str, int]:
    done = commands.run("cluster", "describe", "--format", "json", server=f"127.0.0.1:{port}")
    (broker,) = json.loads(done.stdout)["brokers"]
    return broker["host"], broker["port"]


def test_a_data_folder_that_is_a_file_is_named_as_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        line = refused("--listen", "127.0.0.1:0", "--data", str(path), code=1)
        assert line.startswith(f"twofold serve: {file} is a file, and logs need a directory"), line


def test_a_garbage_meta_properties_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("garbage\n")
    line = refused("--listen", "127.0.0.1:0", "--data", str(tmp_path), code=1)
    assert f"{tmp_path}/meta.properties is no meta.properties" in line and "ZooKeeper" not in line
    assert (tmp_path / "meta.properties").read_text() == "garbage\n"


@pytest.mark.parametrize("spoken", ["TLS", "HTTP"])
def test_the_log_names_the_protocol_of_a_client_that_does_not_speak_kafka(tmp_path: Path, spoken: str) -> None:
    hello = b"GET / HTTP/1.1\r\n\r\n" if spoken == "HTTP" else b"\x16\x03\x01\x02\0\x01\0\x01\xfc"
    with serving("--listen", "127.0.0.1:0", "--data", str(tmp_path)) as (process, line):
        port = int(line.partition(" ready on 127.0.0.1:")[2].partition(",")[0])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(hello)
            assert client.recv(1) == b""
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert f"it speaks {spoken}, and this listener (PLAINTEXT) speaks Kafka in plain text" in errors


def test_a_data_directory_in_use_is_named_with_what_to_change(tmp_path: Path) -> None:
    with serving("--listen", "127.0.0.1:0", "--data", str(tmp_path)):
        line = refused("--listen", "127.0.0.1:0", "--data", str(tmp_path), code=1)
    assert str(tmp_path) in line and "in use by another process" in line and "--data" in line


def test_a_data_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused("--listen", "127.0.0.1:0", "--data", str(tmp_path / "file"), code=1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-o", "num.partitions=many"], "num.partitions=many (from the command line)"),
        (["-o", "nothing"], "-o 'nothing' is not of the form key=value"),
        (["--listen", "here"], "--listen 'here' is not HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "--listen '127.0.0.1:70000' is not HOST:PORT"),
        (["--advertise", "0.0.0.0:1"], "--advertise '0.0.0.0:1' is not HOST or HOST:PORT that clients can connect to"),
        (["--advertise", "here:x"], "--advertise 'here:x' is not HOST or HOST:PORT"),
        (["--advertise", "http://kafka:9092"], "--advertise 'http://kafka:9092' is not HOST or HOST:PORT"),
        (["--advertise", "PLAINTEXT://kafka"], "--advertise 'PLAINTEXT://kafka' is not HOST or HOST:PORT"),
        (["--advertise", "a:b:c"], "--advertise 'a:b:c' is not HOST or HOST:PORT"),
        (["--advertise", "one,two"], "--advertise 'one,two' is not HOST or HOST:PORT"),
        (
            [
                "--advertise",
                "here",
                "-o",
                "listeners=A://:1,B://:2",
                "-o",
                "listener.security.protocol.map=A:PLAINTEXT",
            ],
            "there are 2 listeners (A, B): set advertised.listeners",
        ),
        (["-o", "advertised.listeners=PLAINTEXT://0.0.0.0:1"], "clients need a host that they can connect to"),
        (["--config", "/no/such/file"], "cannot read --config /no/such/file: No such file or directory"),
        (["-o", "listeners=SSL://127.0.0.1:0"], "SSL"),
        (["-o", "log.dirs=/a,/b"], "log.dirs=/a,/b: names 2 directories: choose one with --data"),
        (["--log-format", "xml"], "invalid choice: 'xml'"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_what_is_wrong_in_the_settings_is_named(tmp_path: Path, args: list[str], message: str) -> None:
    assert message in refused(*args, code=2, cwd=tmp_path)


def test_the_log_can_be_json(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitons=3\n")
    args = ["--listen", "127.0.0.1:0", "--data", str(tmp_path / "d"), "--log-format", "json", "--config", str(file)]
    with serving(*args) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert any("did you mean num.partitions?" in line["message"] and line["level"] == "warning" for line in lines)


def test_serving_imports_neither_tables_nor_clients() -> None:
    program = "import sys; from twofold.cli.main import main; import twofold.broker.run, twofold.cli.serve\n"
    program += (
        "bad = [m for m in sys.modules if m.split('.')[0] in ('rich', 'click') or m.startswith('twofold.client')]\n"
    )
    program += "print(bad)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """A server that is stuck in its orderly end goes at once."""
    program = (
        "import asyncio, os, signal\n"
        "from twofold.cli.serve import _stop_on_signals\n"
        "async def main():\n"
        "    stop = asyncio.Event()\n"
        "    _stop_on_signals(stop)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    await stop.wait()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 128 + signal.SIGTERM and time.monotonic() - start < 10
