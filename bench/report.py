"""Where results go: tables on the terminal, JSON in `bench/results/`."""

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"
console = Console()


def progress(items: Iterable[T], label: str) -> Iterator[T]:
    yield from track(items, description=f"{label:>28}", console=Console(stderr=True), transient=True)


class Report:
    def __init__(self, *, quiet: bool = False) -> None:
        """A quiet one shows no tables: the results are wanted as JSON."""
        self.quiet = quiet
        self.results: dict[str, dict[str, Any]] = {}

    def add(self, suite: str, row: str, values: dict[str, Any]) -> None:
        self.results.setdefault(suite, {})[row] = values

    def show(self, table: object) -> None:
        if not self.quiet:
            console.print(table)

    def as_json(self) -> str:
        return json.dumps(self.results, indent=2)

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
        path.write_text(self.as_json())
        return path
