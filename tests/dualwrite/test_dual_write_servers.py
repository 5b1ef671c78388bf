"""DualWrite on PostgreSQL and MariaDB: isolation levels, what their servers do by themselves, leases, asyncio."""

import asyncio
import itertools
import threading
from contextlib import suppress

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from kits.databases.mariadb import MariadbServer
from kits.databases.postgresql import PostgresServer
from kits.dualwrite.shop import TOPIC, Shop, broker_with_two_phase, open_state, until
from twofold.dualwrite import (
    AsyncDualWrite,
    AsyncDualWritePool,
    DecidedNotVisible,
    DualWrite,
    DualWritePool,
    NoFreeSlot,
    NotDone,
    TakenOver,
    Unsuitable,
)
from twofold.dualwrite.recovery import Action, Recovery

pytestmark = pytest.mark.interop
LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
numbers = itertools.count()


@pytest.fixture(scope="module", params=[PostgresServer, MariadbServer], ids=["postgresql", "mariadb"])
def server(request):
    with request.param() as running:
        yield running


@pytest.fixture
def broker():
    with broker_with_two_phase() as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def shop(server, broker):
    made = Shop(broker.bootstrap_servers, server.create(f"shop{next(numbers)}"))
    yield made
    made.close()


@pytest.mark.parametrize("level", LEVELS)
def test_at_every_isolation_level_the_row_decides_and_the_old_writer_is_refused(shop, level):
    engine = create_engine(shop.url, isolation_level=level)
    try:
        with (
            DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as first,
            DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as second,
        ):
            shop.order(first, "a teapot")
            with pytest.raises(IntegrityError):
                shop.order(first, "a teapot")
            shop.order(second, "a kettle")
            with pytest.raises(TakenOver):
                shop.order(first, "a cup")
            shop.order(second, "a saucer")
    finally:
        engine.dispose()
    assert shop.table() == shop.topic() == ["a kettle", "a saucer", "a teapot"]


@pytest.mark.parametrize("level", LEVELS)
def test_at_every_isolation_level_a_take_over_waits_for_the_writer_and_does_as_it_did(shop, level):
    """The writer has read something before another process takes over, so that it may have an old snapshot."""
    engine = create_engine(shop.url, isolation_level=level)
    fenced, settled = threading.Event(), []
    try:
        second = DualWrite(
            engine,
            bootstrap_servers=shop.address,
            transactional_id="shop",
            observer=lambda step: fenced.set() if step == "take over: own row" else None,
        )
        taking = threading.Thread(target=lambda: settled.append(second.take_over()))
        with DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as first:
            shop.order(first, "a teapot")

            def sell_slowly():
                with first.transaction() as (db, log):
                    db.execute(text("SELECT * FROM orders")).all()
                    shop.sell(db, log, "a kettle")
                    until(lambda: open_state(shop.address) != "")
                    taking.start()
                    assert fenced.wait(60)

            with suppress(DecidedNotVisible):  # unless the other has completed it already
                sell_slowly()
            taking.join(60)
        second.close()
    finally:
        engine.dispose()
    assert [each is not None and each.is_done for each in settled] == [True]
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


def test_a_serialization_failure_means_not_done_and_may_be_repeated(shop, server):
    if server.name != "postgresql":
        pytest.skip("MariaDB locks what it reads at this level: there is no failure at the end")
    engine = create_engine(shop.url, isolation_level="SERIALIZABLE")
    with shop.engine.begin() as connection:
        connection.execute(text("CREATE TABLE stock (item VARCHAR(20) PRIMARY KEY, pieces INTEGER)"))
        connection.execute(text("INSERT INTO stock VALUES ('a', 1), ('b', 1)"))

    def take(db, log):
        """Reads both and writes one, as the other transaction does: only one of them may commit."""
        db.execute(text("SELECT sum(pieces) FROM stock")).scalar()
        with engine.connect() as other:
            other.execute(text("SELECT sum(pieces) FROM stock")).scalar()
            other.execute(text("UPDATE stock SET pieces = 0 WHERE item = 'b'"))
            other.commit()
        db.execute(text("UPDATE stock SET pieces = 0 WHERE item = 'a'"))

    with DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual:
        with pytest.raises(NotDone):
            shop.block(dual, shop.of("a teapot"), take)
        assert dual.is_settled
        shop.order(dual, "a teapot")
    engine.dispose()
    assert shop.table() == shop.topic() == ["a teapot"]


def test_a_deadlock_means_not_done_and_may_be_repeated(shop):
    with shop.engine.begin() as connection:
        connection.execute(text("CREATE TABLE stock (item VARCHAR(20) PRIMARY KEY, pieces INTEGER)"))
        connection.execute(text("INSERT INTO stock VALUES ('a', 1), ('b', 1)"))
    update = text("UPDATE stock SET pieces = pieces + 1 WHERE item = :item")
    ours, theirs = threading.Event(), threading.Event()

    def against():
        """Waits for us, and its own patience is longer."""
        with shop.engine.connect() as other:
            other.execute(update, {"item": "b"})
            theirs.set()
            assert ours.wait(60)
            try:
                other.execute(update, {"item": "a"})
                other.commit()
            except OperationalError:
                other.rollback()

    def cross(db, log):
        db.execute(update, {"item": "a"})
        assert theirs.wait(60)
        ours.set()
        db.execute(update, {"item": "b"})

    other = threading.Thread(target=against)
    other.start()
    with shop.dual() as dual:
        try:
            shop.block(dual, shop.of("a teapot"), cross)
        except NotDone:  # the server has chosen us
            shop.order(dual, "a teapot")
    other.join()
    assert shop.table() == shop.topic() == ["a teapot"]


def test_a_deferred_constraint_that_fails_at_commit_means_not_done(shop, server):
    if server.name != "postgresql":
        pytest.skip("MariaDB has no deferred constraints")
    with shop.engine.begin() as connection:
        connection.execute(text("CREATE TABLE parts (number INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
    twice = text("INSERT INTO parts VALUES (1), (1)")
    with shop.dual() as dual:
        with pytest.raises(NotDone) as raised:
            shop.block(dual, shop.of("a teapot"), lambda db, log: db.execute(twice))
        assert isinstance(raised.value.__cause__, IntegrityError) and dual.is_settled
        with pytest.raises(NotDone):
            shop.block(dual, lambda db, log: db.execute(twice))  # without a record
        shop.order(dual, "a kettle")
    assert shop.table() == shop.topic() == ["a kettle"]


def test_a_statement_that_commits_by_itself_is_found_out_before_prepare(shop, server):
    steps: list[str] = []
    create = text("CREATE TABLE more (number INTEGER)")
    with shop.dual(observer=steps.append) as dual:
        if server.name == "postgresql":
            shop.block(dual, shop.of("a teapot"), lambda db, log: db.execute(create))
            assert shop.table() == shop.topic() == ["a teapot"]
            return
        with pytest.raises(Unsuitable, match="has ended the database's transaction"):
            shop.block(dual, shop.of("a teapot"), lambda db, log: db.execute(create))
        assert "write: prepare" not in steps
        shop.order(dual, "a kettle")
    assert shop.topic() == ["a kettle"]


def test_an_engine_in_autocommit_mode_is_refused(shop):
    engine = create_engine(shop.url, isolation_level="AUTOCOMMIT")
    with (
        DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual,
        pytest.raises(Unsuitable, match="autocommit mode"),
    ):
        shop.order(dual, "a kettle")
    engine.dispose()
    assert shop.table() == shop.topic() == []


def test_a_connection_that_its_driver_has_put_into_autocommit_mode_is_refused(shop):
    engine = create_engine(shop.url, connect_args={"autocommit": True})
    with DualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual:
        dual.take_over()
        engine.dispose()  # the next connection is as the driver makes it
        with pytest.raises(Unsuitable, match="autocommit mode"):
            shop.order(dual, "a kettle")
    engine.dispose()
    assert shop.table() == shop.topic() == []


def test_ids_that_a_collation_may_confuse_are_told_apart(shop):
    with shop.dual("shop") as lower, shop.dual("SHOP") as upper:
        shop.order(lower, "a teapot")
        shop.order(upper, "a kettle")
        shop.order(lower, "a cup")
    assert shop.table() == shop.topic() == ["a cup", "a kettle", "a teapot"]


def test_pools_share_slots_while_transactions_are_open(shop):
    def pool():
        return DualWritePool(shop.engine, bootstrap_servers=shop.address, prefix="web", size=4, lease_s=3_600)

    with pool() as one, pool() as other, one.transaction() as (db, log), other.transaction() as (more, records):
        shop.sell(db, log, "of one")
        shop.sell(more, records, "of the other")
        with one.transaction() as (third, news):
            shop.sell(third, news, "of one, meanwhile")
        assert set(one.held).isdisjoint(other.held) and len(one.held) == 2
    assert shop.table() == shop.topic() == ["of one", "of one, meanwhile", "of the other"]


def test_a_slot_whose_owner_is_in_a_long_transaction_is_not_free(shop):
    def pool():
        return DualWritePool(
            shop.engine, bootstrap_servers=shop.address, prefix="slow", size=1, lease_s=0.001, borrow_timeout_s=1.0
        )

    with pool() as one, pool() as other:
        with one.transaction() as (db, log):
            shop.sell(db, log, "slowly")
        with one.transaction() as (db, log):
            shop.sell(db, log, "more slowly")
            with pytest.raises(NoFreeSlot), other.transaction():
                pass
    assert shop.table() == shop.topic() == ["more slowly", "slowly"]


def test_a_watcher_sees_that_a_writer_is_at_work(shop):
    recovery = Recovery(shop.engine, bootstrap_servers=shop.address)
    with shop.dual(lease_s=0) as dual:
        with dual.transaction() as (db, log):
            shop.sell(db, log, "slowly")
            until(lambda: open_state(shop.address) != "")
            (finding,) = recovery.look(heed_leases=True).findings
            assert finding.action is Action.ABORT and recovery.is_at_work(finding)
        assert recovery.look(heed_leases=True).findings == ()
        shop.order(dual, "again")
    assert shop.table() == shop.topic() == ["again", "slowly"]


ASYNC_DRIVERS = {"postgresql": ["postgresql+psycopg", "postgresql+asyncpg"], "mariadb": ["mariadb+aiomysql"]}


@pytest.mark.parametrize("number", [0, 1])
def test_the_asyncio_front_and_its_pool_on_each_driver(shop, server, number):
    drivers = ASYNC_DRIVERS[server.name]
    if number >= len(drivers):
        pytest.skip("this database has one driver for asyncio here")
    if server.name == "mariadb":
        pytest.importorskip("aiomysql")
    url = drivers[number] + shop.url[shop.url.index(":") :]

    async def sell(dual, item):
        async with dual.transaction() as (db, log):
            await log.send(TOPIC, item.encode())
            await db.execute(text("INSERT INTO orders VALUES (:item)"), {"item": item})

    async def cancel(dual, step):
        task = asyncio.create_task(sell(dual, f"cancelled at {step}"))
        dual.observer = lambda reached: task.cancel() if reached == step else None
        with pytest.raises(asyncio.CancelledError):
            await task
        dual.observer = lambda reached: None
        await dual.take_over()  # waits until the program has come to its end

    async def story():
        engine = create_async_engine(url)
        async with AsyncDualWrite(engine, bootstrap_servers=shop.address, transactional_id="shop") as dual:
            await sell(dual, "a teapot")
            with pytest.raises(IntegrityError):
                await sell(dual, "a teapot")
            for step in ("write: lock row", "write: caller's rows", "write: commit database", "write: complete log"):
                await cancel(dual, step)
            await sell(dual, "a kettle")
        async with AsyncDualWritePool(engine, bootstrap_servers=shop.address, prefix="web", size=3) as pool:
            await asyncio.gather(*(sell(pool, f"item {number}") for number in range(9)))
        await engine.dispose()

    asyncio.run(story())
    assert shop.table() == shop.topic()
    assert set(shop.table()) == {
        *("a kettle", "a teapot", "cancelled at write: commit database", "cancelled at write: complete log"),
        *(f"item {number}" for number in range(9)),
    }
