"""Snapshots bound the metadata log: what goes, when, and that a crash at any moment costs nothing."""

import asyncio
import contextlib
import logging
from random import Random

import pytest

from kits.metadata.controller import ManualClock, new_disk, run
from kits.metadata.log import DIRECTORY, SMALL, Node, fold, names_with, options_with
from twofold.metadata_log.options import MetadataLogOptions
from twofold.metadata_log.retention import SegmentFile, SnapshotFile, count_forgettable
from twofold.metadata_log.snapshots import SnapshotId, list_snapshots
from twofold.runtime.sim.disk import CutMode, PowerCut, SimDisk

pytestmark = pytest.mark.slow  # it enumerates

NEVER = -1


# --- which ones go ---


def rows(*ends_sizes_times: tuple[int, int, int]) -> list[SnapshotFile]:
    return [SnapshotFile(SnapshotId(end, 1), size, time) for end, size, time in ends_sizes_times]


def test_snapshots_go_from_the_oldest_on_while_all_together_is_too_large():
    snapshots = rows((10, 5, 0), (20, 5, 0), (30, 5, 0))
    segments = [SegmentFile(0, 100), SegmentFile(15, 100), SegmentFile(28, 10)]

    def count(limit: int) -> int:
        return count_forgettable(snapshots, segments, retention_bytes=limit, retention_ms=NEVER, now_ms=10**12)

    assert count(225) == 0
    assert count(224) == 1, "with the oldest goes the segment [0, 15)"
    assert count(120) == 1
    assert count(119) == 2
    assert count(0) == 2, "the newest stays whatever the limit"
    assert count(NEVER) == 0


def test_snapshots_go_when_what_they_stand_for_is_old_and_a_newer_one_is_there():
    snapshots = rows((10, 5, 1000), (20, 5, 2000), (30, 5, 3000))

    def count(now_ms: int) -> int:
        return count_forgettable(snapshots, [], retention_bytes=NEVER, retention_ms=500, now_ms=now_ms)

    assert [count(now_ms) for now_ms in (1500, 1501, 2500, 2501, 9999)] == [0, 1, 1, 2, 2]
    assert count_forgettable([], [], retention_bytes=0, retention_ms=0, now_ms=9) == 0
    assert count_forgettable(rows((1, 1, 0)), [], retention_bytes=0, retention_ms=0, now_ms=9) == 0


def test_old_segments_and_snapshots_leave_by_way_of_deleted():
    async def story() -> None:
        disk = new_disk()
        node = Node(disk, options_with(delete_delay_ms=60_000))
        await node.start()
        for number in range(30):
            await node.put(b"%d" % (number % 3), b"x" * 40)
            if number % 10 == 9:
                await node.snapshot()
        assert names_with(disk, ".log.deleted") and names_with(disk, ".checkpoint.deleted")
        clock = node.runtime.clock
        assert isinstance(clock, ManualClock)
        clock.now += 61
        node.timers.fire()
        await asyncio.sleep(0.01)
        assert not names_with(disk, ".deleted")
        first = min(int(name[:20]) for name in names_with(disk, ".log"))
        assert 0 < first <= list_snapshots(disk, DIRECTORY)[0].end_offset
        image = node.image
        await node.log.close()
        assert await Node(disk).start() == image

    run(story())


def test_retention_by_time_uses_the_injected_clock():
    async def story() -> None:
        disk, clock = new_disk(), ManualClock()
        options = options_with(retention_bytes=-1, retention_ms=5000)
        node = Node(disk, options, clock=clock)
        await node.start()
        for _ in range(3):
            await node.put(b"a", b"b")
            await node.snapshot()
        assert len(list_snapshots(disk, DIRECTORY)) == 3
        clock.now += 5.001
        await node.put(b"a", b"c")
        await node.snapshot()
        assert len(list_snapshots(disk, DIRECTORY)) == 1

    run(story())


def test_a_segment_is_begun_at_a_snapshot_so_that_the_one_before_can_go():
    async def story() -> None:
        disk = new_disk()
        node = Node(disk, MetadataLogOptions(retention_bytes=0, delete_delay_ms=0))
        await node.start()
        for _ in range(3):
            for number in range(100):
                await node.put(b"%d" % (number % 5), b"x" * 1000)
            await node.snapshot()
        assert node.log.size_bytes < 2000, "segments of 1 GiB, and all but nothing is left of 300 KB"
        assert len(names_with(disk, ".log")) == 1
        for _ in range(3):
            await node.put(b"a", b"b")
            await node.snapshot()
        assert len(names_with(disk, ".log")) == 1, "little is not worth a segment"

    run(story())


def test_the_log_and_its_snapshots_stay_bounded():
    async def story() -> None:
        disk = new_disk()
        node = Node(disk, options_with(retention_bytes=3000))
        await node.start()
        largest = 0
        for number in range(2000):
            await node.put(b"%d" % (number % 10), b"x" * 20, wait=number % 10 == 9)
            if number % 20 == 19:
                await node.snapshot()
            if number % 100 == 99:
                largest = max(largest, sum(disk.file_size(f"{DIRECTORY}/{name}") for name in node.names()))
        assert largest < 8000, "200 KB were written"

    run(story())


def test_a_snapshot_never_stands_for_what_is_not_committed_or_for_half_a_batch():
    async def story() -> None:
        node = Node(new_disk())
        await node.start()
        start = node.log.end_offset
        await node.put(b"a", b"1")
        node.log.append([b"b=1", b"c=1"], node.log.epoch)
        end = node.log.end_offset
        assert [node.log.begins_batch(at) for at in (start, start + 1, start + 2, end, end + 1)] == [
            True, True, False, False, False,
        ]  # fmt: skip
        with pytest.raises(ValueError, match=f"offset {end}"):
            await node.log.write_snapshot([], end)
        await node.log.wait_committed(end - 1)
        assert [node.log.begins_batch(at) for at in (start + 2, end)] == [False, True]

    run(story())


def test_a_snapshot_has_the_epoch_of_the_last_record_that_it_stands_for():
    async def story() -> None:
        disk = new_disk()
        node = Node(disk)
        await node.start()
        offset = await node.put(b"a", b"1")
        await node.log.close()
        again = Node(disk)
        await again.start()
        written = await again.log.write_snapshot([b"a=1"], offset + 1)
        assert (written.epoch, again.log.epoch) == (1, 2)
        assert await again.log.write_snapshot([], offset + 1) == written, "there is one already"

    run(story())


def test_leftovers_are_removed_at_a_start():
    async def story() -> None:
        disk = new_disk()
        node = Node(disk)
        await node.start()
        await node.put(b"a", b"1")
        await node.log.close()
        for name in (
            "00000000000000000005-0000000001.checkpoint.part",
            "00000000000000000004-0000000001.checkpoint.deleted",
            "00000000000000000000.log.deleted",
            "quorum-state.tmp",
        ):
            disk.open(f"{DIRECTORY}/{name}", create=True).close()
        assert await Node(disk).start() == {b"a": b"1"}
        assert not [name for name in disk.list(DIRECTORY) if name.endswith((".part", ".deleted", ".tmp"))]

    run(story())


# --- damaged snapshots ---


def flip(disk: SimDisk, path: str, at: int = 70) -> None:
    file = disk.open(path)
    byte = file.read(at, 1)[0]
    file.write(at, bytes([byte ^ 1]))
    file.sync()
    file.close()


async def three_snapshots(disk: SimDisk, **changes: int) -> Node:
    node = Node(disk, options_with(**({"retention_bytes": -1, "retention_ms": -1} | changes)))
    await node.start()
    for number in range(30):
        await node.put(b"%d" % (number % 7), b"%d" % number)
        if number % 10 == 9:
            await node.snapshot()
    await node.put(b"last", b"one")
    await node.log.close()
    return node


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_a_damaged_snapshot_is_passed_over_if_the_log_covers_the_gap(damaged: int, caplog: pytest.LogCaptureFixture):
    async def story() -> None:
        disk = new_disk()
        node = await three_snapshots(disk)
        ids = list_snapshots(disk, DIRECTORY)
        for one in ids[-damaged:]:
            flip(disk, f"{DIRECTORY}/{one.file_name}")
        with caplog.at_level(logging.ERROR):
            again = Node(disk, options_with(retention_bytes=-1))
            assert await again.start() == node.image
        instead = ids[-damaged - 1].file_name if damaged < 3 else "the log from its beginning on"
        assert f"{ids[-1].file_name} is damaged" in caplog.text and f"reading {instead} instead" in caplog.text
        assert again.log.latest_snapshot == (ids[-damaged - 1] if damaged < 3 else None)
        assert len(names_with(disk, ".damaged")) == damaged
        await again.snapshot(trim=False)
        await again.log.close()
        assert await Node(disk).start() == node.image

    run(story())


def test_a_damaged_snapshot_that_nothing_replaces_stops_the_node_and_is_named():
    async def story() -> None:
        disk = new_disk()
        await three_snapshots(disk, retention_bytes=0)
        (only,) = list_snapshots(disk, DIRECTORY)
        flip(disk, f"{DIRECTORY}/{only.file_name}")
        before = disk.list(DIRECTORY)
        with pytest.raises(Exception, match=rf"{only.file_name} is damaged .*the log begins at offset \d+"):
            await Node(disk).start()
        assert disk.list(DIRECTORY) == before, "nothing was changed"

    run(story())


# --- power cuts ---


class Workload:
    """Changes, snapshots and trimming over two lives of a node; the second begins with what the first left."""

    def __init__(self, seed: int, mode: CutMode) -> None:
        self.disk = SimDisk(Random(seed), cut_mode=mode)
        self.disk.make_dirs("/data")
        self.disk.sync_dir("/")
        self.images: list[dict[bytes, bytes]] = [{}]
        self.committed = 0  # the image that must survive

    async def run(self, lives: int = 2) -> None:
        for life in range(lives):
            node = Node(self.disk)
            self.images = [dict(await node.start())]
            self.committed = 0
            for number in range(12):
                name, text = b"%d" % (number % 4), b"%d-%d" % (life, number)
                self.images.append(node.image | {name: text})
                await node.put(name, text, wait=False)
                if number % 2:
                    await node.log.wait_committed(node.log.end_offset - 1)
                    self.committed = len(self.images) - 1
                if number % 4 == 3:
                    await node.snapshot()
            if node.log._syncing is not None:
                await asyncio.wait([node.log._syncing])
            node.log.abandon()

    async def check(self) -> None:
        node = Node(self.disk)
        found = await node.start()
        assert found in self.images[self.committed :], "an image that never was, or less than was committed"
        await node.put(b"after", b"all")
        await node.snapshot()
        image = node.image
        await node.log.close()
        assert await Node(self.disk, closed_cleanly=True).start() == image
        assert not [name for name in self.disk.list(DIRECTORY) if name.endswith((".part", ".tmp"))]


def operations() -> int:
    workload = Workload(0, CutMode.ORDERED)
    run(workload.run())
    assert len(list_snapshots(workload.disk, DIRECTORY)) < 3, "some were trimmed"
    assert min(int(name[:20]) for name in names_with(workload.disk, ".log")) > 0
    return workload.disk.operations


@pytest.mark.parametrize("mode", list(CutMode))
def test_a_power_cut_at_any_disk_operation_leaves_an_image_with_all_that_was_committed(mode: CutMode):
    for at in range(operations()):
        workload = Workload(at, mode)
        try:
            run(cut_short(workload, at))
            workload.disk.crash()
            run(workload.check())
        except Exception as error:
            error.add_note(f"cut at operation {at} in mode {mode}")
            raise


async def cut_short(workload: Workload, at: int) -> None:
    """Run it until the power goes, in whichever of its tasks."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # of tasks that nobody waits for any more
    running = loop.create_task(workload.run())

    def cancel() -> None:
        loop.call_soon(running.cancel)

    workload.disk.cut_power_after(at, cancel)
    with contextlib.suppress(PowerCut, asyncio.CancelledError):
        await running


def test_the_kit_folds_a_snapshot_over_all_before_it():
    async def story() -> None:
        node = Node(new_disk(), SMALL)
        await node.start()
        await node.put(b"a", b"1")
        assert fold(list(node.log.replay())) == {b"a": b"1"}

    run(story())
