"""How the cost of transactions grows: with those that are open, with the ids that are known, with those aborted.

The folders are written by `bench.transaction_folder`, so that a hundred thousand transactions take seconds; what is
measured is the broker that is started on them. Cost is its processor time (and for a fetch also the time until the
answer is there); flat is the claim, and the last column the multiple of the first row.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.table import Table

from bench.processor import cpu_seconds
from bench.report import Report, progress
from bench.servers import ROOT, TwofoldServer
from bench.transaction_folder import FIRST_PRODUCER_ID, PARTITIONS, TOPIC, known_id, open_id
from bench.wire import Client
from twofold.config.internal_topics import TRANSACTION_STATE, coordinator_partition
from twofold.records.batch import BatchBuilder
from twofold.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from twofold.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from twofold.wire.messages.describe_transactions import DescribeTransactionsRequest
from twofold.wire.messages.end_txn import EndTxnRequest
from twofold.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest
from twofold.wire.messages.init_producer_id import InitProducerIdRequest
from twofold.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from twofold.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twofold.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

OPEN = (10, 100, 1000, 10_000, 100_000)
IDS = (1000, 10_000, 100_000, 1_000_000)
ABORTED = (1, 10, 100, 1000, 10_000, 100_000)
COMMITS = 1000
FETCHES = 1000
FETCH_BYTES = 64 << 10
PATIENCE_S = 120
READ_COMMITTED = 1
ADD_PARTITIONS, END_TXN, INIT, DESCRIBE = 24, 26, 22, 65
CONCURRENT_TRANSACTIONS = 51
NOT_READY = (14, 15, 16, CONCURRENT_TRANSACTIONS)  # a coordinator that is on its way


def prepare(directory: Path, *, spread: int = 1, **transactions: int) -> TwofoldServer:
    """A broker, not running, in whose folder a kill -9 left so many `ids`, `open`, `hanging` or `aborted` transactions;
    the open ones are spread over so many partitions."""
    server = TwofoldServer(directory)
    server.start()
    client = Client(server.host, server.port)
    topic = CreatableTopic(name=TOPIC, num_partitions=spread, replication_factor=1, assignments=[], configs=[])
    client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 19, 5)
    client.ask(FindCoordinatorRequest(key="any", key_type=1), 10, 2)  # creates the topic of the transactions
    ids = topic_ids(client)
    client.close()
    server.stop()
    command = [sys.executable, "-m", "bench.transaction_folder", str(server.data)]
    command += ["--state-topic-id", str(ids[TRANSACTION_STATE]), "--topic-id", str(ids[TOPIC])]
    command += ["--spread", str(spread)]
    for option, count in transactions.items():
        command += [f"--{option}", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != -9:
        raise RuntimeError(f"the folder could not be filled:\n{done.stderr[-2000:]}")
    return server


def topic_ids(client: Client) -> dict[str, UUID]:
    deadline = time.monotonic() + PATIENCE_S
    wanted = [MetadataRequestTopic(name=TRANSACTION_STATE), MetadataRequestTopic(name=TOPIC)]
    while time.monotonic() < deadline:
        answer = client.ask(MetadataRequest(topics=wanted), 3, 12)
        if all(topic.error_code == 0 for topic in answer.topics):
            return {topic.name: topic.topic_id for topic in answer.topics}
        time.sleep(0.02)
    raise RuntimeError("the topics were not created")


def wait_until_loaded(client: Client, ids: list[str]) -> None:
    """Until the coordinators of all these ids answer for them."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = client.ask(DescribeTransactionsRequest(transactional_ids=ids), DESCRIBE, 0)
        if all(state.error_code == 0 for state in answer.transaction_states):
            return
        time.sleep(0.005)
    raise RuntimeError(f"not loaded after {PATIENCE_S} s: {answer.transaction_states[0]}")


def one_of_each_partition(name: Callable[[int], str], count: int) -> list[str]:
    found: dict[int, str] = {}
    for number in range(count):
        found.setdefault(coordinator_partition(name(number), PARTITIONS), name(number))
        if len(found) == PARTITIONS:
            break
    return list(found.values())


# --- the cost of a commit ---


class Committer:
    """One transactional producer on a raw connection: partition added, one record, commit."""

    def __init__(self, client: Client, transactional_id: str = "probe") -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.sequence = 0
        answer = self.initialize()
        while answer.error_code in NOT_READY:
            time.sleep(0.02)
            answer = self.initialize()
        check(answer.error_code)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def initialize(self) -> Any:
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=600_000)
        return self.client.ask(request, INIT, 4)

    def begin(self) -> None:
        """The partition added and one record in it."""
        topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        code = CONCURRENT_TRANSACTIONS
        while code == CONCURRENT_TRANSACTIONS:  # the markers of the one before are not written yet
            added = self.client.ask(request, ADD_PARTITIONS, 3)
            code = added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        check(code)
        builder = BatchBuilder(
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self.sequence, transactional=True
        )
        builder.add(None, bytes(100), int(time.time() * 1000))
        self.sequence += 1
        data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=builder.build())])]
        sent = self.client.ask(
            ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=30_000, topic_data=data), 0, 8
        )
        check(sent.responses[0].partition_responses[0].error_code)

    def transaction(self) -> None:
        self.begin()
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=True,
        )
        check(self.client.ask(request, END_TXN, 3).error_code)


def check(error_code: int) -> None:
    if error_code:
        raise RuntimeError(f"a step of a transaction was answered with error {error_code}")


def commit_cost(directory: Path, count: int) -> dict[str, float]:
    server = prepare(directory, open=count)
    server.start()
    try:
        client = Client(server.host, server.port)
        wait_until_loaded(client, one_of_each_partition(open_id, count))
        committer = Committer(client)
        for _ in range(100):
            committer.transaction()
        spent, times = cpu_seconds(server.pid), []
        for _ in range(COMMITS):
            started = time.perf_counter()
            committer.transaction()
            times.append(time.perf_counter() - started)
        cost = (cpu_seconds(server.pid) - spent) / COMMITS * 1e6
        return {"cpu_us": cost, "p50_us": statistics.median(times) * 1e6, "memory_mb": server.resident_bytes / 1e6}
    finally:
        server.kill()


def run_open(report: Report, *, sizes: tuple[int, ...] = OPEN) -> None:
    table = Table(title="a transaction of one record while others are open in its partition")
    for column in ("open transactions", "cpu us", "vs first", "p50 us", "MB"):
        table.add_column(column, justify="right")
    first = None
    with tempfile.TemporaryDirectory(prefix="twofold-open-") as directory:
        for size in progress(sizes, "open transactions"):
            row = commit_cost(Path(directory) / str(size), size)
            first = first or row["cpu_us"]
            table.add_row(
                f"{size:,}", f"{row['cpu_us']:.0f}", f"{row['cpu_us'] / first:.2f}", f"{row['p50_us']:.0f}",
                f"{row['memory_mb']:.0f}",
            )  # fmt: skip
            report.add("commit with open transactions", str(size), row)
    report.show(table)


# --- loading ---


def load_cost(directory: Path, count: int) -> dict[str, float]:
    server = prepare(directory, ids=count)
    ids = one_of_each_partition(known_id, count)
    started = time.perf_counter()
    server.start()
    try:
        wait_until_loaded(Client(server.host, server.port), ids)
        return {"seconds": time.perf_counter() - started, "memory_mb": server.resident_bytes / 1e6}
    finally:
        server.kill()


def run_load(report: Report, *, sizes: tuple[int, ...] = IDS) -> None:
    table = Table(title="start after kill -9 until every coordinator serves")
    for column in ("transactional ids", "seconds", "us an id", "MB"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory(prefix="twofold-load-") as directory:
        for size in progress(sizes, "transactional ids"):
            row = load_cost(Path(directory) / str(size), size)
            each = row["seconds"] / size * 1e6
            table.add_row(f"{size:,}", f"{row['seconds']:.2f}", f"{each:.1f}", f"{row['memory_mb']:.0f}")
            report.add("coordinator load", str(size), row)
    report.show(table)


# --- fetching ---


def fetch(offset: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=FETCH_BYTES, isolation_level=READ_COMMITTED,
        topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
    )  # fmt: skip


def fetch_cost(directory: Path, count: int) -> dict[str, float]:
    server = prepare(directory, aborted=count)
    server.start()
    try:
        client = Client(server.host, server.port)
        position = ListOffsetsPartition(partition_index=0, timestamp=-1)
        topics = [ListOffsetsTopic(name=TOPIC, partitions=[position])]
        answer = client.ask(ListOffsetsRequest(replica_id=-1, isolation_level=READ_COMMITTED, topics=topics), 2, 5)
        end = answer.topics[0].partitions[0].offset
        row: dict[str, float] = {"offsets": end}
        for place, offset in (("end", end - 2), ("middle", end // 2 // 2 * 2)):
            found = client.ask(fetch(offset), 1, 11).responses[0].partitions[0]
            check(found.error_code)
            row[f"{place}_aborted"] = len(found.aborted_transactions)
            if found.aborted_transactions[0].producer_id < FIRST_PRODUCER_ID:
                raise RuntimeError("a transaction that was not aborted")
            client.repeat(fetch(offset), 1, 11, 100)
            spent, started = cpu_seconds(server.pid), time.perf_counter()
            row[f"{place}_bytes"] = client.repeat(fetch(offset), 1, 11, FETCHES)
            row[f"{place}_us"] = (time.perf_counter() - started) / FETCHES * 1e6
            row[f"{place}_cpu_us"] = (cpu_seconds(server.pid) - spent) / FETCHES * 1e6
        return row
    finally:
        server.kill()


def run_aborted(report: Report, *, sizes: tuple[int, ...] = ABORTED) -> None:
    kilobytes = FETCH_BYTES >> 10
    table = Table(title=f"a read_committed fetch of at most {kilobytes} KB: at the end, and in the middle")
    for column in ("aborted in the log", "end: cpu us", "bytes", "listed", "middle: cpu us", "bytes", "listed"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory(prefix="twofold-aborted-") as directory:
        for size in progress(sizes, "aborted transactions"):
            row = fetch_cost(Path(directory) / str(size), size)
            table.add_row(
                f"{size:,}",
                f"{row['end_cpu_us']:.0f}", f"{row['end_bytes']:,.0f}", f"{row['end_aborted']:,.0f}",
                f"{row['middle_cpu_us']:.0f}", f"{row['middle_bytes']:,.0f}", f"{row['middle_aborted']:,.0f}",
            )  # fmt: skip
            report.add("fetch with aborted transactions", str(size), row)
    report.show(table)
