"""Registration, heartbeats and producer ids."""

from typing import Any
from uuid import UUID

import pytest

from kits.metadata.controller import (
    after,
    allocate_producer_ids,
    beat_of,
    broker_records,
    context,
    create,
    create_topics,
    fold,
    heartbeat,
    image_with,
    register_broker,
    registration,
    topic,
)
from twofold.controller.brokers import PRODUCER_ID_BLOCK_SIZE
from twofold.controller.features import initial_levels
from twofold.controller.image import MetadataImage
from twofold.controller.records import (
    BrokerRegistrationChange,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
)
from twofold.controller.replay import ControllerState
from twofold.wire.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRegistration,
    KafkaError,
    StaleBrokerEpoch,
    UnknownServerError,
    UnsupportedVersion,
)
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from twofold.wire.messages.broker_registration import Feature

EMPTY = fold(initial_levels()).image


def register(image: MetadataImage, *, alive: bool = False, **changes: Any) -> Any:
    return register_broker(image, registration(**changes), context(image), lambda broker_id: alive)


def test_a_new_broker_is_registered_fenced_with_the_offset_as_its_epoch():
    result = register(EMPTY)
    record = result.records[-1]
    assert isinstance(record, RegisterBroker)
    assert record.fenced
    assert result.response.broker_epoch == record.broker_epoch == EMPTY.offset + 1
    broker = after(EMPTY, result.records).broker(1)
    assert broker is not None and broker.registered_at == broker.epoch
    assert broker.end_point("PLAINTEXT") is not None and broker.end_point("SSL") is None


def test_the_same_incarnation_amends_and_keeps_epoch_and_fencing():
    image = after(EMPTY, register(EMPTY).records)
    epoch = EMPTY.offset + 1
    image = after(image, [BrokerRegistrationChange(1, epoch, fenced=-1)])
    result = register(image, alive=True, rack="r")
    assert result.response.broker_epoch == epoch
    broker = after(image, result.records).broker(1)
    assert broker is not None and not broker.fenced and broker.rack == "r"


def test_a_new_incarnation_gets_a_new_epoch_and_starts_fenced():
    image = image_with(1)
    result = register(image, incarnation=2)
    broker = after(image, result.records).broker(1)
    assert broker is not None and broker.fenced and broker.epoch == image.offset + 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cluster_id": "other"}, InconsistentClusterId),
        ({"is_migrating_zk_broker": True}, BrokerIdNotRegistered),
        ({"log_dirs": ()}, InvalidRegistration),
        ({"log_dirs": (UUID(int=5), UUID(int=5))}, InvalidRegistration),
        ({"log_dirs": (None,)}, InvalidRegistration),
        ({"log_dirs": (UUID(int=2 << 64),)}, InvalidRegistration),
        ({"features": ()}, InvalidRegistration),
        (
            {"features": (Feature(name="metadata.version", min_supported_version=7, max_supported_version=29),)},
            UnsupportedVersion,
        ),
        (
            {"features": (Feature(name="metadata.version", min_supported_version=7, max_supported_version=30),)},
            UnsupportedVersion,
        ),
    ],
)
def test_registrations_that_are_refused(changes: dict[str, Any], error: type[KafkaError]):
    with pytest.raises(error):
        register(image_with(2), **changes)


def test_a_living_brokers_id_is_not_given_to_another_process():
    with pytest.raises(DuplicateBrokerRegistration, match=r"node\.id"):
        register(image_with(1), alive=True, incarnation=2)


def led_by_one() -> MetadataImage:
    image = image_with(1, 2)
    asked = create(topic("both", -1, -1, {0: [1, 2], 1: [2, 1]}), topic("alone", -1, -1, {0: [1]}))
    return after(image, create_topics(image, asked, context(image)).records)


def partitions_of(image: MetadataImage) -> dict[tuple[str, int], tuple[int, tuple[int, ...], int, int]]:
    return {
        (found.name, index): (p.leader, p.isr, p.leader_epoch, p.partition_epoch)
        for found in image.topics_in_order()
        for index, p in found.in_order()
    }


def test_what_a_former_incarnation_led_goes_to_others_or_waits():
    image = led_by_one()
    result = register(image, incarnation=2)
    assert isinstance(result.records[-1], RegisterBroker), "the registration comes last"
    assert partitions_of(after(image, result.records)) == {
        ("alone", 0): (-1, (1,), 1, 1),
        ("both", 0): (2, (2,), 1, 1),
        ("both", 1): (2, (2,), 0, 1),
    }


def beat(image: MetadataImage, epoch: int, *, offset: int | None = None, **wishes: bool) -> Any:
    return heartbeat(image, beat_of(1, epoch, image.offset if offset is None else offset, **wishes), context(image))


def test_a_heartbeat_that_saw_its_registration_unfences_and_leads_again():
    image = led_by_one()
    image = after(image, register(image, incarnation=2).records)
    epoch = led_by_one().offset + 1
    early = beat(image, epoch, offset=image.offset - 1)
    assert early.records == [] and early.response.is_fenced and not early.response.is_caught_up
    result = beat(image, epoch)
    assert not result.response.is_fenced and result.response.is_caught_up
    image = after(image, result.records)
    assert image.broker(1).is_active  # type: ignore[union-attr]
    assert partitions_of(image)[("alone", 0)] == (1, (1,), 2, 2)
    assert partitions_of(image)[("both", 0)] == (2, (2,), 1, 1)


def test_heartbeats_of_a_healthy_broker_write_nothing():
    result = beat(image_with(1), 101)
    assert result.records == []
    assert not result.response.should_shut_down


def test_the_only_broker_shuts_down_at_once():
    image = after(led_by_one(), [BrokerRegistrationChange(2, 102, fenced=1)])
    result = beat(image, 101, want_shut_down=True)
    assert result.response.should_shut_down and result.response.is_fenced
    image = after(image, result.records)
    assert image.broker(1).fenced  # type: ignore[union-attr]
    assert partitions_of(image)[("alone", 0)][:2] == (-1, (1,))
    again = beat(image, 101, want_shut_down=True)
    assert again.records == [] and again.response.should_shut_down


def test_a_broker_that_wants_to_stay_fenced_does():
    image = fold([*initial_levels(), *broker_records(1, fenced=True)]).image
    assert beat(image, 101, want_fence=True).records == []
    assert isinstance(beat(image_with(1), 101, want_fence=True).records[-1], BrokerRegistrationChange)


def test_heartbeats_of_strangers_and_of_the_past_are_refused():
    with pytest.raises(StaleBrokerEpoch, match="not registered"):
        beat(EMPTY, 1)
    with pytest.raises(StaleBrokerEpoch, match="101"):
        beat(image_with(1), 100)


def test_producer_ids_come_in_blocks_that_never_overlap():
    image = image_with(1)
    starts = []
    for _ in range(3):
        result = allocate_producer_ids(image, AllocateProducerIdsRequest(broker_id=1, broker_epoch=101), context(image))
        assert result.response.producer_id_len == PRODUCER_ID_BLOCK_SIZE == 1000
        starts.append(result.response.producer_id_start)
        image = after(image, result.records)
    assert starts == [0, 1000, 2000]
    assert image.next_producer_id == 3000


def test_producer_ids_are_for_registered_brokers_of_this_epoch():
    for broker_id, epoch in ((2, 101), (1, 5)):
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        with pytest.raises(StaleBrokerEpoch):
            allocate_producer_ids(image_with(1), request, context())


def test_the_last_producer_ids_are_never_given_away_twice():
    state = ControllerState(after(image_with(1), [ProducerIds(1, 101, 2**63 - 1000)]))
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=101)
    with pytest.raises(UnknownServerError):
        allocate_producer_ids(state.image, request, context())


def test_leaving_is_told_in_an_order_that_does_not_depend_on_the_process():
    image = image_with(1)
    names = [f"topic-{number}" for number in range(20)]
    image = after(image, create_topics(image, create(*(topic(name) for name in names)), context(image)).records)
    changes = [r for r in beat(image, 101, want_shut_down=True).records if isinstance(r, PartitionChange)]
    assert [image.topic_names[change.topic_id] for change in changes] == sorted(names)
