"""Child processes that never outlive the test session."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(command: list[str], *, output: Path, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a command in its own process group; the kernel kills it should the test session die without a word."""
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    with output.open("ab") as stream:
        return subprocess.Popen(
            prefix + command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd=cwd, start_new_session=True
        )


def stop(process: subprocess.Popen[bytes], *, how: int = signal.SIGKILL, patience_s: float = 10.0) -> int:
    """End the whole group and reap it; a group that does not heed a soft signal is killed."""
    _signal_group(process, how)
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGKILL)
        return process.wait(patience_s)


def _signal_group(process: subprocess.Popen[bytes], how: int) -> None:
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        return


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], *, patience_s: float, output: Path) -> None:
    """Poll until the server answers; fail with its own last words when it ends or stays silent."""
    deadline = time.monotonic() + patience_s
    while not ready():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}:\n{tail(output)}")
        if time.monotonic() > deadline:
            stop(process)
            raise RuntimeError(f"{process.args!r} did not answer within {patience_s} s:\n{tail(output)}")
        time.sleep(0.02)


def tail(path: Path, lines: int = 30) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
