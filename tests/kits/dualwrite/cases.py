"""Rows of the crash table that hold for every database."""

import signal

from kits.dualwrite.hand import DONE, GAVE_UP
from kits.dualwrite.steps import locked_at
from kits.dualwrite.store import ORDERS, Store, ended_otherwise
from twofold.dualwrite.protocol import At

# Neither is done, or the other process does it, or has done it.
OVER = ("TakenOver", "DecidedNotVisible", "NotDone", "OutcomeUnknown")


def kill_at(store: Store, left: str, step: str) -> None:
    """The process dies at the step; the next one finds everything as it was left."""
    if left:
        store.start_until(left, "SIGKILL")
    store.start_until(step, "SIGKILL")
    store.finish()
    store.check()


def pause_at(store: Store, database: str, left: str, step: str) -> None:
    """The process stops at the step, another one takes over, the process wakes up."""
    if left:
        store.start_until(left, "SIGKILL")
    paused = store.start_until(step, "SIGSTOP", orders=ORDERS + 3)
    other = store.start()
    if step in locked_at(database):
        # The other one has fenced the log and waits for the row.
        other.read_until(At.OWN_BEGIN.value if database == "sqlite" else At.OWN.value)
        paused.wake_up()
        ended_otherwise(paused, OVER)
        # Each had what the other one needs, the log or the row, if both were taking over: the next one gets both.
        assert other.wait() in (DONE, GAVE_UP), other.lines
        store.finish()
        store.check()
        return
    assert other.wait() == DONE, other.lines
    store.check()
    paused.wake_up()
    if step == At.READ.value:  # it has seen nothing yet: it takes over from the other one
        assert paused.wait() == DONE, paused.lines
        store.check(ORDERS + 3)
    else:
        ended_otherwise(paused, OVER)
        store.check()


def take_over_at_once(store: Store, left: str, processes: int = 3) -> None:
    store.start_until(left, "SIGKILL")
    together = [store.start() for _ in range(processes)]
    for process in together:
        assert process.wait() == DONE or process.last_words in OVER, process.lines
    store.finish()
    store.check()


def pause_two_recoveries(store: Store, left: str, first: str, second: str) -> None:
    """Two stop in the middle of their take-over, and wake up in the order in which they stopped."""
    store.start_until(left, "SIGKILL")
    paused = [store.start_until(step, "SIGSTOP") for step in (first, second)]
    for process in paused:
        process.wake_up()
    for process in paused:
        assert process.wait() == DONE or process.last_words in OVER, process.lines
    store.finish()
    store.check()


def kill_paused(store: Store, step: str) -> None:
    """Another one gives up while the database is locked, and decides nothing."""
    paused = store.start_until(step, "SIGSTOP")
    other = store.start(lock_timeout_s=0.2)
    ended_otherwise(other, ("NotDone",))
    paused.kill()
    assert paused.wait() == -signal.SIGKILL
    store.finish()
    store.check()
