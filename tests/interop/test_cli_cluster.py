"""`twofold cluster` as a user runs it, against Twofold and Apache Kafka."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kits.processes import commands
from kits.processes.commands import Done
from kits.processes.server import TwofoldServer

pytestmark = pytest.mark.interop

TV = "transaction.version"


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow])])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server whose transaction.version is 2, before and after."""
    node: Any = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    address = str(node.bootstrap_servers)
    yield address
    twofold(address, "features", "set", f"{TV}=2", "--yes")


def twofold(server: str, *args: str, code: int = 0) -> Done:
    done = commands.run("cluster", *args, server=server)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def features(server: str) -> tuple[int, dict[str, Any]]:
    told = json.loads(twofold(server, "features", "--format", "json").stdout)
    return told["epoch"], {row["name"]: row for row in told["features"]}


def level(server: str) -> int:
    return int(features(server)[1][TV]["finalized"])


def error_line(done: Done) -> str:
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("twofold: ")
    return line


def test_the_cluster_is_described(server: str) -> None:
    host, _, port = server.rpartition(":")
    told = json.loads(twofold(server, "describe", "--format", "json").stdout)
    assert told["controller_id"] == 1 and len(told["cluster_id"]) == 22
    assert told["brokers"] == [{"broker_id": 1, "host": host, "port": int(port), "rack": None}]
    lines = twofold(server, "describe").stdout.splitlines()
    assert lines[0] == f"cluster     {told['cluster_id']}"
    assert lines[1:3] == ["controller  1", "brokers     1"]
    assert lines[-1].split() == ["1", host, port]


def test_features_are_listed_with_what_is_supported_and_what_holds(server: str) -> None:
    epoch, rows = features(server)
    assert epoch >= 0
    assert rows[TV]["supported"]["min"] == 0 and rows[TV]["supported"]["max"] >= 2
    assert (rows[TV]["finalized"], rows["metadata.version"]["finalized"]) == (2, 30)
    lines = [line.split() for line in twofold(server, "features").stdout.splitlines()]
    assert lines[1] == ["FEATURE", "SUPPORTED", "FINALIZED"]
    assert ["metadata.version", "7-30", "30"] in lines


def test_a_level_goes_down_and_up_again_and_the_epoch_grows(server: str) -> None:
    before, _ = features(server)
    done = twofold(server, "features", "set", f"{TV}=1", "--downgrade", "--yes")
    assert done.stdout == f"set {TV} from 2 to 1\n"
    between, rows = features(server)
    assert rows[TV]["finalized"] == 1 and between > before
    done = twofold(server, "features", "set", f"{TV}=2", "--yes", "--format", "json")
    assert json.loads(done.stdout) == {"dry_run": False, "changed": [{"name": TV, "from": 1, "to": 2}]}
    after, rows = features(server)
    assert rows[TV]["finalized"] == 2 and after > between


def test_level_0_is_shown_as_off(server: str) -> None:
    twofold(server, "features", "set", f"{TV}=0", "--downgrade", "--yes")
    shown = {line.split()[0]: line.split()[-1] for line in twofold(server, "features").stdout.splitlines()}
    assert shown[TV] == "off"


def test_a_dry_run_checks_and_changes_nothing(server: str) -> None:
    done = twofold(server, "features", "set", f"{TV}=1", "--downgrade", "--dry-run")
    assert done.stdout == f"would set {TV} from 2 to 1\n"
    assert "99" in error_line(twofold(server, "features", "set", f"{TV}=99", "--dry-run", code=1))
    assert level(server) == 2


def test_what_holds_already_is_no_error(server: str) -> None:
    assert twofold(server, "features", "set", f"{TV}=2").stdout == f"nothing to change: {TV} is at 2\n"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([f"{TV}=1", "--yes"], 1, "add --downgrade"),
        ([f"{TV}=3", "--downgrade", "--yes"], 1, "no downgrade"),
        ([f"{TV}=99", "--yes"], 1, "INVALID_UPDATE_VERSION"),
        (["no.such=1", "--yes"], 1, "no.such"),
        ([f"{TV}=1", "--downgrade"], 2, "add --yes"),
        ([f"{TV}=one", "--yes"], 2, "number from 0 to 32767"),
        ([f"{TV}=-1", "--yes"], 2, "number from 0 to 32767"),
        ([f"{TV}=40000", "--yes"], 2, "number from 0 to 32767"),
        ([TV, "--yes"], 2, "key=value"),
        ([f"{TV}=1", "--unsafe", "--yes"], 2, "add --downgrade"),
        (["metadata.version=29", "--downgrade", "--yes"], 1, "unsafe|it might delete metadata"),
        (["metadata.version=29", "--downgrade", "--unsafe"], 2, "add --yes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused_says_what_to_change(server: str, args: list[str], code: int, says: str) -> None:
    line = error_line(twofold(server, "features", "set", *args, code=code))
    assert any(word in line for word in says.split("|")), line
    assert level(server) == 2


def test_options_before_set_are_refused_instead_of_ignored(server: str) -> None:
    line = error_line(twofold(server, "features", "--bootstrap-server", "127.0.0.1:1", "set", f"{TV}=1", code=2))
    assert "behind set" in line


def test_one_refused_level_leaves_the_others(server: str) -> None:
    args = ["features", "set", f"{TV}=1", "metadata.version=7", "--downgrade", "--yes"]
    assert "metadata.version" in error_line(twofold(server, *args, code=1))
    assert level(server) == 2


def test_no_broker_is_told_as_such() -> None:
    for args in (["describe"], ["features"], ["features", "set", f"{TV}=1", "--downgrade", "--yes"]):
        done = twofold("127.0.0.1:1", *args, "--timeout", "0.5", code=3)
        assert "Is a broker running at 127.0.0.1:1?" in done.stderr


def test_the_command_runs_in_an_interpreter_of_its_own(twofold_server: TwofoldServer) -> None:
    address = twofold_server.bootstrap_servers
    done = commands.run_cold("cluster", "describe", server=address)
    warm = twofold(address, "describe")
    assert (done.returncode, done.stdout, done.stderr) == (0, warm.stdout, warm.stderr)


def test_levels_survive_kill_nine(tmp_path: Any) -> None:
    server = TwofoldServer(tmp_path)
    with server:
        twofold(server.bootstrap_servers, "features", "set", f"{TV}=1", "--downgrade", "--yes")
        server.kill()
        server.start()
        assert level(server.bootstrap_servers) == 1
