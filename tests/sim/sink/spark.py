"""Something that behaves like Spark, as far as a sink can tell: drivers, Python workers, tasks, and a checkpoint.

What is written down in `reference` about it is what happens here: a batch is planned in one process and committed in
another; attempts of tasks die, are repeated, run twice and end late, unseen; an error of commit is followed by an abort
of everything; whatever was not noted as committed is written again, by a new run, with another division into tasks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from sim.sink.plan import SinkPlan
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.records.columnar import Columns
from twofold.runtime.sim import Simulation
from twofold.sink.decided import Input
from twofold.sink.driver import Driver, Plan, SinkSettings, Upcoming, Votes
from twofold.sink.errors import DecidedDataLost, OtherInput
from twofold.sink.journal import GroupOffsets
from twofold.sink.register import Participant
from twofold.sink.slots import Slots, Use
from twofold.sink.writer import TaskWriter
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

T = TypeVar("T")
PREFIX, QUERY, TOPIC = "sink", "query", "out"
GROUP, INPUT = "group", TopicPartition(TOPIC, 0)  # any partition that is there will do for the input
TASK_ATTEMPTS = 4
KILL_TIMEOUT_S = 2.0
DRIVER_LINGERS_S = 0.05
Row = tuple[int, int]
"""Its key, and its number among all rows."""


class Died(Exception):
    """The process is gone, and nobody knows how far it came."""


class QueryFailed(Exception):
    pass


class TaskRaised(Exception):
    """The user's own code."""


@dataclass
class Checkpoint:
    """offsets/n is there for every n from the beginning; what counts is which of them are noted in commits/."""

    batches: list[list[Row]]
    committed: dict[int, str]
    kept: "Checkpoint | None" = None
    """What it was before an older copy was put in its place."""
    restores: int = 0

    def end_of(self, batch_id: int) -> int:
        return sum(map(len, self.batches[: batch_id + 1]))

    def input_of(self, batch_id: int) -> Input:
        return Input(batch_id, f"{self.end_of(batch_id):016x}")

    def restore(self, first: int) -> None:
        """An older copy, from which Spark goes on: batch `first` has all rows that came since."""
        self.kept = Checkpoint(self.batches, dict(self.committed))
        self.restores += 1
        self.batches = [*self.batches[:first], [row for rows in self.batches[first:] for row in rows]]
        self.committed = {n: run_id for n, run_id in self.committed.items() if n < first}

    def put_back(self) -> None:
        """What the message of the sink asks for; the first of two drivers that get it does it for both."""
        kept, self.kept = self.kept, None
        if kept is not None:
            self.batches, self.committed = kept.batches, kept.committed

    def next_batch(self) -> int | None:
        missing = [n for n in range(len(self.batches)) if n not in self.committed]
        return missing[0] if missing else None

    @classmethod
    def of(cls, plan: SinkPlan) -> "Checkpoint":
        random = Random(f"{plan.seed}/rows")
        batches: list[list[Row]] = []
        number = 0
        for _ in range(plan.batches):
            batch: list[Row] = []
            for _ in range(0 if random.random() < plan.empty else plan.rows):
                batch.append((random.randrange(plan.keys), number))
                number += 1
            batches.append(batch)
        return cls(batches, {})


@dataclass(frozen=True)
class Written:
    partition: int
    run_id: str
    plan: Plan
    participant: Participant | None


class Stage(Protocol):
    """What drivers and processes know of the world."""

    plan: SinkPlan
    checkpoint: Checkpoint
    directory: Path
    random: Random
    draining: bool
    lost: DecidedDataLost | None
    failures: int

    @property
    def sim(self) -> Simulation: ...

    def note(self, text: str) -> None: ...

    def next_number(self, what: str) -> int: ...

    def on_process(self, process: "Process") -> None: ...

    def on_decided(self, owner: str, batch_id: int) -> None: ...

    def reached(self, step: str) -> None: ...


class Process:
    """A Python worker: a node of its own, that may end at any moment."""

    def __init__(self, stage: Stage, kind: str, host: int = 0) -> None:
        plan = stage.plan
        number = stage.next_number("process")
        self.node = f"{kind}{number}"
        self.host = host
        self.is_alive = True
        self.is_busy = False
        self._stage = stage
        self._runtime = stage.sim.runtime(self.node)
        self.config = ProducerConfig(
            bootstrap_servers="broker:9092",
            client_id=self.node,
            request_timeout_ms=plan.request_timeout_ms,
            socket_connection_setup_timeout_ms=1000,
            default_api_timeout_ms=6000,
            delivery_timeout_ms=8000,
            max_block_ms=6000,
            retry_backoff_ms=20,
            retry_backoff_max_ms=300,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=200,
            linger_ms=0,
        )
        settings = SinkSettings(
            PREFIX,
            plan.mode.value,
            transaction_timeout_ms=plan.timeout_ms,
            heartbeat_interval_ms=plan.heartbeat_interval_ms,
        )
        self._cluster = Cluster(self._runtime, self.config)
        self.driver = Driver(self._runtime, self._cluster, self.config, settings, self._offsets_of, stage.reached)
        self._slots = Slots(PREFIX, stage.directory / f"host{host}" / "slots", process=f"{number:08x}")
        self._writer: TaskWriter | None = None
        self._death = asyncio.get_running_loop().create_future()
        stage.on_process(self)

    def _offsets_of(self, query_id: str, batch_id: int) -> GroupOffsets | None:
        """The end of the batch in its input, which is how many rows there were."""
        if not self._stage.plan.group:
            return None
        checkpoint = self._stage.checkpoint
        if batch_id >= len(checkpoint.batches):
            return None
        return GroupOffsets(GROUP, {INPUT: checkpoint.end_of(batch_id)}, checkpoint.input_of(batch_id).digest)

    def die(self) -> None:
        """kill -9: the kernel frees what it had."""
        if self.is_alive:
            self._stage.note(f"{self.node} dies")
            self.is_alive = False
            self._stage.sim.crash(self.node, power_cut=False)
            self._slots.close()
            self._death.set_result(None)

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run it there and wait for its end, or for that of the process."""
        if not self.is_alive:
            raise Died(self.node)

        async def run() -> T:
            return await work()

        self.is_busy = True
        task = self._runtime.spawn(run(), name=self.node)
        try:
            await asyncio.wait([task, self._death], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_busy = not task.done()
            task.add_done_callback(self._on_done)
        if not task.done() or task.cancelled() or not self.is_alive:
            raise Died(self.node)
        return task.result()

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self.is_busy = False
        if not task.cancelled() and task.exception() is not None:
            self._stage.note(f"{self.node}: {task.exception()!r}")

    # A task, as in `twofold.spark.sink.write_rows`

    async def write(self, plan: Plan, run_id: str, batch_id: int, partition: int, rows: Sequence[Row]) -> Written:
        stage = self._stage
        if dict(plan.decided).get(QUERY, -1) >= batch_id:
            return Written(partition, run_id, plan, None)
        await self.driver.check_current(plan, QUERY, batch_id)
        participant: Participant | None = None
        if self._writer is None:
            self._writer = self.new_writer()
        writer = self._writer
        try:
            size = max(1, len(rows) // 2)
            for start in range(0, len(rows), size):
                if not writer.is_open:
                    await writer.begin(plan.conditions, Use(run_id, batch_id))
                await writer.topic(TOPIC)
                await writer.send(TOPIC, self.encoded(rows[start : start + size]))
                await self._runtime.timers.sleep(stage.random.uniform(0, 2 * stage.plan.pace_s))
                if not stage.draining and stage.random.random() < stage.plan.task_fails:
                    raise TaskRaised(f"task {partition} of batch {batch_id}")
            participant = await writer.prepare(partition)
            stage.reached("task: prepared")
            if participant is not None:
                await self.driver.check_current(plan, QUERY, batch_id, prepared=True)
            return Written(partition, run_id, plan, participant)
        except BaseException:
            self._writer = None
            if self.is_alive:
                await writer.abort(participant)
                await writer.close()
            raise

    def new_writer(self) -> TaskWriter:
        return TaskWriter(self._runtime, self._cluster, self.config, self._slots, self._stage.reached)

    def encoded(self, rows: Sequence[Row]) -> list[tuple[int, Any]]:
        count = self._stage.plan.partitions
        found = []
        for partition in range(count):
            some = [(key, number) for key, number in rows if key % count == partition]
            if some:
                keys = pa.array([b"%d" % key for key, _ in some])
                values = pa.array([b"%d" % number for _, number in some])
                found += [(partition, batch) for batch in Columns(keys, values, self._runtime.clock.wall_ms()).encode()]
        return found


class Jvm:
    """A driver with its executors: it runs the query, again and again, until all batches are noted or it dies."""

    def __init__(self, stage: Stage) -> None:
        self.name = f"driver{stage.next_number('driver')}"
        self.processes: list[Process] = []
        self.is_dead = False
        self._stage = stage
        self._planner: Process | None = None
        self._committer: Process | None = None
        self._attempts: set[asyncio.Task[Any]] = set()
        self._random = Random(f"{stage.plan.seed}/{self.name}")
        self._cores = asyncio.Semaphore(stage.plan.cores)

    async def run(self) -> None:
        stage = self._stage
        while stage.checkpoint.next_batch() is not None and stage.lost is None:
            try:
                await self._run_query(f"run{stage.next_number('run')}")
            except QueryFailed as failed:
                stage.note(f"{self.name}: the query failed: {failed}")
                stage.failures += 1
                await asyncio.sleep(self._random.uniform(0, 0.3))

    def die(self) -> None:
        """kill -9. Its Python workers follow, those of executors that are cut off from it much later."""
        self._stage.note(f"{self.name} dies")
        self.is_dead = True
        for process in self.processes:
            is_own = process in (self._planner, self._committer)
            delay_s = self._random.uniform(0, DRIVER_LINGERS_S if is_own else self._random.choice((0.3, 3.0)))
            asyncio.get_running_loop().call_later(delay_s, process.die)

    # One run of the query

    async def _run_query(self, run_id: str) -> None:
        stage = self._stage
        batch_id = stage.checkpoint.next_batch()
        while batch_id is not None and batch_id < len(stage.checkpoint.batches):
            stage.note(f"{self.name} {run_id} batch {batch_id}")
            rows = stage.checkpoint.batches[batch_id]
            plan = await self._plan(Upcoming(QUERY, read=stage.checkpoint.input_of(batch_id)))
            messages = await self._write(plan, run_id, batch_id, rows)
            await self._commit(run_id, batch_id, messages)
            if not stage.draining and self._random.random() < stage.plan.forgets:
                raise QueryFailed(f"stopped before batch {batch_id} was noted")
            if stage.checkpoint.committed.setdefault(batch_id, run_id) != run_id:
                raise QueryFailed(f"CONCURRENT_STREAM_LOG_UPDATE: batch {batch_id}")
            stage.on_decided(self.name, batch_id)
            batch_id += 1

    async def _plan(self, upcoming: Upcoming) -> Plan:
        self._planner = self._process(self._planner, "planner")
        try:
            return await self._planner.call(lambda: self._planner_driver.start(self.name, upcoming))
        except (KafkaError, Died) as error:
            self._planner.die()
            self._failed(error)
            raise QueryFailed(f"start: {error!r}") from error

    @property
    def _planner_driver(self) -> Driver:
        assert self._planner is not None
        return self._planner.driver

    async def _commit(self, run_id: str, batch_id: int, messages: list[Written]) -> None:
        committer = self._committer = self._process(self._committer, "committer")
        plan = messages[0].plan
        participants = tuple(message.participant for message in messages if message.participant is not None)
        read = None if plan.upcoming is None else plan.upcoming.read
        votes = Votes(plan.owner, QUERY, run_id, batch_id, plan.conditions, participants, read=read)
        try:
            await committer.call(lambda: committer.driver.commit(votes))
        except (KafkaError, Died) as error:
            committer.die()
            self._failed(error)
            await self._abort(list(messages))
            raise QueryFailed(f"commit of batch {batch_id}: {error!r}") from error

    async def _abort(self, messages: list[Written]) -> None:
        committer = self._committer = self._process(self._committer, "committer")
        conditions = messages[0].plan.conditions if messages else None
        participants = [message.participant for message in messages if message.participant is not None]
        try:
            await committer.call(lambda: committer.driver.abort(self.name, conditions, participants))
        except (KafkaError, Died) as error:
            self._failed(error)
            committer.die()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, DecidedDataLost):
            self._stage.lost = error
        if isinstance(error, OtherInput) and not self.is_dead:
            self._stage.note(f"{self.name}: the checkpoint is put back: {error}")
            self._stage.checkpoint.put_back()

    def _process(self, last: Process | None, kind: str, host: int = 0) -> Process:
        """The one that was there, or another: they are killed when they were idle for a minute."""
        if last is not None and last.is_alive and not last.is_busy:
            if self._random.random() >= self._stage.plan.new_process:
                return last
            last.die()
        process = Process(self._stage, kind, host)
        self.processes.append(process)
        return process

    # Tasks

    async def _write(self, plan: Plan, run_id: str, batch_id: int, rows: Sequence[Row]) -> list[Written]:
        count = self._random.randint(1, self._stage.plan.tasks)
        salt = self._random.randrange(100)
        divided = [[row for row in rows if (row[0] * 7 + salt) % count == task] for task in range(count)]
        done: dict[int, Written] = {}

        async def task(partition: int) -> None:
            done[partition] = await self._task(plan, run_id, batch_id, partition, divided[partition])

        running = [asyncio.get_running_loop().create_task(task(n)) for n in range(count)]
        try:
            await asyncio.gather(*running)
        except QueryFailed:
            for other in running:
                other.cancel()  # nobody waits for them; what they started goes on for a while
            await self._abort(list(done.values()))
            raise
        return [done[partition] for partition in range(count)]

    async def _task(self, plan: Plan, run_id: str, batch_id: int, partition: int, rows: Sequence[Row]) -> Written:
        reason = ""
        for _ in range(TASK_ATTEMPTS):
            attempts = [self._attempt(plan, run_id, batch_id, partition, rows)]
            if not self._stage.draining and self._random.random() < self._stage.plan.speculation:
                delay_s = self._random.choice((0.0, 0.05, 0.6))
                attempts.append(self._attempt(plan, run_id, batch_id, partition, rows, delay_s))
            waiting = set(attempts)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for attempt in sorted(done, key=attempts.index):
                    error = attempt.exception()
                    if error is None:
                        return attempt.result()
                    reason = repr(error)
        raise QueryFailed(f"task {partition} of batch {batch_id} failed {TASK_ATTEMPTS} times: {reason}")

    def _attempt(
        self, plan: Plan, run_id: str, batch_id: int, partition: int, rows: Sequence[Row], delay_s: float = 0.0
    ) -> "asyncio.Task[Written]":
        """Not owned by the task: when another attempt wins it is killed after a while, or comes to its end unseen."""

        async def run() -> Written:
            await asyncio.sleep(delay_s)
            async with self._cores:
                if self.is_dead:
                    raise Died(self.name)
                return await self._run_attempt(plan, run_id, batch_id, partition, rows)

        attempt = asyncio.get_running_loop().create_task(run())
        attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._attempts.add(attempt)
        attempt.add_done_callback(self._attempts.discard)
        return attempt

    async def _run_attempt(
        self, plan: Plan, run_id: str, batch_id: int, partition: int, rows: Sequence[Row]
    ) -> Written:
        worker = self._worker()
        try:
            written = await worker.call(lambda: worker.write(plan, run_id, batch_id, partition, rows))
        except (KafkaError, TaskRaised):
            worker.die()  # Spark does not use it again
            raise
        if not self._stage.draining and self._random.random() < 0.1:
            asyncio.get_running_loop().call_later(self._random.uniform(0, KILL_TIMEOUT_S), worker.die)
        return written

    def _worker(self) -> Process:
        free = [p for p in self.processes if p.node.startswith("worker") and p.is_alive and not p.is_busy]
        host = self._random.randrange(self._stage.plan.hosts)
        found = self._process(self._random.choice(free) if free else None, "worker", host)
        found.is_busy = True
        return found
