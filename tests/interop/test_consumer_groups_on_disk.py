"""Consumer groups of KIP-848 in a data folder that Twofold and Apache Kafka open in turn go on at their epochs."""

from pathlib import Path
from typing import Any

import pytest

from interop.cases.consumer_classic import mixed_and_settled
from interop.cases.consumer_kit import Party, even, two
from oracle.compare import Case, Probe, attempts
from oracle.driver import Connection
from oracle.kafka import Oracle, jars_or_skip
from oracle.twofold import Twofold

pytestmark = [pytest.mark.interop, pytest.mark.oracle]


def described(server: Oracle | Twofold, groups: list[str]) -> list[Any]:
    """Once the coordinator has loaded them."""
    with Connection(server.host, server.port) as wire:
        for _ in attempts(patience_s=30, pause_s=0.1):
            rows = wire.ask("ConsumerGroupDescribe", 1, group_ids=groups, include_authorized_operations=False)["groups"]
            if all(row["error_code"] not in (14, 15, 16) for row in rows):
                break
    for row in rows:
        row.pop("error_message")
        row["members"].sort(key=lambda member: str(member["member_id"]))
        for member in row["members"]:
            for side in ("assignment", "target_assignment"):
                found = member[side]["topic_partitions"]
                member[side] = {topic["topic_name"]: sorted(topic["partitions"]) for topic in found}
    return sorted(rows, key=lambda row: str(row["group_id"]))


def tell_stories(server: Oracle | Twofold) -> list[str]:
    """A settled group, one on its way, one of both protocols, one with a pattern, and one that is empty."""
    names = ("even", "way", "mixed", "rest")
    probes = {name: Probe(server, Case(name, "disk", lambda probe: None)) for name in names}
    settled, _, _ = even(probes["even"])
    way, a, _ = two(probes["way"])
    a.beat("is told to give up")
    mixed, _, _ = mixed_and_settled(probes["mixed"])
    pattern = Party(probes["rest"], "pattern")
    finder = pattern.member("finder", instance="i")
    finder.join("joins", None, subscribed_topic_regex=probes["rest"].name("topic"))
    finder.beat("has it", until=lambda answer: answer["assignment"] is not None)
    finder.leave("leaves for a while", -2)
    empty = Party(probes["rest"], "empty", partitions=0)
    short = empty.member("short")
    short.join("came", [probes["rest"].name("topic")])
    empty.topic = pattern.topic
    empty.commit("committed", "short", 2, [0])
    short.leave("left")
    for probe in probes.values():
        probe.close_all()
    return [settled.id, way.id, mixed.id, pattern.id, empty.id]


@pytest.mark.parametrize("settings", [{}, {"broker.rack": "a rack"}], ids=["no rack", "rack"])
def test_groups_go_on_in_apache_kafka_and_back(settings: dict[str, str], tmp_path: Path) -> None:
    """With racks, too, both compute the same hash of the topics: no group begins a new epoch."""
    jars = jars_or_skip()
    server = Twofold(tmp_path / "node", settings)
    server.start()
    try:
        groups = tell_stories(server)
        before = described(server, groups)
        assert [row["error_code"] for row in before] == [0] * 5
        assert server.stop() == 0
    finally:
        server.kill()
    oracle = Oracle(jars, tmp_path / "node", settings)
    oracle.start_on_existing_data()
    try:
        assert described(oracle, groups) == before
        way = Probe(oracle, Case("way", "disk", lambda probe: None))
        (group,) = [name for name in groups if ".group" in name and "way" in name]
        answer = way.tell(
            "ConsumerGroupHeartbeat", 1, group_id=group, member_id="a", member_epoch=2, topic_partitions=[]
        )
        assert (answer["error_code"], answer["member_epoch"]) == (0, 3)
        way.close_all()
        after = described(oracle, groups)
        oracle.stop(clean=True)
    finally:
        oracle.stop()
    assert after != before
    server.start()
    try:
        assert described(server, groups) == after
    finally:
        server.kill()
