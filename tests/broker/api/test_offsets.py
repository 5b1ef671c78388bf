"""ListOffsets (key 2) and OffsetForLeaderEpoch (key 23) in every version."""

import pytest

from kits.node.fetching import append, begin, end, lead_in, led_by_another
from kits.node.running import LIST_OFFSETS, batch, list_request, listed, running
from kits.node.sockets import on_loop
from twofold.broker.network.authorizer import AllowAll
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.apis import APIS, KEYS
from twofold.wire.messages import offset_for_leader_epoch as epochs

OFFSET_FOR_LEADER_EPOCH = KEYS["OffsetForLeaderEpoch"]
VERSIONS = range(APIS[LIST_OFFSETS].min_version, APIS[LIST_OFFSETS].max_version + 1)
START = 1_700_000_000_000  # the timestamp of the first record of every batch here


async def look_up(client, *rows, version=11, **fields):
    found = listed(await client.call(list_request(*rows, **fields), LIST_OFFSETS, version))
    return [(row.error_code, row.offset, row.timestamp) for row in found]


def test_every_version_finds_earliest_latest_and_times(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            append(node, "t", 0, b"a", b"b", b"c")
            client = await node.connect()
            for version in VERSIONS:
                assert await look_up(client, ("t", 0, -1), version=version) == [(0, 3, -1)]
                assert await look_up(client, ("t", 0, -2), version=version) == [(0, 0, -1)]
                assert await look_up(client, ("t", 0, START + 1), version=version) == [(0, 1, START + 1)]
                assert await look_up(client, ("t", 0, 0), version=version) == [(0, 0, START)]
                assert await look_up(client, ("t", 0, START + 9), version=version) == [(0, -1, -1)]

    scenario()


FIRST_VERSIONS = {-3: 7, -4: 8, -5: 9, -6: 11}
ANSWERS = {-3: (0, 2, START + 2), -4: (0, 0, -1), -5: (0, -1, -1), -6: (0, -1, -1)}


@pytest.mark.parametrize("timestamp", FIRST_VERSIONS)
def test_special_timestamps_are_unsupported_before_their_version(tmp_path, timestamp):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            append(node, "t", 0, b"a", b"b", b"c")
            client = await node.connect()
            for version in VERSIONS:
                known = version >= FIRST_VERSIONS[timestamp]
                expected = ANSWERS[timestamp] if known else (35, -1, -1)
                assert await look_up(client, ("t", 0, timestamp), version=version) == [expected]
                assert await look_up(client, ("t", 0, -7), version=version) == [(35, -1, -1)]

    scenario()


def test_an_empty_partition_has_a_latest_offset_and_nothing_else(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t", 5)
            client = await node.connect()
            rows = [("t", n, timestamp) for n, timestamp in enumerate((-1, -2, -3, 0, START))]
            assert await look_up(client, *rows) == [(0, 0, -1), (0, 0, -1), (0, -1, -1), (0, -1, -1), (0, -1, -1)]

    scenario()


def test_isolation_bounds_what_is_found_and_other_replica_ids_see_all(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            append(node)
            begin(node, 7)
            assert await look_up(client, ("t", 0, -1)) == [(0, 2, -1)]
            for version in range(2, VERSIONS[-1] + 1):
                assert await look_up(client, ("t", 0, -1), isolation_level=1, version=version) == [(0, 1, -1)]
            assert await look_up(client, ("t", 0, -1), isolation_level=1, replica_id=-2) == [(0, 2, -1)]
            end(node, 7, commit=True)
            assert await look_up(client, ("t", 0, -1), isolation_level=1) == [(0, 3, -1)]

    scenario()


def test_a_time_beyond_the_stable_offset_is_not_found_by_read_committed(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            partition = node.broker.replicas.leader("t", 0)
            guard = partition.log.start_verification(ProducerId(7), ProducerEpoch(0), 0, True)
            data = batch(producer=(7, 0, 0), transactional=True, timestamp=START + 50)
            partition.append(data, 1, guard=guard)
            for timestamp in (START + 50, -3):
                assert await look_up(client, ("t", 0, timestamp)) == [(0, 0, START + 50)]
                assert await look_up(client, ("t", 0, timestamp), isolation_level=1) == [(0, -1, -1)]

    scenario()


def test_errors_stand_in_their_rows(tmp_path):
    class NoSecrets(AllowAll):
        def authorize(self, context, operation, resource_type, resource_name, *, quiet=False):
            return resource_name != "secret"

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            await node.create("other")
            await node.create("secret")
            led_by_another(node, "other")
            node.broker.core.authorizer = NoSecrets()
            client = await node.connect()
            rows = [("t", 0, -1), ("t", 1, -1), ("no", 0, -1), ("bad/name", 0, -1), ("other", 0, -1), ("secret", 0, -1)]
            for version in VERSIONS:
                found = await look_up(client, *rows, version=version)
                assert [code for code, _, _ in found] == [0, 3, 3, 3, 6, 29]
            for level in (2, -1):
                found = await look_up(client, ("t", 0, -1), ("no", 0, -1), isolation_level=level)
                assert [code for code, _, _ in found] == [-1, -1]
            found = await look_up(client, ("t", 0, -1), ("t", 0, -2), ("other", 0, -1))
            assert [code for code, _, _ in found] == [42, 6], "one row for what is named twice"

    scenario()


def test_leader_epochs_are_checked_and_told(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            append(node)
            lead_in(node.broker.replicas.leader("t", 0), 4)
            append(node)
            client = await node.connect()
            for version in range(4, VERSIONS[-1] + 1):
                for epoch, code in ((-1, 0), (4, 0), (3, 74), (5, 75)):
                    assert (await look_up(client, ("t", 0, -1, epoch), version=version))[0][0] == code
                request = list_request(("t", 0, -1))
                (latest,) = listed(await client.call(request, LIST_OFFSETS, version))
                (earliest,) = listed(await client.call(list_request(("t", 0, -2)), LIST_OFFSETS, version))
                assert (latest.leader_epoch, earliest.leader_epoch) == (4, 0)

    scenario()


def epoch_request(*rows, replica_id=-1):
    return epochs.OffsetForLeaderEpochRequest(
        replica_id=replica_id,
        topics=[
            epochs.OffsetForLeaderTopic(
                topic=topic,
                partitions=[
                    epochs.OffsetForLeaderPartition(partition=n, current_leader_epoch=current, leader_epoch=epoch)
                ],
            )
            for topic, n, current, epoch in rows
        ],
    )


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_end_of_an_epoch_is_where_the_next_known_one_began(tmp_path, version):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            partition = node.broker.replicas.leader("t", 0)
            for epoch, count in ((2, 3), (5, 1), (9, 2)):
                lead_in(partition, epoch)
                for _ in range(count):
                    append(node)
            client = await node.connect()

            async def end_of(epoch, current=-1, topic="t", number=0):
                request = epoch_request((topic, number, current, epoch))
                response = await client.call(request, OFFSET_FOR_LEADER_EPOCH, version)
                row = response.topics[0].partitions[0]
                return row.error_code, row.leader_epoch, row.end_offset

            assert await end_of(9) == (0, 9, 6)
            assert await end_of(2) == (0, 2, 3)
            assert await end_of(5) == (0, 5, 4)
            assert await end_of(7) == (0, 5, 4)
            assert await end_of(10) == (0, -1, -1)
            assert await end_of(-1) == (0, -1, -1)
            assert (await end_of(5, current=9))[0] == 0
            assert await end_of(5, current=8) == (74, -1, -1)
            assert await end_of(5, current=10) == (75, -1, -1)
            assert await end_of(5, topic="no") == (3, -1, -1)
            assert await end_of(5, number=3) == (3, -1, -1)

    scenario()
