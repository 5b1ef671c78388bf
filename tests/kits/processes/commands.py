"""`twofold ...` as a user runs it: streams, environment, working directory, exit code.

`run` and `Command` fork a warm interpreter (`kits.processes.warm`): a process, without what it costs to import the
command line again. `run_cold` starts an interpreter for it, as a shell does.
"""

import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

TESTS = Path(__file__).parent.parent.parent
PATIENCE_S = 60.0
NUMBER = struct.Struct("i")  # the pid, then the exit code
SERVER = "TWOFOLD_BOOTSTRAP_SERVER"
PROFILE = "TWOFOLD_PROFILE"

Done = subprocess.CompletedProcess[str]


class _Interpreter(NamedTuple):
    process: subprocess.Popen[bytes]
    control: socket.socket


WARM = "kits.processes.warm"  # what forks for `twofold`; other programs have an interpreter of their own
WARM_PIPELINE = "kits.processes.warm_pipeline"  # the same, for `twofold pipeline run`
_warm: dict[str, _Interpreter] = {}
_lock = threading.Lock()


class Command:
    """A command that runs. Its end is heard from the interpreter that forked it. Leaving the block ends it."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        env: Mapping[str, str],
        cwd: Path | None = None,
        program: str = WARM,
    ) -> None:
        self.args = ["twofold", *arguments]
        self.returncode: int | None = None
        request = {"arguments": arguments, "environment": dict(env), "directory": str(cwd or Path.cwd())}
        self._told, told = socket.socketpair()
        with told, _lock:
            control = _start_once(program).control
            data = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(control, [data], [stdin, stdout, stderr, told.fileno()])
            control.sendall(data[sent:])
        self._told.settimeout(PATIENCE_S)
        self.pid = self._number()

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = self._number()
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(self.args, timeout) from None
        return self.returncode

    def _number(self) -> int:
        data = self._told.recv(NUMBER.size)
        if not data:
            raise RuntimeError(f"{self.args}: the interpreter that forks is gone")
        return int(NUMBER.unpack(data)[0])

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.kill()
        self.wait(PATIENCE_S)
        self._told.close()


def environment(server: str | None = None, env: Mapping[str, str] = {}) -> dict[str, str]:
    """That of the tests, with this server and no other, and without the profiles of the user that runs them."""
    given = {name: value for name, value in os.environ.items() if name not in (SERVER, PROFILE)}
    given |= {"XDG_CONFIG_HOME": os.devnull}
    return {**given, **({} if server is None else {SERVER: server}), **env}


def run(
    *arguments: str,
    server: str | None = None,
    stdin: str = "",
    env: Mapping[str, str] = {},
    cwd: Path | None = None,
    timeout: float = PATIENCE_S,
    program: str = WARM,
) -> Done:
    """Run a command to its end."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given.write(stdin.encode())
        given.seek(0)
        with Command(
            arguments,
            stdin=given.fileno(),
            stdout=output.fileno(),
            stderr=errors.fileno(),
            env=environment(server, env),
            cwd=cwd,
            program=program,
        ) as command:
            code = command.wait(timeout)
        for stream in (output, errors):
            stream.seek(0)
        return Done(command.args, code, output.read().decode(), errors.read().decode())


def cold(*arguments: str) -> list[str]:
    """The command line for an interpreter of its own."""
    return [sys.executable, "-m", "twofold", *arguments]


def run_cold(
    *arguments: str,
    server: str | None = None,
    stdin: str = "",
    env: Mapping[str, str] = {},
    timeout: float = PATIENCE_S,
) -> Done:
    """The same in an interpreter of its own."""
    given = environment(server, env)
    return subprocess.run(
        cold(*arguments), input=stdin, capture_output=True, text=True, timeout=timeout, check=False, env=given
    )


def _start_once(program: str) -> _Interpreter:
    if program not in _warm:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", program, str(theirs.fileno())]
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        with theirs:
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        _warm[program] = _Interpreter(process, ours)
        atexit.register(_stop, program)
    return _warm[program]


def _stop(program: str) -> None:
    process, control = _warm.pop(program)
    control.close()
    process.wait(PATIENCE_S)
