"""What the suites of produce, fetch and offsets share: appends past the wire, long polls, leaders that move."""

import dataclasses

from kits.node.running import batch, fetch_request
from twofold.controller.delta import ImageDelta, TopicChange
from twofold.log.api import Origin
from twofold.records.batch import iter_headers
from twofold.records.control import end_transaction_marker
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

WAIT_MS = 7777  # a delay that nothing else uses
WAIT_S = 7.777


def topic_key(node, name, version):
    return node.topic_id(name) if version >= 13 else name


def led_by_another(node, topic, *, leader=9, epoch=5):
    """Pretend that the controller gave the partition to another broker."""
    image = node.broker.image
    state = image.partition(topic, 0)._replace(leader=leader, leader_epoch=epoch)
    found = image.topic(topic)
    changed = dataclasses.replace(found, partitions=found.partitions.set(0, state))
    image = dataclasses.replace(image, topics=image.topics.set(topic, changed))
    registration = dataclasses.replace(image.broker(1), broker_id=leader)
    image = dataclasses.replace(image, brokers=image.brokers.set(leader, registration))
    delta = ImageDelta(offset=image.offset, changed_topics=(TopicChange(changed, (0,), is_new=False),))
    node.broker._apply(delta, image)


async def delete(node, topic):
    names = [DeleteTopicState(name=topic, topic_id=None)]
    await node.broker.controller.delete_topics(DeleteTopicsRequest(topics=names, timeout_ms=1))


def offsets(row):
    return [header.base_offset for _, header in iter_headers(row.records)]


def append(node, topic="t", partition=0, *values):
    return node.broker.replicas.leader(topic, partition).append(batch(*values), 1)


def begin(node, producer_id, topic="t", epoch=0, sequence=0):
    """One transactional batch of a producer whose transaction was verified."""
    partition = node.broker.replicas.leader(topic, 0)
    guard = partition.log.start_verification(producer_id, epoch, sequence, True)
    data = batch(b"in a transaction", producer=(producer_id, epoch, sequence), transactional=True)
    return partition.append(data, 1, guard=guard)


def end(node, producer_id, *, commit, topic="t", epoch=1):
    marker = end_transaction_marker(
        commit=commit, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, timestamp_ms=1
    )
    return node.broker.replicas.leader(topic, 0).append(marker, 1, origin=Origin.COORDINATOR)


def parked(node):
    return node.broker.replicas.purgatory.fetches


def long_poll(*rows, min_bytes=1, **fields):
    return fetch_request(*rows, max_wait_ms=WAIT_MS, min_bytes=min_bytes, **fields)
