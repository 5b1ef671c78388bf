"""Quotas on real sockets, with a clock that the test moves: who waits, for how long, and what is told."""

import asyncio

import pytest

from kits.node.running import (
    FETCH,
    PRODUCE,
    batch,
    collector_of,
    fetch_request,
    fetched,
    produce_request,
    produced,
    records_of,
    running,
)
from kits.node.sockets import on_loop, settle, until
from kits.node.throttled import api_versions, frame_of, throttled_node
from twofold.wire import codec
from twofold.wire.apis import KEYS
from twofold.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from twofold.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from twofold.wire.messages.delete_topics import DeleteTopicsRequest
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest
from twofold.wire.messages.init_producer_id import InitProducerIdRequest
from twofold.wire.messages.metadata import MetadataRequest

API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = KEYS["ApiVersions"], KEYS["CreateTopics"], KEYS["DeleteTopics"]
CREATE_PARTITIONS, INIT_PRODUCER_ID = KEYS["CreatePartitions"], KEYS["InitProducerId"]
QUOTA_EXCEEDED = 89
TEST = {"client-id": "test"}
USER = {"user": "ANONYMOUS"}


def produce_of(size, acks=-1):
    """A Produce whose frame has exactly so many bytes."""
    value = size
    while True:
        request = produce_request(("t", 0, batch(b"x" * value)), acks=acks)
        length = len(codec.encode_request(request, PRODUCE, 7, 1, "test")) - 4
        if length == size:
            return request
        value -= length - size


def fetch_of(offset=0, **fields):
    return fetch_request(("t", 0, offset, 2**31 - 1), **fields)


@on_loop
async def _takes(tmp_path, sizes, waits):
    async with throttled_node(tmp_path) as node:
        await node.create("t")
        await node.limit(TEST, producer_byte_rate=10_000)
        client = await node.connect()
        found = []
        for size in sizes:
            response = await client.call(produce_of(size), PRODUCE, 7)
            assert [row.error_code for row in produced(response)] == [0]
            found.append(response.throttle_time_ms)
        assert found == waits
        assert node.muted_for_ms() == [wait for wait in waits if wait]


def test_frames_of_50_40_and_30_kb_at_10_kb_per_second_wait_0_0_and_2021_ms(tmp_path):
    """What Apache Kafka 4.3.1 said to the same frames: values of 50, 40 and 30 KB and what is around them."""
    _takes(tmp_path, (50_070, 40_070, 30_070), [0, 0, 2021])


def test_ten_seconds_of_a_quota_may_be_taken_at_once(tmp_path):
    _takes(tmp_path, (100_000,), [0])


def test_the_records_of_a_throttled_produce_are_appended(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=100)
            client = await node.connect()
            response = await client.call(produce_of(5000), PRODUCE, 7)
            assert response.throttle_time_ms == 40_000
            assert node.log("t").log_end_offset == 1

    scenario()


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_every_form_of_a_produce_answer_tells_the_wait(tmp_path, version):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=1)
            client = await node.connect()
            response = await client.call(produce_request(("t", 0, batch()), ("no", 0, batch())), PRODUCE, version)
            assert sorted(row.error_code for row in produced(response)) == [0, 3]
            assert response.throttle_time_ms > 1000

    scenario()


def test_a_muted_connection_is_read_on_when_its_wait_is_over_and_others_are_not_concerned(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=10_000)
            client = await node.connect()
            await client.call(produce_of(120_000), PRODUCE, 7)
            assert node.muted_for_ms() == [2000]
            client.ask(api_versions(), API_VERSIONS, 0)
            assert not await node.is_answered(client)
            node.advance(1.999)
            assert not await node.is_answered(client)
            node.advance(0.001)
            _, answer = await client.answer(API_VERSIONS, 0)
            assert answer.error_code == 0
            assert len(node.broker.server.mutes) == 0

    scenario()


def test_requests_that_were_read_already_wait_as_well(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=10_000)
            client = await node.connect()
            first = frame_of(produce_of(120_000), "Produce", 7)
            client.send_raw(first + first + first)
            _, answer = await client.answer(PRODUCE, 7)
            assert answer.throttle_time_ms == 2000
            assert not await node.is_answered(client)
            assert node.log("t").log_end_offset == 1
            node.advance(2)
            _, answer = await client.answer(PRODUCE, 7)
            assert node.log("t").log_end_offset == 2
            assert answer.throttle_time_ms == 14_000  # 240 KB are 24 s, of which 10 s are the burst

    scenario()


def test_a_quota_of_a_user_is_one_budget_for_its_clients_and_that_of_user_and_client_one_for_each(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(USER, producer_byte_rate=10_000)
            request = produce_of(60_000)
            waits = []
            for name in ("one", "two"):
                client = await node.connect()
                client.send_raw(frame_of(request, "Produce", 7, client_id=name))
                waits.append((await client.answer(PRODUCE, 7))[1].throttle_time_ms > 0)
            assert waits == [False, True]
            await node.limit(USER | {"client-id": None}, producer_byte_rate=10_000)
            for name in ("three", "four"):
                client = await node.connect()
                client.send_raw(frame_of(request, "Produce", 7, client_id=name))
                assert (await client.answer(PRODUCE, 7))[1].throttle_time_ms == 0

    scenario()


def test_a_quota_that_is_taken_away_binds_no_more(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=1)
            assert node.broker.quotas.enforced
            await node.limit(TEST, producer_byte_rate=None)
            assert not node.broker.quotas.enforced
            client = await node.connect()
            assert (await client.call(produce_of(120_000), PRODUCE, 7)).throttle_time_ms == 0

    scenario()


def test_a_quota_holds_after_a_restart(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=10_000)
        async with throttled_node(tmp_path) as node:
            client = await node.connect()
            assert (await client.call(produce_of(120_000), PRODUCE, 7)).throttle_time_ms == 2000

    scenario()


# --- acks=0 ---


def test_a_flood_without_acks_is_read_no_faster_than_its_quota_allows(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=10_000)
            client = await node.connect()
            frame = frame_of(produce_of(60_000, acks=0), "Produce", 7)
            for _ in range(200):
                client.send_raw(frame)
            await until(lambda: len(node.broker.server.mutes) == 1)
            assert not await node.is_answered(client)
            assert node.log("t").log_end_offset == 2
            assert node.broker.server.request_bytes < 8 * 1024 * 1024  # what was read before the mute, of 12 MB
            node.advance(2)
            await settle()
            assert node.log("t").log_end_offset == 3
            client.writer.transport.abort()

    scenario()


# --- fetch ---


def test_a_throttled_fetch_is_empty_and_the_next_one_is_full(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t", max_message_bytes=10_000_000)
            client = await node.connect()
            for _ in range(3):
                await client.call(produce_of(60_000), PRODUCE, 7)
            await node.limit(TEST, consumer_byte_rate=10_000)
            first = await client.call(fetch_of(), FETCH, 11)
            assert first.throttle_time_ms == 0
            assert 59_000 < len(records_of(fetched(first)[0])) <= 100_000
            second = await client.call(fetch_of(1), FETCH, 11)
            assert fetched(second) == [] and second.error_code == 0
            assert 1900 < second.throttle_time_ms < 2100
            node.clock.now_s += 9
            assert not await node.is_answered(client)
            node.advance(2)
            third = await client.call(fetch_of(1), FETCH, 11)
            assert third.throttle_time_ms == 0
            assert len(records_of(fetched(third)[0])) > 59_000

    scenario()


def test_an_answer_larger_than_the_whole_burst_is_given_to_a_reader_that_took_nothing(tmp_path):
    """Apache Kafka answers it with nothing for ever."""

    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            await client.call(produce_of(60_000), PRODUCE, 7)
            await node.limit(TEST, consumer_byte_rate=100)
            answer = await client.call(fetch_of(), FETCH, 11)
            assert len(records_of(fetched(answer)[0])) > 59_000
            assert answer.throttle_time_ms > 500_000

    scenario()


@pytest.mark.parametrize("version", [4, 7, 12, 17])
def test_a_session_goes_on_after_a_throttled_fetch(tmp_path, version):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            await client.call(produce_of(90_000), PRODUCE, 7)
            key = node.topic_id("t") if version >= 13 else "t"
            sessions = version >= 7
            opened = await client.call(
                fetch_request((key, 0, 0, 2**31 - 1), **({"session_epoch": 0} if sessions else {})), FETCH, version
            )
            await node.limit(TEST, consumer_byte_rate=1000)
            await client.call(produce_of(6_000), PRODUCE, 7)
            going_on = {"session_id": opened.session_id, "session_epoch": 1} if sessions else {}
            moved = fetch_request((key, 0, 1, 2**31 - 1), **going_on)
            full = await client.call(moved, FETCH, version)
            assert len(records_of(fetched(full)[0])) > 5_000 and full.throttle_time_ms == 0
            again = {"session_id": opened.session_id, "session_epoch": 2} if sessions else {}
            empty = await client.call(fetch_request((key, 0, 1, 2**31 - 1), **again), FETCH, version)
            assert (fetched(empty), empty.error_code) == ([], 0) and empty.throttle_time_ms > 0
            assert empty.session_id == opened.session_id
            node.advance(30)
            last = {"session_id": opened.session_id, "session_epoch": 3} if sessions else {}
            rows = () if sessions else ((key, 0, 1, 2**31 - 1),)
            full = await client.call(fetch_request(*rows, **last), FETCH, version)
            assert len(records_of(fetched(full)[0])) > 5_000

    scenario()


# --- request time ---


def test_the_time_that_requests_take_is_paid_with_one_second_at_most_and_told_in_every_answer(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.limit(TEST, request_percentage=0.001)
            ledger = node.broker.quotas
            now_s = ledger.now_s
            ticks = iter(range(10**6))
            ledger.now_s = lambda: now_s() + next(ticks) / 1000  # every look at the clock takes a millisecond
            for version in (1, 3):
                client = await node.connect()
                answer = await client.call(api_versions(), API_VERSIONS, version)
                assert answer.throttle_time_ms == 1000
            client = await node.connect()
            answer = await client.call(MetadataRequest(topics=[]), KEYS["Metadata"], 9)
            assert answer.throttle_time_ms == 1000
            assert len(node.broker.server.mutes) == 3

    scenario()


def test_the_time_of_a_request_that_waits_is_that_of_its_steps(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.limit(TEST, request_percentage=100)
            client = await node.connect()
            request = CreateTopicsRequest(topics=[new_topic("a", 1)], timeout_ms=30_000)
            answer = await client.call(request, CREATE_TOPICS, 7)
            assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)

    scenario()


# --- changes of topics ---


def new_topic(name, partitions):
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())


def test_changes_beyond_the_burst_are_refused_after_the_one_that_passes_it(tmp_path):
    """Of a rate of 1 and 11 samples of a second: 20 partitions pass, and overdraw the bucket by 9."""

    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.limit(TEST, controller_mutation_rate=1)
            client = await node.connect()
            request = CreateTopicsRequest(topics=[new_topic("a", 20), new_topic("b", 1)], timeout_ms=30_000)
            answer = await client.call(request, CREATE_TOPICS, 6)
            assert {row.name: row.error_code for row in answer.topics} == {"a": 0, "b": QUOTA_EXCEEDED}
            assert answer.throttle_time_ms == 9000
            assert node.muted_for_ms() == [9000]
            node.advance(9)
            request = CreateTopicsRequest(topics=[new_topic("b", 1)], timeout_ms=30_000)
            answer = await client.call(request, CREATE_TOPICS, 6)
            assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)

    scenario()


def test_older_versions_change_everything_and_their_clients_wait(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.limit(TEST, controller_mutation_rate=1)
            client = await node.connect()
            request = CreateTopicsRequest(topics=[new_topic("a", 20), new_topic("b", 1)], timeout_ms=30_000)
            answer = await client.call(request, CREATE_TOPICS, 5)
            assert [row.error_code for row in answer.topics] == [0, 0]
            assert answer.throttle_time_ms == 10_000
            assert node.muted_for_ms() == [10_000]

    scenario()


def test_deleted_and_added_partitions_are_paid_as_well(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("a", 20)
            await node.create("b", 1)
            await node.limit(TEST, controller_mutation_rate=1)
            client = await node.connect()
            await client.call(DeleteTopicsRequest(topics=(), topic_names=["a"], timeout_ms=30_000), DELETE_TOPICS, 5)
            grown = CreatePartitionsTopic(name="b", count=2, assignments=None)
            request = CreatePartitionsRequest(topics=[grown], timeout_ms=30_000, validate_only=False)
            refused = await client.call(request, CREATE_PARTITIONS, 3)
            assert (refused.results[0].error_code, refused.throttle_time_ms) == (QUOTA_EXCEEDED, 9000)
            node.advance(9)
            done = await client.call(request, CREATE_PARTITIONS, 3)
            assert (done.results[0].error_code, done.throttle_time_ms) == (0, 0)

    scenario()


# --- muted connections ---


def test_a_muted_connection_is_not_idle(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path, connections_max_idle_ms=1000) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=100)
            client = await node.connect()
            await client.call(produce_of(60_000), PRODUCE, 7)
            node.clock.now_s += 100
            sweep = node.broker.server._sweep
            assert sweep is not None
            sweep._close_idle()
            assert len(node.broker.server.mutes) == 1
            node.advance(1000)
            answer = await client.call(api_versions(), API_VERSIONS, 0)
            assert answer.error_code == 0

    scenario()


def test_a_stop_does_not_wait_for_muted_connections_and_answers_what_was_asked(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=100)
            client = await node.connect()
            frame = frame_of(produce_of(60_000), "Produce", 7)
            client.send_raw(frame + frame_of(api_versions(), "ApiVersions", 0))
            await client.answer(PRODUCE, 7)
            await until(lambda: len(node.broker.server.mutes) == 1)
            await node.broker.server.stop(10.0, lambda: None)
            _, answer = await client.answer(API_VERSIONS, 0)
            assert answer.error_code == 0
            assert await client.closed_by_peer()

    scenario()


def test_a_client_that_goes_away_while_it_is_muted_leaves_nothing(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=100)
            client = await node.connect()
            await client.call(produce_of(60_000), PRODUCE, 7)
            waiting = len(node.timers.pending)
            for connection in list(node.broker.server.connections):
                connection.abort()
            assert len(node.broker.server.mutes) == 0
            assert len(node.timers.pending) == waiting - 1

    scenario()


# --- new transactional ids ---


def test_new_transactional_ids_beyond_the_burst_are_given_and_paid_with_time(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path, {"quota.new.transactional.ids.rate": 0.001, "quota.window.num": 1}) as node:
            waits = []
            for name in ("a", "a", "b", "a"):
                client = await node.connect()
                request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
                find = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
                while (await client.call(find, KEYS["FindCoordinator"], 4)).coordinators[0].error_code:
                    await asyncio.sleep(0.01)
                while (answer := await client.call(request, INIT_PRODUCER_ID, 4)).error_code in (14, 15, 16):
                    await asyncio.sleep(0.01)
                assert answer.error_code == 0
                waits.append(answer.throttle_time_ms > 900_000)
            assert waits == [False, False, True, False]
            assert len(node.broker.server.mutes) == 1

    scenario()


# --- metrics ---


def test_metrics_tell_how_many_connections_wait_for_which_quota_without_names(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.create("t")
            await node.limit(TEST, producer_byte_rate=10_000)
            client = await node.connect()
            await client.call(produce_of(120_000), PRODUCE, 7)
            found = {family.name: family.samples for family in collector_of(node.broker).collect()}
            assert found["kafka_server_produce_queue_size"][0].value == 1
            assert found["kafka_server_fetch_queue_size"][0].value == 0
            (count,), (seconds,) = found["twofold_quota_throttles"], found["twofold_quota_throttled_seconds"]
            assert (count.labels, count.value) == ({"quota": "Produce"}, 1)
            assert (seconds.labels, seconds.value) == ({"quota": "Produce"}, 2)
            node.advance(2)
            found = {family.name: family.samples for family in collector_of(node.broker).collect()}
            assert found["kafka_server_produce_queue_size"][0].value == 0

    scenario()


# --- connections of an address ---


async def comes_in(node):
    """Whether a new connection of this address is answered; it stays open."""
    connections = node.broker.server.connections
    before = len(connections)
    client = await node.connect()
    await until(lambda: len(connections) == before + 1)
    if list(connections)[-1]._is_held:
        return False
    await client.call(api_versions(), API_VERSIONS, 0)
    return True


@pytest.mark.parametrize("address", ["127.0.0.1", None, "::ffff:127.0.0.1"])
def test_an_address_opens_connections_no_faster_than_its_quota_also_after_a_restart(tmp_path, address, caplog):
    """Held unread for a second, then closed, as Apache Kafka does."""

    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            await node.limit({"ip": address}, connection_creation_rate=1)
        async with throttled_node(tmp_path) as node:
            assert [await comes_in(node) for _ in range(11)] == [True] * 10 + [False]
            assert len(node.broker.server.connections) == 11
            assert node.timers.fire(1.0) == 1
            await until(lambda: len(node.broker.server.connections) == 10)
            found = {family.name: family.samples for family in collector_of(node.broker).collect()}
            assert [(one.labels, one.value) for one in found["twofold_quota_throttles"]] == [
                ({"quota": "Connection"}, 1)
            ]
            node.advance(1)
            assert await comes_in(node)
            await node.limit({"ip": address}, connection_creation_rate=None)
            assert all([await comes_in(node) for _ in range(20)])

    scenario()
    assert "its quota connection_creation_rate=1 allows" in caplog.text


def test_the_connections_of_other_addresses_are_not_limited_and_an_own_rate_wins_over_the_default(tmp_path):
    @on_loop
    async def scenario():
        async with throttled_node(tmp_path) as node:
            rate_of = node.broker.server.admission.rate_of
            assert rate_of("127.0.0.1") is None
            await node.limit({"ip": "10.0.0.1"}, connection_creation_rate=1)
            assert (rate_of("10.0.0.1"), rate_of("127.0.0.1")) == (1, None)
            await node.limit({"ip": None}, connection_creation_rate=1)
            await node.limit({"ip": "127.0.0.1"}, connection_creation_rate=1000)
            await node.limit({"ip": "::1"}, connection_creation_rate=7)
            assert (rate_of("10.0.0.2"), rate_of("127.0.0.1"), rate_of("0:0:0:0:0:0:0:1")) == (1, 1000, 7)
            assert all([await comes_in(node) for _ in range(30)])

    scenario()
