"""DescribeCluster and FindCoordinator."""

from typing import Any

from oracle.compare import Cases, Differs, Probe
from oracle.wire import fit

CASES = Cases("cluster")
case = CASES.case

GROUP, TRANSACTION, SHARE = 0, 1, 2


@case()
def the_cluster(probe: Probe) -> None:
    for version in (0, 1, 2):
        for operations in (False, True):
            body = {"include_cluster_authorized_operations": operations}
            probe.ask(f"v{version} operations {operations}", "DescribeCluster", version, body)


@case()
def endpoint_types(probe: Probe) -> None:
    for version in (1, 2):
        for kind in (0, 1, 2, 3, 99, -1):
            probe.ask(f"type {kind} v{version}", "DescribeCluster", version, {"endpoint_type": kind})


@case()
def fenced_brokers_on_request(probe: Probe) -> None:
    probe.ask("v2", "DescribeCluster", 2, {"include_fenced_brokers": True})


def found(answer: dict[str, Any]) -> bool:
    rows = answer.get("coordinators", [answer])
    return all(row["error_code"] != 15 for row in rows)


def find(probe: Probe, label: str, version: int, kind: int, *keys: str) -> None:
    values: dict[str, Any] = {"key_type": kind, "coordinator_keys": list(keys), "key": keys[0] if keys else ""}
    probe.ask(label, "FindCoordinator", version, fit("FindCoordinator", version, values), until=found)


@case()
def the_coordinator_of_a_group(probe: Probe) -> None:
    for version in range(7):
        find(probe, f"v{version}", version, GROUP, "some-group")
    find(probe, "empty", 3, GROUP, "")
    find(probe, "empty v6", 6, GROUP, "")


@case()
def the_coordinator_of_a_transactional_id(probe: Probe) -> None:
    for version in range(1, 7):
        find(probe, f"v{version}", version, TRANSACTION, "some-id")


@case()
def coordinators_of_several_keys(probe: Probe) -> None:
    for version in (4, 6):
        find(probe, f"several v{version}", version, GROUP, "a", "b", "c")
        find(probe, f"twice v{version}", version, GROUP, "a", "a")
        find(probe, f"none v{version}", version, GROUP)
        find(probe, f"ids v{version}", version, TRANSACTION, "a", "b")


@case()
def key_types_that_are_none(probe: Probe) -> None:
    for version in (1, 3, 4, 6):
        for kind in (3, 99, -1):
            find(probe, f"type {kind} v{version}", version, kind, "a", "b")
    find(probe, "bad type without keys", 4, 99)


NO_SHARE_GROUPS = Differs("there are no share groups", {"coordinators[1].error_code": 42})


@case({"v6": NO_SHARE_GROUPS})
def share_keys_need_version_6(probe: Probe) -> None:
    for version in (1, 4, 5):
        find(probe, f"v{version}", version, SHARE, "a")
    body = {"key_type": SHARE, "coordinator_keys": ["a", "group:AAAAAAAAAAAAAAAAAAAAAQ:0"]}
    probe.ask("v6", "FindCoordinator", 6, body)
