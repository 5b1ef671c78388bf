"""Count the functions of Twofold that a request enters, from the bytes of the socket to the bytes of the answer.

    .venv/bin/python tools/count_walk.py                      a table
    .venv/bin/python tools/count_walk.py --format json

A broker runs inside this process, as `twofold serve` runs it, and a plain socket asks it, so only the broker is
counted. A walk begins when the server gets the bytes of the request and ends when the answer is handed to the
transport. It is repeated, and the smallest count stands: timers of the broker may come in between.
`PYTHONPATH=<checkout>/src` measures another checkout.

A micro-batch is what Spark makes the sink do for one batch with one task: the driver plans it, the task writes three
records and votes, the driver commits. No Spark is started. The second batch of a query is the first that is counted,
because the first one also registers the query.
"""

import argparse
import asyncio
import json
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from types import FrameType
from typing import Any, NamedTuple

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import twofold
from twofold.broker.run import serve
from twofold.client.cluster.cluster import Cluster
from twofold.config.settings import Settings
from twofold.records.batch import BatchBuilder
from twofold.records.columnar import Columns
from twofold.runtime.real import real_runtime
from twofold.sink.driver import Driver, Votes
from twofold.sink.slots import Slots, Use
from twofold.sink.writer import TaskWriter
from twofold.spark.options import write_options
from twofold.wire import codec
from twofold.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from twofold.wire.messages.end_txn import EndTxnRequest
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest
from twofold.wire.messages.init_producer_id import InitProducerIdRequest
from twofold.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

SOURCES = twofold.__file__.rsplit("/", 1)[0]
REPEATS = 9
START_TIMEOUT_S = 60
TOPIC = "walks"
SINK = "sink"  # the name of its thread
PRODUCE, FIND_COORDINATOR, CREATE_TOPICS, INIT_PRODUCER_ID, END_TXN = 0, 10, 19, 22, 26


class Walk(NamedTuple):
    entered: int
    functions: int
    files: int


class Counter:
    """A profile function for the threads of the broker."""

    def __init__(self) -> None:
        self._is_asked = False  # a request is under way
        self._is_counting = False  # its bytes have reached the server
        self._is_endless = False  # it has more than one answer: `end` alone ends it
        self._names: list[tuple[str, str]] = []
        self._sink_names: list[tuple[str, str]] = []

    def begin(self, *, endless: bool = False) -> None:
        self._names, self._sink_names = [], []
        self._is_endless = self._is_counting = endless
        self._is_asked = True

    def end(self) -> Walk:
        """What the broker has entered."""
        self._is_asked = False
        return _walk(self._names)

    @property
    def of_the_sink(self) -> Walk:
        return _walk(self._sink_names)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._is_asked or event not in ("call", "c_call"):
            return
        code = frame.f_code
        if event == "c_call":
            if self._is_counting and not self._is_endless and argument.__name__ in ("send", "sendmsg"):
                self._is_asked = False  # the answer goes out
        elif code.co_filename.startswith(SOURCES):
            if code.co_filename.endswith("/server.py") and code.co_name in ("data_received", "buffer_updated"):
                self._is_counting = True
            if self._is_counting:
                in_sink = threading.current_thread().name == SINK
                names = self._sink_names if in_sink else self._names
                names.append((code.co_filename, code.co_qualname))


def _walk(names: list[tuple[str, str]]) -> Walk:
    return Walk(len(names), len(set(names)), len({file for file, _ in names}))


class Client:
    """One connection that asks one thing at a time."""

    def __init__(self, address: str, counter: Counter) -> None:
        host, port = address.rsplit(":", 1)
        self.address, self.counter = address, counter
        self._socket = socket.create_connection((host, int(port)))
        self._asked = 0

    def ask(self, key: int, version: int, message: Any) -> Any:
        return self.count(key, version, message)[0]

    def count(self, key: int, version: int, message: Any) -> tuple[Any, Walk]:
        self._asked += 1
        frame = bytes(codec.encode_request(message, key, version, self._asked, "walk"))
        self.counter.begin()
        self._socket.sendall(frame)
        size = struct.unpack(">i", self._receive(4))[0]
        payload = self._receive(size)
        walk = self.counter.end()
        return codec.decode_response(key, version, payload)[1], walk

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self._socket.recv(size - len(data))
        return data


def produce(client: Client, pair: tuple[int, int] = (-1, -1), name: str | None = None) -> Walk:
    transactional = name is not None
    builder = BatchBuilder(
        producer_id=pair[0],
        producer_epoch=pair[1],
        base_sequence=0 if transactional else -1,
        transactional=transactional,
    )
    builder.add(b"key", b"value", 0)
    rows = [PartitionProduceData(index=0, records=builder.build())]
    topics = [TopicProduceData(name=TOPIC, partition_data=rows)]
    request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=10_000, topic_data=topics)
    answer, walk = client.count(PRODUCE, 12, request)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer
    return walk


def init(client: Client, name: str, *, two_phase: bool = False, keep: bool = False) -> tuple[tuple[int, int], Walk]:
    request = InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
        enable2_pc=two_phase,
        keep_prepared_txn=keep,
    )
    answer, walk = client.count(INIT_PRODUCER_ID, 6, request)
    assert answer.error_code == 0, answer
    return (answer.producer_id, answer.producer_epoch), walk


def end(client: Client, name: str, pair: tuple[int, int]) -> Walk:
    request = EndTxnRequest(transactional_id=name, producer_id=pair[0], producer_epoch=pair[1], committed=True)
    answer, walk = client.count(END_TXN, 5, request)
    assert answer.error_code == 0, answer
    return walk


def one_produce(client: Client, number: int) -> Walk:
    return produce(client)


def one_commit(client: Client, number: int) -> Walk:
    name = f"commit-{number}"
    pair, _ = init(client, name)
    produce(client, pair, name)
    return end(client, name, pair)


def one_keeping(client: Client, number: int) -> Walk:
    name = f"keep-{number}"
    pair, _ = init(client, name, two_phase=True)
    produce(client, pair, name)
    return init(client, name, two_phase=True, keep=True)[1]


# --- a micro-batch ---


class MicroBatches:
    """A query with one task: driver and task are in one thread, as they are in `local` mode."""

    def __init__(self, address: str, folder: str) -> None:
        options = {
            "kafka.bootstrap.servers": address, "topic": TOPIC, "transactionalIdPrefix": "walk", "exactlyOnce": "2pc",
            "checkpointLocation": folder, "batchCheck": "number",
        }  # fmt: skip
        chosen = write_options(options, streaming=True)
        self._producer, self._settings, self._folder = chosen.producer, chosen.settings, Path(folder)

    async def run(self, counter: Counter, batches: int) -> dict[str, Walk]:
        runtime = real_runtime()
        cluster = Cluster(runtime, self._producer)
        driver = Driver(runtime, cluster, self._producer, self._settings)
        slots = Slots("walk", self._folder / "slots")
        writer = TaskWriter(runtime, cluster, self._producer, slots)
        found: list[tuple[Walk, Walk]] = []
        for batch_id in range(batches):
            counter.begin(endless=True)
            await self._batch(driver, writer, batch_id, runtime.clock.wall_ms())
            in_broker = counter.end()
            found.append((counter.of_the_sink, in_broker))
        await writer.close()
        await driver.close()
        await cluster.close()
        slots.close()
        sink, broker = min(found[1:], key=lambda walks: walks[0].entered + walks[1].entered)
        return {"a micro-batch, in the sink": sink, "a micro-batch, in the broker": broker}

    async def _batch(self, driver: Driver, writer: TaskWriter, batch_id: int, now_ms: int) -> None:
        plan = await driver.start("owner")
        await driver.check_current(plan, "query", batch_id)
        await writer.begin(plan.conditions, Use("run", batch_id))
        await writer.topic(TOPIC)
        rows = pa.array([b"a", b"b", b"c"])
        await writer.send(TOPIC, [(0, batch) for batch in Columns(rows, rows, now_ms).encode()])
        participant = await writer.prepare(0)
        await driver.check_current(plan, "query", batch_id, prepared=True)
        assert participant is not None
        await driver.commit(Votes(plan.owner, "query", "run", batch_id, plan.conditions, (participant,)))


def micro_batches(client: Client, repeats: int) -> dict[str, Walk]:
    found: dict[str, Walk] = {}
    with tempfile.TemporaryDirectory() as folder:
        sink = MicroBatches(client.address, folder)
        thread = threading.Thread(
            target=lambda: found.update(asyncio.run(sink.run(client.counter, repeats))), name=SINK
        )
        thread.start()
        thread.join()
    return found


# --- all of them ---

WALKS: dict[str, Callable[[Client, int], Walk]] = {
    "Produce, one batch": one_produce,
    "EndTxn, a commit": one_commit,
    "InitProducerId with keepPreparedTxn": one_keeping,
}


@contextmanager
def plain_broker(settings: dict[str, str]) -> Iterator[str]:
    """Its address. `twofold.embedded.Broker` will not do: its seams for faults would be counted."""
    ready: Queue[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

    async def run(folder: str) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        await serve(
            Settings.from_mapping(settings), folder, lambda host, port: ready.put((f"{host}:{port}", loop, stop)), stop
        )

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=lambda: asyncio.run(run(folder)), daemon=True)
        thread.start()
        address, loop, stop = ready.get(timeout=START_TIMEOUT_S)
        try:
            yield address
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()


@contextmanager
def counted_broker() -> Iterator[Client]:
    counter = Counter()
    threading.setprofile(counter)
    settings = {"transaction.two.phase.commit.enable": "true", "auto.create.topics.enable": "false"}
    with plain_broker(settings | {"listeners": "PLAINTEXT://127.0.0.1:0"}) as address:
        client = Client(address, counter)
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=(), configs=())
        client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        while client.ask(FIND_COORDINATOR, 2, FindCoordinatorRequest(key="commit-0", key_type=1)).error_code:
            time.sleep(0.01)
        yield client
    threading.setprofile(None)


def measure(repeats: int = REPEATS) -> dict[str, Walk]:
    with counted_broker() as client:
        found = {name: min(walk(client, number) for number in range(repeats)) for name, walk in WALKS.items()}
        return found | micro_batches(client, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    found = measure(options.repeats)
    if options.format == "json":
        print(json.dumps({name: walk._asdict() for name, walk in found.items()}, indent=2))
        return
    table = Table(title="functions of Twofold, from socket to answer")
    for column in ("walk", "entered", "different", "files"):
        table.add_column(column, justify="left" if column == "walk" else "right", no_wrap=True)
    for name, walk in found.items():
        table.add_row(name, *(f"{number:,}" for number in walk))
    Console().print(table)


if __name__ == "__main__":
    main()
