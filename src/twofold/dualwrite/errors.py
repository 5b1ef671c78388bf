"""What a dual write tells its caller when it is not simply done.

    DualWriteError
     +- NotDone              neither the database nor the log has it, and neither ever will: safe to repeat
     |   +- TakenOver        and another process is the writer of this transactional id now: this one is over
     |   +- NoFreeSlot       and all slots of the pool are in use
     +- DecidedNotVisible    the database has it, and the log will show it as soon as it answers: do not repeat
     +- OutcomeUnknown       COMMIT was sent, and the database did not answer: `settle()` tells, do not repeat before
     +- Disagreement         the row and the log contradict each other, and nothing was ended: a person has to look
     |   +- DatabaseBehind   the database lacks what the log has committed: an old backup, a replica, another database
     |   +- LogAborted       the log has aborted what the database has committed
     |   +- OtherCluster     the row belongs to another cluster
     +- Unsuitable           the engine, the session or the table cannot be used: nothing was begun
         +- OtherTopic       the offsets of ApplyOnce are of a topic that was deleted, or of another cluster

An exception of the caller's own code leaves the block as it is; nothing was done then. An error of the database that a
second attempt may not meet again (a deadlock, a lock timeout, a serialization failure, a lost connection) leaves it as
the cause of NotDone.
"""

from twofold.client.transactions.prepared import PreparedTxnState


class DualWriteError(Exception):
    """`transactional_id` is the writer's; `state` names the transaction in the log, and is empty before it has one."""

    def __init__(self, message: str, *, transactional_id: str, state: PreparedTxnState | None = None) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.state = state or PreparedTxnState()


class NotDone(DualWriteError):
    """Safe to repeat."""


class TakenOver(NotDone):
    """Another process has taken the transactional id over."""


class NoFreeSlot(NotDone):
    """All slots of a pool stayed in use."""


class DecidedNotVisible(DualWriteError):
    """Do not repeat: it is done, and consumers will see it."""


class OutcomeUnknown(DualWriteError):
    """Do not repeat before `settle()` has told what the database did."""


class Disagreement(DualWriteError):
    """Nothing was ended."""


class DatabaseBehind(Disagreement):
    pass


class LogAborted(Disagreement):
    pass


class OtherCluster(Disagreement):
    pass


class Unsuitable(DualWriteError):
    """Nothing was begun."""

    def __init__(self, message: str, *, transactional_id: str = "", state: PreparedTxnState | None = None) -> None:
        super().__init__(message, transactional_id=transactional_id, state=state)


class OtherTopic(Unsuitable):
    """The rows of ApplyOnce count in a topic that was deleted and made anew, or in the one of another cluster."""
