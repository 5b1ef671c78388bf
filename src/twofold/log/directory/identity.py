"""Whose a data directory is: `meta.properties`, read before anything else in the directory is touched.

1. An empty directory becomes this node's. A directory with partitions but without `meta.properties` does not: its most
   important file is gone, and a new identity would hide to which cluster the partitions belong.
2. Nothing is changed in a directory of another node or of another format. The message says what to do.
"""

import posixpath
from dataclasses import dataclass
from random import Random
from typing import NamedTuple
from uuid import UUID

from twofold.log.recovery.checkpoints import CLEAN_SHUTDOWN, META_PROPERTIES, decode_uuid, encode_uuid
from twofold.log.segments.segment import LOG_SUFFIX
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file, write_atomically

KRAFT_META_VERSION = "1"
METADATA_DIRECTORY = "__cluster_metadata-0"
KNOWN_FIELDS = ("version", "node.id", "broker.id", "cluster.id")  # a file that has none of them is of no broker


class DataDirectoryError(Exception):
    """The data directory cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Which node of which cluster a data directory belongs to."""

    node_id: int
    cluster_id: str
    directory_id: str

    def encode(self) -> bytes:
        lines = (
            "#",
            f"cluster.id={self.cluster_id}",
            f"directory.id={self.directory_id}",
            f"node.id={self.node_id}",
            f"version={KRAFT_META_VERSION}",
            "",
        )
        return "\n".join(lines).encode()


class DirectoryIdentity(NamedTuple):
    """What `meta.properties` says. What it leaves out is added to the file once the directory is known to be ours."""

    meta: MetaProperties
    is_complete: bool = True

    def complete(self, disk: Disk, directory: str) -> None:
        if not self.is_complete:
            _write(disk, directory, self.meta)


def was_closed_cleanly(disk: Disk, directory: str) -> bool:
    return disk.exists(f"{directory}/{CLEAN_SHUTDOWN}")


def identify(
    disk: Disk, directory: str, node_id: int, random: Random, *, cluster_id: str | None = None
) -> DirectoryIdentity:
    """The identity of the directory, given to it now if it is new; DataDirectoryError where it is not this node's.

    `cluster_id` is that of the cluster to join; None for a node that makes a cluster of its own.
    """
    path = f"{directory}/{META_PROPERTIES}"
    try:
        data = read_file(disk, path)
    except FileNotFoundError:
        _refuse_nameless(disk, directory, path)
        meta = MetaProperties(node_id, cluster_id or _new_id(random), _new_id(random))
        _write(disk, directory, meta)
        return DirectoryIdentity(meta)
    meta = parse_meta_properties(path, data, node_id)
    if cluster_id is not None and meta.cluster_id != cluster_id:
        raise DataDirectoryError(_of_another_cluster(disk, directory, path, meta.cluster_id, cluster_id))
    if meta.directory_id:
        return DirectoryIdentity(meta)
    # Releases before 3.7 gave a directory no id; Apache Kafka, too, gives it one at the next start.
    return DirectoryIdentity(MetaProperties(node_id, meta.cluster_id, _new_id(random)), is_complete=False)


def _of_another_cluster(disk: Disk, directory: str, path: str, found: str, wanted: str) -> str:
    was_alone = disk.is_dir(f"{directory}/{METADATA_DIRECTORY}")
    advice = (
        "it was a cluster of its own: start the member with an empty directory (log.dirs), and copy the topics over as "
        "docs/guide/cluster.md shows"
        if was_alone
        else "name controllers of that cluster, or choose an empty directory (log.dirs)"
    )
    return f"{path} belongs to the cluster {found}, and the controllers are those of {wanted}: {advice}"


def node_id_of(disk: Disk, directory: str) -> int | None:
    """The node that a directory belongs to, if it says so."""
    text = _field(disk, directory, "node.id")
    return int(text) if text.isdecimal() else None


def cluster_id_of(disk: Disk, directory: str) -> str | None:
    """The cluster that a directory belongs to, if it says so."""
    return _field(disk, directory, "cluster.id") or None


def _field(disk: Disk, directory: str, name: str) -> str:
    path = f"{directory}/{META_PROPERTIES}"
    try:
        return _fields(path, read_file(disk, path)).get(name, "")
    except FileNotFoundError:
        return ""


def parse_meta_properties(path: str, data: bytes, node_id: int) -> MetaProperties:
    """What the file says, which must be of this node; its `directory_id` is empty where it has none."""
    fields = _fields(path, data)
    if fields.keys().isdisjoint(KNOWN_FIELDS):
        what = "is empty" if not data.strip() else "is no meta.properties: it names none of " + ", ".join(KNOWN_FIELDS)
        raise DataDirectoryError(f"{path} {what}; restore the file from a copy, or choose another directory (log.dirs)")
    _check_version(path, fields)
    for name in ("node.id", "cluster.id"):
        if not fields.get(name):
            raise DataDirectoryError(f"{path} does not say {name}: restore the file from a copy")
    _check_node(path, fields["node.id"], node_id)
    directory_id = _directory_id(path, fields.get("directory.id", ""))
    return MetaProperties(node_id, fields["cluster.id"], "" if directory_id is None else encode_uuid(directory_id))


def _fields(path: str, data: bytes) -> dict[str, str]:
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise DataDirectoryError(f"{path} cannot be read ({error}): restore it from a copy") from None
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}


def _check_version(path: str, fields: dict[str, str]) -> None:
    version = fields.get("version", "0")
    if version == KRAFT_META_VERSION:
        return
    if version == "0" and ("version" in fields or "broker.id" in fields):
        broker = f" (broker.id={fields['broker.id']})" if "broker.id" in fields else ""
        raise DataDirectoryError(
            f"{path} has version 0{broker}: the directory is of a broker with ZooKeeper; migrate it to KRaft with "
            "Apache Kafka 3.9 first, or choose another directory (log.dirs)"
        )
    if "version" not in fields:
        raise DataDirectoryError(f"{path} does not say version: restore the file from a copy")
    if not version.isdecimal():
        raise DataDirectoryError(f"{path} has version={version}, which is no number: restore the file from a copy")
    raise DataDirectoryError(
        f"{path} has version {version}, known is {KRAFT_META_VERSION}: use a newer Twofold, or choose another "
        "directory (log.dirs)"
    )


def _check_node(path: str, found: str, node_id: int) -> None:
    if found != str(node_id):
        advice = f"set node.id={found}" if found.isdecimal() else "restore the file from a copy"
        raise DataDirectoryError(
            f"{path} belongs to node {found}, this is node {node_id}: {advice} or choose another directory (log.dirs)"
        )


def _directory_id(path: str, text: str) -> UUID | None:
    if not text:
        return None
    try:
        return decode_uuid(text)
    except ValueError:
        raise DataDirectoryError(f"{path} has directory.id={text}, which is no id: restore it from a copy") from None


def _refuse_nameless(disk: Disk, directory: str, path: str) -> None:
    for name in sorted(disk.list(directory)):
        inside = posixpath.join(directory, name)
        if not name.rpartition("-")[2].isdigit() or not disk.is_dir(inside):
            continue
        holds_records = any(file.endswith(LOG_SUFFIX) for file in disk.list(inside))
        if holds_records or name == METADATA_DIRECTORY:
            raise DataDirectoryError(
                f"{path} is missing, but {name} {'holds records' if holds_records else 'is there'}: restore the file "
                "from a copy, or choose another directory (log.dirs)"
            )


def _new_id(random: Random) -> str:
    return encode_uuid(UUID(int=random.getrandbits(128), version=4))


def _write(disk: Disk, directory: str, meta: MetaProperties) -> None:
    write_atomically(disk, f"{directory}/{META_PROPERTIES}", meta.encode())
