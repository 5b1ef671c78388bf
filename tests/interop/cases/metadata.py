"""Metadata: by name, by id, all of them, created on demand, and names that cannot be."""

import uuid
from functools import partial
from typing import Any

from oracle.compare import Cases, Probe
from oracle.wire import fit

CASES = Cases("Metadata")
case = CASES.case

ILLEGAL = ("", ".", "..", "a b", "a/b", "ü", "x" * 250)
UNKNOWN_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def own(probe: Probe, answer: dict[str, Any]) -> dict[str, Any]:
    """Without the topics of other cases."""
    mine = [row for row in answer["topics"] if (row["name"] or "").startswith(probe.name(""))]
    return {**answer, "topics": mine}


def body(names: list[str] | None, version: int, *, create: bool = False, **more: Any) -> dict[str, Any]:
    rows = None if names is None else [{"name": name} for name in names]
    return fit("Metadata", version, {"topics": rows, "allow_auto_topic_creation": create, **more})


@case()
def all_topics(probe: Probe) -> None:
    probe.topic("one")
    probe.topic("two", 3)
    for version in (0, 1, 5, 9, 12, 13):
        names: list[str] | None = [] if version == 0 else None
        probe.ask(f"v{version}", "Metadata", version, body(names, version), keep=partial(own, probe))


@case()
def no_topics(probe: Probe) -> None:
    for version in (1, 4, 9, 12):
        probe.ask(f"v{version}", "Metadata", version, body([], version))


@case()
def unknown_topics_without_creation(probe: Probe) -> None:
    for version in (4, 8, 9, 11, 12, 13):
        probe.ask(f"v{version}", "Metadata", version, body([probe.name("none")], version))


@case()
def unknown_topics_are_created_on_demand(probe: Probe) -> None:
    for version in (0, 3, 4, 9, 13):
        name = probe.name(f"v{version}")
        probe.ask(f"v{version} first", "Metadata", version, body([name], version, create=True))
        probe.await_topic(name)
        probe.ask(f"v{version} then", "Metadata", version, body([name], version, create=True))


@case()
def illegal_names_with_and_without_creation(probe: Probe) -> None:
    for create in (False, True):
        for version in (4, 9, 12):
            request = body(list(ILLEGAL), version, create=create)
            probe.ask(f"v{version} create={create}", "Metadata", version, request)


@case()
def creation_of_a_colliding_name(probe: Probe) -> None:
    probe.topic("a.b")
    colliding = probe.name("a_b")
    probe.ask("v9", "Metadata", 9, body([colliding], 9, create=True))


@case()
def the_same_name_twice(probe: Probe) -> None:
    topic = probe.topic()
    probe.ask("known", "Metadata", 9, body([topic.name, topic.name], 9))
    probe.ask("unknown", "Metadata", 9, body([probe.name("none")] * 2, 9))


@case()
def topics_by_id(probe: Probe) -> None:
    topic = probe.topic("known", 2)
    other = probe.topic("other")
    for version in (10, 11, 12, 13):
        for label, rows in (
            ("known", [{"name": None, "topic_id": topic.id}]),
            ("unknown", [{"name": None, "topic_id": UNKNOWN_ID}]),
            ("zero id and null name", [{"name": None, "topic_id": None}]),
            ("both, the same topic", [{"name": topic.name, "topic_id": topic.id}]),
            ("both, of two topics", [{"name": other.name, "topic_id": topic.id}]),
            ("id and name of no topic", [{"name": probe.name("none"), "topic_id": topic.id}]),
            ("ids and names mixed", [{"name": None, "topic_id": topic.id}, {"name": other.name, "topic_id": None}]),
            ("the same id twice", [{"name": None, "topic_id": topic.id}] * 2),
        ):
            request = {"topics": rows, "allow_auto_topic_creation": False}
            probe.ask(f"v{version} {label}", "Metadata", version, request)


@case()
def authorized_operations_on_request(probe: Probe) -> None:
    topic = probe.topic()
    for version in (8, 9, 10, 11, 13):
        more = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
        probe.ask(f"v{version}", "Metadata", version, body([topic.name], version, **more))


@case()
def a_deleted_topic_is_unknown_by_name_and_by_id(probe: Probe) -> None:
    topic = probe.topic()
    probe.tell("DeleteTopics", 1, topic_names=[topic.name], timeout=5000)
    probe.await_gone(topic.name)
    probe.ask("name", "Metadata", 12, body([topic.name], 12))
    rows = [{"name": None, "topic_id": topic.id}]
    probe.ask("id", "Metadata", 12, {"topics": rows, "allow_auto_topic_creation": False})
