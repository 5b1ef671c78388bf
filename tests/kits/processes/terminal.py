"""`twofold ...` whose output goes to a terminal, as a process."""

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Mapping
from typing import NamedTuple

from kits.processes.commands import PATIENCE_S, Command, environment

COLUMNS, LINES = 80, 24


class Shown(NamedTuple):
    text: str  # output and errors, as they come
    code: int

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.splitlines()]


def run_at_terminal(*words: str, server: str | None = None, env: Mapping[str, str] = {}) -> Shown:
    """Run a command to its end at a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    plain = {"TERM": "dumb", "NO_COLOR": "1", **env}
    kept = {name: value for name, value in environment(server, plain).items() if name != "COLUMNS"}
    with Command(words, stdin=theirs, stdout=theirs, stderr=theirs, env=kept) as command:
        os.close(theirs)
        watchdog = threading.Timer(PATIENCE_S, command.kill)
        watchdog.start()
        try:
            text = _read_all(ours)
        finally:
            watchdog.cancel()
            os.close(ours)
        return Shown(text.replace("\r\n", "\n"), command.wait(PATIENCE_S))


def _read_all(descriptor: int) -> str:
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(descriptor, 65_536)
        except OSError:  # EIO: the other end is closed
            part = b""
        if not part:
            return b"".join(parts).decode()
        parts.append(part)
