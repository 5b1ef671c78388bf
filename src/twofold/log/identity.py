"""Whose a data directory is: `meta.properties`, given to a new directory and checked at every start."""

import uuid
from dataclasses import replace
from random import Random

from twofold.log.recovery.checkpoints import (
    META_PROPERTIES,
    MetaProperties,
    decode_uuid,
    encode_uuid,
    read_meta_properties,
    write_meta_properties,
)
from twofold.log.recovery.epochs import CorruptCheckpoint
from twofold.runtime.api import Disk


class DataDirectoryError(Exception):
    """The data directory cannot be used; the message says what to do."""


def read_identity(disk: Disk, directory: str) -> MetaProperties | None:
    try:
        known = read_meta_properties(disk, directory)
        if known is not None and known.directory_id:
            decode_uuid(known.directory_id)
        return known
    except (CorruptCheckpoint, ValueError) as error:
        raise DataDirectoryError(
            f"{directory}/{META_PROPERTIES} cannot be read ({error}): restore it, it says node.id, cluster.id and "
            "directory.id of this directory (log.dirs)"
        ) from None


def take_identity(
    disk: Disk, directory: str, random: Random, node_id: int, cluster_id: str | None, *, is_new: bool
) -> MetaProperties:
    """The directory's identity, given to it now if it has none; DataDirectoryError where it has another."""
    known = read_identity(disk, directory)
    if known is None:
        if not is_new:
            # With a new cluster id clients and other nodes would take it for another cluster's.
            raise DataDirectoryError(
                f"{directory}/{META_PROPERTIES} is missing and there are partitions beside it: restore it, it says "
                "node.id, cluster.id and directory.id of this directory, or choose another one (log.dirs)"
            )
        cluster_id = cluster_id or _new_id(random)
        known = MetaProperties(node_id, cluster_id, _new_id(random))
        write_meta_properties(disk, directory, known)
    elif not known.directory_id:  # from before directories had an id
        known = replace(known, directory_id=_new_id(random))
        write_meta_properties(disk, directory, known)
    if known.node_id != node_id:
        raise DataDirectoryError(
            f"{directory} belongs to node {known.node_id}, this is node {node_id}: set "
            f"node.id={known.node_id} or choose another directory (log.dirs)"
        )
    if cluster_id is not None and known.cluster_id != cluster_id:
        raise DataDirectoryError(
            f"{directory} belongs to cluster {known.cluster_id}, not to {cluster_id}: choose "
            "another directory (log.dirs)"
        )
    return known


def _new_id(random: Random) -> str:
    return encode_uuid(uuid.UUID(int=random.getrandbits(128), version=4))
