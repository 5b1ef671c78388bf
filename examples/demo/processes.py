"""The broker and the driver as processes that are killed with -9, and the moments at which that hurts most."""

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer

from access import READER, Access
from watch import consumer_of

HERE = Path(__file__).parent
JAVA_NEEDED = 17


class Failed(Exception):
    """The demo could not go on; the message is for its user."""


def check_java() -> None:
    """Before a minute is spent on what cannot work."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = (
        f"install a JDK {JAVA_NEEDED} or 21 (Debian: apt-get install default-jdk-headless), or set JAVA_HOME to one"
    )
    if java is None:
        raise Failed(f"Spark needs Java, and there is no java in PATH: {wanted}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise Failed(f"{java} does not run ({error}): {wanted}") from None
    version = re.search(r'version "(?:1\.)?(\d+)', told)
    if version is not None and int(version[1]) < JAVA_NEEDED:
        raise Failed(f"{java} is Java {version[1]}: {wanted}")


class Process:
    """In a group of its own, so that it and what it has started end together, at the latest when this process ends."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.log = name, directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self, command: list[str], **more: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "tether.py"), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.name == "broker" else log,
                stderr=log,
                env=os.environ | more,
                cwd=self.log.parent,
                start_new_session=True,
            )
        return self._process

    def kill(self) -> None:
        """kill -9 of the whole group."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise Failed(f"the {self.name} ended with code {self._process.returncode}: see {self.log}")


class Broker(Process):
    def __init__(self, directory: Path) -> None:
        super().__init__("broker", directory)
        # Linux lets the broker listen at a port to which this socket is bound, and gives it to no other program: not
        # before the broker starts, and not while it is dead.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._port.getsockname()[1]}"
        if sys.platform != "linux":
            self._port.close()

    def start(self, access: Access) -> None:
        process = self.spawn(["-m", "twofold", "serve", *access.broker()])
        assert process.stdout is not None
        if not process.stdout.readline():  # it prints one line when it is ready
            process.wait()
            self.check()


def spark_home(directory: Path) -> Path:
    """Spark without its zipped copy of PySpark, which has no bytecode and costs each of its Python processes a second:
    they import the installed one then."""
    home = directory / "spark-home"
    home.mkdir(exist_ok=True)
    installed = importlib.util.find_spec("pyspark")
    assert installed is not None and installed.origin is not None
    for name in ("bin", "jars"):
        if not (home / name).exists():
            (home / name).symlink_to(Path(installed.origin).parent / name)
    return home


class Driver(Process):
    """Spark: Python, its JVM and their Python workers."""

    def __init__(self, directory: Path, access: Access) -> None:
        super().__init__("driver", directory)
        self._access = access

    def start(self) -> None:
        options = self.log.parent / "options.json"
        options.write_text(json.dumps(self._access.spark()))
        script = [str(HERE / "pipeline.py"), str(options), str(self.log.parent)]
        home = spark_home(self.log.parent)
        self.spawn(script, SPARK_HOME=str(home), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")

    def drain(self, patience_s: float) -> None:
        """Ends it when everything that was sent is read."""
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"the pipeline was not done after {patience_s:.0f} s: see {self.log}") from None
        if code != 0:
            self.check()

    def batch_of(self, sink: str) -> tuple[int, bool]:
        """The newest micro-batch of a query, and whether it is at work: begun, and not committed by Spark yet."""
        checkpoint = self.log.parent / "checkpoints" / sink
        begun = [int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")]
        newest = max(begun, default=-1)
        return newest, bool(begun) and not (checkpoint / "commits" / str(newest)).exists()

    def kill_task(self, sink: str, patience_s: float) -> None:
        """kill -9 of the Python processes of tasks at work, until Spark has noticed one."""
        deadline = time.monotonic() + patience_s
        lost = self._lost_tasks()
        while self._lost_tasks() == lost:
            if time.monotonic() > deadline:
                raise Failed(f"no task was hit within {patience_s:.0f} s: see {self.log}")
            self.check()
            batch = self.batch_of(sink)[0]
            while self.batch_of(sink) != (batch + 1, True) and time.monotonic() < deadline:
                time.sleep(0.01)
            for pid in self._workers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(1.0)

    def kill_between(self, sink: str, patience_s: float) -> None:
        """kill -9 of everything, after rows of a batch were written and before Spark has noted that it is done."""
        deadline = time.monotonic() + patience_s
        consumer = consumer_of(self._access.client(READER), [sink], from_end=True)
        try:
            while not self._written_and_not_done(consumer, sink):
                if time.monotonic() > deadline:
                    raise Failed(f"no batch of {sink} was caught within {patience_s:.0f} s: see {self.log}")
                self.check()
            self.kill()
        finally:
            consumer.close()

    def _written_and_not_done(self, consumer: Consumer, sink: str) -> bool:
        before = self.batch_of(sink)
        if not before[1]:
            consumer.poll(0.005)  # what an earlier batch has written
            return False
        return consumer.poll(0.005) is not None and self.batch_of(sink) == before

    def _lost_tasks(self) -> int:
        return self.log.read_text(errors="replace").count("Lost task")

    def _workers(self) -> list[int]:
        """Task processes: children of `python -m pyspark.daemon pyspark.worker` below this driver."""
        assert self._process is not None
        driver = self._process.pid
        listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(maxsplit=2) for line in listed.splitlines()]
        parents = {int(row[0]): int(row[1]) for row in rows}
        daemons = {int(row[0]) for row in rows if row[2:] and "pyspark.daemon pyspark.worker" in row[2]}

        def is_ours(pid: int) -> bool:
            while pid in parents and pid != driver:
                pid = parents[pid]
            return pid == driver

        return [pid for pid in daemons if parents[pid] in daemons and is_ours(pid)]
