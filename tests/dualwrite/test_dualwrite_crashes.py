"""The crash table on SQLite, with real processes: whatever step one is killed or paused at, table and topic agree."""

import os
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from kits.databases.sqlite import SqliteFiles
from kits.dualwrite.cases import kill_at, kill_paused, pause_at, pause_two_recoveries, take_over_at_once
from kits.dualwrite.steps import DATABASE_LOCKED, DECIDED, PREPARED, TAKE_OVER, every_step
from kits.dualwrite.store import Store, ended_otherwise
from kits.processes.server import TwofoldServer
from twofold.dualwrite.protocol import At

pytestmark = pytest.mark.interop
LONG = bool(os.environ.get("TWOFOLD_LONG"))
SETTINGS = {"transaction.two.phase.commit.enable": "true"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("dual-write"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def files() -> Iterator[SqliteFiles]:
    with SqliteFiles() as made:
        yield made


@pytest.fixture
def store(server: TwofoldServer, files: SqliteFiles) -> Iterator[Store]:
    made = Store(files, server.bootstrap_servers)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(("left", "step"), every_step())
def test_table_and_topic_agree_when_a_process_is_killed_at_any_step(store: Store, left: str, step: str) -> None:
    kill_at(store, left, step)


@pytest.mark.parametrize(("left", "step"), every_step())
def test_table_and_topic_agree_when_a_paused_process_wakes_up_after_another_took_over(
    store: Store, left: str, step: str
) -> None:
    pause_at(store, "sqlite", left, step)


@pytest.mark.parametrize("left", [PREPARED, DECIDED])
def test_table_and_topic_agree_when_several_take_over_at_once(store: Store, left: str) -> None:
    take_over_at_once(store, left)


@pytest.mark.parametrize("second", [step for step in TAKE_OVER if step not in DATABASE_LOCKED])
@pytest.mark.parametrize("first", [At.FENCE.value, At.SETTLE.value, *([At.OWN_BEGIN.value] if LONG else [])])
def test_table_and_topic_agree_when_two_that_recover_are_paused_and_wake_up(
    store: Store, first: str, second: str
) -> None:
    pause_two_recoveries(store, DECIDED, first, second)


@pytest.mark.parametrize("step", [At.OWN_COMMIT.value, At.PREPARE.value, At.STORE.value, At.COMMIT.value])
def test_nothing_is_decided_while_a_paused_process_has_the_lock(store: Store, step: str) -> None:
    kill_paused(store, step)


def test_a_database_that_is_locked_is_not_done_and_leaves_neither(store: Store) -> None:
    """SQLite's lock timeout."""
    paused = store.start_until(At.BEGIN.value, "SIGSTOP", lock_timeout_s=0.2)
    with store.engine.connect() as connection:
        connection.execute(text("UPDATE accounts SET balance = 1"))
        paused.wake_up()
        ended_otherwise(paused, ("NotDone",))
        connection.rollback()
    store.check(1)
    store.finish()
    store.check()


def test_a_commit_that_a_reader_holds_up_is_no_decision(store: Store) -> None:
    """COMMIT fails after the log has prepared: the log aborts, and the order is repeated."""
    paused = store.start_until(At.COMMIT.value, "SIGSTOP", lock_timeout_s=0.2)
    with store.engine.connect() as reader:
        reader.exec_driver_sql("BEGIN")
        reader.execute(text("SELECT * FROM orders")).fetchone()
        paused.wake_up()
        ended_otherwise(paused, ("NotDone", "OutcomeUnknown"))
        reader.rollback()
    store.finish()
    store.check()


@pytest.mark.parametrize("caller", ["repeat_an_order", "swallow_a_violation"])
def test_a_unique_violation_leaves_neither_or_both(store: Store, caller: str) -> None:
    """The row that is refused is not in the transaction; a caller that goes on all the same commits what it has."""
    store.finish(1)
    process = store.start(caller=caller)
    if caller == "repeat_an_order":
        ended_otherwise(process, ("IntegrityError",))
        store.check(1)
    else:
        assert process.wait() == 0, process.lines
        store.check()
    store.finish()
    store.check()


def test_the_row_of_another_cluster_names_nothing_here(store: Store) -> None:
    store.start_until(DECIDED, "SIGKILL")
    ours = store.move_to_cluster("elsewhere")
    for _ in range(2):
        ended_otherwise(store.start(), ("OtherCluster",))
    store.move_to_cluster(ours)
    store.finish()
    store.check()


class TestBroker:
    """That is killed and started again, on the same data."""

    @pytest.fixture
    def own(self, server: TwofoldServer, files: SqliteFiles) -> Iterator[Store]:
        made = Store(files, server.bootstrap_servers)
        try:
            yield made
        finally:
            if not server.running:
                server.start()
            made.close()

    @pytest.mark.parametrize("step", [At.CALLER.value, At.PREPARE.value])
    def test_killed_before_prepare_is_not_done(self, server: TwofoldServer, own: Store, step: str) -> None:
        paused = own.start_until(step, "SIGSTOP", quick=True)
        server.kill()
        paused.wake_up()
        if step == At.CALLER.value:
            ended_otherwise(paused, ("NotDone",))
            assert own.in_table() == [1]
        server.start()
        assert paused.wait() in (0, 3)
        own.finish()
        own.check()

    @pytest.mark.parametrize("step", [At.STORE.value, At.COMMIT.value, At.COMPLETE.value])
    def test_killed_after_prepare_is_decided_by_the_database(
        self, server: TwofoldServer, own: Store, step: str
    ) -> None:
        paused = own.start_until(step, "SIGSTOP", quick=True)
        server.kill()
        paused.wake_up()
        ended_otherwise(paused, ("DecidedNotVisible",))
        assert own.in_table() == [1, 2]
        server.start()
        own.finish()
        own.check()
