"""`twofold serve` as a process, to be stopped, killed and started again on the same data."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from oracle.kafka import is_ready
from oracle.processes import free_port, spawn, stop, wait_until

LATE_CLOCK = Path(__file__).parent / "late_clock.py"


class TwofoldServer:
    name = "twofold"

    def __init__(self, directory: Path, settings: Mapping[str, str] = {}) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.output = directory / "output.log"
        self.settings = dict(settings)
        self.flags: list[str] = []  # more of `twofold serve`, from the next start on
        self.behind_s = 0  # its clock, from the next start on
        self.python = sys.executable  # of another environment: another version serves from the next start on
        self.host, self.port = "127.0.0.1", free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        options = [part for key, value in self.settings.items() for part in ("-o", f"{key}={value}")]
        listen = ["--listen", self.bootstrap_servers, "--data", str(self.data)]
        program = ["-m", "twofold"] if not self.behind_s else [str(LATE_CLOCK), str(self.behind_s)]
        self._process = spawn([self.python, *program, "serve", *listen, *options, *self.flags], output=self.output)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        assert self._process is not None, "the server is not running"
        wait_until(lambda: is_ready(self.host, self.port), self._process, patience_s=30, output=self.output)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            stop(self._process, how=signal.SIGKILL)
            self._process = None

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None, "the server is not running"
        code = stop(self._process, how=signal.SIGTERM, patience_s=20)
        self._process = None
        return code

    def wait_for_end(self) -> int:
        """Of a server that was told to end; returns the exit code."""
        assert self._process is not None, "the server is not running"
        return self._process.wait(20)

    @property
    def resident_bytes(self) -> int:
        return memory_of(self.pid)

    @property
    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def log_text(self) -> str:
        return self.output.read_text(errors="replace")

    def log_lines(self) -> int:
        return len(self.log_text().splitlines())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def memory_of(pid: int) -> int:
    """Resident bytes of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096
