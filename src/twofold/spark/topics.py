"""Topics that were deleted and made anew under their name: their offsets in a checkpoint are those of another topic.

1. Offsets in a checkpoint are Spark's own connector's, and have no ids. The ids of the topics that a batch has read are
   in the journal of the sink, with the decision about that batch.
2. While a query runs, the driver of the source compares ids. When it starts again, the tasks of its first batches do:
   they know the query, and so its journal, which has to be on the cluster that they read.
3. What was made anew stops the query, or is read from its beginning, as failOnDataLoss says. A batch that comes again
   after it began so begins so again.
"""

import logging
import os
from dataclasses import replace
from enum import IntEnum

from pyspark import TaskContext

from twofold.client import Admin, NewTopic
from twofold.client.cluster.cluster import Cluster
from twofold.client.consumer.offsets import list_offsets
from twofold.connections.waiting import Deadline
from twofold.sink import names
from twofold.sink.decided import DecidedEntry, Input, TopicStanding
from twofold.sink.inspection import Inspector
from twofold.spark.clients import SparkClient, client_for
from twofold.spark.errors import DataLoss, OptionError
from twofold.spark.offsets import EARLIEST, LATEST, Range
from twofold.spark.options import ReadOptions
from twofold.wire.errors import KafkaError, TopicAlreadyExists, UnknownTopicOrPartition

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class Check(IntEnum):
    """What a task has to find out about its topic before it reads."""

    NOTHING = 0
    FIRST = 1
    """Whether it was made anew; its range is the first of the batch in the partition."""
    FURTHER = 2
    """The same, of a range that another one goes before."""


def with_topic_ids(client: SparkClient, read: Input) -> Input:
    """What a batch reads, with the ids that its topics have on the sink's cluster now."""
    if not read.topics:
        return read
    wanted = [name for name, _ in read.topics]

    async def ask() -> dict[str, str]:
        cluster = client.cluster
        deadline = cluster.deadline()
        connection = await cluster.any_connection(deadline)
        answer = await cluster.fetch_metadata(connection, wanted, deadline)
        return {
            row.name: str(row.topic_id) for row in answer.topics if row.name and row.topic_id and not row.error_code
        }

    found = client.run(ask())
    return replace(read, topics=tuple((name, found.get(name, "")) for name in wanted))


def report_anew(options: ReadOptions, topic: str, why: str) -> None:
    """Raise or warn, as failOnDataLoss says."""
    what = f"the topic {topic!r} was deleted and made anew since the query has read it ({why})"
    if options.fail_on_data_loss:
        raise DataLoss(
            f"{what}: the offsets of the checkpoint are the old one's, and what was not read of the old one is gone. "
            "Set the option failOnDataLoss to false to go on at the beginning of the new one"
        )
    log.warning("%s; going on at its beginning, because failOnDataLoss is false", what)


def checked(options: ReadOptions, asked: Range, topic_id: str, check: Check) -> Range:
    """The range that a task has to read, after a look at the journal of its query's sink."""
    batch = _batch()
    if batch is None or not topic_id:
        return asked
    query_id, batch_id = batch
    entry = _decided(options, query_id, batch_id)
    standing = TopicStanding.SAME if entry is None else entry.standing(batch_id, asked.tp.topic, topic_id)
    if entry is None or standing is TopicStanding.SAME:
        return asked
    if standing is TopicStanding.ANEW:
        report_anew(options, asked.tp.topic, f"batch {entry.batch_id} of query {query_id} read another one")
        if batch_id <= entry.batch_id:
            return Range(asked.tp, asked.until, asked.until)  # it is written already, and its rows are gone
    first, last = _bounds(options, asked)
    if asked.until > last:
        raise DataLoss(
            f"{asked.tp} was made anew and ends at offset {last}, and batch {batch_id} is to read it up to "
            f"{asked.until}, which is an offset of the old one. Remove offsets/{batch_id} of the checkpoint (commits/ "
            "has no such batch) and start the query again: it begins at the beginning of the new one"
        )
    return Range(asked.tp, first, asked.until) if check is Check.FIRST else asked


def _batch() -> tuple[str, int] | None:
    """The query and the batch that this task is of, if Spark says so."""
    context = TaskContext.get()
    found = [None if context is None else context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID)]
    return None if None in found else (str(found[0]), int(str(found[1])))


def _bounds(options: ReadOptions, asked: Range) -> tuple[int, int]:
    client = client_for(options.consumer)
    cluster = client.cluster
    isolation = options.consumer.isolation

    async def ask() -> tuple[int, int]:
        first = await list_offsets(cluster, {asked.tp: EARLIEST}, isolation, cluster.deadline())
        last = await list_offsets(cluster, {asked.tp: LATEST}, isolation, cluster.deadline())
        return first[asked.tp].offset, last[asked.tp].offset

    return client.run(ask())


# What is written to


async def ensure(cluster: Cluster, topic: str, partitions: int | None) -> None:
    """Create a topic that is missing with as many partitions as the user asked for. Where none were asked for the
    brokers may create it (auto.create.topics.enable), with as many as they like."""
    if cluster.cache.topic(topic) is not None:
        return
    deadline = cluster.deadline()
    answer = await cluster.fetch_metadata(await cluster.any_connection(deadline), [topic], deadline)
    there = [row for row in answer.topics if row.error_code != UnknownTopicOrPartition.code]
    if partitions is None:
        if not there:
            log.warning(
                "topic %r does not exist: where auto.create.topics.enable allows it, the brokers create it with "
                "num.partitions partitions. The option topic.partitions says how many it is to have",
                topic,
            )
        return
    if there:
        found = len(there[0].partitions)
        if not there[0].error_code and found != partitions:
            log.warning(
                "topic %r has %d partitions: topic.partitions=%d is for a missing one", topic, found, partitions
            )
        return
    created = await Admin.on(cluster).create_topics([NewTopic(topic, num_partitions=partitions)])
    for error in created.errors.values():
        if not isinstance(error, TopicAlreadyExists):  # by another task
            raise OptionError(f"topic {topic!r} cannot be created with topic.partitions={partitions}: {error}")
    log.warning("topic %r did not exist and was created with topic.partitions=%d", topic, partitions)


# The journal


class _Process:
    pid = -1
    asked: tuple[object, ...] = ()
    entry: DecidedEntry | None = None


def _decided(options: ReadOptions, query_id: str, batch_id: int) -> DecidedEntry | None:
    """What the journal of the query's sink says of it; asked once for each batch by a process."""
    asked = (os.getpid(), options, query_id, batch_id)
    if _Process.asked != asked:
        client = client_for(options.consumer)
        prefix = options.prefix or names.prefix_of_query(query_id)
        topic = options.decision_topic or names.decision_topic(prefix)
        try:
            entry = client.run(_find(client, topic, prefix, query_id, client.cluster.deadline()))
        except KafkaError as error:
            log.warning("whether topics were made anew cannot be told, because the journal %s: %s", topic, error)
            entry = None
        _Process.asked, _Process.entry = asked, entry
    return _Process.entry


async def _find(client: SparkClient, topic: str, prefix: str, query_id: str, deadline: Deadline) -> DecidedEntry | None:
    """None where the query has no such journal on this cluster: its sink is another one, or elsewhere."""
    cluster = client.cluster
    connection = await cluster.any_connection(deadline)
    answer = await cluster.fetch_metadata(connection, [topic], deadline)
    if any(row.error_code for row in answer.topics):
        log.info(
            "there is no journal %s on this cluster: topics made anew while the query was away are not told", topic
        )
        return None
    inspector = Inspector(cluster)
    try:
        found = await inspector.find(topic, prefix, deadline)
    finally:
        inspector.close()
    registers = [row.register for row in found if row.prefix == prefix and row.register is not None]
    return registers[0].entry(query_id) if registers else None
