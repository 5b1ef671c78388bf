"""Where the protocol stands, for those who want to see it fail there: `reached("decided")` does nothing unless the
environment names a function to call with it, as `TWOFOLD_SINK_STEPS=package.module:function`. The names are in STEPS.
"""

import os
from collections.abc import Callable
from importlib import import_module

HOOK = "TWOFOLD_SINK_STEPS"
STEPS = (
    "start",
    "start: fenced",
    "start: settled",
    "task",
    "task: opened",
    "task: written",
    "task: prepared",
    "commit",
    "commit: checked",
    "commit: decided",
    "commit: one ended",
    "commit: ended",
    "commit: done",
    "abort",
    # A record of the journal is written, and its transaction is open: one for each kind of record.
    "journal: owner",
    "journal: commit",
    "journal: done",
    "journal: revoke",
    "journal: abort",
    "journal: note",
    "journal: moved",
)


def _find() -> Callable[[str], None] | None:
    module, _, name = os.environ.get(HOOK, "").partition(":")
    if not module:
        return None
    found: Callable[[str], None] = getattr(import_module(module), name)
    return found


_hook = _find()


def reached(step: str) -> None:
    if _hook is not None:
        _hook(step)
