"""What a call of the command line costs and what an install takes: Twofold, kcat and Apache Kafka's scripts.

Processor time, user and system, and the peak of memory, each the median of ten calls against the same running broker,
after one that warms the caches. An install is what pip puts into an empty environment, with the compiled modules.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from bench.report import Report, progress
from bench.servers import TwofoldServer, jars_or_skip

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from try_dist import MOST_MB, Environment  # noqa: E402

# The goals of `make bench`, in seconds of processor time.
GOALS = {"twofold version": 0.15, "twofold --help": 0.15, "twofold topic list": 0.3}


# The peak of a process begins at that of the process which forked it: a small one, not this.
MEASURE = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""


def cost(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds and megabytes of one call."""
    program = shutil.which(command[0])
    assert program is not None, command[0]
    measure = [sys.executable, "-I", "-S", "-c", MEASURE, program, *command[1:]]
    done = subprocess.run(measure, env=environment, capture_output=True, text=True, check=True)
    code, seconds, kilobytes = done.stdout.split()
    if code != "0":
        raise RuntimeError(f"{' '.join(command)}: exit code {code}\n{done.stderr}")
    return float(seconds), int(kilobytes) / 1e3


def calls(address: str) -> dict[str, list[str]]:
    twofold = [sys.executable, "-m", "twofold"]
    found = {
        "twofold version": [*twofold, "version"],
        "twofold --help": [*twofold, "--help"],
        "twofold topic list": [*twofold, "topic", "list", "--bootstrap-server", address],
    }
    if shutil.which("kcat"):
        found |= {"kcat -V": ["kcat", "-V"], "kcat -L": ["kcat", "-L", "-b", address]}
    if java := shutil.which("java"):
        tool = [java, "-cp", f"{jars_or_skip()}/*", "org.apache.kafka.tools.TopicCommand"]
        found |= {
            "kafka-topics.sh --version": [*tool, "--version"],
            "kafka-topics.sh --list": [*tool, "--list", "--bootstrap-server", address],
        }
    return found


def run(report: Report, *, rounds: int = 10) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    table = Table(title="one call of the command line")
    for column in ("call", "processor seconds (median)", "goal", "MB at its peak"):
        table.add_column(column, justify="left" if column == "call" else "right")
    with tempfile.TemporaryDirectory(prefix="twofold-bench-") as directory, TwofoldServer(Path(directory)) as server:
        for name, command in progress(calls(server.bootstrap_servers).items(), "calls"):
            costs = [cost(command, environment) for _ in range(1 + rounds)][1:]
            seconds, megabytes = (statistics.median(column) for column in zip(*costs, strict=True))
            table.add_row(name, f"{seconds:.2f}", str(GOALS.get(name, "")), f"{megabytes:.0f}")
            report.add("install", name, {"seconds": seconds, "megabytes": megabytes})
    report.show(table)
    show_sizes(report)


def show_sizes(report: Report) -> None:
    table = Table(title="what an install takes")
    for column in ("", "MB", "goal"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory(prefix="twofold-bench-") as directory:
        for name, what in progress({"the client": f"{ROOT}", "the server": f"{ROOT}[server]"}.items(), "sizes"):
            megabytes = Environment(Path(directory) / name, what).megabytes()
            table.add_row(name, f"{megabytes:.0f}", str(MOST_MB) if "server" in name else "")
            report.add("install", name, {"megabytes": megabytes})
    if shutil.which("java"):
        jars = sum(path.stat().st_size for path in Path(jars_or_skip()).glob("*.jar")) / 1e6
        table.add_row("apache kafka 4.3.1, without its JVM", f"{jars:.0f}", "")
        report.add("install", "kafka", {"megabytes": jars})
    report.show(table)
