"""ListGroups, DescribeGroups, DeleteGroups and FindCoordinator, as group tools use them."""

from typing import Any

from interop.cases.api_versions import CLIENT
from interop.cases.cluster import GROUP, TRANSACTION, find
from interop.cases.groups_kit import Group, alone, commit_rows, committed, coordinated, fetch, subscription
from interop.cases.groups_offsets import empty_row
from oracle.compare import Cases, Probe, attempts
from oracle.wire import KEYS, fit

CASES = Cases("groups")
case = CASES.case

APIS = (
    *("OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup"),
    *("DescribeGroups", "ListGroups", "DeleteGroups", "OffsetDelete", "TxnOffsetCommit"),
)
LIST_VERSIONS, DESCRIBE_VERSIONS, DELETE_VERSIONS = range(6), range(7), range(3)


def describe(probe: Probe, label: str, version: int, *group_ids: str, operations: bool = False) -> Any:
    body = {"groups": list(group_ids), "include_authorized_operations": operations}
    return probe.ask(label, "DescribeGroups", version, fit("DescribeGroups", version, body))


def listed(probe: Probe, label: str, version: int, **filters: list[str]) -> None:
    """Other cases have groups too: only those of this case count."""
    prefix = probe.name("")

    def own(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "groups": [row for row in answer["groups"] if row["group_id"].startswith(prefix)]}

    probe.ask(label, "ListGroups", version, fit("ListGroups", version, dict(filters)), keep=own)


def delete(probe: Probe, label: str, version: int, *group_ids: str) -> None:
    probe.ask(label, "DeleteGroups", version, {"groups_names": list(group_ids)})


@case()
def ranges_of_the_group_apis(probe: Probe) -> None:
    keys = {KEYS[api] for api in APIS}

    def ranges(answer: dict[str, Any]) -> list[Any]:
        return [row for row in answer["api_keys"] if row["api_key"] in keys]

    probe.ask("ranges", "ApiVersions", 3, CLIENT, keep=ranges)


# FindCoordinator


@case()
def coordinators_of_odd_group_ids(probe: Probe) -> None:
    for index, group_id in enumerate((" ", "ü", "a/b", "x" * 1000, "\0", "😀")):
        for version in (0, 2, 3, 6):
            find(probe, f"{index} v{version}", version, GROUP, group_id)


@case()
def the_topic_of_offsets(probe: Probe) -> None:
    coordinated(probe, probe.name("group"))
    rows = [{"name": "__consumer_offsets"}]

    def shape(answer: dict[str, Any]) -> Any:
        (topic,) = answer["topics"]
        found = {key: topic[key] for key in ("error_code", "name", "is_internal")}
        return {**found, "partitions": len(topic["partitions"])}

    probe.ask("v4", "Metadata", 4, {"topics": rows, "allow_auto_topic_creation": False}, keep=shape)


@case()
def the_configs_of_the_topic_of_offsets(probe: Probe) -> None:
    coordinated(probe, probe.name("group"))
    names = ["cleanup.policy", "compression.type", "segment.bytes"]
    row = {"resource_type": 2, "resource_name": "__consumer_offsets", "configuration_keys": names}
    probe.ask("v1", "DescribeConfigs", 1, {"resources": [row], "include_synonyms": False})


# ListGroups


@case()
def groups_of_every_kind_are_listed(probe: Probe) -> None:
    topic = probe.topic()
    for version in LIST_VERSIONS:
        listed(probe, f"none v{version}", version)
    alone(Group(probe, "stable"), "stable")
    completing = Group(probe, "completing").member("completing", protocol_type="connect")
    completing.enter("joins")
    preparing = Group(probe, "preparing")
    alone(preparing, "preparing")
    preparing.member("second").send_enter()
    preparing.await_state("PreparingRebalance", 2)
    alone(Group(probe, "empty"), "empty").leave("leaves")
    Group(probe, "given").member("given").ask_for_id()
    committed(probe, coordinated(probe, probe.name("offsets")), topic, {0: 5})
    for version in LIST_VERSIONS:
        listed(probe, f"all v{version}", version)
    classic = ("Stable", "CompletingRebalance", "PreparingRebalance", "Empty", "Dead")
    states = (*classic, "Unknown", "Assigning", "Reconciling")
    for state in (*states, "stable", "STABLE", "preparingrebalance", "", "nonsense", "Preparing Rebalance"):
        for version in (4, 5):
            listed(probe, f"state {state!r} v{version}", version, states_filter=[state])
    listed(probe, "two states", 5, states_filter=["Stable", "Empty"])
    listed(probe, "a state and nonsense", 5, states_filter=["Stable", "nonsense"])
    for kind in ("classic", "Classic", "CLASSIC", "consumer", "share", "streams", "unknown", "", "nonsense"):
        listed(probe, f"type {kind!r}", 5, types_filter=[kind])
    listed(probe, "two types", 5, types_filter=["classic", "consumer"])
    listed(probe, "a type and nonsense", 5, types_filter=["classic", "nonsense"])
    listed(probe, "both", 5, states_filter=["empty"], types_filter=["classic"])
    listed(probe, "both, of which none", 5, states_filter=["empty"], types_filter=["consumer"])


# DescribeGroups


@case()
def unknown_groups_are_dead(probe: Probe) -> None:
    group_id = coordinated(probe, probe.name("unknown"))
    for version in DESCRIBE_VERSIONS:
        describe(probe, f"v{version}", version, group_id)
        describe(probe, f"operations v{version}", version, group_id, operations=True)
        describe(probe, f"empty group id v{version}", version, "")
        describe(probe, f"none v{version}", version)


@case()
def groups_described_in_every_version(probe: Probe) -> None:
    group, topic = Group(probe), probe.topic()
    member = group.member("member", instance="instance", protocols=(("range", subscription(topic.name)),))
    for version in DESCRIBE_VERSIONS:
        describe(probe, f"before v{version}", version, group.id)
    member.join("joins")
    for version in DESCRIBE_VERSIONS:
        describe(probe, f"completing v{version}", version, group.id)
    member.lead("syncs")
    for version in DESCRIBE_VERSIONS:
        describe(probe, f"stable v{version}", version, group.id)
        describe(probe, f"stable, operations v{version}", version, group.id, operations=True)
    second = group.member("second")
    second.send_enter()
    group.await_state("PreparingRebalance", 2)
    for version in DESCRIBE_VERSIONS:
        describe(probe, f"preparing v{version}", version, group.id)
    member.leave("leaves")
    second.joined("joins")
    second.leave("leaves")
    for version in DESCRIBE_VERSIONS:
        describe(probe, f"empty v{version}", version, group.id)


@case()
def a_group_of_offsets_only(probe: Probe) -> None:
    group_id, topic = coordinated(probe, probe.name("group")), probe.topic()
    committed(probe, group_id, topic, {0: 5})
    for version in DESCRIBE_VERSIONS:
        describe(probe, f"v{version}", version, group_id)
    member = alone(Group(probe, "group"), "member")
    describe(probe, "joined", 5, group_id)
    fetch(probe, "the offsets stay", 7, group_id)
    member.heartbeat("beats")


@case()
def several_groups_described_at_once(probe: Probe) -> None:
    one, two = Group(probe, "one"), Group(probe, "two")
    alone(one, "one")
    alone(two, "two").leave("leaves")
    unknown = coordinated(probe, probe.name("unknown"))
    for version in (0, 5, 6):
        describe(probe, f"several v{version}", version, one.id, unknown, two.id, "")
        describe(probe, f"twice v{version}", version, one.id, one.id)


# DeleteGroups


@case()
def groups_that_cannot_be_deleted(probe: Probe) -> None:
    group = Group(probe)
    member = alone(group)
    unknown = coordinated(probe, probe.name("unknown"))
    for version in DELETE_VERSIONS:
        delete(probe, f"with members v{version}", version, group.id)
        delete(probe, f"unknown v{version}", version, unknown)
        delete(probe, f"empty group id v{version}", version, "")
        delete(probe, f"none v{version}", version)
    member.heartbeat("undisturbed")


@case()
def groups_are_deleted(probe: Probe) -> None:
    topic = probe.topic()
    for version in DELETE_VERSIONS:
        group = Group(probe, f"v{version}")
        member = alone(group, f"v{version}")
        member.commit("commits", topic, 5)
        member.leave("leaves")
        delete(probe, f"v{version}", version, group.id)
        delete(probe, f"again v{version}", version, group.id)
        fetch(probe, f"no offsets v{version}", 7, group.id)
        describe(probe, f"dead v{version}", 5, group.id)
        listed(probe, f"not listed v{version}", 5)
        member.heartbeat("beats")
        member.commit("commits again", topic, 5)
        member.id = ""
        member.enter("joins anew")


@case()
def a_group_of_offsets_only_is_deleted(probe: Probe) -> None:
    group_id, topic = coordinated(probe, probe.name("group")), probe.topic()
    committed(probe, group_id, topic, {0: 5})
    delete(probe, "delete", 2, group_id)
    fetch(probe, "no offsets", 7, group_id)
    committed(probe, group_id, topic, {0: 6})
    fetch(probe, "new offsets", 7, group_id)


@case()
def several_groups_deleted_at_once(probe: Probe) -> None:
    topic = probe.topic()
    ids = [coordinated(probe, probe.name(f"offsets{index}")) for index in range(3)]
    for group_id in ids:
        committed(probe, group_id, topic, {0: 5})
    busy = Group(probe, "busy")
    alone(busy, "busy")
    unknown = coordinated(probe, probe.name("unknown"))
    delete(probe, "several", 2, *ids[:2], busy.id, unknown)
    delete(probe, "twice", 2, ids[2], ids[2])
    listed(probe, "left", 5)


@case()
def a_group_with_an_id_given_is_deleted(probe: Probe) -> None:
    group = Group(probe)
    pending = group.member("pending").ask_for_id()
    delete(probe, "delete", 2, group.id)
    group.describe("after")
    pending.join("joins")


# TxnOffsetCommit, as far as no transaction is asked for


def txn_commit(probe: Probe, label: str, version: int, rows: list[dict[str, Any]], **over: Any) -> None:
    body = {"transactional_id": "some-id", "producer_id": 5, "producer_epoch": 0, "topics": rows} | over
    probe.ask(label, "TxnOffsetCommit", version, fit("TxnOffsetCommit", version, body))


TXN_VERSIONS = range(6)


def await_transactions(probe: Probe) -> None:
    """Until `__transaction_state` is there: the oracle looks for the coordinator of an id before it looks at the id."""
    for _ in attempts(patience_s=30, pause_s=0.02):
        if probe.tell("FindCoordinator", 1, key="", key_type=TRANSACTION)["error_code"] == 0:
            return


@case()
def transactional_commits_of_unknown_topics(probe: Probe) -> None:
    group_id, topic = coordinated(probe, probe.name("group")), probe.topic()
    for version in TXN_VERSIONS:
        rows = commit_rows(probe.name("none"), {0: 5, 1: 6}) + commit_rows(topic, {7: 5, -1: 5})
        txn_commit(probe, f"v{version}", version, rows, group_id=group_id)
        txn_commit(probe, f"illegal v{version}", version, commit_rows("a b", {0: 5}), group_id=group_id)


EMPTY_TXN_COMMITS = {
    f"no partitions v{version}": empty_row("groups-transactional-commits-of-nothing.topic") for version in TXN_VERSIONS
}


@case(EMPTY_TXN_COMMITS)
def transactional_commits_of_nothing(probe: Probe) -> None:
    group_id, topic = coordinated(probe, probe.name("group")), probe.topic()
    for version in TXN_VERSIONS:
        txn_commit(probe, f"no topics v{version}", version, [], group_id=group_id)
        txn_commit(probe, f"no partitions v{version}", version, commit_rows(topic, {}), group_id=group_id)
        txn_commit(probe, f"no topics, no group v{version}", version, [], group_id="")


@case()
def transactional_commits_without_a_group_id(probe: Probe) -> None:
    topic = probe.topic()
    for version in TXN_VERSIONS:
        rows = commit_rows(topic, {0: 5}) + commit_rows(probe.name("none"), {0: 5})
        txn_commit(probe, f"v{version}", version, rows, group_id="")


@case()
def transactional_commits_without_a_transactional_id(probe: Probe) -> None:
    group_id, topic = coordinated(probe, probe.name("group")), probe.topic()
    await_transactions(probe)
    for version in TXN_VERSIONS:
        rows = commit_rows(topic, {0: 5}) + commit_rows(probe.name("none"), {0: 5})
        txn_commit(probe, f"v{version}", version, rows, group_id=group_id, transactional_id="")
        txn_commit(probe, f"no group either v{version}", version, rows, group_id="", transactional_id="")
    fetch(probe, "nothing came of it", 7, group_id, [(topic, (0,))])
