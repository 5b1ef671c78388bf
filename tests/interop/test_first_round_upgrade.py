"""A classic group whose first round waits for members has generation 0. Its upgrade by a member with a pattern, which
raises no epoch by itself: Apache Kafka fails, Twofold begins at epoch 1 (docs/known-gaps.md)."""

from pathlib import Path

import pytest

from interop.cases.consumer_classic import Old
from interop.cases.consumer_kit import Party
from oracle.compare import Case, Probe
from oracle.kafka import Oracle, jars_or_skip
from oracle.twofold import Twofold

pytestmark = [pytest.mark.interop, pytest.mark.oracle]

SETTINGS = {"group.initial.rebalance.delay.ms": "20000"}


def upgraded_in_its_first_round(server: Oracle | Twofold) -> tuple[int, int]:
    probe = Probe(server, Case("first", "round", lambda probe: None))
    party = Party(probe)
    old = Old(party, "old")
    old.send_enter()
    for _ in range(100):  # until the request is there
        (row,) = probe.tell("DescribeGroups", 5, groups=[party.id], include_authorized_operations=False)["groups"]
        if row["group_state"] == "PreparingRebalance":
            break
    answer = party.member("new").join("joins", None, subscribed_topic_regex="nothing.*")
    probe.close_all()
    return answer["error_code"], answer["member_epoch"]


def test_apache_kafka_fails_where_twofold_begins_at_the_first_epoch(tmp_path: Path) -> None:
    jars = jars_or_skip()
    server = Twofold(tmp_path / "twofold", SETTINGS)
    server.start()
    try:
        assert upgraded_in_its_first_round(server) == (0, 1)
    finally:
        server.kill()
    (tmp_path / "oracle").mkdir()
    oracle = Oracle(jars, tmp_path / "oracle", SETTINGS)
    oracle.start()
    try:
        assert upgraded_in_its_first_round(oracle) == (-1, 0), "mended upstream: let us answer the same"
    finally:
        oracle.stop()
