"""The metadata log of a single voter: epochs, commits, crashes."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from kits.metadata.controller import DIRECTORY_ID, LOG_DIR, disk_runtime, new_disk, run
from twofold.metadata_log.errors import CorruptMetadataLog, CorruptQuorumState
from twofold.metadata_log.metadata_log import MAX_BATCH_BYTES, MetadataLog
from twofold.metadata_log.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from twofold.records.batch import iter_headers, iter_records
from twofold.records.control import ControlType, parse_control_key
from twofold.runtime.files import read_file
from twofold.runtime.sim import SimDisk
from twofold.wire.errors import KafkaError, NotController, RecordListTooLarge

DIRECTORY = f"{LOG_DIR}/__cluster_metadata-0"
SEGMENT = f"{DIRECTORY}/00000000000000000000.log"


class Node:
    """One life of a node."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.commits: list[int] = []
        self.failures: list[KafkaError] = []
        self.log = MetadataLog(
            disk_runtime(disk),
            LOG_DIR,
            node_id=1,
            directory_id=DIRECTORY_ID,
        )
        self.log.listen(self.commits.append, self.failures.append)

    async def start(self) -> list[bytes]:
        values = [value for batch in self.log.replay() for value in batch.values]
        await self.log.become_leader()
        await self.log.wait_committed(self.log.end_offset - 1)
        return values

    async def write(self, *values: bytes) -> int:
        offset = self.log.append(values, self.log.epoch)
        await self.log.wait_committed(offset)
        return offset


def batches(disk: SimDisk) -> list[tuple[int, int, bool, list[Any]]]:
    """(base offset, epoch, control, records) of what is in the file, read without the code under test."""
    data = read_file(disk, SEGMENT)
    return [
        (header.base_offset, header.leader_epoch, header.is_control, list(iter_records(data, position)))
        for position, header in iter_headers(data)
    ]


def story(body: Callable[[SimDisk], Coroutine[Any, Any, None]]) -> None:
    run(body(new_disk()))


def test_every_start_is_a_new_epoch_that_opens_with_a_leader_change():
    async def body(disk: SimDisk) -> None:
        for epoch in (1, 2, 3):
            node = Node(disk)
            await node.start()
            assert node.log.epoch == epoch
            await node.write(b"value")
            await node.log.close()
        found = batches(disk)
        assert [(epoch, control) for _, epoch, control, _ in found] == [
            (1, True), (1, False), (2, True), (2, False), (3, True), (3, False),
        ]  # fmt: skip
        kinds = [parse_control_key(record.key) for _, _, control, records in found if control for record in records]
        first = [ControlType.LEADER_CHANGE, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS]
        assert kinds == [*first, ControlType.LEADER_CHANGE, ControlType.LEADER_CHANGE]

    story(body)


def test_the_first_batch_is_that_of_kafka():
    async def body(disk: SimDisk) -> None:
        await Node(disk).start()
        values = [record.value.hex() for record in batches(disk)[0][3]]
        assert values[0] == "00000000000102000000010002000000010000"
        assert values[1] == "0000000100"
        voter = "00000001" + DIRECTORY_ID.hex + "01" + "0000000100" + "00"
        assert values[2] == "000002" + voter + "00"

    story(body)


def test_the_quorum_state_is_kafkas_json_and_written_before_the_epoch_is_used():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.log.become_leader()
        assert json.loads(read_file(disk, f"{DIRECTORY}/quorum-state")) == {
            "leaderId": 1,
            "leaderEpoch": 1,
            "votedId": -1,
            "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA",
            "data_version": 1,
        }
        disk.crash()
        assert read_quorum_state(disk, DIRECTORY).leader_epoch == 1
        assert read_file(disk, f"{DIRECTORY}/partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"

    story(body)


def test_an_epoch_is_never_used_twice_even_if_its_leader_change_was_lost():
    async def body(disk: SimDisk) -> None:
        for epoch in range(1, 6):
            assert await Node(disk).log.become_leader() == epoch
            disk.crash()

    story(body)


def test_the_epoch_follows_the_log_if_the_quorum_state_is_older():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        await node.log.close()
        write_quorum_state(disk, DIRECTORY, QuorumState())
        again = Node(disk)
        await again.start()
        assert again.log.epoch == 2

    story(body)


def test_quorum_states_are_read_in_both_versions_and_never_guessed():
    directory = UUID("997f6da3-f402-4dac-bb45-5ab04fef765b")
    state = QuorumState(7, 2, 3, directory)
    assert QuorumState.decode(state.encode()) == state
    voters = b'"currentVoters":[{"voterId":1}]'
    old = b'{"clusterId":"","leaderId":1,"leaderEpoch":4,"votedId":-1,"appliedOffset":0,%s,"data_version":0}' % voters
    assert QuorumState.decode(old) == QuorumState(4, 1, static_voter_ids=(1,))
    assert QuorumState(4, 1, static_voter_ids=(1,)).encode() == old
    disk = new_disk()
    for broken in (b"", b"{}", b"[]", b'{"leaderId":1,"leaderEpoch":4,"votedId":-1,"data_version":9}', b"\xff"):
        file = disk.open(f"{LOG_DIR}/quorum-state", create=True)
        file.truncate(0)
        file.write(0, broken)
        with pytest.raises(CorruptQuorumState, match="quorum-state"):
            read_quorum_state(disk, LOG_DIR)


def test_a_batch_is_committed_when_it_is_synced_and_not_before():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        before = node.log.committed_offset
        offset = node.log.append([b"a", b"b"], node.log.epoch)
        assert node.log.committed_offset == before
        await node.log.wait_committed(offset)
        assert node.log.committed_offset == offset
        disk.crash()
        assert await Node(disk).start() == [b"a", b"b"]

    story(body)


def test_one_sync_commits_all_that_was_appended_before_it():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        syncs = 0
        sync = disk._sync

        def counted(*args: Any) -> None:
            nonlocal syncs
            syncs += 1
            sync(*args)

        disk._sync = counted  # type: ignore[assignment]
        offsets = [node.log.append([b"x"], node.log.epoch) for _ in range(100)]
        await asyncio.gather(*(node.log.wait_committed(offset) for offset in reversed(offsets)))
        assert syncs == 1
        node.log.append([b"first"], node.log.epoch)
        for _ in range(3):
            await asyncio.sleep(0)
        last = [node.log.append([b"y"], node.log.epoch) for _ in range(50)][-1]
        await node.log.wait_committed(last)
        assert syncs <= 3
        assert node.commits == sorted(node.commits)

    story(body)


def test_start_up_syncs_a_handful_of_times():
    async def body(disk: SimDisk) -> None:
        for most in (6, 7):
            syncs: list[str] = []
            disk._trace = lambda text, syncs=syncs: syncs.append(text) if "sync" in text else None
            node = Node(disk)
            for _ in node.log.replay():
                pass
            await node.log.become_leader()
            offset = node.log.append([b"bootstrap"], node.log.epoch)
            await node.log.wait_committed(offset)
            assert 1 < len(syncs) <= most, syncs
            disk._trace = None
            await node.log.close()

    story(body)


def test_a_failed_sync_ends_the_leadership_and_nothing_is_committed_any_more():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        committed = node.log.committed_offset
        disk.fail_syncs(match=".log", lose=True)
        offset = node.log.append([b"lost"], node.log.epoch)
        with pytest.raises(NotController):
            await node.log.wait_committed(offset)
        assert node.log.committed_offset == committed
        assert len(node.failures) == 1
        with pytest.raises(NotController):
            node.log.append([b"more"], node.log.epoch)
        with pytest.raises(NotController):
            await node.log.wait_committed(offset)

    story(body)


def test_a_stale_epoch_is_refused():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        with pytest.raises(NotController):
            node.log.append([b"x"], 0)
        await node.start()
        for epoch in (0, 2):
            with pytest.raises(NotController, match=f"epoch {epoch}"):
                node.log.append([b"x"], epoch)

    story(body)


def test_a_batch_has_a_limit_and_the_error_names_it():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        end = node.log.end_offset
        with pytest.raises(RecordListTooLarge, match=str(MAX_BATCH_BYTES)):
            node.log.append([b"x" * 1024 * 1024] * 9, node.log.epoch)
        assert node.log.end_offset == end

    story(body)


def test_what_was_written_but_not_synced_is_adopted_after_a_crash_of_the_process():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        node.log.append([b"written"], node.log.epoch)
        disk.crash(power_cut=False)
        again = Node(disk)
        assert await again.start() == [b"written"]
        assert again.log.committed_offset == again.log.end_offset - 1

    story(body)


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_leaves_a_prefix_that_holds_all_that_was_committed(seed: int):
    async def body() -> None:
        disk = new_disk(seed)
        committed: list[bytes] = []
        appended: list[bytes] = []
        for life in range(4):
            node = Node(disk)
            found = await node.start()
            assert found == appended[: len(found)]
            assert len(found) >= len(committed)
            appended = found[:]
            for number in range(5):
                values = [b"%d-%d-%d" % (life, number, part) for part in range(1 + number % 3)]
                appended += values
                if (seed + number) % 2:
                    await node.write(*values)
                    committed = appended[:]
                else:
                    node.log.append(values, node.log.epoch)
            if node.log._syncing is not None:
                node.log._syncing.cancel()
            disk.crash()

    run(body())


def test_a_torn_tail_is_cut_and_the_epoch_goes_on():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        await node.write(b"good")
        await node.log.close()
        file = disk.open(SEGMENT)
        file.write(file.size(), read_file(disk, SEGMENT)[-30:])
        file.close()
        again = Node(disk)
        assert await again.start() == [b"good"]
        await again.write(b"more")
        assert [record.value for _, _, control, records in batches(disk) if not control for record in records] == [
            b"good",
            b"more",
        ]

    story(body)


def test_damage_found_while_reading_names_the_directory_and_the_offset():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        offset = await node.write(b"to be damaged")
        file = disk.open(SEGMENT)
        file.write(file.size() - 3, b"\x00")
        with pytest.raises(CorruptMetadataLog, match=rf"__cluster_metadata-0: the batch at offset {offset}"):
            list(node.log.replay())

    story(body)


def test_replay_gives_base_offset_and_epoch_of_every_data_batch():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        first = await node.write(b"a", b"b")
        second = await node.write(b"c")
        found = [tuple(batch) for batch in node.log.replay()]
        assert found == [(first - 1, 1, [b"a", b"b"], False), (second, 1, [b"c"], False)]

    story(body)


def test_a_log_larger_than_one_read_is_replayed_whole():
    async def body(disk: SimDisk) -> None:
        node = Node(disk)
        await node.start()
        values = [bytes([number]) * 300_000 for number in range(12)]
        for value in values:
            node.log.append([value], node.log.epoch)
        await node.log.close()
        assert await Node(disk).start() == values

    story(body)
