"""Log lines that an outsider can provoke: at most a few a second of each kind, the rest are counted."""

import logging

from twofold.runtime.api import Clock

LINES_PER_PERIOD = 5
PERIOD_S = 1.0


class QuietLog:
    """A logger that a flood of bad clients cannot make write without end."""

    __slots__ = ("_clock", "_log", "_kinds")

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        # kind -> (start of its period, lines written in it, lines left out since); kinds are few and ours
        self._kinds: dict[str, tuple[float, int, int]] = {}

    def warning(self, kind: str, message: str, *arguments: object) -> None:
        self._write(logging.WARNING, kind, message, *arguments)

    def info(self, kind: str, message: str, *arguments: object) -> None:
        self._write(logging.INFO, kind, message, *arguments)

    def _write(self, level: int, kind: str, message: str, *arguments: object) -> None:
        now = self._clock.monotonic()
        start, written, left_out = self._kinds.get(kind, (now, 0, 0))
        if now - start >= PERIOD_S:
            start, written = now, 0
        if written >= LINES_PER_PERIOD:
            self._kinds[kind] = (start, written, left_out + 1)
            return
        self._kinds[kind] = (start, written + 1, 0)
        if left_out:
            message += f" ({left_out} lines like this one were left out)"
        self._log.log(level, message, *arguments)
