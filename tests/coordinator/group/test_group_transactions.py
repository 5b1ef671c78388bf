"""Offsets in transactions: pending until the marker, and what the log alone makes of them."""

from typing import Any

import pytest

from kits.coordinator.groups import World
from twofold.coordinator.group.offsets import Wanted
from twofold.wire.errors import KafkaError

P, Q = 7, 8


def test_pending_offsets_are_seen_after_the_commit_marker_only() -> None:
    world = World()
    world.commit({("t", 0): 1})
    world.commit_in_transaction(P, {("t", 0): 100})
    assert world.offset() == 1
    assert world.offset(stable=True) == "unstable"
    world.end(P, committed=True)
    assert world.offset() == world.offset(stable=True) == 100


def test_an_abort_leaves_what_was_committed_before() -> None:
    world = World()
    world.commit({("t", 0): 1})
    world.commit_in_transaction(P, {("t", 0): 100, ("t", 1): 100})
    world.end(P, committed=False)
    assert world.all_offsets() == {("t", 0): 1}
    assert world.offset(stable=True) == 1


def test_a_later_commit_wins_over_a_transaction_that_ends_after_it() -> None:
    world = World()
    world.commit_in_transaction(P, {("t", 0): 100})
    world.commit({("t", 0): 50})
    world.end(P, committed=True)
    assert world.offset() == 50


def test_a_transaction_wins_over_an_earlier_commit() -> None:
    world = World()
    world.commit({("t", 0): 50})
    world.commit_in_transaction(P, {("t", 0): 100})
    world.end(P, committed=True)
    assert world.offset() == 100


def test_the_order_of_commits_counts_and_not_that_of_the_markers() -> None:
    world = World()
    world.commit_in_transaction(P, {("t", 0): 100})
    world.commit_in_transaction(Q, {("t", 0): 200})
    world.end(Q, committed=True)
    assert world.offset(stable=True) == "unstable"
    world.end(P, committed=True)
    assert world.offset(stable=True) == 200


def test_two_producers_are_resolved_independently() -> None:
    world = World()
    world.commit_in_transaction(P, {("t", 0): 100, ("t", 1): 1})
    world.commit_in_transaction(Q, {("t", 0): 200})
    world.end(P, committed=True)
    assert world.offset() == 100
    assert world.offset(stable=True) == "unstable"
    assert world.offset("t", 1, stable=True) == 1
    world.end(Q, committed=False)
    assert world.offset(stable=True) == 100


def test_the_last_offset_of_a_transaction_counts() -> None:
    world = World()
    for offset in (1, 2, 3):
        world.commit_in_transaction(P, {("t", 0): offset})
    world.end(P, committed=True)
    assert world.offset() == 3


def test_a_transaction_over_several_groups() -> None:
    world = World()
    world.commit_in_transaction(P, {("t", 0): 1}, group="a")
    world.commit_in_transaction(P, {("t", 0): 2}, group="b")
    world.end(P, committed=True)
    assert (world.offset(group="a"), world.offset(group="b")) == (1, 2)


def test_a_marker_of_an_unknown_producer_changes_nothing() -> None:
    world = World()
    world.commit({("t", 0): 1})
    before = world.state
    world.end(P, committed=True)
    assert world.state == before


def test_a_removal_takes_pending_offsets_of_all_producers_along() -> None:
    world = World()
    world.commit_in_transaction(P, {("t", 0): 1, ("t", 1): 1})
    world.commit_in_transaction(Q, {("t", 0): 2})
    world.apply(world.offsets.delete(world.state, "g", [Wanted("t", [0])]))
    assert world.offset(stable=True) == -1
    world.end(P, committed=True)
    world.end(Q, committed=True)
    assert world.all_offsets() == {("t", 1): 1}
    assert not world.state.pending
    assert not world.state.open


def test_partitions_with_nothing_but_pending_offsets_are_not_listed() -> None:
    world = World()
    world.commit({("t", 0): 1})
    world.commit_in_transaction(P, {("t", 0): 2, ("t", 1): 2})
    ((_, rows),) = world.offsets.fetch_all(world.state, "g", require_stable=True)
    assert [(row.partition, row.error_code) for row in rows] == [(0, 88)]


def test_stability_is_a_matter_of_one_partition() -> None:
    world = World()
    world.commit({("t", 0): 1, ("t", 1): 1, ("u", 0): 1})
    world.commit_in_transaction(P, {("t", 0): 2})
    assert [world.offset(*at, stable=True) for at in (("t", 0), ("t", 1), ("u", 0))] == ["unstable", 1, 1]
    assert world.offset("t", 0, group="other", stable=True) == -1


# Fencing


@pytest.mark.parametrize(
    ("who", "code"),
    [
        ({}, 0),
        ({"member_id": "member", "generation": 1}, 0),
        ({"member_id": "member", "generation": 0}, 22),
        ({"member_id": "member"}, 22),
        ({"member_id": "x", "generation": 1}, 25),
        ({"member_id": "member", "generation": 1, "group_instance_id": "i"}, 25),
    ],
)
def test_a_client_that_names_its_member_is_fenced(who: dict[str, Any], code: int) -> None:
    world = World()
    (member_id,) = world.stable()
    fields: dict[str, Any] = {name: member_id if value == "member" else value for name, value in who.items()}
    if code == 0:
        assert world.commit_in_transaction(P, {("t", 0): 1}, **fields) == [0]
        return
    with pytest.raises(KafkaError) as refused:
        world.commit_in_transaction(P, {("t", 0): 1}, **fields)
    assert refused.value.code == code
    assert not world.state.pending


def test_a_fenced_instance_cannot_commit() -> None:
    world = World()
    old = world.join(instance="i")
    world.sync(old.member_id, 1, {}, instance="i")
    world.join(instance="i")
    with pytest.raises(KafkaError) as refused:
        world.commit_in_transaction(P, {("t", 0): 1}, member_id=old.member_id, generation=1, group_instance_id="i")
    assert refused.value.code == 82


def test_a_rebalance_refuses_no_transactional_commit() -> None:
    world = World()
    (member_id,) = world.stable()
    world.send_new()
    assert world.commit_in_transaction(P, {("t", 0): 1}, member_id=member_id, generation=1) == [0]
    world.send_join(member_id)
    assert world.commit_in_transaction(P, {("t", 0): 2}, member_id=member_id, generation=2) == [0]


@pytest.mark.parametrize(("generation", "member", "code"), [(-1, "", 0), (-1, "x", 0), (1, "x", 22), (0, "", 22)])
def test_a_missing_group_is_created_unless_a_generation_is_named(generation: int, member: str, code: int) -> None:
    world = World()
    if code == 0:
        world.commit_in_transaction(P, {("t", 0): 1}, generation=generation, member_id=member)
        assert "g" in world.state.groups
        return
    with pytest.raises(KafkaError) as refused:
        world.commit_in_transaction(P, {("t", 0): 1}, generation=generation, member_id=member)
    assert refused.value.code == code


def test_the_empty_group_id_has_no_transactions() -> None:
    with pytest.raises(KafkaError) as refused:
        World().commit_in_transaction(P, {("t", 0): 1}, group="")
    assert refused.value.code == 24
