"""Where on this machine a pipeline tells its live numbers: written by `twofold pipeline run`, read by `status`.

1. A file beside the pipeline's log has its process and the address of its metrics. It goes when the pipeline ends.
2. A process that was killed leaves the file behind: the process is known by its number and the time of its start, so
   another one with its number is not taken for it.
3. A process that is paused takes a connection and does not answer. Nothing is shown then but that.
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twofold.pipeline.session import logs_directory, plain_name

SUFFIX = ".live.json"
ANSWER_TIMEOUT_S = 3.0
LONGEST_ANSWER = 4 * 2**20


@dataclass(frozen=True, slots=True)
class LiveProcess:
    pipeline: str
    address: str
    pid: int | None = None
    """None for an address that the user has named."""
    started: str = ""

    @property
    def is_gone(self) -> bool:
        return self.pid is not None and start_of(self.pid) != self.started


def start_of(pid: int) -> str:
    """When a process was started, as the system counts; empty where there is none."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]


@contextmanager
def announced(pipeline: str, address: str, log: Path) -> Iterator[None]:
    """As long as the block lasts. A disk that is full, or a directory that cannot be written, stops no pipeline."""
    path = log.with_suffix(SUFFIX)
    row = {"pipeline": pipeline, "address": address, "pid": os.getpid(), "started": start_of(os.getpid())}
    with suppress(OSError):
        _forget_dead(path.parent, pipeline)
        path.write_text(json.dumps(row))
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def _forget_dead(directory: Path, pipeline: str) -> None:
    for path in directory.glob(f"{plain_name(pipeline)}-*{SUFFIX}"):
        if (found := _read(path)) is None or found.is_gone:
            path.unlink(missing_ok=True)


def processes() -> list[LiveProcess]:
    """Of this user, on this machine; those that were killed, too, unless a later one of the same pipeline runs."""
    with suppress(OSError):
        paths = sorted(logs_directory().glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        found = [process for path in paths if (process := _read(path)) is not None]
        newest = {process.pipeline: process for process in found}
        return [process for process in found if not process.is_gone or newest[process.pipeline] is process]
    return []


def _read(path: Path) -> LiveProcess | None:
    try:
        row = json.loads(path.read_text())
        return LiveProcess(str(row["pipeline"]), str(row["address"]), int(row["pid"]), str(row["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def ask(process: LiveProcess, timeout_s: float = ANSWER_TIMEOUT_S) -> list[dict[str, Any]] | None:
    """The queries that it tells; None if it does not answer."""
    if process.is_gone:
        return None
    try:
        with urllib.request.urlopen(f"http://{process.address}/queries", timeout=timeout_s) as answer:
            found = json.loads(answer.read(LONGEST_ANSWER))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, list) and all(isinstance(row, dict) for row in found) else None
