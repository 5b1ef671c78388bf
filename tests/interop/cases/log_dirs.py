"""DescribeLogDirs: the same sizes; paths and room are each server's own."""

from typing import Any

from oracle.batches import batch
from oracle.compare import Cases, Probe
from oracle.wire import fit

CASES = Cases("DescribeLogDirs")
case = CASES.case

VERSIONS = range(1, 6)


def describe(probe: Probe, label: str, version: int, topics: Any) -> Any:
    names = [probe.name()] if topics is None else [row["topic"] for row in topics]

    def keep(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "results": [kept(row, names) for row in answer["results"]]}

    return probe.ask(label, "DescribeLogDirs", version, fit("DescribeLogDirs", version, {"topics": topics}), keep=keep)


def kept(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Other cases have topics of their own, and a disk changes while one looks."""
    return without_place({**row, "topics": [topic for topic in row["topics"] if topic["name"] in names]})


def without_places(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "results": [without_place(row) for row in answer["results"]]}


def without_place(row: dict[str, Any]) -> dict[str, Any]:
    row = dict(row)
    row["log_dir"] = row["log_dir"].startswith("/")
    for name in ("total_bytes", "usable_bytes"):
        if name in row:
            row[name] = row[name] > 0
    return row


@case()
def all_partitions(probe: Probe) -> None:
    name = probe.topic(partitions=3).name
    probe.produce(name, batch(3))
    probe.produce(name, batch(1), partition=2)
    for version in VERSIONS:
        describe(probe, f"v{version}", version, None)


@case()
def some_partitions(probe: Probe) -> None:
    name = probe.topic(partitions=3).name
    probe.produce(name, batch(3))
    for version in VERSIONS:
        describe(probe, f"two v{version}", version, [{"topic": name, "partitions": [0, 2]}])
    for label, rows in (
        ("the same twice", [{"topic": name, "partitions": [0, 0]}]),
        ("the same topic twice", [{"topic": name, "partitions": [0]}, {"topic": name, "partitions": [0, 1]}]),
        ("no such partition", [{"topic": name, "partitions": [0, 3, -1]}]),
        ("no such topic", [{"topic": probe.name("none"), "partitions": [0]}]),
        ("illegal", [{"topic": "a b", "partitions": [0]}, {"topic": "", "partitions": [0]}]),
        ("no partitions", [{"topic": name, "partitions": []}]),
        ("no topics", []),
        ("the metadata log", [{"topic": "__cluster_metadata", "partitions": [0]}]),
    ):
        for version in (1, 4):
            describe(probe, f"{label} v{version}", version, rows)


@case()
def sizes_of_batches(probe: Probe) -> None:
    name = probe.topic(partitions=2, compression_type="uncompressed").name
    for count in (1, 2, 50):
        probe.produce(name, batch(count))
        probe.produce(name, batch(count, attributes=4), partition=1)
        describe(probe, f"with {count} more", 4, [{"topic": name, "partitions": [0, 1]}])
