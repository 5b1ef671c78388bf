"""ApplyOnce with real processes: whatever step a member is killed or paused at, each record is applied once."""

import os
import signal
import time
import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

import twofold
from kits.databases.mariadb import MariadbServer
from kits.databases.postgresql import PostgresServer
from kits.databases.sqlite import SqliteFiles
from kits.dualwrite.apply_hand import HOLDING_THE_ROW, STEPS, ApplyJob
from kits.dualwrite.store import PATIENCE_S, DatabaseKit, Process
from kits.processes.server import TwofoldServer

pytestmark = pytest.mark.interop
LONG = bool(os.environ.get("TWOFOLD_LONG"))
SETTINGS = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}
RECORDS = 12
DATABASES = (SqliteFiles, PostgresServer, MariadbServer)


class Ledger:
    """A topic whose records become rows."""

    def __init__(self, kit: DatabaseKit, address: str) -> None:
        self.topic = f"orders_{uuid.uuid4().hex[:12]}"
        self.address = address
        self.url = kit.create(self.topic)
        self._engine = create_engine(self.url, poolclass=NullPool)
        self._processes: list[Process] = []
        with self._engine.begin() as connection:
            connection.execute(text("CREATE TABLE bills (number INTEGER)"))
        with twofold.Producer(bootstrap_servers=address) as producer:
            for number in range(RECORDS):
                producer.send(self.topic, str(number).encode(), partition=0)

    def start(self, *, step: str = "", how: str = "") -> Process:
        job = ApplyJob(self.url, self.address, self.topic, RECORDS, step, 2, how)
        process = Process(job, program="kits.dualwrite.apply_hand")
        self._processes.append(process)
        return process

    def bills(self) -> list[int]:
        with self._engine.connect() as connection:
            return sorted(connection.execute(text("SELECT number FROM bills")).scalars())

    def wait_for_a_group_of_one(self) -> None:
        """The session of the paused one is over, and the group has gone on with the other one alone."""
        until = time.monotonic() + PATIENCE_S
        with twofold.Admin(bootstrap_servers=self.address) as admin:
            seen: set[str] = set()
            while True:
                group = admin.describe_groups([self.topic]).get()[self.topic]
                members = {member.member_id for member in group.members}
                seen |= members
                if group.state == "Stable" and len(members) == 1 and len(seen) == 2:
                    return
                assert time.monotonic() < until, group

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self._engine.dispose()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("apply-once"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module", params=DATABASES if LONG else DATABASES[:2], ids=lambda kit: kit.name)
def kit(request: pytest.FixtureRequest) -> Iterator[DatabaseKit]:
    with request.param() as running:
        yield running


@pytest.fixture
def ledger(server: TwofoldServer, kit: DatabaseKit) -> Iterator[Ledger]:
    made = Ledger(kit, server.bootstrap_servers)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("step", STEPS)
def test_each_record_is_applied_once_when_a_member_is_killed_at_any_step(ledger: Ledger, step: str) -> None:
    killed = ledger.start(step=step, how="SIGKILL")
    assert killed.wait() == -signal.SIGKILL, killed.lines
    other = ledger.start()
    assert other.wait() == 0, other.lines
    assert ledger.bills() == list(range(RECORDS))


@pytest.mark.parametrize("step", STEPS)
def test_each_record_is_applied_once_when_a_paused_member_wakes_up_after_another_took_over(
    ledger: Ledger, step: str
) -> None:
    """With a transaction open it holds the row: the other one has its partition, and goes on when that has ended."""
    paused = ledger.start(step=step, how="SIGSTOP")
    paused.wait_until_stopped()
    other = ledger.start()
    if step in HOLDING_THE_ROW:
        ledger.wait_for_a_group_of_one()
        paused.wake_up()
        assert other.wait() == 0, other.lines
    else:
        assert other.wait() == 0, other.lines
        assert ledger.bills() == list(range(RECORDS))
        paused.wake_up()
    assert paused.wait() == 0, paused.lines
    assert ledger.bills() == list(range(RECORDS))
