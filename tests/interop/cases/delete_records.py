"""DeleteRecords, and what readers and writers find afterwards."""

from typing import Any

from interop.cases.fetch import fetch, part
from interop.cases.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, at
from interop.cases.list_offsets import ask as list_offsets
from interop.cases.txn_kit import Producer, latest, read
from oracle.batches import T0, Record, batch
from oracle.compare import Cases, Differs, Probe, Topic, produce_body

CASES = Cases("DeleteRecords")
case = CASES.case

VERSIONS = (0, 1, 2)
HIGH_WATERMARK = -1
MOST = 2**63 - 1


def delete(probe: Probe, label: str, version: int, *topics: tuple[str, dict[int, int]], timeout: int = 5000) -> Any:
    rows = [
        {
            "name": name,
            "partitions": [{"partition_index": index, "offset": offset} for index, offset in offsets.items()],
        }
        for name, offsets in topics
    ]
    return probe.ask(label, "DeleteRecords", version, {"topics": rows, "timeout": timeout})


def filled(probe: Probe, batches: int = 5, **configs: Any) -> Topic:
    """So many batches of two records, one second after the other."""
    topic = probe.topic(**configs)
    for number in range(batches):
        probe.produce(topic.name, batch(2, base_timestamp=T0 + 1000 * number))
    return topic


@case()
def offsets_in_and_out_of_range(probe: Probe) -> None:
    for version in VERSIONS:
        topic = probe.topic(f"v{version}").name
        for _ in range(5):
            probe.produce(topic, batch(2))
        for step, offset in enumerate((0, 4, 2, 4, 11, -2, -(2**63), MOST, 10, HIGH_WATERMARK, 9)):
            label = f"{step}: {offset} v{version}"
            delete(probe, label, version, (topic, {0: offset}))
            for timestamp in (EARLIEST, LATEST):
                list_offsets(probe, f"{label}, then {timestamp}", 5, topic, at(timestamp))


@case()
def readers_find_the_new_start(probe: Probe) -> None:
    topic = filled(probe)
    delete(probe, "delete", 2, (topic.name, {0: 4}))
    for version in (4, 5, 11, 12, 18):
        for offset in (0, 3, 4, 5, 9, 10, 11):
            fetch(probe, f"from {offset} v{version}", version, topic, part(offset=offset))


@case()
def a_start_inside_of_a_batch(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name, batch(5))
    delete(probe, "delete", 2, (topic.name, {0: 2}))
    for offset in (0, 1, 2, 4):
        fetch(probe, f"from {offset}", 12, topic, part(offset=offset))
    list_offsets(probe, "earliest", 7, topic.name, at(EARLIEST))
    list_offsets(probe, "by time", 7, topic.name, at(T0))


@case()
def everything_goes_and_more_comes(probe: Probe) -> None:
    topic = filled(probe)
    delete(probe, "delete", 2, (topic.name, {0: HIGH_WATERMARK}))
    fetch(probe, "an empty log", 12, topic, part(offset=10))
    for timestamp in (EARLIEST, LATEST, T0):
        list_offsets(probe, f"{timestamp} of an empty log", 7, topic.name, at(timestamp))
    row = probe.produce(topic.name, batch(1))
    probe.record("produced", {key: row[key] for key in ("base_offset", "log_start_offset")})
    fetch(probe, "one record", 12, topic, part(offset=10))
    delete(probe, "again", 2, (topic.name, {0: HIGH_WATERMARK}))


@case()
def times_before_the_start_are_not_found(probe: Probe) -> None:
    topic = filled(probe)
    delete(probe, "delete", 2, (topic.name, {0: 4}))
    for timestamp in (0, T0, T0 + 1000, T0 + 2000, T0 + 2001, T0 + 4000, T0 + 4001, MAX_TIMESTAMP):
        list_offsets(probe, f"{timestamp}", 7, topic.name, at(timestamp))


@case()
def epochs_before_the_start(probe: Probe) -> None:
    topic = filled(probe)
    delete(probe, "delete", 2, (topic.name, {0: 4}))
    for epoch in (0, 1, -1):
        rows = [{"topic": topic.name, "partitions": [{"partition": 0, "leader_epoch": epoch}]}]
        probe.ask(f"epoch {epoch}", "OffsetForLeaderEpoch", 4, {"replica_id": -1, "topics": rows})


@case()
def policies(probe: Probe) -> None:
    for index, policy in enumerate(("compact", "delete", "compact,delete", "")):
        topic = probe.topic(f"policy{index}", cleanup_policy=policy).name
        probe.produce(topic, batch(2))
        for offset in (0, 1, HIGH_WATERMARK, 9, -2):
            delete(probe, f"{offset} of {policy!r}", 2, (topic, {0: offset}))


@case()
def topics_that_are_not(probe: Probe) -> None:
    topic = probe.topic(partitions=2).name
    for version in VERSIONS:
        none = probe.name("none")
        delete(probe, f"unknown v{version}", version, (none, {0: 0, 1: -1}))
        delete(probe, f"unknown partition v{version}", version, (topic, {0: 0, 2: 0, -1: 0}))
        delete(probe, f"good and bad v{version}", version, (none, {0: 0}), (topic, {1: 0}))
    for index, name in enumerate(("", ".", "a b", "ü", "x" * 250)):
        delete(probe, f"illegal {index}", 2, (name, {0: 0}))


@case()
def internal_topics(probe: Probe) -> None:
    Producer(probe)
    for name in ("__transaction_state", "__cluster_metadata"):
        delete(probe, name, 2, (name, {0: 0}))
        delete(probe, f"{name}, up to the end", 2, (name, {0: HIGH_WATERMARK}))
        delete(probe, f"{name}, no such partition", 2, (name, {99: 0}))


@case()
def shapes(probe: Probe) -> None:
    topic = filled(probe).name
    for version in VERSIONS:
        delete(probe, f"nothing v{version}", version)
        delete(probe, f"no partitions v{version}", version, (topic, {}))
    delete(probe, "the same topic twice", 2, (topic, {0: 4}), (topic, {0: 2}))
    rows = [{"partition_index": 0, "offset": offset} for offset in (6, 5)]
    probe.ask("the same partition twice", "DeleteRecords", 2, {"topics": [{"name": topic, "partitions": rows}]})
    for timeout in (0, -1):
        delete(probe, f"timeout {timeout}", 2, (topic, {0: 7}), timeout=timeout)


@case()
def producers_go_on(probe: Probe) -> None:
    """Sequence numbers outlive the records: a batch sent again is known, the next one is expected."""
    topic = probe.topic()
    producer_id = probe.producer_id()

    def send(label: str, sequence: int) -> None:
        data = batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        probe.ask(label, "Produce", 7, produce_body(topic.name, data))

    for sequence in range(3):
        send(f"sequence {sequence}", sequence)
    delete(probe, "delete", 2, (topic.name, {0: HIGH_WATERMARK}))
    send("the last one again", 2)
    send("the first one again", 0)
    send("a gap", 7)
    send("the next one", 3)


# Transactions


LSO_AT_START = "the last stable offset is never below the log start"


@case(
    {
        "stable at the start": Differs(LSO_AT_START, {"topics[0].partitions[0].offset": 3}),
        "nothing is committed": Differs(LSO_AT_START, {"responses[0].partitions[0].last_stable_offset": 3}),
    }
)
def an_open_transaction_loses_its_beginning(probe: Probe) -> None:
    topic = probe.topic()
    one = Producer(probe, "one")
    probe.produce(topic.name, batch(2))
    one.begin(topic, records=3)
    latest(probe, "stable before", topic)
    delete(probe, "into the transaction", 2, (topic.name, {0: 3}))
    latest(probe, "stable at the start", topic)
    read(probe, "nothing is committed", topic, offset=3)
    read(probe, "before the start", topic, offset=2)
    delete(probe, "all of it", 2, (topic.name, {0: HIGH_WATERMARK}))
    latest(probe, "stable at the end", topic)
    one.finish(True)
    latest(probe, "stable after the end", topic)
    read(probe, "the marker", topic, offset=5)


@case()
def an_aborted_transaction_loses_its_beginning(probe: Probe) -> None:
    topic = probe.topic()
    one = Producer(probe, "one")
    one.begin(topic, records=3)
    probe.produce(topic.name, batch(1))
    one.finish(False)
    delete(probe, "into the transaction", 2, (topic.name, {0: 1}))
    read(probe, "the rest is aborted", topic, offset=1)
    delete(probe, "behind it", 2, (topic.name, {0: 3}))
    read(probe, "what stands between it and its marker", topic, offset=3)
    delete(probe, "behind the marker", 2, (topic.name, {0: 5}))
    read(probe, "nothing is left", topic, offset=5)
    list_offsets(probe, "earliest", 7, topic.name, at(EARLIEST), isolation_level=1)


@case()
def a_transaction_goes_on_after_a_deletion(probe: Probe) -> None:
    topic = probe.topic()
    one = Producer(probe, "one")
    one.begin(topic, records=2)
    delete(probe, "all", 2, (topic.name, {0: HIGH_WATERMARK}))
    one.produce("more", topic, sequence=2)
    latest(probe, "stable", topic)
    one.finish(True)
    read(probe, "what came later", topic, offset=2)


@case()
def a_reader_hears_of_it_by_its_next_fetch(probe: Probe) -> None:
    topic = filled(probe)
    fetch(probe, "before", 12, topic, part(offset=2))
    delete(probe, "delete", 2, (topic.name, {0: 6}))
    fetch(probe, "afterwards", 12, topic, part(offset=4))


@case()
def compressed_batches(probe: Probe) -> None:
    topic = probe.topic()
    for codec in (1, 2, 3, 4):
        probe.produce(topic.name, batch([Record(timestamp_delta=index) for index in range(4)], attributes=codec))
    delete(probe, "delete", 2, (topic.name, {0: 6}))
    fetch(probe, "from the start", 12, topic, part(offset=6))
    list_offsets(probe, "earliest", 7, topic.name, at(EARLIEST))
