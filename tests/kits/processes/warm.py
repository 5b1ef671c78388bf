"""An interpreter that has imported the command line and forks for each command: `kits.processes.commands` starts it.

What a command costs as a process of its own is nearly all imports. A fork of this interpreter is a process too: it has
its own streams, environment, working directory, signal handlers and event loop. What it does not show is what importing
costs or does, and how an interpreter takes itself apart. One thread only, so that a fork is whole.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, NoReturn

import twofold.cli
from kits.processes.commands import NUMBER
from twofold.cli.main import main

# What commands import while they run.
LATER = ("rich._emoji_codes", "rich.progress", "rich.table", "uvloop", "twofold.broker.run")
STREAMS = 3
FLUSH_FAILED = 120  # what an interpreter says
REQUEST_BYTES = 1 << 20


class Warm:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, socket.socket] = {}  # pid -> where its exit code is told
        self._bell, bell = socket.socketpair()
        for end in (self._bell, bell):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
        self._rung = bell

    def serve(self) -> list[str] | None:
        """Returns in every fork with its arguments, and here with None when the tests have gone."""
        while True:
            ready, _, _ = select.select([self._control, self._bell], [], [])
            if self._bell in ready:
                self._bell.recv(4096)
                self._tell_ends()
            if self._control in ready:
                data, descriptors, _, _ = socket.recv_fds(self._control, REQUEST_BYTES, STREAMS + 1)
                while data and not data.endswith(b"\n"):
                    data += self._control.recv(REQUEST_BYTES)
                if not data:
                    self._end_all()
                    return None
                request = json.loads(data)
                arguments = self._fork(request, descriptors)
                if arguments is not None:
                    return arguments

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> list[str] | None:
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._bell, self._rung, *self._children.values()):
                end.close()
            become(request, descriptors)
            return list(request["arguments"])
        *streams, told = descriptors
        for stream in streams:
            os.close(stream)
        self._children[pid] = socket.socket(fileno=told)
        self._tell(pid, pid)
        return None

    def _tell(self, pid: int, number: int) -> None:
        with contextlib.suppress(OSError):  # the test was stopped, and does not listen
            self._children[pid].sendall(NUMBER.pack(number))

    def _tell_ends(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._tell(pid, os.waitstatus_to_exitcode(status))
            self._children.pop(pid).close()

    def _end_all(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Make a fork what a new interpreter is."""
    for number, stream in enumerate(descriptors[:STREAMS]):
        os.dup2(stream, number)
    for descriptor in descriptors:
        os.close(descriptor)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115 - stays open until the end
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    errors = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = errors  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    sys.argv = ["twofold", *request["arguments"]]


def leave(code: int) -> NoReturn:
    """End as an interpreter ends, but leave the memory to the kernel: freeing it costs more than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = FLUSH_FAILED
    os._exit(code)


def import_all(more: Iterable[str]) -> None:
    for module in pkgutil.walk_packages(twofold.cli.__path__, "twofold.cli."):
        importlib.import_module(module.name)
    for name in (*LATER, *more):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork need not look at, and so copy, what all of them share


def serve(*more: str) -> NoReturn:
    """As the program that it is asked for by; `more` are modules that its commands need besides."""
    import_all(more)
    arguments = Warm(socket.socket(fileno=int(sys.argv[1]))).serve()
    try:
        leave(0 if arguments is None else main(arguments))
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    serve()
