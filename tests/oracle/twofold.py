"""Twofold as a process beside the oracle, with the same settings."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from oracle.kafka import COMMON_SETTINGS, is_ready
from oracle.processes import free_port, spawn, stop, wait_until


class Twofold:
    """`twofold serve` in a directory of its own."""

    name = "twofold"

    def __init__(self, directory: Path, settings: Mapping[str, str] = {}) -> None:
        self.directory = directory
        self.settings = COMMON_SETTINGS | dict(settings)
        self.host = "127.0.0.1"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def output(self) -> Path:
        return self.directory / "output.log"

    def start(self) -> None:
        self.port = self.port or free_port()
        command = [sys.executable, "-m", "twofold", "serve", "--listen", self.bootstrap_servers]
        command += ["--data", str(self.data)]
        for key, value in self.settings.items():
            command += ["-o", f"{key}={value}"]
        self._process = spawn(command, output=self.output)
        wait_until(lambda: is_ready(self.host, self.port), self._process, patience_s=30, output=self.output)

    def stop(self, *, clean: bool = False) -> None:
        if self._process is not None:
            stop(self._process, how=signal.SIGTERM if clean else signal.SIGKILL)
            self._process = None

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self._pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    @property
    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self._pid}/fd").iterdir()))

    def log_lines(self) -> int:
        return len(self.output.read_text(errors="replace").splitlines())

    @property
    def _pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None


@contextmanager
def running_twofold(settings: Mapping[str, str] = {}) -> Iterator[Twofold]:
    with tempfile.TemporaryDirectory(prefix="twofold-differential-", ignore_cleanup_errors=True) as directory:
        server = Twofold(Path(directory), settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()
