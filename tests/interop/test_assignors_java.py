"""The assignors beside Apache Kafka's own, on the same groups: a group may have leaders of both kinds.

`range` and `roundrobin` give exactly what the Java classes give. `cooperative-sticky` does so for a group without a
history. With one, Java's choice among equals follows the order of a hash table; so what is compared is what anyone
would notice: how even it is, how much stays, and what is withheld.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kits.assignors.groups import TOPICS, Group, all_of, check_assignment, kept, unevenness, with_owners
from oracle.kafka import Oracle, jars_or_skip
from twofold.client.consumer.assignors import Assignments, SubscribedMember, assignor_named
from twofold.types import TopicPartition

pytestmark = [pytest.mark.interop, pytest.mark.oracle]

PROGRAM = Path(__file__).parent / "java" / "Assignors.java"
GROUPS = 300
STICKY = "cooperative-sticky"
PREFIXES = ("", "\ufb01-", "\U0001f40d-")  # the order of UTF-16 is not that of code points


def a_group(chance: random.Random, *, even: bool) -> Group:
    partitions = {topic: chance.randint(1, 12) for topic in chance.sample(TOPICS, chance.randint(1, len(TOPICS)))}
    topics = sorted(partitions)
    common = tuple(topics)
    members = []
    for number in chance.sample(range(1000), chance.randint(1, 9)):
        some = common if even else tuple(chance.sample(topics, chance.randint(1, len(topics))))
        instance = f"instance-{chance.randrange(10**6):06}" if chance.random() < 0.3 else None
        name = f"member-{chance.choice(PREFIXES)}{number:03}"
        members.append(SubscribedMember(name, instance, some, (), -1))
    return Group(tuple(members), partitions)


def changed(group: Group, chance: random.Random) -> Group:
    """Some members are gone, some new, and a topic may have grown."""
    gone = chance.randint(0, len(group.members) - 1)
    stay = list(group.members)
    chance.shuffle(stay)
    members = stay[gone:]
    for number in range(chance.randint(0 if gone else 1, 3)):
        members.append(SubscribedMember(f"new-{number}", None, chance.choice(group.members).topics, (), -1))
    partitions = {topic: count + chance.choice((0, 0, 3)) for topic, count in group.partitions.items()}
    return Group(tuple(members), partitions)


class Java:
    """All cases in one start of the JVM."""

    def __init__(self, directory: Path) -> None:
        self._oracle = Oracle(jars_or_skip(), directory)

    def assign(self, cases: list[tuple[str, Group]]) -> list[Assignments]:
        asked = json.dumps([as_json(name, group) for name, group in cases])
        done = self._oracle.java_program(PROGRAM, input=asked, timeout=100)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) == len(cases), done.stderr
        return [
            {name: tuple(sorted(TopicPartition(*row) for row in owned)) for name, owned in json.loads(line).items()}
            for line in lines
        ]

    def assign_sticky(self, groups: list[Group]) -> list[Assignments]:
        return self.assign([(STICKY, group) for group in groups])


def as_json(name: str, group: Group) -> dict[str, Any]:
    members = [
        {
            "id": member.id,
            "instance": member.instance_id,
            "topics": member.topics,
            "owned": member.owned,
            "generation": member.generation,
        }
        for member in group.members
    ]
    # Apache Kafka hands its assignors the topics only that somebody subscribes to.
    partitions = {topic: count for topic, count in group.partitions.items() if group.subscribers(topic)}
    return {"assignor": name, "partitions": partitions, "members": members}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Java:
    return Java(tmp_path_factory.mktemp("assignors"))


def ours(cases: list[tuple[str, Group]]) -> list[Assignments]:
    return [assignor_named(name).assign(group.members, group.partitions) for name, group in cases]


def test_assignments_are_exactly_those_of_apache_kafka(java: Java) -> None:
    chance = random.Random("groups that start")
    cases = []
    for number in range(GROUPS):
        even = a_group(chance, even=True)
        some = even if number % 2 else a_group(chance, even=False)
        cases += [("range", some), ("roundrobin", some), (STICKY, even)]
    for case, mine, theirs in zip(cases, ours(cases), java.assign(cases), strict=True):
        assert mine == theirs, case


def test_a_sticky_group_that_changes_keeps_as_much_and_becomes_as_even(java: Java) -> None:
    chance = random.Random("sticky groups that change")
    before = [a_group(chance, even=number % 2 == 0) for number in range(2 * GROUPS)]
    owned = java.assign_sticky(before)
    groups = [with_owners(changed(group, chance), found, 5) for group, found in zip(before, owned, strict=True)]
    theirs, mine = java.assign_sticky(groups), ours([(STICKY, group) for group in groups])
    for group, one, other in zip(groups, mine, theirs, strict=True):
        check_assignment(group, one)
        assert kept(group, one) >= kept(group, other), (group, one, other)
        if group.is_even:
            assert len(all_of(one)) == len(all_of(other)), ("not the same number is withheld", group, one, other)
    after = ours([(STICKY, with_owners(group, found, 6)) for group, found in zip(groups, mine, strict=True)])
    javas = java.assign_sticky([with_owners(group, found, 6) for group, found in zip(groups, theirs, strict=True)])
    for group, one, other in zip(groups, after, javas, strict=True):
        assert set(all_of(one)) == set(all_of(other)) == group.wanted()
        assert unevenness(one) <= unevenness(other), (group, one, other)
