"""The table of `ApplyOnce`: how far each partition is applied, one row per group and partition.

1. What is stored is a promise. Version 1 had no topic_id and no row for the version; its rows get the id of the topic
   when they are claimed first. The version before passes over the new column and the new row.
2. The row without a group, with partition -1, has the version of the table where others have the generation. A table of
   a later version is refused.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, IntegrityError

from twofold.dualwrite.errors import Unsuitable
from twofold.dualwrite.table import DatabaseNow, check_dialect
from twofold.types import TopicPartition

DEFAULT_TABLE = "twofold_applied"
VERSION = 2
VERSION_PARTITION = -1

log = logging.getLogger(__name__)


class PartitionClaim(NamedTuple):
    """On one partition, as its row has it."""

    generation: int
    owner: str
    next_offset: int
    topic_id: str | None = None


class AppliedRows:
    """The rows of one group."""

    def __init__(self, engine: Engine, table: str, group_id: str) -> None:
        self._engine = engine
        self._group_id = group_id
        self.table = make_table(table)

    def create(self) -> None:
        with self._engine.connect() as connection:
            check_dialect(connection)
            if _is_autocommit(connection):
                raise Unsuitable(
                    f"{self._engine.url!r} is in autocommit mode: rows and offsets would be transactions of their own. "
                    "Use an engine without isolation_level='AUTOCOMMIT'"
                )
            _create(connection, self.table)
            _upgrade(connection, self.table)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            try:
                with connection.begin():
                    if connection.dialect.name == "sqlite":
                        # Otherwise SQLite begins with the first change, and two that have read could not both go on.
                        connection.exec_driver_sql("BEGIN IMMEDIATE")
                    yield connection
            except BaseException:
                _roll_back_at_driver(connection)
                raise

    def is_there(self, partition: TopicPartition) -> bool:
        with self._engine.connect() as connection:
            return connection.execute(select(self.table.c.partition).where(*self._key(partition))).first() is not None

    def insert(self, partition: TopicPartition, offset: int) -> None:
        """For a partition that no member has claimed yet. Another one may do it at the same moment."""
        row = {"group_id": self._group_id, "topic": partition.topic, "partition": partition.partition}
        state = {"generation": -1, "owner": "", "next_offset": offset, "updated_at_ms": DatabaseNow()}
        try:
            with self.transaction() as connection:
                connection.execute(self.table.insert().values(**row, **state))
        except IntegrityError:
            log.debug("another member has inserted the row of %s", partition)

    def lock(self, connection: Connection, partition: TopicPartition) -> PartitionClaim:
        columns = self.table.c
        found = connection.execute(
            select(columns.generation, columns.owner, columns.next_offset, columns.topic_id)
            .where(*self._key(partition))
            .with_for_update()
        ).one()
        return PartitionClaim(*found)

    def own(self, connection: Connection, partition: TopicPartition, claim: PartitionClaim) -> PartitionClaim:
        """Under the lock."""
        values = {"generation": claim.generation, "owner": claim.owner, "updated_at_ms": DatabaseNow()}
        place = {"next_offset": claim.next_offset, "topic_id": claim.topic_id}
        connection.execute(self.table.update().where(*self._key(partition)).values(**values, **place))
        return claim

    def move(self, connection: Connection, partition: TopicPartition, claim: PartitionClaim, following: int) -> bool:
        """To the offset after what is applied in this transaction; False if the row is not as the claim has it."""
        columns = self.table.c
        changed = connection.execute(
            self.table.update()
            .where(
                *self._key(partition),
                columns.generation == claim.generation,
                columns.owner == claim.owner,
                columns.next_offset == claim.next_offset,
            )
            .values(next_offset=following, updated_at_ms=DatabaseNow())
        )
        return changed.rowcount == 1

    def check_moved(self, connection: Connection, partition: TopicPartition, following: int) -> None:
        """That the transaction which has moved the row is still the same. MariaDB rolls a whole transaction back after
        a deadlock, and begins another one without a word."""
        offset = connection.execute(select(self.table.c.next_offset).where(*self._key(partition))).scalar_one()
        if offset != following:
            raise Unsuitable(
                f"while records of {partition} were applied, the database has rolled the transaction back: an error of "
                "the database was passed over. Nothing was applied; let errors of the database leave the function"
            )

    def _key(self, partition: TopicPartition) -> tuple[Any, ...]:
        columns = self.table.c
        return (
            columns.group_id == self._group_id,
            columns.topic == partition.topic,
            columns.partition == partition.partition,
        )


def _roll_back_at_driver(connection: Connection) -> None:
    """After a COMMIT that failed, or was refused, SQLAlchemy thinks that nothing is left to be rolled back."""
    if not connection.closed and not connection.invalidated:
        driver: Any = connection.connection.dbapi_connection
        with suppress(Exception):  # the connection is broken: the database rolls back when it sees that
            driver.rollback()


def make_table(name: str) -> Table:
    """`name` may have a schema: "app.twofold_applied"."""
    schema, _, bare = name.rpartition(".")
    if not bare:
        raise ValueError(f"table={name!r} is no name of a table")
    return Table(
        bare,
        MetaData(),
        Column("group_id", String(255), primary_key=True),
        Column("topic", String(249), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("generation", Integer, nullable=False),
        Column("owner", String(80), nullable=False),
        Column("next_offset", BigInteger, nullable=False),
        Column("updated_at_ms", BigInteger, nullable=False),
        Column("topic_id", String(36), nullable=True),
        schema=schema or None,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        mariadb_collate="utf8mb4_bin",
    )


def _is_autocommit(connection: Connection) -> bool:
    chosen = connection.get_execution_options().get("isolation_level")
    return "AUTOCOMMIT" in (chosen, connection.dialect._on_connect_isolation_level)


def _create(connection: Connection, table: Table) -> None:
    try:
        table.create(connection, checkfirst=True)
    except DBAPIError:  # another process has created it at the same moment
        connection.rollback()
        table.create(connection, checkfirst=True)
    connection.commit()


def _upgrade(connection: Connection, table: Table) -> None:
    """From the version that the table has to this one."""
    found = connection.execute(select(table.c.generation).where(*_version_row(table))).scalar_one_or_none()
    if found is not None and found > VERSION:
        raise Unsuitable(
            f"table {table.fullname} has version {found}, and this Twofold knows {VERSION}: a later one has made or "
            "changed it. Use that one"
        )
    connection.rollback()
    if not _has_topic_id(connection, table):
        _add_topic_id(connection, table)
    if found is None:
        _insert_version(connection, table)


def _version_row(table: Table) -> tuple[Any, ...]:
    return (table.c.group_id == "", table.c.topic == "", table.c.partition == VERSION_PARTITION)


def _has_topic_id(connection: Connection, table: Table) -> bool:
    columns = inspect(connection).get_columns(table.name, schema=table.schema)
    connection.rollback()
    return any(column["name"] == "topic_id" for column in columns)


def _add_topic_id(connection: Connection, table: Table) -> None:
    name = connection.dialect.identifier_preparer.format_table(table)
    try:
        connection.execute(text(f"ALTER TABLE {name} ADD COLUMN topic_id VARCHAR(36)"))
        connection.commit()
    except DBAPIError:
        connection.rollback()
        if not _has_topic_id(connection, table):  # otherwise another process was faster
            raise


def _insert_version(connection: Connection, table: Table) -> None:
    row = {"group_id": "", "topic": "", "partition": VERSION_PARTITION, "generation": VERSION, "owner": ""}
    try:
        connection.execute(table.insert().values(**row, next_offset=0, updated_at_ms=DatabaseNow(), topic_id=None))
        connection.commit()
    except IntegrityError:
        connection.rollback()  # another process was faster
