"""What the suites of produce, fetch and offsets share: appends past the wire, long polls, leaders that move."""

import dataclasses
from typing import Any

from kits.node.running import FetchRow, Node, Topic, batch, fetch_request
from twofold.broker.partitions.partition import Partition
from twofold.broker.partitions.purgatory import DelayedFetch
from twofold.controller.delta import ImageDelta, TopicChange
from twofold.controller.image import PartitionState
from twofold.log.api import AppendResult, Bound, Origin
from twofold.records.batch import iter_headers
from twofold.records.control import end_transaction_marker
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from twofold.wire.messages.fetch import FetchRequest, PartitionData

WAIT_MS = 7777  # a delay that nothing else uses
WAIT_S = 7.777


def topic_key(node: Node, name: str, version: int) -> Topic:
    return node.topic_id(name) if version >= 13 else name


def led_by_another(node: Node, topic: str, *, leader: int = 9, epoch: int = 5) -> None:
    """Pretend that the controller gave the partition to another broker."""
    image = node.broker.image
    found, first = image.topic(topic), image.broker(1)
    assert found is not None, topic
    assert first is not None
    state = found.partitions[0]
    state = state._replace(leader=leader, leader_epoch=epoch, partition_epoch=state.partition_epoch + 1)
    changed = dataclasses.replace(found, partitions=found.partitions.set(0, state))
    image = dataclasses.replace(image, topics=image.topics.set(topic, changed))
    registration = dataclasses.replace(first, broker_id=leader)
    image = dataclasses.replace(image, brokers=image.brokers.set(leader, registration))
    delta = ImageDelta(offset=image.offset, changed_topics=(TopicChange(changed, (0,), is_new=False),))
    node.broker._apply(delta, image)


def lead_in(partition: Partition, epoch: int, *, isr: tuple[int, ...] = (1,), replicas: tuple[int, ...] = (1,)) -> None:
    """Let the broker lead in a later epoch."""
    state = PartitionState(replicas, isr, 1, epoch, partition.partition_epoch + 1)
    partition.become_leader(state, partition._neighbours.now_ms())


async def delete(node: Node, topic: str) -> None:
    names = [DeleteTopicState(name=topic, topic_id=None)]
    await node.broker.controller.delete_topics(DeleteTopicsRequest(topics=names, timeout_ms=1))


def offsets(row: PartitionData) -> list[int]:
    assert row.records is not None
    return [header.base_offset for _, header in iter_headers(row.records)]


def append(node: Node, topic: str = "t", partition: int = 0, *values: bytes) -> AppendResult:
    return node.broker.replicas.leader(topic, partition).append(batch(*values), 1)


def begin(node: Node, producer_id: int, topic: str = "t", epoch: int = 0, sequence: int = 0) -> AppendResult:
    """One transactional batch of a producer whose transaction was verified."""
    partition = node.broker.replicas.leader(topic, 0)
    guard = partition.log.start_verification(ProducerId(producer_id), ProducerEpoch(epoch), sequence, True)
    data = batch(b"in a transaction", producer=(producer_id, epoch, sequence), transactional=True)
    return partition.append(data, 1, guard=guard)


def end(node: Node, producer_id: int, *, commit: bool, topic: str = "t", epoch: int = 1) -> AppendResult:
    marker = end_transaction_marker(
        commit=commit, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, timestamp_ms=1
    )
    return node.broker.replicas.leader(topic, 0).append(marker, 1, origin=Origin.COORDINATOR)


def parked(node: Node) -> dict[DelayedFetch, None]:
    return node.broker.replicas.purgatory.fetches


def is_watched(node: Node, topic: str, index: int) -> bool:
    """Whether a fetch wants to hear of new records of the partition."""
    partition = node.broker.replicas.leader(topic, index)
    return any(partition._watching(bound) for bound in Bound)


def long_poll(*rows: FetchRow, min_bytes: int = 1, **fields: Any) -> FetchRequest:
    return fetch_request(*rows, max_wait_ms=WAIT_MS, min_bytes=min_bytes, **fields)
