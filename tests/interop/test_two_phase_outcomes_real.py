"""What became of a prepared transaction, with processes: `twofold serve`, the command line, clients that are paused, a
data folder that the version before left with work in flight."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import twofold
from kits.processes import commands
from kits.processes.commands import Done
from kits.processes.server import TwofoldServer
from twofold.aio import Consumer
from twofold.client import TopicPartition
from twofold.errors import PreparedAborted
from twofold.wire.errors import TransactionalIdNotFound

pytestmark = pytest.mark.interop

FIXTURES = Path(__file__).parent.parent / "fixtures"
FOLDERS = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("two-phase-*.tar.gz"))
SETTINGS = {"transaction.two.phase.commit.enable": "true", "transaction.state.log.num.partitions": "1"}
PATIENCE_S = 30.0
TOPIC = "orders"

APP = """
import sys, twofold
producer = twofold.Producer(bootstrap_servers=sys.argv[1], transactional_id="shop",
                            transaction_two_phase_commit_enable=True, request_timeout_ms=5000)
producer.init_transactions()
producer.begin_transaction()
producer.send("orders", b"a teapot")
state = producer.prepare_transaction()
print(state, flush=True)
sys.stdin.readline()
try:
    print(producer.complete_transaction(str(state).encode()))
except Exception as error:
    print(type(error).__name__, error)
"""


class App:
    """A process that prepares a transaction, and commits it when it is told to."""

    def __init__(self, servers: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", APP, servers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.state = self._process.stdout.readline().strip()

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def wake_and_complete(self) -> str:
        os.kill(self._process.pid, signal.SIGCONT)
        return self._process.communicate("\n", timeout=60)[0].strip()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path, SETTINGS) as server:
        yield server


def recovering(server: TwofoldServer, name: str = "shop") -> twofold.Producer:
    return twofold.Producer(
        bootstrap_servers=server.bootstrap_servers, transactional_id=name, transaction_two_phase_commit_enable=True
    )


def outcome(server: TwofoldServer, stored: str | bytes, name: str = "shop") -> str:
    """Of one recovery by a new producer."""
    with recovering(server, name) as producer:
        producer.init_transactions(keep_prepared_txn=True)
        try:
            return producer.complete_transaction(stored).value
        except PreparedAborted as error:
            return f"PreparedAborted {error.cause}"


def txn(server: TwofoldServer, *words: str) -> Done:
    return commands.run("txn", *words, server=server.bootstrap_servers)


def values(server: TwofoldServer, isolation_level: str = "read_committed") -> list[bytes]:
    async def read() -> list[bytes]:
        tp = TopicPartition(TOPIC, 0)
        async with Consumer(
            bootstrap_servers=server.bootstrap_servers, isolation_level=isolation_level, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([tp])
            end = (await consumer.end_offsets([tp]))[tp]
            found = []
            while await consumer.position(tp) < end:
                found += [record.value or b"" for record in await consumer.poll(1_000)]
            return found

    return asyncio.run(read())


def test_a_paused_client_learns_after_its_waking_that_an_operator_has_terminated_what_it_prepared(
    server: TwofoldServer,
) -> None:
    app = App(server.bootstrap_servers)
    app.pause()
    done = txn(server, "terminate", "--transactional-id", "shop", "--yes")
    assert done.returncode == 0, done.stderr
    server.kill()
    server.start()
    told = app.wake_and_complete()
    assert told.startswith(f"PreparedAborted transaction {app.state} of 'shop'") and "an administrator" in told
    for _ in range(2):
        assert outcome(server, app.state).startswith("PreparedAborted an administrator ended it by force")
    assert values(server) == []
    (row,) = json.loads(txn(server, "describe", "shop", "--format", "json").stdout)
    assert row["last_two_phase"] == {"state": app.state, "ending": "terminated"}


def test_a_recovery_that_is_repeated_over_kills_of_the_broker_says_committed_and_a_paused_client_is_fenced(
    server: TwofoldServer,
) -> None:
    app = App(server.bootstrap_servers)
    app.pause()
    for _ in range(3):
        assert outcome(server, app.state.encode()) == "committed"
        server.kill()
        server.start()
    assert outcome(server, "") == "nothing"
    assert outcome(server, "987654:3") == "unknown"
    told = app.wake_and_complete()
    assert told.startswith("Fenced") and f"transaction {app.state} was committed" in told
    assert values(server) == [b"a teapot"]


def test_an_unused_id_is_not_terminated_and_not_created(server: TwofoldServer) -> None:
    with (
        twofold.Admin(bootstrap_servers=server.bootstrap_servers) as admin,
        pytest.raises(TransactionalIdNotFound),
    ):
        admin.force_terminate_transaction("nobody")
    done = txn(server, "terminate", "--transactional-id", "nobody", "--yes")
    assert done.returncode == 1 and "no coordinator knows 'nobody'" in done.stderr
    assert json.loads(txn(server, "list", "--format", "json").stdout) == []


def test_the_feature_is_not_lowered_while_something_is_prepared(server: TwofoldServer) -> None:
    app = App(server.bootstrap_servers)
    words = ("cluster", "features", "set", "transaction.version=1", "--downgrade", "--yes")
    refused = commands.run(*words, server=server.bootstrap_servers)
    assert refused.returncode == 1 and f"'shop' has {app.state}" in refused.stderr
    assert app.wake_and_complete() == "TransactionOutcome.COMMITTED"
    assert commands.run(*words, server=server.bootstrap_servers).returncode == 0
    with recovering(server) as producer, pytest.raises(twofold.errors.UnsupportedByBroker, match=r"version=1: transac"):
        producer.init_transactions()


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_an_earlier_version_left_in_flight_is_completed_exactly_once(folder: str, tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / f"{folder}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    states: dict[str, str] = json.loads((tmp_path / "states.json").read_text())
    everything = [b"decided", b"prepared", b"kept", b"converted", b"beating", b"timed"]
    settings = SETTINGS | {
        "node.id": "1",
        "log.retention.ms": "-1",  # the folder grows older than what would be taken away by age
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    }
    with TwofoldServer(tmp_path, settings) as server:
        assert sorted(values(server, "read_uncommitted")) == sorted(everything)
        assert outcome(server, states["decided"], "decided") == "unknown", "nothing was written down of it"
        assert outcome(server, states["prepared"], "prepared") == "committed"
        server.kill()
        server.start()
        for _ in range(2):
            assert outcome(server, states["prepared"], "prepared") == "committed"
            assert outcome(server, states["kept"].encode(), "kept") == "committed"
        assert outcome(server, "", "converted") == "aborted"
        assert outcome(server, states["converted"], "converted").startswith("PreparedAborted its producer")
        with twofold.Producer(bootstrap_servers=server.bootstrap_servers, transactional_id="timed") as producer:
            producer.init_transactions()
            with producer.transaction() as transaction:
                transaction.send(TOPIC, b"after it")
        deadline = time.monotonic() + PATIENCE_S
        while b"after it" not in values(server):
            assert time.monotonic() < deadline, "what sends no heartbeats is aborted and holds nobody up"
            time.sleep(0.2)
        assert sorted(values(server)) == [b"after it", b"decided", b"kept", b"prepared"]
