"""SyncGroup, Heartbeat, LeaveGroup, sessions."""

import pytest

from kits.coordinator.groups import REBALANCE, SESSION, World
from twofold.coordinator.group.records import GroupRecord
from twofold.coordinator.group.states import GroupState
from twofold.wire.errors import NotCoordinator, NotEnoughReplicas


def joined(world: World, members: int) -> list[str]:
    """Members of a generation that nobody has synced yet; the first one leads."""
    waiting = [world.send_new() for _ in range(members)]
    world.tick()
    assert all(world.answer(token).error_code == 0 for _, token in waiting)
    return [member_id for member_id, _ in waiting]


# SyncGroup


def test_every_member_gets_what_the_leader_assigned() -> None:
    world = World()
    leader, follower = joined(world, 2)
    waiting = world.send_sync(follower, 1)
    assert not world.is_answered(waiting)
    answer = world.sync(leader, 1, {leader: b"a", follower: b"b"})
    assert (answer.error_code, answer.assignment) == (0, b"a")
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert world.answer(waiting).assignment == b"b"
    assert world.group_state() is GroupState.STABLE


def test_an_assignment_is_in_the_log_before_a_member_gets_it() -> None:
    world = World()
    leader, follower = joined(world, 2)
    world.holding = True
    tokens = [world.send_sync(follower, 1), world.send_sync(leader, 1, {leader: b"a", follower: b"b"})]
    record = world.log[-1]
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    assert [(member.member_id, member.assignment) for member in record.value.members] == [
        (leader, b"a"),
        (follower, b"b"),
    ]
    assert not any(world.is_answered(token) for token in tokens)
    assert world.group_state() is GroupState.COMPLETING_REBALANCE
    world.commit_all()
    assert [world.answer(token).assignment for token in tokens] == [b"b", b"a"]


def test_members_that_the_leader_forgot_get_nothing_and_strangers_are_ignored() -> None:
    world = World()
    leader, follower = joined(world, 2)
    assert world.sync(leader, 1, {leader: b"a", "stranger": b"x"}).assignment == b"a"
    assert world.sync(follower, 1).assignment == b""


def test_a_stable_group_gives_the_assignment_again() -> None:
    world = World()
    first, second = world.stable(2)
    assert [world.sync(member, 1).assignment for member in (first, second)] == [first.encode(), second.encode()]
    assert world.sync(first, 1, {first: b"another"}).assignment == first.encode()


@pytest.mark.parametrize(
    ("member", "generation", "instance", "code"),
    [("stranger", 1, None, 25), ("first", 2, None, 22), ("first", 1, "i", 25), ("first", -1, None, 22)],
)
def test_a_member_of_another_generation_gets_no_assignment(
    member: str, generation: int, instance: str | None, code: int
) -> None:
    world = World()
    (first,) = world.stable()
    name = first if member == "first" else member
    assert world.sync(name, generation, instance=instance).error_code == code
    assert world.heartbeat(name, generation, instance=instance) == code


def test_groups_without_members_know_no_member() -> None:
    world = World()
    (first,) = world.stable()
    world.leave(first)
    for group in ("g", "no such group"):
        assert world.sync(first, 1, group=group).error_code == 25
        assert world.heartbeat(first, 1, group=group) == 25
    assert world.sync(first, 1, group="").error_code == 24
    assert world.heartbeat(first, 1, group="") == 24


@pytest.mark.parametrize(
    ("protocol_type", "protocol", "code"),
    [(None, None, 0), ("consumer", "range", 0), ("connect", None, 23), (None, "sticky", 23), ("connect", "range", 23)],
)
def test_the_protocol_of_a_sync_must_be_the_groups(protocol_type: str | None, protocol: str | None, code: int) -> None:
    world = World()
    (first,) = world.stable()
    assert world.sync(first, 1, protocol_type=protocol_type, protocol=protocol).error_code == code


def test_a_sync_while_members_join_is_told_to_join() -> None:
    world = World()
    first, second = world.stable(2)
    world.send_join(first)
    assert world.sync(second, 1).error_code == 27


def test_a_rebalance_during_the_sync_phase_sends_waiting_members_to_join() -> None:
    world = World()
    leader, follower = joined(world, 2)
    waiting = world.send_sync(follower, 1)
    world.send_new()
    assert world.answer(waiting).error_code == 27
    assert world.sync(leader, 1, {leader: b"a"}).error_code == 27


def test_an_assignment_that_was_overtaken_by_a_rebalance_is_dropped() -> None:
    world = World()
    leader, follower = joined(world, 2)
    world.holding = True
    token = world.send_sync(leader, 1, {leader: b"a", follower: b"b"})
    world.send_join(follower, topics=("u",))
    assert world.answer(token).error_code == 27
    world.commit_all()
    assert world.group_state() is GroupState.PREPARING_REBALANCE


def test_an_assignment_of_an_earlier_generation_is_dropped() -> None:
    world = World()
    (leader,) = joined(world, 1)
    world.holding = True
    old = world.send_sync(leader, 1, {leader: b"old"})
    world.join(leader, topics=("u",))
    assert world.generation() == 2
    assert world.answer(old).error_code == 27
    world.commit_all()
    assert world.group_state() is GroupState.COMPLETING_REBALANCE
    world.holding = False
    assert world.sync(leader, 2, {leader: b"new"}).assignment == b"new"


@pytest.mark.parametrize("held", [False, True])
def test_an_assignment_that_cannot_be_written_makes_every_member_join_again(held: bool) -> None:
    world = World()
    leader, follower = joined(world, 2)
    waiting = world.send_sync(follower, 1)
    world.holding = held
    world.refusal = None if held else NotEnoughReplicas("")
    token = world.send_sync(leader, 1, {leader: b"a"})
    world.commit_all(NotEnoughReplicas(""))
    assert [world.answer(token).error_code, world.answer(waiting).error_code] == [15, 15]
    assert world.group_state() is GroupState.PREPARING_REBALANCE
    world.refusal = None
    world.send_join(leader)
    assert world.join(follower).generation_id == 2


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout() -> None:
    world = World()
    leader, follower = joined(world, 2)
    assert world.sync(leader, 1, {leader: b"a"}).error_code == 0
    for _ in range(REBALANCE // 5_000):
        assert world.heartbeat(leader, 1) == 0
        assert world.heartbeat(follower, 1) == 0
        world.advance(5_000)
    assert world.members() == [leader]
    assert world.heartbeat(leader, 1) == 27
    assert world.heartbeat(follower, 1) == 25


def test_no_member_is_removed_when_all_have_synced() -> None:
    world = World()
    members = world.stable(2)
    for _ in range(2 * REBALANCE // 5_000):
        assert [world.heartbeat(member, 1) for member in members] == [0, 0]
        world.advance(5_000)
    assert world.group_state() is GroupState.STABLE


# Sessions


def test_a_session_ends_exactly_after_its_timeout_without_a_heartbeat() -> None:
    world = World()
    first, second = world.stable(2)
    world.advance(SESSION - 1)
    assert world.heartbeat(first, 1) == 0
    world.advance(1)
    assert world.members() == [first]
    assert world.heartbeat(first, 1) == 27
    assert world.heartbeat(second, 1) == 25


def test_the_last_session_to_end_leaves_an_empty_generation_in_the_log() -> None:
    world = World()
    world.stable(2)
    world.advance(SESSION)
    assert world.group_state() is GroupState.EMPTY
    record = world.log[-1]
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    value = record.value
    assert (value.generation, value.members, value.leader, value.protocol) == (2, (), None, None)
    assert value.protocol_type == "consumer"


def test_heartbeats_keep_a_session_through_a_rebalance() -> None:
    world = World()
    first, second = world.stable(2)
    world.send_join(first)
    for _ in range(4):
        world.advance(SESSION - 2_500)
        if world.heartbeat(second, 1) == 25:
            break
        assert world.heartbeat(second, 1) == 27
    assert world.monotonic_ms >= REBALANCE, "only the rebalance timeout removes it"


def test_a_member_that_waits_for_us_does_not_expire() -> None:
    world = World()
    first, second = world.stable(2, session=6_000)
    token = world.send_join(first, session=6_000, topics=("u",))
    for _ in range(5):
        world.advance(5_000)
        world.heartbeat(second, 1)
    assert first in world.members()
    world.send_join(second, session=6_000)
    assert world.answer(token).error_code == 0
    waiting = world.send_sync(second, 2)
    world.advance(5_999)
    world.heartbeat(first, 2)
    world.advance(5_999)
    assert second in world.members()
    world.sync(first, 2, {})
    assert world.answer(waiting).error_code == 0
    world.advance(5_999)
    assert second in world.members(), "a full session begins with the answer"


def test_a_heartbeat_between_join_and_sync_is_fine() -> None:
    world = World()
    (first,) = joined(world, 1)
    assert world.heartbeat(first, 1) == 0


def test_a_heartbeat_costs_nothing_in_the_heap() -> None:
    world = World()
    (first,) = world.stable()
    size = len(world.membership.deadlines._heap)
    for _ in range(100):
        world.advance(10)
        world.heartbeat(first, 1)
    assert len(world.membership.deadlines._heap) == size


# LeaveGroup


def test_leaving_rebalances_the_remaining_members() -> None:
    world = World()
    first, second = world.stable(2)
    answer = world.leave(first)
    assert [(row.member_id, row.error_code) for row in answer.members] == [(first, 0)]
    assert world.heartbeat(second, 1) == 27
    assert world.join(second).leader == second


def test_members_leave_together_each_with_its_own_answer() -> None:
    world = World()
    first, second, third = world.stable(3)
    answer = world.leave(first, "stranger", third, ("", "no such instance"), (second, "not its instance"))
    assert [row.error_code for row in answer.members] == [0, 25, 0, 25, 25]
    assert world.members() == [second]


def test_leaving_a_group_that_does_not_exist_is_an_error_of_each_member() -> None:
    answer = World().leave("a", "b", group="nowhere")
    assert answer.error_code == 0
    assert [row.error_code for row in answer.members] == [25, 25]
    assert World().leave("a", group="").error_code == 24
    assert World().leave(group="nowhere").members == []


def test_an_id_that_was_given_out_can_be_given_back() -> None:
    world = World()
    (first,) = world.stable()
    pending = world.answer(world.send_join()).member_id
    assert world.leave(pending).members[0].error_code == 0
    assert world.join(pending).error_code == 25
    assert world.heartbeat(first, 1) == 27, "as in Kafka, which rebalances here"


def test_the_last_to_leave_is_answered_when_the_log_says_that_the_group_is_empty() -> None:
    world = World()
    (first,) = world.stable()
    world.holding = True
    token = world.send_leave(first)
    assert not world.is_answered(token)
    world.commit_all()
    assert world.answer(token).members[0].error_code == 0
    assert world.group_state() is GroupState.EMPTY


def test_leaving_while_waiting_answers_the_request_that_waits() -> None:
    world = World()
    first, second = world.stable(2)
    joining = world.send_join(first)
    world.leave(first)
    assert world.answer(joining).error_code == 25
    world.join(second)
    third, token = world.send_new()
    world.send_join(second)
    assert world.answer(token).error_code == 0
    waiting = world.send_sync(third, 3)
    world.leave(third)
    assert world.answer(waiting).error_code == 25


# The coordinator moves


def test_resigning_answers_every_waiting_member() -> None:
    world = World(initial_rebalance_delay_ms=1000)
    joining = world.send_join(version=0, group="a")
    leader, follower = (member for member, _ in [world.send_new(group="b"), world.send_new(group="b")])
    world.advance(2000)
    syncing = world.send_sync(follower, 1, group="b")
    assert leader in world.members("b")
    late = world.send_join(version=0, group="c")
    world.run(world.membership.resign(NotCoordinator("")))
    assert [world.answer(token).error_code for token in (syncing, late)] == [16, 16]
    assert world.answer(joining).error_code == 0
    assert world.membership.groups == {}
    assert len(world.membership.deadlines) == 0
