"""What the docs' blocks are run with: files that a page shows, its commands, and stand-ins for addresses of others.

1. A block of Python or TOML whose first line is a comment with a path is a file, and is written, not run.
2. The broker has the settings that the page gives to `twofold serve`, on ports of its own.
3. An address that only exists elsewhere is replaced: `spark://master:7077` by a Spark cluster on this machine,
   `kafka:9092` by Apache Kafka. Blocks with one of them run when there is time for it (TWOFOLD_LONG=1).
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from kits.processes.spark import spark_environment
from oracle.kafka import EXACT_SETTINGS, running_oracle
from oracle.processes import free_port

ROOT = Path(__file__).parent.parent.parent
LONG = os.environ.get("TWOFOLD_LONG") == "1"
SPARK_MASTER, APACHE_KAFKA = "spark://master:7077", "kafka:9092"
SPARK_TIMEOUT_S = 300
_FILE = re.compile(r"# (\S+\.(?:py|toml))\n")
_SETTING = re.compile(r"-o (\S+)=(\S+)")


def file_of(text: str) -> str | None:
    match = _FILE.match(text)
    return match and match.group(1)


def broker_settings(page: Path) -> dict[str, str]:
    served = [line for line in page.read_text().splitlines() if line.startswith("twofold serve")]
    settings = {name: value for line in served for name, value in _SETTING.findall(line)}
    if any("--metrics" in line for line in served):
        settings["metrics.listener"] = f"127.0.0.1:{free_port()}"
    return settings


def broker_flags(page: Path) -> list[str]:
    """The address for faults, if the page starts a broker for tests."""
    return ["--test-faults", f"127.0.0.1:{free_port()}"] if "twofold serve --test-faults" in page.read_text() else []


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
