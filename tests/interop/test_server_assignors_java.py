"""The server-side assignors and the metadata hash beside Apache Kafka's own classes, on the same groups, in one JVM.

A group whose members come to Java in the order of their ids gets exactly what Java gives. Where they come in another
order, entries in one bucket of a hash table have another order there, and the result may differ. Then Java's own
orders are checked (they may differ from ours inside a bucket only), and with exactly these orders our assignor gives
exactly Java's result.
"""

import json
import random
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from kits.assignors.server_groups import after, changed, check_assignment, random_group, topic_id
from oracle.kafka import Oracle, jars_or_skip
from twofold.coordinator.group.assignors import ASSIGNORS, Assignment, GroupSpec
from twofold.coordinator.group.assignors.hashes import group_hash, topic_hash
from twofold.coordinator.group.assignors.orders import (
    APACHE_KAFKAS,
    Item,
    Orders,
    bucket_of,
    copied,
    grown,
    string_hash,
    topic_id_hash,
)
from twofold.coordinator.group.assignors.uniform import assign_uniformly
from twofold.types import TopicId

pytestmark = [pytest.mark.interop, pytest.mark.oracle]

PROGRAM = Path(__file__).parent / "java" / "ServerAssignors.java"
FAMILIES = 65  # of each kind, with four generations each: 520 groups


class Case(NamedTuple):
    assignor: str
    group: GroupSpec
    is_in_order: bool  # whether Java is told of members, topics and partitions in the order of their ids
    ours: Assignment


class Topic(NamedTuple):
    id: TopicId
    name: str
    racks: list[list[str]]


class Java(NamedTuple):
    groups: list[dict[str, Any]]
    hashes: dict[str, Any]


def families(chance: random.Random) -> list[Case]:
    cases = []
    for number in range(2 * FAMILIES):
        group = random_group(chance, homogeneous=number % 2 == 0, members=chance.choice((3, 14, 30)))
        for generation in range(4):
            is_in_order = generation % 2 == 0
            for assignor in ("range", "uniform"):
                cases.append(Case(assignor, group, is_in_order, ASSIGNORS[assignor](group)))
            group = changed(after(group, cases[-1].ours), chance)
    return cases


def some_topics(chance: random.Random) -> list[Topic]:
    names = ["orders", "a", "a.b", "a_b", "Z", "\u00e4rger", "x" * 249]
    racks = ["", "r1", "r10", "r2", "\u00fc", "\U0001f40d", "\ufb01"]
    topics = [Topic(topic_id(chance), name, [[] for _ in range(chance.randint(1, 40))]) for name in names]
    for name in ("racks", "more-racks"):
        rows = [chance.choices(racks, k=chance.randint(1, 4)) for _ in range(12)]
        topics.append(Topic(topic_id(chance), name, rows))
    topics.append(Topic(topic_id(chance), "some-racks", [[], ["r1"], [], ["r2", "r1"]]))
    return topics


def as_json(case: Case, chance: random.Random) -> dict[str, Any]:
    def told(items: Collection[Any]) -> list[Any]:
        ordered = sorted(items)
        return ordered if case.is_in_order else chance.sample(ordered, len(ordered))

    members = [
        {
            "id": name,
            "instance": case.group.members[name].instance_id,
            "topics": list(map(str, told(case.group.members[name].topics))),
            "target": [
                [str(topic), told(case.group.members[name].target[topic])]
                for topic in told(case.group.members[name].target)
            ],
        }
        for name in told(case.group.members)
    ]
    partitions = {str(topic): count for topic, count in case.group.partitions.items()}
    return {
        "assignor": case.assignor,
        "homogeneous": case.group.homogeneous,
        "partitions": partitions,
        "members": members,
    }


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return families(random.Random("families of groups"))


@pytest.fixture(scope="module")
def topics() -> list[Topic]:
    return some_topics(random.Random("topics"))


@pytest.fixture(scope="module")
def java(cases: list[Case], topics: list[Topic], tmp_path_factory: pytest.TempPathFactory) -> Java:
    """All in one start of the JVM."""
    chance = random.Random("orders in which Java is told")
    rows = [{"id": str(topic.id), "name": topic.name, "racks": topic.racks} for topic in topics]
    asked = {"groups": [as_json(case, chance) for case in cases], "topics": rows}
    oracle = Oracle(jars_or_skip(), tmp_path_factory.mktemp("assignors"))
    done = oracle.java_program(PROGRAM, input=json.dumps(asked), timeout=100)
    assert done.returncode == 0, done.stderr
    *groups, hashes = map(json.loads, done.stdout.splitlines())
    assert len(groups) == len(cases), done.stderr
    return Java(groups, hashes)


def read(case: Case, answer: dict[str, Any]) -> Assignment:
    """Java leaves out the members when nobody subscribes to anything."""
    found = answer["found"]
    return {
        name: {UUID(topic): frozenset(numbers) for topic, numbers in found.get(name, ())} for name in case.group.members
    }


def is_order_of_buckets(
    theirs: Sequence[Item], ours: Sequence[Item], hash_of: Callable[[Item], int], buckets: int
) -> bool:
    """Both have the same entries, bucket by bucket."""
    same = set(theirs) == set(ours) and len(theirs) == len(ours)
    return same and [bucket_of(hash_of(one), buckets) for one in theirs] == [
        bucket_of(hash_of(one), buckets) for one in ours
    ]


def javas_orders(case: Case, answer: dict[str, Any]) -> Orders:
    """The orders in which Java read this group, after the proof that they differ from ours inside a bucket only."""
    members, subscribed = answer["members"], list(map(UUID, answer["subscribed"]))
    assert is_order_of_buckets(members, APACHE_KAFKAS.members(members), string_hash, grown(len(members)))
    assert is_order_of_buckets(subscribed, APACHE_KAFKAS.subscribed(subscribed), topic_id_hash, copied(len(subscribed)))
    # By the very objects: two members may have partitions of the same numbers, which came in another order.
    assigned: dict[int, list[TopicId]] = {}
    partitions: dict[int, list[int]] = {}
    for name, rows in answer["targets"].items():
        target = case.group.members[name].target
        ids = [UUID(topic) for topic, _ in rows]
        assert is_order_of_buckets(ids, APACHE_KAFKAS.assigned(target), topic_id_hash, grown(len(ids)))
        assigned[id(target)] = ids
        for topic, numbers in zip(ids, (numbers for _, numbers in rows), strict=True):
            ours = APACHE_KAFKAS.partitions(target[topic])
            assert is_order_of_buckets(numbers, ours, int, copied(len(numbers)))
            partitions[id(target[topic])] = numbers
    return Orders(
        members=lambda ids: members,
        subscribed=lambda topics: subscribed,
        assigned=lambda topics: assigned[id(topics)],
        partitions=lambda numbers: partitions[id(numbers)],
    )


def test_assignments_are_those_of_apache_kafka(cases: list[Case], java: Java) -> None:
    by_order = 0
    for case, answer in zip(cases, java.groups, strict=True):
        theirs = read(case, answer)
        check_assignment(case.group, case.ours)
        if theirs != case.ours:
            assert case.assignor == "uniform" and not case.is_in_order, case
            by_order += 1
            assert assign_uniformly(case.group, javas_orders(case, answer)) == theirs, case
    assert 0 < by_order < len(cases) / 4, "orders inside a bucket should matter in a few groups"


def test_orders_of_tables_are_those_of_java(cases: list[Case], java: Java) -> None:
    """Also where the result does not tell."""
    for case, answer in zip(cases, java.groups, strict=True):
        orders = javas_orders(case, answer)
        if case.is_in_order:
            assert orders.members(()) == APACHE_KAFKAS.members(case.group.members)
            for member in case.group.members.values():
                assert orders.assigned(member.target) == APACHE_KAFKAS.assigned(member.target)
                for numbers in member.target.values():
                    assert orders.partitions(numbers) == APACHE_KAFKAS.partitions(numbers)


def test_hashes_are_those_of_apache_kafka(topics: list[Topic], java: Java) -> None:
    ours = {topic.name: topic_hash(topic.id, topic.name, len(topic.racks), topic.racks) for topic in topics}
    assert list(ours.values()) == java.hashes["topics"]
    assert group_hash(ours[name] for name in sorted(ours)) == java.hashes["group"]
