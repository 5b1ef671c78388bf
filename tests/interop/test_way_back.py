"""The way back: the version before opens a folder that this one has written to, finishes what is open, and this one
goes on after it. The version before comes out of the repository's history, into an environment of its own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import twofold
from interop.test_two_phase_outcomes_real import SETTINGS, TOPIC, outcome, recovering, values
from kits.processes import commands
from kits.processes.history import install_or_skip
from kits.processes.server import TwofoldServer

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="TWOFOLD_LONG=1 installs the version before"),
]

BEFORE = {
    # The last one without outcomes of two-phase transactions, markers of administrators and producer-times.
    "without-outcomes": "995222d",
    # The last one before the packages were sorted into rooms and the requirements into extras.
    "before-extras": "9a20461",
}


@pytest.fixture(scope="module", params=[*BEFORE.values()], ids=[*BEFORE])
def version_before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the commit installed."""
    return install_or_skip(str(request.param), tmp_path_factory.mktemp("before"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path, SETTINGS) as server:
        yield server


def prepare(server: TwofoldServer, name: str) -> str:
    with recovering(server, name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, name.encode(), partition=0)
        return str(producer.prepare_transaction())


def write(server: TwofoldServer, name: str) -> None:
    """A transaction of its own, begun and committed."""
    with twofold.Producer(bootstrap_servers=server.bootstrap_servers, transactional_id=f"{name}-id") as producer:
        producer.init_transactions()
        with producer.transaction() as transaction:
            transaction.send(TOPIC, name.encode(), partition=0)


def serve_with(server: TwofoldServer, python: str, how: str) -> None:
    if how == "killed":
        server.kill()
    else:
        assert server.stop() == 0
    server.python = python
    server.start()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_version_before_finishes_what_this_one_left_open_and_this_one_goes_on(
    version_before: Path, how: str, server: TwofoldServer
) -> None:
    this = server.python
    write(server, "first")
    states = {name: prepare(server, name) for name in ("decided", "terminated", "prepared", "waiting")}
    assert outcome(server, states["decided"], "decided") == "committed"
    done = commands.run(
        "txn", "terminate", "--transactional-id", "terminated", "--yes", server=server.bootstrap_servers
    )
    assert done.returncode == 0, done.stderr

    serve_with(server, str(version_before), how)
    assert outcome(server, states["prepared"], "prepared") == "committed", (
        "prepared by this version, completed by that one"
    )
    serve_with(server, str(version_before), how)
    write(server, "between")

    serve_with(server, this, how)
    for _ in range(2):
        assert outcome(server, states["waiting"], "waiting") == "committed", "it has waited through both versions"
    write(server, "last")
    assert sorted(values(server)) == [b"between", b"decided", b"first", b"last", b"prepared", b"waiting"]
    listed = json.loads(
        commands.run("txn", "list", "--two-phase", "--format", "json", server=server.bootstrap_servers).stdout
    )
    assert listed == [], "nothing is left open"
