"""A controller on its log at each metadata.version: what it writes, what a lower level leaves, what it refuses."""

import logging
from collections.abc import Iterable

import pytest

from kits.metadata.controller import (
    DIRECTORY_ID,
    LOG_DIR,
    create,
    disk_runtime,
    new_controller,
    new_disk,
    register,
    run,
    topic,
)
from twofold.controller.image import MetadataImage
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    Config,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
    Partition,
    Topic,
    decode,
    encode,
)
from twofold.metadata_log.errors import UnusableMetadata
from twofold.metadata_log.metadata_log import MetadataLog
from twofold.metadata_log.snapshots import encode_snapshot, list_snapshots, write_snapshot
from twofold.quorum.controller import Controller
from twofold.quorum.writer import APPEND_RECORDS, ATOMIC_RECORDS
from twofold.runtime.sim import SimDisk
from twofold.wire.errors import PolicyViolation
from twofold.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

MV, TV, GV, ELR = "metadata.version", "transaction.version", "group.version", "eligible.leader.replicas.version"
DIRECTORY = f"{LOG_DIR}/__cluster_metadata-0"
LARGE = 2 * APPEND_RECORDS
UP, SAFE, UNSAFE = 1, 2, 3


def updates(*rows: tuple[str, int, int]) -> UpdateFeaturesRequest:
    return UpdateFeaturesRequest(
        feature_updates=tuple(
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in rows
        )
    )


def down_to(level: int) -> UpdateFeaturesRequest:
    return updates((MV, level, UNSAFE), (TV, 0, SAFE), (GV, 0, SAFE))


async def started(disk: SimDisk, **settings: str) -> Controller:
    controller = new_controller(disk, **settings)
    await controller.start()
    await register(controller)
    return controller


def open_log(disk: SimDisk) -> MetadataLog:
    return MetadataLog(
        disk_runtime(disk),
        LOG_DIR,
        node_id=1,
        directory_id=DIRECTORY_ID,
    )


async def read(disk: SimDisk) -> list[tuple[bytes, ...]]:
    """What somebody who starts now reads, by batches: the newest snapshot, and what follows it."""
    return [tuple(batch.values) for batch in open_log(disk).replay() if batch.values]


def batches(disk: SimDisk) -> list[tuple[bytes, ...]]:
    return run(read(disk))


def records_in(values: Iterable[bytes]) -> list[MetadataRecord]:
    return [record for value in values if (record := decode(value)) is not None]


def formatted(disk: SimDisk, *records: MetadataRecord) -> None:
    """The directory as `kafka-storage.sh format` leaves it."""
    values = [encode(record) for record in records]
    data = encode_snapshot(values, epoch=0, last_contained_timestamp_ms=0, timestamp_ms=0, voters=None)
    write_snapshot(disk, f"{LOG_DIR}/bootstrap.checkpoint", data)


async def restarted(disk: SimDisk) -> MetadataImage:
    controller = new_controller(disk)
    await controller.start()
    image = controller.image
    await controller.stop()
    return image


@pytest.mark.parametrize("level", [7, 12, 13, 16, 17, 25])
def test_after_a_downgrade_no_reader_meets_what_the_lower_level_does_not_know(level: int):
    disk = new_disk()

    async def story() -> MetadataImage:
        controller = await started(disk)
        await controller.create_topics(create(topic("before", LARGE)))
        await controller.update_features(updates((MV, level, UNSAFE)) if level >= 24 else down_to(level))
        await controller.create_topics(create(topic("after", 3)))
        await controller.stop()
        return controller.image

    image = run(story())
    assert len(list_snapshots(disk, DIRECTORY)) == 1
    values = [value for batch in batches(disk) for value in batch]
    records = records_in(values)
    assert {record.name for record in records if isinstance(record, Topic)} == {"before", "after"}
    assert values == [encode(record, level) for record in records], "all in the versions of the level"
    assert not any(isinstance(one, BeginTransaction | EndTransaction | AbortTransaction) for one in records)
    again = run(restarted(disk))
    assert (again.topics, again.features) == (image.topics, image.features)
    assert again.brokers[1].log_dirs == image.brokers[1].log_dirs
    assert bool(again.brokers[1].log_dirs) == (level >= 17)


def test_a_follower_by_deltas_loses_the_same():
    async def story() -> None:
        controller = await started(new_disk())
        await controller.create_topics(create(topic("a", 3)))
        mirror, seen = controller.image, []
        controller.subscribe(lambda delta, image: seen.append(delta))
        seen.clear()
        await controller.update_features(down_to(16))
        for delta in seen:
            mirror = delta.apply(mirror)
        assert (mirror.topics, mirror.brokers) == (controller.image.topics, controller.image.brokers)
        partition = mirror.partition("a", 2)
        assert partition is not None and partition.directories == ()
        await controller.stop()

    run(story())


def test_what_is_lost_is_named_in_the_log(caplog: pytest.LogCaptureFixture):
    async def story() -> None:
        controller = await started(new_disk())
        await controller.create_topics(create(topic("a", 3)))
        await controller.update_features(updates((MV, 25, UNSAFE)))
        await controller.update_features(down_to(16))
        await controller.stop()

    with caplog.at_level(logging.WARNING, "twofold.controller"):
        run(story())
    told = [row.getMessage() for row in caplog.records]
    assert told == [
        "metadata.version went down to 25 (4.0-IV3); this is lost: nothing",
        "metadata.version went down to 16 (3.7-IV1); this is lost: 1 brokers with the ids of their log directories, "
        "3 partitions with the log directories of their replicas",
    ]


def test_a_level_that_went_down_goes_up_again():
    disk = new_disk()

    async def story() -> None:
        controller = await started(disk)
        await controller.update_features(down_to(12))
        await controller.update_features(updates((MV, 30, UP), (TV, 2, UP)))
        await controller.create_topics(create(topic("a", LARGE)))
        await controller.stop()

    run(story())
    records = records_in(value for batch in batches(disk) for value in batch)
    assert any(isinstance(record, EndTransaction) for record in records)
    assert dict(run(restarted(disk)).features) == {MV: 30, TV: 2}


@pytest.mark.parametrize("level", [7, 12, 13, 30])
def test_a_large_topic_is_one_batch_where_there_are_no_transactions(level: int):
    disk = new_disk()

    async def story() -> None:
        formatted(disk, FeatureLevel(MV, level))
        controller = await started(disk)
        response = await controller.create_topics(create(topic("a", LARGE)))
        assert response.topics[0].error_code == 0
        await controller.stop()

    run(story())
    found = [records_in(batch) for batch in batches(disk)]
    kinds = [type(record) for batch in found for record in batch]
    assert kinds.count(Partition) == LARGE
    with_partitions = [batch for batch in found if any(isinstance(record, Partition) for record in batch)]
    if level < 13:
        assert not {BeginTransaction, EndTransaction} & set(kinds)
        assert [len(batch) for batch in with_partitions] == [LARGE + 1]
    else:
        assert kinds.count(BeginTransaction) == kinds.count(EndTransaction) == 2, "the bootstrap and the topic"
        assert len(with_partitions) > 1


def test_more_than_a_batch_may_hold_is_refused_where_there_are_no_transactions():
    disk = new_disk()

    async def story() -> None:
        formatted(disk, FeatureLevel(MV, 12))
        controller = await started(disk)
        before = controller.image
        with pytest.raises(PolicyViolation, match=r"upgrade metadata\.version to 13"):
            await controller.create_topics(create(topic("a", ATOMIC_RECORDS + 1)))
        assert controller.image == before
        await controller.create_topics(create(topic("b", 2)))
        await controller.stop()

    run(story())
    assert list(run(restarted(disk)).topics) == ["b"]


@pytest.mark.parametrize("level", [7, 12])
def test_a_directory_formatted_below_13_begins_with_one_batch(level: int):
    disk = new_disk()

    async def story() -> None:
        formatted(disk, FeatureLevel(MV, level), FeatureLevel("share.version", 0))
        controller = new_controller(disk)
        await controller.start()
        assert dict(controller.image.features) == {MV: level}
        await controller.stop()

    run(story())
    assert [records_in(batch) for batch in batches(disk)] == [
        [FeatureLevel(MV, level), FeatureLevel("share.version", 0)]
    ]


def test_a_directory_formatted_with_eligible_leader_replicas_gets_their_minimum():
    disk = new_disk()

    async def story() -> None:
        formatted(disk, FeatureLevel(MV, 30), FeatureLevel(ELR, 1))
        controller = new_controller(disk, min_insync_replicas="1")
        await controller.start()
        assert dict(controller.image.broker_configs()) == {"min.insync.replicas": "1"}
        await controller.stop()

    run(story())


@pytest.mark.parametrize("level", [12, 30])
def test_a_controller_that_died_after_a_downgrade_leaves_its_snapshot_to_the_next(level: int):
    disk = new_disk()
    partition = Partition(0, DIRECTORY_ID, (1,), (1,), 1, directories=(DIRECTORY_ID,))
    records: list[list[MetadataRecord]] = [
        [FeatureLevel(MV, 30), Topic("a", DIRECTORY_ID), partition],
        [FeatureLevel(MV, level)],
    ]

    async def story() -> None:
        log = open_log(disk)
        assert list(log.replay()) == []
        await log.become_leader()
        for batch in records:
            log.append([encode(record) for record in batch], log.epoch)
        await log.wait_committed(log.end_offset - 1)
        await log.close()

    run(story())
    for _ in range(2):
        run(restarted(disk))
        assert len(list_snapshots(disk, DIRECTORY)) == (level < 30)
    values = [value for batch in batches(disk) for value in batch]
    assert values == [encode(record, level) for record in records_in(values)]


@pytest.mark.parametrize(
    ("records", "advice"),
    [
        ([FeatureLevel(MV, 12), BeginTransaction("x"), Config(2, "a", "x", "1")], "let the software that wrote"),
        ([BeginTransaction("Bootstrap records"), FeatureLevel(MV, 30)], "format again"),
    ],
    ids=["with a level", "empty"],
)
def test_an_open_transaction_that_cannot_be_is_refused_and_nothing_is_written(
    records: list[MetadataRecord], advice: str
):
    disk = new_disk()

    async def story() -> None:
        log = open_log(disk)
        assert list(log.replay()) == []
        await log.become_leader()
        begin = log.end_offset + [type(record) for record in records].index(BeginTransaction)
        log.append([encode(record) for record in records], log.epoch)
        await log.wait_committed(log.end_offset - 1)
        await log.close()
        formatted(disk, FeatureLevel(MV, 12))
        before = await read(disk)
        for _ in range(2):
            with pytest.raises(UnusableMetadata) as error:
                await new_controller(disk).start()
            for word in (DIRECTORY, f"offset {begin} is open", "12 (3.6-IV0)", advice):
                assert word in str(error.value)
        assert await read(disk) == before

    run(story())
