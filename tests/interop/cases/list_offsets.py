"""ListOffsets and OffsetForLeaderEpoch."""

from typing import Any

from oracle.batches import T0, Record, batch
from oracle.compare import Cases, Probe
from oracle.wire import fit

CASES = Cases("offsets")
case = CASES.case

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
VERSIONS = range(1, 12)


def ask(probe: Probe, label: str, version: int, topic: str, *parts: dict[str, Any], **more: Any) -> Any:
    rows = [{"name": topic, "partitions": list(parts)}]
    values = {"replica_id": -1, "isolation_level": 0, "topics": rows, "timeout": 5000, **more}
    return probe.ask(label, "ListOffsets", version, fit("ListOffsets", version, values))


def at(timestamp: int, partition: int = 0, **more: int) -> dict[str, Any]:
    return {"partition_index": partition, "timestamp": timestamp, **more}


def filled(probe: Probe) -> str:
    """Timestamps T0+0, 10, 20 | 50, 30 | 40 at offsets 0-5."""
    topic = probe.topic().name
    probe.produce(topic, batch([Record(timestamp_delta=delta) for delta in (0, 10, 20)]))
    probe.produce(topic, batch([Record(timestamp_delta=delta) for delta in (50, 30)]))
    probe.produce(topic, batch([Record(timestamp_delta=40)]))
    return topic


@case()
def special_timestamps_by_version(probe: Probe) -> None:
    topic = filled(probe)
    for version in VERSIONS:
        for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING, -7, -100):
            ask(probe, f"{timestamp} v{version}", version, topic, at(timestamp))


@case()
def special_timestamps_of_an_empty_partition(probe: Probe) -> None:
    topic = probe.topic().name
    for version in (1, 7, 11):
        for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, 0, T0):
            ask(probe, f"{timestamp} v{version}", version, topic, at(timestamp))


@case()
def offsets_by_timestamp(probe: Probe) -> None:
    topic = filled(probe)
    for version in (1, 4, 11):
        for delta in (-1, 0, 1, 10, 20, 21, 30, 31, 40, 50, 51):
            ask(probe, f"T0+{delta} v{version}", version, topic, at(T0 + delta))
        ask(probe, f"0 v{version}", version, topic, at(0))
        ask(probe, f"the end of time v{version}", version, topic, at(2**63 - 1))


@case()
def offsets_by_timestamp_in_compressed_batches(probe: Probe) -> None:
    topic = probe.topic().name
    for codec in (1, 2, 3, 4):
        records = [Record(timestamp_delta=delta) for delta in (0, 10, 20)]
        probe.produce(topic, batch(records, attributes=codec, base_timestamp=T0 + codec * 100))
    for delta in (100, 101, 115, 210, 220, 221, 320, 405, 420, 421):
        ask(probe, f"T0+{delta}", 7, topic, at(T0 + delta))
    ask(probe, "max timestamp", 7, topic, at(MAX_TIMESTAMP))


@case()
def equal_max_timestamps_name_the_first(probe: Probe) -> None:
    topic = probe.topic().name
    for _ in range(3):
        probe.produce(topic, batch(2))
    ask(probe, "max timestamp", 7, topic, at(MAX_TIMESTAMP))
    ask(probe, "T0", 7, topic, at(T0))


@case()
def records_without_a_timestamp(probe: Probe) -> None:
    topic = probe.topic().name
    probe.produce(topic, batch(2, base_timestamp=-1))
    for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, 0, T0):
        ask(probe, f"{timestamp}", 7, topic, at(timestamp))


@case()
def offsets_by_timestamp_on_log_append_time(probe: Probe) -> None:
    topic = probe.topic(message_timestamp_type="LogAppendTime").name
    probe.produce(topic, batch(3))
    ask(probe, "T0", 7, topic, at(T0))
    ask(probe, "max timestamp", 7, topic, at(MAX_TIMESTAMP))
    ask(probe, "later", 7, topic, at(T0 * 3))


@case()
def isolation_levels(probe: Probe) -> None:
    topic = filled(probe)
    for version in (2, 7, 11):
        for level in (0, 1):
            for timestamp in (LATEST, T0, MAX_TIMESTAMP):
                label = f"level {level} at {timestamp} v{version}"
                ask(probe, label, version, topic, at(timestamp), isolation_level=level)


@case()
def bad_isolation_levels(probe: Probe) -> None:
    topic = filled(probe)
    for version in (2, 11):
        for level in (2, -1):
            ask(probe, f"level {level} v{version}", version, topic, at(LATEST), isolation_level=level)


@case()
def unknown_topics_and_partitions(probe: Probe) -> None:
    topic = probe.topic().name
    for version in (1, 4, 6, 11):
        ask(probe, f"topic v{version}", version, probe.name("none"), at(LATEST))
        ask(probe, f"partition v{version}", version, topic, at(LATEST, 5), at(LATEST, -1), at(LATEST, 0))
    for index, name in enumerate(("", ".", "a b", "x" * 250)):
        ask(probe, f"illegal {index}", 7, name, at(LATEST))


@case()
def the_same_partition_twice(probe: Probe) -> None:
    topic = filled(probe)
    for version in (1, 11):
        ask(probe, f"v{version}", version, topic, at(LATEST), at(EARLIEST))
    row = {"name": topic, "partitions": [at(LATEST)]}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [row, row], "timeout": 5000}
    probe.ask("in two rows", "ListOffsets", 11, body)


@case()
def nothing_to_list(probe: Probe) -> None:
    topic = probe.topic().name
    for version in (1, 11):
        ask(probe, f"no partitions v{version}", version, topic)
        body = fit("ListOffsets", version, {"replica_id": -1, "isolation_level": 0, "topics": [], "timeout": 5000})
        probe.ask(f"no topics v{version}", "ListOffsets", version, body)


@case()
def leader_epochs_are_fenced(probe: Probe) -> None:
    topic = filled(probe)
    for version in (4, 11):
        for epoch in (-1, 0, 1, 99, -2):
            ask(probe, f"epoch {epoch} v{version}", version, topic, at(LATEST, current_leader_epoch=epoch))


@case()
def replicas_ask_too(probe: Probe) -> None:
    topic = filled(probe)
    for replica in (1, 2, -2, -3):
        ask(probe, f"replica {replica}", 7, topic, at(LATEST), replica_id=replica)


# OffsetForLeaderEpoch


def ends(probe: Probe, label: str, version: int, topic: str, *parts: dict[str, Any], replica: int = -1) -> Any:
    values = {"replica_id": replica, "topics": [{"topic": topic, "partitions": list(parts)}]}
    return probe.ask(label, "OffsetForLeaderEpoch", version, fit("OffsetForLeaderEpoch", version, values))


def epoch(leader_epoch: int, partition: int = 0, current: int = -1) -> dict[str, Any]:
    return {"partition": partition, "leader_epoch": leader_epoch, "current_leader_epoch": current}


@case()
def ends_of_epochs(probe: Probe) -> None:
    topic = filled(probe)
    for version in (2, 3, 4):
        for leader_epoch in (0, 1, 99, -1, -2):
            ends(probe, f"epoch {leader_epoch} v{version}", version, topic, epoch(leader_epoch))


@case()
def ends_of_epochs_of_an_empty_partition(probe: Probe) -> None:
    topic = probe.topic().name
    for version in (2, 4):
        for leader_epoch in (0, 1, -1):
            ends(probe, f"epoch {leader_epoch} v{version}", version, topic, epoch(leader_epoch))


@case()
def current_epochs_are_fenced(probe: Probe) -> None:
    topic = filled(probe)
    for version in (2, 4):
        for current in (0, 1, 99, -2):
            ends(probe, f"current {current} v{version}", version, topic, epoch(0, current=current))


@case()
def epochs_of_unknown_topics_and_partitions(probe: Probe) -> None:
    topic = probe.topic().name
    for version in (2, 4):
        ends(probe, f"topic v{version}", version, probe.name("none"), epoch(0))
        ends(probe, f"partition v{version}", version, topic, epoch(0, 7), epoch(0, -1), epoch(0))
        ends(probe, f"no partitions v{version}", version, topic)
    for index, name in enumerate(("", "a b", "x" * 250)):
        ends(probe, f"illegal {index}", 4, name, epoch(0))
    for replica in (1, 2, -2, -3):
        ends(probe, f"replica {replica}", 4, topic, epoch(0), replica=replica)
    ends(probe, "twice", 4, topic, epoch(0), epoch(0))
