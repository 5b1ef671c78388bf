"""The crash table on PostgreSQL and MariaDB, with real servers and real processes. Without TWOFOLD_LONG each step is
one row, a pause, which is harder than a kill; `make interop` runs all."""

import os
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from kits.databases.mariadb import MariadbServer
from kits.databases.postgresql import PostgresServer
from kits.dualwrite.cases import OVER, kill_at, kill_paused, pause_at, pause_two_recoveries, take_over_at_once
from kits.dualwrite.steps import DECIDED, PREPARED, ROW_LOCKED, TAKE_OVER, TAKING_OVER, WRITING, every_step
from kits.dualwrite.store import Store, ended_otherwise
from kits.processes.server import TwofoldServer
from twofold.dualwrite.protocol import At

pytestmark = pytest.mark.interop
LONG = bool(os.environ.get("TWOFOLD_LONG"))
SETTINGS = {"transaction.two.phase.commit.enable": "true"}
ONE_ROW_PER_STEP = [("", step) for step in WRITING] + [(DECIDED, step) for step in TAKING_OVER]
DatabaseServer = PostgresServer | MariadbServer

only_long = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all rows of the table")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("dual-write"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module", params=[PostgresServer, MariadbServer], ids=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    with request.param() as running:
        yield running


@pytest.fixture
def store(server: TwofoldServer, database: DatabaseServer) -> Iterator[Store]:
    made = Store(database, server.bootstrap_servers)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(("left", "step"), every_step() if LONG else ONE_ROW_PER_STEP)
def test_table_and_topic_agree_when_a_paused_process_wakes_up_after_another_took_over(
    store: Store, database: DatabaseServer, left: str, step: str
) -> None:
    pause_at(store, database.name, left, step)


@only_long
@pytest.mark.parametrize(("left", "step"), every_step())
def test_table_and_topic_agree_when_a_process_is_killed_at_any_step(store: Store, left: str, step: str) -> None:
    kill_at(store, left, step)


@pytest.mark.parametrize("left", [PREPARED, DECIDED] if LONG else [DECIDED])
def test_table_and_topic_agree_when_several_take_over_at_once(store: Store, left: str) -> None:
    take_over_at_once(store, left)


@only_long
@pytest.mark.parametrize("second", [step for step in TAKE_OVER if step not in ROW_LOCKED])
@pytest.mark.parametrize("first", [At.FENCE.value, At.OWN.value, At.SETTLE.value])
def test_table_and_topic_agree_when_two_that_recover_are_paused_and_wake_up(
    store: Store, first: str, second: str
) -> None:
    pause_two_recoveries(store, DECIDED, first, second)


@pytest.mark.parametrize("step", [At.PREPARE.value, At.COMMIT.value] if LONG else [At.COMMIT.value])
def test_nothing_is_decided_while_a_paused_process_has_the_lock(store: Store, step: str) -> None:
    """The lock timeout of the one that recovers."""
    kill_paused(store, step)


class TestCommitInFlight:
    """The database has written a COMMIT and waits for another server that does not answer."""

    @pytest.fixture
    def held(self, store: Store, database: DatabaseServer) -> Iterator[Store]:
        self.writer = store.start_until(At.COMMIT.value, "SIGSTOP")
        database.hold_commits()
        self.writer.wake_up()
        self.wait_for_commits(database, 1)
        try:
            yield store
        finally:
            database.release_commits()

    def wait_for_commits(self, database: DatabaseServer, number: int) -> None:
        while database.commits_in_flight() != number:
            assert self.writer.code is None, self.writer.read_all()

    def test_a_writer_that_is_killed_has_decided(self, held: Store, database: DatabaseServer) -> None:
        self.writer.kill()
        other = held.start()
        other.read_until(At.OWN.value)  # and it waits for the row there
        database.release_commits()
        assert other.wait() == 0, other.lines
        held.check()

    def test_a_writer_that_is_paused_has_decided(self, held: Store, database: DatabaseServer) -> None:
        paused = self.writer
        paused.stop()
        other = held.start()
        other.read_until(At.OWN.value)
        database.release_commits()
        assert other.wait() == 0, other.lines
        held.check()
        paused.wake_up()
        ended_otherwise(paused, OVER)
        held.check()

    def test_a_database_that_is_killed_has_it_or_not_and_the_log_agrees(
        self, held: Store, database: DatabaseServer
    ) -> None:
        database.kill()
        ended_otherwise(self.writer, ("OutcomeUnknown",))
        database.start()
        database.release_commits()
        held.finish()
        held.check()


@pytest.mark.parametrize("caller", ["meet_a_deadlock", "swallow_a_deadlock"])
def test_a_deadlock_leaves_neither_also_when_the_caller_goes_on(
    store: Store, database: DatabaseServer, caller: str
) -> None:
    process = store.start(caller=caller)
    process.read_until("has the first account")
    with store.engine.connect() as connection:
        if isinstance(database, PostgresServer):  # the one that looks for deadlocks is the one that is given up
            connection.execute(text("SET deadlock_timeout = '60s'"))
        # ... and MariaDB gives up the transaction that has changed less.
        connection.execute(text("UPDATE accounts SET balance = balance + 10 WHERE number > 1"))
        process.answer()
        connection.execute(text("UPDATE accounts SET balance = balance + 10 WHERE number = 1"))
        connection.commit()
    ended_otherwise(process, ("NotDone", "Unsuitable", "InternalError"))
    assert (store.in_table(), store.in_topic()) == ([], [])
    store.finish()
    store.check()


def test_a_lock_timeout_in_the_block_leaves_neither(store: Store) -> None:
    store.finish(1)
    with store.engine.connect() as connection:
        connection.execute(text("UPDATE accounts SET balance = 1 WHERE number = 2"))
        ended_otherwise(store.start(caller="wait_for_an_account"), ("NotDone",))
        connection.rollback()
    store.check(1)
    store.finish()
    store.check()


@pytest.mark.parametrize("caller", ["repeat_an_order", "swallow_a_violation"])
def test_a_unique_violation_leaves_neither_or_both(store: Store, database: DatabaseServer, caller: str) -> None:
    """PostgreSQL refuses everything after it; MariaDB goes on without the row that it refused."""
    store.finish(1)
    process = store.start(caller=caller)
    if caller == "swallow_a_violation" and isinstance(database, MariadbServer):
        assert process.wait() == 0, process.lines
    else:
        assert process.wait() == 3, process.lines
        store.check(1)
    store.finish()
    store.check()


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("step", [At.COMMIT.value, At.COMPLETE.value])
def test_table_and_topic_agree_when_the_database_is_stopped_before_and_after_commit(
    store: Store, database: DatabaseServer, step: str, how: str
) -> None:
    paused = store.start_until(step, "SIGSTOP")
    getattr(database, how)()
    paused.wake_up()
    assert paused.wait() == 3, paused.lines
    database.start()
    if step == At.COMPLETE.value:
        store.check(2)
    store.finish()
    store.check()


def test_the_row_of_another_cluster_names_nothing_here(store: Store) -> None:
    store.start_until(DECIDED, "SIGKILL")
    ours = store.move_to_cluster("elsewhere")
    ended_otherwise(store.start(), ("OtherCluster",))
    store.move_to_cluster(ours)
    store.finish()
    store.check()


@pytest.mark.parametrize("step", [At.PREPARE.value, At.COMPLETE.value])
def test_table_and_topic_agree_when_the_broker_is_killed_before_prepare_and_after_commit(
    server: TwofoldServer, store: Store, step: str
) -> None:
    paused = store.start_until(step, "SIGSTOP", quick=True)
    server.kill()
    paused.wake_up()
    try:
        ended_otherwise(paused, ("DecidedNotVisible",) if step == At.COMPLETE.value else ("NotDone", *OVER))
    finally:
        server.start()
    store.finish()
    store.check()
