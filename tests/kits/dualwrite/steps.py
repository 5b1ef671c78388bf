"""The steps of a dual write that the tests kill and pause at, and what is locked there."""

from twofold.dualwrite.protocol import At
from twofold.dualwrite.steps import TAKE_OVER_END, WRITE_END

TAKE_OVER = tuple(at.value for at in At if at.value.startswith("take over: "))
WRITE = tuple(at.value for at in At if at.value.startswith("write: ") and at is not At.ABORT)
TAKING_OVER = (*TAKE_OVER, TAKE_OVER_END)
WRITING = (*WRITE, WRITE_END)
PREPARED, DECIDED = At.STORE.value, At.COMPLETE.value
"""What a writer leaves that is killed there: prepared and not decided, decided and not completed."""

# Told before the operation: at the step after it, the lock is held.
ROW_LOCKED = (
    *(At.OWN_COMMIT.value,),
    *(At.BEGIN_LOG.value, At.CALLER.value, At.PREPARE.value, At.STORE.value, At.COMMIT.value),
)
DATABASE_LOCKED = (At.OWN.value, At.LOCK.value, *ROW_LOCKED)


def locked_at(database: str) -> tuple[str, ...]:
    """Where another process waits for the one that is paused. SQLite locks the whole database with its begin."""
    return DATABASE_LOCKED if database == "sqlite" else ROW_LOCKED


def every_step() -> list[tuple[str, str]]:
    """Every step of a writer, and every step of a take-over from one that had prepared, or decided."""
    return [("", step) for step in WRITING] + [(left, step) for left in (PREPARED, DECIDED) for step in TAKING_OVER]
