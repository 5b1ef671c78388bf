"""While group.version is 0: the requests of the consumer protocol (KIP-848) are listed and refused.

They are not in the suite of all cases: `test_differential` sets both servers back for them.
"""

from typing import Any

from interop.cases.consumer_classic import Old
from interop.cases.consumer_kit import Party
from oracle.compare import Case, Cases, Probe, attempts
from oracle.wire import fit

CASES = Cases("group-version-0")
case = CASES.case

CONSUMER_KEYS = (68, 69)
CLIENT = {"client_software_name": "differential", "client_software_version": "1.0"}


def heartbeat(version: int, **more: Any) -> dict[str, Any]:
    values = {"group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None}
    values |= {"rebalance_timeout": 1000, "subscribed_topic_names": ["t"], "subscribed_topic_regex": None}
    values |= {"server_assignor": None, "topic_partitions": []}
    return fit("ConsumerGroupHeartbeat", version, values | more)


@case()
def heartbeats(probe: Probe) -> None:
    for version in (0, 1):
        for label, more in (
            ("joins", {}),
            ("stays", {"member_epoch": 5}),
            ("leaves", {"member_epoch": -1}),
            ("of no group", {"group_id": ""}),
            ("with no assignor", {"server_assignor": "none"}),
        ):
            probe.ask(f"{label} v{version}", "ConsumerGroupHeartbeat", version, heartbeat(version, **more))


@case()
def descriptions(probe: Probe) -> None:
    for version in (0, 1):
        for groups in ([], ["g"], ["g", "", "h"]):
            body = {"group_ids": groups, "include_authorized_operations": True}
            probe.ask(f"{groups} v{version}", "ConsumerGroupDescribe", version, body)


@case()
def what_is_told_of_it(probe: Probe) -> None:
    def keep(answer: dict[str, Any]) -> dict[str, Any]:
        told = {"keys": [row for row in answer["api_keys"] if row["api_key"] in CONSUMER_KEYS]}
        for name in ("supported_features", "finalized_features"):
            told[name] = [row for row in answer.get(name, ()) if row["name"] == "group.version"]
        return told

    for version in range(5):
        probe.ask(f"v{version}", "ApiVersions", version, CLIENT if version >= 3 else {}, keep=keep)


@case()
def members_of_before(probe: Probe) -> None:
    """Scenario 50: a group of the consumer protocol waits while the level is 0, and goes on at 1. Its members may
    commit meanwhile."""
    level(probe, 1)
    party = Party(probe)
    a, b = party.member("a"), party.member("b")
    a.join("joins")
    b.join("joins")
    level(probe, 0)
    a.beat("is refused")
    b.leave("cannot leave")
    party.describe("refused")
    party.listed("still listed")
    party.commit("commits", "a", 2, [0])
    party.fetch("fetches", "a", 2)
    body = {"groups": [party.id], "include_authorized_operations": False}
    probe.ask("in the old way", "DescribeGroups", 6, body)
    probe.ask("has members", "DeleteGroups", 2, {"groups_names": [party.id]})
    old = Old(party, "old", id="old")
    old.join("a classic member")
    level(probe, 1)
    party.describe("as it is then")
    a.epoch = 2
    a.beat("goes on")
    level(probe, 0)


def level(probe: Probe, wanted: int) -> None:
    update = {"feature": "group.version", "max_version_level": wanted, "upgrade_type": 1 if wanted else 2}
    answer = probe.tell("UpdateFeatures", 1, timeout=5000, feature_updates=[update])
    assert answer["error_code"] == 0, answer
    for _ in attempts():
        features = probe.tell("ApiVersions", 3, **CLIENT)["finalized_features"]
        if {row["name"]: row["max_version_level"] for row in features}.get("group.version", 0) == wanted:
            return
    raise AssertionError(f"group.version is not {wanted}")


ALL: list[Case] = CASES.all
