"""Prefixes for writes without one: leased by a write on this host, and used again by later ones.

1. A prefix has one write at a time, so that no write fences another. A lease ends with its write, or with the program
   that the write belongs to, whatever ends that: the next write on this host takes the prefix, and ends what is open.
2. So there are as many prefixes as writes at a time, and not as many as writes.
3. Their names begin with a token of the directory, because hosts may share a name, and each has leases of its own.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from twofold.sink import names
from twofold.sink.slots import shared_directory

MAX_LEASES = 10_000


@dataclass(frozen=True, slots=True)
class WriteHolder:
    """A write, and the process without which it is over: `started` tells it from a later one with its number."""

    pid: int
    started: str
    write: str

    @property
    def is_alive(self) -> bool:
        try:
            return started_at(self.pid) == self.started
        except ProcessLookupError:
            return False


def started_at(pid: int) -> str:
    """Empty where the system does not tell."""
    try:
        # What follows the command, in brackets: state, parent, ... as proc(5) numbers them from 3.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        os.kill(pid, 0)
        return ""
    except OSError:
        return ""


class PrefixLeases:
    """Of this host and user."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or shared_directory() / "once"

    def take(self, holder: WriteHolder) -> str:
        """A prefix that no other write has, until it is given back or its holder is dead."""
        with self._alone() as token:
            for number in range(MAX_LEASES):
                path = self._directory / f"lease.{number}"
                found = _read(path)
                if found is None or not found.is_alive:
                    path.write_text(json.dumps(asdict(holder)))
                    return names.prefix_once(token, number)
        raise OSError(f"{MAX_LEASES} writes have a lease in {self._directory}: remove the files of those that are over")

    def give_back(self, prefix: str, holder: WriteHolder) -> None:
        """Nothing happens where another write has it meanwhile."""
        with self._alone():
            path = self._directory / f"lease.{prefix.rpartition('-')[2]}"
            if _read(path) == holder:
                path.unlink()

    @contextmanager
    def _alone(self) -> Iterator[str]:
        for directory in (self._directory.parent, self._directory):
            directory.mkdir(exist_ok=True, mode=0o700)
            if directory.stat().st_uid != os.getuid():
                raise PermissionError(f"{directory} belongs to another user: remove it, or set TMPDIR to another place")
        with (self._directory / "token").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            token = file.read()
            if not token:
                token = uuid.uuid4().hex[:8]
                file.write(token)
            yield token


def _read(path: Path) -> WriteHolder | None:
    try:
        return WriteHolder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
