"""AsyncDualWrite and its pool on SQLite: the same promises on asyncio, and a cancellation at every point."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from kits.dualwrite.shop import QUICK, TOPIC, Shop, broker_with_two_phase, open_state, sqlite_url
from twofold.dualwrite import (
    AsyncDualWrite,
    AsyncDualWritePool,
    DecidedNotVisible,
    Done,
    NoFreeSlot,
    NotDone,
    Settled,
    TakenOver,
    Unsuitable,
)
from twofold.dualwrite.protocol import At

PATIENCE_S = 60

pytestmark = pytest.mark.slow


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


def engine_of(shop, **options):
    return create_async_engine(shop.url.replace("sqlite:", "sqlite+aiosqlite:"), **options)


def dual_of(shop, engine, transactional_id="shop", **options):
    return AsyncDualWrite(engine, bootstrap_servers=shop.address, transactional_id=transactional_id, **options)


async def sell(db, log, item):
    await log.send(TOPIC, item.encode())
    await db.execute(text("INSERT INTO orders VALUES (:item)"), {"item": item})


async def order(dual, item):
    async with dual.transaction() as (db, log):
        await sell(db, log, item)


async def fail(dual, item):
    async with dual.transaction() as (db, log):
        await sell(db, log, item)
        raise ZeroDivisionError


def run(shop, story, **engine_options):
    """The story with an engine that is gone afterwards."""

    async def main():
        engine = engine_of(shop, **engine_options)
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                await story(engine)
        finally:
            await engine.dispose()

    asyncio.run(main())


def test_rows_and_records_are_both_there_or_neither(shop):
    async def story(engine):
        async with dual_of(shop, engine) as dual:
            block = dual.transaction()
            async with block as (db, log):
                await sell(db, log, "a teapot")
            assert isinstance(block.result, Done) and str(block.result.state) == shop.state()
            with pytest.raises(ZeroDivisionError):
                await fail(dual, "a cup")
            with pytest.raises(IntegrityError):
                await order(dual, "a teapot")
            await order(dual, "a kettle")

    run(shop, story)
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    item: Mapped[str] = mapped_column(primary_key=True)


def test_an_async_session_is_flushed_and_committed_by_the_block(shop):
    async def story(engine):
        sessions = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        async with dual_of(shop, engine) as dual, AsyncSession(engine) as session:
            async with dual.transaction(session=session) as (db, log):
                assert db is session
                session.add(Order(item="a teapot"))
                await log.send(TOPIC, b"a teapot")
            await session.execute(text("SELECT 1"))
            with pytest.raises(Unsuitable, match="has begun a transaction already"):
                async with dual.transaction(session=session):
                    pass
            await session.rollback()
            async with dual.transaction(session=sessions) as (_, log):
                sessions.add(Order(item="a kettle"))
                await log.send(TOPIC, b"a kettle")
            await sessions.remove()

    run(shop, story)
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


def test_commit_inside_a_block_and_autocommit_are_refused(shop):
    async def commit(dual):
        async with dual.transaction() as (db, log):
            await sell(db, log, "a teapot")
            await db.commit()

    async def story(engine):
        async with dual_of(shop, engine) as dual:
            with pytest.raises(Unsuitable, match="the end of the block commits"):
                await commit(dual)
            await order(dual, "a kettle")
        async with dual_of(shop, engine.execution_options(isolation_level="AUTOCOMMIT")) as dual:
            with pytest.raises(Unsuitable, match="autocommit mode"):
                await order(dual, "a cup")

    run(shop, story)
    assert shop.table() == shop.topic() == ["a kettle"]


def test_tasks_take_turns_and_a_block_inside_a_block_is_refused(shop):
    async def story(engine):
        async with dual_of(shop, engine) as dual:
            await asyncio.gather(*(order(dual, f"item {number}") for number in range(5)))
            async with dual.transaction():
                with pytest.raises(Unsuitable, match="one at a time"):
                    await order(dual, "inside")

    run(shop, story)
    assert shop.table() == shop.topic() == [f"item {number}" for number in range(5)]


def test_the_later_writer_fences_the_earlier_one(shop):
    async def story(engine):
        async with dual_of(shop, engine) as first, dual_of(shop, engine) as second:
            await order(first, "a teapot")
            await order(second, "a kettle")
            with pytest.raises(TakenOver):
                await order(first, "a cup")

    run(shop, story)
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


WRITE_STEPS = [at for at in At if at.value.startswith("write: ") and at is not At.ABORT]
TAKE_OVER_STEPS = [At.READ, At.FENCE, At.OWN_BEGIN, At.OWN, At.OWN_COMMIT]


@pytest.mark.parametrize("at", [*TAKE_OVER_STEPS, *WRITE_STEPS], ids=lambda at: at.value)
def test_a_cancellation_at_any_step_leaves_both_in_step_and_the_writer_usable(shop, at):
    cancelled: list[str] = []

    async def story(engine):
        def cancel(step):
            if step == at.value and not cancelled:
                cancelled.append(step)
                task.cancel()

        async with dual_of(shop, engine, observer=cancel) as dual:
            if at not in TAKE_OVER_STEPS:
                await dual.take_over()
            task = asyncio.create_task(order(dual, "cancelled"))
            with pytest.raises(asyncio.CancelledError):
                await task
            await order(dual, "the next")
            assert dual.is_settled

    run(shop, story)
    assert cancelled
    assert shop.table() == shop.topic()
    is_ending = at in (At.PREPARE, At.STORE, At.COMMIT, At.COMPLETE)
    assert shop.table() == (["cancelled", "the next"] if is_ending else ["the next"])


def test_a_timeout_in_the_callers_code_rolls_both_back(shop):
    async def slow(dual):
        async with asyncio.timeout(0.05), dual.transaction() as (db, log):
            await sell(db, log, "too slow")
            await asyncio.Event().wait()

    async def story(engine):
        async with dual_of(shop, engine) as dual:
            await dual.take_over()
            with pytest.raises(TimeoutError):
                await slow(dual)
            await order(dual, "a teapot")

    run(shop, story)
    assert shop.table() == shop.topic() == ["a teapot"]


def test_a_broker_that_is_away_after_commit_means_decided_and_the_background_completes(tmp_path):
    with broker_with_two_phase() as broker:
        broker.create_topic(TOPIC)
        shop = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))

        async def story(engine):
            def stop(step):
                if step == At.COMPLETE.value:
                    broker.stop()

            async with dual_of(shop, engine, observer=stop, **QUICK) as dual:
                with pytest.raises(DecidedNotVisible) as raised:
                    await order(dual, "a teapot")
                await asyncio.to_thread(broker.start)
                async with asyncio.timeout(PATIENCE_S):
                    while not dual.is_settled:
                        await asyncio.sleep(0.05)
                assert await dual.settle() == Settled(raised.value.state, is_done=True)

        run(shop, story)
        assert shop.table() == shop.topic() == ["a teapot"]
        shop.close()


# The pool


def pool_of(shop, engine, prefix, **options):
    return AsyncDualWritePool(engine, bootstrap_servers=shop.address, prefix=prefix, **{"lease_s": 3_600, **options})


def test_requests_borrow_slots_wait_for_them_and_give_them_back(shop):
    async def story(engine):
        async with pool_of(shop, engine, "web", size=2) as pool:
            await asyncio.gather(*(order(pool, f"item {number}") for number in range(6)))
            assert 1 <= len(pool.held) <= 2
            with pytest.raises(ZeroDivisionError):
                await fail(pool, "a cup")
            await order(pool, "the last")
        assert pool.held == []

    run(shop, story)
    assert shop.table() == shop.topic() == [*(f"item {number}" for number in range(6)), "the last"]
    assert {shop.row("web-0").lease_until_ms, shop.row("web-1").lease_until_ms} == {0}


@pytest.mark.parametrize("at", [*TAKE_OVER_STEPS, *WRITE_STEPS], ids=lambda at: at.value)
def test_a_request_that_is_cancelled_at_any_step_gives_its_slot_back(shop, at):
    async def story(engine):
        cancelled: list[str] = []

        def cancel(step):
            if step == at.value and not cancelled:
                cancelled.append(step)
                task.cancel()

        async with pool_of(shop, engine, "cancelled", size=1, observer=cancel) as pool:
            task = asyncio.create_task(order(pool, "cancelled"))
            with pytest.raises(asyncio.CancelledError):
                await task
            if at in TAKE_OVER_STEPS:
                await asyncio.wait_for(_until(lambda: pool.held == []), PATIENCE_S)
                _expire(shop, "cancelled-0")
            await order(pool, "the next")
            assert pool.held == ["cancelled-0"]

    run(shop, story)
    assert shop.table() == shop.topic() and "the next" in shop.table()


def test_a_request_that_is_cancelled_while_it_waits_for_a_slot_has_none(shop):
    async def story(engine):
        async with pool_of(shop, engine, "waiting", size=1, borrow_timeout_s=1.0) as pool:
            slot = await pool._borrow()
            waiting = asyncio.create_task(order(pool, "never"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(NoFreeSlot):
                await order(pool, "never")
            pool._give_back(slot)
            await order(pool, "now")

    run(shop, story)
    assert shop.table() == shop.topic() == ["now"]


def test_slots_of_dead_owners_are_recovered_and_a_paused_owner_loses_its_slot(shop):
    class Crash(BaseException):
        """The program stops where it is."""

    def stop(step):
        if step == At.COMPLETE.value:
            raise Crash

    async def story(engine):
        dead = pool_of(shop, engine, "left", size=1, observer=stop)
        with pytest.raises(Crash):
            await order(dead, "left by the dead")
        (slot,) = dead._idle
        slot.dual._footing.closed = True  # it settles nothing any more
        assert await asyncio.to_thread(open_state, shop.address, "left-0")
        _expire(shop, "left-0")
        async with pool_of(shop, engine, "left", size=1) as pool:
            await pool.keep_once()
            assert pool.held == [] and await asyncio.to_thread(open_state, shop.address, "left-0") == ""
            await order(pool, "of the living")
            _expire(shop, "left-0")
            async with pool_of(shop, engine, "left", size=1) as other:
                await order(other, "meanwhile")
            await order(pool, "after the pause")
        await slot.dual.close()
        await dead.close()

    run(shop, story)
    assert shop.table() == shop.topic() == ["after the pause", "left by the dead", "meanwhile", "of the living"]


def test_the_background_renews_leases_and_gives_idle_slots_back(shop):
    async def story(engine):
        async with pool_of(shop, engine, "idle", size=1) as pool:
            await order(pool, "once")
            _expire(shop, "idle-0")
            await pool.keep_once()
            assert shop.row("idle-0").lease_until_ms > 1
            for _ in range(3):
                await pool.keep_once()
            assert pool.held == [] and shop.row("idle-0").lease_until_ms == 0

    run(shop, story)


def test_a_database_that_is_locked_means_not_done(shop):
    async def story(engine):
        async with dual_of(shop, engine) as dual:
            await order(dual, "a teapot")
            with shop.engine.connect() as other:
                other.exec_driver_sql("BEGIN IMMEDIATE")
                with pytest.raises(NotDone):
                    await order(dual, "a kettle")
                other.rollback()
            await order(dual, "a kettle")

    run(shop, story, connect_args={"timeout": 0.1})
    assert shop.table() == shop.topic() == ["a kettle", "a teapot"]


def _expire(shop, name):
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE twofold_prepared SET lease_until_ms = 1 WHERE transactional_id = '{name}'")


async def _until(condition):
    while not condition():
        await asyncio.sleep(0.01)
