"""`twofold pipeline run` as a process in a directory of its own, for the tests of it."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from sink_kit import Broker

from kits.processes import commands
from kits.processes.spark import spark_environment

COPY = "def transform(df):\n    return df.select('key', 'value')\n"
PATIENCE_S = 240
SPARK = ("--master", "local[2]", "--conf", "spark.driver.memory=600m")
TRACE = "The full trace is in "


@dataclass
class Command:
    """Its processes are a session of their own, which can be killed and counted."""

    broker: Broker
    directory: Path
    source: str
    target: str
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return os.environ | spark_environment() | {"XDG_CACHE_HOME": str(self.directory / "cache")}

    @property
    def flags(self) -> list[str]:
        flags = ["--source", f"in={self.source}", "--sink", f"out={self.target}", "--checkpoint", "checkpoint"]
        return [*flags, "--option", "in.startingOffsets=earliest", "-b", self.broker.bootstrap_servers]

    def start(self, *more: str, text: str = COPY, **env: str) -> "subprocess.Popen[str]":
        (self.directory / "pipe.py").write_text(text)
        return self.spawn("-m", "twofold", "pipeline", "run", "pipe.py", *self.flags, *SPARK, *more, **env)

    def spawn(self, *arguments: str, program: str = sys.executable, **env: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [program, *arguments],
            cwd=self.directory,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def run(self, *more: str, text: str = COPY, **env: str) -> tuple[int, str]:
        return self.ended(self.start(*more, text=text, **env))

    def refused(self, *more: str, text: str = COPY, **env: str) -> tuple[int, str]:
        """A run that ends before it starts a JVM, in a fork of a warm interpreter."""
        (self.directory / "pipe.py").write_text(text)
        arguments = ("pipeline", "run", "pipe.py", *self.flags, *SPARK, *more)
        done = commands.run(*arguments, env=self.env | env, cwd=self.directory, program=commands.WARM_PIPELINE)
        return done.returncode, done.stdout + done.stderr

    def ended(self, process: "subprocess.Popen[str]") -> tuple[int, str]:
        output, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, output

    def wait_for_rows(self, count: int) -> None:
        """Of the last process that was started."""
        deadline = time.monotonic() + PATIENCE_S
        process = self.processes[-1]
        while len(self.broker.read(self.target)) < count:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "the rows did not come"
            time.sleep(0.3)

    def left_running(self, patience_s: float = 0) -> list[str]:
        """Processes of the sessions that were started here, when those that are ending have had time for it."""
        deadline = time.monotonic() + patience_s
        while (found := self._running()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _running(self) -> list[str]:
        sessions = {process.pid for process in self.processes}
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(path.name)) in sessions:
                    found.append((path / "cmdline").read_text().replace("\0", " ")[:100])
            except OSError:
                continue
        return [line for line in found if line]  # what is dead and only waits for its parent has no command line


def log_of(output: str) -> str:
    """The text of the log file that a message names."""
    return Path(output.rsplit(TRACE, 1)[1].splitlines()[0].strip()).read_text()


def check_message(output: str, message: str) -> None:
    """In one message: no trace of Python or of a JVM."""
    assert message in output, output
    assert "Traceback" not in output and "\tat " not in output and "Exception in thread" not in output, output
