"""The steps of the protocol. The driver, the journal and the task's writer tell an observer which step they have
reached; nothing depends on what the observer does.

By default there is no observer. Tests pass their own, which stops, delays or kills the process at a step:

    start             a batch is about to start            task              a task has rows to write
    start: fenced     the driver before is fenced          task: opened      it has a transaction
    start: settled    what it decided is carried out       task: written     the rows are acknowledged
                                                           task: prepared    only the decision ends the transaction
    commit            all tasks are done
    commit: checked   their transactions are open          journal: <kind>   a record of that kind is written, and its
    commit: decided   the decision is in the journal                         transaction is still open
    commit: one ended one transaction is committed
    commit: ended     all are                              abort             Spark has given the batch up
    commit: done      the journal says so
"""

from collections.abc import Callable

Reached = Callable[[str], None]


def unobserved(step: str) -> None:
    """The default observer."""
