"""The database's part of a dual write: the operations of the protocol on a connection, or on an ORM session.

Everything here blocks. The asyncio front calls the same functions through `run_sync`, which SQLAlchemy has for this.

1. The row is locked until the transaction ends: `SELECT ... FOR UPDATE`; on SQLite by BEGIN IMMEDIATE or, where a
   driver has begun a transaction already, by an update that comes before every read. So what is read of the row is
   the last that was committed, whatever the isolation level.
2. A change of the row names the owner it expects, and the number of rows that it changed is looked at.
3. The block's transaction is ended here and nowhere else: a COMMIT of the caller is refused before it is sent, and
   after a ROLLBACK of the caller nothing can be written any more.
4. An engine in autocommit mode is refused: its COMMIT decides nothing.
5. What the protocol does on connections of its own (a take-over, a doubt, a lease) has the isolation level at which a
   locking read waits and then sees the last commit. The caller's transactions have the engine's.
6. A statement can end the transaction without saying so: COMMIT as text, ALTER in MariaDB, OR ROLLBACK in SQLite. And
   PostgreSQL answers the COMMIT of a transaction in which a statement has failed with a silent rollback. In all of
   these a savepoint of the block's beginning cannot be released at its end, and nothing is prepared.
"""

import logging
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, event, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from twofold.client.transactions.prepared import PreparedTxnState
from twofold.dualwrite.errors import Unsuitable
from twofold.dualwrite.operations import (
    Answer,
    Doubtful,
    Failed,
    Locked,
    LockRow,
    Lost,
    Ok,
    Row,
    RowFound,
    StoreState,
)
from twofold.dualwrite.table import (
    MAX_ID_LENGTH,
    VERSION,
    DatabaseNow,
    create_or_check,
    insert_new,
    make_table,
    row_of,
)

Target = Connection | Session
"""What a transaction runs on."""

SAVEPOINT = "twofold_block"
# SQLSTATE: serialization failure, deadlock, lock not available; errors of MariaDB: lock wait timeout, deadlock, changed
# since it was read; results of SQLite: busy, locked.
TRANSIENT_STATES = ("40001", "40P01", "55P03")
TRANSIENT_NUMBERS = (1020, 1205, 1213)
TRANSIENT_RESULTS = (5, 6)
ROLLED_BACK_CLASSES = ("23", "40")
OWN_LEVELS = {"postgresql": "READ COMMITTED", "mysql": "REPEATABLE READ", "mariadb": "REPEATABLE READ"}
"""At others a take-over that waits for a writer fails when that writer commits, or reads wait for writers."""

log = logging.getLogger(__name__)


class Guard:
    """Of one block: what the caller's code does to the transaction that is not the caller's to end."""

    def __init__(self, transactional_id: str) -> None:
        self.connection: Connection | None = None
        self._transactional_id = transactional_id
        self._is_open = False
        self._is_ours = True
        self._session: Session | None = None
        self.was_rolled_back = False
        self.refusal: Unsuitable | None = None

    def watch(self, connection: Connection, session: Session | None) -> None:
        """From now on the transaction of this connection is the block's."""
        self.connection = connection
        event.listen(connection, "commit", self._on_commit)
        event.listen(connection, "rollback", self._on_rollback)
        event.listen(connection, "begin", self._on_begin)
        if session is not None:
            self._session = session
            event.listen(session, "after_begin", self._on_another)
        self._is_open, self._is_ours = True, False

    def release(self) -> None:
        """What comes now is done by the protocol."""
        self._is_ours = True

    def finish(self) -> None:
        """The transaction has ended, or is about to be rolled back."""
        self.release()
        session, self._session = self._session, None
        if session is not None:
            event.remove(session, "after_begin", self._on_another)

    def _on_another(self, session: Session, transaction: Any, connection: Connection) -> None:
        """The session has begun on a connection, or a savepoint on the one that it has."""
        if connection is self.connection:
            return
        if self.was_rolled_back:
            raise self._rolled_back()
        self.refusal = Unsuitable(
            f"the session in transaction() of {self._transactional_id!r} writes to a second database: all must be "
            "written in one transaction",
            transactional_id=self._transactional_id,
        )
        raise self.refusal

    def _on_commit(self, connection: Connection) -> None:
        if not self._is_ours:
            raise Unsuitable(
                f"commit() inside transaction() of {self._transactional_id!r}: the end of the block commits, in the "
                "database and in the log",
                transactional_id=self._transactional_id,
            )
        if self._session is not None:
            # The session's own hooks have run since the state was stored, and they may swallow errors, too.
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {SAVEPOINT}")

    def _on_rollback(self, connection: Connection) -> None:
        self.was_rolled_back = self._is_open

    def _on_begin(self, connection: Connection) -> None:
        if self.was_rolled_back and not self._is_ours:
            raise self._rolled_back()

    def _rolled_back(self) -> Unsuitable:
        return Unsuitable(
            f"the block of transaction() of {self._transactional_id!r} was rolled back in the database: leave it by an "
            "exception, and begin another",
            transactional_id=self._transactional_id,
        )


class Database:
    """The row of one transactional id, for the programs of one process."""

    def __init__(self, engine: Engine, table: str, transactional_id: str, lease_ms: int, lock_timeout_s: float) -> None:
        if not transactional_id or len(transactional_id) > MAX_ID_LENGTH:
            raise Unsuitable(
                f"transactional_id={transactional_id!r} must have 1 to {MAX_ID_LENGTH} characters",
                transactional_id=transactional_id,
            )
        self._engine = engine
        self.table = make_table(table)
        self.transactional_id = transactional_id
        self._lease_ms = lease_ms
        self._lock_timeout_ms = max(1, int(lock_timeout_s * 1000))  # 0 would be no limit
        self._is_checked = False

    # Outside of a transaction

    def read(self, connection: Connection) -> Answer:
        """The row as it is committed; creates table and row where they are missing."""
        try:
            if not self._is_checked:
                create_or_check(connection, self.table)
                self._is_checked = True
            if (found := self._select(connection)) is None:
                connection.rollback()
                insert_new(connection, self.table, self.transactional_id)
                found = self._select(connection)
            connection.rollback()
            return Failed() if found is None else RowFound(self._row(found))
        except Exception as error:
            return Failed(error)

    # One transaction

    def begin(self, target: Target, guard: Guard | None = None) -> Answer:
        """Begin a transaction; with a guard it is one for the caller's code."""
        try:
            if isinstance(target, Session):
                target.begin()
            connection = connection_of(target)
            self._check_autocommit(connection)
            if isinstance(target, Connection):
                target.begin()
            if connection.dialect.name == "sqlite" and not _in_transaction(connection):
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            if guard is not None:
                guard.watch(connection, target if isinstance(target, Session) else None)
            return Ok()
        except Exception as error:
            return Failed(error)

    def lock(self, target: Target, operation: LockRow, *, block: bool = False) -> Answer:
        """`block`: the caller's code comes next."""
        try:
            connection = connection_of(target)
            taking = operation.owner != operation.new_owner
            found = self._locked(connection, limited=not block)
            if found is None:
                return Lost(Row())
            row = self._row(found)
            if row.owner != operation.owner:
                return Lost(row)
            if taking or row.cluster != operation.cluster:
                values = {"owner": operation.new_owner, "cluster_id": operation.cluster}
                if not self._change(connection, operation.owner, values):
                    return Lost(row)
            if block:
                connection.exec_driver_sql(f"SAVEPOINT {SAVEPOINT}")
            return Locked(row)
        except Exception as error:
            return Failed(error)

    def close_block(self, target: Target, guard: Guard) -> None:
        """After the caller's code: its last rows are sent, and the transaction is still the one that was begun."""
        if isinstance(target, Session):
            target.flush()
            while (nested := target.get_nested_transaction()) is not None:
                nested.commit()  # of a savepoint that was left open
        connection = connection_of(target)
        if guard.refusal is not None:
            raise guard.refusal
        if guard.was_rolled_back:
            raise Unsuitable(
                f"the block of transaction() of {self.transactional_id!r} was rolled back in the database by its own "
                "code",
                transactional_id=self.transactional_id,
            )
        try:
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {SAVEPOINT}")
            if isinstance(target, Session):
                connection.exec_driver_sql(f"SAVEPOINT {SAVEPOINT}")  # until its hooks have run
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            raise Unsuitable(
                f"a statement in the block of transaction() of {self.transactional_id!r} has failed, and its error was "
                "swallowed, or it has ended the database's transaction, as COMMIT does, and ALTER in MariaDB: what was "
                "committed before stays in the database alone",
                transactional_id=self.transactional_id,
            ) from error
        guard.release()

    def store(self, target: Target, operation: StoreState) -> Answer:
        try:
            connection = connection_of(target)
            if self._change(connection, operation.owner, _columns_of(operation.state)):
                return Ok()
            found = self._select(connection)
            return Lost(Row() if found is None else self._row(found))
        except Exception as error:
            return Failed(error)

    def commit(self, target: Target) -> Answer:
        try:
            target.commit()
            return Ok()
        except Exception as error:
            if _is_rolled_back(error):
                return Failed(error)
            _invalidate(target)  # whatever it is up to, it is not told COMMIT again
            return Doubtful(error)

    def roll_back(self, target: Target, guard: Guard) -> Answer:
        """The transaction cannot go on here any more, whatever is wrong with the connection."""
        connection = target if isinstance(target, Connection) else guard.connection
        try:
            if connection is not None:
                _roll_back_at_driver(connection)
            target.rollback()
        except Exception as error:
            log.warning("rolling back for %r: %s; the connection is closed", self.transactional_id, error)
            _invalidate(target)
        return Ok()

    def release(self, connection: Connection, owner: str) -> None:
        """The lease is over, if the row is still the owner's. The owner stays in the row until the next one comes."""
        table = self.table
        with connection.begin():
            connection.execute(
                table.update()
                .where(table.c.transactional_id == self.transactional_id, table.c.owner == owner)
                .values(lease_until_ms=0, updated_at_ms=DatabaseNow())
            )

    def accept(self, connection: Connection, owner: str, new_owner: str, state: PreparedTxnState) -> bool:
        """An administrator has looked at a disagreement: from now on `state` is what the row has. Whether the row was
        still the owner's. It has another one afterwards, so that no earlier writer goes on."""
        with connection.begin():
            return self._change(connection, owner, {**_columns_of(state), "owner": new_owner})

    # Statements

    def _select(self, connection: Connection) -> Any:
        table = self.table
        return connection.execute(select(table).where(table.c.transactional_id == self.transactional_id)).one_or_none()

    def _locked(self, connection: Connection, *, limited: bool) -> Any:
        """`limited`: a paused writer may hold the lock, or a COMMIT that is in flight, and PostgreSQL would wait for
        it forever. In a block the limit is the caller's."""
        table = self.table
        mine = table.c.transactional_id == self.transactional_id
        if connection.dialect.name == "sqlite":
            # An update, in case the transaction was not begun by BEGIN IMMEDIATE.
            connection.execute(table.update().where(mine).values(owner=table.c.owner))
        statement = select(table).where(mine).with_for_update()
        if limited and connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {self._lock_timeout_ms}")
        elif limited and getattr(connection.dialect, "is_mariadb", False):
            statement = statement.suffix_with(text(f"WAIT {max(1, self._lock_timeout_ms // 1000)}"))
        return connection.execute(statement).one_or_none()

    def _change(self, connection: Connection, owner: str, values: dict[str, Any]) -> bool:
        """Whether the row was there and `owner` had it."""
        table = self.table
        changed = connection.execute(
            table.update()
            .where(table.c.transactional_id == self.transactional_id, table.c.owner == owner)
            .values(
                {
                    **values,
                    "lease_until_ms": DatabaseNow() + self._lease_ms,
                    "updated_at_ms": DatabaseNow(),
                    "schema_version": VERSION,
                }
            )
        )
        return changed.rowcount == 1

    def _row(self, found: Any) -> Row:
        if found.transactional_id != self.transactional_id:
            raise Unsuitable(
                f"table {self.table.fullname} takes {found.transactional_id!r} for {self.transactional_id!r}: give "
                "its column transactional_id a collation that tells them apart",
                transactional_id=self.transactional_id,
            )
        return row_of(found)

    # Checks

    def check_session(self, session: Session) -> None:
        """Before anything is done to it."""
        if session.in_transaction():
            raise Unsuitable(
                "the session has begun a transaction already: commit() it or roll it back before transaction(session="
                "...), whose block is one transaction from its beginning to its end",
                transactional_id=self.transactional_id,
            )
        if isinstance(session.bind, Connection):
            raise Unsuitable(
                "the session is bound to a connection, which may be in a transaction of its own: bind it to an engine",
                transactional_id=self.transactional_id,
            )
        if getattr(session, "twophase", False):
            raise Unsuitable(
                "the session has twophase=True: the decision must be one COMMIT",
                transactional_id=self.transactional_id,
            )

    def _check_autocommit(self, connection: Connection) -> None:
        if connection.engine.pool is not self._engine.pool:
            raise Unsuitable(
                f"the session uses {named(connection.engine)}, and the table is at {named(self._engine)}: both must be "
                "written in one transaction",
                transactional_id=self.transactional_id,
            )
        level = connection.get_execution_options().get("isolation_level")
        if level is None:
            level = connection.dialect._on_connect_isolation_level
        if level == "AUTOCOMMIT" or _has_autocommit(connection):
            raise Unsuitable(
                f"{named(self._engine)} is in autocommit mode: every statement would be a transaction of its own. Use "
                "an engine without isolation_level='AUTOCOMMIT'",
                transactional_id=self.transactional_id,
            )


def _columns_of(state: PreparedTxnState) -> dict[str, Any]:
    return {"producer_id": state.producer_id, "producer_epoch": state.epoch}


def named(engine: Engine) -> str:
    """For messages: without passwords, which may stand behind the question mark, too."""
    return repr(engine.url.set(query={}))


def own_options(engine: Engine) -> dict[str, Any]:
    """The options of connections that the protocol has for itself."""
    level = OWN_LEVELS.get(engine.dialect.name)
    return {} if level is None else {"isolation_level": level}


def connection_of(target: Target) -> Connection:
    return target if isinstance(target, Connection) else target.connection()


def is_transient(error: BaseException | None) -> bool:
    """Whether a second attempt may do better: deadlocks, lock timeouts, serialization failures, lost connections."""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    number, state, result = _codes(error)
    return state in TRANSIENT_STATES or number in TRANSIENT_NUMBERS or result in TRANSIENT_RESULTS


def _is_rolled_back(error: BaseException) -> bool:
    """Whether the database has answered COMMIT, and the answer was no."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    _, state, _ = _codes(error)
    return isinstance(error, IntegrityError) or state[:2] in ROLLED_BACK_CLASSES


def _codes(error: DBAPIError) -> tuple[int, str, int]:
    """Number (MariaDB), SQLSTATE (PostgreSQL) and primary result (SQLite) of a driver's error, where it has them."""
    driver: Any = error.orig
    state = getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None) or ""
    arguments = getattr(driver, "args", ())
    number = arguments[0] if arguments and isinstance(arguments[0], int) else 0
    result = getattr(driver, "sqlite_errorcode", None) or 0
    return number, str(state), int(result) & 0xFF


def _in_transaction(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    return bool(driver.in_transaction)


def _has_autocommit(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        # isolation_level=None is no harm: BEGIN and COMMIT are ours then. With autocommit=True commit() does nothing.
        return getattr(driver, "autocommit", None) is True
    detect: Callable[[Any], bool] = connection.dialect.detect_autocommit_setting
    return detect(connection.connection.dbapi_connection)


def _roll_back_at_driver(connection: Connection) -> None:
    """After a COMMIT that failed, or was refused, SQLAlchemy thinks that nothing is left to be rolled back, and gives
    the connection back to the pool with its transaction."""
    if not connection.closed and not connection.invalidated:
        driver: Any = connection.connection.dbapi_connection
        driver.rollback()


def _invalidate(target: Target) -> None:
    try:
        target.invalidate()
    except Exception as error:
        log.warning("closing a connection: %s", error)
