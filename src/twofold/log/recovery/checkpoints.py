"""The small files of a data directory: offsets per partition, the topic of each, the mark of a clean shutdown."""

import base64
import json
import logging
import threading
import uuid
from collections.abc import Mapping
from itertools import count

from twofold.log.recovery.epochs import CorruptCheckpoint
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file, write_atomically
from twofold.types import TopicId, TopicPartition

log = logging.getLogger("twofold.log")

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
PARTITION_METADATA = "partition.metadata"
VERSION = 0


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return "\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode()


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    try:
        version, count, *lines = data.decode("ascii").splitlines()
        offsets = {}
        for line in lines:
            topic, partition, offset = line.split()
            if int(offset) < 0:
                raise ValueError(f"the offset {offset} of {topic}-{partition}")
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        if int(version) != VERSION or int(count) != len(offsets):
            raise ValueError(f"version {version}, {count} of {len(offsets)} lines")
    except ValueError as error:
        raise CorruptCheckpoint(str(error)) from None
    return offsets


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint file; none where the file is missing or damaged."""
    try:
        data = read_file(disk, path)
        return decode_offsets(data) if data else {}  # Apache Kafka leaves an empty file where there is nothing to say
    except FileNotFoundError:
        return {}
    except CorruptCheckpoint as error:
        log.warning("%s: %s; it counts as empty", path, error)
        return {}


class CheckpointWriter:
    """Replaces checkpoint files, from any thread, so that the last one asked for stays.

    A background write that was overtaken must not put an older recovery point back over a lowered one.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._tickets = count(1)
        self._written: dict[str, int] = {}
        self._lock = threading.Lock()

    def ticket(self) -> int:
        """The number of a write in the order of all writes. Draw it when the content is taken."""
        return next(self._tickets)

    def write(self, name: str, content: bytes, ticket: int) -> None:
        with self._lock:
            if ticket > self._written.get(name, 0):
                write_atomically(self._disk, f"{self._directory}/{name}", content)
                self._written[name] = ticket


def encode_uuid(value: uuid.UUID) -> str:
    """As Kafka writes ids: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def encode_partition_metadata(topic_id: TopicId) -> bytes:
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def write_topic_id(disk: Disk, directory: str, topic_id: TopicId) -> None:
    """Without a sync: the first flush of the log does that."""
    file = disk.open(f"{directory}/{PARTITION_METADATA}", create=True)
    file.truncate(0)
    file.write(0, encode_partition_metadata(topic_id))
    file.close()


def read_topic_id(disk: Disk, directory: str) -> TopicId | None:
    """The topic a partition's directory belongs to; None where that was lost in a crash before the first sync."""
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        fields = dict(line.split(": ", 1) for line in read_file(disk, path).decode("ascii").splitlines())
        return decode_uuid(fields["topic_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        log.warning("%s cannot be read: %r", path, error)
        return None


def mark_clean_shutdown(disk: Disk, directory: str, broker_epoch: int = -1) -> None:
    content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(disk, f"{directory}/{CLEAN_SHUTDOWN}", content.encode())


def clean_broker_epoch(disk: Disk, directory: str) -> int:
    """The epoch in which the broker stopped cleanly; -1 where it did not, or belonged to no other controllers."""
    try:
        epoch = json.loads(read_file(disk, f"{directory}/{CLEAN_SHUTDOWN}")).get("brokerEpoch", -1)
    except (FileNotFoundError, ValueError, AttributeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def take_clean_shutdown(disk: Disk, directory: str) -> bool:
    """Whether the last shutdown was clean; the mark is gone, on disk too, when this returns."""
    path = f"{directory}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return False
    disk.remove(path)
    disk.sync_dir(directory)
    return True
