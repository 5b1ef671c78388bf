"""What came of a soak: a table, a file of JSON, a plot."""

import json
import statistics
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from soak.run import Result
from soak.watch import Sample, at_age

MB = 1e6


def print_report(result: Result, console: Console) -> None:
    plan = result.plan
    table = Table(title=f"soak: {plan.seconds / 60:.1f} minutes, seed {plan.seed}, {len(result.kills)} kills")
    table.add_column("load")
    table.add_column("records", justify="right")
    table.add_column("and")
    for name, row in result.checks.items():
        rest = ", ".join(f"{key} {value:,}" for key, value in row.items() if key != "records")
        table.add_row(name, f"{row.get('records', 0):,}", rest)
    console.print(table)
    for line in facts(result):
        console.print(line)
    if result.failures:
        console.print(
            f"[bold red]FAILED[/]: {len(result.failures)} things are wrong (seed {plan.seed}, {result.folder})"
        )
        for failure in result.failures:
            console.print(f"  - {failure}", markup=False)
    else:
        console.print("[bold green]nothing lost, nothing doubled, order kept, memory flat, nothing leaked[/]")


def facts(result: Result) -> list[str]:
    lines = []
    if result.restarts_s:
        median, worst = statistics.median(result.restarts_s), max(result.restarts_s)
        lines.append(f"start after a kill: median {median:.2f} s, worst {worst:.2f} s")
    memory = result.memory
    if memory:
        lines.append(
            f"memory at the age of {memory['age_s']:.0f} s: {memory['first_third_bytes'] / MB:.1f} MB in the first "
            f"lives, {memory['last_third_bytes'] / MB:.1f} MB in the last; trend "
            f"{memory['trend_bytes_an_hour'] / MB:+.1f} MB/h; "
            f"within the last life {memory['last_life_bytes_a_minute'] / MB:+.2f} MB/min"
        )
        lines.append(
            f"open files at that age: {memory['files_first_third']:.0f} in the first lives, "
            f"{memory['files_last_third']:.0f} in the last"
        )
    for when, row in result.idle.items():
        lines.append(
            f"without clients, {when}: {row['sockets']:.0f} sockets, {row['files']:.0f} files ({row['deleted']:.0f} "
            f"deleted), {row['tasks']:.0f} tasks, {row['rss_bytes'] / MB:.1f} MB"
        )
    return lines


def write_json(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    told = asdict(result)
    told["lives"] = [sample.row() for sample in lives(result)]
    path.write_text(json.dumps(told, indent=1) + "\n")


def lives(result: Result) -> list[Sample]:
    """Those of the load; what comes after it has no clients."""
    loaded = [sample for sample in result.samples if sample.time_s <= result.plan.seconds]
    return at_age(loaded, result.memory.get("age_s", 0.7 * result.plan.kill_every_s))


def plot(result: Result, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(3, 1, figsize=(10, 8), sharex=True)
    minutes = [sample.time_s / 60 for sample in result.samples]
    same_age = lives(result)
    axes[0].plot(minutes, [sample.rss_bytes / MB for sample in result.samples], ".", ms=2, color="0.6", label="all")
    axes[0].plot(
        [s.time_s / 60 for s in same_age], [s.rss_bytes / MB for s in same_age], "o-", ms=3, label="each life, same age"
    )
    axes[0].set_ylabel("resident MB")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(loc="lower right")
    axes[1].plot(minutes, [sample.files for sample in result.samples], ".", ms=2, label="files")
    axes[1].plot(minutes, [sample.sockets for sample in result.samples], ".", ms=2, label="sockets")
    axes[1].plot(minutes, [max(sample.tasks, 0) for sample in result.samples], ".", ms=2, label="tasks")
    axes[1].set_ylabel("open")
    axes[1].legend(loc="lower right")
    axes[2].plot(minutes, [sample.acknowledged / 1000 for sample in result.samples])
    axes[2].set_ylabel("thousand acknowledged")
    axes[2].set_xlabel("minutes")
    for axis in axes:
        for kill in result.kills:
            axis.axvline(kill / 60, color="r", alpha=0.15, lw=0.8)
    figure.suptitle(f"soak, seed {result.plan.seed}: {len(result.kills)} times kill -9")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
