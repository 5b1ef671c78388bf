"""Idempotent producers: InitProducerId, sequences and epochs on Produce, DescribeProducers."""

from typing import Any

from oracle.batches import batch, idempotent
from oracle.compare import Cases, Probe, produce_body

CASES = Cases("producers")
case = CASES.case

SEQUENCE_MAX = 2**31 - 1


def send(probe: Probe, label: str, topic: str, data: bytes, version: int = 8) -> Any:
    return probe.ask(label, "Produce", version, produce_body(topic, data))


def rows(probe: Probe, label: str, topic: str, *partitions: int) -> Any:
    body = {"topics": [{"name": topic, "partition_indexes": list(partitions) or [0]}]}
    return probe.ask(label, "DescribeProducers", 0, body)


def allotted(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "producer_id": "<allotted>" if answer["producer_id"] >= 0 else answer["producer_id"]}


@case()
def producer_ids_are_unique(probe: Probe) -> None:
    body = {"transactional_id": None, "transaction_timeout": 60000}
    ids = {probe.tell("InitProducerId", 1, **body)["producer_id"] for _ in range(50)}
    probe.record("fifty ids", len(ids))


@case()
def producer_ids_without_a_transaction(probe: Probe) -> None:
    for version in range(6):
        body = {"transactional_id": None, "transaction_timeout": 60000}
        probe.ask(f"v{version}", "InitProducerId", version, body, keep=allotted)
    for timeout in (0, -1, 2**31 - 1):
        body = {"transactional_id": None, "transaction_timeout": timeout}
        probe.ask(f"timeout {timeout}", "InitProducerId", 4, body, keep=allotted)


@case()
def producer_ids_with_an_old_identity(probe: Probe) -> None:
    mine = probe.producer_id()
    for producer_id, epoch in ((mine, 0), (mine, 5), (10**9, 0), (0, 0), (-1, 0), (5, -1), (-5, -5)):
        body = {"transactional_id": None, "transaction_timeout": 60000}
        body |= {"producer_id": producer_id, "producer_epoch": epoch}
        name = "own" if producer_id == mine else producer_id
        for version in (3, 5):
            probe.ask(f"{name}/{epoch} v{version}", "InitProducerId", version, body, keep=allotted)


@case()
def an_empty_transactional_id(probe: Probe) -> None:
    for version in (0, 2, 5):
        body = {"transactional_id": "", "transaction_timeout": 60000}
        probe.ask(f"v{version}", "InitProducerId", version, body, keep=allotted)


@case()
def sequences_in_order(probe: Probe) -> None:
    topic, pid = probe.topic().name, probe.producer_id()
    for index in range(8):
        send(probe, f"batch {index}", topic, idempotent(pid, index * 3, 3))
    rows(probe, "producer", topic)


@case()
def duplicates_in_the_window_are_answered_from_it(probe: Probe) -> None:
    topic, pid = probe.topic().name, probe.producer_id()
    for index in range(6):
        send(probe, f"batch {index}", topic, idempotent(pid, index * 2, 2))
    for index in range(5, -1, -1):
        send(probe, f"batch {index} again", topic, idempotent(pid, index * 2, 2))
    for version in (3, 13):
        if version < 13:
            send(probe, f"last again v{version}", topic, idempotent(pid, 10, 2), version)
    send(probe, "and on", topic, idempotent(pid, 12))


@case()
def gaps_and_overlaps(probe: Probe) -> None:
    topic, pid = probe.topic().name, probe.producer_id()
    send(probe, "0-2", topic, idempotent(pid, 0, 3))
    for label, data in (
        ("gap", idempotent(pid, 5)),
        ("overlaps the end", idempotent(pid, 1, 3)),
        ("inside", idempotent(pid, 1)),
        ("the same start, longer", idempotent(pid, 0, 4)),
        ("the same start, shorter", idempotent(pid, 0, 2)),
        ("same again", idempotent(pid, 0, 3)),
        ("next", idempotent(pid, 3)),
    ):
        send(probe, label, topic, data)
        send(probe, f"{label} v3", topic, data, 3)


@case()
def a_new_producer_may_start_anywhere(probe: Probe) -> None:
    topic = probe.topic().name
    send(probe, "at 17", topic, idempotent(probe.producer_id(), 17))
    send(probe, "at the last sequence", topic, idempotent(probe.producer_id(), SEQUENCE_MAX))
    rows(probe, "producers", topic)


@case()
def sequences_wrap(probe: Probe) -> None:
    topic, pid = probe.topic().name, probe.producer_id()
    send(probe, "up to the end", topic, idempotent(pid, SEQUENCE_MAX - 1, 2))
    send(probe, "from zero", topic, idempotent(pid, 0, 2))
    send(probe, "before the wrap again", topic, idempotent(pid, SEQUENCE_MAX - 1, 2))
    other = probe.producer_id()
    send(probe, "across the end", topic, idempotent(other, SEQUENCE_MAX - 1, 4))
    send(probe, "after it", topic, idempotent(other, 2))
    send(probe, "across the end again", topic, idempotent(other, SEQUENCE_MAX - 1, 4))
    rows(probe, "producers", topic)


@case()
def a_new_epoch_starts_at_zero(probe: Probe) -> None:
    topic, pid = probe.topic().name, probe.producer_id()
    send(probe, "epoch 0", topic, idempotent(pid, 0, 3))
    send(probe, "epoch 1 at 3", topic, idempotent(pid, 3, epoch=1))
    send(probe, "epoch 1 at 0", topic, idempotent(pid, 0, epoch=1))
    send(probe, "epoch 0 again", topic, idempotent(pid, 0, 3))
    send(probe, "epoch 0 goes on", topic, idempotent(pid, 3))
    send(probe, "epoch 1 goes on", topic, idempotent(pid, 1, epoch=1))
    send(probe, "epoch 7", topic, idempotent(pid, 0, epoch=7))
    send(probe, "epoch 1, v3", topic, idempotent(pid, 2, epoch=1), 3)
    send(probe, "the last epoch", topic, idempotent(pid, 0, epoch=32767))
    rows(probe, "producer", topic)


@case()
def identities_that_are_not_whole(probe: Probe) -> None:
    topic = probe.topic().name
    pid = probe.producer_id()
    identities: list[tuple[str, dict[str, Any]]] = [
        ("no sequence", {"producer_id": pid, "producer_epoch": 0, "base_sequence": -1}),
        ("sequence -2", {"producer_id": pid, "producer_epoch": 0, "base_sequence": -2}),
        ("no epoch", {"producer_id": pid, "producer_epoch": -1, "base_sequence": 0}),
        ("epoch and sequence only", {"producer_id": -1, "producer_epoch": 3, "base_sequence": 9}),
        ("producer id -2", {"producer_id": -2, "producer_epoch": 0, "base_sequence": 0}),
    ]
    for label, fields in identities:
        for version in (7, 8):
            send(probe, f"{label} v{version}", topic, batch(**fields), version)
    rows(probe, "producers", topic)


@case()
def producers_are_told_apart(probe: Probe) -> None:
    topic = probe.topic(partitions=2).name
    one, two = probe.producer_id(), probe.producer_id()
    for pid in (one, two):
        send(probe, f"first of {'one' if pid == one else 'two'}", topic, idempotent(pid, 0, 2))
    send(probe, "other partition", topic, idempotent(one, 0, 2))
    probe.ask("partition 1 has its own sequences", "Produce", 8, produce_body(topic, idempotent(one, 0), partition=1))
    rows(probe, "producers", topic, 0, 1)


@case()
def an_error_leaves_no_trace_in_the_producer_state(probe: Probe) -> None:
    topic, pid = probe.topic().name, probe.producer_id()
    send(probe, "wrong crc", topic, idempotent(pid, 0, crc=1))
    rows(probe, "nobody", topic)
    send(probe, "first", topic, idempotent(pid, 0))
    send(probe, "gap", topic, idempotent(pid, 9))
    rows(probe, "still at 0", topic)


@case()
def describing_producers_of_what_is_not(probe: Probe) -> None:
    topic = probe.topic().name
    rows(probe, "unknown topic", probe.name("none"), 0, 1)
    rows(probe, "unknown partition", topic, 0, 5, -1)
    for index, name in enumerate(("", ".", "a b", "x" * 250)):
        rows(probe, f"illegal {index}", name)
    probe.ask("no topics", "DescribeProducers", 0, {"topics": []})
    probe.ask("no partitions", "DescribeProducers", 0, {"topics": [{"name": topic, "partition_indexes": []}]})
    twice = [{"name": topic, "partition_indexes": [0, 0]}, {"name": topic, "partition_indexes": [0]}]
    probe.ask("twice", "DescribeProducers", 0, {"topics": twice})


@case()
def plain_writers_are_not_producers(probe: Probe) -> None:
    topic = probe.topic().name
    probe.produce(topic)
    rows(probe, "nobody", topic)
