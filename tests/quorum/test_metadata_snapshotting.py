"""When the controller writes snapshots, and that nobody is held up or let down by one."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import pytest

from kits.metadata.controller import (
    CLUSTER_ID,
    DIRECTORY_ID,
    LOG_DIR,
    ManualClock,
    create,
    new_disk,
    register,
    run,
    topic,
)
from kits.metadata.log import DIRECTORY, ManualTimers, timed_runtime
from twofold.config.settings import Settings
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    NoOp,
    Partition,
    Topic,
    decode,
    encode,
)
from twofold.machine.runtime import MAX_PENDING
from twofold.metadata_log.snapshots import list_snapshots, read_snapshot
from twofold.quorum.controller import Controller
from twofold.records.batch import iter_headers, iter_records
from twofold.runtime.files import read_file
from twofold.runtime.real import real_runtime
from twofold.runtime.sim import SimDisk
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

BY_BYTES = "metadata.log.max.record.bytes.between.snapshots"
BY_TIME = "metadata.log.max.snapshot.interval.ms"


class World:
    """A controller whose clock and timers the test moves."""

    def __init__(self, disk: SimDisk | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        self.disk = disk or new_disk()
        self.clock = ManualClock()
        runtime = timed_runtime(self.disk, self.clock)
        assert isinstance(runtime.timers, ManualTimers)
        self.timers = runtime.timers
        self.controller = Controller(
            runtime,
            Settings.from_mapping(settings or {}),
            log_dir=LOG_DIR,
            cluster_id=CLUSTER_ID,
            directory_id=DIRECTORY_ID,
        )

    async def start(self) -> None:
        await self.controller.start()
        await register(self.controller)

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def create(self, name: str, partitions: int = 1) -> None:
        response = await self.controller.create_topics(create(topic(name, partitions)))
        assert response.topics[0].error_code == 0

    async def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=(DeleteTopicState(name=name, topic_id=None),), timeout_ms=1000)
        response = await self.controller.delete_topics(request)
        assert response.responses[0].error_code == 0, response

    def ids(self) -> list[int]:
        return [one.end_offset for one in list_snapshots(self.disk, DIRECTORY)]


def settings(**changes: str) -> dict[str, str]:
    return {BY_BYTES: changes.pop("by_bytes", "1000000"), BY_TIME: changes.pop("by_time", "0")} | changes


def test_a_snapshot_follows_every_so_many_bytes_of_log():
    async def story() -> None:
        world = World(settings=settings(by_bytes="2000"))
        await world.start()
        before = world.controller._log.committed.bytes
        for number in range(60):
            await world.create(f"t{number}")
            await world.settle()
        written = world.controller._log.committed.bytes - before
        assert written // 3000 <= len(world.ids()) <= written // 2000 + 1
        assert world.controller.snapshots.written == len(world.ids())
        assert not world.timers.pending, "an interval of 0 switches the time off"
        newest = f"{DIRECTORY}/{list_snapshots(world.disk, DIRECTORY)[-1].file_name}"
        assert world.controller.snapshots.latest_bytes == world.disk.file_size(newest)
        world.clock.now += 7
        assert 7 <= world.controller.snapshots.age_s < 8

    run(story())


def test_bytes_are_counted_across_restarts():
    async def story() -> None:
        disk = new_disk()
        for life in range(8):
            world = World(disk, settings=settings(by_bytes="4000"))
            await world.start()
            await world.create(f"t{life}")
            await world.settle()
            await world.controller.stop()
        assert world.ids(), "no life wrote that much, all together did"

    run(story())


def test_a_snapshot_follows_the_interval_only_if_something_is_new():
    async def story() -> None:
        world = World(settings=settings(by_time="60000"))
        await world.start()
        await world.settle()
        assert not world.ids() and len(world.timers.pending) == 1
        world.clock.now += 59
        world.timers.fire()
        await world.settle()
        assert not world.ids()
        world.clock.now += 1
        world.timers.fire()
        await world.settle()
        (first,) = world.ids()
        assert first == world.controller.image.offset + 1
        for _ in range(3):
            world.clock.now += 3600
            world.timers.fire()
            await world.settle()
        assert world.ids() == [first], "nothing is new"
        await world.create("a")
        await world.settle()
        assert world.ids() == [first, world.controller.image.offset + 1], "the time was up long ago"

    run(story())


def test_a_snapshot_that_cannot_be_written_is_tried_again_and_no_request_fails(caplog: pytest.LogCaptureFixture):
    async def story() -> None:
        world = World(settings=settings(by_bytes="1"))
        world.disk.fail_writes(times=1, match=".checkpoint")
        await world.start()
        await world.settle()
        assert not world.ids() and world.controller.snapshots.failed == 1
        assert "0000000001.checkpoint: the snapshot cannot be written" in caplog.text
        assert not [name for name in world.disk.list(DIRECTORY) if name.endswith(".part")]
        await world.create("a")
        await world.settle()
        assert not world.ids(), "not before its time"
        world.clock.now += 61
        world.timers.fire()
        await world.settle()
        assert world.ids() == [world.controller.image.offset + 1]

    with caplog.at_level(logging.ERROR):
        run(story())


def test_one_is_written_at_a_time():
    async def story() -> None:
        world = World(settings=settings(by_bytes="1"))
        await world.start()
        await world.settle()
        running = most = 0
        write = world.controller._log.write_snapshot

        async def counted(*args: Any, **named: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            try:
                return await write(*args, **named)
            finally:
                running -= 1

        world.controller._log.write_snapshot = counted
        await asyncio.gather(*(world.create(f"t{number}") for number in range(20)))
        await world.controller.snapshots.write_now()
        await world.settle()
        assert most == 1
        assert world.ids()[-1] == world.controller.image.offset + 1

    run(story())


def test_a_snapshot_never_lies_in_a_metadata_transaction_and_never_holds_its_records():
    async def story() -> None:
        world = World(settings=settings(by_bytes="1"))
        await world.start()
        for number in range(4):
            await world.create(f"t{number}", partitions=15_000)
            await world.settle()
        data = read_file(world.disk, f"{DIRECTORY}/{0:020d}.log")
        written = [decode(record.value or b"") for at, header in iter_headers(data) if not header.is_control
                   for record in iter_records(data, at)]  # fmt: skip
        assert sum(isinstance(record, BeginTransaction) for record in written) > 4, "and it was used"
        for one in list_snapshots(world.disk, DIRECTORY):
            records = [decode(value) for value in read_snapshot(world.disk, f"{DIRECTORY}/{one.file_name}").values]
            assert not any(isinstance(r, (BeginTransaction, EndTransaction, AbortTransaction)) for r in records)
            topics = {r.topic_id for r in records if isinstance(r, Topic)}
            partitions = [r for r in records if isinstance(r, Partition)]
            assert len(partitions) == 15_000 * len(topics), "all of a topic or nothing of it"
        assert world.controller._log.latest_snapshot is not None

    run(story())


def test_a_start_from_a_snapshot_gives_the_same_image():
    async def story() -> None:
        disk = new_disk()
        for life in range(3):
            world = World(
                disk,
                settings=settings(by_bytes="3000")
                | {"internal.metadata.log.segment.bytes": "2000", "metadata.max.retention.bytes": "6000"},
            )
            await world.start()
            for number in range(30):
                await world.create(f"t{life}-{number}", partitions=2)
                await world.settle()
                if number % 3:
                    await world.delete(f"t{life}-{number}")
            await world.settle()
            image = world.controller.image
            if life % 2:
                disk.crash(power_cut=False)
            else:
                await world.controller.stop()
        again = World(disk, settings=settings())
        await again.controller.start()
        found = again.controller.image
        assert (found.topics, found.configs, found.features) == (image.topics, image.configs, image.features)
        assert found.next_producer_id == image.next_producer_id
        assert min(int(name[:20]) for name in disk.list(DIRECTORY) if name.endswith(".log")) > 0

    run(story())


def test_a_log_of_more_batches_than_may_wait_for_a_commit_is_loaded():
    async def story() -> None:
        disk = new_disk()
        world = World(disk, settings=settings())
        await world.start()
        value = encode(NoOp())
        for _ in range(MAX_PENDING + 10):
            last = world.controller._log.append([value], world.controller._log.epoch)
        await world.controller._log.wait_committed(last)
        disk.crash(power_cut=False)
        again = World(disk, settings=settings())
        await again.controller.start()
        assert again.controller.image.offset >= last

    run(story())


def test_a_large_snapshot_does_not_hold_up_the_event_loop(tmp_path):
    """100,000 partitions: the records are made in another thread, and the loop goes on turning."""

    async def story() -> None:
        runtime = real_runtime()
        controller = Controller(
            runtime,
            Settings.from_mapping({BY_TIME: "0"}),
            log_dir=str(tmp_path),
            cluster_id=CLUSTER_ID,
            directory_id=DIRECTORY_ID,
        )
        await controller.start()
        await register(controller)
        for number in range(2):
            await controller.create_topics(create(topic(f"t{number}", partitions=50_000)))
        longest, turns = 0.0, 0
        done = asyncio.get_running_loop().create_task(controller.snapshots.write_now())
        before = time.perf_counter()
        while not done.done():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, before, turns = max(longest, now - before), now, turns + 1
        assert controller.snapshots.written == 1
        assert turns > 20 and longest < 0.25, (turns, longest)
        await controller.stop()

    run(story())
