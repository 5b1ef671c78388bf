"""Recovery without the application: what stands open in the log, what the table says about it, and how it is ended.

1. Only a transaction with a row in this table and of this cluster is ended, and only as the row says. All others are
   shown, and never ended.
2. What is judged is what is acted on: the row is taken from the owner that was shown, or not at all. The protocol's own
   take-over does it, so what has changed since is seen under the lock.
3. A watcher heeds leases and locks: an owner with a lease that has not run out, or with the row's lock, is at work.
4. Nothing is created here: a database without the table is the wrong one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, Table, select
from sqlalchemy.exc import DBAPIError

from twofold.client.admin.blocking import Admin
from twofold.client.admin.transaction_model import TransactionDescription, TransactionState
from twofold.client.config import ClientConfig
from twofold.client.transactions.prepared import PreparedTxnState
from twofold.dualwrite.blocking import DEFAULT_LEASE_S, DEFAULT_LOCK_TIMEOUT_S, DualWrite
from twofold.dualwrite.database import named, own_options
from twofold.dualwrite.errors import TakenOver, Unsuitable
from twofold.dualwrite.operations import NOTHING, LastEnded, Row
from twofold.dualwrite.protocol import End, is_of_another_cluster, obstacle_of
from twofold.dualwrite.table import (
    DEFAULT_TABLE,
    VERSION,
    VERSION_ROW,
    DatabaseNow,
    check_dialect,
    exists,
    make_table,
    read_version,
    row_of,
)
from twofold.dualwrite.verdict import Settled, new_token


class Action(StrEnum):
    """What is to be done about an id."""

    COMMIT = "commit"
    """The row has the state of the open transaction."""
    ABORT = "abort"
    """The row has another state: the database has rolled back, or never came so far."""
    WAIT = "wait"
    """The same, but its owner is at work."""
    NO_ROW = "no row"
    """This table knows nothing of the id: another application's, or another database's."""
    OTHER_CLUSTER = "other cluster"
    """The row belongs to another cluster."""
    DISAGREES = "disagrees"
    """The row and the log contradict each other: a person has to look."""


ENDS = (Action.COMMIT, Action.ABORT)


@dataclass(frozen=True, slots=True)
class StoredRow:
    transactional_id: str
    row: Row
    lease_left_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class RecoveryFinding:
    """`state` names the transaction that is open in the log; empty where none is."""

    transactional_id: str
    action: Action
    state: PreparedTxnState
    open_since_ms: int
    stored: StoredRow | None
    obstacle: End | None = None
    last: LastEnded | None = None

    @property
    def owner(self) -> str:
        return "" if self.stored is None else self.stored.row.owner


@dataclass(frozen=True, slots=True)
class RecoveryLook:
    """`rows`: how many ids the table has."""

    cluster: str
    rows: int
    findings: tuple[RecoveryFinding, ...]

    def of(self, *actions: Action) -> list[RecoveryFinding]:
        return [finding for finding in self.findings if finding.action in actions]


def judge(
    stored: Mapping[str, StoredRow], described: Iterable[TransactionDescription], cluster: str, *, heed_leases: bool
) -> list[RecoveryFinding]:
    """What is to be done about each id, the oldest transaction first; ids with nothing to do are left out. `stored` are
    rows that did not change while the log was asked."""
    findings = [_judge_one(stored.get(found.transactional_id), found, cluster, heed_leases) for found in described]
    return sorted(filter(None, findings), key=lambda finding: (finding.open_since_ms, finding.transactional_id))


def _judge_one(
    stored: StoredRow | None, found: TransactionDescription, cluster: str, heed_leases: bool
) -> RecoveryFinding | None:
    is_open = found.is_ongoing and found.is_two_phase
    state = PreparedTxnState.of(*found.identity) if is_open else NOTHING
    last = found.last_two_phase
    ended = None if last is None else LastEnded(last.state, last.is_committed)

    def finding(action: Action, obstacle: End | None = None) -> RecoveryFinding:
        return RecoveryFinding(found.transactional_id, action, state, found.start_ms, stored, obstacle, ended)

    if stored is None:
        return finding(Action.NO_ROW) if is_open else None
    if is_of_another_cluster(stored.row, cluster):
        return finding(Action.OTHER_CLUSTER) if is_open else None
    obstacle = obstacle_of(stored.row, cluster, state, ended)
    if obstacle is not None:
        return finding(Action.DISAGREES, obstacle)
    if not is_open:
        return None
    if heed_leases and stored.lease_left_ms > 0:
        return finding(Action.WAIT)
    return finding(Action.COMMIT if state == stored.row.state else Action.ABORT)


class Recovery:
    """Of one table and one cluster. `options` are those of `twofold.Producer`."""

    def __init__(
        self,
        engine: Engine,
        *,
        bootstrap_servers: str,
        table: str = DEFAULT_TABLE,
        lock_timeout_s: float = DEFAULT_LOCK_TIMEOUT_S,
        **options: Any,
    ) -> None:
        self.engine = engine
        self._own_engine = engine.execution_options(**own_options(engine))
        self.table: Table = make_table(table)
        self._name = table
        self._bootstrap_servers = bootstrap_servers
        self._lock_timeout_s = lock_timeout_s
        self._options = options

    def check(self) -> None:
        """Whether this is a database with the table, in a version that is known here."""
        with self._own_engine.connect() as connection:
            check_dialect(connection)
            if not exists(connection, self.table):
                raise Unsuitable(
                    f"{named(self.engine)} has no table {self.table.fullname}: it is another database, or no DualWrite "
                    "has used it yet. Nothing was ended"
                )
            if (version := read_version(connection, self.table)) > VERSION:
                raise Unsuitable(
                    f"table {self.table.fullname} has version {version}, and this Twofold knows {VERSION}: use a later "
                    "one. Nothing was ended"
                )

    def look(self, *, heed_leases: bool = False) -> RecoveryLook:
        """What stands open, and what is to be done about it."""
        before = self._stored()
        with Admin(bootstrap_servers=self._bootstrap_servers, **self._admin_options()) as admin:
            cluster = admin.describe_cluster().cluster_id
            listed = admin.list_transactions(states=[TransactionState.ONGOING]).get()
            names = {row.transactional_id for rows in listed.values() for row in rows} | set(before)
            described = admin.describe_transactions(sorted(names)).values if names else {}
        after = self._stored()
        changing = {name for name, row in before.items() if row.row != after.get(name, row).row}
        seen = [found for name, found in described.items() if name not in changing]
        return RecoveryLook(cluster, len(after), tuple(judge(after, seen, cluster, heed_leases=heed_leases)))

    def end(self, finding: RecoveryFinding) -> Settled | None:
        """End the transaction as its row says; None where that has happened meanwhile. Raises what a take-over
        raises."""
        assert finding.action in ENDS
        dual = DualWrite(
            self.engine,
            bootstrap_servers=self._bootstrap_servers,
            transactional_id=finding.transactional_id,
            table=self._name,
            lease_s=DEFAULT_LEASE_S,
            lock_timeout_s=self._lock_timeout_s,
            **self._options,
        )
        with dual:
            try:
                return dual.take_over(expected=finding.owner)
            finally:
                dual.release()

    def is_at_work(self, finding: RecoveryFinding) -> bool:
        """Whether its owner has the row's lock, or has changed the row since it was looked at."""
        with self._own_engine.connect() as connection:
            try:
                found = self._lock_at_once(connection, finding.transactional_id)
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                return True
            finally:
                connection.invalidate()  # SQLite's connection does not wait any more, and others must
        return found is None or finding.stored is None or row_of(found) != finding.stored.row

    def _lock_at_once(self, connection: Connection, transactional_id: str) -> Any:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        mine = self.table.c.transactional_id == transactional_id
        return connection.execute(select(self.table).where(mine).with_for_update(nowait=True)).one_or_none()

    def accept(self, transactional_id: str) -> RecoveryFinding:
        """A person has looked at a disagreement: from now on the row has what the log says, so that the next writer
        goes on. Neither records nor rows are changed, and what is open is left to `end`."""
        found = [row for row in self.look().of(Action.DISAGREES) if row.transactional_id == transactional_id]
        if not found:
            raise Unsuitable(
                f"{transactional_id!r} has no disagreement in {self.table.fullname}: nothing was changed",
                transactional_id=transactional_id,
            )
        finding = found[0]
        dual = DualWrite(
            self.engine,
            bootstrap_servers=self._bootstrap_servers,
            transactional_id=transactional_id,
            table=self._name,
            lease_s=0,
            **self._options,
        )
        last = finding.last
        state = last.state if last is not None and last.committed else NOTHING
        with self._own_engine.connect() as connection:
            if not dual.database.accept(connection, finding.owner, new_token(), state):
                raise TakenOver(
                    f"{transactional_id!r} has another owner since it was looked at: nothing was changed",
                    transactional_id=transactional_id,
                )
        return finding

    def _stored(self) -> dict[str, StoredRow]:
        with self._own_engine.connect() as connection:
            found = connection.execute(select(self.table, DatabaseNow().label("now_ms"))).all()
            connection.rollback()
        return {
            row.transactional_id: StoredRow(
                row.transactional_id, row_of(row), row.lease_until_ms - row.now_ms, row.updated_at_ms
            )
            for row in found
            if row.transactional_id != VERSION_ROW
        }

    def _admin_options(self) -> dict[str, Any]:
        limit = self._options.get("max_block_ms")
        common = {name: value for name, value in self._options.items() if name in ClientConfig.__dataclass_fields__}
        return common if limit is None else {**common, "default_api_timeout_ms": limit}


def explain_obstacle(finding: RecoveryFinding) -> str:
    """In a few words, for a table."""
    last = finding.last
    row = "" if finding.stored is None else str(finding.stored.row.state)
    match finding.obstacle:
        case End.LOG_ABORTED:
            return f"the log has aborted {row}, which the database has committed"
        case End.DATABASE_BEHIND if last is not None and last.committed:
            return f"the log has committed {last.state}, and the row has {row or 'no state'}"
    return "the row was never owned by a writer: another database has the decision"
