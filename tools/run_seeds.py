"""Run the simulator on many seeds, on all cores, and show what fails as small as it can be made.

    .venv/bin/python tools/run_seeds.py                                   10,000 seeds over all worlds: `make sim`
    .venv/bin/python tools/run_seeds.py --world mixed --first 500 --seeds 100
    .venv/bin/python tools/run_seeds.py --world mixed --seed 12 --keep writers=0   one run, of a part of its plan

Every seed is a run of its own, and the same on every machine. A failing one is run again with less and less of its plan
(clients, faults, time) while it still fails; what is left is printed with its trace and the command that repeats it.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "sim"), str(TESTS / "log"), str(TESTS)]

from sim_shrink import shrink  # noqa: E402
from sim_worlds import KINDS, Failure, run  # noqa: E402

SEEDS = 10_000
CHUNK = 4
MAX_SEED_S = 180
"""Of real time: a run that takes longer than that is caught in a loop."""
SHOWN_FAILURES = 5


class Chunk(NamedTuple):
    kind: str
    first: int
    count: int


class Stuck(Exception):
    """A run that does not come to an end."""


def run_chunk(chunk: Chunk) -> tuple[Chunk, list[Failure], float]:
    """What failed of it, and the seconds that it took of a core."""
    started = time.process_time()
    failures = []
    signal.signal(signal.SIGALRM, _on_alarm)
    for seed in range(chunk.first, chunk.first + chunk.count):
        signal.alarm(MAX_SEED_S)
        try:
            failure = run(chunk.kind, seed)
        except Stuck as error:
            failure = Failure(chunk.kind, seed, (), type(error).__name__, f"{error}", ())
        finally:
            signal.alarm(0)
        if failure is not None:
            failures.append(failure)
    return chunk, failures, time.process_time() - started


def _on_alarm(*_: object) -> None:
    raise Stuck(f"not over after {MAX_SEED_S} s of real time")


def shared_out(worlds: Sequence[str], seeds: int, first: int) -> Iterator[Chunk]:
    """Each world its share of the seeds, in turns, so that a run that is cut short has seen all of them."""
    total = sum(KINDS[kind].share for kind in worlds)
    wanted = {kind: round(seeds * KINDS[kind].share / total) for kind in worlds}
    wanted[worlds[0]] += seeds - sum(wanted.values())
    done = dict.fromkeys(worlds, 0)
    while any(done[kind] < wanted[kind] for kind in worlds):
        kind = min((k for k in worlds if done[k] < wanted[k]), key=lambda k: done[k] / wanted[k])
        count = min(CHUNK, wanted[kind] - done[kind])
        yield Chunk(kind, first + done[kind], count)
        done[kind] += count


def run_all(
    chunks: Sequence[Chunk], processes: int, limit_s: float, report: Path | None = None
) -> tuple[dict[str, Any], list[Failure]]:
    """Progress while it runs; then how many of each world, and what failed."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("[red]{task.fields[failed]} failed"),
    )  # fmt: skip
    counts: dict[str, dict[str, float]] = {}
    failures: list[Failure] = []
    until = time.monotonic() + limit_s
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool,
    ):
        bar = progress.add_task("seeds", total=sum(chunk.count for chunk in chunks), failed=0)
        waiting = [pool.submit(run_chunk, chunk) for chunk in chunks]
        for future in as_completed(waiting):
            if future.cancelled():
                continue
            chunk, failed, spent_s = future.result()
            row = counts.setdefault(chunk.kind, {"seeds": 0, "failed": 0, "seconds": 0.0})
            row["seeds"] += chunk.count
            row["failed"] += len(failed)
            row["seconds"] = round(row["seconds"] + spent_s, 1)
            failures += failed
            for failure in failed:
                console.print(f"{failure.kind} seed {failure.seed}: {failure.invariant[:300]}", markup=False)
            progress.update(bar, advance=chunk.count, failed=len(failures))
            if report is not None:
                failed_seeds = [(failure.kind, failure.seed, failure.invariant[:300]) for failure in failures]
                report.write_text(json.dumps({"worlds": counts, "failed": failed_seeds}, indent=1))
            if time.monotonic() > until:
                for rest in waiting:
                    rest.cancel()
    return counts, failures


def show(failure: Failure, *, shrinks: bool) -> None:
    """What a person needs to see: what does not hold, in how small a run, and what happened before."""
    if shrinks and failure.error != Stuck.__name__:
        failure = shrink(failure)
    print(f"\n=== {failure.kind} seed {failure.seed}: {failure.error}\n{failure.invariant}\n")
    print("what happened (the last of it):")
    for line in failure.trace:
        print(f"  {line[:200]}")
    print(f"\nagain: {failure.command}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate brokers and clients under random faults, one run a seed.")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0, help="the first seed of every world")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--world", choices=KINDS, action="append", help="all worlds by their shares, if none is given")
    parser.add_argument("--seed", type=int, help="one seed of one world, here and now")
    parser.add_argument("--keep", action="append", default=[], metavar="PART=INDEXES", help="a part of a seed's plan")
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing more after this long")
    parser.add_argument("--report", type=Path, help="keep the counts there, as JSON")
    options = parser.parse_args()
    worlds = options.world or list(KINDS)
    if options.seed is not None:
        return run_one(worlds[0], options.seed, options.keep)
    started = time.monotonic()
    chunks = list(shared_out(worlds, options.seeds, options.first))
    counts, failures = run_all(chunks, options.processes, options.minutes * 60, options.report)
    took_s = time.monotonic() - started
    done = sum(int(row["seeds"]) for row in counts.values())
    for failure in failures[:SHOWN_FAILURES]:
        show(failure, shrinks=options.shrink)
    for kind, row in counts.items():
        each_s = row["seconds"] / row["seeds"]
        print(f"{kind:14}{int(row['seeds']):6} seeds, {int(row['failed'])} failed, {each_s:.2f} s of a core each")
    print(f"{done} seeds in {took_s:.0f} s on {options.processes} processes, {len(failures)} failed")
    return 1 if failures else 0


def run_one(kind: str, seed: int, changes: Sequence[str]) -> int:
    failure = run(kind, seed, changes)
    if failure is None:
        print(f"{kind} seed {seed}: nothing was found")
        return 0
    show(failure, shrinks=False)
    return 1


if __name__ == "__main__":
    sys.exit(main())
