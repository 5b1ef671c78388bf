"""Operations as batches and as metadata transactions: who sees what, who waits, and how one ends."""

import asyncio
from typing import Any

import pytest

from kits.metadata.controller import (
    LOG_DIR,
    beat_of,
    create,
    fold,
    new_controller,
    new_disk,
    register,
    run,
    topic,
)
from twofold.controller.delta import ImageDelta
from twofold.controller.image import MetadataImage
from twofold.controller.records import AbortTransaction, BeginTransaction, EndTransaction, MetadataRecord, decode
from twofold.quorum.controller import Controller
from twofold.quorum.writer import APPEND_RECORDS, MAX_TEXT_BYTES, shortened
from twofold.records.batch import iter_headers, iter_records
from twofold.runtime.files import read_file
from twofold.runtime.sim import SimDisk
from twofold.wire.errors import InvalidUpdateVersion, NotController, PolicyViolation
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from twofold.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from twofold.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from twofold.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

MANY = 3 * APPEND_RECORDS + 7
LONG = 20 * APPEND_RECORDS  # so many turns that others come between


async def started(disk: SimDisk, **settings: str) -> Controller:
    controller = new_controller(disk, **settings)
    await controller.start()
    await register(controller)
    return controller


def batches_of(disk: SimDisk) -> list[list[MetadataRecord]]:
    """The data batches of the metadata log as they are in its file."""
    data = read_file(disk, f"{LOG_DIR}/__cluster_metadata-0/{0:020d}.log")
    return [
        [record for row in iter_records(data, at) if (record := decode(row.value or b"")) is not None]
        for at, header in iter_headers(data)
        if not header.is_control
    ]


def transactions_of(disk: SimDisk) -> list[tuple[str | None, int, str]]:
    """Of every transaction: its name, how many batches it has, and how it ended."""
    found: list[tuple[str | None, int, str]] = []
    name, batches = None, 0
    for batch in batches_of(disk):
        batches += 1
        for record in batch:
            if isinstance(record, BeginTransaction):
                name, batches = record.name, 1
            elif isinstance(record, EndTransaction):
                found.append((name, batches, "End"))
            elif isinstance(record, AbortTransaction):
                found.append((name, batches, f"Abort {record.reason}"))
    return found


async def begun(call: Any) -> "asyncio.Task[Any]":
    """The call, after some pieces of its transaction are in the log."""
    task = asyncio.ensure_future(call)
    await turns(5)
    assert not task.done()
    return task


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def delete_all(names: list[str]) -> DeleteTopicsRequest:
    rows = tuple(DeleteTopicState(name=name, topic_id=None) for name in names)
    return DeleteTopicsRequest(topics=rows, timeout_ms=1000)


def retention(names: list[str]) -> IncrementalAlterConfigsRequest:
    change = (AlterableConfig(name="retention.ms", config_operation=0, value="5"),)
    rows = tuple(AlterConfigsResource(resource_type=2, resource_name=name, configs=change) for name in names)
    return IncrementalAlterConfigsRequest(resources=rows, validate_only=False)


def grow(name: str, count: int) -> CreatePartitionsRequest:
    row = CreatePartitionsTopic(name=name, count=count, assignments=None)
    return CreatePartitionsRequest(topics=(row,), timeout_ms=1000, validate_only=False)


def lower(level: int) -> UpdateFeaturesRequest:
    update = FeatureUpdateKey(feature="metadata.version", max_version_level=level, upgrade_type=3)
    return UpdateFeaturesRequest(feature_updates=(update,), validate_only=False, timeout_ms=1000)


def test_what_fits_into_one_append_is_one_batch_and_no_transaction():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        before = transactions_of(disk)
        await controller.create_topics(create(topic("a", APPEND_RECORDS - 1)))
        assert transactions_of(disk) == before
        assert len(batches_of(disk)[-1]) == APPEND_RECORDS

    run(story())


def test_every_large_operation_is_one_transaction_of_small_batches():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        names = [f"t{number}" for number in range(MANY)]
        assert not any(row.error_code for row in (await controller.create_topics(create(topic("a", MANY)))).topics)
        assert not any(row.error_code for row in (await controller.create_partitions(grow("a", 2 * MANY))).results)
        await controller.create_topics(create(*map(topic, names)))
        altered = await controller.incremental_alter_configs(retention(names))
        assert not any(row.error_code for row in altered.responses)
        await controller.delete_topics(delete_all(names))
        kinds = ["CreateTopics", "CreatePartitions", "CreateTopics", "IncrementalAlterConfigs", "DeleteTopics"]
        written = transactions_of(disk)[1:]
        assert [(name, end) for name, _, end in written] == [(kind, "End") for kind in kinds]
        assert all(count >= 4 for _, count, _ in written)
        assert max(map(len, batches_of(disk))) <= APPEND_RECORDS + 1
        found = controller.image.topic("a")
        assert found is not None and len(found.partitions) == 2 * MANY
        assert set(controller.image.topics) == {"a"} and not controller.image.configs

    run(story())


def test_no_reader_sees_a_topic_before_it_is_whole():
    """Scenario 100 on the leader: no image before End, one after it."""

    async def story() -> None:
        controller = await started(new_disk())
        seen: list[tuple[ImageDelta, MetadataImage]] = []
        controller.subscribe(lambda delta, image: seen.append((delta, image)))
        seen.clear()
        task = await begun(controller.create_topics(create(topic("a", LONG))))
        while not task.done():
            found = controller.image.topic("a")
            assert len(found.partitions) == LONG if found else not seen
            await asyncio.sleep(0)
        assert len(seen) == 1
        delta, image = seen[0]
        assert len(delta.changed_topics[0].partitions) == LONG
        assert image is controller.image and len(image.topics["a"].partitions) == LONG

    run(story())


def test_a_request_that_writes_nothing_is_answered_while_a_transaction_is_open():
    """Scenario 109: heartbeats, and questions that are refused or only validated."""

    async def story() -> None:
        controller = await started(new_disk())
        epoch = controller.image.brokers[1].epoch
        task = await begun(controller.create_topics(create(topic("a", LONG))))
        beat = await asyncio.wait_for(controller.heartbeat(beat_of(1, epoch, controller.image.offset)), 1)
        checked = await controller.create_topics(create(topic("a", 3), validate_only=True))
        refused = await controller.create_topics(create(topic("no such name!")))
        assert not task.done()
        assert beat.error_code == 0 and not beat.is_fenced
        assert checked.topics[0].error_code == 0, "decided on what others see: there is no topic 'a' yet"
        assert refused.topics[0].error_code == 17
        assert (await task).topics[0].error_code == 0

    run(story())


def test_a_request_that_writes_waits_in_line_and_is_decided_after_the_transaction():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        epoch = controller.image.brokers[1].epoch
        first = await begun(controller.create_topics(create(topic("a", LONG))))
        again = asyncio.ensure_future(controller.create_topics(create(topic("a", 1))))
        other = asyncio.ensure_future(controller.create_topics(create(topic("b", MANY))))
        block = asyncio.ensure_future(
            controller.allocate_producer_ids(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
        )
        await turns(2)
        assert not again.done() and not other.done() and not block.done()
        answers = await asyncio.gather(first, again, other, block)
        assert [answer.topics[0].error_code for answer in answers[:3]] == [0, 36, 0]
        assert answers[3].error_code == 0
        inside = False
        for record in (record for batch in batches_of(disk) for record in batch):
            if isinstance(record, BeginTransaction):
                inside = True
            elif isinstance(record, EndTransaction):
                inside = False
            assert not (inside and type(record).__name__ == "ProducerIds"), "a foreign record inside a transaction"

    run(story())


def test_a_change_without_a_waiting_caller_goes_on_to_its_end():
    async def story() -> None:
        controller = await started(new_disk())
        task = await begun(controller.create_topics(create(topic("a", LONG))))
        task.cancel()
        assert (await controller.create_topics(create(topic("b")))).topics[0].error_code == 0
        found = controller.image.topic("a")
        assert found is not None and len(found.partitions) == LONG

    run(story())


def test_a_controller_that_stops_aborts_what_is_half_done():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        image = controller.image
        task = await begun(controller.create_topics(create(topic("a", LONG))))
        waiting = asyncio.ensure_future(controller.create_topics(create(topic("b"))))
        await asyncio.sleep(0)
        await controller.stop()
        for refused in (task, waiting):
            with pytest.raises(NotController):
                await refused
        assert transactions_of(disk)[-1][0::2] == ("CreateTopics", "Abort Controller shutdown")
        again = new_controller(disk)
        await again.start()
        assert again.image.topics == image.topics

    run(story())


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_controller_that_dies_leaves_the_abort_to_the_next(power_cut: bool):
    """Scenario 107: nothing of the topic is ever seen, and the log says why."""

    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        image = controller.image
        task = await begun(controller.create_topics(create(topic("a", LONG))))
        await turns(8)
        disk.crash(power_cut=power_cut)
        again = new_controller(disk)
        seen: list[MetadataImage] = []
        again.subscribe(lambda delta, image: seen.append(image))
        await again.start()
        assert again.image.topics == image.topics
        assert all("a" not in one.topics for one in seen)
        assert transactions_of(disk)[-1][0::2] == ("CreateTopics", "Abort Controller failover")
        await register(again, incarnation=2)
        assert (await again.create_topics(create(topic("a", 2)))).topics[0].error_code == 0
        task.cancel()

    run(story())


def test_a_lost_log_fails_waiting_callers_with_an_error_to_try_again_on():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        image = controller.image
        task = await begun(controller.create_topics(create(topic("a", LONG))))
        waiting = asyncio.ensure_future(controller.create_topics(create(topic("b"))))
        await asyncio.sleep(0)
        controller._failed(NotController("the disk is gone"))
        for refused in (task, waiting):
            with pytest.raises(NotController, match="the disk is gone"):
                await refused
        assert controller.image is image and controller.transaction is None, "what was not committed is forgotten"

    run(story())


def test_the_level_does_not_go_down_while_a_transaction_is_open():
    async def story() -> None:
        controller = await started(new_disk())
        task = await begun(controller.create_topics(create(topic("a", LONG))))
        with pytest.raises(InvalidUpdateVersion, match="transaction is open"):
            await controller.update_features(lower(12))
        await task

    run(story())


def test_more_partitions_than_the_setting_allows_are_refused_by_its_name():
    async def story() -> None:
        controller = await started(new_disk(), max_partitions_per_request="50")
        response = await controller.create_topics(create(topic("a", 30), topic("b", 30)))
        assert [row.error_code for row in response.topics] == [0, PolicyViolation.code]
        assert "max.partitions.per.request=50" in (response.topics[1].error_message or "")

    run(story())


@pytest.mark.parametrize("text", ["x" * 300, "é" * 200, "short", ""])
def test_texts_of_a_transaction_are_cut_at_a_character(text: str):
    cut = shortened(text)
    assert text.startswith(cut) and len(cut.encode()) <= MAX_TEXT_BYTES
    assert cut == text or len(cut.encode()) > MAX_TEXT_BYTES - 4


def test_the_log_of_large_operations_folds_to_the_live_image():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        await controller.create_topics(create(topic("a", MANY)))
        await controller.delete_topics(delete_all(["a"]))
        await controller.create_topics(create(topic("a", MANY), topic("b", MANY)))
        records = [record for batch in batches_of(disk) for record in batch]
        assert fold(records).image.topics == controller.image.topics

    run(story())
