"""In which directories replicas are, and what becomes of them when one fails or is cordoned."""

from uuid import UUID

import pytest

from kits.metadata.controller import after, beat_of, context, create, create_topics, fold, heartbeat, topic
from kits.metadata.partitions import TOPIC_ID, assign_directories, cluster, epoch_of, state
from twofold.controller.image import MetadataImage
from twofold.controller.records import BrokerRegistrationChange
from twofold.controller.replay import ControllerState
from twofold.wire.message import replace
from twofold.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)

ONE, OTHER = UUID(int=1 << 64), UUID(int=11 << 64)


def assigned(
    image: MetadataImage, directory: UUID, *, broker: int = 1, index: int = 0, topic_id: UUID = TOPIC_ID
) -> tuple[int, MetadataImage]:
    rows = (TopicData(topic_id=topic_id, partitions=(PartitionData(partition_index=index),)),)
    request = AssignReplicasToDirsRequest(
        broker_id=broker, broker_epoch=epoch_of(broker), directories=(DirectoryData(id_=directory, topics=rows),)
    )
    result = assign_directories(image, request, context(image))
    code = result.response.directories[0].topics[0].partitions[0].error_code
    return code, after(image, result.records)


def two_directories(image: MetadataImage) -> MetadataImage:
    change = BrokerRegistrationChange(1, 101, log_dirs=(ONE, OTHER))
    return fold([change], ControllerState(image)).image


def test_a_replica_is_where_its_broker_says():
    image = two_directories(cluster())
    code, image = assigned(image, OTHER)
    assert (code, state(image).directories[0], state(image).leader_epoch, state(image).partition_epoch) == (
        0,
        OTHER,
        0,
        1,
    )
    assert assigned(image, OTHER) == (0, image)


@pytest.mark.parametrize(("changed", "code"), [({"topic_id": ONE}, 100), ({"index": 4}, 3), ({"broker": 4}, 6)])
def test_rows_that_are_refused(changed: dict[str, int], code: int):
    image = cluster(brokers=(1, 2, 3, 4))
    assert assigned(image, ONE, **changed) == (code, image)  # type: ignore[arg-type]


def test_a_directory_that_is_not_registered_is_offline():
    code, image = assigned(cluster(), OTHER)
    assert (code, state(image).isr, state(image).leader, state(image).directories[0]) == (0, (2, 3), 2, OTHER)


def test_replicas_in_a_directory_that_failed_leave_the_isr():
    image = two_directories(cluster({"directories": (OTHER, UUID(int=2 << 64), UUID(int=3 << 64))}, {}))
    beat = replace(beat_of(1, 101, image.offset), offline_log_dirs=(OTHER,))
    image = after(image, heartbeat(image, beat, context(image)).records)
    assert (state(image).isr, state(image).leader) == ((2, 3), 2)
    assert (state(image, 1).isr, state(image, 1).leader) == ((1, 2, 3), 1)
    assert image.brokers[1].log_dirs == (ONE,)
    assert heartbeat(image, beat, context(image)).records == []


def test_a_cordoned_broker_gets_nothing_by_itself():
    image = cluster()
    beat = replace(beat_of(1, 101, image.offset), cordoned_log_dirs=(ONE,))
    result = heartbeat(image, beat, context(image))
    assert result.records == [BrokerRegistrationChange(1, 101, cordoned_log_dirs=(ONE,))]
    image = after(image, result.records)
    assert heartbeat(image, beat, context(image)).records == []

    created = create_topics(
        image, create(topic("a", 6, 2), topic("b", 1, 3), topic("c", -1, -1, {0: [1]})), context(image)
    )
    assert [row.error_code for row in created.response.topics] == [0, 38, 0]
    image = after(image, created.records)
    assert all(1 not in partition.replicas for _, partition in image.topics["a"].in_order())
    assert image.topics["c"].partitions[0].replicas == (1,)

    beat = replace(beat, cordoned_log_dirs=())
    image = after(image, heartbeat(image, beat, context(image)).records)
    assert not image.brokers[1].is_cordoned
