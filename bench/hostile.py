"""What clients that mean harm cost those that do not: latency of a healthy client and memory, during each attack.

The healthy client produces a record (acks=all) and fetches it, one after the other, over one connection. The attackers
are a process of their own (`tests/fuzz/attacks.py`) on the same machine, where they take processor time as well.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.table import Table

from bench.report import Report, progress

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fuzz.attacks import ATTACKS  # noqa: E402
from kits.processes.server import TwofoldServer  # noqa: E402
from oracle.batches import Record, batch  # noqa: E402
from oracle.compare import produce_body  # noqa: E402
from oracle.driver import Connection  # noqa: E402

MB = 1024 * 1024
PACE_S = 0.005


class Healthy:
    """Produces and fetches at a pace that is far from the broker's limit."""

    def __init__(self, server: TwofoldServer) -> None:
        self._connection = Connection(server.host, server.port, timeout_s=60)
        self._offset = self._end()
        self.latencies: list[float] = []

    def _end(self) -> int:
        part = {"partition_index": 0, "timestamp": -1}
        answer = self._connection.ask("ListOffsets", 1, topics=[{"name": "healthy", "partitions": [part]}])
        return int(answer["topics"][0]["partitions"][0]["offset"])

    def once(self) -> None:
        begun = time.perf_counter()
        answer = self._connection.ask("Produce", 7, **produce_body("healthy", batch([Record(value=b"x" * 100)])))
        row = answer["responses"][0]["partition_responses"][0]
        if row["error_code"] != 0 or row["base_offset"] != self._offset:
            raise RuntimeError(f"the healthy client's record at {self._offset} was answered with {row}")
        part = {"partition": 0, "fetch_offset": self._offset, "partition_max_bytes": MB}
        topics = [{"topic": "healthy", "partitions": [part]}]
        found = self._connection.ask("Fetch", 4, replica_id=-1, min_bytes=1, max_bytes=MB, topics=topics)
        if not found["responses"][0]["partitions"][0]["records"]:
            raise RuntimeError(f"the healthy client's record at {self._offset} cannot be read")
        self._offset += 1
        self.latencies.append(time.perf_counter() - begun)

    def close(self) -> None:
        self._connection.close()


class Memory:
    """The highest resident size of a server while it is watched."""

    def __init__(self, server: TwofoldServer) -> None:
        self.before = self.peak = server.resident_bytes
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.peak = max(self.peak, self._server.resident_bytes)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def measure(server: TwofoldServer, name: str, seconds: float) -> dict[str, float]:
    memory = Memory(server)
    paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
    command = [sys.executable, "-m", "fuzz.attacks", name, server.host, str(server.port), str(seconds + 30)]
    healthy = Healthy(server)
    attackers = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE)
    try:
        assert attackers.stdout is not None
        if attackers.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the attack {name!r} did not begin")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            healthy.once()
            time.sleep(PACE_S)
    finally:
        attackers.kill()
        attackers.wait()
        memory.stop()
        healthy.close()
    found = sorted(healthy.latencies)
    return {
        "p50_ms": statistics.median(found) * 1000,
        "p99_ms": found[int(len(found) * 0.99)] * 1000,
        "max_ms": found[-1] * 1000,
        "requests": 2 * len(found),
        "rss_before_mb": memory.before / MB,
        "rss_peak_mb": memory.peak / MB,
    }


def prepare(server: TwofoldServer) -> None:
    with Connection(server.host, server.port) as admin:
        compact = [{"name": "cleanup.policy", "value": "compact"}]
        rows = [("healthy", []), ("large", []), ("compacted", compact)]
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs} for name, configs in rows
        ]
        admin.ask("CreateTopics", 4, topics=topics, timeout=5000)
        for _ in range(12):
            admin.ask("Produce", 7, **produce_body("large", batch([Record(value=bytes(900_000))])))


def run(report: Report, seconds: float = 8.0) -> None:
    table = Table("attack", "p50 ms", "p99 ms", "max ms", "MB before", "MB at most", title="A healthy client meanwhile")
    for name in progress(list(ATTACKS), "hostile clients"):
        with (
            tempfile.TemporaryDirectory(prefix="twofold-bench-") as directory,
            TwofoldServer(Path(directory)) as server,
        ):
            prepare(server)
            values = measure(server, name, seconds)
            text = server.log_text()
            values["errors_logged"] = text.count("Traceback")
        report.add("hostile", name, values)
        columns = ("p50_ms", "p99_ms", "max_ms", "rss_before_mb", "rss_peak_mb")
        table.add_row(name, *(f"{values[column]:,.1f}" for column in columns))
    report.show(table)
