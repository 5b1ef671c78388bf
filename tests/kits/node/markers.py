"""What the suites of markers share: open transactions, what is in a log, and leaders that move."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from kits.node.running import Node, batch
from kits.node.sim_node import SimNode
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.controller.delta import ImageDelta, TopicChange
from twofold.log.api import Bound, Origin
from twofold.log.log import PartitionLog
from twofold.records.batch import BatchBuilder, iter_headers
from twofold.records.control import read_end_marker
from twofold.replication.leader import FollowerFetch
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState


def begin(node: Node, topic: str, index: int = 0, pid: int = 7, epoch: int = 0, *, ago_ms: int = 0) -> int:
    """Open a transaction in a partition, with one batch."""
    partition = node.broker.replicas.leader(topic, index)
    guard = partition.log.start_verification(ProducerId(pid), ProducerEpoch(epoch), 0)
    timestamp = node.broker.runtime.clock.wall_ms() - ago_ms
    data = batch(producer=(pid, epoch, 0), transactional=True, timestamp=timestamp)
    return partition.append(data, -1, guard=guard).base_offset


def begin_offsets(node: Node, index: int, pid: int = 7, epoch: int = 0) -> int:
    """Open a transaction in a partition of `__consumer_offsets`, without any offset in it."""
    partition = node.broker.replicas.leader(CONSUMER_OFFSETS, index)
    guard = partition.log.start_verification(ProducerId(pid), ProducerEpoch(epoch), 0)
    builder = BatchBuilder(producer_id=pid, producer_epoch=epoch, base_sequence=0, transactional=True)
    builder.add(b"\x7f\xff", b"", node.broker.runtime.clock.wall_ms())
    return partition.append(builder.build(), -1, guard=guard, origin=Origin.COORDINATOR).base_offset


def written(node: Node, topic: str, index: int = 0) -> list[tuple[int, int, str, int]]:
    """The markers in a log: (producer id, epoch, "commit" or "abort", coordinator epoch)."""
    log = node.log(topic, index)
    data = log.read(log.log_start_offset, 2**30, Bound.LOG_END).records
    return [
        (header.producer_id, header.producer_epoch, "commit" if marker.commit else "abort", marker.coordinator_epoch)
        for at, header in iter_headers(data)
        if header.is_control and (marker := read_end_marker(data, at))
    ]


def is_open(node: Node, topic: str, index: int = 0) -> bool:
    return node.log(topic, index).oldest_open_transaction() is not None


def lead(node: Node, topic: str, index: int = 0, **fields: Any) -> None:
    """Let the metadata say something else of a partition: leader, leader_epoch, isr, replicas."""
    image = node.broker.image
    found = image.topic(topic)
    assert found is not None, topic
    state = found.partitions[index]
    newer = {"leader_epoch": state.leader_epoch + 1, "partition_epoch": state.partition_epoch + 1}
    state = state._replace(**{**newer, **fields})
    changed = dataclasses.replace(found, partitions=found.partitions.set(index, state))
    image = dataclasses.replace(image, topics=image.topics.set(topic, changed))
    delta = ImageDelta(offset=image.offset, changed_topics=(TopicChange(changed, (index,), is_new=False),))
    node.broker._apply(delta, image)


def acknowledge(node: Node, topic: str, index: int = 0, *, replica: int = 2) -> None:
    """A follower has all that the leader has, and says so."""
    partition = node.broker.replicas.leader(topic, index)
    log = partition.log
    partition.followed(replica, FollowerFetch(log.log_end_offset, log.log_start_offset))


def register(node: Node, broker_id: int, *, fenced: bool = False) -> None:
    """Another broker, as the metadata knows it."""
    image = node.broker.image
    first = image.broker(1)
    assert first is not None
    registration = dataclasses.replace(first, broker_id=broker_id, fenced=fenced)
    image = dataclasses.replace(image, brokers=image.brokers.set(broker_id, registration))
    node.broker._apply(ImageDelta(offset=image.offset, changed_brokers={broker_id: registration}), image)


async def delete(node: Node | SimNode, topic: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic, topic_id=None)], timeout_ms=1000)
    response = await node.broker.controller.delete_topics(request)
    assert response.responses[0].error_code == 0, response


async def create_offsets_topic(node: Node, partitions: int = 3) -> None:
    """`__consumer_offsets`, whose partitions this broker coordinates."""
    topic = CreatableTopic(
        name=CONSUMER_OFFSETS, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    response = await node.broker.controller.create_topics(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    assert response.topics[0].error_code == 0, response


def on_sync(log: PartitionLog, sync: Callable[[], Awaitable[object]]) -> None:
    """Replace a log's sync by a coroutine of no arguments; logs have slots, so it gets a class of its own."""
    log.__class__ = type("Patched", (type(log),), {"__slots__": (), "sync": lambda self: sync()})


def on_append_markers(log: PartitionLog, append: Callable[..., Any]) -> None:
    """Replace what a log does with markers."""
    log.__class__ = type("Patched", (type(log),), {"__slots__": (), "append_markers": append})
