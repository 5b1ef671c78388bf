"""Static members: an instance id keeps its place through a restart of the client."""

import pytest

from kits.coordinator.groups import REBALANCE, SESSION, World
from twofold.coordinator.group.states import GroupState
from twofold.wire.errors import NotEnoughReplicas


def static_group(world: World, *instances: str, version: int = 5) -> dict[str, str]:
    """A stable group of static members; the first leads."""
    tokens = [world.send_join(instance=instance, version=version) for instance in instances]
    world.advance(world.config.initial_rebalance_delay_ms)
    ids = [world.answer(token).member_id for token in tokens]
    for member_id, instance in reversed(list(zip(ids, instances, strict=True))):
        world.send_sync(member_id, 1, {member: member.encode() for member in ids}, instance=instance)
    assert world.group_state() is GroupState.STABLE
    return dict(zip(instances, ids, strict=True))


def test_a_static_member_needs_no_second_join_and_is_named_after_its_instance() -> None:
    world = World()
    answer = world.join(instance="i", version=9)
    assert (answer.error_code, answer.member_id) == (0, "i-1")
    assert answer.members[0].group_instance_id == "i"


@pytest.mark.parametrize("version", range(5, 10))
def test_a_static_leader_that_restarts_keeps_its_place_without_a_rebalance(version: int) -> None:
    world = World()
    ids = static_group(world, "a", "b")
    answer = world.join(instance="a", version=version)
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id != ids["a"]
    assert world.group_state() is GroupState.STABLE
    if version >= 9:
        assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
        assert {row.member_id for row in answer.members} == {answer.member_id, ids["b"]}
    else:
        assert (answer.leader, answer.skip_assignment, answer.members) == (ids["a"], False, ())
    assert world.sync(answer.member_id, 1, instance="a").assignment == ids["a"].encode()


def test_a_static_follower_that_restarts_keeps_its_place() -> None:
    world = World()
    ids = static_group(world, "a", "b")
    answer = world.join(instance="b", version=9)
    assert (answer.leader, answer.skip_assignment, answer.members) == (ids["a"], False, ())
    assert world.sync(answer.member_id, 1, instance="b").assignment == ids["b"].encode()


def test_the_member_that_held_the_instance_before_is_fenced() -> None:
    world = World()
    ids = static_group(world, "a", "b")
    world.join(instance="b")
    old = ids["b"]
    assert world.heartbeat(old, 1, instance="b") == 82
    assert world.heartbeat(old, 1) == 25
    assert world.sync(old, 1, instance="b").error_code == 82
    assert world.join(old, instance="b").error_code == 82
    assert world.leave((old, "b")).members[0].error_code == 82


def test_a_fenced_member_that_waits_is_told_at_once() -> None:
    world = World()
    ids = static_group(world, "a", "b")
    joining = world.send_join(ids["a"], instance="a")
    replaced = world.send_join(instance="a")
    assert world.answer(joining).error_code == 82
    world.send_join(ids["b"], instance="b")
    assert world.answer(replaced).error_code == 0
    syncing = world.send_sync(ids["b"], 2, instance="b")
    world.send_join(instance="b")
    assert world.answer(syncing).error_code == 82


def test_a_static_member_that_restarts_during_the_sync_phase_begins_a_new_rebalance() -> None:
    world = World()
    tokens = [world.send_join(instance=name) for name in "ab"]
    world.tick()
    assert all(world.is_answered(token) for token in tokens)
    world.send_join(instance="b")
    assert world.group_state() is GroupState.PREPARING_REBALANCE


def test_a_static_member_whose_protocol_changes_the_groups_rebalances_it() -> None:
    world = World()
    tokens = [world.send_join(instance=name, protocols=("range", "sticky")) for name in "a"]
    world.tick()
    member = world.answer(tokens[0]).member_id
    world.sync(member, 1, {member: b"x"}, instance="a")
    answer = world.join(instance="a", protocols=("sticky",))
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 2, "sticky")


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends() -> None:
    world = World()
    ids = static_group(world, "a", "b")
    world.send_join(ids["a"], instance="a", session=60_000)
    world.advance(SESSION - 1)
    assert set(world.members()) == set(ids.values())
    world.advance(1)
    assert world.members() == [ids["a"]]
    assert world.generation() == 2


def test_a_generation_waits_for_static_members_when_no_other_is_there() -> None:
    world = World()
    joined = world.send_join(instance="a", session=200_000, rebalance=6_000)
    world.tick()
    answer = world.answer(joined)
    world.sync(answer.member_id, 1, {}, instance="a")
    _, newcomer = world.send_new(rebalance=6_000)
    world.leave(world.answer(newcomer - 1).member_id)
    world.advance(20_000)
    assert world.members() == [answer.member_id]
    assert world.group_state() is GroupState.PREPARING_REBALANCE
    assert world.join(answer.member_id, instance="a", session=200_000).generation_id == 2


def test_an_operator_removes_a_static_member_by_its_instance() -> None:
    world = World()
    ids = static_group(world, "a", "b")
    assert [row.error_code for row in world.leave(("", "a"), ("", "none")).members] == [0, 25]
    assert world.members() == [ids["b"]]


def test_a_replacement_is_in_the_log_before_it_is_told() -> None:
    world = World()
    ids = static_group(world, "a")
    world.holding = True
    token = world.send_join(instance="a")
    assert not world.is_answered(token)
    world.commit_all()
    member_id = world.answer(token).member_id
    again = world.restart()
    assert again.members() == [member_id]
    assert again.heartbeat(member_id, 1, instance="a") == 0
    assert again.heartbeat(ids["a"], 1, instance="a") == 82


@pytest.mark.parametrize("held", [False, True])
def test_a_replacement_that_cannot_be_written_did_not_happen(held: bool) -> None:
    world = World()
    ids = static_group(world, "a", "b")
    world.holding = held
    world.refusal = None if held else NotEnoughReplicas("")
    token = world.send_join(instance="a", topics=("u",), session=20_000)
    world.commit_all(NotEnoughReplicas(""))
    assert world.answer(token).error_code == 15
    assert world.members() == list(ids.values())
    assert world.group_state() is GroupState.STABLE
    assert world.heartbeat(ids["a"], 1, instance="a") == 0
    group = world.membership.groups["g"]
    assert group.leader == ids["a"]
    assert group.members[ids["a"]].session_timeout_ms == SESSION
    assert group.joining == 0


def test_a_rebalance_that_begins_while_a_replacement_is_written_takes_the_member_along() -> None:
    world = World()
    ids = static_group(world, "a", "b")
    world.holding = True
    token = world.send_join(instance="b")
    world.send_join(ids["a"], instance="a")
    world.commit_all()
    assert world.answer(token).generation_id == 2
    assert world.answer(token).member_id in world.members()


def test_a_given_out_id_is_not_for_static_members() -> None:
    world = World()
    pending = world.answer(world.send_join()).member_id
    assert world.join(pending, instance="i").error_code == -1


def test_dynamic_members_do_not_delay_the_rebalance_of_static_ones() -> None:
    world = World()
    ids = static_group(world, "a", "b")
    token = world.send_join(ids["a"], instance="a", session=100_000)
    for _ in range(REBALANCE // 5_000):
        assert not world.is_answered(token)
        world.heartbeat(ids["b"], 1, instance="b")
        world.advance(5_000)
    assert world.answer(token).generation_id == 2
    assert len(world.answer(token).members) == 2, "a static member stays in the group while it lives"
