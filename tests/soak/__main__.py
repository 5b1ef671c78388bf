"""`python -m soak --minutes 30 --seed 1` (with `tests` on the path; `make soak` does it)."""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from soak.report import plot, print_report, write_json
from soak.run import Plan, Soak

BUILD = Path(__file__).resolve().parents[2] / "build"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="soak", description="Mixed load with kill -9 of the broker, then the reckoning."
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-every", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of all rates; 1.0 leaves a machine of 2 cores some air"
    )
    parser.add_argument("--folder", type=Path, default=BUILD / "soak", help="data and journals; made anew")
    parser.add_argument("--only", default="", help="loads by name, with commas between them; readers need wide")
    options = parser.parse_args()
    only = tuple(name for name in options.only.split(",") if name)
    plan = Plan(options.minutes * 60, options.seed, options.kill_every, options.scale, only)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=plan.seconds)

        def show(done_s: float, soak: Soak) -> None:
            told = f"{soak.phase}: {len(soak.watch.kills)} kills, {soak.acknowledged():,} acknowledged"
            if soak.watch.samples:
                told += f", {soak.watch.samples[-1].rss_bytes / 1e6:.0f} MB"
            bar.update(task, completed=done_s, description=told)

        result = Soak(options.folder, plan, show).run()
    write_json(result, BUILD / "soak.json")
    plot(result, BUILD / "soak.png")
    print_report(result, console)
    console.print(f"{BUILD / 'soak.json'} has every sample, {BUILD / 'soak.png'} shows them")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
