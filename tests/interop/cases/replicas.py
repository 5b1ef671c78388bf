"""Where replicas are and who leads: DescribeQuorum, ElectLeaders, reassignments and moves between directories. One node
has one place for everything."""

from collections.abc import Sequence
from typing import Any

from oracle.compare import Cases, Probe
from oracle.driver import Connection
from oracle.wire import fit

CASES = Cases("replicas")
case = CASES.case

METADATA = "__cluster_metadata"
Rows = Sequence[tuple[str, Sequence[int]]]


# DescribeQuorum


def quorum(probe: Probe, label: str, version: int, rows: Rows, **options: Any) -> Any:
    topics = [
        {"topic_name": name, "partitions": [{"partition_index": index} for index in found]} for name, found in rows
    ]
    return probe.ask(label, "DescribeQuorum", version, {"topics": topics}, **options)


def shape(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what each server counts and chooses for itself."""
    (row,) = answer["topics"][0]["partitions"]
    (voter,) = row["current_voters"]
    assert row["high_watermark"] <= voter["log_end_offset"]
    seen = {"last_fetch_timestamp", "last_caught_up_timestamp"} & voter.keys()
    return {
        **{key: value for key, value in answer.items() if key not in ("topics", "nodes")},
        "topic": answer["topics"][0]["topic_name"],
        "fields": sorted(row),
        "values": [row[key] for key in ("partition_index", "error_code", "leader_id", "observers")],
        "counts": [row["leader_epoch"] > 0, row["high_watermark"] > 0],
        "voter": (voter["replica_id"], sorted(voter), bool(voter.get("replica_directory_id", True))),
        "times are equal": len({voter[name] for name in seen}) <= 1,
        "nodes": [row["node_id"] for row in answer.get("nodes", ())],
    }


@case()
def the_quorum(probe: Probe) -> None:
    for version in range(3):
        quorum(probe, f"v{version}", version, [(METADATA, [0])], keep=shape)


@case()
def what_is_no_quorum(probe: Probe) -> None:
    topic = probe.topic().name
    for label, rows in (
        ("nothing", []),
        ("no partitions", [(METADATA, [])]),
        ("a topic", [(topic, [0])]),
        ("no topic", [("", [0])]),
        ("partition 1", [(METADATA, [1])]),
        ("a second partition", [(METADATA, [0, 1])]),
        ("the same twice", [(METADATA, [0, 0])]),
        ("a topic too", [(METADATA, [0]), (topic, [0])]),
    ):
        for version in range(3):
            quorum(probe, f"{label} v{version}", version, rows)


# ElectLeaders


def elect(probe: Probe, label: str, version: int, rows: Rows | None, kind: int = 0, timeout: int = 5000) -> None:
    mine = probe.name("")

    def keep(answer: dict[str, Any]) -> dict[str, Any]:
        found = answer["replica_election_results"]
        if rows is None:
            found = [row for row in found if row["topic"].startswith(mine)]
        return {**answer, "replica_election_results": found}

    topics = None if rows is None else [{"topic": name, "partitions": list(found)} for name, found in rows]
    body = {"topic_partitions": topics, "timeout": timeout, "election_type": kind}
    probe.ask(label, "ElectLeaders", version, fit("ElectLeaders", version, body), keep=keep)


@case()
def elections(probe: Probe) -> None:
    topic, none = probe.topic(partitions=2).name, probe.name("none")
    for version in range(3):
        for kind in (0, 1, 2, -1) if version else (0,):
            for label, rows in (
                ("of all", None),
                ("of nothing", []),
                ("of one", [(topic, [0])]),
                ("of two", [(topic, [0, 1])]),
                ("of no partition", [(topic, [])]),
                ("of what is not", [(topic, [7, -1]), (none, [0]), ("", [0])]),
                ("of some that are", [(topic, [0, 7]), (none, [0])]),
                ("of one twice", [(topic, [0, 0]), (topic, [0])]),
            ):
                elect(probe, f"{label} v{version} type {kind}", version, rows, kind)


@case()
def elections_without_patience(probe: Probe) -> None:
    topic = probe.topic().name
    for version in range(3):
        for timeout in (0, -1):
            elect(probe, f"of all v{version} {timeout}", version, None, 0, timeout)
            elect(probe, f"of one v{version} {timeout}", version, [(topic, [0])], 0, timeout)


# Reassignments

Moves = Sequence[tuple[str, Sequence[tuple[int, Sequence[int] | None]]]]


def reassign(probe: Probe, label: str, version: int, moves: Moves, *, grow: bool = True, timeout: int = 5000) -> None:
    topics = [
        {"name": name, "partitions": [{"partition_index": index, "replicas": replicas} for index, replicas in rows]}
        for name, rows in moves
    ]
    body = {"timeout": timeout, "topics": topics, "allow_replication_factor_change": grow}
    probe.ask(label, "AlterPartitionReassignments", version, fit("AlterPartitionReassignments", version, body))


@case()
def reassignments(probe: Probe) -> None:
    topic, none = probe.topic(partitions=2).name, probe.name("none")
    for label, moves in (
        ("nothing", []),
        ("no partition", [(topic, [])]),
        ("to where it is", [(topic, [(0, [1])])]),
        ("cancelled", [(topic, [(0, None)])]),
        ("to another broker", [(topic, [(0, [2])])]),
        ("to two", [(topic, [(0, [1, 2])])]),
        ("to one twice", [(topic, [(0, [1, 1])])]),
        ("to a negative one", [(topic, [(0, [-1])])]),
        ("to none", [(topic, [(0, [])])]),
        ("of no such partition", [(topic, [(9, [1]), (-1, [1])])]),
        ("of no such partition, cancelled", [(topic, [(9, None)])]),
        ("of no such topic", [(none, [(0, [1])])]),
        ("of no such topic, cancelled", [(none, [(0, None)])]),
        ("of the empty name", [("", [(0, [1])])]),
        ("one twice", [(topic, [(0, [1]), (0, [2])])]),
        ("one topic twice", [(topic, [(0, [1])]), (topic, [(1, [1])])]),
        ("one of several is wrong", [(topic, [(0, [1]), (1, [5])]), (none, [(0, [1])])]),
    ):
        reassign(probe, f"{label} v0", 0, moves)
        reassign(probe, f"{label} v1", 1, moves)
        reassign(probe, f"{label} v1, as many as before", 1, moves, grow=False)
    for timeout in (0, -1):
        reassign(probe, f"without patience {timeout}", 1, [(topic, [(0, [1]), (9, [1])])], timeout=timeout)
        reassign(probe, f"nothing without patience {timeout}", 1, [], timeout=timeout)


@case()
def what_is_being_reassigned(probe: Probe) -> None:
    topic = probe.topic().name
    for label, rows in (
        ("all", None),
        ("nothing", []),
        ("one", [(topic, [0])]),
        ("no partition", [(topic, [])]),
        ("no such partition", [(topic, [9, -1]), (probe.name("none"), [0])]),
    ):
        topics = None if rows is None else [{"name": name, "partition_indexes": list(found)} for name, found in rows]
        for timeout in (5000, 0, -1):
            body = {"timeout": timeout, "topics": topics}
            probe.ask(f"{label} {timeout}", "ListPartitionReassignments", 0, body)


# AlterReplicaLogDirs


def in_order(answer: dict[str, Any]) -> dict[str, Any]:
    """Nothing promises an order of the topics."""
    return {**answer, "results": sorted(answer["results"], key=lambda row: row["topic_name"])}


def own_directory(connection: Connection) -> str:
    (row,) = connection.ask("DescribeLogDirs", 4, topics=[])["results"]
    return str(row["log_dir"])


@case()
def moves_between_directories(probe: Probe) -> None:
    topic, none = probe.topic(partitions=2).name, probe.name("none")
    here = own_directory(probe.connection)
    for label, moves in (
        ("nothing", []),
        ("no topic", [(here, [])]),
        ("no partition", [(here, [(topic, [])])]),
        ("to where it is", [(here, [(topic, [0, 1])])]),
        ("with a slash behind", [(f"{here}/", [(topic, [0])])]),
        ("to nowhere", [("/nowhere", [(topic, [0])])]),
        ("to a relative path", [("data", [(topic, [0])])]),
        ("to no path", [("", [(topic, [0])])]),
        ("to any path", [("any", [(topic, [0])])]),
        ("of no such partition", [(here, [(topic, [9, -1])])]),
        ("of no such topic", [(here, [(none, [0]), ("a b", [0])])]),
        ("of no such topic to nowhere", [("/nowhere", [(none, [0])])]),
        ("of the metadata", [(here, [(METADATA, [0])])]),
        ("to two directories", [(here, [(topic, [0])]), ("/nowhere", [(topic, [0])])]),
        ("back to where it is", [("/nowhere", [(topic, [0])]), (here, [(topic, [0])])]),
        ("the same twice", [(here, [(topic, [0, 0]), (topic, [0])]), (here, [(topic, [1])])]),
    ):
        dirs = [
            {"path": path, "topics": [{"name": name, "partitions": found} for name, found in rows]}
            for path, rows in moves
        ]
        for version in (1, 2):
            probe.ask(f"{label} v{version}", "AlterReplicaLogDirs", version, {"dirs": dirs}, keep=in_order)
