"""Assignors: what any group gets, what stays, and what is withheld until its owner has given it up.

`test_assignors_java.py` compares them with the classes of Apache Kafka.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.assignors.groups import Group, all_of, check_assignment, groups, kept, sizes, with_owners
from twofold.client.consumer.assignors import RebalanceProtocol, SubscribedMember, assignor_named
from twofold.client.consumer.assignors.cooperative_sticky import generation_of
from twofold.types import TopicPartition

RANGE, ROUND_ROBIN = assignor_named("range"), assignor_named("roundrobin")
STICKY = assignor_named("cooperative-sticky")

some_examples = settings(max_examples=40)


def member(
    name: str, *topics: str, instance: str | None = None, owned: str = "", generation: int = -1
) -> SubscribedMember:
    return SubscribedMember(name, instance, topics or ("t",), of(owned), generation)


def of(text: str) -> tuple[TopicPartition, ...]:
    """`t0 t1`"""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def text(partitions: tuple[TopicPartition, ...]) -> str:
    return " ".join(f"{tp.topic}{tp.partition}" for tp in partitions)


def assigned(name: str, partitions: dict[str, int], *members: SubscribedMember) -> dict[str, str]:
    return {member: text(owned) for member, owned in assignor_named(name).assign(members, partitions).items()}


class TestNames:
    def test_an_assignor_has_its_own_name_and_that_of_its_java_class(self) -> None:
        for name, java in (
            ("range", "RangeAssignor"),
            ("roundrobin", "RoundRobinAssignor"),
            ("cooperative-sticky", "CooperativeStickyAssignor"),
        ):
            assert assignor_named(f"org.apache.kafka.clients.consumer.{java}") is assignor_named(name)
            assert assignor_named(name).name == name

    @pytest.mark.parametrize("name", ["sticky", "", "Range", "org.apache.kafka.clients.consumer.StickyAssignor"])
    def test_another_is_refused_with_those_that_are_known(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"known are range, roundrobin, cooperative-sticky, org\.apache") as raised:
            assignor_named(name)
        assert repr(name) in str(raised.value)

    def test_only_one_of_them_may_keep_partitions_over_a_rebalance(self) -> None:
        assert RANGE.protocols == ROUND_ROBIN.protocols == (RebalanceProtocol.EAGER,)
        assert STICKY.protocols == (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)


class TestRange:
    def test_the_first_members_get_the_rest_of_every_topic(self) -> None:
        found = assigned("range", {"t": 3, "u": 3}, member("b", "t", "u"), member("a", "t", "u"))
        assert found == {"a": "t0 t1 u0 u1", "b": "t2 u2"}

    def test_only_subscribers_share_a_topic(self) -> None:
        found = assigned("range", {"t": 4, "u": 2}, member("a", "t"), member("b", "t", "u"), member("c", "x"))
        assert found == {"a": "t0 t1", "b": "t2 t3 u0 u1", "c": ""}

    def test_static_members_come_first_and_keep_their_share_under_a_new_member_id(self) -> None:
        before = assigned("range", {"t": 3}, member("a", instance="2"), member("z", instance="1"), member("0"))
        after = assigned("range", {"t": 3}, member("q", instance="2"), member("b", instance="1"), member("0"))
        assert before == {"z": "t0", "a": "t1", "0": "t2"}
        assert after == {"b": "t0", "q": "t1", "0": "t2"}


class TestRoundRobin:
    def test_partitions_are_dealt_out_across_topics(self) -> None:
        found = assigned("roundrobin", {"t": 3, "u": 3}, member("b", "t", "u"), member("a", "t", "u"))
        assert found == {"a": "t0 t2 u1", "b": "t1 u0 u2"}

    def test_a_member_without_the_topic_is_passed_over(self) -> None:
        members = (member("a", "t"), member("b", "t", "u"), member("c", "t", "u", "v"))
        found = assigned("roundrobin", {"t": 1, "u": 2, "v": 3}, *members)
        assert found == {"a": "t0", "b": "u0", "c": "u1 v0 v1 v2"}

    def test_static_members_come_first(self) -> None:
        assert assigned("roundrobin", {"t": 2}, member("a"), member("z", instance="9")) == {"z": "t0", "a": "t1"}


class TestSticky:
    def test_a_group_without_history_is_dealt_out_in_turn(self) -> None:
        found = assigned("cooperative-sticky", {"t": 5}, member("b"), member("a"))
        assert found == {"a": "t0 t2 t4", "b": "t1 t3"}

    def test_what_moves_is_withheld_and_comes_in_the_next_generation(self) -> None:
        old = [member("a", owned="t0 t1 t2", generation=4), member("b", owned="t3 t4 t5", generation=4)]
        first = STICKY.assign([*old, member("c")], {"t": 6})
        assert {member: len(owned) for member, owned in first.items()} == {"a": 2, "b": 2, "c": 0}
        group = with_owners(Group((*old, member("c")), {"t": 6}), first, 5)
        second = STICKY.assign(group.members, {"t": 6})
        assert sizes(second) == [2, 2, 2]
        assert [second[name] for name in "ab"] == [first[name] for name in "ab"]

    def test_what_no_member_owns_moves_at_once(self) -> None:
        found = assigned("cooperative-sticky", {"t": 4}, member("a", owned="t0 t1", generation=4), member("c"))
        assert found == {"a": "t0 t1", "c": "t2 t3"}

    def test_the_claim_of_the_newer_generation_counts(self) -> None:
        zombie = member("a", owned="t0 t1", generation=3)
        found = assigned("cooperative-sticky", {"t": 4}, zombie, member("b", owned="t1 t2", generation=4))
        assert found == {"a": "t0 t3", "b": "t1 t2"}

    def test_two_claims_of_one_generation_are_settled_in_the_next(self) -> None:
        rivals = (member("a", owned="t0", generation=4), member("b", owned="t0 t1", generation=4))
        found = assigned("cooperative-sticky", {"t": 2}, *rivals)
        assert found == {"a": "", "b": "t1"}

    def test_a_topic_that_the_owner_does_not_want_any_more_goes_to_another_later(self) -> None:
        members = (member("a", "u", owned="t0", generation=4), member("b", "t", "u"))
        assert assigned("cooperative-sticky", {"t": 1, "u": 1}, *members) == {"a": "u0", "b": ""}

    def test_old_clients_tell_their_generation_in_the_user_data(self) -> None:
        old = SubscribedMember("a", topics=("t",), owned=of("t0"), user_data=STICKY.user_data(7))
        assert generation_of(old) == 7
        assert generation_of(old._replace(user_data=b"something else")) == -1
        assert generation_of(old._replace(generation=9)) == 9
        assert RANGE.user_data(7) == ROUND_ROBIN.user_data(7) == b""

    def test_a_large_group_is_assigned_soon(self) -> None:
        members = [member(f"m{number:04}", "t", "u") for number in range(500)]
        first = STICKY.assign(members, {"t": 5_000, "u": 5_000})
        assert set(sizes(first)) == {20}
        fewer = with_owners(Group(tuple(members[50:]), {"t": 5_000, "u": 5_000}), first, 1)
        second = STICKY.assign(fewer.members, fewer.partitions)
        assert set(sizes(second)) == {22, 23} and kept(fewer, second) == 9_000


@pytest.mark.parametrize("name", ["range", "roundrobin", "cooperative-sticky"])
@some_examples
@given(data=st.data())
def test_every_wanted_partition_has_one_owner_that_subscribes_to_it(name: str, data: st.DataObject) -> None:
    group = data.draw(groups())
    found = assignor_named(name).assign(group.members, group.partitions)
    check_assignment(group, found)
    assert set(all_of(found)) == group.wanted()


@pytest.mark.parametrize("name", ["range", "roundrobin", "cooperative-sticky"])
@some_examples
@given(data=st.data())
def test_the_order_in_which_members_are_listed_changes_nothing(name: str, data: st.DataObject) -> None:
    group = data.draw(groups(claims=name == "cooperative-sticky"))
    shuffled = data.draw(st.permutations(group.members))
    assignor = assignor_named(name)
    assert assignor.assign(shuffled, group.partitions) == assignor.assign(group.members, group.partitions)


@some_examples
@given(groups(even=True))
def test_equal_subscriptions_differ_by_one_at_most_with_turns_and_with_stickiness(group: Group) -> None:
    for assignor in (ROUND_ROBIN, STICKY):
        counts = sizes(assignor.assign(group.members, group.partitions))
        assert counts[-1] - counts[0] <= 1


@some_examples
@given(groups(claims=True))
def test_nothing_is_given_that_another_member_may_still_read(group: Group) -> None:
    found = STICKY.assign(group.members, group.partitions)
    check_assignment(group, found)
    for gets in group.members:
        for other in group.members:
            for tp in set(found[gets.id]) & set(other.owned):
                if other is not gets:
                    assert tp in gets.owned and gets.generation > other.generation


@some_examples
@given(st.data())
def test_what_was_withheld_is_owned_one_rebalance_later(data: st.DataObject) -> None:
    group = data.draw(groups(claims=True))
    first = STICKY.assign(group.members, group.partitions)
    settled = with_owners(group, first, 6)
    second = STICKY.assign(settled.members, settled.partitions)
    third = STICKY.assign(with_owners(group, second, 7).members, group.partitions)
    assert set(all_of(third)) == group.wanted()
    assert all(set(first[name]) <= set(third[name]) for name in first), "what a member was given stays with it"


@some_examples
@given(st.data())
def test_a_member_that_leaves_or_comes_moves_no_more_than_its_share(data: st.DataObject) -> None:
    group = data.draw(groups(even=True))
    before = STICKY.assign(group.members, group.partitions)
    total = len(all_of(before))
    if len(group.members) > 1:
        fewer = with_owners(Group(group.members[1:], group.partitions), before, 1)
        after = STICKY.assign(fewer.members, fewer.partitions)
        assert kept(fewer, after) == total - len(before[group.members[0].id]), "all others keep what they have"
        assert set(all_of(after)) == group.wanted(), "what the one had that is gone is free at once"
    newcomer = SubscribedMember("newcomer", topics=group.members[0].topics)
    more = with_owners(Group((*group.members, newcomer), group.partitions), before, 1)
    after = STICKY.assign(more.members, more.partitions)
    share = total // len(more.members)
    assert total - kept(more, after) == share, "only what the newcomer is to get moves"


@some_examples
@given(groups(claims=True))
def test_an_assignment_that_is_settled_is_given_again(group: Group) -> None:
    found = STICKY.assign(group.members, group.partitions)
    for generation in (6, 7):
        group = with_owners(group, found, generation)
        found = STICKY.assign(group.members, group.partitions)
    again = with_owners(group, found, 8)
    assert STICKY.assign(again.members, again.partitions) == found
