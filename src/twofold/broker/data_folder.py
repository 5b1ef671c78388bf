"""Whose data directory this is: `meta.properties`, read before anything else in the directory is touched.

1. An empty directory becomes this node's. One with logs but without `meta.properties` does not: it was never finished,
   or its most important file is gone, and a new identity would hide what the logs belong to.
2. Nothing is changed in a directory that is another node's or of another time; the message says what to do.
"""

import posixpath
from random import Random
from typing import NamedTuple
from uuid import UUID

from twofold.log.manager import DataDirectoryError, LogManager
from twofold.log.recovery.checkpoints import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    MetaProperties,
    decode_uuid,
    encode_uuid,
    write_meta_properties,
)
from twofold.log.segments.segment import LOG_SUFFIX
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file

KRAFT_META_VERSION = "1"


def was_closed_cleanly(disk: Disk, directory: str) -> bool:
    return disk.exists(f"{directory}/{CLEAN_SHUTDOWN}")


class Identity(NamedTuple):
    """Whose the directory is; what the file does not say of it is added once the directory is known to be ours."""

    meta: MetaProperties
    is_complete: bool = True

    def complete(self, disk: Disk, directory: str) -> None:
        if not self.is_complete:
            write_meta_properties(disk, directory, self.meta)


def identify(disk: Disk, logs: LogManager, node_id: int, random: Random) -> Identity:
    """The identity of the directory, given to it now if it is new; DataDirectoryError where it is not this node's."""
    path = f"{logs.directory}/{META_PROPERTIES}"
    try:
        fields = _properties(path, read_file(disk, path))
    except FileNotFoundError:
        _refuse_nameless(disk, logs.directory, path)
        return Identity(logs.ensure_meta_properties(node_id))
    _check_version(path, fields)
    for name in ("node.id", "cluster.id"):
        if not fields.get(name):
            raise DataDirectoryError(f"{path} does not say {name}: restore the file from a copy")
    _check_node(path, fields["node.id"], node_id)
    directory_id = _directory_id(path, fields.get("directory.id", ""))
    if directory_id is not None:
        return Identity(MetaProperties(node_id, fields["cluster.id"], encode_uuid(directory_id)))
    # Releases before 3.7 gave a directory no id; Apache Kafka, too, gives it one at the next start.
    given = encode_uuid(UUID(int=random.getrandbits(128), version=4))
    return Identity(MetaProperties(node_id, fields["cluster.id"], given), is_complete=False)


def _properties(path: str, data: bytes) -> dict[str, str]:
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
    if version == "0":
        broker = f" (broker.id={fields['broker.id']})" if "broker.id" in fields else ""
        raise DataDirectoryError(
            f"{path} has version 0{broker}: the directory is of a broker with ZooKeeper; migrate it to KRaft with "
            "Apache Kafka 3.9 first, or choose another directory (log.dirs)"
        )
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
        is_partition = name.rpartition("-")[2].isdigit() and disk.is_dir(inside)
        if is_partition and any(file.endswith(LOG_SUFFIX) for file in disk.list(inside)):
            raise DataDirectoryError(
                f"{path} is missing, but {name} holds records: restore the file from a copy, or choose another "
                "directory (log.dirs)"
            )
