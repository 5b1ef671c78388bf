"""Fetch (key 1): every version, every bound, and long polls that wake when they should and not before."""

import asyncio
import uuid

import pytest

from kits.node.fetching import (
    WAIT_MS,
    WAIT_S,
    append,
    begin,
    delete,
    end,
    is_watched,
    lead_in,
    led_by_another,
    long_poll,
    offsets,
    parked,
    topic_key,
)
from kits.node.running import (
    FETCH,
    PRODUCE,
    batch,
    fetch_request,
    fetched,
    produce_request,
    produced,
    records_of,
    running,
)
from kits.node.sockets import on_loop, settle, until
from twofold.broker.api import fetch as fetch_api
from twofold.broker.network.authorizer import AllowAll
from twofold.broker.network.server import Server
from twofold.wire import codec
from twofold.wire.apis import APIS
from twofold.wire.messages import fetch

VERSIONS = range(APIS[FETCH].min_version, APIS[FETCH].max_version + 1)


def test_every_version_reads_what_was_written(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            client = await node.connect()
            sent = batch(b"a", b"b")
            await client.call(produce_request(("t", 0, sent)), PRODUCE, 9)
            for version in VERSIONS:
                key = topic_key(node, "t", version)
                response = await client.call(fetch_request((key, 0, 0), (key, 1, 0)), FETCH, version)
                assert (response.error_code, response.session_id) == (0, 0)
                full, empty = fetched(response)
                assert records_of(full)[16:] == sent[16:]
                assert (full.partition_index, full.error_code, full.high_watermark) == (0, 0, 2)
                assert full.last_stable_offset == 2
                assert full.log_start_offset == (0 if version >= 5 else -1)
                assert full.aborted_transactions is None
                assert full.preferred_read_replica == -1
                assert (empty.partition_index, empty.error_code, empty.high_watermark) == (1, 0, 0)
                assert records_of(empty) == b""
                topic = response.responses[0]
                assert (topic.topic_id if version >= 13 else topic.topic) == key

    scenario()


def test_errors_of_a_partition_stand_in_its_row(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            append(node)
            client = await node.connect()
            request = fetch_request(("t", 0, 0), ("t", 5, 0), ("no", 0, 0), ("bad/name", 0, 0))
            rows = fetched(await client.call(request, FETCH, 12))
            assert [row.error_code for row in rows] == [0, 3, 3, 3]
            assert [row.high_watermark for row in rows] == [1, -1, -1, -1]
            assert rows[1].aborted_transactions == ()
            for offset in (-1, 2, 2**62):
                (row,) = fetched(await client.call(fetch_request(("t", 0, offset), max_wait_ms=WAIT_MS), FETCH, 12))
                assert (row.error_code, row.high_watermark, row.log_start_offset) == (1, -1, -1)
                assert row.aborted_transactions is None
            request = fetch_request((uuid.uuid4(), 0, 0), (node.topic_id("t"), 0, 0), (None, 0, 0))
            rows = fetched(await client.call(request, FETCH, 13))
            assert [row.error_code for row in rows] == [100, 0, 100]

    scenario()


def test_a_partition_that_is_not_here_does_not_end_the_wait_for_the_others(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            client = await node.connect()
            client.ask(long_poll(("t", 0, 0), ("t", 5, 0), ("no", 0, 0)), FETCH, 12)
            await until(lambda: bool(parked(node)))
            append(node)
            _, response = await client.answer(FETCH, 12)
            assert [(row.error_code, offsets(row)) for row in fetched(response)] == [(0, [0]), (3, []), (3, [])]
            response = await client.call(long_poll(("t", 5, 0), ("no", 0, 0)), FETCH, 12)
            assert [row.error_code for row in fetched(response)] == [3, 3], "there is nothing to wait for"

    scenario()


def test_leader_epochs_of_the_request_are_checked(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            node.log("t")
            partition = node.broker.replicas.leader("t", 0)
            lead_in(partition, 4)
            client = await node.connect()
            for version in range(9, VERSIONS[-1] + 1):
                key = topic_key(node, "t", version)
                for epoch, code in ((-1, 0), (4, 0), (3, 74), (5, 75)):
                    response = await client.call(fetch_request((key, 0, 0, 100, epoch)), FETCH, version)
                    (row,) = fetched(response)
                    assert row.error_code == code
            (row,) = fetched(await client.call(fetch_request(("t", 0, 0, 100, 3)), FETCH, 8))
            assert row.error_code == 0, "the field does not exist before version 9"

    scenario()


def test_a_partition_led_elsewhere_names_its_leader(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            led_by_another(node, "t")
            client = await node.connect()
            for version in VERSIONS:
                key = topic_key(node, "t", version)
                response = await client.call(fetch_request((key, 0, 0)), FETCH, version)
                (row,) = fetched(response)
                assert row.error_code == 6
                assert row.current_leader.leader_id == (9 if version >= 16 else -1)
                nodes = [(n.node_id, n.host, n.port) for n in response.node_endpoints]
                assert nodes == ([(9, *node.address)] if version >= 16 else [])

    scenario()


def test_a_diverging_epoch_is_told(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            partition = node.broker.replicas.leader("t", 0)
            append(node)
            lead_in(partition, 3)
            append(node)
            client = await node.connect()

            async def row(offset, last_epoch):
                request = fetch_request(("t", 0, offset, 1000, -1, last_epoch), max_wait_ms=WAIT_MS, min_bytes=10**6)
                (found,) = fetched(await client.call(request, FETCH, 12))
                return found

            first = partition.log.epoch_for_offset(0)
            diverging = await row(2, first)
            assert (diverging.error_code, bytes(diverging.records)) == (0, b"")
            assert (diverging.diverging_epoch.epoch, diverging.diverging_epoch.end_offset) == (first, 1)
            assert diverging.high_watermark == 2
            assert (await row(0, 99)).error_code == 1, "an epoch that is yet to come"

    scenario()


@pytest.mark.parametrize("level", [2, -1, 127])
def test_an_unknown_isolation_level_fails_every_partition(tmp_path, level):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            client = await node.connect()
            for version in VERSIONS:
                key = topic_key(node, "t", version)
                request = fetch_request((key, 0, 0), (key, 1, 0), isolation_level=level)
                response = await client.call(request, FETCH, version)
                if version >= 7:
                    assert response.error_code == -1
                if version < 13:
                    assert [row.error_code for row in fetched(response)] == [-1, -1]

    scenario()


def test_negative_sizes_fail_the_partition(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            client = await node.connect()
            rows = fetched(await client.call(fetch_request(("t", 0, 0, -5), ("t", 1, 0)), FETCH, 12))
            assert [row.error_code for row in rows] == [-1, 0]
            rows = fetched(await client.call(fetch_request(("t", 0, 0), ("t", 1, 0), max_bytes=-1), FETCH, 12))
            assert [row.error_code for row in rows] == [-1, -1]

    scenario()


def test_a_replica_id_is_no_replica_here(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            for version in VERSIONS:
                key = topic_key(node, "t", version)
                if version >= 15:
                    request = fetch_request((key, 0, 0), replica_state=fetch.ReplicaState(replica_id=2))
                else:
                    request = fetch_request((key, 0, 0), replica_id=2)
                (row,) = fetched(await client.call(request, FETCH, version))
                assert row.error_code == 6

    scenario()


def test_the_same_partition_twice_is_read_once_by_the_last_entry(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            append(node)
            append(node)
            client = await node.connect()
            response = await client.call(fetch_request(("t", 0, 0), ("t", 1, 0), ("t", 0, 1)), FETCH, 12)
            first, second = fetched(response)
            assert (first.partition_index, offsets(first)) == (0, [1])
            assert second.partition_index == 1

    scenario()


def test_the_first_batch_comes_whatever_its_size_and_no_more_than_the_limits(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 3)
            for partition in range(3):
                for _ in range(5):
                    append(node, "t", partition, bytes(1000))
            size = len(batch(bytes(1000)))
            client = await node.connect()

            async def sizes(*rows, max_bytes):
                request = fetch_request(*rows, max_bytes=max_bytes)
                return [len(records_of(row)) // size for row in fetched(await client.call(request, FETCH, 12))]

            every = [("t", n, 0, 3 * size) for n in range(3)]
            assert await sizes(*every, max_bytes=10**6) == [3, 3, 3]
            assert await sizes(*every, max_bytes=5 * size) == [3, 2, 0]
            assert await sizes(*every, max_bytes=1) == [1, 0, 0]
            assert await sizes(*every, max_bytes=0) == [1, 0, 0]
            assert await sizes(("t", 0, 0, 1), ("t", 1, 0, 1), max_bytes=10**6) == [1, 0]
            assert await sizes(("t", 0, 5, 1), ("t", 1, 0, 1), max_bytes=10**6) == [0, 1], "nothing was found before"

    scenario()


def test_an_answer_never_holds_much_more_than_its_limit_however_much_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(Server, "max_response_bytes", lambda self: 10_000)

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            for partition in range(2):
                for _ in range(30):
                    append(node, "t", partition, bytes(1000))
            client = await node.connect()
            request = fetch_request(
                ("t", 0, 0, 10**9), ("t", 1, 0, 10**9), max_bytes=10**9, min_bytes=10**9, max_wait_ms=60_000
            )
            rows = fetched(await client.call(request, FETCH, 12))
            assert 9_000 <= sum(len(records_of(row)) for row in rows) <= 10_000

    scenario()


def test_read_committed_stops_at_the_last_stable_offset_and_names_the_aborted(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            append(node)
            begin(node, 7)
            append(node)

            async def row(level, offset=0, version=12):
                request = fetch_request((topic_key(node, "t", version), 0, offset), isolation_level=level)
                (found,) = fetched(await client.call(request, FETCH, version))
                assert found.error_code == 0
                return found

            plain = await row(0)
            assert (offsets(plain), plain.high_watermark, plain.last_stable_offset) == ([0, 1, 2], 3, 1)
            assert plain.aborted_transactions is None
            committed = await row(1)
            assert (offsets(committed), committed.high_watermark, committed.last_stable_offset) == ([0], 3, 1)
            assert list(committed.aborted_transactions) == []
            assert offsets(await row(1, 1)) == []
            assert offsets(await row(1, 3)) == [], (
                "between the stable offset and the end there is nothing, and no error"
            )
            end(node, 7, commit=False)
            for version in VERSIONS:
                done = await row(1, 0, version)
                assert (offsets(done), done.last_stable_offset) == ([0, 1, 2, 3], 4)
                aborted = [(entry.producer_id, entry.first_offset) for entry in done.aborted_transactions]
                assert aborted == [(7, 1)]
            assert (await row(0)).aborted_transactions is None

    scenario()


def test_topics_that_may_not_be_read_are_refused_alone(tmp_path):
    class NoSecrets(AllowAll):
        def authorize(self, context, operation, resource_type, resource_name, *, quiet=False):
            return resource_name != "secret"

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("secret")
            await node.create("t")
            node.broker.core.authorizer = NoSecrets()
            client = await node.connect()
            rows = fetched(await client.call(fetch_request(("secret", 0, 0), ("t", 0, 0)), FETCH, 12))
            assert [row.error_code for row in rows] == [29, 0]

    scenario()


# --- long polls ---


@pytest.mark.parametrize("version", VERSIONS)
def test_a_long_poll_is_answered_by_the_append_it_waits_for(tmp_path, version):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 2)
            client = await node.connect()
            key = topic_key(node, "t", version)
            client.ask(long_poll((key, 0, 0), (key, 1, 0)), FETCH, version)
            await until(lambda: bool(parked(node)))
            append(node, "t", 1)
            _, response = await client.answer(FETCH, version)
            first, second = fetched(response)
            assert (offsets(first), first.high_watermark) == ([], 0)
            assert (offsets(second), second.high_watermark) == ([0], 1)
            assert not parked(node)
            assert not any(timer.delay_s == WAIT_S for timer in node.timers.pending), "its timer is gone too"

    scenario()


def test_a_long_poll_waits_for_exactly_min_bytes(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 2)
            size = len(batch())
            append(node, "t", 0)
            client = await node.connect()
            client.ask(long_poll(("t", 0, 0), ("t", 1, 0), min_bytes=4 * size), FETCH, 12)
            await until(lambda: bool(parked(node)))
            append(node, "t", 1)
            append(node, "t", 1)
            await settle()
            assert parked(node), f"{3 * size} bytes are there, {4 * size} are wanted"
            append(node, "t", 0)
            _, response = await client.answer(FETCH, 12)
            assert [offsets(row) for row in fetched(response)] == [[0, 1], [0, 1]]

    scenario()


def test_bytes_beyond_a_partitions_limit_do_not_count(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 2)
            size = len(batch())
            client = await node.connect()
            client.ask(long_poll(("t", 0, 0, size), ("t", 1, 0, size), min_bytes=2 * size), FETCH, 12)
            await until(lambda: bool(parked(node)))
            for _ in range(5):
                append(node, "t", 0)
            await settle()
            assert parked(node)
            append(node, "t", 1)
            _, response = await client.answer(FETCH, 12)
            assert [offsets(row) for row in fetched(response)] == [[0], [0]]

    scenario()


def test_a_long_poll_is_answered_when_its_time_is_up(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 2)
            append(node, "t", 0)
            client = await node.connect()
            client.ask(long_poll(("t", 0, 0), ("t", 1, 0), min_bytes=10_000), FETCH, 12)
            await until(lambda: bool(parked(node)))
            append(node, "t", 1)
            assert node.timers.fire(WAIT_S) == 1
            _, response = await client.answer(FETCH, 12)
            assert [offsets(row) for row in fetched(response)] == [[0], [0]], "with what is there by then"

    scenario()


def test_an_append_elsewhere_does_not_touch_a_parked_fetch(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 2)
            client = await node.connect()
            client.ask(long_poll(("t", 0, 0)), FETCH, 12)
            await until(lambda: bool(parked(node)))
            (fetch_,) = parked(node)
            woken = []
            fetch_._on_ready = lambda: woken.append(True)
            for _ in range(100):
                append(node, "t", 1)
            await settle()
            assert list(parked(node)) == [fetch_]
            assert not woken

    scenario()


def test_a_wake_up_reads_only_the_partitions_that_moved(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 50)
            client = await node.connect()
            client.ask(long_poll(*[("t", n, 0) for n in range(50)]), FETCH, 12)
            await until(lambda: bool(parked(node)))
            read = []
            original = fetch_api._Fetch._read_one

            def spy(self, entry, partition):
                read.append(partition.topic_partition.partition)
                original(self, entry, partition)

            fetch_api._Fetch._read_one = spy
            try:
                append(node, "t", 31)
                _, response = await client.answer(FETCH, 12)
            finally:
                fetch_api._Fetch._read_one = original
            assert read == [31]
            assert [offsets(row) for row in fetched(response)] == [[0] if n == 31 else [] for n in range(50)]

    scenario()


def test_appends_of_one_turn_are_answered_together(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 2)
            client = await node.connect()
            client.ask(long_poll(("t", 0, 0), ("t", 1, 0)), FETCH, 12)
            await until(lambda: bool(parked(node)))
            append(node, "t", 0)
            append(node, "t", 1)
            append(node, "t", 0)
            _, response = await client.answer(FETCH, 12)
            assert [offsets(row) for row in fetched(response)] == [[0, 1], [0]]

    scenario()


def test_read_committed_waits_for_the_marker_and_counts_what_it_uncovers(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            client, plain = await node.connect(), await node.connect()
            first = begin(node, 7)
            size = len(batch())
            client.ask(long_poll(("t", 0, first.base_offset), min_bytes=2 * size, isolation_level=1), FETCH, 12)
            await until(lambda: len(parked(node)) == 1)
            plain.ask(long_poll(("t", 0, 1)), FETCH, 12)
            await until(lambda: len(parked(node)) == 2)
            append(node)
            append(node)
            _, response = await plain.answer(FETCH, 12)
            assert offsets(fetched(response)[0]) == [1, 2]
            assert len(parked(node)) == 1, "the transaction is open, so nothing is stable yet"
            end(node, 7, commit=True)
            _, response = await client.answer(FETCH, 12)
            assert offsets(fetched(response)[0]) == [0, 1, 2, 3]

    scenario()


def test_one_of_two_transactions_ending_uncovers_only_what_lies_before_the_other(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            client = await node.connect()
            begin(node, 7)
            begin(node, 8)
            whole = node.log("t").size_bytes
            client.ask(long_poll(("t", 0, 0), min_bytes=whole, isolation_level=1), FETCH, 12)
            await until(lambda: bool(parked(node)))
            end(node, 7, commit=True)
            await settle()
            assert parked(node), "half of what is wanted is stable"
            end(node, 8, commit=True)
            _, response = await client.answer(FETCH, 12)
            assert offsets(fetched(response)[0]) == [0, 1, 2, 3]

    scenario()


def test_a_parked_fetch_hears_that_its_partition_is_gone(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 2)
            client = await node.connect()
            client.ask(long_poll(("t", 0, 0), ("t", 1, 0)), FETCH, 12)
            await until(lambda: bool(parked(node)))
            led_by_another(node, "t")
            _, response = await client.answer(FETCH, 12)
            assert [row.error_code for row in fetched(response)] == [6, 0]

    scenario()


@pytest.mark.parametrize("version", range(4, 19))
def test_a_parked_fetch_hears_that_a_topic_was_deleted_and_has_the_rest_of_its_answer(tmp_path, version):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("gone")
            await node.create("kept")
            append(node, "gone")
            append(node, "kept")
            client = await node.connect()
            asked = [(topic_key(node, topic, version), 0, 1) for topic in ("gone", "kept")]
            client.ask(long_poll(*asked), FETCH, version)
            await until(lambda: bool(parked(node)))
            await delete(node, "gone")
            _, response = await client.answer(FETCH, version)
            gone, kept = fetched(response)
            assert (gone.error_code, gone.current_leader.leader_id) == (3, -1)
            assert (kept.error_code, kept.high_watermark) == (0, 1)
            rows = fetched(await client.call(fetch_request(*asked), FETCH, version))
            assert [row.error_code for row in rows] == [3 if version < 13 else 100, 0]

    scenario()


@pytest.mark.parametrize("version", [4, 12, 13, 18])
def test_a_parked_fetch_of_a_topic_that_is_deleted_and_made_anew_at_once_reads_nothing_of_the_new_one(
    tmp_path, version
):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            client = await node.connect()
            client.ask(long_poll((topic_key(node, "t", version), 0, 0)), FETCH, version)
            await until(lambda: bool(parked(node)))
            partition = node.broker.replicas.leader("t", 0)
            await asyncio.gather(delete(node, "t"), node.create("t"))
            append(node)
            assert node.broker.replicas.leader("t", 0) is not partition
            _, response = await client.answer(FETCH, version)
            assert [row.error_code for row in fetched(response)] == [3]

    scenario()


def test_a_client_that_goes_away_leaves_nothing_parked(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            client = await node.connect()
            client.ask(long_poll(("t", 0, 0)), FETCH, 12)
            await until(lambda: bool(parked(node)))
            client.close()
            await until(lambda: not parked(node))
            assert not any(timer.delay_s == WAIT_S for timer in node.timers.pending)
            assert not is_watched(node, "t", 0)
            append(node)

    scenario()


def test_nothing_waits_without_partitions_or_time_or_wish(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            client = await node.connect()
            for request in (
                long_poll(),
                fetch_request(("t", 0, 0), max_wait_ms=0),
                fetch_request(("t", 0, 0), max_wait_ms=-1),
                long_poll(("t", 0, 0), min_bytes=0),
                long_poll(("t", 0, 0), min_bytes=-1),
            ):
                assert (await client.call(request, FETCH, 12)).error_code == 0

    scenario()


def test_stopping_answers_long_polls(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            client.ask(fetch_request(("t", 0, 0), max_wait_ms=2**31 - 1), FETCH, 12)
            await until(lambda: bool(parked(node)))
            stopping = asyncio.ensure_future(node.broker.server.stop(10, node.broker.replicas.purgatory.answer_fetches))
            _, response = await client.answer(FETCH, 12)
            assert [row.error_code for row in fetched(response)] == [0]
            assert await client.closed_by_peer()
            await stopping

    scenario()


def test_a_produce_over_the_wire_wakes_a_reader_on_another_connection(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            reader, writer = await node.connect(), await node.connect()
            for offset in range(50):
                reader.ask(fetch_request(("t", 0, offset), max_wait_ms=20_000), FETCH, 12)
                response = await writer.call(produce_request(("t", 0, batch())), PRODUCE, 9)
                assert produced(response)[0].base_offset == offset
                _, response = codec.decode_response(FETCH, 12, await reader.receive())
                assert offsets(fetched(response)[0]) == [offset]

    scenario()
