"""What callers, drivers, databases and operators do to a dual write that nobody would have asked for."""

import asyncio
import contextlib
import itertools
import os
import socket
import sys
import threading

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool, StaticPool

import twofold
from kits.databases.mariadb import MariadbServer
from kits.databases.postgresql import PostgresServer
from kits.dualwrite.shop import QUICK, SETTINGS, TOPIC, Shop, broker_with_two_phase, sqlite_url, until
from twofold.dualwrite import (
    AsyncDualWrite,
    DecidedNotVisible,
    Disagreement,
    DualWrite,
    DualWriteError,
    DualWritePool,
    NotDone,
    OtherCluster,
    OutcomeUnknown,
    Settled,
    TakenOver,
    Unsuitable,
    blocking,
    protocol,
)
from twofold.dualwrite.recovery import Recovery
from twofold.embedded import Broker

numbers = itertools.count()
SERVERS: dict[str, type[PostgresServer] | type[MariadbServer]] = {
    "postgresql": PostgresServer,
    "mariadb": MariadbServer,
}


@pytest.fixture(
    scope="module",
    params=["sqlite", *(pytest.param(name, marks=pytest.mark.interop) for name in SERVERS)],
)
def server(request):
    if request.param == "sqlite":
        yield None
        return
    with SERVERS[request.param]() as running:
        yield running


@pytest.fixture
def broker():
    with broker_with_two_phase() as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def shop(server, broker, tmp_path):
    url = sqlite_url(tmp_path) if server is None else server.create(f"hostile{next(numbers)}")
    made = Shop(broker.bootstrap_servers, url)
    yield made
    made.close()


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    item: Mapped[str] = mapped_column(primary_key=True)


class Elsewhere(Base):
    __tablename__ = "elsewhere"
    item: Mapped[str] = mapped_column(primary_key=True)


def insert(item):
    return lambda db, log: db.execute(text("INSERT INTO orders VALUES (:item)"), {"item": item})


def said(word):
    """A statement that no part of SQLAlchemy knows to be the end of a transaction."""
    return lambda db, log: db.exec_driver_sql(word)


def swallow(action):
    def quietly(db, log):
        with contextlib.suppress(Exception):
            action(db, log)

    return quietly


def tried(action):
    """Whether it was done; an exception of the library or of the database says no."""
    try:
        action()
        return True
    except (DualWriteError, DBAPIError):
        return False


# The end of the transaction, behind the block's back


def test_an_error_that_the_caller_swallows_is_not_taken_for_done(shop, server):
    """PostgreSQL answers COMMIT with ROLLBACK then, and no driver makes an error of it."""
    with shop.dual() as dual:
        is_done = tried(lambda: shop.block(dual, insert("a cup"), swallow(insert("a cup"))))
        assert shop.table() == (["a cup"] if is_done else [])
        assert is_done == (server is None or server.name == "mariadb")
        shop.order(dual, "a teapot")
    assert shop.topic() == ["a teapot"]


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("with_record", [True, False])
def test_a_commit_or_rollback_by_its_words_is_found_out_before_prepare(shop, word, with_record):
    steps: list[str] = []
    first = shop.of("a cup") if with_record else insert("a cup")
    with shop.dual(observer=steps.append) as dual:
        dual.take_over()
        with pytest.raises(Unsuitable):
            shop.block(dual, first, said(word), insert("a saucer"))
        assert "write: prepare" not in steps
        shop.order(dual, "a teapot")
    assert shop.topic() == ["a teapot"]
    assert "a saucer" not in shop.table()


def test_a_statement_that_rolls_the_whole_transaction_back_is_found_out(shop, server):
    if server is not None:
        pytest.skip("SQLite has OR ROLLBACK")
    fail = swallow(lambda db, log: db.exec_driver_sql("INSERT OR ROLLBACK INTO orders VALUES ('a cup')"))
    with shop.dual() as dual:
        shop.order(dual, "a cup")
        with pytest.raises((Unsuitable, NotDone)):
            shop.block(dual, shop.of("a saucer"), fail, shop.of("a spoon"))
        shop.order(dual, "a teapot")
    assert shop.table() == shop.topic() == ["a cup", "a teapot"]


@pytest.mark.parametrize("with_record", [True, False])
def test_a_hook_of_a_session_that_swallows_an_error_at_commit_does_not_part_them(shop, server, with_record):
    """`before_commit` runs after the state was stored: on PostgreSQL the COMMIT that follows is a ROLLBACK."""
    with shop.dual() as dual:
        shop.order(dual, "a cup")
        with Session(shop.engine) as session:

            @event.listens_for(session, "before_commit")
            def audit(_):
                with contextlib.suppress(IntegrityError):
                    session.execute(text("INSERT INTO orders VALUES ('a cup')"))

            def work(db, log):
                db.add(Order(item="a saucer"))
                if with_record:
                    log.send(TOPIC, b"a saucer")

            is_done = tried(lambda: shop.block(dual, work, session=session))
            assert is_done == ("a saucer" in shop.table())
            assert is_done == (server is None or server.name == "mariadb")
        shop.order(dual, "a teapot")
    if with_record:
        assert shop.table() == shop.topic()


def test_a_session_that_writes_to_two_databases_is_refused(shop, tmp_path):
    other = create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    Base.metadata.create_all(other)

    def work(db, log):
        db.add(Order(item="a cup"))
        db.add(Elsewhere(item="a cup"))
        log.send(TOPIC, b"a cup")

    with (
        shop.dual() as dual,
        Session(shop.engine, binds={Elsewhere: other}) as session,
        pytest.raises(Unsuitable, match="in one transaction"),
    ):
        shop.block(dual, work, session=session)
    with other.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM elsewhere")).scalar_one() == 0
    other.dispose()
    assert shop.table() == shop.topic() == []


def test_savepoints_that_are_left_open_are_released_by_the_block(shop):
    def work(db, log):
        shop.sell(db, log, "a cup")
        db.begin_nested()
        shop.sell(db, log, "a saucer")

    with shop.dual() as dual:
        shop.block(dual, work)
        with Session(shop.engine) as session:

            def in_session(db, log):
                db.begin_nested()
                db.add(Order(item="a teapot"))
                log.send(TOPIC, b"a teapot")

            shop.block(dual, in_session, session=session)
    assert shop.table() == shop.topic() == ["a cup", "a saucer", "a teapot"]


def test_the_log_of_a_block_is_over_with_the_block(shop):
    with shop.dual() as dual:
        with dual.transaction() as (db, log):
            shop.sell(db, log, "a cup")
        with dual.transaction() as (db, second):
            shop.sell(db, second, "a saucer")
            with pytest.raises(Exception, match="has ended"):
                log.send(TOPIC, b"of a block that was over")
    assert shop.table() == shop.topic() == ["a cup", "a saucer"]


# Interrupts


@pytest.mark.parametrize(
    "after", ["write: store state", "write: commit database", "write: prepare", "write: caller's rows"]
)
def test_an_interrupt_between_two_operations_is_a_crash_of_the_program(shop, monkeypatch, after):
    real = protocol.step

    def interrupted(program, answer):
        if program.at.value == after:
            monkeypatch.setattr(blocking, "step", real)
            raise KeyboardInterrupt
        return real(program, answer)

    with shop.dual() as dual:
        dual.take_over()
        monkeypatch.setattr(blocking, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shop.order(dual, "a cup")
        shop.order(dual, "a teapot")  # at once: nothing is locked, and what was open is settled first
    expected = ["a cup", "a teapot"] if after == "write: commit database" else ["a teapot"]
    assert shop.table() == shop.topic() == expected


# What became of it


def _lose_commit(engine, commits):
    """Arms a COMMIT whose answer is lost, and a database that is away after it."""
    armed: list[str] = []
    away: list[bool] = []

    @event.listens_for(engine, "commit")
    def lose(connection):
        if armed:
            armed.clear()
            away.append(True)
            if commits:
                connection.connection.dbapi_connection.commit()
            raise OSError("the connection is lost")

    @event.listens_for(engine, "engine_connect")
    def refuse(connection):
        if away:
            raise OSError("the database is away")

    return armed, away


@pytest.mark.parametrize("commits", [True, False])
def test_settle_tells_what_another_process_has_ended_and_never_that_it_is_not_done(shop, commits):
    """A caller who repeats what is NotDone must not be led to repeat what the other process has committed."""
    armed, away = _lose_commit(shop.engine, commits)
    dual = shop.dual(observer=lambda step: armed.append(step) if step == "write: commit database" else None)
    dual._settle_in_background = lambda: None
    with dual:
        with pytest.raises(OutcomeUnknown) as raised:
            shop.order(dual, "a cup")
        with pytest.raises(OutcomeUnknown):
            dual.settle()
        away.clear()
        with shop.dual() as other:
            other.take_over()
        assert dual.settle() == Settled(raised.value.state, is_done=commits)
        assert dual.settle() is None
    assert shop.table() == shop.topic() == (["a cup"] if commits else [])


@pytest.mark.filterwarnings("ignore:The garbage collector is trying")  # what `refuse` refuses is not closed
def test_settle_tells_it_on_asyncio_too(broker, tmp_path):
    shop = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
    logs = []

    async def sell(dual):
        async with dual.transaction() as (db, log):
            logs.append(log)
            await log.send(TOPIC, b"a cup")
            await db.execute(text("INSERT INTO orders VALUES ('a cup')"))

    async def story():
        engine = create_async_engine(shop.url.replace("sqlite:", "sqlite+aiosqlite:"))
        armed, away = _lose_commit(engine.sync_engine, commits=True)
        async with AsyncDualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual:
            dual.observer = lambda step: armed.append(step) if step == "write: commit database" else None
            dual._settle_in_background = lambda: None
            with pytest.raises(OutcomeUnknown) as raised:
                await sell(dual)
            with pytest.raises(OutcomeUnknown):
                await dual.settle()
            with pytest.raises(Unsuitable, match="has ended"):
                await logs[0].send(TOPIC, b"of a block that was over")
            away.clear()
            with shop.dual() as other:
                await asyncio.to_thread(other.take_over)
            assert await dual.settle() == Settled(raised.value.state, is_done=True)
        await engine.dispose()

    asyncio.run(story())
    assert shop.table() == shop.topic() == ["a cup"]
    shop.close()


# Databases and clusters that are not what they were


def test_a_database_that_lost_its_last_commits_under_a_running_writer_is_found_out(shop):
    """A replica was promoted, or a server without fsync was killed: owner and row are there, the last commit is not."""
    with shop.dual() as dual:
        shop.order(dual, "a cup")
        saved = shop.row()
        shop.order(dual, "a saucer")
        with shop.engine.begin() as connection:
            connection.execute(text("DELETE FROM orders WHERE item = 'a saucer'"))
            connection.execute(
                text("UPDATE twofold_prepared SET producer_epoch = :epoch WHERE transactional_id = 'shop'"),
                {"epoch": saved.producer_epoch},
            )
        with pytest.raises(Disagreement):
            shop.order(dual, "a teapot")
    assert shop.table() == ["a cup"]


def test_a_broker_that_was_replaced_by_another_cluster_is_found_out(shop, broker, tmp_path):
    with shop.dual(observer=lambda step: broker.stop() if step == "write: complete log" else None, **QUICK) as dual:
        with pytest.raises(DecidedNotVisible):
            shop.order(dual, "a cup")
        dual.observer = lambda step: None
        port = int(shop.address.rpartition(":")[2])
        with type(broker)(port=port, settings={"transaction.two.phase.commit.enable": True}) as other:
            other.create_topic(TOPIC)

            def refused():
                try:
                    dual.settle()
                except OtherCluster:
                    return True
                except NotDone:
                    return False
                raise AssertionError("settled in a cluster that never had it")

            until(refused)


def test_passwords_are_not_in_messages_wherever_a_url_has_them(shop, server, tmp_path):
    if server is not None:
        pytest.skip("one database will do")
    engine = create_engine(f"sqlite:///file:{tmp_path / 'other.db'}?password=secret&uri=true")
    with shop.dual() as dual, Session(engine) as session, pytest.raises(Unsuitable) as raised:
        shop.block(dual, session=session)
    assert "other.db" in str(raised.value) and "secret" not in str(raised.value)
    with pytest.raises(Unsuitable) as raised:
        Recovery(engine, bootstrap_servers=shop.address).check()
    assert "other.db" in str(raised.value) and "secret" not in str(raised.value)
    engine.dispose()


def test_a_writer_whose_id_the_broker_has_forgotten_goes_on(tmp_path):
    """It was idle for longer than transactional.id.expiration.ms. Nobody has taken over."""
    expiry = {
        "transactional.id.expiration.ms": 300,
        "transaction.max.timeout.ms": 200,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
    }
    with Broker(settings={**SETTINGS, **expiry}) as broker:
        broker.create_topic(TOPIC)
        shop = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
        told: list[type[NotDone]] = []

        def order(item):
            try:
                shop.order(dual, item)
                return True
            except NotDone as error:
                told.append(type(error))
                return False

        with shop.dual() as dual:
            until(lambda: order("a cup"))  # a slow machine may be forgotten at once
            with twofold.Admin(bootstrap_servers=shop.address) as admin:
                until(lambda: not admin.describe_transactions(["shop"]).values)
            until(lambda: order("a teapot"))
            assert set(told) == {NotDone}
            with shop.dual() as other:
                other.take_over()
            with pytest.raises(TakenOver):
                shop.order(dual, "a spoon")
        assert shop.table() == shop.topic() == ["a cup", "a teapot"]
        shop.close()


# Engines and processes

ENGINES = {
    "no pool": {"poolclass": NullPool},
    "one connection for all": {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}},
    "pings": {"pool_pre_ping": True},
    "a pool of one": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 2},
    "nothing is reset": {"pool_reset_on_return": None},
    "begins with a lock": {"connect_args": {"isolation_level": "EXCLUSIVE"}},
}


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_however_an_engine_pools_its_connections(broker, tmp_path, options):
    shop = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
    engine = create_engine(shop.url, **options)
    with DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual:
        shop.order(dual, "a cup")
        with pytest.raises(IntegrityError):
            shop.block(dual, shop.of("a saucer"), shop.of("a cup"))
        shop.order(dual, "a teapot")
    engine.dispose()
    assert shop.table() == shop.topic() == ["a cup", "a teapot"]
    shop.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit since Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
def test_the_autocommit_attribute_of_sqlite3(broker, tmp_path, autocommit):
    shop = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
    engine = create_engine(shop.url, connect_args={"autocommit": autocommit})
    with DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual:
        if autocommit:
            with pytest.raises(Unsuitable, match="autocommit mode"):
                shop.order(dual, "a cup")
        else:
            shop.order(dual, "a cup")
            with pytest.raises(IntegrityError):
                shop.block(dual, shop.of("a saucer"), shop.of("a cup"))
    engine.dispose()
    assert shop.table() == shop.topic() == ([] if autocommit else ["a cup"])
    shop.close()


def test_a_reader_that_holds_up_the_commit_of_sqlite_means_not_done(broker, tmp_path):
    """Without WAL a COMMIT waits for readers, and gives up with "database is locked" after everything was written."""
    shop = Shop(broker.bootstrap_servers, sqlite_url(tmp_path), connect_args={"timeout": 0.2})
    with shop.dual() as dual:
        shop.order(dual, "a cup")
        with shop.engine.connect() as reader:
            reader.exec_driver_sql("BEGIN")
            reader.execute(text("SELECT * FROM orders")).all()
            with pytest.raises(NotDone):
                shop.order(dual, "a saucer")
            reader.rollback()
        shop.order(dual, "a teapot")
    assert shop.table() == shop.topic() == ["a cup", "a teapot"]
    shop.close()


def test_the_pool_of_a_process_is_not_for_its_children(broker, tmp_path):
    shop = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
    with DualWritePool(shop.engine, bootstrap_servers=shop.address, prefix="web", size=2) as pool:
        child = os.fork()
        if child == 0:
            try:
                pool.transaction()
            except Unsuitable:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    shop.close()


# Names


@pytest.mark.parametrize("name", ["odd table", 'with"quote', "percent%s", "UPPER", "select"])
def test_names_of_tables_are_quoted(shop, name):
    with DualWrite(shop.engine, bootstrap_servers=shop.address, transactional_id="shop", table=name) as dual:
        shop.order(dual, "a cup")
    with DualWrite(shop.engine, bootstrap_servers=shop.address, transactional_id="shop", table=name) as dual:
        shop.order(dual, "a teapot")
    assert shop.table() == shop.topic() == ["a cup", "a teapot"]


@pytest.mark.parametrize(
    "pair",
    [
        ("shop", "shop "),
        ("shop", "SHOP"),
        ("ß", "ss"),
        ("\u00e9", "e\u0301"),
        ("é" * 255, "\U0001f375" * 255),
        (" ", "  "),
    ],
)
def test_ids_that_look_alike_are_two(shop, pair):
    one, other = pair
    with shop.dual(one) as first, shop.dual(other) as second:
        shop.order(first, "a cup")
        shop.order(second, "a saucer")
        shop.order(first, "a teapot")
    assert shop.table() == shop.topic() == ["a cup", "a saucer", "a teapot"]


# Limits


def test_a_commit_in_flight_on_a_lost_connection_does_not_hold_the_caller_for_ever(shop, server):
    if server is None or not hasattr(server, "hold_commits"):
        pytest.skip("a COMMIT of SQLite is not in flight")
    raws: list[int] = []

    def about_to(step):
        if step == "write: commit database":
            server.hold_commits()
            threading.Thread(target=cut).start()

    def cut():
        until(lambda: server.commits_in_flight() > 0)
        for raw in raws:
            with contextlib.closing(socket.socket(fileno=os.dup(raw))) as wire:
                wire.shutdown(socket.SHUT_RDWR)

    def note(db, log):
        driver = db.connection.driver_connection
        raws.append(driver.fileno() if hasattr(driver, "fileno") else driver._sock.fileno())

    told = []

    def work(dual):
        try:
            shop.block(dual, shop.of("a cup"), note)
        except Exception as error:
            told.append(error)

    dual = shop.dual(lock_timeout_s=0.5)
    dual.take_over()
    dual.observer = about_to
    writer = threading.Thread(target=work, args=(dual,))
    writer.start()
    try:
        writer.join(20)
        is_held = writer.is_alive()
    finally:
        dual.observer = lambda step: None
        server.release_commits()
    writer.join(60)
    assert not is_held
    assert isinstance(told[0], OutcomeUnknown)
    until(lambda: dual.is_settled)
    dual.close()
    assert shop.table() == shop.topic() == ["a cup"]
