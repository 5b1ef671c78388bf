"""The writers: streams and batches, exactly once.

1. What happens before a batch's tasks (fence, complete, sweep) happens when the writer is pickled: that is on the
   driver, once for each micro-batch, and nowhere else. What the tasks have to know is in the pickle.
2. A task that writes a batch which is decided writes nothing, and reads its rows to their end all the same.
3. What commit has to know comes with the messages: it runs in another process, on another writer.
"""

import hashlib
import logging
import os
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from twofold.sink.decided import Input, Purpose
from twofold.sink.driver import FENCED, Driver, Plan, Upcoming, Votes
from twofold.sink.errors import Stale
from twofold.sink.journal import GroupOffsets
from twofold.sink.leases import PrefixLeases, WriteHolder, started_at
from twofold.sink.names import prefix_of_query, prefix_of_write
from twofold.sink.register import Participant
from twofold.sink.slots import Slots, Use
from twofold.sink.steps import Reached, unobserved
from twofold.sink.writer import Conditions, PlainWriter, TaskWriter
from twofold.spark.checkpoints import driver_process
from twofold.spark.checkpoints.checkpoint import Checkpoint, former_prefixes, place_of
from twofold.spark.checkpoints.driver_process import with_checkpoint_of_session
from twofold.spark.clients import client_for
from twofold.spark.errors import OptionError
from twofold.spark.metrics import reports
from twofold.spark.options import WriteOptions, without_prefix, write_options
from twofold.spark.rows import Encoder, Layout, by_topic, layout_of
from twofold.spark.topics import ensure, with_topic_ids
from twofold.spark.versions import StreamWriterBase, as_batches
from twofold.spark.worker_socket import answer_at_once
from twofold.wire.errors import KafkaError

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
MAX_SINKS = 16


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "StreamWriter":
    """`overwrite` is what the output mode complete asks for; a log has only one way to take rows."""
    chosen = write_options(with_checkpoint_of_session(options), streaming=True)
    return StreamWriter(identified(chosen), layout_of(schema, chosen.topic), schema)


def identified(options: WriteOptions) -> WriteOptions:
    """With the prefix that a stream has from its checkpoint, unless the user has chosen one. Only a driver does this:
    tasks need not find the checkpoint."""
    location = options.checkpoint_location
    if location is None or options.exactly_once == "off":
        return options
    options = replace(options, where=place_of(location))
    if options.transactional_id_prefix is not None:
        return options
    prefix = prefix_of_query(Checkpoint(location, options.file_settings).query_id())
    return replace(options, transactional_id_prefix=prefix, former_prefixes=former_prefixes(location))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "BatchJobWriter":
    if overwrite:
        raise OptionError('a topic cannot be overwritten: use mode("append")')
    chosen = write_options(options, streaming=False)
    return BatchJobWriter(chosen, layout_of(schema, chosen.topic))


@dataclass(frozen=True, slots=True)
class Identified:
    """A batch of a query, as its tasks know it; a batch job has its writeId for a query."""

    query_id: str
    run_id: str
    batch_id: int
    purpose: Purpose = Purpose.QUERY


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task did. Nothing but `rows` is known where nothing has to be decided."""

    rows: int
    batch: Identified | None = None
    owner: str = ""
    conditions: Conditions | None = None
    participant: Participant | None = None
    skipped: bool = False
    read: Input | None = None
    bytes: int = 0


# The parts of the protocol that this process has


class Sink:
    """Of one process, for one set of options; it outlives tasks and batches."""

    def __init__(self, options: WriteOptions, reached: Reached = unobserved) -> None:
        self.options = options
        self.reached = reached
        self.client = client_for(options.producer)
        cluster = self.client.cluster
        self._checkpoint: Checkpoint | None = None
        if options.checkpoint_location is not None and (options.checks_input or options.consumer_group is not None):
            self._checkpoint = Checkpoint(options.checkpoint_location, options.file_settings)
        self.driver = Driver(cluster.runtime, cluster, options.producer, options.settings, self._offsets_of, reached)
        self._slots: Slots | None = None
        self._writer: TaskWriter | PlainWriter | None = None

    def start(self, owner: str, upcoming: Upcoming | None = None) -> Plan:
        """A batch of a stream is known by its checkpoint."""
        if self._checkpoint is not None and self.options.consumer_group is not None:
            self._checkpoint.check_topics()
        if self._checkpoint is not None and self.options.checks_input:
            read = with_topic_ids(self.client, self._checkpoint.newest_input())
            upcoming = Upcoming(self._checkpoint.query_id(), read=read)
        plan = self.client.run(self.driver.start(owner, upcoming))
        if self._checkpoint is not None and upcoming is not None and upcoming.name not in dict(plan.decided):
            _tell_of_a_move(self._checkpoint, upcoming)
        return plan

    def writer(self) -> TaskWriter:
        if self._slots is None:
            self._slots = Slots(self.options.settings.prefix, one_by_one=self.options.is_once)
        return self.client.run(self._make(self._slots))

    async def _make(self, slots: Slots) -> TaskWriter:
        cluster = self.client.cluster
        if not isinstance(self._writer, TaskWriter):
            self._writer = TaskWriter(cluster.runtime, cluster, self.options.producer, slots, self.reached)
        return self._writer

    async def plain_writer(self) -> PlainWriter:
        cluster = self.client.cluster
        if not isinstance(self._writer, PlainWriter):
            self._writer = PlainWriter(cluster.runtime, cluster, self.options.producer)
        return self._writer

    async def drop_writer(self) -> None:
        """After a failure: what comes next starts anew."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()

    async def close(self) -> None:
        await self.drop_writer()
        await self.driver.close()
        if self._slots is not None:
            self._slots.close()

    def _offsets_of(self, query_id: str, batch_id: int) -> GroupOffsets | None:
        checkpoint, group = self._checkpoint, self.options.consumer_group
        if checkpoint is None or group is None or checkpoint.query_id() != query_id:
            return None
        if not checkpoint.has(batch_id):
            log.warning("the offsets of batch %d are left out, because the checkpoint has lost them", batch_id)
            return None
        return GroupOffsets(group, checkpoint.end_offsets(batch_id), checkpoint.input_of(batch_id).digest)


def _tell_of_a_move(checkpoint: Checkpoint, upcoming: Upcoming) -> None:
    """The first batch that this sink knows of the query is not the query's first: another sink wrote those before."""
    read = upcoming.read
    if read is None or read.batch_id == 0:
        return
    before = read.batch_id - 1
    start = checkpoint.input_of(before).ends if checkpoint.has(before) else ""
    log.warning(
        "batch %d is the first that this sink writes of query %s. If another sink had begun to write it (the old job "
        "was not stopped cleanly), what that one wrote of it is there twice: the input from %s to %s. All that was "
        "before is not written again",
        read.batch_id, upcoming.name, start or "the batch before", read.ends or f"the end of batch {read.batch_id}",
    )  # fmt: skip


class _Process:
    pid = -1
    sinks: dict[WriteOptions, Sink]


def sink_for(options: WriteOptions) -> Sink:
    """The sink of this process; one that was forked starts anew."""
    if _Process.pid != os.getpid():
        _Process.pid, _Process.sinks = os.getpid(), {}
    sink = _Process.sinks.pop(options, None)
    if sink is not None and sink.client is not client_for(options.producer):
        # Its connections had to give way to those of other queries.
        sink.client.run(sink.close())
        sink = None
    if sink is None:
        sink = Sink(options)
        while len(_Process.sinks) >= MAX_SINKS:
            oldest = _Process.sinks.pop(next(iter(_Process.sinks)))
            oldest.client.run(oldest.close())
    _Process.sinks[options] = sink
    return sink


def owner_of(options: WriteOptions, run_id: str = "") -> str:
    """The same for every Python process of one driver: they are below one JVM."""
    driver = holder_of(run_id)
    parts = (socket.gethostname(), str(driver.pid), driver.started, options.where, run_id)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def holder_of(write: str) -> WriteHolder:
    pid = driver_process.driver_pid()
    return WriteHolder(pid, started_at(pid), write)


# Tasks


def write_rows(
    options: WriteOptions, layout: Layout, plan: Plan | None, batch: Identified | None, rows: Iterator[pa.RecordBatch]
) -> Written:
    """One attempt of one task."""
    answer_at_once()
    sink = sink_for(options)
    if plan is None or batch is None:
        return _write_plainly(sink, layout, rows)
    read = _check_planned(plan, batch, options.where)
    if dict(plan.decided).get(batch.query_id, -1) >= batch.batch_id:
        for _ in rows:  # to its end: a query with state commits its state there
            pass
        return Written(0, batch, plan.owner, plan.conditions, skipped=True, read=read)
    sink.client.run(sink.driver.check_current(plan, batch.query_id, batch.batch_id))
    sink.reached("task")
    writer = sink.writer()
    context = TaskContext.get()
    partition = -1 if context is None else context.partitionId()
    encoder = Encoder(layout, options.producer, sink.client.cluster.runtime.random, options.partitioner)
    participant: Participant | None = None
    try:
        count = 0
        for some in rows:
            if some.num_rows and not writer.is_open:
                sink.client.run(writer.begin(plan.conditions, Use(batch.run_id, batch.batch_id)))
            count += _send(sink, writer, encoder, some)
        participant = sink.client.run(writer.prepare(partition))
        sink.reached("task: prepared")
        if participant is not None:
            sink.client.run(sink.driver.check_current(plan, batch.query_id, batch.batch_id, prepared=True))
        return Written(count, batch, plan.owner, plan.conditions, participant, read=read, bytes=encoder.bytes)
    except BaseException as error:
        sink.client.run(writer.abort(participant))
        sink.client.run(sink.drop_writer())
        if isinstance(error, FENCED):
            raise sink.client.run(sink.driver.named(plan, batch.query_id, batch.batch_id, error)) from error
        raise


def _check_planned(plan: Plan, batch: Identified, where: str) -> Input | None:
    """What the batch reads, as the driver found it in the checkpoint. Raise where that is another checkpoint than the
    one that Spark has, or has gone on without this attempt."""
    upcoming = plan.upcoming
    if upcoming is None or upcoming.read is None:
        return None
    found = (upcoming.name, upcoming.read.batch_id)
    if found != (batch.query_id, batch.batch_id):
        raise Stale(
            f"Spark runs batch {batch.batch_id} of query {batch.query_id}, and the newest in the checkpoint {where} is "
            f"batch {found[1]} of query {found[0]}: another driver has written it, or Spark takes checkpointLocation "
            "for another place than this. Write it as a URI with its scheme"
        )
    return upcoming.read


def _send(sink: Sink, writer: TaskWriter | PlainWriter, encoder: Encoder, rows: pa.RecordBatch) -> int:
    client = sink.client
    for topic, some in by_topic(rows, encoder.layout):
        client.run(ensure(client.cluster, topic, sink.options.topic_partitions))
        metadata = client.run(writer.topic(topic))
        batches = list(encoder.encode(some, metadata, client.cluster.runtime.clock.wall_ms()))
        client.run(writer.send(topic, batches))
    return int(rows.num_rows)


def _write_plainly(sink: Sink, layout: Layout, rows: Iterator[pa.RecordBatch]) -> Written:
    """exactlyOnce=off: every row at least once, as Spark's own connector writes them."""
    writer = sink.client.run(sink.plain_writer())
    encoder = Encoder(layout, sink.options.producer, sink.client.cluster.runtime.random, sink.options.partitioner)
    try:
        count = sum(_send(sink, writer, encoder, some) for some in rows)
        sink.client.run(writer.flush())
        return Written(count)
    except BaseException:
        sink.client.run(sink.drop_writer())
        raise


# Writers


class _Writer:
    """What both kinds have in common. Pickled, it has a plan."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._plan is None and self._options.exactly_once != "off":
            self._plan = sink_for(self._options).start(self._owner, self._upcoming)
        return self.__dict__

    @property
    def _upcoming(self) -> Upcoming | None:
        """None where the checkpoint tells."""
        return None

    @property
    def _owner(self) -> str:
        return owner_of(self._options)

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        answer_at_once()
        written = [message for message in messages if isinstance(message, Written) and message.batch is not None]
        if not written:
            return
        batch, conditions = written[0].batch, written[0].conditions
        assert batch is not None and conditions is not None
        participants = tuple(message.participant for message in written if message.participant is not None)
        votes = Votes(
            written[0].owner,
            batch.query_id,
            batch.run_id,
            batch.batch_id,
            conditions,
            participants,
            batch.purpose,
            written[0].read,
        )
        sink = sink_for(self._options)
        clock = sink.client.cluster.runtime.clock
        started = clock.monotonic()
        sink.client.run(sink.driver.commit(votes))
        if batch.purpose is Purpose.QUERY:
            _report(batch, written, len(participants), clock.monotonic() - started)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once == "off":
            return
        written = [message for message in messages if isinstance(message, Written) and message.batch is not None]
        owner, conditions = (written[0].owner, written[0].conditions) if written else (self._owner, None)
        participants = [message.participant for message in written if message.participant is not None]
        sink = sink_for(self._options)
        try:
            sink.client.run(sink.driver.abort(owner, conditions, participants))
        except KafkaError as error:
            # Raised, it would take the place of why Spark gave the batch up. The next start finds what is left.
            log.warning("what was written of a batch that was given up is left to the next start: %s", error)


def _report(batch: Identified, written: Sequence[Written], transactions: int, commit_s: float) -> None:
    """For metrics, where the application has a listener for them."""
    rows, size = sum(task.rows for task in written), sum(task.bytes for task in written)
    reports.send(reports.Report(batch.query_id, batch.batch_id, rows, size, transactions, commit_s))


class StreamWriter(_Writer, StreamWriterBase):
    def __init__(self, options: WriteOptions, layout: Layout, schema: StructType) -> None:
        super().__init__(options, layout)
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batches = as_batches(iterator, self._schema)
        return write_rows(self._options, self._layout, self._plan, _micro_batch(), batches)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(messages)


class BatchJobWriter(_Writer, DataSourceArrowWriter):
    """The same pickle serves tasks and commit, so that what is made here is known to all of them."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        run_id = uuid.uuid4().hex
        purpose = Purpose.ONCE if options.write_id is None else Purpose.WRITE
        self._batch = Identified(options.write_id or run_id, run_id, 0, purpose)
        self._lease: WriteHolder | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._options.transactional_id_prefix is not None:
            return super().__getstate__()
        self._name()
        try:
            return super().__getstate__()
        except BaseException:
            self._give_back()
            raise

    def _name(self) -> None:
        """A prefix for a batch that was given none. It is this write's as long as it runs."""
        if self._options.write_id is not None:
            prefix = prefix_of_write(self._options.write_id, self._options.topic)
        else:
            self._lease = holder_of(self._batch.run_id)
            prefix = PrefixLeases().take(self._lease)
            log.warning(
                "this batch is written without transactionalIdPrefix and writeId: all of it becomes visible or "
                "nothing, and a job that is repeated writes it again. With a writeId it is written once"
            )
        self._options = without_prefix(self._options, prefix)

    def _give_back(self) -> None:
        if self._lease is not None:
            PrefixLeases().give_back(self._options.settings.prefix, self._lease)

    @property
    def _upcoming(self) -> Upcoming:
        return Upcoming(self._batch.query_id, self._batch.purpose)

    @property
    def _owner(self) -> str:
        """Two jobs of one driver are two owners."""
        return owner_of(self._options, self._batch.run_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, self._layout, self._plan, self._batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)
        self._give_back()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Also where commit failed."""
        try:
            self._abort(messages)
        finally:
            self._give_back()


def _micro_batch() -> Identified:
    context = TaskContext.get()
    names = (QUERY_ID, RUN_ID, BATCH_ID)
    found = [None if context is None else context.getLocalProperty(name) for name in names]
    if context is None or None in found:
        missing = [name for name, value in zip(names, found, strict=True) if value is None]
        raise RuntimeError(f"Spark does not say which micro-batch this is: no local property {', '.join(missing)}")
    query_id, run_id, batch_id = found
    return Identified(str(query_id), str(run_id), int(str(batch_id)))
