"""The slots of a pool in the table: transactional ids that processes lease from each other by the database's clock.

1. A slot is free when its lease has run out, or was given back (0). What frees it is the database's clock alone.
2. A process reserves a free slot by a new lease, in one statement that names the owner it has seen, and then takes it
   over by the protocol. Two processes never reserve one slot; a process that dies in between loses only the time of a
   lease.
3. A row that is locked is not free: its owner is in a transaction, however long that takes.
4. An owner that was paused for longer than its lease finds another owner in the row when it writes. Until another
   process has taken the slot over, it may go on.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from twofold.dualwrite.errors import Unsuitable
from twofold.dualwrite.table import MAX_ID_LENGTH, DatabaseNow, create_or_check, insert_new, make_table

GIVEN_BACK = 0


@dataclass(frozen=True, slots=True)
class Reserved:
    """A slot that no other process reserves until the lease is over, and the owner that it is to be taken from."""

    transactional_id: str
    owner: str


class Leases:
    """Of the slots `prefix`-0 to `prefix`-(size - 1). Each function is one transaction, on a connection without one."""

    def __init__(self, table: str, prefix: str, size: int, lease_ms: int) -> None:
        if size < 1:
            raise Unsuitable(f"size={size}: a pool has at least one slot")
        self.ids = [f"{prefix}-{number}" for number in range(size)]
        if not prefix or len(self.ids[-1]) > MAX_ID_LENGTH:
            raise Unsuitable(f"prefix={prefix!r} must have 1 to {MAX_ID_LENGTH - 6} characters")
        self._table = make_table(table)
        self._lease_ms = lease_ms
        self._is_checked = False

    def prepare(self, connection: Connection) -> None:
        """The table and a row for each slot are there when it returns."""
        if self._is_checked:
            return
        create_or_check(connection, self._table)
        column = self._table.c.transactional_id
        there = set(connection.execute(select(column).where(column.in_(self.ids))).scalars())
        connection.rollback()
        for name in self.ids:
            if name not in there:
                insert_new(connection, self._table, name)
        self._is_checked = True

    def reserve(self, connection: Connection, held: list[str], *, dead_only: bool = False) -> Reserved | None:
        """A free slot that this process does not hold; with `dead_only` one whose owner did not give it back."""
        table = self._table
        wanted = [name for name in self.ids if name not in held]
        free = [table.c.transactional_id.in_(wanted), table.c.lease_until_ms < DatabaseNow()]
        if dead_only:
            free.append(table.c.lease_until_ms > GIVEN_BACK)
        _begin(connection)
        try:
            found = connection.execute(
                select(table.c.transactional_id, table.c.owner)
                .where(*free)
                .order_by(table.c.updated_at_ms, table.c.transactional_id)
                .limit(1)
                .with_for_update(skip_locked=True)
            ).one_or_none()
            if found is None:
                return None
            reserved = Reserved(found.transactional_id, found.owner)
            return reserved if self._extend(connection, reserved, *free) else None
        finally:
            connection.commit()

    def renew(self, connection: Connection, transactional_id: str, owner: str) -> bool:
        """Whether the slot is still the owner's."""
        _begin(connection)
        try:
            return self._extend(connection, Reserved(transactional_id, owner))
        finally:
            connection.commit()

    def _extend(self, connection: Connection, slot: Reserved, *conditions: Any) -> bool:
        table = self._table
        changed = connection.execute(
            table.update()
            .where(table.c.transactional_id == slot.transactional_id, table.c.owner == slot.owner, *conditions)
            .values(lease_until_ms=DatabaseNow() + self._lease_ms, updated_at_ms=DatabaseNow())
        )
        return changed.rowcount == 1


def _begin(connection: Connection) -> None:
    connection.begin()
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
