"""How a page of the docs is followed: files that it shows, its commands, and stand-ins for addresses of others.

1. A page is followed from an empty directory, or from the state that it describes (`prepare`). The only broker is the
   one that the page starts, with the page's options. Only ports differ, because pages are followed side by side.
2. A block of Python or TOML whose first line is a comment with a path is a file, and is written, not run.
3. A block of text is what the commands before it printed, but for ids, ages and hosts.
4. An address that only exists elsewhere is replaced: `spark://master:7077` by a Spark cluster on this machine,
   `kafka:9092` by Apache Kafka. Blocks with one of them run when there is time for it (TWOFOLD_LONG=1).
5. `twofold` and `python` are those of the reader's environment: the one of the tests, or a new one.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kits.processes.spark import spark_environment
from oracle.kafka import EXACT_SETTINGS, is_ready, running_oracle
from oracle.processes import free_port, spawn, stop, tail, wait_until

ROOT = Path(__file__).parent.parent.parent
LONG = os.environ.get("TWOFOLD_LONG") == "1"
SPARK_MASTER, APACHE_KAFKA = "spark://master:7077", "kafka:9092"
BROKER_NAME = "kafka.example.com"
SPARK_TIMEOUT_S = 300
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
KNOWN = {"diff", "bash", "python", "toml", "text"}
PICTURES = {"mermaid"}
ALARM = re.compile(r"Traceback|\b(WARNING|ERROR|CRITICAL)\b")
SPARK_COMMANDS = ("twofold pipeline run", "spark-submit")
_FILE = re.compile(r"# (\S+\.(?:py|toml))\n")
_SHOWN_SETTING = re.compile(r"^    ([a-z.]+=\S+)$", re.M)
_CHANGING = (
    (re.compile(r"\b[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\b\d+ (ms|s|min)\b( \d+ s\b)?"), "AGE"),
    (re.compile(r"\brecover-\S+"), "recover-HOST"),
)
KAFKA_FOLDER = Path(__file__).parent.parent / "fixtures" / "folder-kafka-4.3.1.tar.gz"


@dataclass(frozen=True, slots=True)
class Reader:
    """Follows pages with the programs of an environment."""

    python: Path = Path(sys.executable)
    checkout: Path | None = None  # where `pip install` is carried out; without it nothing is installed

    @property
    def variables(self) -> dict[str, str]:
        return os.environ | {"PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}


def file_of(text: str) -> str | None:
    match = _FILE.match(text)
    return match and match.group(1)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for match in BLOCK.finditer(page.read_text()):
        if match.group(1) not in PICTURES:
            yield match.group(1), match.group(2)


class PageBroker:
    """The broker that a page starts, as a person does it in another terminal: Ctrl-C ends it."""

    def __init__(self, directory: Path, python: Path) -> None:
        self._python = python
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
        self._process = spawn([str(self._python), "-m", "twofold", *words], output=self._output, cwd=self._directory)
        host, _, port = self.address.rpartition(":")
        is_told = "--config" in words and any(
            "SASL_SSL" in path.read_text() for path in self._directory.glob("server.properties")
        )  # a listener with TLS is not asked: the broker's line says that it is ready
        wait_until(
            lambda: b" ready on " in self._output.read_bytes() if is_told else is_ready(host, int(port)),
            self._process,
            patience_s=30,
            output=self._output,
        )

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


def follow(page: Path, place: Path, reader: Reader) -> None:
    """From an empty directory in `place`, or from the state that the page describes, to its end."""
    listed = joined(list(blocks(page)))
    uses_spark = any("SparkSession" in text for _, text in listed)
    directory = place / "user"
    directory.mkdir(parents=True)
    broker = PageBroker(place, reader.python)
    prepare(page, broker, directory)
    environment = reader.variables | {
        "TWOFOLD_BOOTSTRAP_SERVER": broker.address,
        "XDG_CACHE_HOME": str(place / "cache"),
        "XDG_CONFIG_HOME": str(place / "config"),
        "COLUMNS": "200",
    }
    if uses_spark:
        environment |= small_spark()
    printed = ""
    with ExitStack() as stack:
        stack.callback(broker.stop)
        elsewhere = Elsewhere(place, stack)
        for language, text in listed:
            assert language in KNOWN, f"{page.name}: a block of {language}; known are {KNOWN}"
            text = broker.replace(text)
            if language == "diff":
                continue  # tests/spark/test_examples.py compares it with the two files
            if language == "text":
                assert steady(printed) == steady(text), f"{page.name} shows\n{text}\nand it printed\n{printed}"
            elif file_of(text) is not None:
                write_file(language, text, directory)
            elif language == "python":
                run_python(text, environment, directory, reader.python)
            elif LONG or not takes_long(text):
                printed = run_shell(elsewhere.replace(text), environment, directory, broker, reader)


def joined(listed: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Blocks of Python that use one Spark session are one script, where the first of them is."""
    if not any("SparkSession" in text for _, text in listed):
        return listed
    parts = [entry for entry in listed if entry[0] == "python" and file_of(entry[1]) is None]
    script = ("python", "\n".join(text for _, text in parts))
    return [script if entry is parts[0] else entry for entry in listed if entry is parts[0] or entry not in parts]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def write_file(language: str, text: str, directory: Path) -> None:
    path = directory / str(file_of(text))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if language == "toml":
        tomllib.loads(text)
    else:
        compile(text, str(path), "exec")


def run_python(text: str, environment: dict[str, str], directory: Path, python: Path) -> None:
    if "def test_" in text:
        (directory / "test_shown.py").write_text(text)
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory / "test_shown.py")]
    else:
        command = [str(python), "-c", text]
    timeout_s = SPARK_TIMEOUT_S if "SparkSession" in text else 60
    done = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    # librdkafka tells of every connection that a page's broker closes, in lines that begin so.
    said = [line for line in done.stderr.splitlines() if not line.startswith("%")]
    assert "SparkSession" in text or not said, f"{text}\nprints an alarm:\n{done.stderr}"


def run_shell(text: str, environment: dict[str, str], directory: Path, broker: PageBroker, reader: Reader) -> str:
    """What the commands printed."""
    printed = ""
    for command in commands(text):
        if command.startswith("make "):
            # Running make inside make would never end: that the target is there is what can be checked.
            assert command.split()[1] in make_targets(), f"no target for: {command}"
        elif command.startswith("pip install"):
            check_extras(command)
            if reader.checkout is not None:
                subprocess.run(["bash", "-c", command], env=environment, cwd=reader.checkout, check=True)
        elif command.startswith("twofold serve"):
            broker.serve(command)
        elif "docker " in command or command.startswith("sudo "):
            check_files(command)
        elif runs_until_stopped(command):
            run_until_stopped(command, environment, directory)
        else:
            timeout_s = SPARK_TIMEOUT_S if command.startswith(SPARK_COMMANDS) else 60
            done = subprocess.run(
                ["bash", "-c", command], env=environment, cwd=directory, capture_output=True, text=True,
                timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            assert not ALARM.search(done.stderr), f"{command}\nprints an alarm:\n{done.stderr}"
            printed += done.stderr + done.stdout
    return printed
