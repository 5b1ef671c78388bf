"""The controller as a whole: machine, metadata log and images on a disk that forgets."""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.metadata.controller import (
    DIRECTORY_ID,
    LOG_DIR,
    ManualClock,
    beat_of,
    create,
    disk_runtime,
    fold,
    new_controller,
    new_disk,
    register,
    registration,
    run,
    shut_down,
    topic,
)
from twofold.controller.delta import ImageDelta
from twofold.controller.features import initial_levels
from twofold.controller.image import MetadataImage
from twofold.controller.records import (
    BeginTransaction,
    Config,
    EndTransaction,
    MetadataRecord,
    Partition,
    ProducerIds,
    RemoveTopic,
    Topic,
    decode,
    encode,
)
from twofold.metadata_log.errors import CorruptMetadataLog
from twofold.metadata_log.metadata_log import MetadataLog
from twofold.quorum.controller import Controller
from twofold.runtime.sim import PowerCut, SimDisk
from twofold.wire.errors import KafkaError, KafkaStorageError, NotController, PolicyViolation
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from twofold.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from twofold.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)


async def started(disk: SimDisk, **settings_: str) -> Controller:
    controller = new_controller(disk, **settings_)
    await controller.start()
    return controller


async def restarted(disk: SimDisk, *, power_cut: bool = True) -> Controller:
    disk.crash(power_cut=power_cut)
    return await started(disk)


def delete(name: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=(DeleteTopicState(name=name, topic_id=None),), timeout_ms=1000)


def grow(name: str, count: int) -> CreatePartitionsRequest:
    row = CreatePartitionsTopic(name=name, count=count, assignments=None)
    return CreatePartitionsRequest(topics=(row,), timeout_ms=1000, validate_only=False)


def set_config(kind: int, name: str, key: str, value: str) -> IncrementalAlterConfigsRequest:
    change = AlterableConfig(name=key, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=(change,))
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)


def test_a_new_cluster_starts_with_its_features():
    async def story() -> None:
        controller = await started(new_disk())
        assert dict(controller.image.features) == {"metadata.version": 30, "transaction.version": 2, "group.version": 1}
        assert controller.image.offset >= 0
        assert controller.leader_epoch == 1

    run(story())


def test_a_request_returns_when_it_is_durable_and_every_subscriber_has_seen_it():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        await register(controller)
        seen: list[MetadataImage] = []
        controller.subscribe(lambda delta, image: seen.append(image))
        response = await controller.create_topics(create(topic("a", 3)))
        assert response.topics[0].error_code == 0
        assert seen[-1] is controller.image
        assert seen[-1].topic("a") is not None
        again = await restarted(disk)
        assert again.image == controller.image

    run(story())


def test_a_request_in_flight_is_seen_by_the_next_but_by_no_reader():
    async def story() -> None:
        controller = await started(new_disk())
        await register(controller)
        first = asyncio.ensure_future(controller.create_topics(create(topic("a"))))
        await asyncio.sleep(0)
        assert controller.image.topic("a") is None
        second = await controller.create_topics(create(topic("a")))
        assert second.topics[0].error_code == 36
        assert (await first).topics[0].error_code == 0

    run(story())


def test_subscribers_begin_with_all_there_is_and_follow_by_deltas():
    async def story() -> None:
        controller = await started(new_disk())
        await register(controller)
        await controller.create_topics(create(topic("a", 2), topic("b.c", 1, retention_ms="5")))
        followed = MetadataImage()

        def follow(delta: ImageDelta, image: MetadataImage) -> None:
            nonlocal followed
            followed = delta.apply(followed)
            assert followed == image

        controller.subscribe(follow)
        assert followed == controller.image
        await controller.delete_topics(delete("a"))
        await controller.create_topics(create(topic("a", 1)))
        await controller.create_partitions(grow("a", 4))
        await controller.incremental_alter_configs(set_config(2, "a", "retention.ms", "9"))
        assert followed == controller.image

    run(story())


def test_a_subscriber_that_fails_does_not_stop_the_others():
    async def story() -> None:
        controller = await started(new_disk())
        await register(controller)
        offsets: list[int] = []

        def broken(delta: ImageDelta, image: MetadataImage) -> None:
            if image.topics:
                raise RuntimeError("broken")

        controller.subscribe(broken)
        controller.subscribe(lambda delta, image: offsets.append(delta.offset))
        assert (await controller.create_topics(create(topic("a")))).topics[0].error_code == 0
        assert offsets[-1] == controller.image.offset

    run(story())


def test_every_life_leads_a_new_epoch_and_producer_ids_never_repeat():
    async def story() -> None:
        disk = new_disk()
        starts = []
        for life in range(1, 4):
            controller = await started(disk)
            assert controller.leader_epoch == life
            epoch = await register(controller, incarnation=life)
            for _ in range(2):
                block = await controller.allocate_producer_ids(
                    AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)
                )
                starts.append(block.producer_id_start)
            disk.crash()
        assert starts == [0, 1000, 2000, 3000, 4000, 5000]

    run(story())


def test_a_broker_that_comes_back_leads_again_in_a_new_leader_epoch():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        await register(controller)
        await controller.create_topics(create(topic("a")))
        for incarnation, clean in ((2, False), (3, True)):
            if clean:
                broker = controller.image.broker(1)
                assert broker is not None
                assert (await shut_down(controller, 1, broker.epoch)).should_shut_down
                await controller.stop()
            controller = await restarted(disk)
            if not clean:
                assert controller.image.broker(1).fenced is False  # type: ignore[union-attr]
            await register(controller, incarnation=incarnation)
            partition = controller.image.partition("a", 0)
            assert partition is not None
            assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1,), 2 * (incarnation - 1))

    run(story())


def test_registration_heartbeat_and_ids_answer_errors_as_codes():
    async def story() -> None:
        controller = await started(new_disk())
        assert (await controller.register_broker(registration(cluster_id="other"))).error_code == 104
        assert (await controller.heartbeat(beat_of(1, 5, 0))).error_code == 77
        request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=5)
        assert (await controller.allocate_producer_ids(request)).error_code == 77
        epoch = await register(controller)
        assert (await controller.heartbeat(beat_of(1, epoch + 1, 0))).error_code == 77
        request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch + 1)
        assert (await controller.allocate_producer_ids(request)).error_code == 77

    run(story())


def test_an_id_is_free_for_another_process_once_its_session_ran_out_or_it_said_goodbye():
    async def story() -> None:
        controller = await started(new_disk(), broker_session_timeout_ms="9000")
        clock = controller._runtime.clock
        assert isinstance(clock, ManualClock)
        await register(controller, incarnation=1)
        clock.now += 8
        assert (await controller.register_broker(registration(incarnation=2))).error_code == 101
        clock.now += 2
        epoch = await register(controller, incarnation=2)
        await shut_down(controller, 1, epoch)
        assert (await controller.register_broker(registration(incarnation=3))).error_code == 0

    run(story())


def test_after_stop_everything_is_refused_and_nothing_is_lost():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        await register(controller)
        pending = asyncio.ensure_future(controller.create_topics(create(topic("a"))))
        await asyncio.sleep(0)
        await controller.stop()
        assert (await pending).topics[0].error_code == 0
        with pytest.raises(NotController):
            await controller.create_topics(create(topic("b")))
        assert not controller.is_leader
        again = await restarted(disk)
        assert list(again.image.topics) == ["a"]

    run(story())


def test_before_start_requests_are_refused_with_a_retriable_error():
    async def story() -> None:
        controller = new_controller(new_disk())
        with pytest.raises(NotController) as refused:
            await controller.create_topics(create(topic("a")))
        assert refused.value.retriable

    run(story())


def test_a_failed_sync_fails_what_waits_and_tells_the_owner():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        told: list[KafkaError] = []
        controller._on_failure = told.append
        await register(controller)
        before = controller.image
        disk.fail_syncs(match=".log", lose=True)
        with pytest.raises(NotController, match="failed"):
            await controller.create_topics(create(topic("a")))
        assert len(told) == 1
        assert controller.image is before
        with pytest.raises(NotController):
            await controller.create_topics(create(topic("b")))
        with pytest.raises(KafkaStorageError, match="cannot be synced"):  # the folder is not whole
            await controller.stop()

    run(story())


def test_what_a_crash_left_is_shown_only_once_the_new_epoch_is_durable():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        await register(controller)
        await controller.create_topics(create(topic("a")))
        disk.crash()
        disk.fail_syncs(times=10, match="00000.log")
        again = new_controller(disk)
        with pytest.raises(NotController):
            await again.start()
        assert again.image == MetadataImage()
        assert not again.is_leader
        disk.clear_faults()
        assert (await restarted(disk)).image.topic("a") is not None

    run(story())


def test_a_failed_write_changes_nothing():
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        await register(controller)
        before = controller.image
        disk.fail_writes(match=".log")
        with pytest.raises(KafkaError) as failed:
            await controller.create_topics(create(topic("a")))
        assert failed.value.retriable
        assert controller.image is before
        assert controller._machine.state.image is before

    run(story())


def test_more_bytes_than_one_batch_holds_are_a_transaction():
    async def story() -> None:
        controller = await started(new_disk())
        await register(controller)
        replicas = ",".join(["1:1"] * 500_000)
        asked = [topic(f"t{n}", 1, 1, follower_replication_throttled_replicas=replicas) for n in range(5)]
        response = await controller.create_topics(create(*asked))
        assert [row.error_code for row in response.topics] == [0] * 5
        assert len(controller.image.topics) == 5

    run(story())


@pytest.mark.parametrize("before", [0, 600])
def test_a_record_that_no_batch_holds_is_refused_and_nothing_of_its_request_is_left(before: int):
    async def story() -> None:
        controller = await started(new_disk())
        await register(controller)
        small = [topic(f"t{number}", 1) for number in range(600)]
        giant = topic("giant", 1, 1, follower_replication_throttled_replicas=",".join(["1:1"] * 2_200_000))
        with pytest.raises(PolicyViolation, match="8388608"):
            await controller.create_topics(create(*small[:before], giant, *small[before:]))
        assert not controller.image.topics and controller.transaction is None
        assert (await controller.create_topics(create(topic("t1")))).topics[0].error_code == 0

    run(story())


# -- replay


async def write_log(disk: SimDisk, records: list[MetadataRecord]) -> None:
    """A log of one batch per record, as a predecessor that died at any point may have left it."""
    log = MetadataLog(
        disk_runtime(disk),
        LOG_DIR,
        node_id=1,
        directory_id=DIRECTORY_ID,
    )
    for _ in log.replay():
        pass
    await log.become_leader()
    for record in records:
        log.append([encode(record)], log.epoch)
    await log.close()


def _history() -> list[MetadataRecord]:
    a, b = UUID(int=1 << 64), UUID(int=2 << 64)
    return [
        BeginTransaction("Bootstrap records"),
        *initial_levels(),
        EndTransaction(),
        Topic("a", a),
        Partition(0, a, (1,), (1,), 1),
        BeginTransaction("Create topics"),
        Topic("b", b),
        Config(2, "b", "retention.ms", "1"),
        Partition(0, b, (1,), (1,), 1),
        Partition(1, b, (1,), (1,), 1),
        EndTransaction(),
        BeginTransaction("Delete topics"),
        RemoveTopic(a),
        RemoveTopic(b),
        EndTransaction(),
    ]


def test_a_predecessor_that_died_after_any_record_leaves_whole_transactions_only():
    async def story() -> None:
        history = _history()
        for length in range(len(history) + 1):
            disk = new_disk()
            await write_log(disk, history[:length])
            controller = await started(disk)
            state = fold(history[:length])
            stable = state.image if state.transaction is None else state.transaction.before
            image = controller.image
            expected = stable if not stable.is_empty else fold(initial_levels()).image
            assert replace(image, offset=0) == replace(expected, offset=0)
            assert ("b" in image.topics) == (13 <= length <= 16)
            again = await restarted(disk)
            assert again.image == image, "what was aborted stays aborted, and nothing is written twice"

    run(story())


def test_nothing_of_an_open_transaction_is_ever_published():
    async def story() -> None:
        for length in range(4, len(_history()) + 1):
            disk = new_disk()
            await write_log(disk, _history()[:length])
            controller = new_controller(disk)
            shown: list[frozenset[str]] = []

            def show(_: ImageDelta, image: MetadataImage, shown: list[frozenset[str]] = shown) -> None:
                shown.append(frozenset(image.topics))

            controller.subscribe(show)
            await controller.start()
            assert len(shown) == 1
            assert shown[0] in (frozenset(), {"a"}, {"a", "b"})

    run(story())


def test_a_log_with_records_that_cannot_be_applied_stops_the_start_and_says_where():
    async def story() -> None:
        for record, reason in (
            (bytes.fromhex("01070000"), "FenceBroker"),
            (b"\x01\x02", "no record type"),
            (encode(ProducerIds(1, 1, 0)), "producer ids"),
        ):
            disk = new_disk()
            controller = await started(disk)
            offset = controller._log.append([record], controller._log.epoch)
            await controller.stop()
            with pytest.raises(CorruptMetadataLog, match=rf"(?s)offset {offset} .*{reason}"):
                await started(disk)

    run(story())


def test_every_record_in_the_log_can_be_decoded_again():
    async def story() -> None:
        controller = await started(new_disk())
        await register(controller)
        await controller.create_topics(create(topic("a", 2, retention_ms="1")))
        await controller.delete_topics(delete("a"))
        records = [decode(value) for batch in controller._log.replay() for value in batch.values]
        assert fold([], None) is not None and None not in records
        assert RemoveTopic in {type(record) for record in records}

    run(story())


# -- any sequence of requests, any crash

NAMES = ("a", "b", "a.b", "a_b")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from(NAMES), st.integers(0, 4)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("grow"), st.sampled_from(NAMES), st.integers(1, 6)),
        st.tuples(st.just("config"), st.sampled_from(NAMES), st.integers(-3, 9)),
        st.tuples(st.just("ids"), st.just(""), st.just(0)),
        st.tuples(st.just("restart"), st.just(""), st.integers(0, 1)),
    ),
    max_size=25,
)


async def ask(controller: Controller, epoch: int, kind: str, name: str, number: int) -> Any:
    if kind == "create":
        return await controller.create_topics(create(topic(name, number)))
    if kind == "delete":
        return await controller.delete_topics(delete(name))
    if kind == "grow":
        return await controller.create_partitions(grow(name, number))
    if kind == "config":
        return await controller.incremental_alter_configs(set_config(2, name, "retention.ms", str(number)))
    return await controller.allocate_producer_ids(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_replaying_the_log_gives_the_live_image(steps: list[tuple[str, str, int]]):
    async def story() -> None:
        disk = new_disk()
        controller = await started(disk)
        incarnation = 1
        epoch = await register(controller)
        followed = MetadataImage()

        def follow(delta: ImageDelta, image: MetadataImage) -> None:
            nonlocal followed
            followed = delta.apply(followed)

        controller.subscribe(follow)
        for kind, name, number in steps:
            if kind != "restart":
                await ask(controller, epoch, kind, name, number)
                assert followed == controller.image == controller._machine.state.image
                continue
            before = controller.image
            controller = await restarted(disk, power_cut=bool(number))
            assert controller.image == before
            incarnation += 1
            epoch = await register(controller, incarnation=incarnation)
            followed = MetadataImage()
            controller.subscribe(follow)

    run(story())


SCRIPT = [
    ("create", "a", 3),
    ("config", "a", 5),
    ("ids", "", 0),
    ("create", "a.b", 2),
    ("grow", "a", 5),
    ("delete", "a.b", 0),
    ("create", "b", 1),
]


async def run_script(disk: SimDisk, done: list[MetadataImage], blocks: list[int], *, incarnation: int) -> None:
    controller = await started(disk)
    epoch = await register(controller, incarnation=incarnation)
    for kind, name, number in SCRIPT:
        answer = await ask(controller, epoch, kind, name, number)
        done.append(controller.image)
        if kind == "ids":
            blocks.append(answer.producer_id_start)


async def run_until_the_power_goes(disk: SimDisk, done: list[MetadataImage], blocks: list[int]) -> bool:
    """Whether the script came to its end. Nothing here waits for a clock, so a script that is stuck is dead."""
    survivors = asyncio.all_tasks()
    task = asyncio.ensure_future(run_script(disk, done, blocks, incarnation=1))
    for _ in range(2000):
        await asyncio.sleep(0)
        if task.done():
            break
    if task.done() and task.exception() is None:
        return True
    others = asyncio.all_tasks() - survivors
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if task.done() and not task.cancelled():
        assert isinstance(task.exception(), PowerCut | KafkaError)
    return False


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_operation_of_the_disk_loses_nothing_that_was_answered(seed: int):
    def expected_topics(image: MetadataImage) -> dict[str, list[int]]:
        return {found.name: sorted(found.partitions) for found in image.topics_in_order()}

    async def one(cut_after: int) -> bool:
        disk = new_disk(seed * 1000 + cut_after)
        disk.cut_power_after(cut_after)
        done: list[MetadataImage] = []
        blocks: list[int] = []
        finished = await run_until_the_power_goes(disk, done, blocks)
        disk.crash()
        if not disk.is_dir(LOG_DIR):
            return finished
        controller = await started(disk)
        image = controller.image
        if done:
            assert image.offset >= done[-1].offset
        found = expected_topics(image)
        # Whole requests only: the state is one of those that the script goes through, and not an earlier one.
        allowed: list[dict[str, list[int]]] = [
            {},
            {"a": [0, 1, 2]},
            {"a": [0, 1, 2]},
            {"a": [0, 1, 2]},
            {"a": [0, 1, 2], "a.b": [0, 1]},
            {"a": [0, 1, 2, 3, 4], "a.b": [0, 1]},
            {"a": [0, 1, 2, 3, 4]},
            {"a": [0, 1, 2, 3, 4], "b": [0]},
        ]
        assert found in allowed[len(done) : len(done) + 2]
        assert all(image.next_producer_id > start for start in blocks)
        epoch = await register(controller, incarnation=2)
        request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)
        assert (await controller.allocate_producer_ids(request)).producer_id_start not in blocks
        return finished

    async def story() -> None:
        order = Random(seed)
        cuts = 0
        finished = False
        while not finished:
            finished = await one(cuts)
            cuts += 1 if seed == 0 else order.randint(1, 4)
        assert cuts > 30

    run(story())
