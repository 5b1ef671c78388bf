"""JoinGroup: who gets into a group, and when a generation is complete."""

from typing import Any

import pytest

from kits.coordinator.groups import REBALANCE, SESSION, World, subscription
from twofold.coordinator.group.context import NEW_MEMBER_JOIN_TIMEOUT_MS
from twofold.coordinator.group.records import GroupRecord, GroupValue
from twofold.coordinator.group.states import GroupState
from twofold.wire.errors import NotEnoughReplicas

OLD = 3  # the last version in which a member gets its id with the generation


def test_the_first_member_leads_the_first_generation_alone() -> None:
    world = World()
    answer = world.join()
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, answer.member_id)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert [(row.member_id, row.metadata) for row in answer.members] == [(answer.member_id, subscription("t"))]
    assert world.group_state() is GroupState.COMPLETING_REBALANCE


def test_a_new_group_is_in_the_log_before_its_first_generation() -> None:
    world = World()
    world.send_join()
    assert world.log == [GroupRecord("g", GroupValue(state_timestamp_ms=world.wall_ms))]


@pytest.mark.parametrize("version", range(10))
def test_member_id_required_from_version_4_on(version: int) -> None:
    world = World()
    token = world.send_join(version=version)
    world.tick()
    answer = world.answer(token)
    if version < 4:
        assert answer.error_code == 0
        return
    assert answer.error_code == 79
    assert answer.member_id == "c-1"
    assert (answer.generation_id, answer.leader, answer.protocol_name, answer.members) == (-1, "", None, ())
    assert world.members() == []
    assert world.join(answer.member_id, version=version).error_code == 0


def test_version_0_has_one_timeout_for_session_and_rebalance() -> None:
    world = World()
    world.join(version=0, rebalance=-1)
    (member,) = world.membership.groups["g"].members.values()
    assert member.rebalance_timeout_ms == member.session_timeout_ms == SESSION


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"group": ""}, 24),
        ({"session": 5_999}, 26),
        ({"session": 1_800_001}, 26),
        ({"protocols": ()}, 23),
        ({"protocol_type": ""}, 23),
        ({"member_id": "stranger"}, 25),
    ],
    ids=["empty group id", "short session", "long session", "no protocols", "no protocol type", "unknown id"],
)
def test_a_join_that_makes_no_sense_is_refused(what: dict[str, Any], code: int) -> None:
    world = World()
    answer = world.join(**what)
    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (code, -1, "", ())
    assert answer.member_id == what.get("member_id", "")


def test_the_limits_of_the_session_timeout_are_allowed() -> None:
    assert World().join(session=6_000).error_code == 0
    assert World().join(session=1_800_000).error_code == 0


def test_a_member_id_in_a_group_that_does_not_have_it_is_unknown() -> None:
    world = World()
    world.stable(group="g")
    assert world.join("stranger").error_code == 25
    world.leave(world.members()[0])
    assert world.join("stranger").error_code == 25
    assert world.group_state() is GroupState.EMPTY


# Protocols


def test_a_protocol_that_all_support_and_most_prefer_is_chosen() -> None:
    world = World(initial_rebalance_delay_ms=10)
    votes = [("sticky", "range"), ("range", "sticky"), ("other", "range", "sticky")]
    tokens = [world.send_join(version=OLD, protocols=names) for names in votes]
    world.advance(100)
    assert {world.answer(token).protocol_name for token in tokens} == {"range"}


def test_no_protocol_in_common_or_another_type_is_inconsistent() -> None:
    world = World()
    (member_id,) = world.stable()
    assert world.join(protocols=("other",)).error_code == 23
    assert world.join(protocol_type="connect").error_code == 23
    assert world.join(member_id, protocols=("other",)).error_code == 23
    assert world.group_state() is GroupState.STABLE


def test_a_protocol_is_common_only_if_every_member_has_it() -> None:
    world = World()
    world.stable(2, protocols=("range", "sticky"))
    assert world.answer(world.send_join(protocols=("sticky",))).error_code == 79
    assert world.answer(world.send_join(protocols=("none",))).error_code == 23


# The first rebalance


def test_initial_delay_waits_for_members_that_start_together() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    first = world.send_join(version=OLD)
    world.advance(2_999)
    second = world.send_join(version=OLD)
    assert not world.is_answered(first)
    world.advance(1)
    assert not world.is_answered(first), "a member came in this round, so there is another one"
    world.advance(2_999)
    assert not world.is_answered(first)
    world.advance(1)
    assert world.answer(first).generation_id == world.answer(second).generation_id == 1


def test_initial_delay_ends_after_one_round_when_no_member_comes() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    token = world.send_join(version=OLD)
    world.advance(3_000)
    assert world.answer(token).error_code == 0


def test_initial_delay_is_never_longer_than_the_rebalance_timeout() -> None:
    world = World(initial_rebalance_delay_ms=3_000)
    tokens = [world.send_join(version=OLD, rebalance=10_000)]
    for _ in range(20):
        world.advance(1_000)
        if world.is_answered(tokens[0]):
            break
        tokens.append(world.send_join(version=OLD, rebalance=10_000))
    assert world.monotonic_ms == 10_000
    assert all(world.is_answered(token) for token in tokens)


def test_initial_delay_does_not_wait_for_ids_that_are_not_used() -> None:
    world = World(initial_rebalance_delay_ms=100)
    token = world.send_join(version=OLD)
    world.send_join()
    world.advance(100)
    assert world.answer(token).error_code == 0


# Later rebalances


def test_a_new_member_makes_the_others_join_again() -> None:
    world = World()
    first, second = world.stable(2)
    _, waiting = world.send_new()
    assert world.group_state() is GroupState.PREPARING_REBALANCE
    assert [world.heartbeat(member, 1) for member in (first, second)] == [27, 27]
    again = world.send_join(first)
    assert not world.is_answered(waiting)
    assert not world.is_answered(again)
    world.send_join(second)
    assert world.answer(waiting).generation_id == 2
    leader, follower = world.answer(again), world.answer(waiting)
    assert len(leader.members) == 3
    assert follower.members == ()
    assert follower.leader == first


def test_members_that_do_not_come_back_are_removed_after_the_rebalance_timeout() -> None:
    world = World()
    first, second = world.stable(2)
    world.send_join(first)
    for _ in range(REBALANCE // 5_000 - 1):
        world.advance(5_000)
        assert world.heartbeat(second, 1) == 27
    world.advance(5_000)
    assert world.members() == [first]
    assert world.generation() == 2


def test_a_leader_that_does_not_come_back_is_replaced_by_one_that_did() -> None:
    world = World()
    first, second, third = world.stable(3, session=60_000)
    token = world.send_join(third, session=60_000, topics=("t", "u"))
    world.advance(REBALANCE)
    assert world.answer(token).leader == third
    assert world.members() == [third]
    assert world.heartbeat(first, 2) == world.heartbeat(second, 2) == 25


def test_an_id_that_was_given_out_holds_the_generation_until_it_is_used_or_expires() -> None:
    world = World()
    (first,) = world.stable()
    _, joining = world.send_new()
    pending = world.answer(world.send_join()).member_id
    world.send_join(first)
    assert not world.is_answered(joining)
    world.advance(SESSION)
    assert world.answer(joining).generation_id == 2
    assert world.join(pending).error_code == 25


def test_the_leader_of_a_stable_group_joins_to_rebalance_it() -> None:
    world = World()
    first, second = world.stable(2)
    world.send_join(first)
    assert world.group_state() is GroupState.PREPARING_REBALANCE
    assert world.heartbeat(second, 1) == 27


def test_a_follower_that_changed_nothing_is_told_the_generation() -> None:
    world = World()
    first, second = world.stable(2)
    answer = world.join(second)
    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (0, 1, first, ())
    assert world.group_state() is GroupState.STABLE


def test_a_follower_with_another_subscription_rebalances_the_group() -> None:
    world = World()
    _, second = world.stable(2)
    world.send_join(second, topics=("t", "u"))
    assert world.group_state() is GroupState.PREPARING_REBALANCE


def test_a_join_that_is_repeated_before_the_sync_is_answered_again() -> None:
    """The answer was lost on its way."""
    world = World()
    first = world.join()
    again = world.join(first.member_id)
    assert (again.error_code, again.generation_id, len(again.members)) == (0, 1, 1)
    assert world.group_state() is GroupState.COMPLETING_REBALANCE


def test_a_join_with_other_metadata_before_the_sync_begins_again() -> None:
    world = World()
    first = world.join()
    again = world.join(first.member_id, topics=("u",))
    assert again.generation_id == 2


def test_a_join_that_waits_is_answered_when_the_same_member_joins_elsewhere() -> None:
    world = World()
    first, _ = world.stable(2)
    old = world.send_join(first)
    new = world.send_join(first)
    assert world.answer(old).error_code == 27
    assert not world.is_answered(new)


def test_a_new_member_that_vanished_while_it_waited_is_removed_in_the_end() -> None:
    world = World()
    (first,) = world.stable(1, rebalance=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    vanished = world.send_join(version=OLD)
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        world.heartbeat(first, 1)
        world.advance(5_000)
    assert world.answer(vanished).error_code == 25
    assert world.members() == [first]


# Size


def test_group_max_size_refuses_members_that_come_too_late() -> None:
    world = World(max_size=2)
    first, second = world.stable(2)
    answer = world.join()
    assert (answer.error_code, answer.member_id) == (81, "")
    assert world.group_state() is GroupState.STABLE
    assert world.members() == [first, second]


def test_group_max_size_counts_joined_members_while_a_rebalance_is_prepared() -> None:
    world = World(max_size=2)
    first, second = world.stable(2)
    world.send_join(first)
    newcomer = world.send_join(version=OLD)
    assert not world.is_answered(newcomer), "there are two who have joined"
    assert world.join(second).error_code == 81
    assert world.answer(newcomer).generation_id == 2, "nobody waits for who is refused"


def test_a_group_above_its_limit_after_a_restart_loses_the_members_that_come_last() -> None:
    world = World()
    members = world.stable(3)
    world = world.restart(max_size=2)
    assert world.group_state() is GroupState.PREPARING_REBALANCE
    codes = [world.send_join(member) for member in members]
    assert [world.answer(token).error_code for token in codes] == [0, 0, 81]
    assert world.members() == members[:2]


# Failed writes


def test_a_group_that_cannot_be_written_does_not_exist() -> None:
    world = World()
    world.refusal = NotEnoughReplicas("")
    token = world.send_join(version=OLD)
    assert world.answer(token).error_code == 15
    assert world.membership.groups == {}
    assert world.membership.deadlines.get(("session", "g", "c-1")) is None
    world.refusal = None
    world.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert world.join().error_code == 0


def test_an_empty_generation_that_cannot_be_written_is_still_the_groups() -> None:
    world = World()
    (first,) = world.stable()
    world.refusal = NotEnoughReplicas("")
    answer = world.leave(first)
    assert answer.error_code == 15
    assert world.generation() == 2
    world.refusal = None
    assert world.join().generation_id == 3
