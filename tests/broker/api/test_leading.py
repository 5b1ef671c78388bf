"""A broker that leads a partition of several replicas: what its followers' fetches do, and what clients hear."""

import pytest

from kits.node.fetching import append, parked
from kits.node.followers import neighbourhood
from kits.node.markers import delete, on_sync, register
from kits.node.running import (
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    batch,
    fetch_request,
    fetched,
    list_request,
    listed,
    produce_request,
    produced,
    records_of,
    running,
)
from kits.node.sockets import on_loop, settle, until
from twofold.records.batch import iter_headers
from twofold.wire.apis import KEYS
from twofold.wire.messages import delete_records

LAG_MS = 30_000
WAIT_MS = 60_000
DELETE_RECORDS = KEYS["DeleteRecords"]


def waiting(node):
    return len(node.broker.replicas.purgatory.produces)


async def ask_produce(node, *, acks=-1, timeout_ms=30_000):
    client = await node.connect()
    client.ask(produce_request(("t", 0, batch(b"x")), acks=acks, timeout_ms=timeout_ms), PRODUCE, 9)

    async def code():
        (row,) = produced((await client.answer(PRODUCE, 9))[1])
        return row.error_code

    return code


# --- acknowledging ---


def test_acks_all_is_answered_when_all_in_sync_have_it(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            answer = await ask_produce(node)
            await until(lambda: waiting(node) == 1)
            await world.followers[2].catch_up()
            await settle()
            assert (waiting(node), world.partition.log.high_watermark) == (1, 0)
            await world.followers[3].catch_up()
            assert await answer() == 0
            assert world.partition.log.high_watermark == 1

    scenario()


@pytest.mark.parametrize("acks", [0, 1])
def test_other_acks_wait_for_no_follower(tmp_path, acks):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node, min_insync_replicas=2, isr=(1,))
            answer = await ask_produce(node, acks=acks)
            if acks:
                assert await answer() == 0
            await until(lambda: world.partition.log.log_end_offset == 1)
            assert waiting(node) == 0
            assert world.partition.log.high_watermark == 0, "fewer are in sync than min.insync.replicas"

    scenario()


def test_acks_1_waits_for_the_leaders_disk_where_the_topic_asks_for_it(tmp_path):
    @on_loop
    async def scenario():
        import asyncio

        async with running(tmp_path) as node:
            world = await neighbourhood(node, flush_messages=1)
            release = asyncio.Event()
            on_sync(node.log("t"), release.wait)
            answer = await ask_produce(node, acks=1)
            await until(lambda: waiting(node) == 1)
            for follower in world.followers.values():
                await follower.catch_up()
            assert world.partition.log.high_watermark == 0, "nor do followers make up for the disk"
            release.set()
            assert await answer() == 0
            assert world.partition.log.high_watermark == 1

    scenario()


def test_too_few_in_sync_are_told_before_and_after(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node, min_insync_replicas=3)
            answer = await ask_produce(node)
            await until(lambda: waiting(node) == 1)
            await world.followers[2].catch_up()
            world.change(isr=(1, 2))
            assert await (await ask_produce(node))() == 19
            assert world.partition.log.log_end_offset == 1, "nothing was written"
            await world.followers[3].catch_up()
            assert world.proposed[-1][1].broker_ids == (1, 2, 3)
            world.answer()
            assert await answer() == 0, "enough are in sync again"
            answer = await ask_produce(node)
            await until(lambda: waiting(node) == 1)
            await world.followers[2].catch_up()
            world.partition.isr = (1, 2)  # as if the controller had taken one away between the move and the answer
            await world.followers[3].catch_up()
            assert await answer() == 20

    scenario()


def test_a_write_that_is_not_replicated_in_time_may_still_be_committed(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            assert await (await ask_produce(node, timeout_ms=1))() == 7
            for follower in world.followers.values():
                await follower.catch_up()
            assert world.partition.log.high_watermark == 1

    scenario()


def test_a_leader_that_is_replaced_promises_nothing(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            partition = world.partition
            answer = await ask_produce(node)
            await until(lambda: waiting(node) == 1)
            world.change(leader=2, leader_epoch=2)
            assert await answer() == 6
            assert (partition.leading, partition.is_leader, partition.leader_epoch) == (None, False, 2)
            partition.maybe_advance_high_watermark()
            assert partition.log.high_watermark == 0, "a follower's high watermark is its leader's"

    scenario()


# --- reading ---


def test_consumers_read_up_to_the_high_watermark_and_followers_to_the_end(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            append(node)
            append(node)
            client = await node.connect()
            (row,) = fetched(await client.call(fetch_request(("t", 0, 0)), FETCH, 12))
            assert (records_of(row), row.high_watermark) == (b"", 0)
            row = await world.followers[2].fetch()
            assert [header.base_offset for _, header in iter_headers(records_of(row))] == [0, 1]
            assert (row.high_watermark, row.log_start_offset, row.aborted_transactions) == (0, 0, None)
            assert row.preferred_read_replica == -1
            world.followers[3].offset = world.followers[2].offset = 1
            await world.followers[3].fetch(last_fetched_epoch=1)
            row = await world.followers[2].fetch(last_fetched_epoch=1)
            assert row.high_watermark == 0, "it is read before this fetch counts"
            assert (await world.followers[2].fetch(last_fetched_epoch=1)).high_watermark == 1
            (row,) = fetched(await client.call(fetch_request(("t", 0, 0)), FETCH, 12))
            assert [header.base_offset for _, header in iter_headers(records_of(row))] == [0]

    scenario()


def test_a_consumer_that_waits_hears_when_followers_have_it(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            client = await node.connect()
            client.ask(fetch_request(("t", 0, 0), max_wait_ms=WAIT_MS), FETCH, 12)
            await until(lambda: len(parked(node)) == 1)
            append(node)
            await settle()
            assert len(parked(node)) == 1
            for follower in world.followers.values():
                await follower.catch_up()
            _, response = await client.answer(FETCH, 12)
            assert [header.base_offset for _, header in iter_headers(records_of(fetched(response)[0]))] == [0]

    scenario()


def test_what_was_written_before_this_broker_led_wakes_consumers_when_it_is_committed(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            append(node)
            world.change(leader=2, leader_epoch=2)
            world.change(leader=1, leader_epoch=3)
            client = await node.connect()
            client.ask(fetch_request(("t", 0, 0), max_wait_ms=WAIT_MS), FETCH, 12)
            await until(lambda: len(parked(node)) == 1)
            for follower in world.followers.values():
                await follower.catch_up()
            _, response = await client.answer(FETCH, 12)
            assert [header.base_offset for _, header in iter_headers(records_of(fetched(response)[0]))] == [0]

    scenario()


# --- the checks of a follower's fetch, in their order ---


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"partition": 7}, 3),
        ({"current_leader_epoch": 1}, 74),
        ({"current_leader_epoch": 3}, 75),
        ({"last_fetched_epoch": 9}, 1),
        ({"last_fetched_epoch": 2, "fetch_offset": -1}, 1),
        ({"fetch_offset": 5}, 1),
        ({"fetch_offset": -1}, 1),
        ({}, 0),
    ],
)
def test_what_a_follower_is_refused(tmp_path, changed, code):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            world.change(leader_epoch=2)
            append(node)
            follower = world.followers[2]
            follower.leader_epoch = 2
            row = await follower.fetch(**changed, max_wait_ms=WAIT_MS)
            assert row.error_code == code
            assert row.current_leader.leader_id == (1 if code == 74 else -1)
            assert (world.known(2).end_offset >= 0) == (code == 0)

    scenario()


def test_a_broker_that_is_no_replica_is_refused_after_the_epochs(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            follower = world.followers[2]
            for node_id in (9, 1):
                follower.node_id = node_id
                assert (await follower.fetch()).error_code == 75
                assert (await follower.fetch(current_leader_epoch=-1)).error_code == 6
                assert (await follower.fetch(current_leader_epoch=0)).error_code == 74
            world.change(leader=2, leader_epoch=2)
            assert (await follower.fetch(current_leader_epoch=1)).error_code == 74
            row = await follower.fetch(current_leader_epoch=2)
            assert (row.error_code, row.current_leader.leader_id, row.current_leader.leader_epoch) == (6, 2, 2)

    scenario()


@pytest.mark.parametrize(("newer", "code"), [(-1, 6), (0, 0), (1, 0), (None, 0)])
def test_a_process_that_is_over_acknowledges_nothing(tmp_path, newer, code):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            follower = world.followers[2]
            follower.broker_epoch = -1 if newer is None else follower.broker_epoch + newer
            append(node)
            row = await follower.fetch(max_wait_ms=WAIT_MS)
            assert row.error_code == code
            assert (world.known(2).end_offset == 0) == (code == 0)

    scenario()


def test_a_diverging_follower_is_told_at_once_and_acknowledges_nothing(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            append(node)
            world.change(leader_epoch=5)
            append(node)
            follower = world.followers[2]
            follower.leader_epoch = 5
            row = await follower.fetch(fetch_offset=2, last_fetched_epoch=1, max_wait_ms=WAIT_MS)
            assert (row.error_code, records_of(row)) == (0, b"")
            assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (1, 1)
            row = await follower.fetch(fetch_offset=2, last_fetched_epoch=3, max_wait_ms=WAIT_MS)
            assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (1, 1)
            assert world.known(2).end_offset == -1

    scenario()


# --- waiting followers ---


def test_a_follower_that_waits_hears_of_data_elections_and_deletion(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            follower = world.followers[2]
            follower.ask(max_wait_ms=WAIT_MS)
            await until(lambda: len(parked(node)) == 1)
            append(node)
            assert len(records_of(await follower.answer())) > 0

            follower.ask(max_wait_ms=WAIT_MS, fetch_offset=1)
            await until(lambda: len(parked(node)) == 1)
            world.change(leader_epoch=2)
            assert (await follower.answer()).error_code == 74

            follower.leader_epoch = 2
            follower.ask(max_wait_ms=WAIT_MS, fetch_offset=1)
            await until(lambda: len(parked(node)) == 1)
            world.change(isr=(1,))
            await settle()
            assert len(parked(node)) == 1, "the same leader epoch: it goes on waiting"
            world.change(leader=3, leader_epoch=3)
            assert (await follower.answer()).error_code == 74

            world.change(leader=1, leader_epoch=4)
            follower.leader_epoch = 4
            follower.ask(max_wait_ms=WAIT_MS, fetch_offset=1)
            await until(lambda: len(parked(node)) == 1)
            await delete(node, "t")
            assert (await follower.answer()).error_code in (3, 100)

    scenario()


def test_a_follower_that_has_nothing_to_read_is_there_all_the_same(tmp_path):
    """In a session the partition is neither named nor read while nothing changes, and each request counts."""

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            follower = world.followers[2]
            client = follower._client
            follower.session = (0, 0)
            opened = await client.call(follower.request(), FETCH, 18)
            assert opened.session_id
            for epoch in range(1, 4):
                world.now_ms += LAG_MS - 1
                follower.session = (opened.session_id, epoch)
                told = await client.call(follower.request(names=False), FETCH, 18)
                assert (told.error_code, len(told.responses)) == (0, 0)
            assert world.known(2).caught_up_ms == world.now_ms
            append(node)
            world.partition.look_at_followers()
            assert world.proposed[-1][1].broker_ids == (1, 2), "3 was never heard of"

    scenario()


def test_a_replica_that_is_taken_away_is_refused_in_its_session(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            follower = world.followers[3]
            client = follower._client
            follower.session = (0, 0)
            opened = await client.call(follower.request(), FETCH, 18)
            world.change(replicas=(1, 2), isr=(1, 2))
            follower.session = (opened.session_id, 1)
            (row,) = fetched(await client.call(follower.request(names=False), FETCH, 18))
            assert row.error_code == 75

    scenario()


def test_sessions_of_followers_outlive_those_of_consumers(tmp_path):
    @on_loop
    async def scenario():
        settings = {"max.incremental.fetch.session.cache.slots": 1}
        async with running(tmp_path, settings) as node:
            world = await neighbourhood(node)
            consumer = await node.connect()
            request = fetch_request(("t", 0, 0), session_id=0, session_epoch=0)
            assert (await consumer.call(request, FETCH, 12)).session_id
            follower = world.followers[2]
            follower.session = (0, 0)
            opened = await follower._client.call(follower.request(), FETCH, 18)
            assert opened.session_id, "the consumer's has made room"
            assert not (await consumer.call(request, FETCH, 12)).session_id
            follower.session = (opened.session_id, 1)
            assert (await follower._client.call(follower.request(names=False), FETCH, 18)).error_code == 0

    scenario()


# --- joining and leaving ---


def test_a_follower_that_has_caught_up_joins(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node, isr=(1, 2))
            append(node)
            world.change(leader_epoch=2)
            world.followers[3].leader_epoch = 2
            await world.followers[3].fetch()
            assert world.proposed == [], "it lacks what was written before this epoch"
            await world.followers[3].catch_up()
            ((partition, change),) = world.proposed
            assert (change.broker_ids, change.joining) == ((1, 2, 3), 3)
            assert change.members[2].broker_epoch == world.followers[3].broker_epoch
            assert partition.isr == (1, 2)
            assert world.answer() is False
            assert set(partition.isr) == {1, 2, 3}
            assert partition.partition_epoch == change.partition_epoch + 1
            await world.followers[2].catch_up()
            assert partition.log.high_watermark == 1
            append(node)
            await world.followers[2].catch_up()
            assert partition.log.high_watermark == 1, "3 counts now"

    scenario()


@pytest.mark.parametrize(("code", "again", "pending"), [(107, False, False), (95, False, True), (41, True, True)])
def test_what_the_leader_makes_of_an_error(tmp_path, code, again, pending):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node, isr=(1, 2))
            await world.followers[3].catch_up()
            (_, change) = world.proposed[-1]
            assert world.answer(code) is again
            assert world.partition.is_pending(change) is pending
            await world.followers[3].catch_up()
            assert len(world.proposed) == (1 if pending else 2)
            world.change(isr=(1, 2))
            assert not world.partition.is_pending(world.proposed[-1][1])

    scenario()


def test_a_follower_that_is_gone_leaves_and_what_waited_is_acknowledged(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            for follower in world.followers.values():
                await follower.catch_up()
            world.now_ms += LAG_MS
            answer = await ask_produce(node)
            await until(lambda: waiting(node) == 1)
            await world.followers[2].catch_up()
            world.partition.look_at_followers()
            assert world.proposed == []
            world.now_ms += 1
            world.partition.look_at_followers()
            assert world.proposed[-1][1].broker_ids == (1, 2)
            world.partition.look_at_followers()
            assert (len(world.proposed), waiting(node)) == (1, 1), "until the controller has said so, it counts"
            world.answer()
            assert await answer() == 0

    scenario()


def test_a_broker_that_is_fenced_holds_nothing_back_any_more(tmp_path):
    """It was about to join. Nothing else would look at the partition again."""

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node, replicas=(1, 2), isr=(1,))
            await world.followers[2].catch_up()
            world.answer(107)
            answer = await ask_produce(node)
            await until(lambda: waiting(node) == 1)
            register(node, 2, fenced=True)
            world.partition.look_at_followers()
            assert await answer() == 0

    scenario()


# --- after an election ---


@pytest.mark.parametrize("version", [4, 5, 11])
def test_a_new_leader_does_not_say_what_is_latest_before_it_knows(tmp_path, version):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            append(node)
            for follower in world.followers.values():
                await follower.catch_up()
            append(node)
            world.change(leader=2, leader_epoch=2)
            world.change(leader=1, leader_epoch=3)
            client = await node.connect()

            async def look_up(timestamp, replica_id=-1):
                request = list_request(("t", 0, timestamp), replica_id=replica_id)
                (row,) = listed(await client.call(request, LIST_OFFSETS, version))
                return row.error_code, row.offset

            unknown = (78 if version >= 5 else 5, -1)
            assert await look_up(-1) == unknown
            assert await look_up(-2) == (0, 0), "where it begins is known"
            assert await look_up(0) == (0, 0), "and what lies below the high watermark"
            assert await look_up(1_700_000_000_000 + 10**9) == unknown
            assert await look_up(-1, replica_id=2) == (0, 2)
            for follower in world.followers.values():
                await follower.catch_up()
            assert await look_up(-1) == (0, 2)

    scenario()


# --- deleting ---


def test_records_are_deleted_on_all_replicas_that_live(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            world = await neighbourhood(node)
            append(node)
            append(node)
            for follower in world.followers.values():
                await follower.catch_up()
            client = await node.connect()

            def ask(offset, timeout_ms=30_000):
                row = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
                topic = delete_records.DeleteRecordsTopic(name="t", partitions=[row])
                client.ask(
                    delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms), DELETE_RECORDS, 2
                )

            async def told():
                _, response = await client.answer(DELETE_RECORDS, 2)
                (row,) = response.topics[0].partitions
                return row.error_code, row.low_watermark

            ask(1)
            deletions = node.broker.replicas.purgatory.deletions
            await until(lambda: len(deletions) == 1)
            for follower in world.followers.values():
                assert (await follower.fetch()).log_start_offset == 1
                follower.log_start_offset = 1
                await follower.catch_up()
            assert await told() == (0, 1)

            ask(2, timeout_ms=1)
            assert await told() == (7, 1)

            ask(2)
            await until(lambda: len(deletions) == 1)
            world.followers[2].log_start_offset = 2
            await world.followers[2].catch_up()
            register(node, 3, fenced=True)
            world.partition.look_at_followers()
            assert await told() == (0, 2), "a broker that is gone is not waited for"

            register(node, 3)
            ask(2)
            await until(lambda: len(deletions) == 1)
            world.change(leader=2, leader_epoch=2)
            assert await told() == (6, -1)
            assert len(deletions) == 0

    scenario()
