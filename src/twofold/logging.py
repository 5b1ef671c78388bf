"""How a Twofold process logs: lines for people, or one JSON object a line for machines; both on stderr.

Standard output stays free for what the user asked for. Names in messages are a client's choice: no name begins a line
of its own, or steers a terminal.
"""

import logging
import re
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

FORMATS = ("human", "json")
LEVELS = ("debug", "info", "warning", "error", "critical")

_COLOURS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31;1"}
_PREFIX = "twofold."
_STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# What every record has: anything else was passed as `extra` and belongs into the JSON.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class HumanFormatter(logging.Formatter):
    """`2026-07-01 12:00:00.123 WARNING broker.server: message`, coloured on a terminal."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S")
        level = f"{record.levelname:<7}"
        colour = _COLOURS.get(record.levelno) if self._colour else None
        if colour is not None:
            level = f"\x1b[{colour}m{level}\x1b[0m"
        message = _STEERING.sub(_escape, record.getMessage())
        line = f"{moment}.{int(record.msecs):03d} {level} {record.name.removeprefix(_PREFIX)}: {message}"
        # Indented: an error may quote what a client has sent, and a line at the margin is one of the log's own.
        trace = "".join(f"\n    {_STEERING.sub(_escape, text)}" for text in _traceback(record).split("\n") if text)
        return line + trace


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, error (the traceback), and whatever `extra` carried."""

    def __init__(self) -> None:
        super().__init__()
        # Not at the top: a server that logs for people never needs it.
        from json import dumps

        self._dumps: Callable[..., str] = dumps

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        trace = _traceback(record)
        if trace:
            fields["error"] = trace
        return self._dumps(fields, default=str, ensure_ascii=False)


def _escape(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")


def configure_logging(*, log_format: str = "human", level: str = "info", stream: TextIO | None = None) -> None:
    """Send the process's log to `stream` (stderr), replacing what was set up before."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else HumanFormatter(colour=stream.isatty()))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # A log line that cannot be written (a full disk, a closed pipe) must not take the server with it, nor print itself.
    logging.raiseExceptions = False
