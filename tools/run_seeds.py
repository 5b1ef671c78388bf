"""Run the simulator on many seeds, on all cores, and show what fails as small as it can be made.

    .venv/bin/python tools/run_seeds.py                                   10,000 seeds over all worlds: `make sim`
    .venv/bin/python tools/run_seeds.py --world mixed --first 500 --seeds 100
    .venv/bin/python tools/run_seeds.py --world mixed --seed 12 --keep writers=0   one run, of a part of its plan
    .venv/bin/python tools/run_seeds.py --ledger seeds.json --minutes 20   a slice; the same again goes on from there

Every seed is a run of its own, and the same on every machine. A failing one is run again with less and less of its plan
(clients, faults, time) while it still fails; what is left is printed with its trace and the command that repeats it.
"""

import argparse
import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
sys.path.insert(0, str(TESTS))

from sim.shrink import shrink  # noqa: E402
from sim.worlds import KINDS, Failure, run  # noqa: E402

SEEDS = 10_000
CHUNK = 4
MAX_SEED_S = 180
"""Of processor time: a run that takes longer than that is caught in a loop, however busy the machine is."""
SHOWN_FAILURES = 5


class Chunk(NamedTuple):
    kind: str
    first: int
    seeds: int


class Stuck(Exception):
    """A run that does not come to an end."""


def prepare() -> None:
    """Modules stay to the end: the collector need not look at them, which costs a sixth of the time."""
    for world in KINDS.values():
        importlib.import_module(world.module)
    gc.freeze()


def run_chunk(chunk: Chunk) -> tuple[Chunk, list[Failure], float]:
    """What failed of it, and the seconds that it took of a core."""
    started = time.process_time()
    failures = []
    signal.signal(signal.SIGPROF, _on_alarm)
    for seed in range(chunk.first, chunk.first + chunk.seeds):
        signal.setitimer(signal.ITIMER_PROF, MAX_SEED_S)
        try:
            failure = run(chunk.kind, seed)
        except Stuck as error:
            failure = Failure(chunk.kind, seed, (), type(error).__name__, f"{error}", ())
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if failure is not None:
            failures.append(failure)
    return chunk, failures, time.process_time() - started


def _on_alarm(*_: object) -> None:
    raise Stuck(f"not over after {MAX_SEED_S} s of processor time")


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


class Ledger:
    """What was run and what came of it, in a file if one is given, so that a run can be made in slices.

    Slices count together only if they ran the same code: a ledger of other sources is refused.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._sources = digest_of_sources() if path else ""
        self.done: set[Chunk] = set()
        self.counts: dict[str, dict[str, float]] = {}
        self.failed: list[tuple[str, int, str]] = []
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        kept = json.loads(path.read_text())
        if kept["sources"] != self._sources:
            raise SystemExit(f"{path} counts seeds of other sources than these: remove it, or give another --ledger")
        self.done = {Chunk(*row) for row in kept["done"]}
        self.counts = kept["worlds"]
        self.failed = [(kind, seed, what) for kind, seed, what in kept["failed"]]

    def add(self, chunk: Chunk, failures: Sequence[Failure], spent_s: float) -> None:
        row = self.counts.setdefault(chunk.kind, {"seeds": 0, "failed": 0, "seconds": 0.0})
        row["seeds"] += chunk.seeds
        row["failed"] += len(failures)
        row["seconds"] = round(row["seconds"] + spent_s, 1)
        self.done.add(chunk)
        self.failed += [(failure.kind, failure.seed, failure.invariant[:300]) for failure in failures]
        if self._path is not None:
            kept = {"sources": self._sources, "worlds": self.counts, "failed": self.failed, "done": sorted(self.done)}
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(kept))
            partial.replace(self._path)

    @property
    def seeds(self) -> int:
        return sum(int(row["seeds"]) for row in self.counts.values())


def digest_of_sources() -> str:
    digest = hashlib.sha256()
    folders = (ROOT / "src", TESTS / "sim", TESTS / "kits")
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run_all(chunks: Sequence[Chunk], ledger: Ledger, processes: int, limit_s: float) -> list[Failure]:
    """Run what the ledger lacks, with progress while it runs; returns what failed now."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("[red]{task.fields[failed]} failed"),
    )  # fmt: skip
    failures: list[Failure] = []
    until = time.monotonic() + limit_s
    left = [chunk for chunk in chunks if chunk not in ledger.done]
    total = sum(chunk.seeds for chunk in chunks)
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), prepare) as pool,
    ):
        before = total - sum(chunk.seeds for chunk in left)
        bar = progress.add_task("seeds", total=total, completed=before, failed=len(ledger.failed))
        waiting = [pool.submit(run_chunk, chunk) for chunk in left]
        for future in as_completed(waiting):
            if future.cancelled():
                continue
            chunk, failed, spent_s = future.result()
            ledger.add(chunk, failed, spent_s)
            failures += failed
            for failure in failed:
                console.print(f"{failure.kind} seed {failure.seed}: {failure.invariant[:300]}", markup=False)
            progress.update(bar, advance=chunk.seeds, failed=len(ledger.failed))
            if time.monotonic() > until:
                for rest in waiting:
                    rest.cancel()
    return failures


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
    parser.add_argument(
        "--ledger", type=Path, help="keep what was run there, as JSON; the same command again runs what is left"
    )
    options = parser.parse_args()
    worlds = options.world or list(KINDS)
    if options.seed is not None:
        return run_one(worlds[0], options.seed, options.keep)
    started = time.monotonic()
    chunks = list(shared_out(worlds, options.seeds, options.first))
    ledger = Ledger(options.ledger)
    failures = run_all(chunks, ledger, options.processes, options.minutes * 60)
    took_s = time.monotonic() - started
    for failure in failures[:SHOWN_FAILURES]:
        show(failure, shrinks=options.shrink)
    for kind, row in ledger.counts.items():
        each_s = row["seconds"] / row["seeds"]
        print(f"{kind:14}{int(row['seeds']):6} seeds, {int(row['failed'])} failed, {each_s:.2f} s of a core each")
    wanted = sum(chunk.seeds for chunk in chunks)
    print(
        f"{ledger.seeds} of {wanted} seeds, {len(ledger.failed)} failed; "
        f"this time {took_s:.0f} s on {options.processes} processes"
    )
    return 1 if ledger.failed else 0


def run_one(kind: str, seed: int, changes: Sequence[str]) -> int:
    failure = run(kind, seed, changes)
    if failure is None:
        print(f"{kind} seed {seed}: nothing was found")
        return 0
    show(failure, shrinks=False)
    return 1


if __name__ == "__main__":
    sys.exit(main())
