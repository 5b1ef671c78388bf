"""Faults of `twofold serve`: with the flag for tests they are taken over HTTP, without it there is nothing to reach."""

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from kits.processes.commands import run
from kits.processes.server import TwofoldServer
from oracle.driver import CLOSED, SILENT, Connection
from oracle.processes import free_port
from twofold.config.settings import DEFINITIONS
from twofold.embedded import Faults, RemoteFaults

LISTENING = "0A"  # in /proc/net/tcp


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    server = TwofoldServer(tmp_path_factory.mktemp("tested"))
    server.flags = ["--test-faults", f"127.0.0.1:{free_port()}"]
    with server:
        yield server


@pytest.fixture
def faults(tested: TwofoldServer) -> Iterator[Faults]:
    faults = RemoteFaults(tested.flags[-1])
    yield faults
    faults.clear()


def post(address: str, path: str, body: Any, content_type: str = "application/json") -> tuple[int, dict[str, Any]]:
    with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
        connection.request(
            "POST", path, body if isinstance(body, str) else json.dumps(body), {"Content-Type": content_type}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def listening_ports(pid: int) -> set[int]:
    """Of the process, whatever the protocol."""
    sockets = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    ports = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            if f"socket:[{fields[9]}]" in sockets and (fields[3] == LISTENING or table.startswith("udp")):
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


# --- without the flag ---


def test_without_the_flag_the_broker_listens_on_its_own_port_only_and_answers_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOFOLD_TEST_FAULTS", f"127.0.0.1:{free_port()}")  # means nothing
    server = TwofoldServer(tmp_path, {"metrics.listener": f"127.0.0.1:{free_port()}"})
    with server:
        metrics = server.settings["metrics.listener"]
        assert listening_ports(server.pid) == {server.port, int(metrics.rpartition(":")[2])}
        with closing(http.client.HTTPConnection(metrics, timeout=20)) as connection:
            for method in ("POST", "GET"):
                connection.request(method, "/pause", "{}", {"Content-Type": "application/json"})
                answer = connection.getresponse()
                assert answer.status in (404, 405), "the metrics know no faults"
                answer.read()
                connection.close()
        with closing(http.client.HTTPConnection(server.bootstrap_servers, timeout=20)) as connection:
            connection.request("POST", "/pause", "{}", {"Content-Type": "application/json"})
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                connection.getresponse()
        with Connection(server.host, server.port) as wire:
            assert wire.ask("Metadata", 9, topics=[])["brokers"], "it goes on"


def test_no_setting_lets_tests_in() -> None:
    assert not [name for name in DEFINITIONS if "faults" in name]
    told = run("serve", "-o", "test.faults=127.0.0.1:0")
    assert told.returncode == 2
    assert "test.faults" in told.stderr


def test_a_broker_without_the_flag_does_not_even_load_the_code() -> None:
    program = "import sys, twofold.cli.serve, twofold.broker.run; print([m for m in sys.modules if 'fault' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = [name for name in eval(done.stdout) if name.startswith("twofold")]
    assert loaded == []


# --- with it ---


def test_the_log_says_that_the_broker_is_for_tests_and_where(tested: TwofoldServer) -> None:
    (line,) = [line for line in tested.log_text().splitlines() if "--test-faults" in line]
    assert f"http://{tested.flags[-1]} can pause it" in line


def test_requests_fail_as_a_test_in_another_process_asks_for(tested: TwofoldServer, faults: Faults) -> None:
    faults.fail_next("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    settings = {"bootstrap.servers": tested.bootstrap_servers, "transactional.id": "t", "log_level": 0}
    with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        Producer(settings).init_transactions(20)
    Producer(settings).init_transactions(20)


def test_a_paused_process_is_resumed_over_the_same_address(tested: TwofoldServer, faults: Faults) -> None:
    with Connection(tested.host, tested.port) as wire:
        with faults.paused():
            assert wire.outcome("Metadata", 9, {"topics": []}, patience_s=0.1) == SILENT
            with pytest.raises(RuntimeError, match="paused"):
                faults.drop_connections()
        assert wire.receive()
        os.kill(tested.pid, signal.SIGSTOP)  # the operating system does the same to all of it
        assert wire.outcome("Metadata", 9, {"topics": []}, patience_s=0.1) == SILENT
        os.kill(tested.pid, signal.SIGCONT)
        assert wire.receive()


def test_connections_are_dropped_and_the_clock_is_moved_over_http(tested: TwofoldServer, faults: Faults) -> None:
    with Connection(tested.host, tested.port) as wire:
        wire.ask("Metadata", 9, topics=[])
        assert faults.drop_connections() == 1
        assert wire.receive() is None
    faults.delay_next("Metadata", 60)
    with Connection(tested.host, tested.port) as wire:
        assert wire.outcome("Metadata", 9, {"topics": []}, patience_s=0.05) == SILENT
        faults.advance(60)
        assert wire.receive()
    with faults.no_network(), Connection(tested.host, tested.port) as wire:
        assert wire.receive() is None
    faults.drop_next("Metadata")
    with Connection(tested.host, tested.port) as wire:
        assert wire.outcome("Metadata", 9, {"topics": []}) == CLOSED


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_process_is_ended_and_found_ended_while_it_is_paused(tmp_path: Path, end: str) -> None:
    server = TwofoldServer(tmp_path)
    server.flags = ["--test-faults", f"127.0.0.1:{free_port()}"]
    with server:
        faults = RemoteFaults(server.flags[-1])
        faults.pause()
        getattr(faults, end)()
        assert server.wait_for_end() == {"stop": 0, "kill": -signal.SIGKILL}[end]
        assert (server.data / ".kafka_cleanshutdown").exists() == (end == "stop")


def test_what_is_wrong_with_a_call_over_http_is_said(tested: TwofoldServer, faults: Faults) -> None:
    address = tested.flags[-1]
    wrong: list[tuple[str, Any, str]] = [
        ("/fail_next", {"api": "Produce"}, "needs error"),
        ("/fail_next", {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "time": 1}, "and no time"),
        ("/fail_next", {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": "1"}, "times='1'"),
        ("/fail_next", {"api": "Produce", "error": "NONSENSE"}, "there is no error 'NONSENSE'"),
        ("/advance", {"seconds": True}, "seconds=True"),
        ("/advance", {"seconds": -1}, "at least 0"),
        ("/advance", '{"seconds": 1e999}', "that ends"),
        ("/wait_for_request", {"api": "Fetch", "timeout_s": 0.01}, "no Fetch came"),
        ("/clear", "[]", "one JSON object"),
        ("/clear", "{", "Expecting"),
    ]
    for path, body, told in wrong:
        status, answer = post(address, path, body)
        assert status == 400 and told in answer["error"], answer
    with pytest.raises(ValueError, match="no API 'X'"):
        faults.fail_next("X", "NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(TimeoutError, match="no Fetch"):
        faults.wait_for_request("Fetch", timeout_s=0.01)


def test_only_the_faults_can_be_called_and_not_by_a_page_in_a_browser(tested: TwofoldServer) -> None:
    for path in ("/", "/_do", "/__class__", "/paused"):
        status, answer = post(tested.flags[-1], path, {})
        assert status == 404 and "fail_next" in answer["error"]
    for content_type in ("text/plain", "application/x-www-form-urlencoded"):
        status, answer = post(tested.flags[-1], "/pause", {}, content_type)
        assert status == 400 and "Content-Type: application/json" in answer["error"]
    with Connection(tested.host, tested.port) as wire:
        assert wire.ask("Metadata", 9, topics=[])["brokers"], "it is not paused"


def test_an_address_for_faults_that_cannot_be_used_stops_the_start(tested: TwofoldServer, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    told = run("serve", "--listen", "127.0.0.1:0", "--data", data, "--test-faults", "nonsense")
    assert told.returncode == 2 and "--test-faults=nonsense is not HOST:PORT" in told.stderr
    told = run("serve", "--listen", "127.0.0.1:0", "--data", data, "--test-faults", tested.flags[-1])
    assert told.returncode == 1 and "Address already in use" in told.stderr
    assert not Path(data).exists()
