"""Transactional batches: verification and implicit adding by version, epochs, sequences, duplicates."""

from typing import Any

from interop.cases.txn_kit import (
    NEW,
    OLD,
    PRODUCE_VERSIONS,
    SEQUENCE_MAX,
    TRANSACTIONAL,
    Producer,
    Story,
    await_coordinator,
    marker,
    produce_rows,
    producer_in,
    producers,
    read,
    write_markers,
)
from oracle.batches import batch, idempotent
from oracle.compare import Cases, Differs, Probe, Topic, attempts

CASES = Cases("txn-produce")
case = CASES.case

ELSEWHERE = 10**12
VERIFYING, TELLING, ADDING = 10, 11, 12
"""Up to 10 a batch without a transaction is INVALID_TXN_STATE, in 11 TRANSACTION_ABORTABLE; from 12 it begins one."""


# By version


def without_adding_the_partition(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic(partitions=2)
        producer = Producer(probe)
        producer.produce("in Empty", topic, version)
        producer.describe("after")
        other = Producer(probe, "other")
        other.begin(topic, OLD)
        other.produce("another partition, in Ongoing", topic, version, partition=1)
        other.describe("the other, after")
        read(probe, "partition 1", topic, partition=1)
        for commit in (True, False):
            done = Producer(probe, f"done-{commit}")
            done.run(topic, commit, OLD)
            done.produce(f"after the end, {commit}", topic, version, sequence=1)
            done.describe(f"the one that was done, after, {commit}")

    return run


def with_the_partition_added(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic()
        producer = Producer(probe)
        producer.add("add", {topic.name: [0]})
        producer.produce("first", topic, version, records=2)
        producer.produce("second", topic, version, sequence=2)
        producer.produce("second again", topic, version, sequence=2)
        producer.produce("a gap", topic, version, sequence=9)
        read(probe, "uncommitted", topic, level=0)
        read(probe, "committed", topic)
        producer.end("commit", True, 4)
        producer.await_state("CompleteCommit")
        read(probe, "in the end", topic)

    return run


def who_may_write(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic()
        producer = Producer(probe)
        producer.init("bump to 1")
        producer.add("add", {topic.name: [0]})
        for label, fields in (
            ("an older epoch", {"epoch": 0}),
            ("a newer epoch", {"epoch": 2}),
            ("another producer id", {"producer_id": ELSEWHERE}),
        ):
            producer.produce(label, topic, version, **fields)
        unknown = await_coordinator(probe, probe.name("unknown"))
        for label, transactional_id in (("an unknown id", unknown), ("an empty id", ""), ("no id", None)):
            body = produce_rows(version, transactional_id, [(topic, 0, producer.batch())])
            probe.ask(label, "Produce", version, body)
        producer.describe("as before")
        read(probe, "nothing was written", topic, level=0)
        producers(probe, "nobody wrote", topic)

    return run


for _version in PRODUCE_VERSIONS:
    CASES.add(f"without_adding_the_partition_v{_version}", without_adding_the_partition(_version))
for _version in (3, 8, 10, 11, 12, 13):
    CASES.add(f"with_the_partition_added_v{_version}", with_the_partition_added(_version))
    CASES.add(f"who_may_write_v{_version}", who_may_write(_version))


def in_a_stranded_state(state: str, protocol: int) -> Story:
    def run(probe: Probe) -> None:
        topic = probe.topic()
        producer = producer_in(probe, state, protocol)
        for version in (3, 8, 10, 11, 12, 13):
            producer.produce(f"v{version}", topic, version)
        for version in (10, 12):
            producer.produce(f"a newer epoch v{version}", topic, version, epoch=producer.epoch + 1)
            producer.produce(f"another producer id v{version}", topic, version, producer_id=ELSEWHERE)
        read(probe, "nothing was written", topic, level=0)

    return run


for _state in ("PrepareCommit", "PrepareAbort"):
    for _protocol, _client in ((OLD, "old"), (NEW, "new")):
        CASES.add(f"in_{_state}_of_the_{_client}_protocol", in_a_stranded_state(_state, _protocol))


# Several partitions, several producers


@case()
def partitions_are_verified_one_by_one(probe: Probe) -> None:
    topic = probe.topic(partitions=3)
    for version in (VERIFYING, TELLING, ADDING):
        producer = Producer(probe, f"v{version}")
        producer.add(f"add one of two v{version}", {topic.name: [0]})
        rows = [(topic, index, producer.batch()) for index in (0, 1, 9)]
        probe.ask(f"v{version}", "Produce", version, produce_rows(version, producer.id, rows))
        producer.describe(f"v{version}, after")


@case()
def one_bad_batch_among_good_ones(probe: Probe) -> None:
    topic = probe.topic(partitions=3)
    for version in (VERIFYING, ADDING):
        producer = Producer(probe, f"v{version}")
        producer.add(f"add v{version}", {topic.name: [0, 1, 2]})
        rows = [(topic, 0, producer.batch()), (topic, 1, producer.batch(crc=1)), (topic, 2, producer.batch(sequence=5))]
        probe.ask(f"v{version}", "Produce", version, produce_rows(version, producer.id, rows))
        producers(probe, f"who wrote, v{version}", topic, 0, 1, 2)


@case()
def two_producers_in_one_request(probe: Probe) -> None:
    topic = probe.topic(partitions=2)
    for version in (3, VERIFYING, ADDING, 13):
        one, two = Producer(probe, f"one-v{version}"), Producer(probe, f"two-v{version}")
        rows = [(topic, 0, one.batch()), (topic, 1, two.batch())]
        probe.ask(f"two producers v{version}", "Produce", version, produce_rows(version, one.id, rows))
        rows = [(topic, 0, one.batch()), (topic, 1, one.batch(epoch=1))]
        probe.ask(f"two epochs v{version}", "Produce", version, produce_rows(version, one.id, rows))
        one.describe(f"untouched v{version}")


@case()
def transactional_and_other_batches_in_one_request(probe: Probe) -> None:
    topic = probe.topic(partitions=4)
    for version in (VERIFYING, TELLING, ADDING):
        producer = Producer(probe, f"v{version}")
        rows = [(topic, 0, producer.batch()), (topic, 1, batch()), (topic, 2, idempotent(probe.producer_id(), 0))]
        rows.append((topic, 3, producer.batch(attributes=0)))
        probe.ask(f"v{version}", "Produce", version, produce_rows(version, producer.id, rows))
        producer.describe(f"v{version}, after")


@case()
def batches_that_are_not_transactional_pass_with_an_id(probe: Probe) -> None:
    topic = probe.topic()
    unknown = await_coordinator(probe, probe.name("unknown"))
    for version in (3, VERIFYING, ADDING):
        for label, transactional_id in (("unknown id", unknown), ("empty id", "")):
            body = produce_rows(version, transactional_id, [(topic, 0, batch())])
            probe.ask(f"plain, {label} v{version}", "Produce", version, body)
            body = produce_rows(version, transactional_id, [(topic, 0, idempotent(probe.producer_id(), 0))])
            probe.ask(f"idempotent, {label} v{version}", "Produce", version, body)


@case()
def transactional_batches_without_an_id(probe: Probe) -> None:
    topic = probe.topic(partitions=2)
    producer = Producer(probe)
    for version in (3, VERIFYING, ADDING, 13):
        body = produce_rows(version, None, [(topic, 0, producer.batch()), (topic, 1, batch())])
        probe.ask(f"v{version}", "Produce", version, body)
    read(probe, "nothing was written", topic, level=0)


# Verification and what else is wrong


def wrong_batches(producer: Producer) -> tuple[tuple[str, bytes], ...]:
    return (
        ("crc", producer.batch(crc=1)),
        ("count", producer.batch(count=7)),
        ("sequence", producer.batch(sequence=5)),
        ("control", producer.batch(attributes=TRANSACTIONAL | 0x20)),
        ("no sequence", producer.batch(sequence=-1)),
    )


def verification_comes_before_validation(version: int) -> Story:
    """A version that adds leaves the partition added, whatever is wrong with the batch."""

    def run(probe: Probe) -> None:
        topic = probe.topic()
        names = [label for label, _ in wrong_batches(Producer(probe))]
        for index, label in enumerate(names):
            producer = Producer(probe, label.replace(" ", "-"))
            data = wrong_batches(producer)[index][1]
            probe.ask(label, "Produce", version, produce_rows(version, producer.id, [(topic, 0, data)]))
            producer.describe(f"{label}, after")
        read(probe, "nothing was written", topic, level=0)

    return run


for _version in (VERIFYING, ADDING):
    CASES.add(f"verification_comes_before_validation_v{_version}", verification_comes_before_validation(_version))


@case()
def what_is_not_there_is_not_added(probe: Probe) -> None:
    topic = probe.topic()
    none = Topic(probe.name("none"), topic.id)
    producer = Producer(probe)
    producer.produce("unknown partition", topic, ADDING, partition=7)
    producer.produce("negative partition", topic, ADDING, partition=-1)
    producer.produce("unknown topic", none, ADDING)
    producer.describe("untouched")


REFUSED_AT_ONCE = "an internal topic is refused at once: nothing is asked of the coordinator, nothing is added"
NOT_ADDED: dict[str, Any] = {"transaction_state": "Empty", "transaction_start_time": -1, "topics": []}


@case(
    {
        "v10": Differs(REFUSED_AT_ONCE, {"responses[0].partition_responses[0].error_code": 17}),
        "v12, after": Differs(
            REFUSED_AT_ONCE, {f"transaction_states[0].{key}": value for key, value in NOT_ADDED.items()}
        ),
    }
)
def internal_topics(probe: Probe) -> None:
    producer = Producer(probe)
    place = probe.await_topic("__transaction_state")
    for version in (VERIFYING, ADDING):
        producer.produce(f"v{version}", place, version)
        producer.describe(f"v{version}, after")


# Acks


@case()
def acks_of_all_sorts(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe)
    for index, acks in enumerate((-1, 1)):
        producer.produce(f"acks {acks}", topic, ADDING, sequence=index, acks=acks)
    producer.produce("acks 2", topic, ADDING, sequence=2, acks=2)
    producer.describe("open")


@case()
def an_error_without_acks_closes_the_connection(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe)
    for version in (VERIFYING, TELLING):
        body = producer.produce_body(topic, version, acks=0)
        probe.ask(f"not added v{version}", "Produce", version, body)
    body = producer.produce_body(topic, ADDING, acks=0, epoch=7)
    probe.ask("fenced", "Produce", ADDING, body)


# Sequences and epochs


@case()
def the_first_sequence_of_the_new_protocol_is_zero(probe: Probe) -> None:
    for version in (TELLING, ADDING):
        topic = probe.topic(f"v{version}")
        producer = Producer(probe, f"v{version}")
        producer.add(f"add v{version}", {topic.name: [0]})
        producer.produce(f"5 v{version}", topic, version, sequence=5)
        producer.produce(f"0 v{version}", topic, version, sequence=0)
        producer.produce(f"6 v{version}", topic, version, sequence=6)
        producer.produce(f"1 v{version}", topic, version, sequence=1)
        producers(probe, f"in the end v{version}", topic)


@case()
def sequences_after_a_bumped_epoch(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe)
    producer.run(topic, True, records=3)
    producer.produce("goes on with 3", topic, sequence=3)
    producer.produce("the old epoch goes on", topic, sequence=3, epoch=0)
    producer.produce("begins again", topic, sequence=0)
    producer.produce("the old epoch", topic, sequence=0, epoch=0)
    producer.produce("a later epoch", topic, sequence=0, epoch=5)
    producer.produce("goes on", topic, sequence=1)
    producers(probe, "in the end", topic)


@case()
def sequences_wrap_inside_a_transaction(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe)
    producer.add("add", {topic.name: [0]})
    producer.produce("up to the end", topic, TELLING, sequence=SEQUENCE_MAX - 1, records=2)
    producer.produce("from zero", topic, TELLING, sequence=0, records=2)
    producer.produce("before the wrap again", topic, TELLING, sequence=SEQUENCE_MAX - 1, records=2)
    producers(probe, "in the end", topic)


def duplicates(protocol: int) -> Story:
    """While the transaction is open, after its end, and once the next one is open."""

    def run(probe: Probe) -> None:
        topic = probe.topic()
        producer = Producer(probe)
        first = producer.batch(records=2)
        producer.begin(topic, protocol, records=2)
        versions = (VERIFYING, TELLING, ADDING)
        for version in versions:
            body = produce_rows(version, producer.id, [(topic, 0, first)])
            probe.ask(f"while open v{version}", "Produce", version, body)
        producer.finish(True, protocol)
        for version in versions:
            body = produce_rows(version, producer.id, [(topic, 0, first)])
            probe.ask(f"after the end v{version}", "Produce", version, body)
            producer.describe(f"after the end v{version}: state")
        producer.produce("the next one", topic, sequence=0 if protocol == NEW else 2)
        for version in versions:
            body = produce_rows(version, producer.id, [(topic, 0, first)])
            probe.ask(f"in the next one v{version}", "Produce", version, body)
        read(probe, "in the end", topic, level=0)

    return run


CASES.add("duplicates_of_the_old_protocol", duplicates(OLD))
CASES.add("duplicates_of_the_new_protocol", duplicates(NEW))


@case()
def batches_outside_the_open_transaction(probe: Probe) -> None:
    """The producer id of an open transaction may not write without it."""
    topic = probe.topic()
    producer = Producer(probe)
    producer.begin(topic)
    for version in (VERIFYING, ADDING):
        producer.produce(f"not transactional v{version}", topic, version, sequence=1, attributes=0)
    body = produce_rows(ADDING, None, [(topic, 0, producer.batch(sequence=1, attributes=0))])
    probe.ask("not transactional, no id", "Produce", ADDING, body)
    producer.finish(True)
    # After the end such a batch is refused here (48) and stored there: test_foreign_batches has that.
    producer.produce("transactional again", topic, ADDING, sequence=0)
    read(probe, "in the end", topic, level=0)


@case()
def a_batch_after_a_marker_by_hand(probe: Probe) -> None:
    """The partition has no open transaction any more, the coordinator still has: each version finds out."""
    for version in (VERIFYING, TELLING, ADDING):
        topic = probe.topic(f"v{version}")
        producer = Producer(probe, f"v{version}")
        producer.begin(topic, OLD)
        row = marker(producer.producer_id, producer.epoch, False, {topic.name: [0]})
        write_markers(probe, f"abort by hand v{version}", row)
        producer.produce(f"goes on v{version}", topic, version, sequence=1)
        producers(probe, f"in the end v{version}", topic)
        read(probe, f"the log v{version}", topic)


@case()
def a_zombie_writes_after_it_was_fenced(probe: Probe) -> None:
    topic = probe.topic(partitions=2)
    producer = Producer(probe)
    producer.begin(topic)
    zombie = producer.batch(sequence=1)
    producer.init("the new one", settled=True)
    producer.await_state("Empty")
    for version in (VERIFYING, TELLING, ADDING):
        body = produce_rows(version, producer.id, [(topic, 0, zombie)])
        probe.ask(f"the same partition v{version}", "Produce", version, body)
        body = produce_rows(version, producer.id, [(topic, 1, zombie)])
        probe.ask(f"another partition v{version}", "Produce", version, body)
    producer.produce("the new one writes", topic)
    body = produce_rows(ADDING, producer.id, [(topic, 0, zombie)])
    probe.ask("while the new one writes", "Produce", ADDING, body)
    read(probe, "in the end", topic, level=0)


@case()
def compressed_and_many(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe)
    sequence = 0
    for codec in range(5):
        producer.produce(f"codec {codec}", topic, sequence=sequence, records=3, attributes=TRANSACTIONAL | codec)
        sequence += 3
    producer.end("commit", True)
    producer.await_state("CompleteCommit")
    read(probe, "in the end", topic)


@case()
def a_compacted_topic(probe: Probe) -> None:
    topic = probe.topic(cleanup_policy="compact")
    producer = Producer(probe)
    producer.produce("with keys", topic, records=2)
    producer.end("commit", True)
    producer.await_state("CompleteCommit")
    read(probe, "in the end", topic)


@case()
def timestamps_of_the_log(probe: Probe) -> None:
    topic = probe.topic(message_timestamp_type="LogAppendTime")
    producer = Producer(probe)
    producer.produce("first", topic)
    producer.end("abort", False)
    producer.await_state("CompleteAbort")
    read(probe, "in the end", topic)


@case()
def old_batches_and_their_markers_are_in_segments_of_their_own(probe: Probe) -> None:
    """A marker bears the time of day, so a log of old batches rolls; one Fetch reads one segment."""
    topic = probe.topic()
    producer = Producer(probe)
    for index in range(2):
        producer.produce(f"old {index}", topic, base_timestamp=1_600_000_000_000)
        producer.end(f"end {index}", index == 1)
        producer.await_state("CompleteCommit", "CompleteAbort")
    for offset in range(5):
        read(probe, f"from {offset}", topic, offset=offset)


def set_verification(probe: Probe, value: str | None) -> None:
    """Of the broker, while it runs; None takes the setting back."""
    row = {"name": "transaction.partition.verification.enable", "config_operation": 0 if value else 1, "value": value}
    resource = {"resource_type": 4, "resource_name": "1", "configs": [row]}
    (answer,) = probe.tell("IncrementalAlterConfigs", 1, resources=[resource])["responses"]
    assert answer["error_code"] == 0, answer
    described = {"resource_type": 4, "resource_name": "1", "configuration_keys": [row["name"]]}
    for _ in attempts():
        (found,) = probe.tell("DescribeConfigs", 4, resources=[described])["results"]
        if found["configs"][0]["value"] == (value or "true"):
            return
    raise AssertionError(found)


@case()
def without_verification(probe: Probe) -> None:
    """The setting spares old clients the check; a client that leaves the adding to the server is not concerned."""
    topic = probe.topic(partitions=4)
    set_verification(probe, "false")
    try:
        for partition, version in enumerate((3, VERIFYING, TELLING, ADDING)):
            producer = Producer(probe, f"v{version}")
            producer.produce(f"not added v{version}", topic, version, partition=partition)
            producer.produce(f"goes on v{version}", topic, version, partition=partition, sequence=1)
            producer.describe(f"after v{version}")
        done = Producer(probe, "done")
        done.run(probe.topic("done"), True, OLD)
        for version in (VERIFYING, TELLING):
            done.produce(f"a duplicate after the end v{version}", probe.await_topic(probe.name("done")), version)
    finally:
        set_verification(probe, None)
    producer = Producer(probe, "again")
    producer.produce("verified again", topic, VERIFYING)
