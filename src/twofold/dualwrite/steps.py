"""The steps of a dual write. `DualWrite` and its relatives tell an observer what they are about to do; nothing depends
on what the observer does.

By default there is no observer. Tests pass their own, which stops, delays or kills the process at a step. The names are
those of `twofold.dualwrite.protocol.At`, told before the operation, for example:

    take over: read row           write: begin database        write: complete log
    take over: fence log          write: lock row              write: end
    take over: begin database     write: begin log
    take over: own row            write: caller's rows         roll back database
    take over: commit database    write: prepare               write: abort log
    take over: complete log       write: store state           doubt: begin database, lock row, ask log
    take over: end                write: commit database
"""

from collections.abc import Callable

Reached = Callable[[str], None]
TAKE_OVER_END = "take over: end"
WRITE_END = "write: end"


def unobserved(step: str) -> None:
    """The default observer."""
