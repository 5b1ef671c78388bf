"""What people and programs see of a running pipeline: a table that is drawn again on a terminal, lines of text where
there is none, lines of JSON for programs.

A reader that stops reading stops nothing: the pipeline goes on, or comes to its end, without being watched.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from twofold.pipeline.config import PipelineConfig
from twofold.pipeline.running import Activity, SinkProgress

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_EVERY_S = 10.0
COLUMNS = ("SINK", "STATE", "LAST BATCH", "ROWS", "ROWS/S", "LAG", "OPEN TXNS")


def display_for(config: PipelineConfig, *, as_json: bool) -> "Display":
    """Of its own copies of the streams: what goes into a log file meanwhile (`session.quiet`) is not this."""
    if as_json:
        return JsonLines(config, _copy_of(sys.stdout, 1))
    stream = _copy_of(sys.stderr, 2)
    return Table(config, stream) if stream.isatty() else Display(config, stream)


def _copy_of(stream: TextIO, number: int) -> TextIO:
    stream.flush()
    return os.fdopen(os.dup(number), "w", buffering=1, encoding="utf-8", errors="replace")


class Display:
    """Lines of text. `show` as often as anything may have changed; it prints as often as that is useful."""

    def __init__(self, config: PipelineConfig, stream: TextIO) -> None:
        self._config = config
        self._stream = stream
        self._started = time.monotonic()
        self._line_at = self._started
        self._open: Mapping[str, int] = {}
        self._rows: Sequence[SinkProgress] = ()

    def __enter__(self) -> "Display":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._stream.close()

    def say(self, text: str) -> None:
        self._write(f"{self._config.name}: {text}")

    def set_open(self, counts: Mapping[str, int]) -> None:
        """How many transactions each sink has open; nothing where that is not known."""
        self._open = counts

    def show(self, rows: Sequence[SinkProgress]) -> None:
        self._rows = rows
        if time.monotonic() - self._line_at >= LINE_EVERY_S:
            self._line_at = time.monotonic()
            self._print(rows)

    def finish(self) -> None:
        """The last word about every sink."""
        self._open = {}
        self._print(self._rows)

    def _print(self, rows: Sequence[SinkProgress]) -> None:
        for row in rows:
            self._write(self._line(row))

    def _line(self, row: SinkProgress) -> str:
        whose = f"{self._config.name}.{row.name}"
        if row.activity is Activity.STARTING:
            return f"{whose}: no batch yet"
        lag = "" if row.lag is None else f", lag {row.lag:,}"
        count = self._open.get(row.name)
        opened = "" if count is None else f", {count} open transaction{'' if count == 1 else 's'}"
        if row.activity is Activity.IDLE:
            batch = "no batch yet" if row.batch_id < 0 else f"last batch {row.batch_id}"
            return f"{whose}: idle, {batch}, {row.rows:,} rows in this run{lag}{opened}"
        return f"{whose}: batch {row.batch_id}, {row.rows:,} rows, {row.rows_per_s:,.0f} rows/s{lag}{opened}"

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text + "\n")


class JsonLines(Display):
    """One object a line: what is said, and every change of a sink."""

    def __init__(self, config: PipelineConfig, stream: TextIO) -> None:
        super().__init__(config, stream)
        self._shown: dict[str, tuple[object, ...]] = {}

    def say(self, text: str) -> None:
        self._object("message", text=text)

    def show(self, rows: Sequence[SinkProgress]) -> None:
        self._rows = rows
        for row in rows:
            state = (row.activity, row.batch_id, row.rows)
            if row.activity is not Activity.STARTING and self._shown.get(row.name) != state:
                self._shown[row.name] = state
                self._progress("progress", row)

    def finish(self) -> None:
        self._open = {}
        for row in self._rows:
            self._progress("end", row)

    def _progress(self, event: str, row: SinkProgress) -> None:
        self._object(
            event,
            sink=row.name,
            state=row.activity.value,
            batch_id=None if row.batch_id < 0 else row.batch_id,
            rows=row.rows,
            rows_per_s=round(row.rows_per_s, 1),
            lag=row.lag,
            open_transactions=self._open.get(row.name),
        )

    def _object(self, event: str, **values: Any) -> None:
        self._write(json.dumps({"event": event, "pipeline": self._config.name, **values}, ensure_ascii=False))


class Table(Display):
    """Drawn again and again in its place, and gone at the end: the last word is in lines."""

    def __init__(self, config: PipelineConfig, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(config, stream)
        self._console: Console = Console(file=stream, highlight=False, markup=False)
        self._live = Live(self._table(()), console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "Display":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # a terminal that was closed
            self._live.stop()
        super().__exit__(kind, error, trace)

    def show(self, rows: Sequence[SinkProgress]) -> None:
        self._rows = rows
        with suppress(OSError):
            self._live.update(self._table(rows))

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self._console.print(text, soft_wrap=True)

    def _table(self, rows: Sequence[SinkProgress]) -> "RenderableType":
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        seconds = int(time.monotonic() - self._started)
        title = Text(f"{self._config.name}, {seconds // 60}:{seconds % 60:02}, Ctrl-C stops it", overflow="ellipsis")
        if not rows:
            return Group(title, Text("Spark is starting"))
        table = RichTable(box=None, pad_edge=False, header_style="bold")
        for name in COLUMNS:
            if name == "SINK":
                table.add_column(name, overflow="fold")
            else:
                table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            numbers = ("", "", "", "") if row.activity is Activity.STARTING else self._numbers(row)
            table.add_row(row.name, row.activity.value, *numbers, str(self._open.get(row.name, "")))
        return Group(title, table)

    def _numbers(self, row: SinkProgress) -> tuple[str, str, str, str]:
        batch = "none" if row.batch_id < 0 else str(row.batch_id)
        lag = "?" if row.lag is None else f"{row.lag:,}"
        return batch, f"{row.rows:,}", f"{row.rows_per_s:,.0f}", lag
