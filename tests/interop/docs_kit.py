"""What the docs' blocks are run with: files that a page shows, its commands, and stand-ins for addresses of others.

1. A page is followed from an empty directory, or from the state that it describes (`prepare`). The only broker is the
   one that the page starts, with the page's options. Only ports differ, because pages are followed side by side.
2. A block of Python or TOML whose first line is a comment with a path is a file, and is written, not run.
3. A block of text is what the commands before it printed, but for ids, ages and hosts.
4. An address that only exists elsewhere is replaced: `spark://master:7077` by a Spark cluster on this machine,
   `kafka:9092` by Apache Kafka. Blocks with one of them run when there is time for it (TWOFOLD_LONG=1).
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import ExitStack
from pathlib import Path

from kits.processes.spark import spark_environment
from oracle.kafka import EXACT_SETTINGS, is_ready, running_oracle
from oracle.processes import free_port, spawn, stop, tail, wait_until

ROOT = Path(__file__).parent.parent.parent
LONG = os.environ.get("TWOFOLD_LONG") == "1"
SPARK_MASTER, APACHE_KAFKA = "spark://master:7077", "kafka:9092"
BROKER_NAME = "kafka.example.com"
SPARK_TIMEOUT_S = 300
_FILE = re.compile(r"# (\S+\.(?:py|toml))\n")
_SHOWN_SETTING = re.compile(r"^    ([a-z.]+=\S+)$", re.M)
_CHANGING = (
    (re.compile(r"\b[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\b\d+ (ms|s|min)\b( \d+ s\b)?"), "AGE"),
    (re.compile(r"\brecover-\S+"), "recover-HOST"),
)
KAFKA_FOLDER = Path(__file__).parent.parent / "fixtures" / "folder-kafka-4.3.1.tar.gz"


def file_of(text: str) -> str | None:
    match = _FILE.match(text)
    return match and match.group(1)


class PageBroker:
    """The broker that a page starts, as a person does it in another terminal: Ctrl-C ends it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "user"
        self._output = directory / "broker.log"
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port('9092')}"

    def replace(self, text: str) -> str:
        """With the ports of this page, folders below its directory, and the name of this machine."""
        for folder in ("kafka", "twofold"):
            text = text.replace(f"/var/lib/{folder}/data", str(self._directory / f"{folder}-data"))
        text = text.replace(f"{BROKER_NAME}:9092", f"localhost:{self._port('9092')}")
        return re.sub(r"\b((?:127\.0\.0\.1|0\.0\.0\.0):)(\d+)\b", self._with_port, text)

    def _with_port(self, match: re.Match[str]) -> str:
        return f"{match.group(1)}{self._port(match.group(2))}"

    def _port(self, shown: str) -> int:
        """Port 0 is whatever is free on every page."""
        return 0 if shown == "0" else self._ports.setdefault(shown, free_port())

    def serve(self, command: str) -> None:
        """In place of the one before: a page that shows a second way means one or the other."""
        self.stop()
        words = shlex.split(command)[1:]
        if "--listen" not in words and "--config" not in words:
            words += ["--listen", self.address]
        self._process = spawn([sys.executable, "-m", "twofold", *words], output=self._output, cwd=self._directory)
        host, _, port = self.address.rpartition(":")
        wait_until(lambda: is_ready(host, int(port)), self._process, patience_s=30, output=self._output)

    def stop(self) -> None:
        if self._process is None:
            return
        code = stop(self._process, how=signal.SIGINT, patience_s=20)
        self._process = None
        assert code == 0 and "Traceback" not in self._output.read_text(), tail(self._output)


def prepare(page: Path, broker: PageBroker, directory: Path) -> None:
    """The state that a page describes where that is not an empty directory."""
    if page.name == "data-folders.md":  # of an Apache Kafka that was stopped, with the settings that the page shows
        with tarfile.open(KAFKA_FOLDER) as folder:
            folder.extractall(directory, filter="data")
        (directory / "data").rename(directory / "kafka-data")
        settings = _SHOWN_SETTING.findall(broker.replace(page.read_text()))
        assert any(line.startswith("log.dirs=") for line in settings), settings
        (directory / "server.properties").write_text("\n".join(settings))


def steady(output: str) -> list[str]:
    """The lines that were printed, without what differs from run to run; rows that are sorted by an id in any order."""
    for pattern, word in _CHANGING:
        output = pattern.sub(word, output)
    return sorted(" ".join(line.split()) for line in output.splitlines() if line.strip())


def commands(text: str) -> list[str]:
    """One a line, unless a line ends with a backslash; without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [command for line in lines if (command := line.split("  #")[0].strip())]


def runs_until_stopped(command: str) -> bool:
    return command.startswith("twofold pipeline run") and "available-now" not in command


def takes_long(text: str) -> bool:
    elsewhere = SPARK_MASTER in text or APACHE_KAFKA in text
    return elsewhere or any(runs_until_stopped(command) for command in commands(text))


def small_spark() -> dict[str, str]:
    """Executors as small as the workers of the cluster."""
    environment = spark_environment()
    small = {"spark.executor.memory": "500m", "spark.executor.cores": "1", "spark.cores.max": "2"}
    settings = " ".join(f"-D{name}={value}" for name, value in small.items())
    return environment | {"SPARK_SUBMIT_OPTS": f"{environment['SPARK_SUBMIT_OPTS']} {settings}"}


class Elsewhere:
    """Started when a block asks for it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._found: dict[str, str] = {}

    def replace(self, text: str) -> str:
        for address, start in ((SPARK_MASTER, self._spark), (APACHE_KAFKA, self._kafka)):
            if address in text:
                if address not in self._found:
                    self._found[address] = start()
                text = text.replace(address, self._found[address])
        return text

    def _spark(self) -> str:
        sys.path.insert(0, str(ROOT / "tests" / "spark"))
        from standalone_kit import Standalone

        directory = self._directory / "cluster"
        directory.mkdir()
        cluster = Standalone(directory)
        self._stack.callback(cluster.stop)
        cluster.start()
        return cluster.master

    def _kafka(self) -> str:
        return self._stack.enter_context(running_oracle(EXACT_SETTINGS)).bootstrap_servers


def run_until_stopped(command: str, environment: dict[str, str], directory: Path) -> None:
    """As somebody who watches it for a while and presses Ctrl-C."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test in the background ignores it
    )
    assert process.stdout is not None
    said = ""
    deadline = time.monotonic() + SPARK_TIMEOUT_S
    for line in process.stdout:
        said += line
        if re.search(r"batch \d+|no batch yet", line) or time.monotonic() > deadline:
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 130, f"{command}\n{said}{rest}"


def check_extras(command: str) -> None:
    """Nothing is installed: that the extras exist is what is checked."""
    project = (ROOT / "pyproject.toml").read_text()
    for extra in re.findall(r"\[([a-z,]+)\]", command):
        for name in extra.split(","):
            assert f"\n{name} = [" in project, f"{command}: no extra {name}"


def check_files(command: str) -> None:
    """There is no container engine, and a test changes no system: that the files exist is what is checked here.
    `test_deploy_containers.py` runs what the engine and systemd would run."""
    for name in re.findall(r"\bdeploy/[\w./-]+", command):
        assert (ROOT / name).is_file(), f"{command}: no file {name}"
