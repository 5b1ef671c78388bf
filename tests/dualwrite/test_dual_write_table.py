"""The table of dual writes: creation, version, upgrade, names."""

import threading

import pytest
from sqlalchemy import create_engine, inspect, select, text

from kits.dualwrite.shop import TOPIC, Shop, broker_with_two_phase, sqlite_url
from twofold.dualwrite import Unsuitable
from twofold.dualwrite.database import Database
from twofold.dualwrite.leases import Leases
from twofold.dualwrite.operations import Row, RowFound
from twofold.dualwrite.table import VERSION, DatabaseNow, create_or_check, make_table, read_version

COLUMNS = [
    *("transactional_id", "owner", "cluster_id", "producer_id", "producer_epoch"),
    *("lease_until_ms", "updated_at_ms", "schema_version"),
]


@pytest.fixture
def engine(tmp_path):
    made = create_engine(sqlite_url(tmp_path))
    yield made
    made.dispose()


def test_the_table_is_created_with_its_version_and_stays_as_it_is(engine):
    table = make_table("twofold_prepared")
    for _ in range(2):
        with engine.connect() as connection:
            create_or_check(connection, table)
    with engine.connect() as connection:
        assert [column["name"] for column in inspect(connection).get_columns("twofold_prepared")] == COLUMNS
        assert read_version(connection, table) == VERSION == 1
        assert connection.execute(select(table.c.transactional_id)).scalars().all() == [""]


def test_processes_that_create_it_at_once_agree(engine):
    table, errors = make_table("twofold_prepared"), []
    together = threading.Barrier(4)

    def create():
        together.wait()
        try:
            with engine.connect() as connection:
                create_or_check(connection, table)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with engine.connect() as connection:
        assert connection.execute(select(table.c.transactional_id)).scalars().all() == [""]


def test_a_table_of_a_later_version_is_refused_and_not_touched(engine):
    table = make_table("twofold_prepared")
    with engine.connect() as connection:
        create_or_check(connection, table)
        connection.execute(table.update().values(schema_version=7))
        connection.commit()
        with pytest.raises(Unsuitable, match="has version 7, and this Twofold knows 1"):
            create_or_check(connection, table)
        connection.rollback()
        assert read_version(connection, table) == 7


def test_a_table_of_an_earlier_version_is_upgraded_step_by_step_once(engine):
    table = make_table("twofold_prepared")
    ran = []

    def add(number):
        def step(connection, table):
            ran.append(number)
            connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN added_{number} INTEGER"))

        return step

    steps = {2: add(2), 3: add(3)}
    with engine.connect() as connection:
        create_or_check(connection, table)
        for _ in range(2):
            create_or_check(connection, table, steps)
        assert ran == [2, 3] and read_version(connection, table) == 3
        names = [column["name"] for column in inspect(connection).get_columns("twofold_prepared")]
        assert names == [*COLUMNS, "added_2", "added_3"]


def test_a_row_is_created_without_an_owner_and_found_again(engine):
    database = Database(engine, "twofold_prepared", "shop", 1_000, 1.0)
    for _ in range(2):
        with engine.connect() as connection:
            assert database.read(connection) == RowFound(Row())


def test_times_are_of_the_databases_clock_in_milliseconds(engine):
    with engine.connect() as connection:
        first = connection.execute(select(DatabaseNow())).scalar_one()
        seconds = connection.execute(text("SELECT CAST(strftime('%s', 'now') AS INTEGER)")).scalar_one()
    assert seconds * 1000 + 1000 - first + 1000 >= 0 and abs(first - seconds * 1000) < 5_000


def test_the_table_may_have_another_name(tmp_path):
    with broker_with_two_phase() as broker:
        broker.create_topic(TOPIC)
        shop = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
        with shop.dual(table="main.decisions") as dual:
            shop.order(dual, "a teapot")
        assert shop.row(table="decisions").producer_epoch >= 0
        assert not inspect(shop.engine).has_table("twofold_prepared")
        shop.close()


@pytest.mark.parametrize("wrong", ["", "x" * 256])
def test_an_id_that_does_not_fit_is_refused(engine, wrong):
    with pytest.raises(Unsuitable, match="1 to 255 characters"):
        Database(engine, "twofold_prepared", wrong, 1_000, 1.0)


def test_a_prefix_that_does_not_fit_is_refused():
    with pytest.raises(Unsuitable, match="prefix="):
        Leases("twofold_prepared", "x" * 255, 2, 1_000)


def test_another_kind_of_database_is_refused():
    class Other:
        class dialect:  # noqa: N801 - as SQLAlchemy has it
            name = "oracle"

    with pytest.raises(Unsuitable, match="oracle is not supported: use SQLite, PostgreSQL"):
        create_or_check(Other(), make_table("twofold_prepared"))  # type: ignore[arg-type]
