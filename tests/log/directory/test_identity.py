"""Whose a data directory is. One module reads and writes `meta.properties`."""

from random import Random
from uuid import UUID

import pytest

from kits.log.partition import DATA, NOW, Kit
from twofold.log.directory.identity import DataDirectoryError, DirectoryIdentity, MetaProperties, identify
from twofold.log.recovery.checkpoints import decode_uuid, encode_uuid
from twofold.runtime.files import read_file, write_atomically
from twofold.runtime.sim.disk import SimDisk

CLUSTER = "5L6g3nShT-eMCtK--X86sw"
DIRECTORY_ID = encode_uuid(UUID(int=77))
PATH = f"{DATA}/meta.properties"


def disk_with(content: bytes | None = None) -> SimDisk:
    disk = SimDisk(Random(0), now_ms=lambda: NOW)
    disk.make_dirs(DATA)
    if content is not None:
        write_atomically(disk, PATH, content)
    return disk


def identity_of(disk: SimDisk, node_id: int = 1) -> DirectoryIdentity:
    return identify(disk, DATA, node_id, Random(7))


def test_a_new_directory_gets_ids_of_its_own_and_keeps_them() -> None:
    disk = disk_with()
    first = identity_of(disk)
    assert first.is_complete
    assert first.meta.node_id == 1
    assert first.meta.cluster_id != first.meta.directory_id
    assert decode_uuid(first.meta.cluster_id).version == decode_uuid(first.meta.directory_id).version == 4
    disk.crash(power_cut=True)
    assert identity_of(disk) == first


def test_the_file_is_what_apache_kafka_reads() -> None:
    meta = MetaProperties(1, CLUSTER, DIRECTORY_ID)
    lines = ["#", f"cluster.id={CLUSTER}", f"directory.id={DIRECTORY_ID}", "node.id=1", "version=1", ""]
    assert meta.encode().decode().split("\n") == lines
    assert identity_of(disk_with(meta.encode())) == DirectoryIdentity(meta)


def test_a_directory_without_an_id_gets_one_when_it_is_known_to_be_ours() -> None:
    content = f"version=1\nnode.id=1\ncluster.id={CLUSTER}\n".encode()
    disk = disk_with(content)
    found = identity_of(disk)
    assert not found.is_complete and found.meta.cluster_id == CLUSTER
    assert read_file(disk, PATH) == content, "nothing is changed before"
    found.complete(disk, DATA)
    assert identity_of(disk) == DirectoryIdentity(found.meta)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; restore the file from a copy, or choose another directory"),
        (b"garbage\n\0\n", "is no meta.properties: it names none of version, node.id, broker.id, cluster.id"),
        (b"a=b\nversion\n", "is no meta.properties"),
        (b"cluster.id=x\nnode.id=1\n", "does not say version: restore the file"),
        (b"version=one\nnode.id=1\n", "has version=one, which is no number: restore the file"),
        (b"broker.id=3\n", r"has version 0 \(broker.id=3\): the directory is of a broker with ZooKeeper"),
        (b"version=0\nbroker.id=3\n", r"has version 0 \(broker.id=3\)"),
        (b"version=2\n", "has version 2, known is 1"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"version=1\n", "does not say node.id"),
        (b"version=1\nnode.id=1\n", "does not say cluster.id"),
        (b"version=1\nnode.id=one\ncluster.id=x\n", "belongs to node one, this is node 1: restore the file"),
        (b"version=1\nnode.id=7\ncluster.id=x\n", "belongs to node 7, this is node 1: set node.id=7"),
        (b"version=1\nnode.id=1\ncluster.id=x\ndirectory.id=!\n", "has directory.id=!, which is no id"),
    ],
)
def test_a_file_that_is_not_this_nodes_stops_the_start_and_stays_as_it_is(content: bytes, message: str) -> None:
    disk = disk_with(content)
    with pytest.raises(DataDirectoryError, match=f"^{PATH} {message}"):
        identity_of(disk)
    assert read_file(disk, PATH) == content


def test_a_directory_with_records_and_without_identity_gets_no_new_one() -> None:
    kit = Kit()
    kit.data()
    with pytest.raises(DataDirectoryError, match=f"^{PATH} is missing, but events-0 holds records"):
        identity_of(kit.disk)
    assert not kit.disk.exists(PATH)


def test_a_directory_with_a_metadata_log_and_without_identity_gets_no_new_one() -> None:
    disk = disk_with()
    disk.make_dirs(f"{DATA}/__cluster_metadata-0")
    with pytest.raises(DataDirectoryError, match=f"^{PATH} is missing, but __cluster_metadata-0 is there"):
        identity_of(disk)


def test_a_directory_of_a_topic_without_records_does_not_matter() -> None:
    disk = disk_with()
    disk.make_dirs(f"{DATA}/events-0")
    assert identity_of(disk).is_complete
