"""What happens when a sink reaches a step: tests leave orders in a directory, and the first process that gets there
carries one out. TWOFOLD_STEP_DIR names the directory; `sitecustomize` beside this file makes `on_step` the observer of
every sink in a process that has that variable, and this directory in PYTHONPATH.

An order is a file `<number>~<step>~<action>`, spaces in the step as `_`. Each is carried out once, in the order of
their numbers. Actions:

    raise         RuntimeError
    die           SIGKILL to this process
    kill-driver   SIGKILL to the driver's JVM, then to this process
    sleep-<s>     go on after so many seconds
    stop          SIGSTOP to this process
    stop-writing  the same, at "task: opened", between the first rows of a task and the next
    wait          go on when a file `go` is there, or `go-<number>`
    kill-<pid>    SIGKILL to that process (the broker)
    where         leaves a file `where-<number>` with the path of the twofold that this process has
    broker-<ms>   SIGKILL to the process whose id is in the file `broker`, so many milliseconds from now

`<action>@<partition>` is for the task of that partition only. What was carried out stands in `done`, one line each:
step, action, pid.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def observe_sinks() -> None:
    """Stand in for `twofold.sink.steps`, in which nothing observes. Only what is imported after this is observed."""
    observed = ModuleType("twofold.sink.steps")
    observed.__dict__.update(Reached=Callable[[str], None], unobserved=on_step)
    sys.modules[observed.__name__] = observed


def on_step(step: str) -> None:
    directory = Path(os.environ["TWOFOLD_STEP_DIR"])
    for path in sorted(directory.glob(f"[0-9]*~{step.replace(' ', '_')}~*")):
        number, _, action = path.name.split("~")
        action, _, partition = action.partition("@")
        if partition and int(partition) != _partition():
            continue
        try:
            path.rename(directory / f"taken-{path.name}")
        except FileNotFoundError:
            continue  # another process was faster
        with (directory / "done").open("a") as file:
            file.write(f"{step}\t{action}\t{os.getpid()}\n")
        _act(directory, number, action)
        return


def _act(directory: Path, number: str, action: str) -> None:
    kind, _, argument = action.partition("-")
    if action == "raise":
        raise RuntimeError("ordered to fail here")
    if action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "kill-driver":
        os.kill(java_above(os.getpid()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "broker":
        pid = int((directory / "broker").read_text())
        threading.Timer(float(argument) / 1000, _kill, [pid]).start() if float(argument) else _kill(pid)
    elif kind == "kill":
        os.kill(int(argument), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "stop-writing":
        _stop_before_second_send()
    elif action == "where":
        import twofold.sink

        (directory / f"where-{number}").write_text(str(Path(twofold.sink.__file__).absolute()))
    elif kind == "sleep":
        time.sleep(float(argument))
    elif action == "wait":
        deadline = time.monotonic() + 120
        while not ((directory / "go").exists() or (directory / f"go-{number}").exists()):
            if time.monotonic() > deadline:
                raise RuntimeError("no test said go")
            time.sleep(0.02)
    else:
        raise AssertionError(f"no such action: {action}")


def _stop_before_second_send() -> None:
    from twofold.sink.writer import TaskWriter

    original = TaskWriter.send
    sent: list[str] = []

    async def send(self: TaskWriter, topic: str, batches: Any) -> None:
        if len(sent) == 1:
            await self._sender.flush()
            os.kill(os.getpid(), signal.SIGSTOP)
        sent.append(topic)
        await original(self, topic, batches)

    TaskWriter.send = send  # type: ignore[method-assign]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def java_above(pid: int) -> int:
    """The JVM that a Python worker belongs to."""
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1, "no JVM above it"
    return pid
