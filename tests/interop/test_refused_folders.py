"""A data folder that is not for this node or this software is refused in one line, and left as it was found.

The folder is the one of Apache Kafka under tests/fixtures, with one thing changed in each case.
"""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from kits.folders.story import Story
from kits.processes import commands
from twofold import Admin
from twofold.controller.records import FeatureLevel, MetadataRecord, encode
from twofold.controller.security.records import AccessControlEntry
from twofold.embedded import Broker
from twofold.log.manager import DataDirectoryError
from twofold.metadata_log.control import Voter, encode_voters
from twofold.records.batch import BatchBuilder, iter_headers
from twofold.records.control import ControlType, control_key

FIXTURE = Path(__file__).parent.parent / "fixtures" / "folder-kafka-4.3.1.tar.gz"
METADATA = "__cluster_metadata-0"
SEGMENT = f"{METADATA}/00000000000000000000.log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        lines = [new if line.startswith(old) else line for line in text.splitlines()]
        (folder / name).write_text("\n".join([*lines, ""]))

    return change


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def written(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def flipped(pattern: str, at: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = sorted(folder.glob(pattern))[-1]
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return change


def appended(*records: MetadataRecord, voters: tuple[Voter, ...] = ()) -> Callable[[Path], None]:
    """More in the metadata log, as a controller would have written it."""

    def change(folder: Path) -> None:
        data = (folder / SEGMENT).read_bytes()
        last = [header for _, header in iter_headers(data)][-1]
        builder = BatchBuilder(base_offset=last.next_offset, leader_epoch=last.leader_epoch, control=bool(voters))
        for record in records:
            builder.add(None, encode(record), last.max_timestamp)
        if voters:
            builder.add(control_key(ControlType.KRAFT_VOTERS), encode_voters(voters), last.max_timestamp)
        (folder / SEGMENT).write_bytes(data + builder.build())

    return change


ACL = AccessControlEntry(UUID(int=7), 2, "secret", 3, "User:eve", "*", 3, 2)
OTHERS = (Voter(1, UUID(int=1 << 64)), Voter(2, UUID(int=2 << 64)))
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another node": (
        replaced("meta.properties", "node.id", "node.id=7"),
        r"meta\.properties belongs to node 7, this is node 1: set node\.id=7",
    ),
    "of ZooKeeper": (
        written("meta.properties", b"version=0\nbroker.id=1\ncluster.id=abc\n"),
        r"meta\.properties has version 0 \(broker\.id=1\).*ZooKeeper.*3\.9",
    ),
    "of tomorrow": (replaced("meta.properties", "version", "version=2"), r"meta\.properties has version 2, known is 1"),
    "without a cluster": (
        replaced("meta.properties", "cluster.id", ""),
        r"meta\.properties does not say cluster\.id",
    ),
    "without identity": (removed("meta.properties"), r"meta\.properties is missing, but \S+-0 holds records"),
    "with half an identity": (
        replaced("meta.properties", "directory.id", ""),
        r"directory id .*restore directory\.id in meta\.properties",
    ),
    "with a wrong id": (
        replaced("meta.properties", "directory.id", "directory.id=x"),
        r"meta\.properties has directory\.id=x, which is no id",
    ),
    "meta.properties is binary": (written("meta.properties", b"\xff\xfe\x00"), r"meta\.properties cannot be read"),
    "no quorum state": (written(f"{METADATA}/quorum-state", b"{"), "quorum-state cannot be read"),
    "a damaged log": (flipped(SEGMENT, 800), r"\.log: the batch at offset \d+ is damaged .* closed cleanly"),
    "a newer metadata.version": (
        appended(FeatureLevel("metadata.version", 31)),
        r"metadata\.version is finalized at 31, and Twofold knows it from 7 to 30",
    ),
    "access control lists": (
        appended(ACL),
        r"1 access control entries, .*authorizer\.class\.name=.*twofold acl remove --data",
    ),
    "several voters": (appended(voters=OTHERS), "has the voters 1, 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_is_not_for_us_is_refused_and_left_as_it_was(folder: Path, case: str) -> None:
    change, message = REFUSED[case]
    change(folder)
    before = content(folder)
    with pytest.raises(DataDirectoryError, match=message), Broker(data=str(folder), settings={"node.id": "1"}):
        pytest.fail("it was opened")
    assert content(folder) == before


def test_a_damaged_snapshot_is_passed_over_where_the_log_still_says_all_of_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def topics() -> list[str]:
        with (
            Broker(data=str(folder), settings={"node.id": "1"}) as broker,
            Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
        ):
            return sorted(admin.list_topics())

    whole = topics()
    flipped(f"{METADATA}/*.checkpoint", 250)(folder)
    assert topics() == whole
    assert any(".checkpoint is damaged" in record.getMessage() for record in caplog.records)


def content(folder: Path) -> dict[str, bytes]:
    """All files but the lock, and what is derived of the metadata log whenever it is read."""
    derived = (".index", ".timeindex", ".snapshot")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock" and not (path.parent.name == METADATA and path.suffix in derived)
    }


def test_the_command_says_it_in_one_line(folder: Path) -> None:
    replaced("meta.properties", "node.id", "node.id=7")(folder)
    done = commands.run("serve", "--listen", "127.0.0.1:0", "--data", str(folder))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"twofold serve: {folder}/meta.properties belongs to node 7, this is node 1: set node.id=7 or choose another "
        "directory (log.dirs) (--data)"
    ]


def test_a_folder_that_was_only_formatted_begins_with_what_it_was_given(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and path.name != METADATA:
            shutil.rmtree(path)
    for path in (folder / METADATA).iterdir():
        if path.name != "00000000000000000000-0000000000.checkpoint":
            path.unlink()
    with Broker(data=str(folder), settings={"node.id": "1"}) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with Story(host, int(port)) as story:
            assert story.levels() == {
                "eligible.leader.replicas.version": 1, "group.version": 1, "metadata.version": 30, "share.version": 1,
                "streams.version": 1, "transaction.version": 2,
            }  # fmt: skip


def test_a_directory_without_an_id_is_given_one(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    replaced("meta.properties", "directory.id", "")(folder)
    for _ in range(2):
        with Broker(data=str(folder), settings={"node.id": "1"}):
            text = (folder / "meta.properties").read_text()
            assert "directory.id=" in text and "version=1" in text


def test_a_new_directory_needs_no_formatting(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with Broker(data=str(tmp_path), settings={"node.id": "1"}):
        assert "node.id=1" in (tmp_path / "meta.properties").read_text()
