"""Incremental fetch sessions (KIP-227) as they are served: every version, long polls, topics that go and come."""

import asyncio
import uuid

import pytest

from kits.node.fetching import WAIT_MS, append, begin, delete, end, is_watched, offsets, parked, topic_key
from kits.node.running import FETCH, batch, fetch_request, fetched, running, scraper_of
from kits.node.sockets import on_loop, settle, until
from twofold.broker.network.authorizer import AllowAll
from twofold.wire.messages.fetch import ForgottenTopic

SESSION_VERSIONS = range(7, 19)


class Asker:
    """A session over a connection."""

    def __init__(self, client, version=12):
        self.client, self.version = client, version
        self.id, self.epoch = 0, 0

    def ask(self, *rows, forget=(), **fields):
        topics = [
            ForgottenTopic(
                topic=key if isinstance(key, str) else "", topic_id=None if isinstance(key, str) else key,
                partitions=indexes,
            )
            for key, indexes in forget
        ]  # fmt: skip
        request = fetch_request(
            *rows, session_id=self.id, session_epoch=self.epoch, forgotten_topics_data=topics, **fields
        )
        self.client.ask(request, FETCH, self.version)

    async def answer(self):
        _, response = await self.client.answer(FETCH, self.version)
        if response.error_code == 0 and self.epoch >= 0:
            self.id = response.session_id
            self.epoch = self.epoch + 1 if self.id else 0
        return response

    async def rows(self, *rows, **fields):
        self.ask(*rows, **fields)
        response = await self.answer()
        assert response.error_code == 0
        return [(row.partition_index, row.error_code, offsets(row)) for row in fetched(response)]


@pytest.mark.parametrize("version", SESSION_VERSIONS)
def test_an_answer_has_only_what_moved(tmp_path, version):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 3)
            key = topic_key(node, "t", version)
            session = Asker(await node.connect(), version)
            assert await session.rows(*[(key, n, 0) for n in range(3)]) == [(n, 0, []) for n in range(3)]
            assert session.id != 0
            assert await session.rows() == []
            append(node, "t", 1)
            assert await session.rows() == [(1, 0, [0])]
            assert await session.rows() == [(1, 0, [0])], "until the client moves on"
            assert await session.rows((key, 1, 1)) == []
            append(node, "t", 2)
            append(node, "t", 0)
            assert await session.rows(forget=[(key, [2])]) == [(0, 0, [0])]
            assert len(node.broker.fetch_sessions) == 1

    scenario()


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [(0, -1, 0), (5, -1, 0), (5, 0, 0), (0, 0, 0), (0, 1, 70), (5, 1, 70), (5, 2**31 - 1, 70), (5, -2, 70)],
)
def test_sessions_that_do_not_exist(tmp_path, session_id, epoch, code):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            for version in SESSION_VERSIONS:
                request = fetch_request(
                    (topic_key(node, "t", version), 0, 0), session_id=session_id, session_epoch=epoch
                )
                response = await client.call(request, FETCH, version)
                assert response.error_code == code
                assert (response.session_id != 0) == (epoch == 0)
                assert len(fetched(response)) == (0 if code else 1)

    scenario()


def test_versions_without_sessions_open_none(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            for version in (4, 5, 6):
                await client.call(fetch_request(("t", 0, 0)), FETCH, version)
            assert len(node.broker.fetch_sessions) == 0

    scenario()


def test_a_full_cache_answers_without_a_session(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, {"max.incremental.fetch.session.cache.slots": 1}) as node:
            await node.create("t")
            first, second = Asker(await node.connect()), Asker(await node.connect())
            await first.rows(("t", 0, 0))
            assert first.id != 0
            assert await second.rows(("t", 0, 0)) == [(0, 0, [])]
            assert (second.id, second.epoch) == (0, 0)

    scenario()


def test_a_long_poll_in_a_session_is_woken_by_a_partition_that_was_quiet(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 50)
            session = Asker(await node.connect())
            await session.rows(*[("t", n, 0) for n in range(50)])
            for round_ in range(3):
                session.ask(max_wait_ms=WAIT_MS)
                await until(lambda: bool(parked(node)))
                append(node, "t", 31)
                response = await session.answer()
                assert [(row.partition_index, offsets(row)) for row in fetched(response)] == [(31, [round_])]
                await session.rows(("t", 31, round_ + 1))
            session.ask(max_wait_ms=WAIT_MS)
            await until(lambda: bool(parked(node)))
            node.timers.fire(WAIT_MS / 1000)
            assert fetched(await session.answer()) == []

    scenario()


def test_quiet_partitions_are_not_read(tmp_path):
    from twofold.broker.api import fetch as fetch_api

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 20)
            session = Asker(await node.connect())
            await session.rows(*[("t", n, 0) for n in range(20)])
            append(node, "t", 7)
            read = []
            original = fetch_api._Fetch._read_one

            def spy(self, entry, partition):
                read.append(partition.topic_partition.partition)
                original(self, entry, partition)

            fetch_api._Fetch._read_one = spy
            try:
                await session.rows()
            finally:
                fetch_api._Fetch._read_one = original
            assert read == [7]

    scenario()


def test_what_did_not_fit_comes_with_the_next_answer_although_nothing_moved(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 3)
            session = Asker(await node.connect())
            await session.rows(*[("t", n, 0) for n in range(3)])
            for n in range(3):
                append(node, "t", n, bytes(1000))
            size = len(batch(bytes(1000)))
            seen: list[int] = []
            offset: dict[int, int] = {}
            for _ in range(3):
                rows = await session.rows(*[("t", n, at) for n, at in offset.items()], max_bytes=size)
                full = [n for n, _, found in rows if found]
                seen += full
                offset = dict.fromkeys(full, 1)
            assert sorted(seen) == [0, 1, 2]

    scenario()


def test_a_start_of_a_log_that_moves_is_told(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            append(node)
            append(node)
            session = Asker(await node.connect())
            await session.rows(("t", 0, 2), ("t", 1, 0))
            assert await session.rows() == []
            node.log("t").advance_log_start(1)
            session.ask()
            (row,) = fetched(await session.answer())
            assert (row.partition_index, row.log_start_offset) == (0, 1)
            assert await session.rows() == []

    scenario()


def test_a_change_of_the_isolation_level_looks_again_at_what_was_quiet(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            begin(node, 7)
            session = Asker(await node.connect())
            assert await session.rows(("t", 0, 0), isolation_level=1) == [(0, 0, [])]
            assert await session.rows(isolation_level=1) == []
            assert await session.rows(isolation_level=0) == [(0, 0, [0])]
            assert await session.rows(isolation_level=1) == []
            end(node, 7, commit=True)
            assert await session.rows(isolation_level=1) == [(0, 0, [0, 1])]

    scenario()


@pytest.mark.parametrize("version", [12, 13, 18])
def test_a_topic_that_is_deleted_and_made_anew_in_a_session(tmp_path, version):
    """By name the session goes on with the new topic. By id it is told first that the topic is gone (3), then that
    another has its name (103)."""

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            session = Asker(await node.connect(), version)
            await session.rows((topic_key(node, "t", version), 0, 0))
            await delete(node, "t")
            assert await session.rows() == [(0, 3, [])]
            await node.create("t")
            append(node)
            assert await session.rows() == [(0, 0, [0]) if version < 13 else (0, 103, [])]

    scenario()


def test_an_unknown_topic_id_stays_unknown_until_it_is_created(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            session = Asker(await node.connect(), 13)
            for _ in range(3):
                assert await session.rows(*([] if session.id else [(uuid.uuid4(), 0, 0)])) == [(0, 100, [])]

    scenario()


def test_an_epoch_that_is_asked_twice_is_refused_also_while_the_first_waits(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            session = Asker(await node.connect())
            await session.rows(("t", 0, 0))
            session.ask(max_wait_ms=WAIT_MS)
            await until(lambda: len(parked(node)) == 1)
            other = await node.connect()
            again = fetch_request(session_id=session.id, session_epoch=1)
            assert (await other.call(again, FETCH, 12)).error_code == 71
            other.ask(fetch_request(session_id=session.id, session_epoch=2, max_wait_ms=WAIT_MS), FETCH, 12)
            first = await session.answer()
            assert (first.error_code, first.session_id, fetched(first)) == (71, session.id, [])
            append(node)
            _, second = await other.answer(FETCH, 12)
            assert [offsets(row) for row in fetched(second)] == [[0]]

    scenario()


@pytest.mark.parametrize("how", ["final", "anew", "forget", "forget all", "error"])
def test_a_session_that_ends_sits_on_no_partition(tmp_path, how):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t", 2)
            session = Asker(await node.connect())
            await session.rows(("t", 0, 0), ("t", 1, 0))
            session.ask(max_wait_ms=WAIT_MS)
            await until(lambda: bool(parked(node)))
            node.timers.fire(WAIT_MS / 1000)
            await session.answer()
            assert all(is_watched(node, "t", n) for n in range(2))
            if how == "final":
                session.epoch = -1
            elif how == "anew":
                session.epoch = 0
            forget = {"forget": [("t", [0])], "forget all": [("t", [0, 1])]}.get(how, [])
            await session.rows(*([("t", 0, 99)] if how == "error" else []), forget=forget)
            watched = [is_watched(node, "t", n) for n in range(2)]
            assert watched == [False, how in ("forget", "error")]

    scenario()


def test_a_session_that_is_ended_elsewhere_answers_the_fetch_that_waits_in_it(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            session = Asker(await node.connect())
            await session.rows(("t", 0, 0))
            session.ask(max_wait_ms=WAIT_MS)
            await until(lambda: bool(parked(node)))
            other = await node.connect()
            await other.call(fetch_request(session_id=session.id, session_epoch=-1), FETCH, 12)
            assert fetched(await session.answer()) == []
            session.ask()
            assert (await session.answer()).error_code == 70

    scenario()


def test_a_client_that_goes_away_leaves_no_records_in_its_session(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, manual_timers=True) as node:
            await node.create("t")
            session = Asker(await node.connect())
            await session.rows(("t", 0, 0))
            append(node, "t", 0, bytes(1000))
            session.ask(max_wait_ms=WAIT_MS, min_bytes=10**6)
            await until(lambda: bool(parked(node)))
            (kept,) = node.broker.fetch_sessions
            (entry,) = kept.partitions.values()
            assert entry.row is not None and len(entry.row.records or b"") > 1000
            session.client.close()
            await until(lambda: not parked(node))
            await settle()
            assert entry.row is None
            session.client = await node.connect()
            session.epoch += 1
            assert await session.rows() == [(0, 0, [0])]

    scenario()


def test_topics_that_may_not_be_read_any_more_are_refused_in_a_session(tmp_path):
    class NoSecrets(AllowAll):
        def authorize(self, context, operation, resource_type, resource_name, *, quiet=False):
            return resource_name != "secret"

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("secret")
            await node.create("t")
            session = Asker(await node.connect())
            await session.rows(("secret", 0, 0), ("t", 0, 0))
            assert await session.rows() == []
            allowed = node.broker.core.authorizer
            node.broker.core.authorizer = NoSecrets()
            append(node, "secret")
            assert await session.rows() == [(0, 29, [])]
            node.broker.core.authorizer = allowed
            assert await session.rows() == [(0, 0, [0])]

    scenario()


def test_sessions_are_counted(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, {"max.incremental.fetch.session.cache.slots": 2}) as node:
            await node.create("t", 3)
            for count in (3, 2):
                await Asker(await node.connect()).rows(*[("t", n, 0) for n in range(count)])
            page = (await scraper_of(node.broker).page()).decode()
            for line in (
                "kafka_server_fetchsessioncache_numincrementalfetchsessions 2.0",
                "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached 5.0",
                "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total 0.0",
            ):
                assert line in page

    scenario()


def test_a_produce_wakes_a_session_of_another_connection(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 2)
            session = Asker(await node.connect())
            await session.rows(("t", 0, 0), ("t", 1, 0))
            for offset in range(20):
                session.ask(("t", 0, offset), max_wait_ms=20_000)
                await asyncio.sleep(0)
                append(node)
                response = await session.answer()
                assert [offsets(row) for row in fetched(response)] == [[offset]]

    scenario()


def test_our_consumer_keeps_a_session_where_it_reads_many_partitions(tmp_path):
    from twofold.client import Consumer, TopicPartition

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 40)
            for n in range(40):
                append(node, "t", n)
            address = "{}:{}".format(*node.address)
            async with Consumer(
                bootstrap_servers=address, auto_offset_reset="earliest", fetch_max_wait_ms=50
            ) as consumer:
                consumer.assign([TopicPartition("t", n) for n in range(40)])
                seen: list[tuple[int, int]] = []

                async def read(count):
                    while len(seen) < count:
                        seen.extend((record.partition, record.offset) for record in await consumer.poll(5_000))

                await read(40)
                for round_ in range(1, 4):
                    sessions = list(node.broker.fetch_sessions)
                    assert len(sessions) == 1
                    append(node, "t", round_)
                    await read(40 + 3 * round_ - 2)
                    append(node, "t", 17)
                    node.broker.fetch_sessions._remove(sessions[0])
                    append(node, "t", 39)
                    await read(40 + 3 * round_)
                consumer.assign([TopicPartition("t", 0)])
                append(node, "t", 0)
                await read(50)
            assert sorted(seen) == sorted(
                [(n, 0) for n in range(40)]
                + [(n, 1) for n in (0, 1, 2, 3)]
                + [(n, k) for n in (17, 39) for k in (1, 2, 3)]
            )

    scenario()
