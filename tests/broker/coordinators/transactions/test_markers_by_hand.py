"""WriteTxnMarkers with the start offsets of KIP-664: an administrator ends one transaction, and no other."""

import io
import logging

import pytest

from kits.log.partition import marker_of
from kits.node.markers import begin, begin_offsets, create_offsets_topic, is_open, lead, written
from kits.node.running import running
from kits.node.sockets import on_loop
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.wire.apis import KEYS
from twofold.wire.codec import encode_request
from twofold.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

KEY = KEYS["WriteTxnMarkers"]
INVALID_REQUEST, INVALID_TXN_STATE, INVALID_PRODUCER_EPOCH, FENCED, UNKNOWN, NOT_LEADER = 42, 48, 47, 52, 3, 6


def by_hand(topic="t", indexes=(0,), offsets=(0,), *, pid=7, epoch=0, commit=False, ce=-1, tv=0):
    return WritableTxnMarker(
        producer_id=pid,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=list(indexes), txn_start_offsets=list(offsets))],
        coordinator_epoch=ce,
        transaction_version=tv,
    )


async def ask(client, *markers, version=2):
    response = await client.call(WriteTxnMarkersRequest(markers=markers), KEY, version)
    return {
        (found.producer_id, topic.name, row.partition_index): row.error_code
        for found in response.markers
        for topic in found.topics
        for row in topic.partitions
    }


def epoch_of_coordinator(node, pid=7, topic="t", index=0):
    return next(row.coordinator_epoch for row in node.log(topic, index).producers() if row.producer_id == pid)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tv", [0, 2])
def test_the_transaction_that_begins_there_is_aborted_under_its_own_epoch(tmp_path, version, tv):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            starts = [begin(node, "t", index, epoch=3) for index in range(2)]
            client = await node.connect()
            answer = await ask(client, by_hand(indexes=(0, 1), offsets=starts, epoch=3, tv=tv), version=version)
            assert answer == {(7, "t", 0): 0, (7, "t", 1): 0}
            for index in range(2):
                assert written(node, "t", index) == [(7, 3, "abort", -1)]
                assert node.log("t", index).last_stable_offset == 2

    scenario()


def test_minus_one_passes_the_coordinator_check_and_keeps_its_epoch_and_a_number_is_checked(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            log = node.log("t")
            log.append_markers([marker_of(7, 0, 5, commit=False, version=0)], leader_epoch=0)
            client = await node.connect()
            assert await ask(client, by_hand(offsets=[begin(node, "t")])) == {(7, "t", 0): 0}
            assert written(node, "t")[-1] == (7, 0, "abort", -1) and epoch_of_coordinator(node) == 5
            start = begin(node, "t", epoch=1)
            assert await ask(client, by_hand(offsets=[start], epoch=1, ce=4)) == {(7, "t", 0): FENCED}
            assert is_open(node, "t")
            assert await ask(client, by_hand(offsets=[start], epoch=1, ce=6)) == {(7, "t", 0): 0}
            assert epoch_of_coordinator(node) == 6

    scenario()


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"offsets": [0]}, INVALID_TXN_STATE),  # something of it begins at 1
        ({"offsets": [2]}, INVALID_TXN_STATE),
        ({"offsets": [-1]}, INVALID_TXN_STATE),
        ({"pid": 8}, INVALID_TXN_STATE),
        ({"pid": -1}, INVALID_TXN_STATE),
        ({"epoch": 2}, INVALID_PRODUCER_EPOCH),
        ({"epoch": 4}, INVALID_PRODUCER_EPOCH),
        ({"epoch": -1}, INVALID_PRODUCER_EPOCH),
        ({"commit": True}, INVALID_REQUEST),
        ({"offsets": [1, 1]}, INVALID_REQUEST),
        ({"topic": "u"}, UNKNOWN),
        ({"indexes": [9]}, UNKNOWN),
    ],
)
def test_whatever_does_not_fit_is_refused_and_nothing_is_written(tmp_path, asked, code):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            begin(node, "t", pid=1)  # another's, at offset 0
            assert begin(node, "t", epoch=3) == 1
            client = await node.connect()
            answer = await ask(client, by_hand(**{"offsets": [1], "epoch": 3} | asked))
            assert list(answer.values()) == [code]
            assert written(node, "t") == []
            assert await ask(client, by_hand(offsets=[1], epoch=3)) == {(7, "t", 0): 0}
            assert is_open(node, "t")  # the other one

    scenario()


def test_a_transaction_that_is_over_is_not_ended_again(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            start = begin(node, "t")
            client = await node.connect()
            twice = [by_hand(offsets=[start]), by_hand(offsets=[start])]
            assert await ask(client, *twice) == {(7, "t", 0): INVALID_TXN_STATE}  # the second one's outcome
            assert len(written(node, "t")) == 1
            assert await ask(client, by_hand(offsets=[start])) == {(7, "t", 0): INVALID_TXN_STATE}
            lead(node, "t", leader=2)
            assert await ask(client, by_hand(offsets=[start])) == {(7, "t", 0): NOT_LEADER}

    scenario()


def test_offsets_of_an_open_transaction_are_ended_through_the_group_coordinator(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await create_offsets_topic(node)
            start = begin_offsets(node, 1)
            client = await node.connect()
            wrong = by_hand(CONSUMER_OFFSETS, (1,), (start + 1,))
            assert await ask(client, wrong) == {(7, CONSUMER_OFFSETS, 1): INVALID_TXN_STATE}
            assert await ask(client, by_hand(CONSUMER_OFFSETS, (1,), (start,))) == {(7, CONSUMER_OFFSETS, 1): 0}
            assert written(node, CONSUMER_OFFSETS, 1) == [(7, 0, "abort", -1)]

            node.log(CONSUMER_OFFSETS, 1).append_markers([marker_of(7, 0, 5, commit=False, version=0)], leader_epoch=0)
            start = begin_offsets(node, 1)
            assert await ask(client, by_hand(CONSUMER_OFFSETS, (1,), (start,))) == {(7, CONSUMER_OFFSETS, 1): 0}
            assert written(node, CONSUMER_OFFSETS, 1)[-1] == (7, 0, "abort", -1)
            assert epoch_of_coordinator(node, topic=CONSUMER_OFFSETS, index=1) == 5

    scenario()


def test_an_answer_says_that_the_start_offset_was_looked_at(tmp_path):
    """Where the tag is missing, the broker does not know the field: a caller must not believe that it was checked."""

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            start = begin(node, "t", 0)
            client = await node.connect()
            plain = by_hand(indexes=(1,), ce=0)
            plain.topics[0].txn_start_offsets = None
            response = await client.call(
                WriteTxnMarkersRequest(markers=[by_hand(offsets=[start + 9]), by_hand(offsets=[start]), plain]), KEY, 2
            )
            rows = [row for topic in response.markers[0].topics for row in topic.partitions]
            assert {(row.partition_index, row.start_offset_checked) for row in rows} == {(0, True), (1, False)}

    scenario()


def test_the_administrator_is_named_in_the_log_of_the_broker(tmp_path, caplog):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            start = begin(node, "t", epoch=3)
            client = await node.connect()
            with caplog.at_level(logging.INFO):
                await ask(client, by_hand(offsets=[start + 1], epoch=3))
                await ask(client, by_hand(offsets=[start], epoch=3))

    scenario()
    lines = [record.getMessage() for record in caplog.records if "WriteTxnMarkers by" in record.getMessage()]
    assert len(lines) == 2
    assert "User:ANONYMOUS (127.0.0.1" in lines[1] and "abort producer 7, epoch 3, in t-0" in lines[1]
    assert any("not aborted by hand" in record.getMessage() for record in caplog.records)


def test_a_marker_without_start_offsets_has_the_bytes_of_apache_kafka():
    from kio.schema.types import ProducerId, TopicName
    from kio.schema.write_txn_markers.v1.request import WritableTxnMarker as Theirs
    from kio.schema.write_txn_markers.v1.request import WritableTxnMarkerTopic as TheirTopic
    from kio.schema.write_txn_markers.v1.request import WriteTxnMarkersRequest as TheirRequest
    from kio.serial import entity_writer
    from kio.static.primitive import i16, i32

    topics = (TheirTopic(name=TopicName("t"), partition_indexes=(i32(0),)),)
    theirs = Theirs(
        producer_id=ProducerId(7),
        producer_epoch=i16(0),
        transaction_result=False,
        topics=topics,
        coordinator_epoch=i32(1),
    )
    out = io.BytesIO()
    entity_writer(TheirRequest)(out, TheirRequest(markers=(theirs,)))
    plain = by_hand(ce=1)
    plain.topics[0].txn_start_offsets = None
    ours = bytes(encode_request(WriteTxnMarkersRequest(markers=[plain]), KEY, 1, 1, "x"))
    assert ours.endswith(out.getvalue())
