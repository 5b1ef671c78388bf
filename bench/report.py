"""Where results go: tables on the terminal, JSON in `bench/results/`, and one page with plots in `bench/report/`."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from bench.pictures import draw_all

T = TypeVar("T")
HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE / "report"
console = Console()


def progress(items: Iterable[T], label: str) -> Iterator[T]:
    yield from track(items, description=f"{label:>28}", console=Console(stderr=True), transient=True)


class Report:
    def __init__(self, *, quiet: bool = False) -> None:
        """A quiet one shows no tables: the results are wanted as JSON."""
        self.quiet = quiet
        self.results: dict[str, dict[str, Any]] = {}
        self.tables: list[Table] = []
        self.load_before = os.getloadavg()[0]

    def add(self, suite: str, row: str, values: dict[str, Any]) -> None:
        self.results.setdefault(suite, {})[row] = values

    def show(self, table: Table) -> None:
        self.tables.append(table)
        if not self.quiet:
            console.print(table)

    def as_json(self) -> str:
        return json.dumps(self.results, indent=2)

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
        path.write_text(self.as_json())
        return path

    def write_page(self, directory: Path = PAGE) -> Path:
        """Everything that was measured in this run; the page of an earlier one is replaced."""
        directory.mkdir(exist_ok=True)
        for old in directory.glob("*.svg"):
            old.unlink()
        pictures = draw_all(self.results, directory)
        parts = ["# Benchmarks of one run", self._where()]
        parts += [f"![{suite}]({name})" for suite, name in pictures.items()]
        parts += [as_markdown(table) for table in self.tables]
        path = directory / "README.md"
        path.write_text("\n\n".join(parts) + "\n")
        (directory / "results.json").write_text(self.as_json() + "\n")
        return path

    def _where(self) -> str:
        """What a reader needs to judge figures: only ratios travel, and not from a busy machine."""
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
        )
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        return (
            f"Commit {commit.stdout.strip() or 'unknown'}, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, "
            f"{memory:.0f} GB, Python {platform.python_version()}; load before the run {self.load_before:.1f}. "
            "All contenders share the cores with their clients. Only ratios travel between machines."
        )


def as_markdown(table: Table) -> str:
    columns = [[plain(column.header), *(plain(cell) for cell in column.cells)] for column in table.columns]
    head, *rows = zip(*columns, strict=True)
    lines = [f"## {plain(table.title or '')}", "", line(head), "|---" * len(head) + "|", *map(line, rows)]
    if table.caption:
        lines += ["", plain(table.caption)]
    return "\n".join(lines)


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plain(value: Any) -> str:
    return Text.from_markup(value).plain if isinstance(value, str) else str(value)
