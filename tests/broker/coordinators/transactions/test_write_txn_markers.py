"""WriteTxnMarkers (key 27): every rule of the request, and what Apache Kafka was seen to do."""

import asyncio

import pytest

from kits.node.admin_world import Deny
from kits.node.markers import (
    acknowledge,
    begin,
    begin_offsets,
    create_offsets_topic,
    is_open,
    lead,
    on_append_markers,
    on_sync,
    register,
    written,
)
from kits.node.running import FETCH, fetch_request, fetched, records_of, running
from kits.node.sockets import on_loop, settle, until
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.log.api import Bound
from twofold.records.batch import iter_headers
from twofold.wire.apis import APIS, KEYS
from twofold.wire.errors import KafkaStorageError, NotCoordinator
from twofold.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

KEY = KEYS["WriteTxnMarkers"]
VERSIONS = range(APIS[KEY].min_version, APIS[KEY].max_version + 1)


def marker(*partitions, pid=7, epoch=0, commit=True, ce=0, tv=0):
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=pid,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
        coordinator_epoch=ce,
        transaction_version=tv,
    )


def rows(response):
    """producer id -> {(topic, partition): error code}"""
    return {
        found.producer_id: {
            (topic.name, row.partition_index): row.error_code for topic in found.topics for row in topic.partitions
        }
        for found in response.markers
    }


async def ask(client, *markers, version=2):
    return rows(await client.call(WriteTxnMarkersRequest(markers=markers), KEY, version))


def test_versions_1_and_2_are_served():
    assert list(VERSIONS) == [1, 2]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_ends_the_transaction_and_is_answered_when_it_is_safe(tmp_path, version, commit):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            for index in range(2):
                begin(node, "t", index, epoch=3)
            client = await node.connect()
            answer = await ask(client, marker(("t", 0), ("t", 1), epoch=4, commit=commit, ce=5), version=version)
            assert answer == {7: {("t", 0): 0, ("t", 1): 0}}
            for index in range(2):
                assert written(node, "t", index) == [(7, 4, "commit" if commit else "abort", 5)]
                assert node.log("t", index).last_stable_offset == 2
            read = node.log("t").read(0, 10_000, Bound.LAST_STABLE)
            assert bool(read.aborted) is not commit

    scenario()


def test_without_alter_or_cluster_action_nothing_is_written(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            asked = marker(("t", 0), ("u", 3)), marker(("t", 0), pid=8)
            both = {(Operation.ALTER, CLUSTER_NAME), (Operation.CLUSTER_ACTION, CLUSTER_NAME)}
            node.broker.core.authorizer = Deny(*both)
            assert await ask(client, *asked) == {7: {("t", 0): 31, ("u", 3): 31}, 8: {("t", 0): 31}}
            assert written(node, "t") == []
            for denied in both:
                node.broker.core.authorizer = Deny(denied)
                assert (await ask(client, marker(("t", 0))))[7] == {("t", 0): 0}

    scenario()


def test_no_markers_and_markers_without_partitions_give_no_rows(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            assert await ask(client) == {}
            assert await ask(client, marker()) == {}
            empty = WritableTxnMarkerTopic(name="t", partition_indexes=[])
            bare = marker()
            bare.topics = [empty]
            assert await ask(client, bare) == {}
            assert await ask(client, marker(pid=-1), marker(("t", 0))) == {7: {("t", 0): 0}}

    scenario()


def test_what_does_not_exist_is_unknown(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            places = [("nope", 0), ("t", 1), ("t", -1), ("a/b", 0), ("", 0), (CONSUMER_OFFSETS, 0)]
            assert await ask(client, marker(*places, ("t", 0))) == {7: dict.fromkeys(places, 3) | {("t", 0): 0}}
            assert await ask(client, marker(("nope", 0), epoch=-1)) == {7: {("nope", 0): 3}}, "the log is not asked"

    scenario()


def test_a_partition_that_another_broker_leads_is_refused(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            client = await node.connect()
            register(node, 9)
            begin(node, "t", 0)
            for index in range(2):
                lead(node, "t", index, leader=9)
            assert await ask(client, marker(("t", 0), ("t", 1))) == {7: {("t", 0): 6, ("t", 1): 6}}

    scenario()


def test_too_few_replicas_in_sync_refuse_a_marker_before_it_is_written(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", min_insync_replicas=2)
            begin(node, "t")
            lead(node, "t", replicas=(1, 2), isr=(1,))
            client = await node.connect()
            assert await ask(client, marker(("t", 0))) == {7: {("t", 0): 19}}
            assert written(node, "t") == []
            lead(node, "t", replicas=(1, 2), isr=(1, 2))
            client.ask(WriteTxnMarkersRequest(markers=[marker(("t", 0))]), KEY, 2)
            await until(lambda: bool(node.broker.replicas.purgatory.produces))
            acknowledge(node, "t")
            _, response = await client.answer(KEY, 2)
            assert rows(response) == {7: {("t", 0): 0}}

    scenario()


def test_replicas_that_fall_behind_afterwards_are_told(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", flush_messages=1, min_insync_replicas=2)
            lead(node, "t", replicas=(1, 2), isr=(1, 2))
            release = asyncio.Event()
            on_sync(node.log("t"), release.wait)
            client = await node.connect()
            client.ask(WriteTxnMarkersRequest(markers=[marker(("t", 0))]), KEY, 2)
            await until(lambda: bool(node.broker.replicas.purgatory.produces))
            acknowledge(node, "t")
            node.broker.replicas.leader("t", 0).isr = (1,)
            release.set()
            _, response = await client.answer(KEY, 2)
            assert rows(response) == {7: {("t", 0): 20}}

    scenario()


def test_epochs_are_those_of_the_log(tmp_path):
    """INVALID_PRODUCER_EPOCH: lower for TransactionVersion 0 and 1, not higher from 2 on, where data is open."""

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()

            async def code(epoch, tv, version=2):
                (answer,) = (await ask(client, marker(("t", 0), epoch=epoch, tv=tv), version=version)).values()
                return answer["t", 0]

            begin(node, "t", epoch=5)
            assert [await code(4, tv) for tv in (0, 1, 2, 3, 127)] == [47] * 5
            assert [await code(5, tv) for tv in (2, 3, 127)] == [47] * 3, "above 2 acts as 2"
            assert is_open(node, "t")
            assert await code(6, 2) == 0
            assert await code(6, 2) == 0, "the same marker again is no reason"
            begin(node, "t", epoch=6)
            assert await code(6, 2) == 47
            assert await code(6, 2, version=1) == 0, "version 1 of the request knows no TransactionVersion"
            begin(node, "t", epoch=32767)
            assert await code(32767, 2) == 0, "there is no higher epoch"
            assert len(written(node, "t")) == 4

    scenario()


def test_coordinator_epochs_never_fall(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()

            async def code(ce, pid=7):
                return (await ask(client, marker(("t", 0), ce=ce, pid=pid)))[pid]["t", 0]

            assert [await code(ce) for ce in (-1, -1, 5, 5, 4, -1, 6)] == [0, 0, 0, 0, 52, 52, 0]
            assert await code(-2, pid=8) == 52, "lower than that of a producer that nobody knows"

    scenario()


def test_an_unknown_producer_gets_its_marker_and_its_epoch(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            assert await ask(client, marker(("t", 0), epoch=3, ce=2)) == {7: {("t", 0): 0}}
            (row,) = node.log("t").producers()
            assert (row.producer_epoch, row.coordinator_epoch, row.current_txn_start_offset) == (3, 2, -1)
            assert node.log("t").last_stable_offset == 1

    scenario()


@pytest.mark.parametrize("wrong", [{"pid": -1}, {"pid": -5}, {"epoch": -1}])
def test_a_negative_producer_id_or_epoch_refuses_the_whole_request(tmp_path, wrong):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            answer = await ask(client, marker(("t", 0), pid=8), marker(("t", 0), **wrong))
            assert answer == {8: {("t", 0): -1}, wrong.get("pid", 7): {("t", 0): -1}}
            assert node.log("t").log_end_offset == 0

    scenario()


def test_a_negative_transaction_version_refuses_its_marker(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            answer = await ask(client, marker(("t", 0), pid=8), marker(("t", 0), ("nope", 0), tv=-1))
            assert answer == {8: {("t", 0): 0}, 7: {("t", 0): -1, ("nope", 0): 3}}
            assert written(node, "t") == [(8, 0, "commit", 0)]
            assert await ask(client, marker(("t", 0), tv=-1), version=1) == {7: {("t", 0): 0}}

    scenario()


def test_markers_of_one_producer_share_a_row_and_the_later_outcome_is_told(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            client = await node.connect()
            assert await ask(client, marker(("t", 0)), marker(("t", 1))) == {7: {("t", 0): 0, ("t", 1): 0}}
            assert await ask(client, marker(("t", 0), epoch=3), marker(("t", 0), epoch=2)) == {7: {("t", 0): 47}}
            assert await ask(client, marker(("t", 0), epoch=2), marker(("t", 0), epoch=4)) == {7: {("t", 0): 0}}
            assert [epoch for _, epoch, _, _ in written(node, "t")] == [0, 3, 4]

    scenario()


def test_a_partition_named_twice_gets_one_marker(tmp_path):
    """Apache Kafka never answers this."""

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            assert await ask(client, marker(("t", 0), ("t", 0))) == {7: {("t", 0): 0}}
            assert len(written(node, "t")) == 1

    scenario()


def test_markers_of_many_producers_are_one_write_with_an_outcome_each(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            begin(node, "t", pid=3, epoch=9)
            answer = await ask(client, *(marker(("t", 0), pid=pid, epoch=1) for pid in range(6)))
            assert answer == {pid: {("t", 0): 47 if pid == 3 else 0} for pid in range(6)}
            assert [pid for pid, *_ in written(node, "t")] == [0, 1, 2, 4, 5]
            data = node.log("t").read(0, 10_000, Bound.LOG_END).records
            assert [header.base_offset for _, header in iter_headers(data)] == list(range(6))
            assert is_open(node, "t")

    scenario()


def test_a_marker_waits_for_the_disk_where_flush_messages_asks_for_that(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            await node.create("synced", flush_messages=1)
            log = node.log("synced")
            sync, release = type(log).sync, asyncio.Event()

            async def held():
                await release.wait()
                await sync(log)

            on_sync(log, held)
            client = await node.connect()
            client.ask(WriteTxnMarkersRequest(markers=[marker(("t", 0), ("synced", 0))]), KEY, 2)
            await until(lambda: log.log_end_offset == 1)
            await settle()
            assert log.high_watermark == 0
            release.set()
            _, response = await client.answer(KEY, 2)
            assert rows(response) == {7: {("t", 0): 0, ("synced", 0): 0}}
            assert log.high_watermark == 1

    scenario()


def test_a_marker_that_is_not_safe_in_time_is_told_so(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, {"request.timeout.ms": 4321}, manual_timers=True) as node:
            await node.create("t", flush_messages=1)
            release = asyncio.Event()
            on_sync(node.log("t"), release.wait)
            client = await node.connect()
            client.ask(WriteTxnMarkersRequest(markers=[marker(("t", 0))]), KEY, 2)
            await until(lambda: any(timer.delay_s == 4.321 for timer in node.timers.pending))
            node.timers.fire(4.321)
            _, response = await client.answer(KEY, 2)
            assert rows(response) == {7: {("t", 0): 7}}
            release.set()
            await settle()

    scenario()


def test_a_failed_disk_is_a_storage_error(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", flush_messages=1)

            async def broken():
                raise KafkaStorageError("the disk is gone")

            on_sync(node.log("t"), broken)
            client = await node.connect()
            assert await ask(client, marker(("t", 0))) == {7: {("t", 0): 56}}

    scenario()


def test_a_bug_in_one_partition_is_an_unknown_error_there_and_nowhere_else(tmp_path, caplog):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            on_append_markers(node.log("t"), lambda *_, **__: 1 / 0)
            client = await node.connect()
            assert await ask(client, marker(("t", 0), ("t", 1))) == {7: {("t", 0): -1, ("t", 1): 0}}
        assert "ZeroDivisionError" in caplog.text

    scenario()


def test_markers_for_consumer_offsets_go_through_the_group_coordinator(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await create_offsets_topic(node)
            client = await node.connect()
            begin_offsets(node, 1, epoch=3)
            assert await ask(client, marker((CONSUMER_OFFSETS, 1), epoch=2)) == {7: {(CONSUMER_OFFSETS, 1): 47}}
            asked = marker((CONSUMER_OFFSETS, 0), (CONSUMER_OFFSETS, 1), epoch=4, ce=2, tv=2)
            assert await ask(client, asked) == {7: {(CONSUMER_OFFSETS, 0): 0, (CONSUMER_OFFSETS, 1): 0}}
            assert written(node, CONSUMER_OFFSETS, 1) == [(7, 4, "commit", 2)]
            assert not is_open(node, CONSUMER_OFFSETS, 1)
            late = marker((CONSUMER_OFFSETS, 1), epoch=4, ce=1)
            assert await ask(client, late) == {7: {(CONSUMER_OFFSETS, 1): 52}}
            assert await ask(client, marker((CONSUMER_OFFSETS, 3))) == {7: {(CONSUMER_OFFSETS, 3): 3}}

    scenario()


def test_a_group_coordinator_that_is_not_ready_means_come_again(tmp_path):
    """14, 15 and 16 become NOT_LEADER_OR_FOLLOWER, which the sender retries."""

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await create_offsets_topic(node)
            client = await node.connect()
            shards = node.broker.groups.shards
            shard = shards.pop(0)
            assert await ask(client, marker((CONSUMER_OFFSETS, 0))) == {7: {(CONSUMER_OFFSETS, 0): 6}}
            shards[0] = node.broker.groups.make_shard(0, shard.epoch)
            assert await ask(client, marker((CONSUMER_OFFSETS, 0))) == {7: {(CONSUMER_OFFSETS, 0): 6}}, "loading"
            shards[0].resign(NotCoordinator("moved"))
            assert await ask(client, marker((CONSUMER_OFFSETS, 0))) == {7: {(CONSUMER_OFFSETS, 0): 6}}
            shards[0] = shard
            lead(node, CONSUMER_OFFSETS, 0, replicas=(1, 2), isr=(), leader_epoch=shard.epoch)
            assert await ask(client, marker((CONSUMER_OFFSETS, 0))) == {7: {(CONSUMER_OFFSETS, 0): 6}}, "15"

    scenario()


def test_several_markers_for_consumer_offsets_wait_for_each_other(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await create_offsets_topic(node, 1)
            client = await node.connect()
            await ask(client, marker((CONSUMER_OFFSETS, 0), epoch=5, pid=2))
            partition = node.broker.replicas.leader(CONSUMER_OFFSETS, 0)
            partition._syncing = partition._held = True  # as while a sync runs: the high watermark stays
            client.ask(
                WriteTxnMarkersRequest(markers=[marker((CONSUMER_OFFSETS, 0), pid=pid, epoch=4) for pid in (1, 2, 3)]),
                KEY,
                2,
            )
            await until(lambda: partition.log.log_end_offset == 3)
            await settle()
            partition._syncing = partition._held = False
            partition.maybe_advance_high_watermark()
            _, response = await client.answer(KEY, 2)
            codes = {pid: row[CONSUMER_OFFSETS, 0] for pid, row in rows(response).items()}
            assert codes == {1: 0, 2: 47, 3: 0}

    scenario()


def test_a_client_that_leaves_takes_nothing_with_it(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", flush_messages=1)
            log = node.log("t")
            sync, release = type(log).sync, asyncio.Event()

            async def held():
                await release.wait()
                await sync(log)

            on_sync(log, held)
            client = await node.connect()
            client.ask(WriteTxnMarkersRequest(markers=[marker(("t", 0))]), KEY, 2)
            await until(lambda: log.log_end_offset == 1)
            client.close()
            await settle(50)
            release.set()
            await until(lambda: log.high_watermark == 1)

    scenario()


def test_83_delayed_rc_fetch(tmp_path):
    """A read_committed fetch that waits for bytes is answered when the marker is safe, with the aborted list."""

    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            begin(node, "t", epoch=1)
            reader, client = await node.connect(), await node.connect()
            reader.ask(fetch_request(("t", 0, 0), max_wait_ms=77_000, isolation_level=1), FETCH, 12)
            await until(lambda: bool(node.broker.replicas.purgatory.fetches))
            begin(node, "t", pid=8)
            await settle()
            assert node.broker.replicas.purgatory.fetches, "nothing of it is stable"
            await ask(client, marker(("t", 0), epoch=2, commit=False, tv=2))
            _, response = await reader.answer(FETCH, 12)
            (row,) = fetched(response)
            assert (row.high_watermark, row.last_stable_offset) == (3, 1)
            assert [(found.producer_id, found.first_offset) for found in row.aborted_transactions or ()] == [(7, 0)]
            assert [header.producer_id for _, header in iter_headers(records_of(row))] == [7]

    scenario()
