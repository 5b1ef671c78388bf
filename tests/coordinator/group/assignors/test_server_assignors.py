"""The rules of the assignors, one by one. That they give what Apache Kafka gives is shown in `tests/interop`."""

import random
import time
import uuid
from dataclasses import replace

import pytest

from kits.assignors.server_groups import (
    after,
    changed,
    check_assignment,
    grown_by,
    kept,
    loads,
    make_group,
    random_group,
    topic_id,
)
from twofold.coordinator.group.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec
from twofold.coordinator.group.assignors.orders import copied, grown, string_hash
from twofold.types import TopicId

T, U = uuid.UUID(int=1), uuid.UUID(int=2)
LONGEST_STALL_S = 0.2


def member(name: str, *topics: TopicId, instance: str | None = None, **owned: set[int]) -> MemberSpec:
    target = {{"t": T, "u": U}[topic]: frozenset(numbers) for topic, numbers in owned.items()}
    return MemberSpec(name, instance, frozenset(topics), target)


def uniform(members: list[MemberSpec], partitions: dict[TopicId, int], *, homogeneous: bool = True) -> Assignment:
    group = make_group(members, partitions, homogeneous=homogeneous)
    found = ASSIGNORS["uniform"](group)
    check_assignment(group, found)
    return found


def ranges(members: list[MemberSpec], partitions: dict[TopicId, int]) -> Assignment:
    group = make_group(members, partitions, homogeneous=len({one.topics for one in members}) == 1)
    found = ASSIGNORS["range"](group)
    check_assignment(group, found)
    return found


def test_range_gives_each_member_one_stretch_of_each_topic() -> None:
    found = ranges([member("a", T, U), member("b", T, U)], {T: 4, U: 3})
    assert found == {"a": {T: {0, 1}, U: {0, 1}}, "b": {T: {2, 3}, U: {2}}}


def test_range_puts_static_members_first_and_ids_in_the_order_of_utf_16() -> None:
    members = [member("a", T), member("\ufb01", T), member("\U0001f40d", T), member("z", T, instance="i")]
    assert ranges(members, {T: 4}) == {"z": {T: {0}}, "a": {T: {1}}, "\U0001f40d": {T: {2}}, "\ufb01": {T: {3}}}


def test_range_forgets_what_members_had() -> None:
    assert ranges([member("a", T, t={1}), member("b", T, t={0})], {T: 2}) == {"a": {T: {0}}, "b": {T: {1}}}


def test_range_divides_a_topic_among_its_subscribers() -> None:
    assert ranges([member("a", T), member("b", T, U)], {T: 1, U: 2}) == {"a": {T: {0}}, "b": {U: {0, 1}}}


def test_uniform_from_scratch_gives_the_last_members_one_more() -> None:
    found = uniform([member("a", T), member("b", T), member("c", T)], {T: 5})
    assert found == {"a": {T: {0}}, "b": {T: {1, 2}}, "c": {T: {3, 4}}}


def test_uniform_lets_the_first_owner_of_one_more_keep_it() -> None:
    members = [member("a", T, t={0, 1, 2}), member("b", T, t={3, 4})]
    assert uniform(members, {T: 5}) == {"a": {T: {0, 1, 2}}, "b": {T: {3, 4}}}


def test_uniform_takes_the_highest_partitions_of_a_member_with_too_many() -> None:
    members = [member("a", T, t={0, 1, 2, 3}), member("b", T)]
    assert uniform(members, {T: 4}) == {"a": {T: {0, 1}}, "b": {T: {2, 3}}}


def test_uniform_hands_out_what_no_member_had_before_what_was_given_up() -> None:
    members = [member("a", T, t={0, 1, 2}), member("b", T), member("c", T)]
    assert uniform(members, {T: 6}) == {"a": {T: {0, 1}}, "b": {T: {3, 4}}, "c": {T: {5, 2}}}


def test_a_topic_that_the_group_left_goes_to_no_member() -> None:
    assert uniform([member("a", T, t={0}, u={0})], {T: 2}) == {"a": {T: {0, 1}}}


@pytest.mark.parametrize("homogeneous", [True, False])
def test_members_without_topics_get_nothing_and_have_an_entry(homogeneous: bool) -> None:
    assert uniform([member("a", t={0}), member("b")], {}, homogeneous=homogeneous) == {"a": {}, "b": {}}
    assert uniform([], {}, homogeneous=homogeneous) == {}


def test_a_member_whose_partitions_stay_gets_the_target_that_came_in() -> None:
    for homogeneous in (True, False):
        members = [member("a", T, t={0}), member("b", T)]
        assert uniform(members, {T: 2}, homogeneous=homogeneous)["a"] is members[0].target


def test_heterogeneous_members_keep_what_they_still_subscribe_to() -> None:
    members = [member("a", T, t={1}, u={0}), member("b", U, t={0}, u={1})]
    found = uniform(members, {T: 2, U: 2}, homogeneous=False)
    assert found == {"a": {T: {0, 1}}, "b": {U: {0, 1}}}


def test_heterogeneous_rest_goes_to_the_least_loaded_subscriber() -> None:
    members = [member("a", T, U, t={0, 1}), member("b", U)]
    assert uniform(members, {T: 2, U: 4}, homogeneous=False) == {"a": {T: {0, 1}, U: {3}}, "b": {U: {0, 1, 2}}}


def test_heterogeneous_balance_takes_the_highest_partition_of_the_most_loaded() -> None:
    members = [member("a", T, U, t={0, 1, 2, 3}), member("b", T)]
    assert uniform(members, {T: 4, U: 1}, homogeneous=False) == {"a": {T: {0, 1}, U: {0}}, "b": {T: {2, 3}}}


@pytest.mark.parametrize("seed", range(30))
def test_a_homogeneous_group_is_even_and_moves_no_more_than_it_must(seed: int) -> None:
    chance = random.Random(seed)
    group = random_group(chance, homogeneous=True)
    for _ in range(4):
        found = ASSIGNORS["uniform"](group)
        check_assignment(group, found)
        assert loads(found)[-1] - loads(found)[0] <= 1
        assert ASSIGNORS["uniform"](after(group, found)) == found, "a quiet group moves nothing"
        assert kept(group, found) == most_that_can_stay(group)
        group = changed(after(group, found), chance)


def most_that_can_stay(group: GroupSpec) -> int:
    """With as many owners of one more than the others as there are partitions left over."""
    share, extras = divmod(sum(group.partitions.values()), len(group.members))
    had = [sum(len(n) for topic, n in one.target.items() if topic in one.topics) for one in group.members.values()]
    return sum(min(one, share) for one in had) + min(extras, sum(one > share for one in had))


@pytest.mark.parametrize("seed", range(30))
def test_a_heterogeneous_group_moves_nothing_between_subscribers_that_are_even(seed: int) -> None:
    chance = random.Random(seed)
    group = random_group(chance, homogeneous=False)
    for _ in range(4):
        found = ASSIGNORS["uniform"](group)
        check_assignment(group, found)
        members = list(group.members.values())
        by_id = {one.member_id: sum(map(len, found[one.member_id].values())) for one in members}
        for topic in group.partitions:
            of_topic = [one for one in members if topic in one.topics]
            if of_topic and all(one.topics == of_topic[0].topics for one in of_topic):
                mine = [by_id[one.member_id] for one in of_topic]
                assert max(mine) - min(mine) <= 1
        group = changed(after(group, found), chance)


@pytest.mark.parametrize("homogeneous", [True, False])
@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
def test_two_thousand_members_are_assigned_within_a_moment(assignor: str, homogeneous: bool) -> None:
    """A broker serves nobody else meanwhile. The best of three, because other tests run beside this one."""
    chance = random.Random(7)
    group = GroupSpec({}, {topic_id(chance): 400 for _ in range(10)}, homogeneous)
    group = grown_by(group, 2000, chance)
    group = grown_by(after(group, ASSIGNORS[assignor](group)), 1, chance)
    taken = []
    for _ in range(3):
        begun = time.thread_time()
        ASSIGNORS[assignor](group)
        taken.append(time.thread_time() - begun)
    assert min(taken) < LONGEST_STALL_S / 2


def test_hash_codes_are_those_of_java() -> None:
    assert string_hash("hello") == 99162322
    assert string_hash("") == 0
    assert string_hash("\U0001f40d") == (0xD83D * 31 + 0xDC0D) & 0xFFFF_FFFF


def test_a_table_that_grew_is_smaller_than_one_that_was_copied() -> None:
    assert [grown(count) for count in (0, 12, 13, 24, 25)] == [16, 16, 32, 32, 64]
    assert [copied(count) for count in (0, 11, 12, 23, 24)] == [16, 16, 32, 32, 64]


def test_the_order_of_members_in_the_request_plays_no_part() -> None:
    chance = random.Random(3)
    for homogeneous in (True, False):
        group = random_group(chance, homogeneous=homogeneous, members=20)
        shuffled = chance.sample(list(group.members.items()), len(group.members))
        for assign in ASSIGNORS.values():
            assert assign(group) == assign(replace(group, members=dict(shuffled)))
