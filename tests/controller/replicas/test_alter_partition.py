"""AlterPartition, rule by rule."""

from typing import Any

import pytest

from kits.metadata.controller import after, context, incremental_alter_configs
from kits.metadata.partitions import TOPIC_ID, alter_partition, altered, cluster, in_sync, moving, state
from kits.metadata.partitions import alter_reassignments as reassign
from twofold.controller.records import BrokerRegistrationChange, ClearElr, Config, PartitionChange
from twofold.controller.replicas.change import RECOVERING
from twofold.wire.errors import StaleBrokerEpoch
from twofold.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)


def test_a_shrink_raises_the_partition_epoch_and_not_the_leader_epoch():
    image = cluster()
    row, image = altered(image, [1, 3])
    assert (row.error_code, tuple(row.isr), row.leader_id, row.leader_epoch, row.partition_epoch) == (
        0,
        (1, 3),
        1,
        0,
        1,
    )
    assert state(image).isr == (1, 3)


def test_a_member_comes_back_and_the_order_is_that_of_the_request():
    image = cluster({"isr": (1,)})
    row, image = altered(image, [1, 3, 2])
    assert row.error_code == 0 and state(image).isr == (1, 3, 2)


def test_a_change_that_changes_nothing_succeeds_without_a_record():
    image = cluster()
    row, changed = altered(image, [1, 2, 3])
    assert (row.error_code, row.partition_epoch) == (0, 0) and changed == image


def test_version_2_names_members_without_epochs():
    row, _ = altered(cluster(), [], new_isr=(1, 2), new_isr_with_epochs=())
    assert (row.error_code, tuple(row.isr)) == (0, (1, 2))


@pytest.mark.parametrize(
    ("isr", "changed", "code"),
    [
        ([1], {"topic_id": None}, 100),
        ([1], {"index": 5}, 3),
        ([1], {"leader_epoch": 8}, 41),
        ([1], {"partition_epoch": 8, "leader_epoch": 6}, 41),
        ([1], {"leader_epoch": 6}, 74),
        ([2], {"sender": 2}, 42),
        ([1], {"partition_epoch": 2}, 95),
        ([1, 9], {}, 42),
        ([1, 1], {}, 42),
        ([2, 3], {}, 42),
        ([], {}, 42),
        ([1, 2], {"leader_recovery_state": RECOVERING}, 42),
        ([1], {"leader_recovery_state": RECOVERING}, 42),
        ([1, 4], {}, 107),
        ([1, 2], {"epochs": {2: 9}}, 107),
        ([1, 2], {"epochs": {2: -1}}, 0),
    ],
)
def test_rows_that_are_refused(isr: list[int], changed: dict[str, Any], code: int):
    old = {"replicas": (1, 2, 3, 4), "isr": (1,), "leader_epoch": 7, "partition_epoch": 3}
    image = cluster(old, brokers=(1, 2, 3, 4), fenced=(4,))
    row, changed_image = altered(image, isr, **changed)
    assert row.error_code == code
    assert (changed_image == image) == bool(code)


def test_a_broker_that_is_shutting_down_gets_into_no_isr():
    image = after(cluster({"isr": (1,)}), [BrokerRegistrationChange(2, 102, in_controlled_shutdown=1)])
    assert altered(image, [1, 2])[0].error_code == 107


@pytest.mark.parametrize("changed", [{"broker_epoch": 5}, {"sender": 9}])
def test_the_past_and_strangers_are_refused_as_a_whole(changed: dict[str, Any]):
    image = cluster()
    with pytest.raises(StaleBrokerEpoch):
        alter_partition(image, in_sync(image, [1], **changed), context(image))


def test_a_leader_that_has_recovered_says_so():
    image = cluster({"isr": (1,), "leader_recovery_state": RECOVERING})
    row, image = altered(image, [1])
    assert (row.error_code, row.leader_recovery_state, row.partition_epoch) == (0, 0, 1)
    assert altered(image, [1, 2])[0].error_code == 0


def test_one_row_that_is_refused_keeps_no_other_from_its_change():
    image = cluster({}, {"leader": 2})
    first, second = in_sync(image, [1]).topics[0], in_sync(image, [1], index=1, sender=1).topics[0]
    request = in_sync(image, [1])
    request.topics = (first, second)
    result = alter_partition(image, request, context(image))
    assert [topic.partitions[0].error_code for topic in result.response.topics] == [0, 42]
    assert result.records == [PartitionChange(0, TOPIC_ID, isr=(1,))]


def test_below_min_isr_a_replica_that_leaves_stays_eligible():
    image = cluster(eligible=True)
    world = context(image, min_insync_replicas="2")
    _, image = altered(image, [1, 2], world)
    assert state(image).eligible_leader_replicas == ()
    _, image = altered(image, [1], world)
    assert (state(image).isr, state(image).eligible_leader_replicas) == ((1,), (2,))
    _, image = altered(image, [1, 3], world)
    assert (state(image).isr, state(image).eligible_leader_replicas) == ((1, 3), ())


def test_another_min_isr_ends_eligibility():
    """What replicas that left the ISR had is what could be committed under the old one."""
    image = cluster({"isr": (1,), "eligible_leader_replicas": (2,)}, eligible=True)
    change = AlterableConfig(name="min.insync.replicas", config_operation=0, value="1")
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=(change,))
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    result = incremental_alter_configs(image, request, context(image))
    assert result.records == [Config(2, "t", "min.insync.replicas", "1"), ClearElr("t")]
    assert state(after(image, result.records)).eligible_leader_replicas == ()
    plain = cluster()
    assert ClearElr("t") not in incremental_alter_configs(plain, request, context(plain)).records


def test_the_end_of_a_move_takes_the_lead_away_from_a_sender_that_leaves():
    image = cluster({"replicas": (1, 2), "isr": (1, 2)})
    image = after(image, reassign(image, moving([2, 3]), context(image)).records)
    assert (state(image).replicas, state(image).adding_replicas, state(image).removing_replicas) == (
        (2, 3, 1),
        (3,),
        (1,),
    )
    assert state(image).leader_epoch == 0
    row, image = altered(image, [1, 2, 3])
    assert row.error_code == 108
    found = state(image)
    assert (found.replicas, found.isr, found.leader, found.leader_epoch) == ((2, 3), (2, 3), 2, 1)
    assert not found.adding_replicas and not found.removing_replicas


def test_the_end_of_a_move_that_takes_another_replica_away_raises_the_leader_epoch():
    image = cluster({"replicas": (1, 2), "isr": (1, 2)})
    image = after(image, reassign(image, moving([1, 3]), context(image)).records)
    row, image = altered(image, [1, 2, 3])
    assert (row.error_code, row.leader_id, row.leader_epoch) == (0, 1, 1)
    assert state(image).replicas == (1, 3)
