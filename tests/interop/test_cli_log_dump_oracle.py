"""`twofold log dump` and Apache Kafka's DumpLogSegments say the same of the same files, of both makers."""

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kits.processes import commands
from oracle.kafka import Oracle, jars_or_skip
from twofold.log.recovery.checkpoints import decode_uuid

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

FIXTURES = Path(__file__).parent.parent / "fixtures"
FOLDERS = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("folder-*.tar.gz"))
Row = dict[str, Any]

# What Apache Kafka calls it, what we do.
BATCH = {
    "baseOffset": "base_offset", "lastOffset": "last_offset", "count": "records", "baseSequence": "base_sequence",
    "lastSequence": "last_sequence", "producerId": "producer_id", "producerEpoch": "producer_epoch",
    "partitionLeaderEpoch": "leader_epoch", "isTransactional": "transactional", "position": "position", "size": "size",
    "compresscodec": "compression", "CreateTime": "max_timestamp",
}  # fmt: skip
PRODUCER = {
    "producerId": "producer_id", "producerEpoch": "producer_epoch", "coordinatorEpoch": "coordinator_epoch",
    "lastTimestamp": "last_timestamp", "firstSequence": "first_sequence", "lastSequence": "last_sequence",
    "lastOffset": "last_offset",
}  # fmt: skip
ABORTED = {
    "producerId": "producer_id", "firstOffset": "first_offset", "lastOffset": "last_offset",
    "lastStableOffset": "last_stable_offset",
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found = []
    for name in FOLDERS:
        directory = tmp_path_factory.mktemp(name)
        with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
        found.append(directory / "data")
    return found


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """The programs of Apache Kafka; no node of it runs."""
    return Oracle(jars_or_skip(), tmp_path_factory.mktemp("tool"))


def theirs(tool: Oracle, files: list[Path], *options: str) -> dict[str, list[str]]:
    assert len(files) > 1
    arguments = [*options, "--files", ",".join(map(str, files))]
    done = tool.tool("org.apache.kafka.tools.DumpLogSegments", arguments, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r"^Dumping (.*)\n", done.stdout, flags=re.M)[1:]
    return {path: text.splitlines() for path, text in zip(parts[::2], parts[1::2], strict=True)}


def ours(files: list[Path]) -> dict[str, list[Row]]:
    done = commands.run("log", "dump", "--records", "--format", "json", *map(str, files), timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    found: dict[str, list[Row]] = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        if row["what"] == "file":
            rows = found[row["path"]] = []
        else:
            rows.append(row)
    return found


def fields(line: str, names: dict[str, str]) -> Row:
    pairs = dict(re.findall(r"(\w+): (\S+)", line))
    plain: dict[str, Any] = {"true": True, "false": False}
    return {
        ours: plain.get(pairs[name], int(pairs[name]) if re.fullmatch(r"-?\d+", pairs[name]) else pairs[name])
        for name, ours in names.items()
    }


def chosen(row: Row, names: dict[str, str]) -> Row:
    return {name: row[name] for name in names.values()}


def batches(lines: list[str]) -> list[Row]:
    return [fields(line, BATCH) for line in lines if line.startswith("baseOffset")]


@pytest.mark.timeout(300)
def test_batches_records_and_markers_are_those_that_apache_kafka_sees(tool: Oracle, folders: list[Path]) -> None:
    files = [path for folder in folders for path in sorted(folder.glob("[a-z]*-*/*.log"))]
    expected, found = theirs(tool, files, "--deep-iteration", "--print-data-log"), ours(files)
    markers = 0
    for path, lines in expected.items():
        rows = found[path]
        assert [chosen(row, BATCH) for row in rows if row["what"] == "batch"] == batches(lines), path
        offsets = [int(line.split()[2]) for line in lines if line.startswith("| offset")]
        assert [row["offset"] for row in rows if row["what"] in ("record", "control")] == offsets, path
        pattern = r"^\| offset: (\d+) .*endTxnMarker: (\w+) coordinatorEpoch: (\d+)"
        said = [match.groups() for line in lines if (match := re.match(pattern, line))]
        shown = [row for row in rows if row["what"] == "control"]
        assert [(str(row["offset"]), row["type"], str(row["coordinator_epoch"])) for row in shown] == said
        markers += len(said)
    assert markers >= 8


@pytest.mark.timeout(300)
def test_what_stands_beside_segments_is_what_apache_kafka_sees(tool: Oracle, folders: list[Path]) -> None:
    files = [path for folder in folders for path in sorted((folder / "mixed-0").glob("*.snapshot"))]
    files += [path for folder in folders for path in sorted(folder.glob("*/*.txnindex"))]
    files += [path for folder in folders for path in sorted(folder.glob("rolled-0/*index"))]
    expected, found = theirs(tool, files), ours(files)
    for path, lines in expected.items():
        rows = found[path]
        if path.endswith(".snapshot"):
            assert [chosen(row, PRODUCER) for row in rows] == [fields(line, PRODUCER) for line in lines]
            since = [re.findall(r"OptionalLong\[(\d+)\]", line) for line in lines]
            assert [row["open_since_offset"] for row in rows] == [int(one[0]) if one else None for one in since]
        elif path.endswith(".txnindex"):
            assert [chosen(row, ABORTED) for row in rows] == [fields(line, ABORTED) for line in lines]
        else:
            names = {name: name for name in rows[0] if name != "what"}
            entries = [fields(line, names) for line in lines if re.match(r"(offset|timestamp): \d+ ", line)]
            assert [chosen(row, names) for row in rows] == entries, path


@pytest.mark.timeout(300)
def test_the_transaction_log_is_decoded_as_apache_kafka_does(tool: Oracle, folders: list[Path]) -> None:
    files = [path for folder in folders for path in sorted(folder.glob("__transaction_state-*/*.log"))]
    found, compared = ours(files), 0
    for path, lines in theirs(tool, files, "--transaction-log-decoder").items():
        rows = [row for row in found[path] if row["what"] == "record"]
        pattern = r"^\| offset: .* key: (\{.*\}) payload: (\{.*\})$"
        said = [match.groups() for line in lines if (match := re.match(pattern, line))]
        assert len(rows) == len(said)
        for row, (key, payload) in zip(rows, said, strict=True):
            value, expected = row["value"], json.loads(payload)["data"]
            assert row["key"]["transactional_id"] == json.loads(key)["data"]["transactionalId"]
            assert (value["producer_id"], value["producer_epoch"], value["timeout_ms"]) == (
                expected["producerId"], expected["producerEpoch"], expected["transactionTimeoutMs"]
            )  # fmt: skip
            assert value["start_ms"] == expected["transactionStartTimestampMs"]
            partitions = [
                f"{topic['topic']}-{index}"
                for topic in expected["transactionPartitions"] or ()
                for index in topic["partitionIds"]
            ]
            assert sorted(value["partitions"]) == sorted(partitions)
            compared += 1
    assert compared > 10


@pytest.mark.timeout(300)
def test_metadata_and_its_snapshots_are_decoded_as_apache_kafka_does(tool: Oracle, folders: list[Path]) -> None:
    files = [path for folder in folders for path in sorted(folder.glob("__cluster_metadata-0/*.log"))]
    files += [path for folder in folders for path in sorted(folder.glob("__cluster_metadata-0/*90-*.checkpoint"))]
    found = ours(files)
    for path, lines in theirs(tool, files, "--cluster-metadata-decoder").items():
        rows = found[path]
        assert [chosen(row, BATCH) for row in rows if row["what"] == "batch"] == batches(lines), path
        said = [json.loads(match[1]) for line in lines if (match := re.search(r" payload: (\{.*\})$", line))]
        shown = [row["value"] for row in rows if row["what"] == "record"]
        assert [f"{word(row['type'])}_RECORD" for row in shown] == [record["type"] for record in said]
        for row, record in zip(shown, said, strict=True):
            if row["type"] == "Topic":
                assert row["name"] == record["data"]["name"]
                assert decode_uuid(row["topic_id"]) == decode_uuid(record["data"]["topicId"])
        kinds = [line.split("] ", 1)[1].split()[0].rstrip(":") for line in lines if " headerKeys: [] " in line]
        kinds = [kind for kind in kinds if kind not in ("payload", "key")]
        assert [row["type"].replace("_", "").lower() for row in rows if row["what"] == "control"] == [
            kind.lower() for kind in kinds
        ]


def word(name: str) -> str:
    return {"NoOp": "NO_OP"}.get(name) or re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper()
