"""The table that says which process writes and what is decided: one row per transactional id.

    transactional_id   the row's key; the row with the empty id has the version of the table
    owner              the token of the process that may write under this id; empty: none has yet
    cluster_id         the cluster that the state belongs to
    producer_id, producer_epoch   the last transaction of the log that this database has committed; -1: none
    lease_until_ms     until then the owner is believed to be alive, by the database's clock
    updated_at_ms      the last change, by the database's clock
    schema_version     the version of the table that wrote the row

1. What is stored is a promise: a changed table gets a new version and a step in STEPS that leads there from the one
   before. A table of a later version is refused.
2. Times are milliseconds since 1970 as the database's own clock has them: the clocks of its clients differ.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table, inspect, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from twofold.client.transactions.prepared import PreparedTxnState
from twofold.dualwrite.errors import Unsuitable
from twofold.dualwrite.operations import NO_OWNER, Row

DEFAULT_TABLE = "twofold_prepared"
VERSION = 1
VERSION_ROW = ""
MAX_ID_LENGTH = 255
SUPPORTED = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}

Step = Callable[[Connection, Table], None]
STEPS: Mapping[int, Step] = {}
"""By the version that each leads to. There is only one version so far."""


class DatabaseNow(FunctionElement[int]):
    """Milliseconds since 1970 by the database's clock when the statement runs, not when its transaction began."""

    inherit_cache = True
    type = BigInteger()


@compiles(DatabaseNow, "sqlite")
def _now_sqlite(element: DatabaseNow, compiler: Any, **options: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"


@compiles(DatabaseNow, "postgresql")
def _now_postgresql(element: DatabaseNow, compiler: Any, **options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(DatabaseNow, "mysql")
@compiles(DatabaseNow, "mariadb")
def _now_mysql(element: DatabaseNow, compiler: Any, **options: Any) -> str:
    # Of UTC: UNIX_TIMESTAMP of a local time goes back by an hour, and ahead again, when summer time ends.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)"


def make_table(name: str) -> Table:
    """`name` may have a schema: "app.twofold_prepared"."""
    schema, _, bare = name.rpartition(".")
    if not bare:
        raise ValueError(f"table={name!r} is no name of a table")
    return Table(
        bare,
        MetaData(),
        Column("transactional_id", String(MAX_ID_LENGTH), primary_key=True),
        Column("owner", String(80), nullable=False),
        Column("cluster_id", String(80), nullable=False),
        Column("producer_id", BigInteger, nullable=False),
        Column("producer_epoch", Integer, nullable=False),
        Column("lease_until_ms", BigInteger, nullable=False),
        Column("updated_at_ms", BigInteger, nullable=False),
        Column("schema_version", Integer, nullable=False),
        schema=schema or None,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        mariadb_collate="utf8mb4_nopad_bin",
    )


def new_row(transactional_id: str) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "owner": NO_OWNER,
        "cluster_id": "",
        "producer_id": -1,
        "producer_epoch": -1,
        "lease_until_ms": 0,
        "updated_at_ms": DatabaseNow(),
        "schema_version": VERSION,
    }


def row_of(found: Any) -> Row:
    state = PreparedTxnState.of(found.producer_id, found.producer_epoch)
    return Row(found.owner, found.cluster_id, state)


def exists(connection: Connection, table: Table) -> bool:
    return inspect(connection).has_table(table.name, schema=table.schema)


def insert_new(connection: Connection, table: Table, transactional_id: str) -> None:
    """Unless it is there, in a transaction of its own. Another process may insert it at the same moment."""
    try:
        connection.execute(table.insert().values(new_row(transactional_id)))
        connection.commit()
    except IntegrityError:
        connection.rollback()


def create_or_check(connection: Connection, table: Table, steps: Mapping[int, Step] = STEPS) -> None:
    """The table is there, in this version, when it returns; in a transaction of its own."""
    check_dialect(connection)
    if not exists(connection, table):
        _create(connection, table)
    last = max(steps, default=VERSION)
    version = stored_version(connection, table, last)
    if version > last:
        raise Unsuitable(
            f"table {table.fullname} has version {version}, and this Twofold knows {last}: a later one has made or "
            "changed it. Use that one"
        )
    for number in range(version + 1, last + 1):
        steps[number](connection, table)
        connection.execute(table.update().where(table.c.transactional_id == VERSION_ROW).values(schema_version=number))
    connection.commit()


def _create(connection: Connection, table: Table) -> None:
    try:
        table.create(connection, checkfirst=True)
        connection.commit()
    except DBAPIError:
        connection.rollback()
        if not exists(connection, table):  # otherwise another process was faster
            raise


def _version(table: Table) -> Any:
    return select(table.c.schema_version).where(table.c.transactional_id == VERSION_ROW)


def read_version(connection: Connection, table: Table) -> int:
    """Of a table that is there; nothing is written."""
    found = connection.execute(_version(table)).scalar_one_or_none()
    return VERSION if found is None else int(found)


def stored_version(connection: Connection, table: Table, last: int) -> int:
    """Of the table. Where it is not the last one, the row that says it is locked: two processes do not upgrade at
    once."""
    found = connection.execute(_version(table)).scalar_one_or_none()
    if found is None:
        insert_new(connection, table, VERSION_ROW)
        found = connection.execute(_version(table)).scalar_one()
    if found < last:
        found = connection.execute(_version(table).with_for_update()).scalar_one()
    return int(found)


def check_dialect(connection: Connection) -> None:
    name = connection.dialect.name
    if name not in SUPPORTED:
        raise Unsuitable(f"{name} is not supported: use {', '.join(SUPPORTED.values())}")
