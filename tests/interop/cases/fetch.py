"""Fetch: bounds, limits, waiting, fencing."""

import time
import uuid
from typing import Any

from oracle.batches import Record, batch
from oracle.compare import Cases, Differs, Probe, Topic
from oracle.driver import CLOSED
from oracle.wire import decode_response, fit

CASES = Cases("Fetch")
case = CASES.case

UNKNOWN_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
PLENTY = 10_000_000


def part(partition: int = 0, offset: int = 0, limit: int = PLENTY, **more: int) -> dict[str, Any]:
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": limit, **more}


def body(version: int, *topics: tuple[Topic, list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
    rows = [{"topic": topic.name, "topic_id": topic.id, "partitions": parts} for topic, parts in topics]
    values = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": PLENTY, "topics": rows, **more}
    return fit("Fetch", version, values)


def fetch(probe: Probe, label: str, version: int, topic: Topic, *parts: dict[str, Any], **more: Any) -> Any:
    return probe.ask(label, "Fetch", version, body(version, (topic, list(parts) or [part()]), **more))


def sizes(answer: dict[str, Any]) -> Any:
    """How many whole batches came, and whether a piece of another."""
    return [len(row["records"] or b"") for topic in answer["responses"] for row in topic["partitions"]]


@case()
def offsets_in_and_out_of_range(probe: Probe) -> None:
    topic = probe.topic()
    for _ in range(3):
        probe.produce(topic.name, batch(2))
    for version in (4, 12, 18):
        for offset in (0, 1, 2, 5, 6, 7, -1, -2, 2**62):
            fetch(probe, f"offset {offset} v{version}", version, topic, part(offset=offset))


@case()
def an_empty_partition(probe: Probe) -> None:
    topic = probe.topic()
    for version in (4, 11, 18):
        for offset in (0, 1):
            fetch(probe, f"offset {offset} v{version}", version, topic, part(offset=offset))


@case()
def unknown_topics_partitions_and_ids(probe: Probe) -> None:
    topic = probe.topic()
    none = Topic(probe.name("none"), UNKNOWN_ID)
    for version in (4, 7, 12, 13, 18):
        fetch(probe, f"topic v{version}", version, none)
        fetch(probe, f"partition v{version}", version, topic, part(1))
        fetch(probe, f"negative partition v{version}", version, topic, part(-1))
        fetch(probe, f"good and bad v{version}", version, topic, part(0), part(5))
    for version in (13, 18):
        fetch(probe, f"zero id v{version}", version, Topic("", None))  # type: ignore[arg-type]
    for index, name in enumerate(("", ".", "a b")):
        fetch(probe, f"illegal name {index}", 9, Topic(name, UNKNOWN_ID))


@case()
def isolation_levels(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name)
    for version in (4, 11, 18):
        for level in (0, 1):
            fetch(probe, f"level {level} v{version}", version, topic, isolation_level=level)


@case()
def bad_isolation_levels(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name)
    for version in (4, 12, 18):
        for level in (2, -1, 127):
            fetch(probe, f"level {level} v{version}", version, topic, isolation_level=level)


def whole_batches_only(count: int) -> Differs:
    why = "only whole batches are sent: a piece of one is of no use to its reader"
    return Differs(why, {f"responses[0].partitions[0].batches[{count}]": ...})


@case(
    {
        f"{label} v{version}": whole_batches_only(count)
        for label, count in (("one batch and a half", 1), ("two batches", 2))
        for version in (4, 12)
    }
)
def the_first_batch_comes_whole_whatever_the_limits(probe: Probe) -> None:
    topic = probe.topic()
    for _ in range(3):
        probe.produce(topic.name, batch([Record(value=b"x" * 1000)]))
    for label, limit, max_bytes in (
        ("partition limit 1", 1, PLENTY),
        ("request limit 1", PLENTY, 1),
        ("both limits 0", 0, 0),
        ("partition limit 0", 0, PLENTY),
        ("one batch and a half", 1600, PLENTY),
        ("two batches", 2200, PLENTY),
    ):
        for version in (4, 12):
            fetch(probe, f"{label} v{version}", version, topic, part(limit=limit), max_bytes=max_bytes)


@case()
def the_request_limit_is_shared_by_the_partitions(probe: Probe) -> None:
    topic = probe.topic(partitions=3)
    for partition in range(3):
        probe.produce(topic.name, batch([Record(value=b"x" * 1000)]), partition=partition)
    parts = [part(index) for index in range(3)]
    for limit in (1, 500, 1500, 2500, PLENTY):
        request = body(11, (topic, parts), max_bytes=limit)
        answer = probe.ask(f"limit {limit}", "Fetch", 11, request, keep=lambda answer: None)
        total = sum(sizes(answer))
        probe.record(f"limit {limit}: partitions with a whole batch", sum(size > 1000 for size in sizes(answer)))
        probe.record(f"limit {limit}: within it, but for the first batch", total <= max(limit, 1100))


@case()
def negative_limits(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name)
    for version in (4, 12):
        fetch(probe, f"request v{version}", version, topic, max_bytes=-1)
        fetch(probe, f"partition v{version}", version, topic, part(limit=-1))
        fetch(probe, f"min bytes v{version}", version, topic, min_bytes=-1)
        fetch(probe, f"wait v{version}", version, topic, max_wait=-1)


@case()
def waiting_for_bytes_ends_with_the_time(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name)
    start = time.monotonic()
    fetch(probe, "nothing new", 11, topic, part(offset=1), max_wait=300)
    fetch(probe, "too little", 11, topic, part(offset=0), max_wait=300, min_bytes=10_000)
    waited = time.monotonic() - start
    probe.record("waited", 0.55 < waited < 2.0)


@case()
def what_waits_for_data(probe: Probe) -> None:
    """An error in the log ends the wait; a partition that is not there at all does not."""
    topic = probe.topic()
    probe.produce(topic.name)
    for label, min_bytes, parts in (
        ("enough", 1, [part(offset=0)]),
        ("min bytes 0", 0, [part(offset=1)]),
        ("out of range", 1, [part(offset=9)]),
        ("fenced", 1, [part(offset=1, current_leader_epoch=5)]),
        ("unknown partition", 1, [part(7)]),
        ("one out of range, one without data", 1, [part(0, 1), part(0, 9)]),
        ("one unknown, one without data", 1, [part(0, 1), part(7)]),
        ("no partitions", 1, []),
    ):
        start = time.monotonic()
        probe.ask(label, "Fetch", 11, body(11, (topic, parts), max_wait=500, min_bytes=min_bytes))
        probe.record(f"{label}: waits", time.monotonic() - start > 0.4)


@case()
def waiting_ends_when_data_arrives(probe: Probe) -> None:
    topic = probe.topic()
    waiting = probe.connect()
    waiting.send("Fetch", 11, body(11, (topic, [part()]), max_wait=9000))
    waiting.await_read()
    start = time.monotonic()
    probe.produce(topic.name)
    payload = waiting.receive()
    assert payload is not None
    probe.record("answer", decode_response("Fetch", 11, payload)[1])
    probe.record("soon", time.monotonic() - start < 3.0)


@case()
def waiting_ends_when_a_topic_is_deleted(probe: Probe) -> None:
    """Its partitions are told so, in every version, and the other topic's partitions keep their answer."""
    for version in range(4, 19):
        kept, doomed = probe.topic(f"kept-{version}"), probe.topic(f"doomed-{version}")
        waiting = probe.connect()
        waiting.send("Fetch", version, body(version, (kept, [part()]), (doomed, [part()]), max_wait=9000))
        waiting.await_read()
        start = time.monotonic()
        probe.tell("DeleteTopics", 5, topic_names=[doomed.name], timeout=10000)
        payload = waiting.receive()
        probe.record(f"v{version} answer", CLOSED if payload is None else decode_response("Fetch", version, payload)[1])
        probe.record(f"v{version} soon", time.monotonic() - start < 3.0)


@case()
def leader_epochs_are_fenced(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name)
    for version in (9, 12, 18):
        for epoch in (-1, 0, 1, 99, -2):
            fetch(probe, f"epoch {epoch} v{version}", version, topic, part(current_leader_epoch=epoch))


@case()
def last_fetched_epochs_that_diverge(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name, batch(3))
    for version in (12, 18):
        for epoch, offset in ((0, 1), (0, 3), (1, 1), (5, 3), (-1, 1)):
            fetch(
                probe,
                f"epoch {epoch} at {offset} v{version}",
                version,
                topic,
                part(0, offset, last_fetched_epoch=epoch),
            )


@case()
def the_same_partition_twice(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name, batch(2))
    probe.produce(topic.name, batch(2))
    fetch(probe, "v4", 4, topic, part(offset=0), part(offset=2))
    fetch(probe, "v18", 18, topic, part(offset=0), part(offset=2))
    probe.ask("in two rows", "Fetch", 11, body(11, (topic, [part(offset=0)]), (topic, [part(offset=2)])))


@case()
def replicas_that_are_none(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name)
    for replica in (2, -2, -3):
        fetch(probe, f"replica {replica} v11", 11, topic, replica_id=replica)
        state = {"replica_id": replica, "replica_epoch": -1}
        fetch(probe, f"replica {replica} v18", 18, topic, replica_state=state)


@case()
def other_cluster_ids(probe: Probe) -> None:
    """Only the raft quorum looks at it."""
    topic = probe.topic()
    fetch(probe, "v12", 12, topic, cluster_id="not-this-cluster")
