"""Produce: what a batch must be, what is stored of it, and what the answer says."""

import uuid
from typing import Any

from oracle.batches import T0, Record, batch, old_message, varint
from oracle.compare import Cases, Differs, Probe, Topic, attempts, produce_body

CASES = Cases("Produce")
case = CASES.case

UNKNOWN_ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
SENT_NOTHING = "closed or silent"
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20


def row_for(version: int, topic: Topic) -> dict[str, Any]:
    return {"topic_id": topic.id} if version >= 13 else {"name": topic.name}


def send(
    probe: Probe,
    label: str,
    version: int,
    topic: Topic,
    data: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    **options: Any,
) -> Any:
    rows = [{**row_for(version, topic), "partition_data": [{"index": partition, "records": data}]}]
    return probe.ask(label, "Produce", version, {"acks": acks, "timeout": 5000, "topic_data": rows}, **options)


def stored(probe: Probe, label: str, topic: Topic, offset: int = 0) -> None:
    """What the log holds now, batch by batch."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 10_000_000}
    body = {"replica_id": -1, "max_wait": 0, "topics": [{"topic": topic.name, "partitions": [partition]}]}
    probe.ask(label, "Fetch", 4, body)


@case()
def batches_follow_each_other(probe: Probe) -> None:
    topic = probe.topic()
    for version in (3, 7, 8, 9, 12, 13):
        send(probe, f"v{version}", version, topic, batch(3))
    stored(probe, "stored", topic)


@case()
def every_compression(probe: Probe) -> None:
    topic = probe.topic()
    records = [Record(value=b"compressible " * 20) for _ in range(5)]
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        send(probe, f"codec {codec}", 9, topic, batch(records, attributes=codec))
    stored(probe, "stored", topic)


@case()
def zstd_needs_version_7(probe: Probe) -> None:
    topic = probe.topic()
    for version in (3, 5, 6, 7):
        send(probe, f"v{version}", version, topic, batch(attributes=ZSTD))


@case()
def acks_of_1_and_all_answer_and_0_does_not(probe: Probe) -> None:
    topic = probe.topic()
    send(probe, "acks 1", 9, topic, batch(), acks=1)
    send(probe, "acks -1", 9, topic, batch(), acks=-1)
    probe.connection.send("Produce", 9, produce_body(topic.name, batch(), acks=0))
    probe.ask("the next answer is of the next request", "Metadata", 1, {"topics": []})
    stored(probe, "all three are stored", topic)


@case()
def other_acks_are_refused(probe: Probe) -> None:
    topic = probe.topic()
    for version in (3, 8, 13):
        for acks in (2, -2, 32767):
            send(probe, f"acks {acks} v{version}", version, topic, batch(), acks=acks)
    stored(probe, "stored", topic)


@case()
def acks_0_with_an_error_closes(probe: Probe) -> None:
    topic = probe.topic()
    send(probe, "wrong crc", 9, topic, batch(crc=1), acks=0)
    send(probe, "unknown topic", 9, Topic(probe.name("none"), UNKNOWN_ID), batch(), acks=0)


@case()
def unknown_topics_partitions_and_ids(probe: Probe) -> None:
    topic = probe.topic()
    none = Topic(probe.name("none"), UNKNOWN_ID)
    for version in (3, 8, 12, 13):
        send(probe, f"topic v{version}", version, none, batch())
        send(probe, f"partition v{version}", version, topic, batch(), partition=1)
        send(probe, f"negative partition v{version}", version, topic, batch(), partition=-1)
    rows = [{"topic_id": None, "partition_data": [{"index": 0, "records": batch()}]}]
    probe.ask("zero id", "Produce", 13, {"acks": -1, "timeout": 5000, "topic_data": rows})


@case()
def illegal_topic_names(probe: Probe) -> None:
    for index, name in enumerate(("", ".", "a b", "x" * 250)):
        send(probe, f"illegal {index}", 9, Topic(name, UNKNOWN_ID), batch())


@case()
def checksums_are_checked(probe: Probe) -> None:
    topic = probe.topic()
    for version in (3, 8, 13):
        send(probe, f"v{version}", version, topic, batch(crc=12345))
    good = batch()
    send(probe, "a byte flipped", 9, topic, good[:-1] + bytes([good[-1] ^ 1]))
    stored(probe, "stored", topic)


@case()
def counts_are_checked(probe: Probe) -> None:
    topic = probe.topic()
    for label, data in (
        ("more than there are", batch(2, count=3)),
        ("fewer than there are", batch(2, count=1)),
        ("last offset delta too large", batch(2, last_offset_delta=5)),
        ("last offset delta too small", batch(2, last_offset_delta=0)),
        ("negative count", batch(2, count=-1)),
        ("zero records", batch([])),
        ("zero records, delta 0", batch([], last_offset_delta=0)),
    ):
        for version in (7, 8):
            send(probe, f"{label} v{version}", version, topic, data)


@case()
def old_and_unknown_formats(probe: Probe) -> None:
    topic = probe.topic()
    for version in (3, 9):
        for magic in (0, 1):
            send(probe, f"magic {magic} v{version}", version, topic, old_message(magic))
        for magic in (3, 127, -1):
            send(probe, f"magic {magic} v{version}", version, topic, batch(magic=magic))
    stored(probe, "stored", topic)


def one_row(topic: str, **fields: Any) -> dict[str, Any]:
    row = {"index": 0, "error_code": 0, "base_offset": -1, "log_append_time": None, **fields}
    return {"responses": [{"name": topic, "partition_responses": [row]}]}


NEVER_ANSWERED = Differs(
    "the oracle never answers null records, and the client hangs until its timeout",
    one_row("Produce-null-records.topic", error_code=87),
)


@case({"null records": NEVER_ANSWERED})
def null_records(probe: Probe) -> None:
    topic = probe.topic()
    send(probe, "null records", 3, topic, None, patience_s=0.5)


@case()
def empty_records(probe: Probe) -> None:
    topic = probe.topic()
    for version in (3, 8, 13):
        send(probe, f"v{version}", version, topic, b"")


@case()
def one_batch_a_partition(probe: Probe) -> None:
    topic = probe.topic()
    for version in (3, 8):
        send(probe, f"two v{version}", version, topic, batch() + batch())
        send(probe, f"two with good offsets v{version}", version, topic, batch(2) + batch(2, base_offset=2))
        for extra in (1, 11, 12, 17, 70):
            send(probe, f"{extra} zero bytes after it v{version}", version, topic, batch() + b"\0" * extra)
        for extra in (12, 16, 17, 60):
            cut = batch()[:extra]
            send(probe, f"{extra} bytes of a batch after it v{version}", version, topic, batch() + cut)
    stored(probe, "stored", topic)


ROW = "responses[0].partition_responses[0]"
TOO_LONG = Differs("a size that overflows is a batch cut short like any other", {f"{ROW}.error_code": 87})


@case({"far longer than the data": TOO_LONG})
def lengths_that_lie(probe: Probe) -> None:
    topic = probe.topic()
    good = batch()
    for label, data in (
        ("longer than the data", batch(length=len(good))),
        ("far longer than the data", batch(length=2**31 - 1)),
        ("shorter than a header", batch(length=10)),
        ("zero", batch(length=0)),
        ("negative", batch(length=-5)),
        ("cut in the header", good[:40]),
        ("cut in the length", good[:10]),
        ("cut in the records", good[:-3]),
        ("one byte", b"\0"),
    ):
        send(probe, label, 9, topic, data)
    stored(probe, "stored", topic)


@case()
def control_batches_are_not_for_clients(probe: Probe) -> None:
    topic = probe.topic()
    for version in (7, 8):
        send(probe, f"v{version}", version, topic, batch(attributes=CONTROL))
    stored(probe, "stored", topic)


@case()
def transactional_batches_need_a_transactional_id(probe: Probe) -> None:
    topic = probe.topic()
    data = batch(attributes=TRANSACTIONAL, producer_id=10**9, producer_epoch=0, base_sequence=0)
    for version in (3, 8, 11):
        send(probe, f"v{version}", version, topic, data)
    rows = [
        {"name": topic.name, "partition_data": [{"index": 0, "records": data}]},
        {"name": probe.topic("plain").name, "partition_data": [{"index": 0, "records": batch()}]},
    ]
    probe.ask("the whole request", "Produce", 9, {"acks": -1, "timeout": 5000, "topic_data": rows})


@case()
def base_offsets_of_clients(probe: Probe) -> None:
    topic = probe.topic()
    for base_offset in (5, -1, 2**40):
        send(probe, f"base offset {base_offset}", 9, topic, batch(base_offset=base_offset))
    send(probe, "leader epoch 77", 9, topic, batch(leader_epoch=77))
    stored(probe, "stored", topic)


@case()
def unused_attribute_bits_are_kept(probe: Probe) -> None:
    topic = probe.topic()
    send(probe, "bits 7-14", 9, topic, batch(attributes=0x7F80))
    send(probe, "delete horizon bit", 9, topic, batch(attributes=0x40))
    stored(probe, "stored", topic)


@case()
def log_append_time_bit_of_a_client_is_cleared(probe: Probe) -> None:
    topic = probe.topic()
    send(probe, "v9", 9, topic, batch(attributes=LOG_APPEND_TIME))
    stored(probe, "stored", topic)


@case()
def log_append_time_topics_stamp_the_batch(probe: Probe) -> None:
    topic = probe.topic(message_timestamp_type="LogAppendTime")
    for version in (3, 8, 13):
        send(probe, f"v{version}", version, topic, batch(2))
    send(probe, "far in the future", 9, topic, batch(base_timestamp=T0 * 3))
    send(probe, "compressed", 9, topic, batch(2, attributes=GZIP))
    stored(probe, "stored", topic)


@case()
def timestamps_too_far_off(probe: Probe) -> None:
    topic = probe.topic(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    for version in (7, 8):
        send(probe, f"too old v{version}", version, topic, batch(2))
        send(probe, f"too new v{version}", version, topic, batch(2, base_timestamp=T0 * 3))
    send(probe, "too old, compressed", 8, topic, batch(2, attributes=GZIP))
    plain = probe.topic("plain")
    send(probe, "in a hundred years", 8, plain, batch(1, base_timestamp=T0 * 3))
    for timestamp in (-1, 0):
        send(probe, f"timestamp {timestamp}", 8, plain, batch(base_timestamp=timestamp))
    stored(probe, "stored", plain)


UNTOUCHED = Differs(
    "batches are not unpacked on topics that are not compacted, and a client's max timestamp is believed",
    {
        f"responses[0].partitions[0].batches[{index}].max_timestamp": told
        for index, told in enumerate((T0 + 5000, T0 - 5000, T0 + 5000))
    },
)


@case({"stored": UNTOUCHED})
def a_wrong_max_timestamp(probe: Probe) -> None:
    topic = probe.topic()
    send(probe, "too large", 9, topic, batch(2, max_timestamp=T0 + 5000))
    send(probe, "too small", 9, topic, batch(2, max_timestamp=T0 - 5000))
    send(probe, "compressed", 9, topic, batch(2, max_timestamp=T0 + 5000, attributes=GZIP))
    stored(probe, "stored", topic)


@case()
def compacted_topics_need_keys(probe: Probe) -> None:
    topic = probe.topic(cleanup_policy="compact")
    keyless = [Record(), Record(key=None), Record(), Record(key=None)]
    for version in (3, 7, 8, 9, 13):
        send(probe, f"v{version}", version, topic, batch(keyless))
    send(probe, "compressed", 9, topic, batch(keyless, attributes=GZIP))
    send(probe, "with keys", 9, topic, batch(2))
    send(probe, "empty key", 9, topic, batch([Record(key=b"")]))
    send(probe, "tombstone", 9, topic, batch([Record(value=None)]))
    both = probe.topic("both", cleanup_policy="compact,delete")
    send(probe, "compact and delete", 9, both, batch(keyless))


@case()
def batches_too_large(probe: Probe) -> None:
    topic = probe.topic(max_message_bytes="1000")
    for version in (3, 8, 13):
        send(probe, f"v{version}", version, topic, batch([Record(value=b"x" * 2000)]))
    fitting = 1000 - len(batch([Record(value=b"x" * 800)])) + 800
    send(probe, "just right", 9, topic, batch([Record(value=b"x" * fitting)]))
    send(probe, "one byte more", 9, topic, batch([Record(value=b"x" * (fitting + 1))]))
    shrinking = batch([Record(value=b"x" * 2000)], attributes=GZIP)
    send(probe, "small when compressed", 9, topic, shrinking)
    plain = probe.topic("plain")
    send(probe, "over a megabyte", 9, plain, batch([Record(value=b"x" * 1_100_000)]))


@case()
def broken_records_in_a_batch(probe: Probe) -> None:
    """Kafka unpacks what clients send, Twofold only where it must look at keys."""
    topic = probe.topic(cleanup_policy="compact")
    body = b"\0" + varint(0) + varint(0) + varint(1) + b"k" + varint(1) + b"v" + varint(0)
    for label, payload in (
        ("record longer than the batch", varint(1000) + body),
        ("record shorter than it says", varint(len(body) - 1) + body),
        ("bytes after the records", varint(len(body)) + body + b"\0\0\0"),
    ):
        send(probe, label, 9, topic, batch(1, payload=payload))


@case()
def counts_that_cannot_fit(probe: Probe) -> None:
    topic = probe.topic()
    send(probe, "a thousand in a few bytes", 9, topic, batch(1, count=1000, last_offset_delta=999))
    send(probe, "a billion", 9, topic, batch(1, count=10**9, last_offset_delta=10**9 - 1))
    stored(probe, "stored", topic)


CLIENTS_FAULT = "the record is wrong, not the server: INVALID_RECORD instead of UNKNOWN_SERVER_ERROR"
NOT_UNPACKED = "batches are not unpacked on topics that are not compacted, so nobody looks into this one"
INVALID = {f"{ROW}.error_code": 87}


def taken_at(offset: int) -> dict[str, int]:
    return {f"{ROW}.error_code": 0, f"{ROW}.base_offset": offset}


@case(
    {
        "delete, codec 1": Differs(NOT_UNPACKED, taken_at(2)),
        "compact, codec 0": Differs("records that are walked are checked", {**INVALID, f"{ROW}.base_offset": -1}),
        "compact, codec 1": Differs(CLIENTS_FAULT, INVALID),
    }
)
def offset_deltas_out_of_order(probe: Probe) -> None:
    swapped = [Record(offset_delta=1), Record(offset_delta=0)]
    for policy in ("delete", "compact"):
        topic = probe.topic(policy, cleanup_policy=policy)
        for codec in (0, GZIP):
            send(probe, f"{policy}, codec {codec}", 9, topic, batch(swapped, attributes=codec))


@case(
    {
        f"{policy}, codec {codec}": Differs(CLIENTS_FAULT, INVALID)
        for policy in ("delete", "compact")
        for codec in (5, 6, 7)
    }
    | {f"compact, garbage as codec {codec}": Differs(CLIENTS_FAULT, INVALID) for codec in (1, 2, 3, 4)}
    | {f"delete, garbage as codec {codec}": Differs(NOT_UNPACKED, taken_at(codec - 1)) for codec in (1, 2, 3, 4)}
)
def codecs_that_are_none(probe: Probe) -> None:
    for policy in ("delete", "compact"):
        topic = probe.topic(policy, cleanup_policy=policy)
        for codec in (5, 6, 7):
            send(probe, f"{policy}, codec {codec}", 9, topic, batch(attributes=codec))
        for codec in (GZIP, SNAPPY, LZ4, ZSTD):
            garbage = batch(1, attributes=codec, payload=b"these bytes do not decompress")
            send(probe, f"{policy}, garbage as codec {codec}", 9, topic, garbage)


NOBODYS = Differs(
    "a transactional batch without a producer belongs to no transaction", {**INVALID, f"{ROW}.base_offset": -1}
)


@case({"v3": NOBODYS, "v11": NOBODYS})
def a_transactional_batch_without_a_producer_id(probe: Probe) -> None:
    topic = probe.topic()
    rows = [{"name": topic.name, "partition_data": [{"index": 0, "records": batch(attributes=TRANSACTIONAL)}]}]
    body = {"transactional_id": "some-id", "acks": -1, "timeout": 5000, "topic_data": rows}
    for version in (3, 11):
        probe.ask(f"v{version}", "Produce", version, body)


@case()
def internal_topics_are_not_for_clients(probe: Probe) -> None:
    for _ in attempts():
        found = probe.tell("FindCoordinator", 1, key="any", key_type=0)
        if found["error_code"] == 0:
            break
    internal = probe.await_topic("__consumer_offsets", 50)
    for version in (3, 9, 13):
        send(probe, f"v{version}", version, internal, batch())
    body = {"topics": [{"name": internal.name}], "allow_auto_topic_creation": True}
    probe.ask("metadata", "Metadata", 9, body, keep=lambda answer: answer["topics"][0])


@case()
def headers_are_kept(probe: Probe) -> None:
    topic = probe.topic()
    headers = (("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None))
    send(probe, "headers", 9, topic, batch([Record(headers=headers), Record(key=None, value=None)]))
    stored(probe, "stored", topic)


@case()
def one_bad_partition_does_not_stop_the_others(probe: Probe) -> None:
    topic = probe.topic(partitions=3)
    partitions = [
        {"index": 0, "records": batch()},
        {"index": 1, "records": batch(crc=1)},
        {"index": 2, "records": batch(2)},
        {"index": 9, "records": batch()},
    ]
    rows = [{"name": topic.name, "partition_data": partitions}]
    rows.append({"name": probe.name("none"), "partition_data": [{"index": 0, "records": batch()}]})
    for version in (3, 9):
        probe.ask(f"v{version}", "Produce", version, {"acks": -1, "timeout": 5000, "topic_data": rows})


@case()
def the_same_partition_twice(probe: Probe) -> None:
    topic = probe.topic()
    twice = [{"index": 0, "records": batch(1)}, {"index": 0, "records": batch(2)}]
    rows = [{"name": topic.name, "partition_data": twice}]
    probe.ask("v9", "Produce", 9, {"acks": -1, "timeout": 5000, "topic_data": rows})
    row = {"name": topic.name, "partition_data": twice[:1]}
    probe.ask("in two rows", "Produce", 9, {"acks": -1, "timeout": 5000, "topic_data": [row, row]})


@case()
def nothing_to_produce(probe: Probe) -> None:
    topic = probe.topic()
    for version in (3, 9, 13):
        probe.ask(f"no topics v{version}", "Produce", version, {"acks": -1, "timeout": 5000, "topic_data": []})
        rows = [{**row_for(version, topic), "partition_data": []}]
        probe.ask(f"no partitions v{version}", "Produce", version, {"acks": -1, "timeout": 5000, "topic_data": rows})


@case()
def a_minimum_of_replicas_that_cannot_be(probe: Probe) -> None:
    topic = probe.topic(min_insync_replicas="2")
    for acks in (-1, 1):
        for version in (7, 13):
            send(probe, f"acks {acks} v{version}", version, topic, batch(), acks=acks)
