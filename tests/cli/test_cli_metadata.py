"""`twofold metadata dump`: which transaction a record belongs to, damage told with its place, no traceback ever."""

import json
import os
import re
import threading
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kits.metadata.files import (
    ABORT,
    BEGIN,
    END,
    EPOCH,
    MAKERS,
    Folder,
    Rows,
    Run,
    batch,
    empty_folder,
    of,
    offsets,
    partition,
    real_folders,
    rows_of_metadata,
    run_metadata,
    snapshot_bytes,
    story_folder,
    topic,
)
from twofold.cli.app import run_app
from twofold.cli.common import CliError, OutputFormat
from twofold.cli.log.values import json_line
from twofold.cli.metadata import files as metadata_files
from twofold.cli.metadata.dump import Lines, MetadataFilter, MetadataTransactions, record_rows, transaction_rows
from twofold.cli.metadata.image import load_image
from twofold.cli.metadata.shell import Shell
from twofold.controller.records import FeatureLevel, MetadataRecord, NoOp, encode
from twofold.metadata_log.snapshots import SnapshotId
from twofold.records.batch import BatchBuilder

folder, story, folders, run, rows = empty_folder, story_folder, real_folders, run_metadata, rows_of_metadata

# -- dump


def test_each_record_says_which_transaction_it_belongs_to_and_what_became_of_it(story: Folder, rows: Rows) -> None:
    code, found = rows("dump", story.data)
    assert code == 0
    assert offsets(found) == list(range(16))
    assert [(row["transaction"], row["state"]) for row in of(found, "record")] == [
        *[(None, None)] * 4, *[(4, "committed")] * 5, *[(9, "aborted")] * 3, (None, None), *[(13, "open")] * 3
    ]  # fmt: skip
    assert [row["type"] for row in of(found, "record")][:3] == ["LEADER_CHANGE", "FeatureLevel", "Topic"]
    assert of(found, "record")[2]["value"] == {"name": "t1", "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"}
    assert {row["epoch"] for row in of(found, "record")[1:]} == {EPOCH}


def test_a_row_about_each_transaction_follows_its_last_record(story: Folder, rows: Rows) -> None:
    _, found = rows("dump", story.data)
    committed, aborted, still_open = of(found, "transaction")
    names = {"what": "transaction", "name": "growth"}
    assert committed == names | {"state": "committed", "begin": 4, "end": 8, "records": 3, "reason": None}
    assert aborted == names | {
        "state": "aborted", "begin": 9, "end": 11, "records": 1, "reason": "Controller failover"
    }  # fmt: skip
    assert still_open == names | {"state": "open", "begin": 13, "end": None, "records": 2, "reason": None}
    assert found[found.index(committed) - 1]["offset"] == 8
    assert found[-1] == still_open


def test_people_see_transactions_by_marks_and_an_open_one_in_capitals(story: Folder, run: Run) -> None:
    code, out, _ = run("dump", story.data)
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("# ") and lines[0].endswith("bytes")
    records = lines[2:-1]
    assert "".join(line[16] for line in records) == "    /|||\\/x\\ /??"
    assert re.search(r"4 +3 / BeginTransaction +name=growth -> committed at 8, 3 records$", records[4])
    assert '-> aborted at 11 ("Controller failover"), 1 record' in records[9]
    assert "-> OPEN, 2 records so far, not in force" in records[13]
    assert lines[-1] == "OPEN: the transaction growth begun at 13, 2 records so far, not in force"


def test_the_table_of_transactions(story: Folder, run: Run, rows: Rows) -> None:
    code, out, _ = run("dump", "--transactions", story.data)
    header, *lines = out.splitlines()[1:]
    assert code == 0 and header.split() == ["BEGIN", "END", "STATE", "RECORDS", "NAME", "REASON"]
    assert [line.split()[:5] for line in lines] == [
        ["4", "8", "committed", "3", "growth"],
        ["9", "11", "aborted", "1", "growth"],
        ["13", "-", "OPEN", "2", "growth"],
    ]
    _, found = rows("dump", "--transactions", story.data)
    assert [row["state"] for row in of(found, "transaction")] == ["committed", "aborted", "open"]
    assert not of(found, "record")
    _, found = rows("dump", "--transactions", "--from-offset", 9, "--to-offset", 12, story.data)
    assert [row["begin"] for row in of(found, "transaction")] == [9]


def test_offsets_and_types_can_be_chosen_and_the_marks_stay_right(story: Folder, rows: Rows) -> None:
    _, found = rows("dump", "--from-offset", 7, "--to-offset", 10, story.data)
    assert [(row["offset"], row["transaction"]) for row in of(found, "record")] == [(7, 4), (8, 4), (9, 9), (10, 9)]
    assert [row["begin"] for row in of(found, "transaction")] == [4]
    for name in ("Topic", "topic", "TOPIC_RECORD"):
        _, found = rows("dump", "--type", name, story.data)
        assert offsets(found) == [2, 5, 10, 12, 14] and not of(found, "transaction")
    _, found = rows("dump", "--type", "topic", "--type", "leader_change", "--to-offset", 3, story.data)
    assert offsets(found) == [0, 2]


def test_a_type_that_there_is_not_is_answered_with_those_that_there_are(story: Folder, run: Run) -> None:
    code, _, err = run("dump", "--type", "Topics", story.data)
    assert code == 2 and "--type Topics" in err and "PartitionChange" in err and "LEADER_CHANGE" in err


@pytest.mark.parametrize("maker", MAKERS)
def test_real_folders_hold_the_records_that_log_dump_shows(
    maker: str, folders: dict[str, Path], rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = folders[maker] / "__cluster_metadata-0"
    code, found = rows("dump", folders[maker])
    assert code == 0
    run_app(["log", "dump", "--records", "--format", "json", str(directory / f"{0:020d}.log")])
    others = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = [row for row in others if row["what"] in ("record", "control")]
    assert offsets(found) == [row["offset"] for row in expected]
    assert [row["type"] for row in of(found, "record")] == [
        row["type"] if row["what"] == "control" else row["value"]["type"] for row in expected
    ]
    assert [row["value"] for row in of(found, "record") if row["type"] == "Topic"] == [
        {"name": row["value"]["name"], "topic_id": row["value"]["topic_id"]}
        for row in expected
        if row["what"] == "record" and row["value"]["type"] == "Topic"
    ]
    (bootstrap,) = of(found, "transaction")
    assert (bootstrap["name"], bootstrap["state"]) == ("Bootstrap records", "committed")


def test_a_snapshot_is_dumped_by_its_name(folders: dict[str, Path], rows: Rows) -> None:
    snapshot = folders["folder-kafka-4.3.1"] / "__cluster_metadata-0" / "00000000000000000090-0000000001.checkpoint"
    code, found = rows("dump", snapshot)
    types = [row["type"] for row in of(found, "record")]
    assert code == 0 and types[0] == "SNAPSHOT_HEADER" and types[-1] == "SNAPSHOT_FOOTER" and "Topic" in types
    assert found[0]["kind"] == "metadata snapshot"


def test_what_was_deleted_of_the_log_is_shown_from_the_snapshot_that_replaces_it(story: Folder, rows: Rows) -> None:
    first = story.roll()
    older = story.snapshot(topic(1))
    story.append(NoOp())
    story.snapshot(topic(1), topic(2))
    _, found = rows("dump", story.data)
    assert [Path(row["path"]).name for row in of(found, "file")] == [first.name, story.segment.name]
    first.unlink()
    _, found = rows("dump", story.data)
    assert [Path(row["path"]).name for row in of(found, "file")] == [older.name, story.segment.name]


def test_segments_are_one_log_however_they_are_named(folder: Folder, rows: Rows) -> None:
    folder.append(BEGIN, topic(1))
    first = folder.roll()
    folder.append(partition(1), END)
    for paths in ([folder.data], [folder.log], [folder.segment, first]):
        code, found = rows("dump", *paths)
        assert code == 0 and offsets(found) == [0, 1, 2, 3]
        assert [row["records"] for row in of(found, "transaction")] == [2]


def test_a_log_that_begins_inside_a_transaction_says_so(folder: Folder, rows: Rows, run: Run) -> None:
    folder.append(BEGIN, topic(1))
    folder.roll()
    folder.append(partition(1), END, NoOp())
    code, found = rows("dump", folder.segment)
    (told,) = of(found, "transaction")
    assert code == 0 and (told["begin"], told["end"], told["records"]) == (None, 3, 1)
    assert [row["state"] for row in of(found, "record")] == ["committed", "committed", None]
    assert run("dump", "--transactions", folder.segment)[1].splitlines()[-1].split()[:2] == ["before", "3"]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([topic(1), END], "the record at offset 1: EndTransaction without Begin"),
        ([ABORT], "the record at offset 0: AbortTransaction without Begin"),
        ([BEGIN, NoOp(), BEGIN, END], "the record at offset 2: Begin inside the transaction begun at 0"),
    ],
)
def test_records_that_contradict_each_other_are_damage(
    folder: Folder, rows: Rows, run: Run, records: list[MetadataRecord], reason: str
) -> None:
    folder.append(*records)
    for options in ([], ["--transactions"]):
        code, found = rows("dump", *options, folder.data)
        assert code == 1 and [row["reason"] for row in of(found, "damage")] == [reason]
    assert "DAMAGE" in run("dump", folder.data)[1]


def test_a_transaction_inside_a_snapshot_is_damage(folder: Folder, rows: Rows, run: Run) -> None:
    path = folder.snapshot(topic(1), BEGIN, END, end=9)
    code, found = rows("dump", path)
    assert code == 1 and "BeginTransaction inside a snapshot" in of(found, "damage")[0]["reason"]
    code, _, err = run("shell", path, "ls")
    assert code == 1 and "holds BeginTransaction" in err


# -- files that are not as they should be


def test_a_torn_end_is_told_and_not_cut(story: Folder, rows: Rows, run: Run) -> None:
    whole = story.segment.read_bytes()
    torn = whole + batch(story.end, topic(6), topic(7))[:-5]
    story.segment.write_bytes(torn)
    code, found = rows("dump", story.data)
    assert code == 0 and offsets(found) == list(range(16))
    (end,) = of(found, "torn end")
    assert end["position"] == len(whole) and "cut off" in end["reason"]
    code, out, err = run("shell", story.data, "ls", "/image/topics/byName")
    assert code == 0 and out.split() == ["t1", "t2", "t4"] and "torn end at byte" in err
    assert story.segment.read_bytes() == torn


def test_damage_in_the_middle_is_told_with_its_place(story: Folder, rows: Rows, run: Run) -> None:
    data = bytearray(story.segment.read_bytes())
    position = bytes(data).index(batch(4, BEGIN, topic(2)))
    data[position + 70] ^= 0xFF
    story.segment.write_bytes(data)
    code, found = rows("dump", story.data)
    damage = of(found, "damage")
    assert code == 1 and damage[0]["position"] == position and "offset 4 has a wrong CRC" in damage[0]["reason"]
    assert offsets(found)[-1] == 15
    code, out, err = run("shell", story.data, "ls", "/image/topics/byName")
    assert code == 1 and out.split() == ["t1"]
    assert f"{story.segment}: damage at byte {position}" in err


def test_a_missing_segment_is_damage(folder: Folder, rows: Rows, run: Run) -> None:
    for number in range(3):
        folder.append(topic(number))
        middle = folder.roll()
        if number == 1:
            missing = middle
    missing.unlink()
    code, found = rows("dump", folder.data)
    assert code == 1 and "offset 2 follows where 1 is due" in of(found, "damage")[0]["reason"]
    code, out, err = run("shell", folder.data, "ls", "/image/topics/byName")
    assert code == 1 and out.split() == ["t0"] and "offset 2 follows where 1 is due" in err


def test_a_record_that_cannot_be_decoded_is_told_and_the_rest_is_shown(folder: Folder, rows: Rows) -> None:
    builder = BatchBuilder(base_offset=0, leader_epoch=EPOCH)
    for value in (encode(topic(1)), b"\x01\x7f\x00", b"hello", b"", encode(topic(2))):
        builder.add(None, value, 1)
    folder.write(builder.build(), 5)
    code, found = rows("dump", folder.data)
    assert code == 1 and offsets(found) == [0, 4]
    assert [re.findall(r"offset (\d)", row["reason"]) for row in of(found, "damage")] == [["1"], ["2"], ["3"]]


@pytest.mark.parametrize("command", [["dump"], ["shell"]])
@pytest.mark.parametrize("name", [f"{0:020d}.log", f"{7:020d}-{1:010d}.checkpoint", "bootstrap.checkpoint"])
@pytest.mark.parametrize("data", [b"garbage" * 100, bytes(1000), b"x"])
def test_garbage_is_told_and_the_exit_code_is_1(
    folder: Folder, run: Run, command: list[str], name: str, data: bytes
) -> None:
    path = folder.log / name
    path.write_bytes(data)
    code, out, err = run(*command, path, *(["ls"] if command == ["shell"] else []))
    assert code == 1 and str(path) in out + err


@pytest.mark.parametrize("command", [["dump"], ["shell"]])
def test_what_holds_no_metadata_is_refused_with_a_message(
    tmp_path: Path, folders: dict[str, Path], run: Run, command: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "fresh" / "__cluster_metadata-0").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    partition_folder = folders[MAKERS[0]] / "plain-0"
    for path, message in [
        (tmp_path / "nothing", "no such file or folder"),
        (tmp_path / "empty", "no metadata log here"),
        (partition_folder, "no metadata log here"),
        (tmp_path / "notes.txt", "neither a segment"),
        (tmp_path / "fresh", "neither a segment nor a snapshot is in it"),
        (tmp_path / "pipe", "neither a file nor a folder"),
    ]:
        code, out, err = run(*command, path)
        assert (code, out) == (1, "") and message in err and str(path) in err, path


def test_an_empty_log_says_that_it_is(folder: Folder, run: Run) -> None:
    folder.segment.touch()
    assert run("dump", folder.data)[0] == 0
    code, _, err = run("shell", folder.data, "ls")
    assert code == 1 and "there is no record in it yet" in err


def test_the_segment_of_another_topic_is_not_taken_for_metadata(folders: dict[str, Path], run: Run) -> None:
    path = folders[MAKERS[0]] / "plain-0" / f"{0:020d}.log"
    code, out, _ = run("dump", path)
    assert code == 1 and "DAMAGE" in out
    code, out, err = run("shell", path, "ls")
    assert code == 1 and out == "" and "cannot be applied" in err


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_bytes_end_with_rows_or_a_message(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = batch(0, BEGIN, topic(1)) + batch(2, partition(1), END) + batch(4, topic(2))
    content = bytearray(whole)
    for position in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(whole)))] + data.draw(st.binary(max_size=80))
    path = tmp_path_factory.mktemp("any") / data.draw(
        st.sampled_from([f"{0:020d}.log", f"{2:020d}.log", "copy.log", f"{5:020d}-{1:010d}.checkpoint"])
    )
    path.write_bytes(content)
    with ExitStack() as stack:
        for part in metadata_files.open_parts([path], stack):
            transactions = MetadataTransactions(part)
            lines = Lines(transactions)
            for row in [
                *record_rows(part, transactions, MetadataFilter()),
                *transaction_rows(transactions, MetadataFilter()),
            ]:
                assert json_line(row) and (lines.line(row) or row["what"] == "transaction")
    with suppress(CliError):
        loaded = load_image(path, lambda _: lambda _: None)
        assert Shell(loaded, OutputFormat.TABLE).run(["tree"]) == 0


# -- beside a running broker


def test_files_that_a_broker_deletes_are_looked_for_again(tmp_path: Path, run: Run) -> None:
    """A broker that does nothing but snapshot and trim: every look gets a whole image, never a mixture or an error."""
    folder = Folder(tmp_path / "data")
    folder.append(FeatureLevel("metadata.version", 30))
    folder.append(FeatureLevel("round", 1))
    stop = threading.Event()

    def trim() -> None:
        for number in count(2):
            if stop.is_set():
                return
            before = sorted([*folder.log.glob("*.log"), *folder.log.glob("*.checkpoint")])
            temporary = folder.log / "temporary"
            temporary.write_bytes(snapshot_bytes(FeatureLevel("metadata.version", 30), FeatureLevel("round", number)))
            temporary.rename(folder.log / SnapshotId(folder.end, EPOCH).file_name)
            folder.roll()
            folder.append(FeatureLevel("round", number + 1))
            for path in before:
                path.unlink()

    broker = threading.Thread(target=trim)
    broker.start()
    try:
        last = looks = 0
        while looks < 15 or last <= 15:  # the broker trims between looks, however the two share a core
            looks += 1
            code, out, err = run("shell", folder.data, "cat", "/image/features/finalized_round")
            assert (code, err) == (0, ""), err
            assert int(out) >= last
            last = int(out)
            code, out, err = run("dump", folder.data)
            assert (code, err) == (0, ""), out + err
    finally:
        stop.set()
        broker.join()


def test_a_file_that_never_comes_back_is_named(folder: Folder, run: Run) -> None:
    folder.append(topic(1))
    (folder.log / f"{1:020d}.log").symlink_to(folder.log / "nowhere")
    code, _, err = run("dump", folder.data)
    assert code == 1 and f"{1:020d}.log" in err and "the broker deletes it" in err


def test_what_is_written_after_the_opening_is_not_read(story: Folder) -> None:
    with ExitStack() as stack:
        (part,) = metadata_files.open_parts([story.data], stack)
        before = [found.batch.header.base_offset for found in part.read() if isinstance(found, metadata_files.Located)]
        story.append(END)
        story.segment.unlink()
        after = [found.batch.header.base_offset for found in part.read() if isinstance(found, metadata_files.Located)]
    assert before == after and before[-1] == 14


def test_folders_that_may_only_be_read_are_enough(story: Folder, run: Run) -> None:
    for path in (story.segment, story.log, story.data):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert run("dump", story.data)[0] == 0
        assert run("shell", story.data, "ls")[0] == 0
    finally:
        story.log.chmod(0o700)
        story.data.chmod(0o700)
