"""What is read of a checkpoint: whose it is, and what a batch reads, whatever else stands in the file."""

import os
from pathlib import Path

import pytest

from twofold.sink.names import prefix_of_checkpoint
from twofold.spark.checkpoints.checkpoint import Checkpoint, former_prefixes, place_of, query_at
from twofold.spark.errors import OptionError

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{"a":"%s"}}'


def write(directory: Path, batch_id: int, *lines: str, version: str = "v1", at_ms: int = 1, conf: str = "x") -> None:
    (directory / "offsets").mkdir(exist_ok=True)
    text = "\n".join([version, METADATA % (at_ms, conf), *lines])
    (directory / "offsets" / str(batch_id)).write_text(text)


def test_the_digest_goes_by_the_offsets_of_all_sources_and_by_nothing_else(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    digests = []
    for number, (lines, at_ms, conf) in enumerate(
        [
            (('{"t":{"0":5,"1":6}}', "-", '{"x":1}'), 1, "x"),
            (('{"t": {"1": 6, "0": 5}}', "-", '{"x": 1}'), 2, "y"),
            (('{"t":{"0":5,"1":7}}', "-", '{"x":1}'), 1, "x"),
            (('{"t":{"0":5,"1":6}}', "-", '{"x":2}'), 1, "x"),
            (('{"t":{"0":5,"1":6}}', '{"x":1}', "-"), 1, "x"),
            (('{"t":{"0":5,"1":6}}', "-", "file 7"), 1, "x"),
        ]
    ):
        write(tmp_path, number, *lines, at_ms=at_ms, conf=conf)
        found = checkpoint.newest_input()
        assert found.batch_id == number
        digests.append(found.digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == len(digests) - 1


def test_the_newest_batch_is_the_one_that_runs(tmp_path: Path) -> None:
    for number in (2, 9, 10):
        write(tmp_path, number, f'{{"t":{{"0":{number}}}}}')
    (tmp_path / "offsets" / ".11.crc").write_text("")
    (tmp_path / "offsets" / ".11.5a1.tmp").write_text("")
    found = Checkpoint(str(tmp_path)).newest_input()
    assert (found.batch_id, found.ends) == (10, '{"t":{"0":10}}')


def test_what_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for location in (str(tmp_path / "none"), "nosuch://x/y"):
        with pytest.raises(OptionError, match="batchCheck=number") as refused:
            Checkpoint(location).query_id()
        assert repr(location) in str(refused.value)
        assert query_at(location) is None
    write(tmp_path, 0, "{}", version="v9")
    with pytest.raises(OptionError, match="its form is v9, and v1 is known"):
        Checkpoint(str(tmp_path)).newest_input()


def test_the_place_is_the_same_for_every_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spellings = ["c", "./c", "c/", str(tmp_path / "c"), f"file://{tmp_path}/c", f"file:{tmp_path}/c/"]
    assert len({place_of(spelling) for spelling in spellings}) == 1
    assert place_of("s3://b/c/") == "s3://b/c" != place_of("s3://b/d")


def test_the_names_of_the_version_before_are_found_by_the_likely_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = os.path.abspath("relck")
    for now in ("relck", absolute, f"file://{absolute}"):
        for before in ("relck", absolute, f"file:{absolute}/"):
            assert prefix_of_checkpoint(before) in former_prefixes(now)
    assert former_prefixes("s3://b/c") == (prefix_of_checkpoint("s3://b/c"),)
