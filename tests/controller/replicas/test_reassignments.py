"""Moves of replicas: begun, changed, taken back, listed."""

from typing import Any

import pytest

from kits.metadata.controller import after, context
from kits.metadata.partitions import alter_reassignments, altered, cluster, moving, state
from twofold.controller.image import MetadataImage
from twofold.controller.records import Config
from twofold.controller.replicas.reassignments import list_partition_reassignments
from twofold.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)

FOUR = (1, 2, 3, 4)


def asked(image: MetadataImage, replicas: list[int] | None, **options: Any) -> tuple[int, MetadataImage]:
    result = alter_reassignments(image, moving(replicas, **options), context(image))
    return result.response.responses[0].partitions[0].error_code, after(image, result.records)


def test_a_move_waits_for_those_that_are_added():
    code, image = asked(cluster(brokers=FOUR), [2, 3, 4])
    found = state(image)
    assert (code, found.replicas, found.isr, found.leader) == (0, (2, 3, 4, 1), (1, 2, 3), 1)
    assert (found.adding_replicas, found.removing_replicas, found.leader_epoch) == ((4,), (1,), 0)
    _, image = altered(image, [1, 2, 3, 4])
    assert (state(image).replicas, state(image).leader, state(image).leader_epoch) == ((2, 3, 4), 2, 1)


def test_a_new_order_is_there_at_once():
    code, image = asked(cluster(), [3, 2, 1])
    found = state(image)
    assert (code, found.replicas, found.leader, found.leader_epoch, found.partition_epoch) == (0, (3, 2, 1), 1, 0, 1)


def test_fewer_replicas_are_there_at_once_if_all_that_stay_are_in_sync():
    code, image = asked(cluster(), [1, 2])
    assert (code, state(image).replicas, state(image).isr, state(image).leader_epoch) == (0, (1, 2), (1, 2), 1)
    code, image = asked(cluster({"isr": (1, 3)}), [1, 2])
    assert (code, state(image).replicas, state(image).removing_replicas) == (0, (1, 2, 3), (3,))


def test_replicas_are_where_the_new_broker_says():
    _, image = asked(cluster(brokers=FOUR), [1, 2, 4])
    assert [directory.int >> 64 for directory in state(image).directories] == [1, 2, 4, 3]


def test_a_move_is_taken_back():
    _, image = asked(cluster(brokers=FOUR), [2, 3, 4])
    code, image = asked(image, None)
    found = state(image)
    assert (code, sorted(found.replicas), found.adding_replicas, found.removing_replicas) == (0, [1, 2, 3], (), ())
    assert found.leader_epoch == 1, "a replica went"
    assert asked(image, None)[0] == 85


def test_taking_back_to_replicas_that_are_all_out_of_sync_is_an_unclean_election():
    moved = {"replicas": (2, 1), "isr": (2,), "leader": 2, "adding_replicas": (2,), "removing_replicas": (1,)}
    image = cluster(moved)
    assert asked(image, None)[0] == 39
    image = after(image, [Config(2, "t", "unclean.leader.election.enable", "true")])
    code, image = asked(image, None)
    assert (code, state(image).replicas, state(image).leader) == (0, (1,), 1)


@pytest.mark.parametrize(
    ("replicas", "options", "code"),
    [([], {}, 39), ([1, 1], {}, 39), ([1, 9], {}, 39), ([1], {"index": 4}, 3), ([1, 2], {"may_resize": False}, 38)],
)
def test_moves_that_are_refused(replicas: list[int], options: dict[str, Any], code: int):
    image = cluster()
    assert asked(image, replicas, **options) == (code, image)


def test_a_move_onto_a_fenced_broker_begins():
    image = cluster(brokers=FOUR, fenced=(4,))
    assert asked(image, [1, 2, 4])[0] == 0


def listed(image: MetadataImage, *indexes: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    topics = [ListPartitionReassignmentsTopics(name="t", partition_indexes=indexes)] if indexes else None
    response = list_partition_reassignments(image, ListPartitionReassignmentsRequest(timeout_ms=1, topics=topics))
    return [
        (row.partition_index, tuple(row.adding_replicas), tuple(row.removing_replicas))
        for topic in response.topics
        for row in topic.partitions
    ]


def test_what_is_being_moved_is_listed():
    image = cluster({}, {}, brokers=FOUR)
    assert listed(image) == []
    _, image = asked(image, [2, 3, 4], index=1)
    assert listed(image) == listed(image, 0, 1, 9) == [(1, (4,), (1,))]
    assert listed(image, 0) == []
