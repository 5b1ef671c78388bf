"""Frames that no client should send, and what a server may never do with them."""

import struct
from typing import Any

from oracle.batches import batch
from oracle.compare import Cases, Differs, Probe, produce_body
from oracle.wire import KEYS, decode_response, encode_request, frame

CASES = Cases("protocol")
case = CASES.case

CLIENT = struct.pack(">h", 1) + b"c"
METADATA_V1_ALL = struct.pack(">hhi", 3, 1, 7) + CLIENT + struct.pack(">i", -1)


def header(key: int, version: int) -> bytes:
    return struct.pack(">hhi", key, version, 7) + CLIENT


@case()
def unknown_api_keys_close(probe: Probe) -> None:
    for key in (-1, 70, 999, 32767):
        probe.raw(f"key {key}", frame(header(key, 0)))


NOT_SERVED = Differs("not advertised by either, and here refused like any API that is not", "closed")


@case({"key 71": NOT_SERVED})
def telemetry_is_declined(probe: Probe) -> None:
    """Neither server collects metrics of clients."""
    telemetry = (71, 72)
    rows = probe.tell("ApiVersions", 0)["api_keys"]
    probe.record("advertised", [row for row in rows if row["api_key"] in telemetry])
    for key in telemetry:
        probe.raw(f"key {key}", frame(header(key, 0) + bytes(32)))


@case()
def versions_outside_the_range_close(probe: Probe) -> None:
    for api, version in (
        ("Metadata", 14),
        ("Metadata", -1),
        ("Produce", 2),
        ("Produce", 14),
        ("Fetch", 3),
        ("Fetch", 19),
        ("ListOffsets", 0),
        ("ListOffsets", 12),
        ("CreateTopics", 1),
        ("DeleteTopics", 0),
        ("OffsetForLeaderEpoch", 1),
        ("DescribeConfigs", 0),
        ("DeleteRecords", 3),
        ("AlterConfigs", 3),
        ("DescribeLogDirs", 0),
        ("DescribeLogDirs", 6),
        ("DescribeTopicPartitions", 1),
        ("ListConfigResources", 2),
        ("DescribeProducers", 1),
        ("FindCoordinator", 7),
        ("OffsetCommit", 1),
        ("OffsetCommit", 11),
        ("OffsetFetch", 0),
        ("OffsetFetch", 11),
        ("JoinGroup", 10),
        ("SyncGroup", 6),
        ("Heartbeat", 5),
        ("LeaveGroup", 6),
        ("DescribeGroups", 7),
        ("ListGroups", 6),
        ("DeleteGroups", 3),
        ("OffsetDelete", 1),
        ("TxnOffsetCommit", 6),
    ):
        probe.raw(f"{api} {version}", frame(header(KEYS[api], version) + b"\0" * 40))


@case()
def frame_sizes_out_of_bounds_close(probe: Probe) -> None:
    for size in (0, -1, -(2**31), 104857601, 2**31 - 1):
        probe.raw(f"size {size}", struct.pack(">i", size) + b"\0" * 16)


@case()
def other_protocols_close(probe: Probe) -> None:
    probe.raw("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    probe.raw("TLS", bytes.fromhex("16030100a5010000a10303") + b"\0" * 64)


@case()
def headers_cut_short_close(probe: Probe) -> None:
    for size in range(1, 11):
        probe.raw(f"first {size} bytes", frame(METADATA_V1_ALL[:size]))


@case()
def bodies_cut_short_close(probe: Probe) -> None:
    whole = encode_request("CreateTopics", 5, {"topics": [{"name": "never", "num_partitions": 1}], "timeout": 1000})[4:]
    for size in range(len(whole) - 6, len(whole) - 1, 2):
        probe.raw(f"{size} of {len(whole)} bytes", frame(whole[:size]))
    probe.raw("no body", frame(header(KEYS["CreateTopics"], 2)))


@case()
def a_frame_that_never_ends_is_awaited_and_dropped_with_its_connection(probe: Probe) -> None:
    probe.raw("waits", struct.pack(">i", 100) + METADATA_V1_ALL, patience_s=0.3)
    probe.raw("peer leaves", struct.pack(">i", 100) + METADATA_V1_ALL, half_close=True)


@case({"array of -2": Differs("a count below -1 is as wrong as any other wrong length", "closed")})
def counts_and_lengths_that_lie_close(probe: Probe) -> None:
    names = header(3, 1)
    probe.raw("array of 2^31-1", frame(names + struct.pack(">i", 2**31 - 1)))
    probe.raw("array of 100000 in 4 bytes", frame(names + struct.pack(">ii", 100000, 0)))
    probe.raw("array of -2", frame(names + struct.pack(">i", -2)))
    probe.raw("string of 32767", frame(names + struct.pack(">ih", 1, 32767) + b"abc"))
    probe.raw("string of -2", frame(names + struct.pack(">ih", 1, -2) + b"abc"))
    probe.raw("null where a string must be", frame(names + struct.pack(">ih", 1, -1)))
    probe.raw("client id of 32767", frame(struct.pack(">hhih", 3, 1, 7, 32767) + b"c"))
    flexible = struct.pack(">hhi", 3, 9, 7) + CLIENT + b"\0"
    probe.raw("varint without end", frame(flexible + b"\xff" * 12))
    probe.raw("compact string beyond the frame", frame(flexible + b"\x02\x7fabc\0\0\0\0\0\0"))
    probe.raw("tagged field beyond the frame", frame(flexible + b"\x01\0\0\0\x01\x05\x7f\x01"))


@case()
def garbage_closes(probe: Probe) -> None:
    for seed in range(4):
        garbage = bytes((seed * 37 + index * 101) % 256 for index in range(64))
        probe.raw(f"seed {seed}", frame(garbage))


@case()
def a_null_client_id_is_fine(probe: Probe) -> None:
    probe.raw("null", frame(struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">i", 0)))
    probe.raw("empty", frame(struct.pack(">hhih", 3, 1, 7, 0) + struct.pack(">i", 0)))


@case()
def bytes_after_the_body_are_ignored(probe: Probe) -> None:
    probe.raw("Metadata", frame(header(3, 1) + struct.pack(">i", 0) + b"more"))
    probe.raw("ApiVersions", frame(header(18, 0) + b"more"))


@case()
def unknown_tagged_fields_are_ignored(probe: Probe) -> None:
    tag = b"\x01\x63\x03abc"
    probe.raw("in the header", frame(struct.pack(">hhi", 3, 9, 7) + CLIENT + tag + b"\x01\0\0\0\0"))
    probe.raw("in the body", frame(struct.pack(">hhi", 3, 9, 7) + CLIENT + b"\0" + b"\x01\0\0\0" + tag))
    produce = encode_request("Produce", 9, produce_body(probe.topic().name, batch()))[4:]
    assert produce.endswith(b"\0\0\0")  # of the partition, of the topic, of the request
    probe.raw("in Produce", frame(produce[:-1] + tag))
    probe.raw("in a partition of Produce", frame(produce[:-3] + tag * 3))
    parts = [{"partition": 0, "partition_max_bytes": 1000}]
    fetch = {"replica_id": -1, "topics": [{"topic": probe.name(), "partitions": parts}]}
    probe.raw("in Fetch", frame(encode_request("Fetch", 12, fetch)[4:-1] + tag))


@case()
def requests_sent_ahead_are_answered_in_order(probe: Probe) -> None:
    topic = probe.topic()
    fetch = {
        "replica_id": -1,
        "max_wait": 200,
        "min_bytes": 1,
        "topics": [{"topic": topic.name, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}],
    }
    nothing: dict[str, Any] = {"topics": []}
    ahead = [("Fetch", 4, fetch), ("Metadata", 1, nothing), ("ApiVersions", 0, {}), ("Metadata", 1, nothing)]
    data = b"".join(
        encode_request(api, version, body, correlation_id=100 - index)
        for index, (api, version, body) in enumerate(ahead)
    )
    connection = probe.connection
    connection.send_raw(data)
    answered = []
    for api, version, _ in ahead:
        payload = connection.receive()
        assert payload is not None
        answered.append(decode_response(api, version, payload)[0])
    probe.record("order", {"synonyms": answered})


@case({"in a name": Differs("text that is no UTF-8 cannot be read; the oracle replaces it and says 17", "closed")})
def text_that_is_no_utf8(probe: Probe) -> None:
    probe.raw("in a name", frame(header(3, 1) + struct.pack(">ih", 1, 2) + b"\xff\xfe"))
