"""Produce (key 0): every version, every refusal, and what waits for what."""

import asyncio
import struct
import uuid

import pytest

from kits.node.fetching import delete, led_by_another, topic_key
from kits.node.running import (
    FETCH,
    PRODUCE,
    batch,
    fetch_request,
    fetched,
    produce_request,
    produced,
    running,
)
from kits.node.sockets import on_loop, settle, until
from twofold.broker.network.authorizer import AllowAll
from twofold.log.api import Bound
from twofold.records.batch import iter_headers, iter_records, read_header
from twofold.wire.apis import APIS
from twofold.wire.errors import KafkaStorageError

VERSIONS = range(APIS[PRODUCE].min_version, APIS[PRODUCE].max_version + 1)
LATEST = VERSIONS[-1]


def stored(node, topic, partition=0, bound=Bound.LOG_END):
    log = node.log(topic, partition)
    return log.read(log.log_start_offset, 2**30, bound).records


def test_every_version_appends_and_tells_the_offset(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            client = await node.connect()
            for count, version in enumerate(VERSIONS):
                key = topic_key(node, "t", version)
                response = await client.call(
                    produce_request((key, 0, batch(b"a", b"b")), (key, 1, batch(b"c"))), PRODUCE, version
                )
                first, second = produced(response)
                assert (first.index, first.error_code, first.base_offset) == (0, 0, 2 * count)
                assert (second.index, second.error_code, second.base_offset) == (1, 0, count)
                assert first.log_append_time_ms == -1
                assert first.log_start_offset == (0 if version >= 5 else -1)
                topic = response.responses[0]
                assert (topic.topic_id if version >= 13 else topic.name) == key

    scenario()


def test_the_versions_below_3_end_the_connection(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            for version in (0, 1, 2, 14, -1):
                client = await node.connect()
                client.send(struct.pack(">hhih", PRODUCE, version, 1, -1) + bytes(20))
                assert await client.closed_by_peer()

    scenario()


def test_unknown_topics_partitions_and_ids_do_not_stop_the_others(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            request = produce_request(
                ("no", 0, batch()), ("t", 0, batch()), ("t", 7, batch()), ("t", -1, batch()), ("bad/name", 0, batch())
            )
            response = await client.call(request, PRODUCE, 9)
            assert [row.error_code for row in produced(response)] == [3, 0, 3, 3, 3]
            assert [row.log_start_offset for row in produced(response)] == [-1, 0, -1, -1, -1]
            request = produce_request((uuid.uuid4(), 0, batch()), (node.topic_id("t"), 0, batch()), (None, 0, batch()))
            response = await client.call(request, PRODUCE, 13)
            assert [row.error_code for row in produced(response)] == [100, 0, 100]
            assert node.log("t").log_end_offset == 2

    scenario()


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused_on_every_partition_and_nothing_is_appended(tmp_path, acks):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            client = await node.connect()
            for version in VERSIONS:
                key = topic_key(node, "t", version)
                response = await client.call(
                    produce_request((key, 0, batch()), (key, 1, batch()), acks=acks), PRODUCE, version
                )
                assert [row.error_code for row in produced(response)] == [21, 21]
                assert [row.base_offset for row in produced(response)] == [-1, -1]
            assert node.log("t").log_end_offset == 0

    scenario()


def damaged(records, position, value):
    changed = bytearray(records)
    changed[position] = value
    return bytes(changed)


BAD_RECORDS = {
    "null": (None, 87),
    "empty": (b"", 87),
    "crc": (damaged(batch(b"x" * 100), 80, 7), 2),
    "cut off": (batch(b"x" * 100)[:-5], 87),
    "magic 1": (damaged(batch(), 16, 1), 87),
    "magic 0": (damaged(batch(), 16, 0), 87),
    "magic 3": (damaged(batch(), 16, 3), 2),
    "two batches": (batch() + batch(), 87),
    "control": (batch(control=True), 87),
    "garbage": (b"\xff" * 100, 2),
    "too large": (batch(bytes(2_000_000)), 10),
    "no sequence": (batch(producer=(7, 0, -1)), 87),
    "too far in the future": (batch(timestamp=2**45), 32),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_bad_records_are_refused_alone(tmp_path, name):
    records, code = BAD_RECORDS[name]

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 3)
            client = await node.connect()
            request = produce_request(("t", 0, batch()), ("t", 1, records), ("t", 2, batch()))
            rows = produced(await client.call(request, PRODUCE, 9))
            assert [row.error_code for row in rows] == [0, code, 0]
            assert rows[1].base_offset == -1
            assert rows[1].error_message
            assert [node.log("t", n).log_end_offset for n in range(3)] == [1, 0, 1]

    scenario()


def test_zstd_needs_version_7(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            for version in VERSIONS:
                request = produce_request((topic_key(node, "t", version), 0, batch(codec_id=4)))
                (row,) = produced(await client.call(request, PRODUCE, version))
                assert row.error_code == (76 if version < 7 else 0)

    scenario()


@pytest.mark.parametrize("codec_id", range(5))
def test_batches_of_every_codec_are_stored_as_they_came(tmp_path, codec_id):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            sent = batch(*[b"some value %d" % n for n in range(50)], codec_id=codec_id)
            await client.call(produce_request(("t", 0, sent)), PRODUCE, 9)
            assert stored(node, "t")[16:] == sent[16:], "all after the leader epoch is the producer's"

    scenario()


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_with_a_codec_of_its_own_stores_that_codec_in_order(tmp_path, wanted):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", compression_type=wanted)
            client = await node.connect()
            for n in range(10):
                client.ask(produce_request(("t", 0, batch(b"%d" % n, codec_id=n % 5))), PRODUCE, 9)
            for n in range(10):
                _, response = await client.answer(PRODUCE, 9)
                assert produced(response)[0].base_offset == n
            data = stored(node, "t")
            codecs = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
            assert {header.codec for _, header in iter_headers(data)} == {codecs[wanted]}
            values = [record.value for at, _ in iter_headers(data) for record in iter_records(data, at)]
            assert values == [b"%d" % n for n in range(10)]

    scenario()


def test_recompression_does_not_hide_a_wrong_crc(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2, compression_type="gzip")
            client = await node.connect()
            await client.call(produce_request(("t", 0, batch()), ("t", 1, batch())), PRODUCE, 9)
            bad = damaged(batch(b"x" * 50), 75, 1)
            rows = produced(await client.call(produce_request(("t", 0, bad), ("t", 1, batch())), PRODUCE, 9))
            assert [row.error_code for row in rows] == [2, 0]

    scenario()


def test_log_append_time_is_stored_and_told(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", message_timestamp_type="LogAppendTime")
            client = await node.connect()
            before = node.broker.runtime.clock.wall_ms()
            (row,) = produced(await client.call(produce_request(("t", 0, batch(b"a", b"b"))), PRODUCE, 9))
            assert before <= row.log_append_time_ms <= node.broker.runtime.clock.wall_ms()
            header = read_header(stored(node, "t"))
            assert header.is_log_append_time
            assert header.max_timestamp == row.log_append_time_ms

    scenario()


def test_records_without_a_key_on_a_compacted_topic_are_named_one_by_one(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", cleanup_policy="compact")
            client = await node.connect()
            for version in VERSIONS:
                request = produce_request((topic_key(node, "t", version), 0, batch(b"a", b"b", b"c")))
                (row,) = produced(await client.call(request, PRODUCE, version))
                assert row.error_code == 87
                assert [error.batch_index for error in row.record_errors] == ([0, 1, 2] if version >= 8 else [])
                assert bool(row.error_message) == (version >= 8)
            request = produce_request(("t", 0, batch(b"a", key=b"k")))
            (row,) = produced(await client.call(request, PRODUCE, 9))
            assert row.error_code == 0

    scenario()


def test_a_duplicate_is_a_success_with_the_first_offsets(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            for sequence, offset in ((0, 0), (1, 1), (0, 0), (1, 1), (2, 2)):
                request = produce_request(("t", 0, batch(producer=(7, 0, sequence))))
                (row,) = produced(await client.call(request, PRODUCE, 9))
                assert (row.error_code, row.base_offset) == (0, offset)
            (row,) = produced(await client.call(produce_request(("t", 0, batch(producer=(7, 0, 9)))), PRODUCE, 9))
            assert (row.error_code, row.base_offset, row.log_start_offset) == (45, -1, 0)
            assert node.log("t").log_end_offset == 3

    scenario()


def test_the_same_partition_twice_is_one_append_of_the_last_and_one_row(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            client = await node.connect()
            request = produce_request(("t", 0, batch(b"first")), ("t", 1, batch()), ("t", 0, batch(b"second")))
            rows = produced(await client.call(request, PRODUCE, 9))
            assert [(row.index, row.error_code) for row in rows] == [(0, 0), (1, 0)]
            assert [r.value for r in iter_records(stored(node, "t"))] == [b"second"]
            assert node.log("t").log_end_offset == 1

    scenario()


def test_internal_topics_are_refused(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("__consumer_offsets")
            client = await node.connect()
            rows = produced(await client.call(produce_request(("__consumer_offsets", 0, batch())), PRODUCE, 9))
            assert [row.error_code for row in rows] == [17]
            rows = produced(await client.call(produce_request(("__transaction_state", 0, batch())), PRODUCE, 9))
            assert [row.error_code for row in rows] == [3], "it does not exist"

    scenario()


def test_acks_0_is_never_answered_and_hangs_up_only_on_an_error(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            for _ in range(5):
                client.ask(produce_request(("t", 0, batch()), acks=0), PRODUCE, 9)
            (row,) = produced(await client.call(produce_request(("t", 0, batch())), PRODUCE, 9))
            assert row.base_offset == 5
            client.ask(produce_request(("t", 0, batch()), ("t", 9, batch()), acks=0), PRODUCE, 9)
            assert await client.closed_by_peer()
            assert node.log("t").log_end_offset == 7, "the good partition was appended all the same"
            other = await node.connect()
            other.ask(produce_request(("t", 0, batch(transactional=True, producer=(1, 0, 0))), acks=0), PRODUCE, 9)
            assert await other.closed_by_peer()

    scenario()


class NoTransactionalIds(AllowAll):
    def authorize(self, context, operation, resource_type, resource_name, *, quiet=False):
        return resource_type.name != "TRANSACTIONAL_ID" and resource_name != "secret"


def test_transactional_batches_need_a_transactional_id_and_one_producer(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            client = await node.connect()
            one = batch(transactional=True, producer=(1, 0, 0))
            other = batch(transactional=True, producer=(2, 0, 0))

            async def codes(*rows, transactional_id="id"):
                request = produce_request(*rows, transactional_id=transactional_id)
                return [row.error_code for row in produced(await client.call(request, PRODUCE, 9))]

            assert await codes(("t", 0, one), ("t", 1, batch()), transactional_id=None) == [53, 53]
            assert await codes(("t", 0, one), ("t", 1, other)) == [49, 49]
            assert await codes(("t", 0, one), ("t", 1, batch())) == [19, 0], "nobody can verify the transaction yet"
            node.broker.core.authorizer = NoTransactionalIds()
            assert await codes(("t", 0, one), ("t", 1, batch())) == [53, 53]
            assert node.log("t").log_end_offset == 0

    scenario()


def test_topics_that_may_not_be_written_are_refused_alone(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("secret")
            await node.create("t")
            node.broker.core.authorizer = NoTransactionalIds()
            client = await node.connect()
            rows = produced(await client.call(produce_request(("secret", 0, batch()), ("t", 0, batch())), PRODUCE, 9))
            assert [row.error_code for row in rows] == [29, 0]

    scenario()


@pytest.mark.parametrize("used_before", [True, False])
def test_a_partition_led_elsewhere_names_its_leader(tmp_path, used_before):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            if used_before:
                node.log("t")
            led_by_another(node, "t")
            client = await node.connect()
            for version in VERSIONS:
                request = produce_request((topic_key(node, "t", version), 0, batch()))
                response = await client.call(request, PRODUCE, version)
                (row,) = produced(response)
                assert row.error_code == 6
                leader = (row.current_leader.leader_id, row.current_leader.leader_epoch)
                assert leader == ((9, 5) if version >= 10 else (-1, -1))
                nodes = [(n.node_id, n.host, n.port) for n in response.node_endpoints]
                assert nodes == ([(9, *node.address)] if version >= 10 else [])

    scenario()


def test_a_reader_sees_records_only_after_the_sync_that_flush_messages_asks_for(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", flush_messages=1)
            log = node.log("t")
            release = asyncio.Event()
            sync = type(log).sync
            syncs = []

            async def slow_sync():
                syncs.append(log.log_end_offset)
                await release.wait()
                await sync(log)

            patch(log, slow_sync)
            client, reader = await node.connect(), await node.connect()
            for n in range(3):
                client.ask(produce_request(("t", 0, batch(b"%d" % n))), PRODUCE, 9)
            await until(lambda: log.log_end_offset == 3)
            (row,) = fetched(await reader.call(fetch_request(("t", 0, 0)), FETCH, 12))
            assert (row.high_watermark, row.records) == (0, b"")
            release.set()
            for n in range(3):
                _, response = await client.answer(PRODUCE, 9)
                assert produced(response)[0].base_offset == n
            assert log.high_watermark == 3
            assert len(syncs) <= 2 and syncs[-1] == 3, "those who came during a sync share the next one"

    scenario()


def patch(log, sync):
    """Logs have slots: replace the method on a class of their own."""
    log.__class__ = type("Patched", (type(log),), {"__slots__": (), "sync": lambda self: sync()})


def test_acks_all_that_is_not_safe_in_time_is_told_so(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", flush_messages=1)
            release = asyncio.Event()
            patch(node.log("t"), release.wait)
            client = await node.connect()
            client.ask(produce_request(("t", 0, batch()), timeout_ms=1234), PRODUCE, 9)
            await until(lambda: any(timer.delay_s == 1.234 for timer in node.timers.pending))
            node.timers.fire(1.234)
            _, response = await client.answer(PRODUCE, 9)
            assert produced(response)[0].error_code == 7
            assert node.log("t").log_end_offset == 1
            release.set()
            await settle()

    scenario()


def test_a_failed_sync_is_a_storage_error_and_not_a_success(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", flush_messages=1)

            async def broken():
                raise KafkaStorageError("the disk is gone")

            patch(node.log("t"), broken)
            client = await node.connect()
            (row,) = produced(await client.call(produce_request(("t", 0, batch())), PRODUCE, 9))
            assert (row.error_code, row.base_offset) == (56, -1)
            assert node.log("t").high_watermark == 0

    scenario()


def test_a_waiting_produce_hears_that_its_partition_moved_away(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", flush_messages=1)
            release = asyncio.Event()
            patch(node.log("t"), release.wait)
            client = await node.connect()
            client.ask(produce_request(("t", 0, batch())), PRODUCE, 10)
            await until(lambda: bool(node.broker.replicas.purgatory.produces))
            led_by_another(node, "t")
            _, response = await client.answer(PRODUCE, 10)
            (row,) = produced(response)
            assert row.error_code == 6
            assert row.current_leader.leader_id == 9
            release.set()
            await settle()

    scenario()


def test_a_waiting_produce_hears_that_its_topic_was_deleted(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", flush_messages=1)
            release = asyncio.Event()
            patch(node.log("t"), release.wait)
            client = await node.connect()
            client.ask(produce_request(("t", 0, batch())), PRODUCE, 10)
            await until(lambda: bool(node.broker.replicas.purgatory.produces))
            await delete(node, "t")
            _, response = await client.answer(PRODUCE, 10)
            (row,) = produced(response)
            assert (row.error_code, row.current_leader.leader_id) == (3, -1)
            release.set()
            await settle()

    scenario()


def test_acks_all_needs_enough_replicas_in_sync_and_acks_1_does_not(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", min_insync_replicas=2)
            client = await node.connect()
            (row,) = produced(await client.call(produce_request(("t", 0, batch())), PRODUCE, 9))
            assert row.error_code == 0, "a partition of one replica can never have two"
            partition = node.broker.replicas.leader("t", 0)
            partition.replicas = (1, 2, 3)
            (row,) = produced(await client.call(produce_request(("t", 0, batch())), PRODUCE, 9))
            assert (row.error_code, row.log_start_offset) == (19, 0)
            (row,) = produced(await client.call(produce_request(("t", 0, batch()), acks=1), PRODUCE, 9))
            assert row.error_code == 0

    scenario()


def test_pipelined_produces_are_appended_and_answered_in_order(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            sent = [client.ask(produce_request(("t", 0, batch(b"%d" % n))), PRODUCE, 9) for n in range(200)]
            for n in range(200):
                correlation_id, response = await client.answer(PRODUCE, 9)
                assert (correlation_id, produced(response)[0].base_offset) == (sent[n], n)

    scenario()


def test_an_empty_request_gets_an_empty_answer(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            client = await node.connect()
            for version in VERSIONS:
                response = await client.call(produce_request(), PRODUCE, version)
                assert list(response.responses) == []

    scenario()


def test_a_bug_in_one_partition_is_an_unknown_error_there_and_nowhere_else(tmp_path, caplog):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            log = node.log("t")
            log.__class__ = type("Broken", (type(log),), {"__slots__": (), "append": lambda *_, **__: 1 / 0})
            client = await node.connect()
            rows = produced(await client.call(produce_request(("t", 0, batch()), ("t", 1, batch())), PRODUCE, 9))
            assert [row.error_code for row in rows] == [-1, 0]
        assert "ZeroDivisionError" in caplog.text

    scenario()
