"""A query without Spark: the real driver and the real tasks of a sink, ended at whatever point a test wants."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import Coordinators
from twofold.client.config import ProducerConfig
from twofold.client.loop_thread import LoopThread
from twofold.client.transactions.calls import Terms, TransactionCalls
from twofold.records.columnar import Columns
from twofold.runtime.real import real_runtime
from twofold.sink.driver import Driver, Plan, SinkSettings, Votes
from twofold.sink.inspection import Inspector, SinkState
from twofold.sink.register import Participant
from twofold.sink.slots import Slots, Use
from twofold.sink.writer import TaskWriter

T = TypeVar("T")
OWNER = "the-query"
# What a task that died has open is not gone before a test has looked at it.
HEARTBEAT_INTERVAL_MS = 60_000


@dataclass
class Query:
    """Everything of it in this process; `die` closes connections and says nothing to anybody."""

    bootstrap_servers: str
    directory: Path
    prefix: str = "orders"
    query_id: str = "q"
    run_id: str = "run"
    exactly_once: str = "auto"
    decision_topic: str | None = None
    transaction_timeout_ms: int | None = None
    query_name: str = ""
    plan: Plan | None = None
    _loop: LoopThread = field(default_factory=lambda: LoopThread("query"))
    _clusters: list[Cluster] = field(default_factory=list)
    _writers: list[TaskWriter] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = ProducerConfig(bootstrap_servers=self.bootstrap_servers, linger_ms=0)
        settings = SinkSettings(
            self.prefix,
            self.exactly_once,
            self.decision_topic,
            self.transaction_timeout_ms,
            HEARTBEAT_INTERVAL_MS,
            query_name=self.query_name,
        )

        async def make() -> tuple[Driver, TransactionCalls]:
            cluster = self._cluster()
            driver = Driver(real_runtime(), cluster, self.config, settings)
            return driver, TransactionCalls(cluster, Coordinators(cluster))

        self.driver, self.calls = self._do(make)

    def _cluster(self) -> Cluster:
        cluster = Cluster(real_runtime(), self.config, allow_auto_create=True)
        self._clusters.append(cluster)
        return cluster

    def _do(self, what: Callable[[], Awaitable[T]]) -> T:
        async def call() -> T:
            return await what()

        return self._loop.run(call())

    def start(self) -> Plan:
        self.plan = self._do(lambda: self.driver.start(OWNER))
        return self.plan

    def write(self, topic: str, values: list[bytes], batch_id: int = 0) -> TaskWriter:
        """A task that has written and is not prepared."""
        plan = self.plan or self.start()

        async def task() -> TaskWriter:
            runtime, cluster = real_runtime(), self._cluster()
            number = len(self._writers)
            slots = Slots(self.prefix, self.directory / f"{self.prefix}-{number}")
            writer = TaskWriter(runtime, cluster, self.config, slots)
            self._writers.append(writer)
            await writer.begin(plan.conditions, Use(self.run_id, batch_id))
            await writer.topic(topic)
            columns = Columns(None, pa.array(values), runtime.clock.wall_ms())
            await writer.send(topic, [(0, batch) for batch in columns.encode()])
            await writer._sender.flush()
            return writer

        return self._do(task)

    def prepare(self, topic: str, values: list[bytes], batch_id: int = 0, partition: int = 0) -> Participant:
        writer = self.write(topic, values, batch_id)
        participant = self._do(lambda: writer.prepare(partition))
        assert participant is not None
        return participant

    def votes(self, participants: list[Participant], batch_id: int = 0) -> Votes:
        assert self.plan is not None
        return Votes(OWNER, self.query_id, self.run_id, batch_id, self.plan.conditions, tuple(participants))

    def commit(self, participants: list[Participant], batch_id: int = 0) -> None:
        self._do(lambda: self.driver.commit(self.votes(participants, batch_id)))

    def decide(self, participants: list[Participant], batch_id: int = 0) -> None:
        """And nothing after it."""
        decision = self.votes(participants, batch_id).decision

        async def append() -> None:
            journal = self.driver.journal
            await journal.append(journal.register.deciding(decision, real_runtime().clock.wall_ms()))

        self._do(append)

    def leave_a_record_open(self) -> None:
        """A record of the journal whose transaction is not ended."""
        producer = self.driver.journal._producer
        assert producer is not None

        async def send() -> None:
            await producer.begin_transaction()
            await producer.send(self.driver.journal.topic, b"{}", key=self.prefix.encode(), partition=0)
            await producer.flush()

        self._do(send)

    def end(self, participant: Participant, *, commit: bool) -> None:
        deadline = self._clusters[0].deadline()
        self._do(
            lambda: self.calls.end(
                participant.transactional_id, participant.client, deadline, commit=commit, v2=participant.v2
            )
        )

    def use_again(self, participant: Participant) -> None:
        """Its id, for nothing: what the coordinator shows of it after that is an id without a transaction."""
        deadline = self._clusters[0].deadline()
        self._do(lambda: self.calls.init(participant.transactional_id, Terms(10_000), deadline))

    def open_ids(self) -> list[str]:
        """Of tasks."""
        return self._do(lambda: self.driver.open_ids(self._clusters[0].deadline()))

    def state(self) -> SinkState:
        """What somebody sees who only looks."""

        async def look() -> SinkState:
            inspector, deadline = Inspector(self._clusters[0]), self._clusters[0].deadline()
            try:
                (found,) = await inspector.find(self.driver.journal.topic, self.prefix, deadline)
                assert found.register is not None
                return await inspector.state(found.prefix, found.topic, found.register, deadline)
            finally:
                inspector.close()

        return self._do(look)

    def die(self) -> None:
        async def drop() -> None:
            for cluster in self._clusters:
                await cluster.close()
            for writer in self._writers:
                await writer.close()

        self._do(drop)
        self._loop.close()
