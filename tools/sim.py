"""Run a simulator on a range of seeds, on several cores.

    .venv/bin/python tools/sim.py 0 10000 --jobs 2
    .venv/bin/python tools/sim.py 0 10000 --jobs 2 --kind transactions

Prints the seeds that fail, each with the way to run it alone, and how fast it goes. `make sim` does the same through
pytest, on one core.
"""

import argparse
import importlib
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS / "sim"), str(TESTS / "log"), str(TESTS)]

REPORT_EVERY_S = 5.0


# Module and function of each.
KINDS = {
    "broker": ("sim_run", "simulate"),
    "groups": ("sim_groups", "simulate_group"),
    "transactions": ("sim_txn_world", "simulate_txn"),
}


def run(kind: str, seed: int) -> str | None:
    """What went wrong, if anything did."""
    module, name = KINDS[kind]
    simulate = getattr(importlib.import_module(module), name)
    try:
        simulate(seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{error.__notes__[-1]}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate a broker under random faults, one run for each seed.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="one past the last seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, default="broker")
    options = parser.parse_args()
    seeds = range(options.first, options.last)
    started = reported = time.monotonic()
    failed = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for count, (seed, problem) in enumerate(
            zip(seeds, pool.map(partial(run, options.kind), seeds), strict=True), 1
        ):
            if problem is not None:
                failed += 1
                print(f"seed {seed}: {problem}", flush=True)
            now = time.monotonic()
            if now - reported >= REPORT_EVERY_S or count == len(seeds):
                reported = now
                print(
                    f"{count} of {len(seeds)} seeds, {failed} failed, {count / (now - started):.1f} seeds/s", flush=True
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
