"""The demo on the terminal: steps that are done, the one at work, and how many rows are where."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Display:
    def __init__(self, console: Console, counts: Callable[[], Mapping[str, int]]) -> None:
        """`counts`: rows by what they are; the first is what the others are measured by."""
        self._console, self._counts = console, counts
        self._step = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console)
        self._bars = Progress(
            TextColumn("{task.description:>20}"), BarColumn(50), TextColumn("{task.completed:>7,.0f}"), console=console
        )
        self._tasks = {name: self._bars.add_task(name) for name in counts()}
        self._started = time.monotonic()
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=5)

    def __enter__(self) -> "Display":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._console.print()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        task = self._step.add_task(what, total=None)
        yield
        self._step.remove_task(task)
        now = time.monotonic()
        self._console.print(f"[dim]{now - self._started:6.1f} s[/]  {what} [dim]({now - began:.1f} s)")

    def _render(self) -> RenderableType:
        counts = self._counts()
        total = next(iter(counts.values()))
        for name, count in counts.items():
            self._bars.update(self._tasks[name], total=total, completed=count)
        return Group(self._step, self._bars)
