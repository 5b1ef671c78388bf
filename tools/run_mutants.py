"""Plant each bug of tests/mutants in a copy of the sources, and see that the simulator finds it: `make mutants`.

    .venv/bin/python tools/run_mutants.py                    all of them
    .venv/bin/python tools/run_mutants.py lso_too_high       some

A bug counts as found when a checker says what the patch expects, within as many seeds as the patch states, and when the
same seeds find nothing without the patch.
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "mutants"))

from planted import Mutant, find, mutants, passes_without


def judge(mutant: Mutant) -> tuple[Mutant, bool, str]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as mutated, tempfile.TemporaryDirectory() as plain:
        found, failures = find(mutant, Path(mutated))
        if found is None:
            others = [f"{row['world']} {row['seed']}: {row['error']}: {row['invariant'][:150]}" for row in failures]
            return mutant, False, f"not found in {mutant.seeds} seeds of {mutant.worlds}; other failures: {others[:3]}"
        before = passes_without(found, Path(plain))
    took_s = time.monotonic() - started
    if before:
        return mutant, False, f"{before[0]} is there without the patch"
    return mutant, True, f"{found.world} seed {found.seed} ({took_s:.0f} s): {found.invariant[:160]}"


def main() -> int:
    parser = argparse.ArgumentParser(description="See that the simulator finds the bugs that were planted for it.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if not options.names or mutant.name in options.names]
    missed = 0
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(options.processes) as pool:
        bar = progress.add_task("mutants", total=len(chosen))
        for mutant, is_found, text in pool.map(judge, chosen):
            missed += not is_found
            print(f"{'found ' if is_found else 'MISSED'} {mutant.name}: {text}", flush=True)
            progress.advance(bar)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
