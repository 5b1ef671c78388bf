"""What people see of a running pipeline: a table that is drawn again on a terminal, lines of text elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from twofold.pipeline.config import PipelineConfig
from twofold.pipeline.running import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LINE_EVERY_S = 10.0


class Display:
    """`show` as often as anything may have changed; it draws as often as that is useful."""

    def __init__(self, console: "Console", config: PipelineConfig) -> None:
        from rich.live import Live

        self._console = console
        self._config = config
        self._started = time.monotonic()
        self._line_at = self._started
        self._open: int | None = None
        self._rows: Sequence[Progress] = ()
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text)

    def set_open(self, count: int | None) -> None:
        """How many transactions of the pipeline are open."""
        self._open = count

    def show(self, rows: Sequence[Progress]) -> None:
        self._rows = rows
        if self._live is not None:
            self._live.update(self._table(rows))
        elif time.monotonic() - self._line_at >= LINE_EVERY_S:
            self._line_at = time.monotonic()
            for row in rows:
                self.say(self._line(row))

    def finish(self) -> None:
        """The last word about every sink."""
        for row in self._rows:
            self.say(self._line(row))

    def _line(self, row: Progress) -> str:
        if row.waiting:
            return f"{self._config.name}.{row.name}: no batch yet"
        lag = "?" if row.lag is None else f"{row.lag:,}"
        return (
            f"{self._config.name}.{row.name}: batch {row.batch_id}, {row.rows:,} rows, {row.rows_per_s:,.0f} rows/s, "
            f"lag {lag}"
        )

    def _table(self, rows: Sequence[Progress]) -> "Table":
        from rich.table import Table

        seconds = int(time.monotonic() - self._started)
        title = f"{self._config.name}, {seconds // 60}:{seconds % 60:02}, Ctrl-C stops it"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in ("SINK", "BATCH", "ROWS", "ROWS/S", "LAG", "OPEN TRANSACTIONS"):
            table.add_column(name, justify="left" if name == "SINK" else "right")
        for row in rows:
            cells = ("starting", "", "", "") if row.waiting else self._cells(row)
            table.add_row(row.name, *cells, "" if self._open is None else str(self._open))
        return table

    def _cells(self, row: Progress) -> tuple[str, str, str, str]:
        lag = "?" if row.lag is None else f"{row.lag:,}"
        return str(row.batch_id), f"{row.rows:,}", f"{row.rows_per_s:,.0f}", lag
