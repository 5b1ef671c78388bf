"""DualWrite on SQLite: both or neither, and what the caller is told."""

import os
import threading

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

import twofold
from kits.dualwrite.shop import QUICK, TOPIC, Shop, broker_with_two_phase, open_state, sqlite_url, until
from twofold.dualwrite import (
    DatabaseBehind,
    DecidedNotVisible,
    Done,
    DualWrite,
    LogAborted,
    NotDone,
    OtherCluster,
    OutcomeUnknown,
    Settled,
    TakenOver,
    Unsuitable,
)


@pytest.fixture
def broker():
    with broker_with_two_phase() as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def shop(broker, tmp_path):
    made = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
    yield made
    made.close()


class Interrupted(BaseException):
    """As Ctrl-C is."""


def fail(db, log):
    raise ZeroDivisionError


def add(item):
    """For `block`, in a session."""

    def action(session, log):
        session.add(Order(item=item))
        log.send(TOPIC, item.encode())

    return action


def test_rows_and_records_are_both_there_and_the_result_has_the_state(shop):
    with shop.dual() as dual:
        shop.order(dual, "a teapot")
        block = dual.transaction()
        with block as (db, log):
            shop.sell(db, log, "a kettle")
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]
    assert isinstance(block.result, Done) and str(block.result.state) == shop.state()


def test_an_exception_of_the_caller_leaves_neither_and_goes_on_as_it_is(shop):
    with shop.dual() as dual:
        with pytest.raises(ZeroDivisionError) as raised:
            shop.block(dual, shop.of("a teapot"), fail)
        assert "neither the database nor the log has it" in raised.value.__notes__[0]
        shop.order(dual, "a kettle")
    assert shop.table() == shop.topic() == ["a kettle"]


def test_a_unique_violation_is_the_callers_to_see_and_leaves_neither(shop):
    with shop.dual() as dual:
        shop.order(dual, "a teapot")
        with pytest.raises(IntegrityError):
            shop.order(dual, "a teapot")
    assert shop.table() == shop.topic() == ["a teapot"]


def test_a_transaction_without_records_is_one_of_the_database_alone(shop):
    with shop.dual() as dual:
        shop.order(dual, "a teapot")
        before = shop.state()
        with dual.transaction() as (db, _):
            db.execute(text("INSERT INTO orders VALUES ('on paper')"))
    assert shop.table() == ["a teapot", "on paper"]
    assert shop.topic() == ["a teapot"] and shop.state() == before


def test_a_transaction_without_rows_is_one_of_the_log_alone(shop):
    with shop.dual() as dual, dual.transaction() as (_, log):
        log.send(TOPIC, b"a teapot")
    assert shop.topic() == ["a teapot"] and shop.table() == []


def test_commit_and_rollback_inside_a_block_are_refused(shop):
    with shop.dual() as dual:
        with pytest.raises(Unsuitable, match="the end of the block commits"):
            shop.block(dual, shop.of("a teapot"), lambda db, _: db.commit())
        with (
            Session(shop.engine) as session,
            pytest.raises(Unsuitable, match="the end of the block commits"),
        ):
            shop.block(dual, add("a teapot"), lambda db, _: db.commit(), session=session)
        with pytest.raises(Unsuitable, match="was rolled back in the database"):
            shop.block(dual, shop.of("a teapot"), lambda db, _: db.rollback())
        with pytest.raises(Unsuitable, match="was rolled back in the database"):
            shop.block(dual, shop.of("a teapot"), lambda db, _: db.rollback(), shop.of("a kettle"))
        shop.order(dual, "a cup")
    assert shop.table() == shop.topic() == ["a cup"]


def test_savepoints_of_the_caller_are_the_callers(shop):
    with shop.dual() as dual, dual.transaction() as (db, log):
        shop.sell(db, log, "a teapot")
        with pytest.raises(IntegrityError), db.begin_nested():
            db.execute(text("INSERT INTO orders VALUES ('a teapot')"))
    assert shop.table() == shop.topic() == ["a teapot"]


def test_a_block_inside_a_block_of_the_same_writer_is_refused(shop):
    with shop.dual() as dual, dual.transaction() as (db, log):
        with pytest.raises(Unsuitable, match="one at a time"), dual.transaction():
            pass
        shop.sell(db, log, "a teapot")
    assert shop.table() == shop.topic() == ["a teapot"]


def test_threads_take_turns(shop):
    with shop.dual() as dual:
        threads = [threading.Thread(target=shop.order, args=(dual, f"item {number}")) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert shop.table() == shop.topic() == [f"item {number}" for number in range(8)]


# Engines and sessions


@pytest.mark.parametrize(
    "options", [{"isolation_level": "AUTOCOMMIT"}, {"execution_options": {"isolation_level": "AUTOCOMMIT"}}]
)
def test_an_engine_in_autocommit_mode_is_refused(shop, options):
    engine = create_engine(shop.url, **options)
    with (
        DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual,
        pytest.raises(Unsuitable, match="autocommit mode"),
        dual.transaction(),
    ):
        pass
    engine.dispose()


def _begin_by_event(engine):
    """As SQLAlchemy's documentation advises for SQLite."""

    @event.listens_for(engine, "connect")
    def connect(dbapi_connection, _):
        dbapi_connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection):
        connection.exec_driver_sql("BEGIN")


def _no_begin(engine):
    @event.listens_for(engine, "connect")
    def connect(dbapi_connection, _):
        dbapi_connection.isolation_level = None


@pytest.mark.parametrize("arrange", [_begin_by_event, _no_begin])
def test_however_sqlite_begins_the_writer_has_the_lock(shop, arrange):
    engine = create_engine(shop.url, connect_args={"timeout": 0.2})
    arrange(engine)
    with DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual:
        with dual.transaction() as (db, log):
            with engine.connect() as other, pytest.raises(OperationalError, match="locked"):
                other.exec_driver_sql("UPDATE twofold_prepared SET owner = 'another'")
            shop.sell(db, log, "a teapot")
        with pytest.raises(ZeroDivisionError):
            shop.block(dual, shop.of("a kettle"), fail)
    engine.dispose()
    assert shop.table() == shop.topic() == ["a teapot"]


@pytest.mark.parametrize("level", ["SERIALIZABLE", "READ UNCOMMITTED"])
def test_it_is_right_at_every_isolation_level_of_sqlite(shop, level):
    engine = create_engine(shop.url, isolation_level=level)
    with DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual:
        shop.order(dual, "a teapot")
        with pytest.raises(ZeroDivisionError):
            shop.block(dual, shop.of("a kettle"), fail)
    engine.dispose()
    assert shop.table() == shop.topic() == ["a teapot"]


def test_a_database_that_is_locked_means_not_done(shop):
    engine = create_engine(shop.url, connect_args={"timeout": 0.1})
    with DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual:
        shop.order(dual, "a teapot")
        with shop.engine.connect() as other:
            other.exec_driver_sql("BEGIN IMMEDIATE")
            with pytest.raises(NotDone) as raised:
                shop.order(dual, "a kettle")
            other.rollback()
        assert isinstance(raised.value.__cause__, OperationalError)
        shop.order(dual, "a kettle")
    engine.dispose()
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    item: Mapped[str] = mapped_column(primary_key=True)


def test_an_orm_session_is_flushed_and_committed_by_the_block(shop):
    with shop.dual() as dual, Session(shop.engine) as session:
        with dual.transaction(session=session) as (db, log):
            assert db is session
            session.add(Order(item="a teapot"))
            log.send(TOPIC, b"a teapot")
        assert not session.in_transaction()
        assert session.get(Order, "a teapot") is not None
        session.rollback()
        session.expunge_all()
        with pytest.raises(IntegrityError):
            shop.block(dual, shop.of("a cup"), add("a teapot"), lambda db, _: db.flush(), session=session)
        with dual.transaction(session=session) as (_, log):
            session.add(Order(item="a kettle"))
            log.send(TOPIC, b"a kettle")
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


def test_an_error_of_the_last_flush_comes_before_prepare(shop):
    steps: list[str] = []
    with shop.dual(observer=steps.append) as dual, Session(shop.engine) as session:
        with dual.transaction(session=session) as (_, log):
            session.add(Order(item="a teapot"))
            log.send(TOPIC, b"a teapot")
        session.expunge_all()
        steps.clear()
        with pytest.raises(IntegrityError):
            shop.block(dual, add("a teapot"), session=session)  # flushed at the end of the block
    assert "write: prepare" not in steps
    assert shop.table() == shop.topic() == ["a teapot"]


def test_a_scoped_session_is_the_one_of_its_thread(shop):
    sessions = scoped_session(sessionmaker(shop.engine))
    with shop.dual() as dual, dual.transaction(session=sessions) as (db, log):
        assert db is sessions()
        sessions.add(Order(item="a teapot"))
        log.send(TOPIC, b"a teapot")
    sessions.remove()
    assert shop.table() == shop.topic() == ["a teapot"]


def test_a_session_that_has_begun_a_transaction_is_refused_and_left_alone(shop):
    with shop.dual() as dual, Session(shop.engine) as session:
        session.execute(text("SELECT 1"))
        with pytest.raises(Unsuitable, match="has begun a transaction already"), dual.transaction(session=session):
            pass
        assert session.in_transaction()
        session.rollback()
        with dual.transaction(session=session) as (db, log):
            shop.sell(db, log, "a teapot")
    assert shop.table() == shop.topic() == ["a teapot"]


def test_a_session_of_another_database_or_of_a_connection_is_refused(shop, tmp_path):
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with shop.dual() as dual:
        with (
            Session(other) as session,
            pytest.raises(Unsuitable, match="in one transaction"),
            dual.transaction(session=session),
        ):
            pass
        with (
            shop.engine.connect() as connection,
            Session(connection) as session,
            pytest.raises(Unsuitable, match="bound to a connection"),
            dual.transaction(session=session),
        ):
            pass
        shop.order(dual, "a teapot")
    other.dispose()


def test_the_writer_of_a_process_is_not_for_its_children(shop):
    with shop.dual() as dual:
        dual.take_over()
        child = os.fork()
        if child == 0:
            try:
                dual.transaction()
            except Unsuitable:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_options_that_are_the_protocols_own_are_refused(shop):
    with pytest.raises(ValueError, match="transaction_timeout_ms is set by the dual write itself"):
        shop.dual(transaction_timeout_ms=1000)


# Taking over


def test_the_later_writer_fences_the_earlier_one(shop):
    with shop.dual() as first, shop.dual() as second:
        shop.order(first, "a teapot")
        shop.order(second, "a kettle")
        with pytest.raises(TakenOver, match="another process has taken 'shop' over"):
            shop.order(first, "a cup")
        with pytest.raises(TakenOver, match="Make another"):
            shop.order(first, "a cup")
        shop.order(second, "a saucer")
    assert shop.table() == shop.topic() == ["a kettle", "a saucer", "a teapot"]


def test_writers_of_different_ids_share_a_table(shop):
    with shop.dual("north") as north, shop.dual("south") as south:
        shop.order(north, "a teapot")
        shop.order(south, "a kettle")
        shop.order(north, "a cup")
    assert shop.table() == shop.topic() == ["a cup", "a kettle", "a teapot"]
    assert shop.state("north") and shop.state("south")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("write: prepare", []),
        ("write: store state", []),
        ("write: commit database", []),
        ("write: complete log", ["a teapot"]),
    ],
)
def test_what_a_writer_left_open_is_ended_by_the_row(shop, step, expected):
    """An interrupt stands for a crash: the program stops where it is."""

    def stop(reached):
        if reached == step:
            raise Interrupted

    left = shop.dual(observer=stop)
    left._keep_settling = lambda: None
    with pytest.raises(Interrupted):
        shop.block(left, shop.of("a teapot"), lambda db, log: until(lambda: open_state(shop.address) != ""))
    with shop.dual() as dual:
        settled = dual.take_over()
        assert isinstance(settled, Settled) and settled.is_done == bool(expected)
        assert dual.take_over() is None
    assert shop.table() == shop.topic() == expected
    left.close()


def test_an_interrupt_is_settled_before_the_next_transaction_of_the_same_writer(shop):
    stops = ["write: complete log"]

    def stop(reached):
        if reached in stops:
            stops.clear()
            raise Interrupted

    with shop.dual(observer=stop) as dual:
        with pytest.raises(Interrupted):
            shop.order(dual, "a teapot")
        shop.order(dual, "a kettle")
        assert dual.is_settled
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


# Broker away


def test_a_broker_that_is_away_before_prepare_means_not_done(shop, broker):
    with shop.dual(**QUICK) as dual:
        shop.order(dual, "a teapot")
        with pytest.raises(NotDone):
            shop.block(dual, lambda db, log: broker.stop(), shop.of("a kettle"))
        broker.start()
        until(lambda: _order_again(shop, dual, "a kettle"))
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


def _order_again(shop, dual, item):
    try:
        shop.order(dual, item)
        return True
    except NotDone:
        return False


def test_a_broker_that_is_away_after_commit_means_decided_and_the_background_completes(shop, broker):
    def stop(reached):
        if reached == "write: complete log" and shop.table() == ["a kettle", "a teapot"]:
            broker.stop()

    with shop.dual(observer=stop, **QUICK) as dual:
        shop.order(dual, "a teapot")
        with pytest.raises(DecidedNotVisible, match="Do not repeat") as raised:
            shop.order(dual, "a kettle")
        assert not dual.is_settled
        broker.start()
        until(lambda: dual.is_settled)
        assert dual.settle() == Settled(raised.value.state, is_done=True)
        assert dual.settle() is None
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


def test_a_naive_repetition_after_decided_completes_the_first_and_does_not_double(shop, broker):
    def stop(reached):
        if reached == "write: complete log":
            broker.stop()

    with shop.dual(observer=stop, **QUICK) as dual:
        with pytest.raises(DecidedNotVisible):
            shop.order(dual, "a teapot")
        dual.observer = lambda step: None
        broker.start()
        until(lambda: shop.topic() == ["a teapot"])
        with pytest.raises(IntegrityError):
            shop.order(dual, "a teapot")
    assert shop.table() == shop.topic() == ["a teapot"]


# Database in doubt


@pytest.mark.parametrize("commits", [True, False])
def test_a_commit_without_an_answer_is_decided_by_the_row(shop, commits):
    """The answer is lost after the database has committed, or before it hears of it."""
    lost: list[str] = []

    @event.listens_for(shop.engine, "commit")
    def lose(connection):
        if lost:
            lost.clear()
            if commits:
                connection.connection.dbapi_connection.commit()
            raise OperationalError("COMMIT", {}, Exception("the connection is lost"))

    def about_to(step):
        if step == "write: commit database":
            lost.append(step)

    with shop.dual() as dual:
        shop.order(dual, "a teapot")
        dual.observer = about_to
        if commits:
            shop.order(dual, "a kettle")
        else:
            with pytest.raises(NotDone):
                shop.order(dual, "a kettle")
        dual.observer = lambda step: None
        assert dual.is_settled
        shop.order(dual, "a cup")
    assert shop.table() == shop.topic() == (["a cup", "a kettle", "a teapot"] if commits else ["a cup", "a teapot"])


def test_a_database_that_stays_away_after_commit_leaves_the_outcome_unknown_until_it_is_settled(shop):
    away: list[str] = []

    @event.listens_for(shop.engine, "commit")
    def lose(connection):
        if "write: commit database" in away:
            connection.connection.dbapi_connection.commit()
            raise OperationalError("COMMIT", {}, Exception("the connection is lost"))

    @event.listens_for(shop.engine, "engine_connect")
    def refuse(connection):
        if "write: commit database" in away:
            raise OperationalError("connect", {}, Exception("the database is away"))

    with shop.dual(observer=away.append) as dual:
        with pytest.raises(OutcomeUnknown, match="Do not repeat it before") as raised:
            shop.order(dual, "a teapot")
        with pytest.raises(NotDone, match="could not be taken over"):
            shop.order(dual, "a kettle")
        dual.observer = lambda step: None
        away.clear()
        until(lambda: dual.is_settled)
        assert dual.settle() == Settled(raised.value.state, is_done=True)
        shop.order(dual, "a kettle")
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


# Disagreements


def test_a_row_of_another_cluster_names_nothing_here(shop, tmp_path):
    with shop.dual() as dual:
        shop.order(dual, "a teapot")
    with broker_with_two_phase() as other:
        there = Shop.__new__(Shop)
        there.address, there.engine, there.url = other.bootstrap_servers, shop.engine, shop.url
        with there.dual() as dual, pytest.raises(OtherCluster, match="belongs to cluster") as raised:
            there.order(dual, "a kettle")
        assert str(raised.value.state) == shop.state()
    assert shop.table() == ["a teapot"]


def test_a_database_from_a_backup_is_found_out_and_nothing_is_ended(shop, tmp_path):
    with shop.dual() as dual:
        shop.order(dual, "a teapot")
        saved = shop.row()
        shop.order(dual, "a kettle")
        shop.order(dual, "a cup")
    with shop.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE twofold_prepared SET producer_id = :id, producer_epoch = :epoch WHERE transactional_id = 'shop'"
            ),
            {"id": saved.producer_id, "epoch": saved.producer_epoch},
        )
    with shop.dual() as dual, pytest.raises(DatabaseBehind, match="comes from a backup") as raised:
        shop.order(dual, "a saucer")
    assert str(raised.value.state) != shop.state()
    assert shop.topic() == ["a cup", "a kettle", "a teapot"]


def test_an_empty_database_does_not_decide_about_what_another_one_has_prepared(shop, tmp_path):
    def stop(reached):
        if reached == "write: complete log":
            raise Interrupted

    left = shop.dual(observer=stop)
    left._keep_settling = lambda: None
    with pytest.raises(Interrupted):
        shop.order(left, "a teapot")
    empty = Shop(shop.address, f"sqlite:///{tmp_path / 'empty.db'}")
    with empty.dual() as wrong, pytest.raises(DatabaseBehind, match="was never owned by a writer"):
        empty.order(wrong, "a kettle")
    assert open_state(shop.address)
    with shop.dual() as dual:
        dual.take_over()
    assert shop.table() == shop.topic() == ["a teapot"]
    left.close()
    empty.close()


def test_what_an_administrator_has_aborted_after_the_database_committed_is_named(shop):
    def stop(reached):
        if reached == "write: complete log":
            with twofold.Admin(bootstrap_servers=shop.address) as admin:
                admin.force_terminate_transaction("shop")

    with shop.dual(observer=stop) as dual, pytest.raises(LogAborted, match="the rows have no records"):
        shop.order(dual, "a teapot")
    with shop.dual() as dual, pytest.raises(LogAborted, match="recover --accept shop"):
        dual.take_over()
    assert shop.table() == ["a teapot"] and shop.topic() == []
