"""Consumer groups at scale: the cost of a commit, memory, and the load after a restart, by number of groups.

Offsets are committed over one raw connection by clients without members (as tools and assigned consumers do). Cost is
processor time of the broker per request, so that the client and its neighbours do not count.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.processor import cpu_seconds
from bench.report import Report, progress
from bench.wire import Client
from twofold.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest
from twofold.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from twofold.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.processes.server import TwofoldServer  # noqa: E402

PARTITIONS = 100
PROBES = 500


def commit(group: str, offset: int, partitions: int) -> OffsetCommitRequest:
    rows = [
        OffsetCommitRequestPartition(partition_index=p, committed_offset=offset, committed_metadata="")
        for p in range(partitions)
    ]
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=rows)],
    )  # fmt: skip


def check(answers: list[Any]) -> None:
    for answer in answers:
        codes = {row.error_code for topic in answer.topics for row in topic.partitions}
        if codes != {0}:
            raise RuntimeError(f"a commit was answered with {codes}")


def load_seconds(server: TwofoldServer, groups: int) -> float:
    """From the start of the process until the offsets of groups in every partition of the topic are served."""
    started = time.perf_counter()
    server.start()
    client = Client(server.host, server.port)
    wanted = [
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=f"g{n}", topics=None)])
        for n in range(min(groups, 200))
    ]
    while True:
        answers = client.many(list(wanted), 9, 8)
        if all(group.error_code == 0 for answer in answers for group in answer.groups):
            return time.perf_counter() - started
        time.sleep(0.01)


def measure(directory: Path, groups: int) -> dict[str, float]:
    server = TwofoldServer(directory / str(groups))
    server.start()
    try:
        client = Client(server.host, server.port)
        topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[])
        client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 19, 5)
        client.ask(FindCoordinatorRequest(key="g0"), 10, 2)  # creates the topic of the offsets
        while client.ask(commit("g0", 0, PARTITIONS), 8, 7).topics[0].partitions[0].error_code:
            time.sleep(0.05)  # the coordinator is still on its way
        before = server.resident_bytes
        for start in range(0, groups, 500):
            batch = [commit(f"g{n}", 1, PARTITIONS) for n in range(start, min(start + 500, groups))]
            check(client.many(batch, 8, 7))
        grown = server.resident_bytes - before
        probes = [commit(f"g{(n * 7919) % groups}", n, 10) for n in range(PROBES)]
        spent = cpu_seconds(server.pid)
        check(client.many(probes, 8, 7))
        cost = (cpu_seconds(server.pid) - spent) / PROBES * 1e6
        server.kill()
        return {"commit_us": cost, "memory_mb": grown / 1e6, "load_s": load_seconds(server, groups)}
    finally:
        server.kill()


def run(report: Report, *, sizes: tuple[int, ...] = (10, 100, 1000, 10_000)) -> None:
    table = Table(title=f"groups with {PARTITIONS} committed offsets each")
    for column in ("groups", "offsets", "commit of 10, us", "vs first", "grown MB", "start to served after kill -9, s"):
        table.add_column(column, justify="right")
    first = None
    with tempfile.TemporaryDirectory(prefix="twofold-groups-") as directory:
        for groups in progress(sizes, "groups"):
            row = measure(Path(directory), groups)
            first = first or row["commit_us"]
            table.add_row(
                f"{groups:,}", f"{groups * PARTITIONS:,}", f"{row['commit_us']:.0f}",
                f"{row['commit_us'] / first:.2f}", f"{row['memory_mb']:.0f}", f"{row['load_s']:.2f}",
            )  # fmt: skip
            report.add("groups", str(groups), row)
    report.show(table)
