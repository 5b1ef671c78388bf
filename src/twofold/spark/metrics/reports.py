"""What the sink knows of a batch that it has committed, brought from Spark's Python process to the driver's.

1. Spark runs a sink's commit in a process of its own, below the JVM. A socket named after that JVM leads from there to
   the listener; where no listener is, there is no socket, and nothing is sent.
2. Sending waits for nothing and fails for nothing: a report that cannot be taken is lost, and no batch is later for it.
3. The socket lies in a directory that only this user can open.
"""

import json
import os
import socket
import stat
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LONGEST = 4096
AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Report:
    """What the sink says of a batch that it has committed."""

    query_id: str
    batch_id: int
    rows: int
    bytes: int
    transactions: int
    commit_s: float


def directory() -> Path:
    return Path(tempfile.gettempdir()) / f"twofold-{os.getuid()}"


def jvm_above() -> int | None:
    """The process id of the JVM that this process works for; None where the system does not tell."""
    pid = os.getppid()
    while pid > 1:
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return pid
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
    return None


def _sockets(jvm: int) -> list[str]:
    try:
        with os.scandir(directory()) as entries:
            return [entry.path for entry in entries if entry.name.startswith(f"{jvm}-")]
    except OSError:
        return []


def send(report: Report) -> None:
    """To every listener of this process's driver."""
    jvm = jvm_above()
    for path in () if jvm is None else _sockets(jvm):
        _send_to(path, report)


def _send_to(path: str, report: Report) -> None:
    row = [report.query_id, report.batch_id, report.rows, report.bytes, report.transactions, report.commit_s]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(json.dumps(row).encode(), path)
    except OSError:  # the listener has gone, or its queue is full
        pass


class Receiver:
    """The socket of a listener; `take` gets each report on the thread that calls `read`."""

    def __init__(self, jvm: int, take: Callable[[Report], None]) -> None:
        self._take = take
        where = _private_directory()
        self.path = where / f"{jvm}-{uuid.uuid4().hex[:8]}.sock"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            self.socket.bind(str(self.path))
        except OSError:
            self.socket.close()
            raise

    def read(self) -> None:
        """What has come; it never waits."""
        for _ in range(AT_ONCE):
            try:
                data = self.socket.recv(LONGEST)
            except OSError:
                return
            if (report := _report_of(data)) is not None:
                self._take(report)

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self.socket.close()


def _private_directory() -> Path:
    where = directory()
    where.mkdir(mode=0o700, exist_ok=True)
    found = where.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{where} must be a directory that only this user can open")
    for path in where.glob("*-*.sock"):  # of JVMs that were killed
        if not Path(f"/proc/{path.name.partition('-')[0]}").exists():
            path.unlink(missing_ok=True)
    return where


def _report_of(data: bytes) -> Report | None:
    try:
        query_id, batch_id, rows, size, transactions, commit_s = json.loads(data)
        return Report(str(query_id), int(batch_id), int(rows), int(size), int(transactions), float(commit_s))
    except (ValueError, TypeError):
        return None
