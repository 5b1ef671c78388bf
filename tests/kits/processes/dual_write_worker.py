"""A writer of examples/dual_write.py that says every step, and stops or kills itself at one. Run by the tests as

python dual_write_worker.py ADDRESS DATABASE NAME ORDERS PATIENCE_S [STEP TIMES SIGNAL]

NAME is its topic and its transactional id. With STEP it sends SIGNAL to itself when it reaches STEP for the TIMES-th
time. It exits with 3, after a line that says why, when another writer has taken over or the database is locked.
"""

import importlib.util
import os
import signal
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

from twofold.errors import Fenced

EXAMPLE = Path(__file__).parents[3] / "examples" / "dual_write.py"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("dual_write", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.TOPIC = module.TRANSACTIONAL_ID = name  # type: ignore[attr-defined]
    return module


def main(address: str, database: str, name: str, orders: str, patience_s: str, *ending: str) -> int:
    dual_write, seen = example(name), Counter[str]()

    def reached(step: str) -> None:
        seen[step] += 1
        print(step, flush=True)
        if ending and (step, str(seen[step])) == ending[:2]:
            os.kill(os.getpid(), signal.Signals[ending[2]])

    try:
        dual_write.work(address, database, int(orders), reached, float(patience_s))
    except (dual_write.TakenOver, Fenced, sqlite3.OperationalError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
