"""Requests and batches that ask for very much with little: each has an end, and the right error."""

import asyncio
import struct

import pytest

from fuzz.attacks import _zigzag
from fuzz.strategies import bomb
from kits.node.sim_node import SimNode, simulated
from oracle.batches import COMPRESS, batch
from oracle.compare import produce_body
from oracle.wire import encode_request
from twofold.broker.network.context import CloseConnection, Later
from twofold.records.client_batch_checks import MAX_RECORD_ERRORS, MAX_RECORDS
from twofold.wire.entries import MAX_ENTRIES

INVALID_RECORD, POLICY_VIOLATION, INVALID_TIMESTAMP, INVALID_TOPIC = 87, 44, 32, 17


async def produce(node: SimNode, topic: str, records: bytes, version: int = 8):
    answer = await node.ask("Produce", version, **produce_body(topic, records))
    return answer["responses"][0]["partition_responses"][0]


def many(count: int, key: bytes = b"\x02k", first_key: bytes | None = None) -> bytes:
    """A section of so many records, as small as they can be."""
    section = bytearray()
    for number in range(count):
        body = b"\0\0" + _zigzag(number) + (first_key if first_key and not number else key) + b"\x01\0"
        section += bytes([len(body) * 2]) + body
    return bytes(section)


def compressed(codec: int, count: int, section: bytes, **fields) -> bytes:
    return batch(
        1, attributes=codec, payload=COMPRESS[codec](section), count=count, last_offset_delta=count - 1, **fields
    )


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 2**31 - 1])
@simulated(SimNode)
async def test_a_compression_bomb_is_an_invalid_record(node, codec, count):
    await node.create_topic("compacted", cleanup_policy="compact")
    for payload in (bomb(codec), COMPRESS[codec](bomb(codec))):
        records = batch(1, attributes=codec, payload=payload, count=count, last_offset_delta=count - 1)
        assert (await produce(node, "compacted", records))["error_code"] == INVALID_RECORD


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@simulated(SimNode)
async def test_many_records_for_a_compacted_topic_are_looked_at_and_appended_in_order(node, codec):
    await node.create_topic("compacted", cleanup_policy="compact")
    good = compressed(codec, 5_000, many(5_000))
    first, small, second = await asyncio.gather(
        produce(node, "compacted", good),
        produce(node, "compacted", batch(1)),
        produce(node, "compacted", good),
    )
    assert {row["error_code"] for row in (first, small, second)} == {0}
    assert sorted(row["base_offset"] for row in (first, second)) in ([0, 5_000], [1, 5_001], [0, 5_001])
    bad = compressed(codec, 5_000, many(5_000, first_key=b"\x01"))
    refused = await produce(node, "compacted", bad)
    assert refused["error_code"] == INVALID_RECORD
    assert [row["batch_index"] for row in refused["record_errors"]] == [0]
    end = node.broker.replicas.leader("compacted", 0).log.log_end_offset
    assert end == 10_001


@simulated(SimNode)
async def test_complaints_about_records_have_an_end(node):
    await node.create_topic("compacted", cleanup_policy="compact")
    refused = await produce(node, "compacted", compressed(4, 5_000, many(5_000, key=b"\x01")))
    assert refused["error_code"] == INVALID_RECORD
    assert len(refused["record_errors"]) == MAX_RECORD_ERRORS


@simulated(SimNode)
async def test_more_records_than_any_client_sends_are_not_unpacked(node):
    await node.create_topic("compacted", cleanup_policy="compact")
    count = MAX_RECORDS + 1
    refused = await produce(node, "compacted", batch(1, attributes=4, count=count, last_offset_delta=count - 1))
    assert refused["error_code"] == INVALID_RECORD
    assert str(MAX_RECORDS) in refused["error_message"]


@simulated(SimNode, log_message_timestamp_before_max_ms=1000)
async def test_a_large_batch_with_refused_times_is_refused_without_being_unpacked(node):
    await node.create_topic("timed", message_timestamp_before_max_ms=1000)
    few = await produce(node, "timed", compressed(4, 3, many(3)))
    assert (few["error_code"], len(few["record_errors"])) == (INVALID_TIMESTAMP, 3)
    large = await produce(node, "timed", compressed(4, 30_000, many(30_000)))
    assert (large["error_code"], large["record_errors"]) == (INVALID_TIMESTAMP, [])
    lying = await produce(node, "timed", batch(1, attributes=4, payload=bomb(4)))
    assert lying["error_code"] == INVALID_TIMESTAMP


@pytest.mark.parametrize("count", [1_000_001, 2**31 - 1])
@simulated(SimNode)
async def test_partitions_by_the_billion_are_against_the_policy(node, count):
    row = {"name": "u", "num_partitions": count, "replication_factor": 1}
    answer = await node.ask("CreateTopics", 5, topics=[row], timeout=1000)
    assert answer["topics"][0]["error_code"] == POLICY_VIOLATION
    answer = await node.ask(
        "CreatePartitions", 1, topics=[{"name": "t", "count": min(count + 2, 2**31 - 1)}], timeout=1000
    )
    assert answer["results"][0]["error_code"] == POLICY_VIOLATION


@simulated(SimNode)
async def test_an_error_that_quotes_a_long_name_fits_into_its_answer(node):
    name = "x" * 32_767
    row = await produce(node, name, batch(1))
    assert row["error_code"] != -1
    assert name[:1000] in row["error_message"]
    answer = await node.ask("CreateTopics", 4, topics=[{"name": name, "num_partitions": 1, "replication_factor": 1}])
    assert answer["topics"][0]["error_code"] == INVALID_TOPIC


def large_fetch(partitions: int, *, max_wait: int) -> bytes:
    rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}] * partitions
    topics = [{"topic": "t", "partitions": rows}]
    return encode_request("Fetch", 4, {"replica_id": -1, "max_wait": max_wait, "min_bytes": 1, "topics": topics})[4:]


@simulated(SimNode)
async def test_a_request_with_very_many_entries_is_answered_and_one_with_too_many_is_refused(node):
    rows = [{"name": f"{number:040}"} for number in range(4_000)]
    answer = await node.ask("Metadata", 4, topics=rows, allow_auto_topic_creation=False)
    assert [row["name"] for row in answer["topics"]] == [row["name"] for row in rows]
    too_many = struct.pack(">hhihi", 3, 1, 1, -1, MAX_ENTRIES + 1) + b"\0\0" * (MAX_ENTRIES + 1)
    with pytest.raises(CloseConnection, match="more than 120000 entries"):
        await node._dispatcher.dispatch(node._peer, too_many).answer


@simulated(SimNode)
async def test_nothing_is_left_of_a_large_fetch_whose_client_has_gone(node):
    purgatory = node.broker.replicas.purgatory
    for wait_first in (True, False):
        result = node._dispatcher.dispatch(node._peer, large_fetch(10_000, max_wait=2**31 - 1))
        assert isinstance(result, Later)
        if wait_first:
            while not purgatory.fetches:
                await node.sleep(0.01)
        result.answer.cancel()
        await node.sleep(1.0)
        assert not purgatory.fetches
