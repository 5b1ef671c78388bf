"""Reading what transactions wrote: Fetch and ListOffsets by isolation level, aborted lists, the last stable offset."""

import time
from typing import Any

from interop.cases.txn_kit import NEW, OLD, Producer, Story, latest, marker, read, write_markers
from oracle.batches import T0, Record, batch, describe
from oracle.compare import Cases, Differs, Probe, Topic
from oracle.wire import decode_response, fit

CASES = Cases("txn-read")
case = CASES.case

FETCH_VERSIONS = range(4, 19)
LIST_VERSIONS = range(2, 12)
UNCOMMITTED, COMMITTED = 0, 1


def mixture(probe: Probe) -> Topic:
    """Offsets: 0-1 committed, 2 marker, 3 plain, 4 aborted, 5 marker, 6 committed, 7 marker, 8 open, 9 plain."""
    topic = probe.topic()
    one, two = Producer(probe, "one"), Producer(probe, "two")
    one.run(topic, True, records=2)
    probe.produce(topic.name, plain())
    two.run(topic, False)
    one.run(topic, True)
    two.begin(topic)
    probe.produce(topic.name, plain(ahead_ms=5000))
    return topic


def plain(ahead_ms: int = 0) -> bytes:
    """A batch outside of transactions; ahead of its time it is the newest of the partition, whoever is quick."""
    return batch(base_timestamp=int(time.time() * 1000) + ahead_ms)


def fetched(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = mixture(probe)
        for level in (UNCOMMITTED, COMMITTED):
            for offset in (0, 4, 6, 8, 9, 10):
                read(probe, f"level {level} from {offset}", topic, version, level=level, offset=offset)
        for level in (UNCOMMITTED, COMMITTED):
            read(probe, f"level {level} beyond the end", topic, version, level=level, offset=11)

    return run


for _version in FETCH_VERSIONS:
    CASES.add(f"fetched_v{_version}", fetched(_version))


def listed(version: int) -> Story:
    def run(probe: Probe) -> None:
        topic = mixture(probe)
        for level in (UNCOMMITTED, COMMITTED):
            for timestamp in (-1, -2, -3):
                label = f"level {level}, {timestamp}"
                latest(probe, label, topic, version, level=level, timestamp=timestamp)

    return run


for _version in LIST_VERSIONS:
    CASES.add(f"listed_v{_version}", listed(_version))


@case()
def the_oldest_open_transaction_holds_the_stable_offset(probe: Probe) -> None:
    topic = probe.topic()
    one, two, three = (Producer(probe, name) for name in ("one", "two", "three"))
    one.begin(topic, records=2)
    two.begin(topic)
    three.begin(topic)
    latest(probe, "three are open", topic)
    two.finish(True)
    latest(probe, "the second ended", topic)
    read(probe, "nothing is stable", topic)
    one.finish(False)
    latest(probe, "the first ended", topic)
    read(probe, "up to the third", topic)
    one.begin(topic)
    latest(probe, "the first goes on", topic)
    three.finish(True)
    latest(probe, "the third ended", topic)
    read(probe, "up to the first", topic)
    one.finish(True)
    read(probe, "all", topic)


def of_the_data(answer: Any) -> Any:
    """Without the aborted transactions that begin after the batches that came."""
    (row,) = answer["responses"][0]["partitions"]
    last = max((found["base_offset"] for found in describe(row["records"]) or []), default=-1)
    row["aborted_transactions"] = [found for found in row["aborted_transactions"] if found["first_offset"] <= last]
    return answer


@case()
def many_aborted_transactions(probe: Probe) -> None:
    topic = probe.topic()
    one, two = Producer(probe, "one"), Producer(probe, "two")
    for index in range(6):
        one.run(topic, index % 2 == 0)
        two.run(topic, index % 3 == 0)
    for offset in (0, 1, 2, 5, 9, 13, 23, 24):
        read(probe, f"from {offset}", topic, offset=offset)


@case()
def aborted_transactions_that_overlap(probe: Probe) -> None:
    topic = probe.topic()
    one, two, three = (Producer(probe, name) for name in ("one", "two", "three"))
    one.begin(topic)
    two.begin(topic)
    three.begin(topic)
    one.write(topic, sequence=1)
    two.finish(False)
    three.write(topic, sequence=1)
    one.finish(False)
    three.finish(True)
    for offset in range(10):
        read(probe, f"from {offset}", topic, offset=offset)


@case()
def small_fetches_of_aborted_data(probe: Probe) -> None:
    """The list covers at least what is returned; the oracle's may say more."""
    topic = probe.topic()
    producer = Producer(probe)
    for index in range(4):
        producer.run(topic, index % 2 == 1)
    for offset in range(8):
        read(probe, f"from {offset}", topic, offset=offset, max_bytes=1, keep=of_the_data)


@case()
def an_open_transaction_that_aborts_later(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe)
    producer.begin(topic)
    probe.produce(topic.name, plain())
    for level in (UNCOMMITTED, COMMITTED):
        read(probe, f"level {level}, open", topic, level=level)
    producer.write(topic, sequence=1)
    producer.finish(False)
    for level in (UNCOMMITTED, COMMITTED):
        read(probe, f"level {level}, aborted", topic, level=level)


@case()
def a_reader_waits_for_the_stable_offset(probe: Probe) -> None:
    """Data of an open transaction is no data for it; the marker ends the wait."""
    topic = probe.topic()
    producer = Producer(probe)
    producer.begin(topic)
    read(probe, "waits in vain", topic, max_wait=100)
    waiting = probe.connect()
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000_000}
    rows = [{"topic": topic.name, "partitions": [part]}]
    body = {"replica_id": -1, "max_wait": 9000, "min_bytes": 1, "max_bytes": 10_000_000, "isolation_level": 1}
    waiting.send("Fetch", 11, fit("Fetch", 11, body | {"topics": rows}))
    waiting.await_read()
    producer.finish(True)
    payload = waiting.receive()
    assert payload is not None
    probe.record("the marker ends the wait", decode_response("Fetch", 11, payload)[1])


def later_batches(probe: Probe, start_ms: int) -> Topic:
    """Offsets: 0-2 aborted, 3 marker, 4-6 committed, 7 marker, 8-10 open; 10 ms from record to record, 100 to batch."""
    topic = probe.topic()
    one, two = Producer(probe, "one"), Producer(probe, "two")
    spaced = [Record(timestamp_delta=10 * index) for index in range(3)]
    one.write(topic, records=spaced, base_timestamp=start_ms)
    one.finish(False)
    one.write(topic, records=spaced, base_timestamp=start_ms + 100)
    one.finish(True)
    two.write(topic, records=spaced, base_timestamp=start_ms + 200)
    return topic


@case()
def offsets_by_timestamp(probe: Probe) -> None:
    """Data of aborted transactions counts; what is not stable does not."""
    start_ms = int(time.time() * 1000) + 60_000  # markers, which bear the time of day, are older
    topic = later_batches(probe, start_ms)
    for level in (UNCOMMITTED, COMMITTED):
        for after in (-60_000, 0, 15, 90, 110, 130, 200, 220, 221):
            latest(probe, f"level {level}, {after}", topic, 7, level=level, timestamp=start_ms + after)
        latest(probe, f"level {level}, the newest", topic, 7, level=level, timestamp=-3)


def lands_on(offset: int, timestamp: int) -> Differs:
    row = "topics[0].partitions[0]"
    values = {f"{row}.offset": offset, f"{row}.timestamp": timestamp}
    return Differs(
        "markers are skipped, as KIP-98 says", values | {f"{row}.leader_epoch": -1} if offset < 0 else values
    )


@case(
    {
        f"level {level}, {after}": lands_on(offset, T0 + after)
        for level in (0, 1)
        for after, offset in ((100, 4), (110, 5))
    }
    | {f"level 0, {after}": lands_on(offset, T0 + after) for after, offset in ((200, 8), (220, 10))}
    | {f"level 1, {after}": lands_on(-1, -1) for after in (200, 220)}
    | {"level 0, the newest": lands_on(10, T0 + 220), "level 1, the newest": lands_on(-1, -1)}
)
def offsets_by_timestamp_where_markers_are_newer(probe: Probe) -> None:
    topic = later_batches(probe, T0)
    for level in (UNCOMMITTED, COMMITTED):
        for after in (0, 15, 100, 110, 200, 220):
            latest(probe, f"level {level}, {after}", topic, 7, level=level, timestamp=T0 + after)
        latest(probe, f"level {level}, the newest", topic, 7, level=level, timestamp=-3)


@case()
def hanging_transactions_are_ended_by_hand(probe: Probe) -> None:
    topic = probe.topic()
    producer = Producer(probe)
    producer.begin(topic, OLD)
    producer.end("abort", False, 4)
    producer.await_state("CompleteAbort")
    producer.begin(topic, OLD, sequence=1)
    row = marker(producer.producer_id, producer.epoch, False, {topic.name: [0]})
    write_markers(probe, "by hand", row, version=1)
    read(probe, "the log", topic)
    producer.end("the coordinator commits", True, 4)
    producer.await_state("CompleteCommit")
    read(probe, "an empty one was committed", topic)


@case()
def several_partitions_at_once(probe: Probe) -> None:
    topic = probe.topic(partitions=3)
    producer = Producer(probe)
    for partition in (0, 1):
        producer.begin(topic, NEW, partition=partition)
    producer.finish(False)
    producer.begin(topic, NEW, partition=2)
    parts = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 10_000_000} for index in range(3)]
    rows = [{"topic": topic.name, "partitions": parts}]
    body = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 10_000_000, "topics": rows}
    for level in (UNCOMMITTED, COMMITTED):
        probe.ask(f"level {level}", "Fetch", 11, {**body, "isolation_level": level})


@case()
def segments_hold_their_own_lists(probe: Probe) -> None:
    """The marker may be in a later segment than the data."""
    topic = probe.topic(segment_bytes="1048576")
    one, two = Producer(probe, "one"), Producer(probe, "two")
    one.begin(topic)
    big = [Record(value=b"x" * 400_000)]
    for index in range(4):
        two.write(topic, records=big, sequence=index)
    one.finish(False)
    two.finish(True)
    for offset in (0, 1, 3, 5, 6):
        read(probe, f"from {offset}", topic, offset=offset)
