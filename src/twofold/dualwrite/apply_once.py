"""`ApplyOnce`: records of the log are applied to a database, each once. The other direction of `DualWrite`.

    with ApplyOnce(engine, bootstrap_servers="127.0.0.1:9092", group_id="billing", topics=["orders"]) as worker:
        worker.run(lambda db, records: db.execute(insert(bills), [bill_of(record) for record in records]))

The database decides how far a partition is applied, in a row of its own (`twofold_applied`):

    group_id, topic, partition   the row's key
    generation, owner            of the member that applies the partition: the group's generation in which it got it,
                                 and a token of this process
    next_offset                  every record before it is applied

1. A member that gets a partition claims its row under the row's lock, and reads there from which offset to go on. A
   claim replaces one of an earlier generation. One that is not earlier is replaced only if the coordinator confirms,
   while the row is locked, that this member is in the group: the group was forgotten and counts anew, or a static
   member was started again.
2. Rows of the application and the new offset are one transaction, which changes the row only where generation, owner
   and offset are those of the claim. A member that was paused, and wakes up after its partition went to another one,
   changes nothing: the row has another generation.
3. A claim waits for a transaction that has the row locked. What that one commits is not applied again: its offset is
   read after the wait.
4. A transaction that the database has ended while the application wrote, because of an error that the application
   has passed over, does not count: the row is read once more before COMMIT.
5. After any error the row is read again before anything is applied: a COMMIT without an answer may have been done.
6. The group's committed offsets follow, for tools that show lag. They decide nothing.

`apply` gets records of one partition in their order, and must write to `db` only: what it does elsewhere happens again
after a crash.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from types import TracebackType
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, String, Table, event, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from twofold.client.consumer.blocking import Consumer
from twofold.client.consumer.consumer import ConsumerRecord
from twofold.client.consumer.group.listener import Partitions, RebalanceListener
from twofold.dualwrite.database import is_transient
from twofold.dualwrite.errors import Unsuitable
from twofold.dualwrite.table import DatabaseNow, check_dialect
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

DEFAULT_TABLE = "twofold_applied"
POLL_MS = 1_000
Apply = Callable[[Connection, list[ConsumerRecord]], object]

log = logging.getLogger(__name__)


class PartitionClaim(NamedTuple):
    """On one partition, as its row has it."""

    generation: int
    owner: str
    next_offset: int


class NotOurs(Exception):
    """The row belongs to another member."""


def needs_confirmation(found: PartitionClaim, generation: int, owner: str) -> bool:
    """Whether a claim in this generation may replace the row only with the coordinator's word."""
    return found.owner != owner and found.generation >= generation


class ApplyOnce:
    """A member of the group. `options` are those of `twofold.Consumer`; offsets are not committed automatically, and
    only committed records are read, unless they say otherwise."""

    def __init__(
        self,
        engine: Engine,
        *,
        bootstrap_servers: str,
        group_id: str,
        topics: Iterable[str],
        table: str = DEFAULT_TABLE,
        **options: Any,
    ) -> None:
        if options.get("enable_auto_commit"):
            raise ValueError("enable_auto_commit=True does not go with ApplyOnce: the database has the offsets")
        self.engine = engine
        self.group_id = group_id
        self._rows = AppliedRows(engine, table, group_id)
        self._owner = uuid.uuid4().hex
        self._claims: dict[TopicPartition, PartitionClaim] = {}
        self._stopped = threading.Event()
        settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", **options}
        self._rows.create()
        self.consumer = Consumer(
            bootstrap_servers=bootstrap_servers, group_id=group_id, **{**settings, "enable_auto_commit": False}
        )
        self.consumer.subscribe(topics, listener=_Claiming(self))

    def __enter__(self) -> "ApplyOnce":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stopped.set()
        self.consumer.close()

    def stop(self) -> None:
        """`run` returns when it has applied what it works on. Any thread, and a signal handler, may call it."""
        self._stopped.set()

    def run(self, apply: Apply) -> None:
        """Apply records until `stop` is called. An error of `apply` or of the database comes out; what was not
        committed is applied by the next call, or by another member."""
        while not self._stopped.is_set():
            self.step(apply)

    def step(self, apply: Apply, timeout_ms: float = POLL_MS) -> int:
        """Poll once, and apply what came: one transaction per partition. Returns how many records were applied."""
        self.claim_missing()
        records = self.consumer.poll(timeout_ms)
        count = 0
        try:
            for partition, batch in groupby(records, key=lambda record: TopicPartition(record.topic, record.partition)):
                count += self._apply(apply, partition, list(batch))
        except BaseException:
            self._go_back(records)
            raise
        if count:
            applied = {tp: claim.next_offset for tp, claim in self._claims.items()}
            self.consumer.commit_async({tp: offset for tp, offset in applied.items() if offset > 0})
        return count

    def _apply(self, apply: Apply, partition: TopicPartition, records: list[ConsumerRecord]) -> int:
        claim = self._claims.get(partition)
        if claim is None:
            return 0
        following = records[-1].offset + 1
        applying = False
        try:
            with self._rows.transaction() as db:
                if not self._rows.move(db, partition, claim, following):
                    raise NotOurs("the row has another generation, owner or offset")
                applying = True
                with _kept_open(db):
                    apply(db, records)
                    self._rows.check_moved(db, partition, following)
        except (DBAPIError, NotOurs) as error:
            if applying or not (isinstance(error, NotOurs) or is_transient(error)):
                raise
            # Another member has the row, or has it locked. What it commits is read before the next attempt.
            log.info("records of %s are not applied here now: %s", partition, error)
            self._drop(partition)
            return 0
        self._claims[partition] = claim._replace(next_offset=following)
        return len(records)

    def _go_back(self, records: list[ConsumerRecord]) -> None:
        """After an error: what was polled is read again, from where the row says."""
        for partition in {TopicPartition(record.topic, record.partition) for record in records}:
            self._drop(partition)

    def _drop(self, partition: TopicPartition) -> None:
        self._claims.pop(partition, None)
        if partition in self.consumer.assignment:
            self.consumer.pause(partition)

    # Claims

    def on_assigned(self, partitions: Partitions) -> None:
        for partition in partitions:
            self._claims.pop(partition, None)
        self.claim_missing()

    def on_revoked(self, partitions: Partitions) -> None:
        for partition in partitions:
            self._claims.pop(partition, None)

    def claim_missing(self) -> None:
        """Of what is assigned. A partition that cannot be claimed now is not read, and is claimed later."""
        for partition in self.consumer.assignment:
            if partition in self._claims:
                continue
            try:
                self._claims[partition] = claim = self._claim(partition)
            except (DBAPIError, KafkaError, NotOurs) as error:
                log.warning("%s of group %r is not claimed yet: %s", partition, self.group_id, error)
                self.consumer.pause(partition)
                continue
            self.consumer.seek(partition, claim.next_offset)
            self.consumer.resume(partition)

    def _claim(self, partition: TopicPartition) -> PartitionClaim:
        generation = self.consumer.group_metadata().generation_id
        if generation < 0:
            raise NotOurs("the group is being joined")
        if not self._rows.is_there(partition):
            self._rows.insert(partition, self.consumer.position(partition))
        with self._rows.transaction() as db:
            found = self._rows.lock(db, partition)
            if needs_confirmation(found, generation, self._owner):
                # Refused by the coordinator if another member, or a later generation, has the partition.
                self.consumer.commit({partition: found.next_offset})
            return self._rows.own(db, partition, PartitionClaim(generation, self._owner, found.next_offset))


class _Claiming(RebalanceListener):
    def __init__(self, worker: ApplyOnce) -> None:
        self._worker = worker

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        self._worker.on_assigned(partitions)

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        self._worker.on_revoked(partitions)


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
            try:
                self.table.create(connection, checkfirst=True)
                connection.commit()
            except DBAPIError:  # another process has created it at the same moment
                connection.rollback()
                self.table.create(connection, checkfirst=True)
                connection.commit()

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
            select(columns.generation, columns.owner, columns.next_offset)
            .where(*self._key(partition))
            .with_for_update()
        ).one()
        return PartitionClaim(*found)

    def own(self, connection: Connection, partition: TopicPartition, claim: PartitionClaim) -> PartitionClaim:
        """Under the lock."""
        values = {"generation": claim.generation, "owner": claim.owner, "updated_at_ms": DatabaseNow()}
        connection.execute(self.table.update().where(*self._key(partition)).values(**values))
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


@contextmanager
def _kept_open(connection: Connection) -> Iterator[None]:
    """A COMMIT in between would store the offset of records that are not applied yet."""

    def refuse(_: Connection) -> None:
        raise Unsuitable("commit() in a function of ApplyOnce: rows and offset are committed when it has returned")

    event.listen(connection, "commit", refuse)
    try:
        yield
    finally:
        event.remove(connection, "commit", refuse)


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
