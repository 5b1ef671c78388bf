"""Groups as a leader sees them, at the start and after changes; and the rules that any assignment keeps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from twofold.client.consumer.assignors import Assignments, SubscribedMember
from twofold.types import TopicPartition

TOPICS = ("apples", "berries", "cherries", "dates")


class Group(NamedTuple):
    members: tuple[SubscribedMember, ...]
    partitions: dict[str, int]

    @property
    def is_even(self) -> bool:
        """Whether all members subscribe to the same."""
        return len({frozenset(member.topics) for member in self.members}) == 1

    def subscribers(self, topic: str) -> list[str]:
        return [member.id for member in self.members if topic in member.topics]

    def wanted(self) -> set[TopicPartition]:
        """Every partition that has a subscriber."""
        topics = [topic for topic in self.partitions if self.subscribers(topic)]
        return {TopicPartition(topic, index) for topic in topics for index in range(self.partitions[topic])}


@st.composite
def groups(draw: st.DrawFn, *, claims: bool = False, even: bool = False, max_members: int = 7) -> Group:
    """`claims`: members say that they own partitions of generations that may be old, and of topics that may be gone."""
    partitions = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7), min_size=1))
    names = draw(st.lists(st.integers(0, 99), min_size=1, max_size=max_members, unique=True))
    common = draw(subscriptions(partitions)) if even else None
    members = []
    for number in names:
        instance = draw(st.none() | st.just(f"instance-{(number * 37) % 100:02}"))
        owned = draw(st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 7)))) if claims else []
        members.append(
            SubscribedMember(
                f"member-{number:02}",
                instance,
                common or draw(subscriptions(partitions)),
                tuple(dict.fromkeys(owned)),
                draw(st.integers(3, 5)) if claims else -1,
            )
        )
    return Group(tuple(members), partitions)


def subscriptions(partitions: Mapping[str, int]) -> st.SearchStrategy[tuple[str, ...]]:
    some = st.lists(st.sampled_from(sorted(partitions)), min_size=1, unique=True)
    return some.map(lambda names: tuple(sorted(names)))


def with_owners(group: Group, owned: Mapping[str, Sequence[TopicPartition]], generation: int) -> Group:
    """The group in its next rebalance: each member tells what it has."""
    members = tuple(
        member._replace(owned=tuple(owned.get(member.id, ())), generation=generation) for member in group.members
    )
    return Group(members, group.partitions)


def check_assignment(group: Group, found: Assignments) -> None:
    """Every member has an entry, gets only what it subscribes to and what exists, and nothing has two owners."""
    assert found.keys() == {member.id for member in group.members}
    topics = {member.id: member.topics for member in group.members}
    for member, owned in found.items():
        assert list(owned) == sorted(owned)
        assert {tp.topic for tp in owned} <= set(topics[member])
    assert set(all_of(found)) <= group.wanted()
    assert all(count == 1 for count in Counter(all_of(found)).values())


def all_of(found: Assignments) -> list[TopicPartition]:
    return [tp for owned in found.values() for tp in owned]


def sizes(found: Assignments) -> list[int]:
    return sorted(len(owned) for owned in found.values())


def unevenness(found: Assignments) -> int:
    """The differences of all pairs of members, added up."""
    counts = sizes(found)
    return sum(abs(one - other) for position, one in enumerate(counts) for other in counts[position + 1 :])


def kept(group: Group, found: Assignments) -> int:
    """How many partitions stay with a member that owned them."""
    return sum(len(set(member.owned) & set(found[member.id])) for member in group.members)
