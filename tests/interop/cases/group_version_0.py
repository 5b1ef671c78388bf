"""While group.version is 0: the requests of the consumer protocol (KIP-848) are listed and refused.

They are not in the suite of all cases: `test_differential` sets both servers back for them.
"""

from typing import Any

from oracle.compare import Case, Cases, Probe
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


ALL: list[Case] = CASES.all
