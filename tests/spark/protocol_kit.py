"""The sink's protocol without Spark: drivers and tasks on threads of their own, that can stop at any step.

A `Query` is what Spark would be: it writes batches of numbers by two tasks. Its drivers are `Process`es, which come and
go; one that crashed is not heard of again, one that is paused goes on later.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from sink_kit import Broker

from oracle.driver import Connection
from twofold.client.admin.transaction_model import TransactionDescription
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import Coordinators
from twofold.client.config import ProducerConfig
from twofold.client.loop_thread import LoopThread
from twofold.client.transactions.calls import TransactionCalls
from twofold.records.columnar import Columns
from twofold.runtime.real import real_runtime
from twofold.sink.driver import Driver, Plan, SinkSettings, Votes
from twofold.sink.register import Participant
from twofold.sink.slots import Slots, Use
from twofold.sink.transactions import TransactionLookup
from twofold.sink.writer import TaskWriter

PATIENCE_S = 60
UPGRADE, SAFE_DOWNGRADE = 1, 2
TASKS = 2


class Crash(BaseException):
    """The process is gone: nothing in it may catch this and go on."""


class Steps:
    """What happens at the protocol's steps, by the thread that gets there."""

    def __init__(self) -> None:
        self._orders: dict[tuple[str, str], Callable[[], None]] = {}

    def __call__(self, step: str) -> None:
        order = self._orders.pop((threading.current_thread().name, step), None)
        if order is not None:
            order()

    def crash(self, process: "Process", step: str) -> None:
        def order() -> None:
            raise Crash(step)

        self._orders[process.name, step] = order

    def pause(self, process: "Process", step: str) -> "Pause":
        pause = Pause()
        self._orders[process.name, step] = pause
        return pause


class Pause:
    def __init__(self) -> None:
        self._reached, self._go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self._reached.set()
        assert self._go.wait(PATIENCE_S), "nobody said go"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S), "the step was not reached"

    def is_reached_before(self, ended: "Future[None]") -> bool:
        """False where the step is not reached at all."""
        while not self._reached.wait(0.02):
            if ended.done():
                return False
        return True

    def go(self) -> None:
        self._go.set()


class Process:
    """A driver of a query, with its tasks, on a loop of its own."""

    def __init__(self, query: "Query", settings: SinkSettings, slots: Path) -> None:
        self.name = f"driver-{uuid.uuid4().hex[:8]}"
        self.query = query
        self.run_id = self.name
        self.plan: Plan | None = None
        self._loop = LoopThread(self.name)
        self._background = ThreadPoolExecutor(1)
        config = ProducerConfig(bootstrap_servers=query.broker.bootstrap_servers, delivery_timeout_ms=40_000)

        async def make() -> tuple[Cluster, Driver, TransactionCalls, TransactionLookup, list[TaskWriter]]:
            runtime = real_runtime()
            cluster = Cluster(runtime, config)
            writers = [
                TaskWriter(runtime, cluster, config, Slots(query.prefix, slots), query.steps) for _ in range(TASKS)
            ]
            coordinators = Coordinators(cluster)
            calls, transactions = TransactionCalls(cluster, coordinators), TransactionLookup(cluster, coordinators)
            driver = Driver(runtime, cluster, config, settings, reached=query.steps)
            return cluster, driver, calls, transactions, writers

        self._cluster, self.driver, self.calls, self._transactions, self._writers = self._loop.run(make())

    def start(self) -> Plan:
        self.plan = self._loop.run(self.driver.start(self.name))
        return self.plan

    def take_over(self, *, accept_loss: bool = False) -> None:
        deadline = self._cluster.deadline()
        self._loop.run(self.driver.take_over(self.name, deadline, accept_loss=accept_loss))

    def write(self, batch_id: int) -> Votes:
        """The batch's tasks, up to what they say to the driver."""
        plan = self.plan
        assert plan is not None

        async def task(index: int, writer: TaskWriter) -> Participant | None:
            await writer.begin(plan.conditions, Use(self.run_id, batch_id))
            rows = [b"%d" % number for number in self.query.numbers(batch_id) if number % TASKS == index]
            keys = [b"k%d" % (int(row) % 4) for row in rows]
            columns = Columns(pa.array(keys), pa.array(rows), int(time.time() * 1000))
            await writer.topic(self.query.target)
            await writer.send(self.query.target, [(index, batch) for batch in columns.encode()])
            return await writer.prepare(index)

        async def tasks() -> Sequence[Participant | None]:
            return await asyncio.gather(*(task(*pair) for pair in enumerate(self._writers)))

        participants = tuple(participant for participant in self._loop.run(tasks()) if participant is not None)
        assert len(participants) == TASKS
        return Votes(self.name, self.query.query_id, self.run_id, batch_id, plan.conditions, participants)

    def commit(self, votes: Votes) -> None:
        self._loop.run(self.driver.commit(votes))

    def commit_in_background(self, votes: Votes) -> "Future[None]":
        return self._background.submit(self.commit, votes)

    def abort(self, votes: Votes) -> None:
        self._loop.run(self.driver.abort(votes.owner, votes.conditions, list(votes.participants)))

    def batch(self, batch_id: int) -> None:
        """What Spark does for a micro-batch: a batch that is decided is not written again."""
        plan = self.start()
        if dict(plan.decided).get(self.query.query_id, -1) < batch_id:
            self.commit(self.write(batch_id))

    def end(self, participant: Participant, *, commit: bool) -> None:
        """What a driver does in the middle of a completion."""
        name, identity = participant.transactional_id, participant.client
        deadline = self._cluster.deadline()
        self._loop.run(self.calls.end(name, identity, deadline, commit=commit, v2=participant.v2))

    def describe(self, votes: Votes) -> list[TransactionDescription | None]:
        names = [participant.transactional_id for participant in votes.participants]
        found = self._loop.run(self._transactions.describe(names, self._cluster.deadline()))
        return [found[name] for name in names]

    def wait_for_states(self, votes: Votes, *states: str | None) -> None:
        """Until every transaction of the batch is in one of the states; None is an id that nobody knows."""
        deadline = time.monotonic() + PATIENCE_S
        while not all((row.state if row else None) in states for row in self.describe(votes)):
            assert time.monotonic() < deadline, f"not {states}: {self.describe(votes)}"
            time.sleep(0.05)

    def close(self) -> None:
        async def close() -> None:
            for writer in self._writers:
                await writer.close()
            await self.driver.close()
            await self._cluster.close()

        self._loop.run(close())
        self._loop.close()
        self._background.shutdown()


class Query:
    """Numbers to one topic of two partitions, `per_batch` in each batch."""

    def __init__(
        self,
        bootstrap_servers: str,
        directory: Path,
        exactly_once: str,
        steps: Steps | None = None,
        per_batch: int = 10,
    ) -> None:
        self.broker = Broker(bootstrap_servers)
        self.prefix = f"q{uuid.uuid4().hex[:8]}"
        self.query_id = f"id-{self.prefix}"
        self.target = self.broker.topic(TASKS)
        self.exactly_once = exactly_once
        self.steps = steps or Steps()
        self.per_batch = per_batch
        self._slots = directory
        self._processes: list[Process] = []

    def numbers(self, batch_id: int) -> range:
        return range(batch_id * self.per_batch, (batch_id + 1) * self.per_batch)

    def driver(self, timeout_ms: int | None = None, exactly_once: str | None = None) -> Process:
        settings = SinkSettings(self.prefix, exactly_once or self.exactly_once, transaction_timeout_ms=timeout_ms)
        process = Process(self, settings, self._slots)
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.close()

    def check(self, *batches: int, tasks: Sequence[int] = range(TASKS)) -> None:
        """Of these batches every number is there once, of the tasks that were committed, and nothing is open."""
        found = sorted(int(value) for _, _, value in self.broker.read(self.target))
        wanted = [number for batch in batches for number in self.numbers(batch) if number % TASKS in tasks]
        assert found == wanted
        assert self.broker.open_transactions(self.prefix) == []


@contextmanager
def closing(query: Query) -> Iterator[Query]:
    try:
        yield query
    finally:
        query.close()


def set_level(server: Any, level: int) -> None:
    """transaction.version of a cluster, ours or Apache Kafka's."""
    update = {
        "feature": "transaction.version",
        "max_version_level": level,
        "upgrade_type": UPGRADE if level == 2 else SAFE_DOWNGRADE,
    }
    with Connection(server.host, server.port) as connection:
        answer = connection.ask("UpdateFeatures", 1, timeout=10_000, feature_updates=[update], validate_only=False)
    assert answer["error_code"] == 0, answer
