"""The files that Twofold writes, read by Apache Kafka's own dump tool (design: the disk format is Kafka's)."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oracle.batches import Record, batch, idempotent
from oracle.compare import produce_body
from oracle.driver import Connection
from oracle.kafka import Oracle
from oracle.twofold import Twofold, running_twofold

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

TOPIC = "disk"
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
VALUE_BYTES = 3000
ROUNDS = 200


@pytest.fixture(scope="module")
def written() -> Iterator[Twofold]:
    """A stopped server whose one partition has several segments, all compressions and an idempotent producer."""
    with running_twofold() as server:
        with Connection(server.host, server.port) as client:
            configs = [{"name": "segment.bytes", "value": "1048576"}]
            row = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "configs": configs}
            client.ask("CreateTopics", 4, topics=[row], timeout=5000)
            answer = client.ask("InitProducerId", 1, transactional_id=None, transaction_timeout=60000)
            producer_id = answer["producer_id"]
            for round_number in range(ROUNDS):
                value = round_number.to_bytes(2, "big") * (VALUE_BYTES // 2)
                records = [Record(value=value, timestamp_delta=round_number), Record(key=None, headers=(("h", b"1"),))]
                plain = batch(records, attributes=round_number % len(CODECS))
                for data in (plain, idempotent(producer_id, round_number, attributes=0)):
                    produced = client.ask("Produce", 7, **produce_body(TOPIC, data))
                    assert produced["responses"][0]["partition_responses"][0]["error_code"] == 0
                filler = batch([Record(value=bytes(10_000))])
                client.ask("Produce", 7, **produce_body(TOPIC, filler))
        server.stop()
        yield server


def partition_files(server: Twofold, suffix: str) -> list[Path]:
    return sorted((server.data / f"{TOPIC}-0").glob(f"*{suffix}"))


def dump(oracle: Oracle, *args: str) -> str:
    done = oracle.tool("org.apache.kafka.tools.DumpLogSegments", args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_segments_are_read_record_by_record(oracle: Oracle, written: Twofold) -> None:
    files = partition_files(written, ".log")
    assert len(files) > 1
    text = dump(oracle, "--deep-iteration", "--files", ",".join(map(str, files)))
    assert text.count("isvalid: true") == ROUNDS * 3
    assert "isvalid: false" not in text
    offsets = [int(match) for match in re.findall(r"^\| offset: (\d+)", text, re.M)]
    assert offsets == list(range(ROUNDS * 4))
    for name in CODECS.values():
        assert f"compresscodec: {name}" in text


def test_indexes_agree_with_their_segments(oracle: Oracle, written: Twofold) -> None:
    for suffix in (".index", ".timeindex"):
        files = partition_files(written, suffix)
        assert files
        text = dump(oracle, "--index-sanity-check", "--files", ",".join(map(str, files)))
        assert text.count("passed sanity check") == len(files), text
        text = dump(oracle, "--verify-index-only", "--files", ",".join(map(str, files)))
        assert "Mismatches" not in text, text
        assert "Found timestamp mismatch" not in text, text
        assert "out of order" not in text, text


def test_producer_snapshots_are_read(oracle: Oracle, written: Twofold) -> None:
    files = partition_files(written, ".snapshot")
    assert files
    text = dump(oracle, "--files", str(files[-1]))
    assert re.search(rf"producerId: \d+ producerEpoch: 0 .*lastSequence: {ROUNDS - 1}\b", text), text


def test_the_metadata_log_is_read(oracle: Oracle, written: Twofold) -> None:
    files = sorted((written.data / "__cluster_metadata-0").glob("*.log"))
    assert files
    text = dump(oracle, "--cluster-metadata-decoder", "--files", ",".join(map(str, files)))
    assert '"type":"TOPIC_RECORD"' in text.replace(" ", ""), text[:2000]
    assert f'"name":"{TOPIC}"' in text.replace(" ", "")
    assert "isvalid: false" not in text
    assert "Could not decode" not in text
