"""`twofold log dump`: every kind of file, of both makers; damage is told with its place, and never a traceback."""

import json
import random
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from twofold.cli.app import run_app
from twofold.cli.log import batches as log_batches
from twofold.coordinator.transaction.records import (
    NEVER_MS,
    Ended,
    NextTerms,
    TransactionMetadata,
    encode_key,
    encode_value,
)
from twofold.coordinator.transaction.states import State
from twofold.log.producers.times import ProducerState, ProducerTime, encode_times
from twofold.records.batch import HEADER_SIZE, BatchBuilder, compute_crc
from twofold.records.compression import Codec
from twofold.records.control import end_transaction_marker
from twofold.types import Ending, TopicPartition

FIXTURES = Path(__file__).parent.parent / "fixtures"
MAKERS = ("folder-kafka-4.3.1", "folder-twofold-0.1.0")
FIRST = "00000000000000000000"
Row = dict[str, Any]
Dump = Callable[..., tuple[int, list[Row]]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for maker in MAKERS:
        directory = tmp_path_factory.mktemp(maker)
        with tarfile.open(FIXTURES / f"{maker}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
        found[maker] = directory / "data"
    return found


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Dump:
    def run(*arguments: object) -> tuple[int, list[Row]]:
        code = run_app(["log", "dump", "--format", "json", *map(str, arguments)])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def of(rows: list[Row], what: str) -> list[Row]:
    return [row for row in rows if row["what"] == what]


def batches(count: int, *, size: int = 50, codec: Codec = Codec.NONE) -> list[bytes]:
    made = []
    for number in range(count):
        builder = BatchBuilder(codec, base_offset=2 * number, leader_epoch=1)
        builder.add(b"key", b"%d" % number * size, 1000 + number)
        builder.add(None, None, 1000 + number)
        made.append(builder.build())
    return made


def segment(tmp_path: Path, *parts: bytes, topic: str = "orders") -> Path:
    directory = tmp_path / f"{topic}-0"
    directory.mkdir(exist_ok=True)
    path = directory / f"{FIRST}.log"
    path.write_bytes(b"".join(parts))
    return path


# --- what is there ---


@pytest.mark.parametrize("maker", MAKERS)
def test_every_file_of_a_whole_data_folder_is_read_without_complaint(
    maker: str, folders: dict[str, Path], dump: Dump
) -> None:
    code, rows = dump("--records", folders[maker])
    assert code == 0
    kinds = {row["kind"] for row in of(rows, "file")}
    assert kinds == {
        "records", "transaction-state", "consumer-offsets", "metadata", "offset-index", "time-index", "txn-index",
        "producer-snapshot", "leader-epochs", "offset-checkpoint", "text",
    }  # fmt: skip
    types = {row["value"]["type"] for row in of(rows, "record") if "type" in (row["value"] or {})}
    assert {"Topic", "Partition", "RegisterBroker", "FeatureLevel", "ProducerIds", "Config"} <= types
    assert {row["type"] for row in of(rows, "control")} >= {"COMMIT", "ABORT", "LEADER_CHANGE", "KRAFT_VOTERS"}
    keys = {row["key"]["type"] for row in of(rows, "record") if "type" in (row["key"] or {})}
    assert {"OffsetCommit", "GroupMetadata"} <= keys


@pytest.mark.parametrize("maker", MAKERS)
def test_a_partition_shows_its_transactions_in_every_file(maker: str, folders: dict[str, Path], dump: Dump) -> None:
    code, rows = dump("--records", folders[maker] / "mixed-0")
    assert code == 0
    assert [Path(row["path"]).name for row in of(rows, "file")][:3] == [
        f"{FIRST}.index", f"{FIRST}.log", f"{FIRST}.timeindex"
    ]  # fmt: skip
    markers = [row for row in of(rows, "batch") if row["control"]]
    assert [(row["control"], row["producer_id"], row["coordinator_epoch"]) for row in markers] == [
        ("COMMIT", 1, 0),
        ("ABORT", 2, 0),
    ]
    assert of(rows, "record")[0]["value"] == {"size": 9, "text": "committed"}
    (aborted,) = of(rows, "aborted")
    assert (aborted["producer_id"], aborted["first_offset"], aborted["last_offset"]) == (2, 2, 3)
    open_since = {row["producer_id"]: row["open_since_offset"] for row in of(rows, "producer")}
    assert open_since[1] is None and open_since[3] == 4
    assert of(rows, "epoch") == [{"what": "epoch", "epoch": 0, "start_offset": 0}]


def test_when_producers_wrote_is_shown(tmp_path: Path, dump: Dump) -> None:
    times = {
        7: ProducerTime(ProducerState(1, 104, 900, 100), 2000, 1000, True),
        8: ProducerTime(ProducerState(0, 99, 900, -1), 3000, -1, False),
    }
    path = tmp_path / "producer-times"
    path.write_bytes(encode_times(times))
    code, rows = dump(path)
    assert (code, rows[0]["kind"]) == (0, "producer-times")
    fields = ("producer_id", "appended_ms", "open_since_offset", "open_since_ms", "is_exact")
    found = [tuple(row[name] for name in fields) for row in of(rows, "producer")]
    assert found == [(7, 2000, 100, 1000, True), (8, 3000, None, None, None)]
    path.write_bytes(encode_times(times)[:-1])
    assert dump(path)[0] == 1


@pytest.mark.parametrize("maker", MAKERS)
def test_both_internal_topics_are_decoded(maker: str, folders: dict[str, Path], dump: Dump) -> None:
    logs = sorted(folders[maker].glob("__transaction_state-*/*.log"))
    code, rows = dump("--records", *logs)
    assert code == 0
    last = {row["key"]["transactional_id"]: row["value"] for row in of(rows, "record")}
    assert last["committed"]["state"] == "CompleteCommit"
    assert last["open"]["state"] == "Ongoing" and "mixed-0" in last["open"]["partitions"]
    assert last["prepared"]["two_phase"] and not last["open"]["two_phase"]
    code, rows = dump("--records", *sorted(folders[maker].glob("__consumer_offsets-*/*.log")))
    offsets = [row for row in of(rows, "record") if row["key"]["type"] == "OffsetCommit" and row["value"]]
    assert offsets and all({"group", "topic", "partition"} <= row["key"].keys() for row in offsets)
    assert all(row["value"]["offset"] >= 0 for row in offsets)


def test_the_fields_of_two_phase_commit_are_shown(tmp_path: Path, dump: Dump) -> None:
    entry = TransactionMetadata(
        7, 3, NEVER_MS, State.ONGOING, frozenset({TopicPartition("t", 0)}), 20, 10, 7, 8, 3, 4, 2, 500,
        Ended(7, 2, Ending.TERMINATED), NextTerms(60_000, 500),
        topic_ids=frozenset({("t", UUID(int=9))}),
    )  # fmt: skip
    builder = BatchBuilder()
    builder.add(encode_key("loader"), encode_value(entry, 1), 20)
    builder.add(encode_key("gone"), None, 20)
    code, rows = dump("--records", segment(tmp_path, builder.build(), topic="__transaction_state"))
    kept, gone = of(rows, "record")
    assert code == 0 and gone["key"] == {"transactional_id": "gone"} and gone["value"] is None
    assert kept["value"] | {"last_update_ms": 0} == {
        "producer_id": 7, "producer_epoch": 3, "timeout_ms": NEVER_MS, "state": "Ongoing", "partitions": ["t-0"],
        "last_update_ms": 0, "start_ms": 10, "previous_producer_id": 7, "next_producer_id": 8,
        "client_version": 3, "opened_by": "",
        "next_producer_epoch": 4, "last_producer_epoch": 2, "heartbeat_interval_ms": 500, "two_phase": True,
        "last_two_phase": {"state": "7:2", "ending": "terminated"},
        "next_terms": {"timeout_ms": 60_000, "heartbeat_interval_ms": 500},
        "topic_ids": {"t": "AAAAAAAAAAAAAAAAAAAACQ"},
    }  # fmt: skip


def test_what_passwords_are_made_of_is_hidden(folders: dict[str, Path], dump: Dump) -> None:
    _, rows = dump("--records", folders["folder-kafka-4.3.1"] / "__cluster_metadata-0")
    scram = [row["value"] for row in of(rows, "record") if row["value"].get("type") == "UserScramCredential"]
    assert scram and {row[name] for row in scram for name in ("salt", "stored_key", "server_key")} == {"(hidden)"}


@pytest.mark.parametrize("codec", list(Codec))
def test_records_of_every_compression_are_read(codec: Codec, tmp_path: Path, dump: Dump) -> None:
    code, rows = dump("--records", segment(tmp_path, *batches(2, codec=codec)))
    assert code == 0
    assert [row["compression"] for row in of(rows, "batch")] == [codec.name.lower()] * 2
    assert [row["offset"] for row in of(rows, "record")] == [0, 1, 2, 3]
    assert of(rows, "record")[1] | {"timestamp": 0} == {
        "what": "record", "offset": 1, "timestamp": 0, "key": None, "value": None, "headers": [],
    }  # fmt: skip


# --- what is asked for ---


def test_bytes_are_text_where_they_can_be_printed_else_hex_and_cut_where_asked(tmp_path: Path, dump: Dump) -> None:
    builder = BatchBuilder()
    for value in (b"plain", "grün".encode(), b"\x00\x01\x02", b"\x1b[31mred", b"x" * 100):
        builder.add(b"k", value, 0, [("h", b"\xff")])
    _, rows = dump("--records", "--max-bytes", 3, segment(tmp_path, builder.build()))
    assert [row["value"] for row in of(rows, "record")] == [
        {"size": 5, "text": "pla", "cut": True},
        {"size": 5, "text": "gr", "cut": True},  # a letter that the cut goes through is left out
        {"size": 3, "hex": "000102"},
        {"size": 8, "hex": "1b5b33", "cut": True},
        {"size": 100, "text": "xxx", "cut": True},
    ]
    assert of(rows, "record")[0]["headers"] == [{"name": "h", "value": {"size": 1, "hex": "ff"}}]


def test_a_terminal_gets_no_control_characters_from_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = BatchBuilder()
    builder.add(b"\x1b[31m", b"\x07", 0, [("\x1b]0;title\x07", b"\x9b")])
    builder.add("\u202e".encode(), b"two\nlines", 0)
    assert run_app(["log", "dump", "--records", str(segment(tmp_path, builder.build()))]) == 0
    text = capsys.readouterr().out
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert 'value="two\\nlines"' in text and len(text.splitlines()) == 4


def test_from_offset_and_limit_choose_batches_and_entries(tmp_path: Path, dump: Dump) -> None:
    path = segment(tmp_path, *batches(10))
    _, rows = dump("--records", "--from-offset", 7, "--limit", 2, path)
    assert [row["base_offset"] for row in of(rows, "batch")] == [6, 8]
    assert [row["offset"] for row in of(rows, "record")] == [7, 8, 9]
    index = path.with_suffix(".index")
    sizes = [len(batch) for batch in batches(10)]
    index.write_bytes(b"".join(struct.pack(">ii", 2 * n + 1, sum(sizes[:n])) for n in range(1, 10)))
    code, rows = dump("--from-offset", 7, "--limit", 3, index)
    assert code == 0 and [row["offset"] for row in of(rows, "entry")] == [7, 9, 11]


def test_the_kind_is_told_by_the_name_or_by_the_user(
    tmp_path: Path, dump: Dump, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(tmp_path, *batches(1)).rename(tmp_path / "copy.bin")
    assert run_app(["log", "dump", str(path)]) == 2
    said = capsys.readouterr().err
    assert "copy.bin" in said and "--as records|transaction-state" in said
    code, rows = dump("--as", "records", path)
    assert code == 0 and len(of(rows, "batch")) == 1
    for name in ("x.log.deleted", "x.log.cleaned", "x.log.swap"):
        path = path.rename(tmp_path / name)
        assert dump(path)[1][0]["kind"] == "records"


# --- what is damaged ---


def test_a_wrong_crc_is_told_and_reading_goes_on_behind_it(tmp_path: Path, dump: Dump) -> None:
    parts = batches(3)
    damaged = bytearray(parts[1])
    damaged[-1] ^= 1
    code, rows = dump(segment(tmp_path, parts[0], bytes(damaged), parts[2]))
    (wrong,) = of(rows, "damage")
    assert code == 1
    assert wrong["position"] == len(parts[0]) and "wrong CRC" in wrong["reason"]
    assert wrong["resumes_at"] == len(parts[0] + parts[1])
    assert [(row["base_offset"], row["crc"]) for row in of(rows, "batch")] == [(0, "right"), (2, "wrong"), (4, "right")]


def test_a_batch_whose_length_is_damaged_does_not_hide_those_behind_it(tmp_path: Path, dump: Dump) -> None:
    parts = batches(4)
    for length in (len(parts[1]) + 7, 49, 10, -1, 2**31 - 1):
        damaged = bytearray(parts[1])
        struct.pack_into(">i", damaged, 8, length)
        code, rows = dump(segment(tmp_path, parts[0], bytes(damaged), parts[2], parts[3]))
        assert code == 1
        assert of(rows, "damage")[0]["position"] == len(parts[0]), length
        assert [row["base_offset"] for row in of(rows, "batch") if row["crc"] == "right"] == [0, 4, 6], length


def test_garbage_between_batches_is_passed_over(tmp_path: Path, dump: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "SEARCH_BYTES", 100)  # so that a header lies across the border of two pieces
    parts = batches(2)
    for size in (1, 61, 99, 160, 161, 1000):
        garbage = random.Random(size).randbytes(size)
        code, rows = dump(segment(tmp_path, parts[0], garbage, parts[1]))
        (wrong,) = of(rows, "damage")
        assert code == 1 and wrong["position"] == len(parts[0]), size
        assert wrong["resumes_at"] == len(parts[0]) + size, size
        assert [row["base_offset"] for row in of(rows, "batch")] == [0, 2], size


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        (b"\x00" * 500, "zeros"),
        (batches(1)[0][:100], "cut off: a batch of"),
        (b"\x00" * 10, "cut off: 10 bytes"),
        (b"\x01" * 100, "message format v1"),
        (b"\x07" * 100, "magic 7"),
    ],
)
def test_a_tail_that_is_no_batch_is_told_with_its_position(tail: bytes, said: str, tmp_path: Path, dump: Dump) -> None:
    parts = batches(2)
    code, rows = dump(segment(tmp_path, *parts, tail))
    (wrong,) = of(rows, "damage")
    assert code == 1 and said in wrong["reason"] and wrong["position"] == len(b"".join(parts))
    assert wrong["resumes_at"] is None and len(of(rows, "batch")) == 2


def test_offsets_that_go_back_are_told(tmp_path: Path, dump: Dump) -> None:
    parts = batches(2)
    code, rows = dump(segment(tmp_path, parts[1], parts[0]))
    assert code == 1 and "where 4 is the least" in of(rows, "damage")[0]["reason"]
    assert len(of(rows, "batch")) == 2


def test_records_that_their_topic_should_not_hold_are_told_and_shown(tmp_path: Path, dump: Dump) -> None:
    builder = BatchBuilder()
    builder.add(b"\x00\x01no key of an offset", b"x", 0)
    builder.add(b"\x00\x63a type of the future", b"x", 0)
    code, rows = dump("--records", segment(tmp_path, builder.build(), topic="__consumer_offsets"))
    assert code == 1 and len(of(rows, "damage")) == len(of(rows, "record")) == 2
    for topic in ("__transaction_state", "__cluster_metadata"):
        code, rows = dump("--records", segment(tmp_path, builder.build(), topic=topic))
        assert code == 1 and len(of(rows, "record")) == 2


def test_small_files_that_cannot_be_right_are_told(tmp_path: Path, dump: Dump) -> None:
    log = segment(tmp_path, *batches(3))
    cases = {
        f"{FIRST}.index": struct.pack(">iiii", 3, 144, 1, 200) + b"cut",
        f"{FIRST}.timeindex": struct.pack(">qiqi", 2000, 3, 1000, 4),
        f"{FIRST}.txnindex": struct.pack(">hqqqq", 9, 1, 0, 1, 2) + b"\x00",
        f"{FIRST}.snapshot": b"\x00\x01" + bytes(20),
        "leader-epoch-checkpoint": b"0\n5\n0 0\n",
        "recovery-point-offset-checkpoint": b"\xff\xfe",
        "meta.properties": b"\xff\xfe",
    }
    for name, content in cases.items():
        path = log.with_name(name)
        path.write_bytes(content)
        code, rows = dump(path)
        assert code == 1 and of(rows, "damage"), name
        path.unlink()


def test_an_index_that_points_past_its_segment_is_told_and_room_to_grow_is_not(tmp_path: Path, dump: Dump) -> None:
    parts = batches(3)
    index = segment(tmp_path, *parts).with_suffix(".index")
    right = struct.pack(">iiii", 3, len(parts[0]), 5, len(parts[0] + parts[1]))
    index.write_bytes(right + bytes(8000))
    code, rows = dump(index)
    assert code == 0 and [row["offset"] for row in of(rows, "entry")] == [3, 5]
    index.write_bytes(right + struct.pack(">ii", 9, 5000))
    code, rows = dump(index)
    assert code == 1 and "5000" in of(rows, "damage")[0]["reason"]
    index.write_bytes(struct.pack(">ii", 3, len(parts[0]) + 1))
    code, rows = dump(index)
    assert code == 1 and "no batch" in of(rows, "damage")[0]["reason"]


def reseal(data: bytearray) -> None:
    """Right CRCs around wrong content, so that the decoders get to see it."""
    position = 0
    while len(data) - position >= HEADER_SIZE:
        size = struct.unpack_from(">i", data, position + 8)[0] + 12
        if not HEADER_SIZE <= size <= len(data) - position:
            return
        struct.pack_into(">I", data, position + 17, compute_crc(data, position, size))
        position += size


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_bytes_are_it_ends_with_a_message(seed: int, folders: dict[str, Path], tmp_path: Path) -> None:
    """Bytes of real files, changed at random places: every kind of file, no traceback."""
    rng = random.Random(seed)
    names = ("mixed-0", "__transaction_state-0", "__consumer_offsets-0", "__cluster_metadata-0", "codecs-0")
    for source in [path for name in names for path in (folders[MAKERS[seed % 2]] / name).iterdir()]:
        data = bytearray(source.read_bytes())
        for _ in range(rng.randrange(1, 8)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        if source.suffix in (".log", ".checkpoint") and seed % 4 < 2:
            reseal(data)
        target = tmp_path / source.parent.name / source.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data)
    assert run_app(["log", "dump", "--records", str(tmp_path)]) in (0, 1)
    assert run_app(["log", "dump", "--records", "--format", "json", str(tmp_path)]) in (0, 1)


def test_a_file_that_is_not_there_is_told_and_the_others_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = segment(tmp_path, *batches(1))
    assert run_app(["log", "dump", str(tmp_path / "no.log"), str(path)]) == 1
    said = capsys.readouterr()
    assert "no.log: No such file" in said.err and "batch base_offset=0" in said.out
    assert run_app(["log", "dump", str(tmp_path / "nothing"), str(path)]) == 1, "also where the name tells no kind"
    assert "nothing: No such file" in capsys.readouterr().err
    assert run_app(["log", "dump", "/dev/null"]) == 2
    assert "neither a file nor a folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "server.log").write_text("not everything that ends with .log is a segment")
    assert run_app(["log", "dump", str(tmp_path / "empty")]) == 1
    assert "no file in this folder belongs to a log" in capsys.readouterr().err


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    import tracemalloc

    from twofold.cli.log.dump import DumpOptions, dump_file

    some = b"".join(batches(1, size=100_000) * 1)
    path = segment(tmp_path)
    with open(path, "wb") as file:
        for number in range(300):
            file.write(struct.pack(">q", 2 * number) + some[8:])
    tracemalloc.start()
    counted = sum(1 for _ in dump_file(path, DumpOptions(records=True), lambda _: None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counted == 1 + 300 * 3 and path.stat().st_size > 30_000_000
    assert peak < 5_000_000


def test_a_marker_that_breaks_off_is_told(tmp_path: Path, dump: Dump) -> None:
    marker = end_transaction_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )  # fmt: skip
    builder = BatchBuilder(control=True, base_offset=1)
    builder.add(b"\x00", b"", 0)
    code, rows = dump(segment(tmp_path, marker, builder.build()))
    assert code == 1 and [row["control"] for row in of(rows, "batch")] == ["COMMIT", []]
    assert "control record" in of(rows, "damage")[0]["reason"]
