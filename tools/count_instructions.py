"""Count the instructions that a broker spends on a request, so that two versions can be told apart on a busy machine.

    .venv/bin/python tools/count_instructions.py                       this checkout
    .venv/bin/python tools/count_instructions.py OLD NEW               two checkouts, each with a .venv, and their ratio
    .venv/bin/python tools/count_instructions.py --format json

A broker runs under valgrind's callgrind, as `twofold serve` runs it, and a plain socket asks it one thing at a time.
Seconds on a machine that does other work as well say little; instructions are nearly the same in every run. They leave
out what waits: the disk, the network, and processes that share a core.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from count_walk import CREATE_TOPICS, FIND_COORDINATOR, TOPIC, Client, Counter, end, init, produce
from twofold.records.batch import BatchBuilder
from twofold.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from twofold.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest
from twofold.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from twofold.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

ROOT = Path(__file__).resolve().parent.parent
TIMES = 200
WARM_UPS = 40
PATIENCE_S = 300
PRODUCE, FETCH, OFFSET_COMMIT = 0, 1, 8
RECORDS_OF_A_BATCH = 100


def a_batch(client: Client, number: int) -> None:
    builder = BatchBuilder(producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
    for _ in range(RECORDS_OF_A_BATCH):
        builder.add(b"key", b"v" * 100, 0)
    rows = [PartitionProduceData(index=0, records=builder.build())]
    topics = [TopicProduceData(name=TOPIC, partition_data=rows)]
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=topics)
    answer = client.ask(PRODUCE, 12, request)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def a_fetch(client: Client, number: int) -> None:
    rows = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)]
    topics = [FetchTopic(topic=TOPIC, partitions=rows)]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1_000_000,
        isolation_level=1,
        session_id=0,
        session_epoch=-1,
        topics=topics,
    )
    answer = client.ask(FETCH, 12, request)
    assert answer.responses[0].partitions[0].records, answer


def an_offset(client: Client, number: int) -> None:
    rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=number, committed_metadata="")]
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=rows)]
    request = OffsetCommitRequest(group_id="group", generation_id_or_member_epoch=-1, member_id="", topics=topics)
    answer = client.ask(OFFSET_COMMIT, 8, request)
    assert answer.topics[0].partitions[0].error_code == 0, answer


def a_transaction(client: Client, number: int) -> None:
    """InitProducerId, one record, EndTxn, under a transactional id of its own."""
    name = f"t-{number}"
    pair, _ = init(client, name)
    produce(client, pair, name)
    end(client, name, pair)


def a_kept_transaction(client: Client, number: int) -> None:
    """Prepared, kept by the next instance, and still open at the end."""
    name = f"k-{number}"
    pair, _ = init(client, name, two_phase=True)
    produce(client, pair, name)
    init(client, name, two_phase=True, keep=True)


KINDS: dict[str, Callable[[Client, int], object]] = {
    "Produce, a record": lambda client, number: produce(client),
    "Produce, 100 records": a_batch,
    "Fetch": a_fetch,
    "OffsetCommit": an_offset,
    "a transaction (3 requests)": a_transaction,
    "a kept two-phase transaction (3 requests)": a_kept_transaction,
}


class Counted:
    """A broker whose instructions are counted."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path, client: Client) -> None:
        self._process, self._folder = process, folder
        self.client = client

    def instructions(self) -> int:
        """Since it was asked last."""
        before = set(self._folder.glob("callgrind.out.*"))
        subprocess.run(
            ["callgrind_control", "--dump", str(self._process.pid)],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=PATIENCE_S,
        )
        totals = []
        for path in set(self._folder.glob("callgrind.out.*")) - before:
            totals += re.findall(r"^(?:summary|totals): (\d+)", path.read_text(), re.MULTILINE)
            path.unlink()
        if not totals:
            raise RuntimeError(f"callgrind has written no counts into {self._folder}")
        return max(map(int, totals))


@contextmanager
def counted_broker(checkout: Path) -> Iterator[Counted]:
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is missing: run `make setup` in {checkout}")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "transaction.two.phase.commit.enable": "true",
        "auto.create.topics.enable": "false",
    }
    with tempfile.TemporaryDirectory() as folder:
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        command = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={folder}/callgrind.out.%p"]
        command += [str(python), "-m", "twofold", "serve", "--data", f"{folder}/data", *options]
        environment = os.environ | {"PYTHONHASHSEED": "0", "COLUMNS": "200"}
        with (Path(folder) / "said").open("w+") as said:
            process = subprocess.Popen(
                command, cwd=checkout, stdout=said, stderr=subprocess.STDOUT, text=True, env=environment
            )
            try:
                client = Client(_address(process, Path(folder) / "said"), Counter())
                _prepare(client)
                yield Counted(process, Path(folder), client)
            finally:
                process.kill()
                process.wait()


def _address(process: "subprocess.Popen[str]", said: Path) -> str:
    """What the broker says when it is ready."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"127\.0\.0\.1:[1-9]\d*", said.read_text()):
            return found[0]
        time.sleep(0.2)
    raise RuntimeError(f"the broker did not start:\n{said.read_text()}")


def _prepare(client: Client) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=(), configs=())
    client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    for kind, key in ((1, "t-0"), (0, "group")):
        request = FindCoordinatorRequest(key=key, key_type=kind)
        while client.ask(FIND_COORDINATOR, 2, request).error_code:
            time.sleep(0.1)


def measure(checkout: Path, times: int) -> dict[str, float]:
    """Instructions of one of each kind."""
    found: dict[str, float] = {}
    with counted_broker(checkout) as broker:
        for name, ask in KINDS.items():
            for number in range(WARM_UPS):
                ask(broker.client, number)
            broker.instructions()
            for number in range(WARM_UPS, WARM_UPS + times):
                ask(broker.client, number)
            found[name] = broker.instructions() / times
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT], metavar="CHECKOUT")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--times", type=int, default=TIMES)
    options = parser.parse_args()
    for tool in ("valgrind", "callgrind_control"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is missing: install valgrind (Debian: apt-get install valgrind)")
    found: dict[str, Any] = {str(path): measure(path.resolve(), options.times) for path in options.checkouts}
    if options.format == "json":
        print(json.dumps(found, indent=2))
        return
    first, last = next(iter(found.values())), list(found.values())[-1]
    table = Table(title="thousands of instructions of the broker")
    table.add_column("what")
    for path in found:
        table.add_column(Path(path).name, justify="right")
    if len(found) > 1:
        table.add_column("last / first", justify="right")
    for name in KINDS:
        ratio = [f"{last[name] / first[name]:.2f}"] if len(found) > 1 else []
        table.add_row(name, *(f"{each[name] / 1_000:,.0f}" for each in found.values()), *ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
