"""DualWritePool on SQLite: slots leased by the database's clock, recovered when they are borrowed."""

import threading

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError

from kits.dualwrite.shop import QUICK, TOPIC, Shop, broker_with_two_phase, open_state, sqlite_url, until
from twofold.dualwrite import DecidedNotVisible, DualWritePool, NoFreeSlot, NotDone, Settled, TakenOver, Unsuitable

pytestmark = pytest.mark.slow


class Crash(BaseException):
    """The program of a writer stops where it is."""


@pytest.fixture(scope="module")
def broker():
    with broker_with_two_phase() as running:
        yield running


@pytest.fixture
def shop(broker, tmp_path):
    made = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
    yield made
    made.close()


def pool_of(shop, prefix, **options):
    """Rounds are for the tests to call, unless `lease_s` says otherwise."""
    return DualWritePool(shop.engine, bootstrap_servers=shop.address, prefix=prefix, **{"lease_s": 3_600, **options})


def die(pool):
    """Its process says nothing more, to the broker or to the database."""
    held = pool.held
    for slot in pool._idle:
        slot.dual.close()
    pool._idle.clear()
    pool.close()
    return held


def expire(shop, name):
    """The database's clock passes the lease."""
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE twofold_prepared SET lease_until_ms = 1 WHERE transactional_id = '{name}'")


def test_transactions_borrow_slots_and_give_them_back(shop):
    with pool_of(shop, "web", size=2) as pool:
        assert pool.held == []
        for number in range(3):
            with pool.transaction() as (db, log):
                shop.sell(db, log, f"item {number}")
        assert len(pool.held) == 1  # one after the other needs one
        name = pool.held[0]
        assert shop.row(name).lease_until_ms > shop.row(name).updated_at_ms
    assert shop.row(name).lease_until_ms == 0
    assert shop.table() == [f"item {number}" for number in range(3)]
    assert set(shop.table()) <= set(shop.topic())


def test_threads_have_slots_of_their_own_and_wait_for_a_free_one(shop):
    inside, most, lock = [], [], threading.Lock()

    def work(pool, number):
        with pool.transaction() as (_, log):
            with lock:
                inside.append(number)
                most.append(len(inside))
            log.send(TOPIC, f"thread {number}".encode()).result()
            with lock:
                inside.remove(number)

    with pool_of(shop, "threads", size=3) as pool:
        threads = [threading.Thread(target=work, args=(pool, number)) for number in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= len(pool.held) <= 3
    assert max(most) <= 3
    assert {f"thread {number}" for number in range(9)} <= set(shop.topic())


def test_when_all_slots_are_in_use_the_caller_is_told_and_nothing_was_done(shop):
    with pool_of(shop, "full", size=1, borrow_timeout_s=0.5) as pool:
        slot = pool._borrow()
        with pytest.raises(NoFreeSlot, match="Raise size"), pool.transaction():
            pass
        pool._give_back(slot)
        with pool.transaction() as (db, log):
            shop.sell(db, log, "the first")
        with pool.transaction() as (db, log):
            shop.sell(db, log, "the second")
    assert shop.table() == ["the first", "the second"]


def test_two_pools_never_have_one_slot_and_share_what_is_given_back(shop):
    with pool_of(shop, "shared", size=2) as one, pool_of(shop, "shared", size=2, borrow_timeout_s=0.5) as other:
        with one.transaction() as (db, log):
            shop.sell(db, log, "of one")
        with other.transaction() as (db, log):
            shop.sell(db, log, "of the other")
        assert set(one.held).isdisjoint(other.held)
        assert len(one.held) == len(other.held) == 1
        first = one.held
        one.close()
        slots = [other._borrow(), other._borrow()]
        assert sorted(slot.dual.transactional_id for slot in slots) == other.held == ["shared-0", "shared-1"]
        assert first[0] in other.held
        for slot in slots:
            other._give_back(slot)


def test_the_exceptions_of_a_block_give_the_slot_back(shop):
    with pool_of(shop, "errors", size=1, borrow_timeout_s=0.5) as pool:
        with pool.transaction() as (db, log):
            shop.sell(db, log, "a teapot")
        for _ in range(3):
            with pytest.raises(IntegrityError), pool.transaction() as (db, log):
                shop.sell(db, log, "a teapot")
        with pytest.raises(KeyboardInterrupt), pool.transaction():
            raise KeyboardInterrupt
        with pool.transaction() as (db, log):
            shop.sell(db, log, "a kettle")
    assert shop.table() == ["a kettle", "a teapot"]


def test_a_slot_whose_owner_died_is_recovered_when_it_is_borrowed(shop):
    def stop(step):
        if step == "write: complete log":
            raise Crash

    dead = pool_of(shop, "recovered", size=1, observer=stop)
    with pytest.raises(Crash), dead.transaction() as (db, log):
        shop.sell(db, log, "left by the dead")
    (name,) = die(dead)
    assert open_state(shop.address, name)
    with pool_of(shop, "recovered", size=1, borrow_timeout_s=0.5) as pool:
        with pytest.raises(NoFreeSlot), pool.transaction():
            pass
        expire(shop, name)
        with pool.transaction() as (db, log):
            shop.sell(db, log, "of the living")
        assert pool.held == [name]
    assert {"left by the dead", "of the living"} <= set(shop.topic())


def test_slots_of_dead_owners_are_recovered_in_the_background(shop):
    def stop(step):
        if step == "write: complete log":
            raise Crash

    dead = pool_of(shop, "swept", size=2, observer=stop)
    with pytest.raises(Crash), dead.transaction() as (db, log):
        shop.sell(db, log, "swept up")
    (name,) = die(dead)
    expire(shop, name)
    with pool_of(shop, "swept", size=2) as pool:
        pool.keep_once()
        assert pool.held == [] and shop.row(name).lease_until_ms == 0
    assert "swept up" in shop.topic()


def test_an_owner_that_was_paused_learns_when_it_writes_that_it_lost_the_slot(shop):
    with pool_of(shop, "paused", size=1) as paused, pool_of(shop, "paused", size=1) as other:
        with paused.transaction() as (db, log):
            shop.sell(db, log, "before the pause")
        expire(shop, "paused-0")
        with other.transaction() as (db, log):
            shop.sell(db, log, "meanwhile")
        other.close()
        # It wakes up: its slot is lost, and it leases one again before the caller's code runs.
        with paused.transaction() as (db, log):
            shop.sell(db, log, "after the pause")
        assert paused.held == ["paused-0"]
    assert shop.table() == ["after the pause", "before the pause", "meanwhile"]


def test_an_owner_that_is_fenced_inside_a_block_is_told_that_it_is_decided_and_the_next_one_completes(shop):
    engine = create_engine(shop.url, connect_args={"timeout": 0.2})
    with pool_of(shop, "within", size=1) as losing:
        losing_block = losing.transaction()

        def lose():
            with losing_block as (_, log):
                log.send(TOPIC, b"decided").result()
                # Another process fences the log, and waits for the row.
                taker = Shop.__new__(Shop)
                taker.address, taker.engine, taker.url = shop.address, engine, shop.url
                with taker.dual("within-0") as dual, pytest.raises(NotDone, match="could not be taken over"):
                    dual.take_over()

        with pytest.raises(DecidedNotVisible):
            lose()
        assert losing.held == []
        expire(shop, "within-0")
        with losing.transaction() as (_, log):
            log.send(TOPIC, b"the next")
    engine.dispose()
    assert {"decided", "the next"} <= set(shop.topic())


def test_an_owner_that_is_fenced_before_its_records_leave_is_told_and_leaves_nothing(shop):
    engine = create_engine(shop.url, connect_args={"timeout": 0.2})
    with pool_of(shop, "without", size=1) as losing:
        taker = Shop.__new__(Shop)
        taker.address, taker.engine, taker.url = shop.address, engine, shop.url

        def lose():
            with losing.transaction() as (_, log), taker.dual("without-0") as dual:
                with pytest.raises(NotDone, match="could not be taken over"):
                    dual.take_over()
                log.send(TOPIC, b"lost")

        with pytest.raises(TakenOver):
            lose()
    engine.dispose()
    assert "lost" not in shop.topic()


def test_the_background_renews_leases_and_gives_idle_slots_back(shop):
    with pool_of(shop, "idle", size=1) as pool:
        with pool.transaction() as (_, log):
            log.send(TOPIC, b"once")
        before = shop.row("idle-0").lease_until_ms
        expire(shop, "idle-0")
        pool.keep_once()
        assert shop.row("idle-0").lease_until_ms >= before
        for _ in range(3):
            pool.keep_once()
        assert pool.held == [] and shop.row("idle-0").lease_until_ms == 0


def test_the_keeper_runs_by_itself(shop):
    with pool_of(shop, "keeper", size=1, lease_s=0.6) as pool:
        with pool.transaction() as (_, log):
            log.send(TOPIC, b"once")
        until(lambda: pool.held == [])
        assert shop.row("keeper-0").lease_until_ms == 0


def test_a_pool_tells_what_became_of_a_transaction_in_doubt(tmp_path):
    with broker_with_two_phase() as broker:
        broker.create_topic(TOPIC)
        shop = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
        stops = ["write: complete log"]

        def stop(step):
            if step in stops:
                stops.clear()
                broker.stop()

        with pool_of(shop, "doubt", size=1, observer=stop, **QUICK) as pool:
            with pytest.raises(DecidedNotVisible) as raised, pool.transaction() as (db, log):
                shop.sell(db, log, "a teapot")
            broker.start()
            until(lambda: _is_told(pool, raised.value))
            assert pool.settle(raised.value) is None
            with pool.transaction() as (db, log):
                shop.sell(db, log, "a kettle")
        assert shop.table() == shop.topic() == ["a kettle", "a teapot"]
        shop.close()


def _is_told(pool, error):
    try:
        return pool.settle(error) == Settled(error.state, is_done=True)
    except DecidedNotVisible:
        return False


def test_a_closed_pool_and_a_pool_without_slots_are_refused(shop):
    with pytest.raises(Unsuitable, match="at least one slot"):
        pool_of(shop, "none", size=0)
    pool = pool_of(shop, "closed", size=1)
    pool.close()
    with pytest.raises(Unsuitable, match="is closed"), pool.transaction():
        pass
