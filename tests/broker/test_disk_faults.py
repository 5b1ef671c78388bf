"""A disk that fails under a running broker: what clients are told, what is logged, and that nothing told is lost.

The simulated disk injects the fault; `lose` makes a failed sync lie afterwards, as Linux does: the pages stay readable,
the next sync succeeds, and a power cut loses them.
"""

import asyncio
import errno
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kits.node.disk_fault_node import CORRUPT_MESSAGE, STORAGE_ERROR, FaultyNode, log_lines
from kits.node.sim_node import COORDINATORS, NODE, simulated
from twofold.config.internal_topics import CONSUMER_OFFSETS, coordinator_partition
from twofold.runtime.sim import Simulation
from twofold.wire.errors import KafkaError

faulty = partial(simulated, FaultyNode)
YEAR_MS = 365 * 86_400_000


def has(lines: list[str], *parts: str) -> bool:
    return any(all(part in line for part in parts) for line in lines)


# Writes


@faulty()
async def test_a_failed_write_is_refused_and_the_log_works_again_by_itself(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    with log_lines() as lines:
        node.disk.fail_writes(1, match="/t-0/")
        assert await node.put("b") == STORAGE_ERROR
        assert await node.put("c") == STORAGE_ERROR, "nothing is appended behind what may be half a batch"
        assert (await node.fetch(0))[1] == ["a"], "readers are served meanwhile"
        assert await node.put("other", partition=1) == 0, "the other partitions do not notice"
        assert await node.put_until_taken("d") < 5
    assert has(lines, "/data/t-0/00000000000000000000.log", "cannot be written"), lines
    assert has(lines, "/data/t-0 works again"), lines
    values = await node.read()
    assert values in (["a", "d"], ["a", "b", "d"]), "b may have been written whole before the error"
    await node.cut_power()
    assert await node.read() == values, "all of it is on disk"


@faulty()
async def test_a_retry_of_what_failed_half_way_is_stored_once(node: FaultyNode) -> None:
    """The write may have succeeded before its error: the producer's number tells."""
    for number in range(40):
        node.disk.fail_writes(1, match="/t-0/0")
        await node.put_until_taken(str(number), pid=4, sequence=number)
    assert await node.read() == [str(number) for number in range(40)]


@faulty()
async def test_a_disk_that_goes_on_failing_is_tried_again_less_and_less_often(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    node.disk.fail_writes(10_000, match="/t-0/0")
    node.disk.fail_syncs(10_000, match="/t-0")
    with log_lines() as lines:
        assert await node.put("b") == STORAGE_ERROR
        await node.sleep(600)
    attempts = [line for line in lines if "/data/t-0 still fails" in line]
    assert 8 <= len(attempts) <= 20, attempts
    assert "in 60 s" in attempts[-1]
    node.disk.clear_faults()
    assert await node.put_until_taken("c") < 70


# Syncs


@pytest.mark.parametrize("lose", [False, True])
@pytest.mark.parametrize("match", ["/t-0/00000000000000000000.log", "/t-0"])
def test_nothing_is_acknowledged_after_a_failed_sync_until_all_is_on_disk(match: str, lose: bool) -> None:
    @faulty(log_flush_interval_messages=1)
    async def story(node: FaultyNode) -> None:
        assert await node.put("a") == 0
        with log_lines() as lines:
            node.disk.fail_syncs(1, match=match, lose=lose)
            codes = [await node.put("b"), await node.put("c")]
            if match.endswith(".log"):
                assert codes == [STORAGE_ERROR] * 2
                assert has(lines, match, "cannot be synced"), lines
            assert (await node.fetch(0))[1][:1] == ["a"]
            await node.put_until_taken("d")
        values = await node.read()
        assert values[0] == "a" and values[-1] == "d"
        await node.cut_power()
        assert await node.read() == values, "what was acknowledged after the failure was really on disk"

    story()


@pytest.mark.parametrize("power_cut", [False, True])
def test_the_pages_of_a_failed_sync_are_not_trusted_by_the_next_process_either(power_cut: bool) -> None:
    """Killed before the log could be mended: the next process reads what is not on disk, and builds upon it."""

    @faulty(log_flush_interval_messages=1)
    async def story(node: FaultyNode) -> None:
        assert await node.put("a") == 0
        node.disk.fail_syncs(1, match="/t-0/0", lose=True)
        assert await node.put("b") == STORAGE_ERROR
        with log_lines() as lines:
            await node.restart()
            assert await node.put("c") == 0
        assert has(lines, "/data/t-0/00000000000000000000.log", "written anew"), lines
        values = await node.read()
        assert values[0] == "a" and values[-1] == "c"
        if power_cut:
            await node.cut_power()
            assert await node.read() == values

    story()


@faulty()
async def test_what_was_acknowledged_without_a_sync_is_not_given_up_when_one_fails(node: FaultyNode) -> None:
    """flush.messages is not set: acknowledged means in the page cache, and there it still is."""
    values = [str(number) for number in range(20)]
    for value in values:
        assert await node.put(value) == 0
    node.disk.fail_syncs(1, match="/t-0/", lose=True)
    node.log().roll()  # seals the segment, and syncs it in the background
    await node.sleep(30)
    assert node.log().failure is None
    assert await node.put_until_taken("after") < 5
    await node.cut_power()
    assert (await node.read())[:20] == values, "they are on disk now"


@faulty()
async def test_a_coordinator_whose_log_failed_is_loaded_anew(node: FaultyNode) -> None:
    index = coordinator_partition("g", COORDINATORS)

    async def commit(offset: int) -> int:
        parts = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
        body = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": parts}]}
        answer = await node.ask("OffsetCommit", 8, **body)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    async def committed() -> int:
        body = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}
        answer = await node.ask("OffsetFetch", 5, **body)
        return int(answer["topics"][0]["partitions"][0]["committed_offset"])

    assert await commit(1) == 0
    node.disk.fail_writes(1, match=f"/{CONSUMER_OFFSETS}-{index}/")
    assert await commit(2) != 0
    for _ in range(100):
        if await commit(3) == 0:
            break
        await node.sleep(0.1)
    assert await committed() == 3
    await node.restart()
    assert await committed() == 3, "the log says what was answered"


@faulty()
async def test_a_topic_can_be_deleted_while_its_log_is_failing(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    node.disk.fail_writes(1000, match="/t-0/")
    assert await node.put("b") == STORAGE_ERROR
    answer = await node.ask("DeleteTopics", 5, topic_names=["t"], timeout=1000)
    assert answer["responses"][0]["error_code"] == 0
    await node.sleep(5)
    node.disk.clear_faults()
    await node.create_topic()
    assert await node.put_until_taken("new") < 5
    assert await node.read() == ["new"]


# The directory


def stopped_by(hurt: Any, seconds: float) -> tuple[float, str, list[str]]:
    """(how long it took until the broker gave up, why, what was logged)."""
    with Simulation(1) as sim, log_lines() as lines:
        found: list[Any] = []

        async def main() -> None:
            node = FaultyNode(sim)
            failed: asyncio.Future[KafkaError] = asyncio.get_running_loop().create_future()
            await node.start()

            def fail(error: KafkaError) -> None:
                if not failed.done():
                    failed.set_result(error)

            node.broker._on_failure = fail
            await node.create_topic()
            assert await node.put("a") == 0
            before = node.broker.runtime.clock.monotonic()
            await hurt(node)
            error = await asyncio.wait_for(failed, seconds)
            found.extend([node.broker.runtime.clock.monotonic() - before, str(error)])
            await node.broker.stop()

        sim.run(main(), timeout_s=86_400)
        return found[0], found[1], lines


def test_a_directory_that_is_moved_away_stops_the_broker_within_seconds() -> None:
    async def hurt(node: FaultyNode) -> None:
        node.disk.rename("/data", "/elsewhere")

    seconds, error, lines = stopped_by(hurt, 60)
    assert seconds <= 7
    assert "/data was removed, moved or unmounted" in error
    assert has(lines, "/data was removed", "stops"), lines


def test_a_directory_that_turns_read_only_is_given_thirty_seconds() -> None:
    async def hurt(node: FaultyNode) -> None:
        node.disk.read_only = True
        assert await node.put("b") == STORAGE_ERROR
        assert (await node.fetch(0))[1] == ["a"]

    seconds, error, lines = stopped_by(hurt, 120)
    assert 30 <= seconds <= 45
    assert "/data cannot be written to for 30 s" in error and "log.dir.failure.timeout.ms" in error
    assert has(lines, "/data/t-0", "Read-only"), lines


@faulty()
async def test_a_directory_that_is_read_only_for_a_moment_is_used_again(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    node.disk.read_only = True
    assert await node.put("b") == STORAGE_ERROR
    await node.sleep(20)
    node.disk.read_only = False
    assert await node.put_until_taken("c") < 60
    await node.sleep(60)
    assert await node.read() == ["a", "c"]


@faulty()
async def test_a_partition_directory_that_is_gone_is_not_replaced_by_an_empty_one(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    node.disk.rename("/data/t-0", "/data/moved")
    with pytest.raises(KafkaError):
        node.log().roll()
    with log_lines() as lines:
        await node.sleep(10)
        assert await node.put("b") == STORAGE_ERROR
    assert has(lines, "/data/t-0 is gone"), lines
    node.disk.rename("/data/moved", "/data/t-0")
    assert await node.put_until_taken("c") < 70
    assert await node.read() == ["a", "c"]


# Damaged content


def damage(node: FaultyNode, path: str, position: int, data: bytes) -> None:
    file = node.disk.open(path)
    file.write(position, data)
    file.close()


@faulty()
async def test_a_damaged_batch_is_corrupt_for_its_reader_only(node: FaultyNode) -> None:
    for number in range(6):
        assert await node.put(str(number)) == 0
        if number == 2:
            node.log().roll()
    size = node.log()._segments.all[0].size // 3
    damage(node, "/data/t-0/00000000000000000000.log", size + 8, bytes(20))  # length and magic of the second batch
    with log_lines() as lines:
        assert (await node.fetch(1))[0] == CORRUPT_MESSAGE
        for _ in range(50):
            assert (await node.fetch(1))[0] == CORRUPT_MESSAGE
    told = [line for line in lines if "/data/t-0/00000000000000000000.log" in line and "cannot be read" in line]
    assert len(told) == 1, "a reader that asks again and again does not fill the log"
    assert (await node.fetch(3))[1] == ["3", "4", "5"], "behind it all is served"
    assert await node.put("6") == 0
    assert await node.put("x", partition=1) == 0
    assert await node.read(1) == ["x"]


@faulty(log_retention_ms=3_600_000, log_retention_check_interval_ms=60_000)
async def test_a_damaged_partition_does_not_keep_the_others_from_being_deleted_by_age(node: FaultyNode) -> None:
    for partition in (0, 1):
        assert await node.put("old", partition=partition) == 0
        node.log(partition=partition).roll()
        assert await node.put("new", partition=partition) == 0
    await node.sleep(5)
    await node.broker.stop()
    damage(node, "/data/t-0/00000000000000000000.log", 8, b"\xff" * 40)
    damage(node, "/data/t-0/00000000000000000000.timeindex", 0, b"\xff" * 7)
    await node.start()
    await node.sleep(4 * 3600)
    assert node.log(partition=1).log_start_offset >= 1
    assert await node.put("later") == 0


# The clock


@faulty(log_retention_ms=86_400_000, log_retention_check_interval_ms=60_000)
async def test_a_clock_that_jumps_ahead_deletes_nothing_if_it_is_set_right_within_an_hour(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    await node.sleep(10)
    with log_lines() as lines:
        node.sim.jump_clock(NODE, 10 * YEAR_MS)
        await node.sleep(3000)
        assert await node.read() == ["a"]
        node.sim.jump_clock(NODE, -10 * YEAR_MS)
        await node.sleep(7200)
    assert await node.read() == ["a"]
    assert has(lines, "the clock went ahead by"), lines
    assert len(lines) < 20, "nothing spins"


@faulty(log_retention_ms=86_400_000, log_retention_check_interval_ms=60_000)
async def test_a_clock_that_stays_ahead_is_believed_after_an_hour(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    await node.sleep(10)
    node.sim.jump_clock(NODE, 10 * YEAR_MS)
    await node.sleep(3500)
    assert node.log().log_start_offset == 0
    await node.sleep(300)
    assert node.log().log_start_offset == 1


@faulty(log_retention_ms=86_400_000, log_retention_check_interval_ms=60_000)
async def test_a_clock_that_jumps_back_deletes_nothing_and_stops_nothing(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    with log_lines() as lines:
        node.sim.jump_clock(NODE, -10 * YEAR_MS)
        await node.sleep(3600)
        assert await node.put("b") == 0
        await node.sleep(3600)
    assert await node.read() == ["a", "b"]
    assert has(lines, "the clock went back by"), lines
    assert len(lines) < 20, "nothing spins"


# A full disk


@faulty(log_reserve_bytes=1 << 20)
async def test_topics_and_partitions_are_not_created_on_a_full_disk(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    node.disk.set_free_bytes(0)
    assert await node.put("b") == STORAGE_ERROR

    async def create(**more: Any) -> int:
        row = {"name": "u", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        return int((await node.ask("CreateTopics", 5, topics=[row], timeout=1000, **more))["topics"][0]["error_code"])

    async def grow() -> int:
        body = {"topics": [{"name": "t", "count": 5, "assignments": None}], "timeout": 1000, "validate_only": False}
        return int((await node.ask("CreatePartitions", 1, **body))["results"][0]["error_code"])

    assert await create() == await grow() == STORAGE_ERROR
    assert await create(validate_only=True) == 0
    assert "u" not in node.broker.image.topics
    node.disk.set_free_bytes(1 << 30)
    await node.sleep(3)
    assert await create() == await grow() == 0


@faulty()
async def test_half_a_batch_of_the_metadata_log_does_not_keep_the_next_start_from_serving(node: FaultyNode) -> None:
    """The broker stops in order all the same: that must not mark the directory as whole."""
    for number in range(10):
        node.disk.fail_writes(1, match="__cluster_metadata-0/0000")
        row = {"name": f"n{number}", "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}
        answer = await node.ask("CreateTopics", 5, topics=[row], timeout_ms=1000, validate_only=False)
        assert answer["topics"][0]["error_code"] == STORAGE_ERROR
        await node.broker.stop()
        await node.restart()
        assert await node.put(str(number)) == 0
    assert await node.read() == [str(number) for number in range(10)]


@faulty()
async def test_a_read_that_fails_is_a_storage_error_and_passes(node: FaultyNode) -> None:
    assert await node.put("a") == 0
    with log_lines() as lines:
        node.disk.fail_reads(1, match="/t-0/", error=errno.EIO)
        assert (await node.fetch(0))[0] == STORAGE_ERROR
    assert has(lines, "/data/t-0/00000000000000000000.log", "cannot be read"), lines
    assert await node.fetch(0) == (0, ["a"])
    assert await node.put("b") == 0


@faulty(offsets_retention_minutes=60, offsets_retention_check_interval_ms=60_000)
async def test_a_clock_that_jumps_ahead_takes_no_offsets_of_groups_with_it(node: FaultyNode) -> None:
    async def committed() -> int:
        body = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}
        answer = await node.ask("OffsetFetch", 5, **body)
        return int(answer["topics"][0]["partitions"][0]["committed_offset"])

    parts = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}]
    body = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": parts}]}
    await node.ask("OffsetCommit", 8, **body)
    node.sim.jump_clock(NODE, YEAR_MS)
    await node.sleep(1800)
    assert await committed() == 5
    await node.sleep(3600)
    assert await committed() == -1, "in the end the clock is believed"


def test_the_page_on_faults_names_tests_that_exist() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "guide" / "disk-faults.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    sources = "".join(path.read_text() for path in (root / "tests").rglob("test_*.py"))
    assert len(named) > 20
    assert not [name for name in sorted(named) if f"def {name}(" not in sources]
