"""The two places of a dual write as values: what one database and one log can be like, and what changes them.

The database (`Isolation` says which kind):
1. A transaction is seen by others from its COMMIT on, except where the isolation level allows dirty reads.
2. One transaction at a time holds the lock of the row, until it ends.
3. A COMMIT whose client has given up stays: the database commits it or rolls it back later, and keeps the lock so long.

The log, as our broker and our client have it (KIP-939, transaction.version 2):
4. `fence` raises the epoch and keeps what is open. A request with an earlier epoch is refused, for good.
5. The end of a transaction raises the epoch too, and may be repeated by the producer that asked for it.
6. The broker does not know "prepared": a kept transaction is open, whether its records are complete or not.
7. A partition that has records of an open transaction takes more of them, also from a producer that is fenced already.
"""

from enum import Enum
from functools import cache
from typing import NamedTuple

from twofold.client.transactions.prepared import PreparedTxnState
from twofold.dualwrite.operations import NO_OWNER, NOTHING, LastEnded, Row

PRODUCER_ID = 7
NO_EPOCH = -1
HERE = "here"  # the cluster


class Isolation(Enum):
    READ_COMMITTED = "read committed"
    SNAPSHOT = "snapshot: a lock of what has changed since the begin is refused"
    DIRTY = "dirty reads: an unlocked read sees what is not committed"
    WHOLE = "the whole database is locked by the begin"


class ModelRow(NamedTuple):
    """The row of the transactional id; `epoch` stands for the state."""

    owner: str = NO_OWNER
    cluster: str = ""
    epoch: int = NO_EPOCH


class Transaction(NamedTuple):
    """Of the database, on one connection. Items are bits of a number."""

    snapshot: ModelRow | None = None  # the row at its begin, while that matters
    holds_lock: bool = False
    row: ModelRow | None = None
    items: int = 0


class OpenTransaction(NamedTuple):
    """Of the log. An item is two records: the first is sent at once, the second when the producer flushes."""

    epoch: int
    first: int = 0
    second: int = 0


class Log(NamedTuple):
    epoch: int = 0
    open: OpenTransaction | None = None
    first: int = 0  # committed
    second: int = 0
    aborted: int = 0
    last: tuple[int, bool] | None = None  # the transaction that ended last, and whether it was committed
    ended_with: int = NO_EPOCH  # the epoch of the request that ended it

    def fence(self) -> "Log":
        return self._replace(epoch=self.epoch + 1, ended_with=NO_EPOCH)

    def take(self, epoch: int, first: int, second: int) -> "Log | None":
        """Records of the producer with this epoch; None if they are refused."""
        found = self.open
        if found is not None and found.epoch == epoch:
            return self._replace(open=OpenTransaction(epoch, found.first | first, found.second | second))
        if found is None and epoch == self.epoch:
            return self._replace(open=OpenTransaction(epoch, first, second))
        return None

    def end(self, epoch: int, *, commit: bool) -> "Log | None":
        """None if the producer is fenced. With nothing open it changes nothing."""
        if epoch == self.ended_with and self.last is not None and self.last[1] == commit:
            return self
        if epoch != self.epoch:
            return None
        found = self.open
        if found is None:
            return self
        after = self._replace(open=None, epoch=epoch + 1, last=(found.epoch, commit), ended_with=epoch)
        if commit:
            return after._replace(first=self.first | found.first, second=self.second | found.second)
        return after._replace(aborted=self.aborted | found.first | found.second)


class Client(NamedTuple):
    """A producer. `prepared` is the open transaction that it has prepared or kept."""

    epoch: int
    prepared: int = NO_EPOCH
    unsent: int = 0  # second records
    has_sent: bool = False
    refused: bool = False


class Late(NamedTuple):
    """A request whose client did not wait for the answer, on its way."""

    fence: bool
    epoch: int = NO_EPOCH
    commit: bool = False


@cache
def state_of(epoch: int) -> PreparedTxnState:
    return NOTHING if epoch == NO_EPOCH else PreparedTxnState.of(PRODUCER_ID, epoch)


@cache
def row_of(row: ModelRow) -> Row:
    return Row(row.owner, row.cluster, state_of(row.epoch))


@cache
def last_of(last: tuple[int, bool] | None) -> LastEnded | None:
    return None if last is None else LastEnded(state_of(last[0]), last[1])


def epoch_of(state: PreparedTxnState) -> int:
    return state.epoch if state else NO_EPOCH
