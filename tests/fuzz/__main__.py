"""`make fuzz MINUTES=60`: coverage-guided fuzzing of all targets, one after the other, in rounds.

The corpus grows in `.cache/fuzz/corpus`, so that a later run goes on where this one ended. A finding is kept in
`.cache/fuzz/findings` and printed as the row to add to `test_fuzz_regressions`. Exits with 1 where there is one.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fuzz.targets import TARGETS

ROOT = Path(__file__).parent.parent.parent
CACHE = ROOT / ".cache" / "fuzz"
SLICE_S = 150  # of a target with weight 1: to begin takes a child some ten seconds
START_S = 60  # what a child may take to begin and to end
STATUS = re.compile(r"^#(\d+)\s.*?cov: (\d+) ft: (\d+) corp: (\d+)", re.MULTILINE)
EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


class Tally:
    """What was done for one target, over all rounds."""

    def __init__(self) -> None:
        self.inputs = 0
        self.coverage = 0
        self.features = 0
        self.corpus = 0
        self.seconds = 0.0

    def add(self, output: str, seconds: float) -> None:
        lines = STATUS.findall(output)
        executed = EXECUTED.search(output)
        if lines:
            last = lines[-1]
            self.inputs += int(executed[1]) if executed else int(last[0])
            self.coverage, self.features, self.corpus = int(last[1]), int(last[2]), int(last[3])
        self.seconds += seconds


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--targets", type=lambda text: text.split(","), default=list(TARGETS))
    parser.add_argument("--summary", default="summary", help="the name of the file with the numbers")
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]!r}: choose from {', '.join(TARGETS)}")
    console = Console()
    tallies = {name: Tally() for name in options.targets}
    plan = _plan(options.targets, options.minutes * 60)
    before = set(_findings())
    with Progress(
        TextColumn("{task.description:>20}"), BarColumn(), TextColumn("{task.fields[inputs]:,} inputs"),
        TimeRemainingColumn(), console=console,
    ) as progress:  # fmt: skip
        task = progress.add_task("fuzz", total=sum(seconds for _, seconds in plan), inputs=0)
        for name, seconds in plan:
            progress.update(task, description=name)
            _run(name, seconds, tallies[name])
            progress.update(task, advance=seconds, inputs=sum(tally.inputs for tally in tallies.values()))
            _save(tallies, options.summary)
    _show(console, tallies)
    found = [path for path in _findings() if path not in before]
    for path in found:
        _print_regression(console, path)
    return 1 if found else 0


def _plan(names: list[str], seconds: float) -> list[tuple[str, int]]:
    """Rounds over all targets, so that an early end has seen each of them."""
    weights = sum(TARGETS[name].weight for name in names)
    rounds = max(1, round(seconds / (weights * SLICE_S)))
    unit = seconds / weights / rounds
    return [(name, max(1, round(unit * TARGETS[name].weight))) for _ in range(rounds) for name in names]


def _run(name: str, seconds: int, tally: Tally) -> None:
    arguments = [name, str(CACHE / "corpus" / name), str(CACHE / "findings"), str(seconds)]
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    started = time.monotonic()
    for folder in ("logs", "findings"):
        (CACHE / folder).mkdir(parents=True, exist_ok=True)
    log = CACHE / "logs" / f"{name}.log"
    with log.open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "fuzz.child", *arguments],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, stdout=output, stderr=output,
            timeout=seconds + START_S * 5, check=False,
        )  # fmt: skip
    tally.add(log.read_text(errors="replace"), time.monotonic() - started)


def _save(tallies: dict[str, Tally], name: str) -> None:
    """After every slice: what was done is known whatever ends the run."""
    rows = {target: vars(tally) for target, tally in tallies.items()}
    (CACHE / f"{name}.json").write_text(json.dumps(rows, indent=1))


def _findings() -> list[Path]:
    folder = CACHE / "findings"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _show(console: Console, tallies: dict[str, Tally]) -> None:
    table = Table("target", "inputs", "branches", "features", "corpus", "seconds")
    for name, tally in tallies.items():
        numbers = (tally.inputs, tally.coverage, tally.features, tally.corpus, round(tally.seconds))
        table.add_row(name, *(f"{number:,}" for number in numbers))
    console.print(table)


def _print_regression(console: Console, path: Path) -> None:
    console.rule(str(path.relative_to(ROOT)))
    if path.suffix != ".json":  # libFuzzer's own: a timeout, or memory
        target = path.name.split("-")[0]
        console.print(f'    ("{target}", "{path.read_bytes().hex()}"),  # {path.name.split("-")[1]}', soft_wrap=True)
        return
    row = json.loads(path.read_text())
    console.print(row["trace"], markup=False)
    console.print(f'    ("{row["target"]}", "{row["input"]}"),  # {row["place"]}', markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
