"""What is measured side by side, each a process of its own: a server that only acknowledges (for the reference client),
Twofold and Apache Kafka."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.processes.server import TwofoldServer  # noqa: E402
from oracle.kafka import Oracle, jars_or_skip  # noqa: E402
from oracle.processes import free_port, spawn, stop, tail  # noqa: E402

# What the other benchmarks take from here besides what this module defines.
__all__ = ["Oracle", "TwofoldServer", "jars_or_skip"]

REFERENCE = "reference"
TWOFOLD = "twofold"
KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    address: str
    pid: int


class TunedOracle(Oracle):
    """Apache Kafka as its own scripts start it: 1 GB of heap and both compilers. (The tests use a quick one.)"""

    def _java(self, *flags: str) -> list[str]:
        java = shutil.which("java")
        assert java is not None
        tuning = [] if not flags else ["-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        return [java, *tuning, "-cp", f"{self.jars}/*"]


@contextmanager
def targets(*, partitions: int, with_oracle: bool = True, only: frozenset[str] | None = None) -> Iterator[list[Target]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twofold-bench-")))
        found = []
        if only is None or REFERENCE in only:
            found.append(stack.enter_context(reference(directory, partitions)))
        if only is None or TWOFOLD in only:
            server = stack.enter_context(TwofoldServer(directory / "twofold"))
            found.append(Target(TWOFOLD, server.bootstrap_servers, server.pid))
        if with_oracle and (only is None or KAFKA in only):
            found.append(stack.enter_context(kafka(directory)))
        yield found


@contextmanager
def reference(directory: Path, partitions: int) -> Iterator[Target]:
    port, output = free_port(), directory / "reference.log"
    command = [sys.executable, "-m", "bench.reference", "--port", str(port), "--partitions", str(partitions)]
    process = spawn(command, output=output, cwd=ROOT)
    try:
        while "ready" not in (text := tail(output)):
            if process.poll() is not None:
                raise RuntimeError(f"the reference server did not start:\n{text}")
        yield Target(REFERENCE, f"127.0.0.1:{port}", process.pid)
    finally:
        stop(process)


@contextmanager
def kafka(directory: Path) -> Iterator[Target]:
    place = directory / "kafka"
    place.mkdir()
    oracle = TunedOracle(jars_or_skip(), place)
    try:
        oracle.start()
        yield Target(KAFKA, oracle.bootstrap_servers, oracle.pid)
    finally:
        oracle.stop()
