"""Metadata logs on a real disk for the tests of `twofold metadata`, and how its commands are run."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from twofold.cli.app import run_app
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
    Partition,
    Topic,
    encode,
)
from twofold.metadata_log.control import Voter, leader_change_batch
from twofold.metadata_log.snapshots import SnapshotId, encode_snapshot
from twofold.records.batch import BatchBuilder

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
MAKERS = ("folder-kafka-4.3.1", "folder-twofold-0.1.0")
EPOCH = 3
BEGIN, END, ABORT = BeginTransaction("growth"), EndTransaction(), AbortTransaction("Controller failover")
Row = dict[str, Any]
Run = Callable[..., tuple[int, str, str]]


def topic(number: int) -> Topic:
    return Topic(f"t{number}", UUID(int=number))


def partition(number: int, index: int = 0) -> Partition:
    return Partition(index, UUID(int=number), (1,), (1,), 1)


class Folder:
    """A data folder whose metadata log is written batch by batch."""

    def __init__(self, directory: Path) -> None:
        self.data = directory
        self.log = directory / "__cluster_metadata-0"
        self.log.mkdir(parents=True)
        (self.log / "quorum-state").write_text("{}")
        self.end = 0
        self._base = 0

    @property
    def segment(self) -> Path:
        return self.log / f"{self._base:020d}.log"

    def append(self, *records: MetadataRecord) -> None:
        self.write(batch(self.end, *records), len(records))

    def write(self, data: bytes, records: int) -> None:
        with self.segment.open("ab") as file:
            file.write(data)
        self.end += records

    def roll(self) -> Path:
        """Begin another segment; the one before it is returned."""
        before, self._base = self.segment, self.end
        return before

    def snapshot(self, *records: MetadataRecord, end: int | None = None) -> Path:
        path = self.log / SnapshotId(self.end if end is None else end, EPOCH).file_name
        path.write_bytes(snapshot_bytes(*records))
        return path


def batch(offset: int, *records: MetadataRecord) -> bytes:
    builder = BatchBuilder(base_offset=offset, leader_epoch=EPOCH)
    for record in records:
        builder.add(None, encode(record), 1000 + offset)
    return builder.build()


def snapshot_bytes(*records: MetadataRecord) -> bytes:
    values = [encode(record) for record in records]
    return b"".join(encode_snapshot(values, epoch=EPOCH, last_contained_timestamp_ms=900, timestamp_ms=900))


@pytest.fixture(name="folder")
def empty_folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data")


@pytest.fixture(name="story")
def story_folder(folder: Folder) -> Folder:
    """A committed, an aborted and an open transaction, and plain records between them."""
    voters = [Voter(1, UUID(int=9))]
    folder.write(leader_change_batch(1, voters, first=False, timestamp_ms=1), 1)  # 0
    folder.append(FeatureLevel("metadata.version", 30), topic(1), partition(1))  # 1-3
    folder.append(BEGIN, topic(2))  # 4-5
    folder.append(partition(2), partition(2, 1), END)  # 6-8
    folder.append(BEGIN)  # 9
    folder.append(topic(3))  # 10
    folder.append(ABORT, topic(4))  # 11-12
    folder.append(BEGIN)  # 13
    folder.append(topic(5), partition(5))  # 14-15
    return folder


@pytest.fixture(scope="module", name="folders")
def real_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for maker in MAKERS:
        directory = tmp_path_factory.mktemp(maker)
        with tarfile.open(FIXTURES / f"{maker}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
        found[maker] = directory / "data"
    return found


@pytest.fixture(name="run")
def run_metadata(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = run_app(["metadata", *map(str, arguments)])
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        return code, told.out, told.err

    return run


@pytest.fixture(name="rows")
def rows_of_metadata(run: Run) -> Callable[..., tuple[int, list[Row]]]:
    def rows(*arguments: object) -> tuple[int, list[Row]]:
        code, out, _ = run(*arguments, "--format", "json")
        return code, [json.loads(line) for line in out.splitlines()]

    return rows


Rows = Callable[..., tuple[int, list[Row]]]


def of(found: list[Row], what: str) -> list[Row]:
    return [row for row in found if row["what"] == what]


def offsets(found: list[Row]) -> list[int]:
    return [row["offset"] for row in of(found, "record")]
