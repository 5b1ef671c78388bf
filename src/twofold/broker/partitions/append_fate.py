"""What became of an append that had to wait until its records were safe: the one answer for records and for markers."""

from twofold.broker.partitions.partition import Partition
from twofold.wire.errors import KafkaError, KafkaStorageError, NotEnoughReplicasAfterAppend, RequestTimedOut


def append_fate(
    partition: Partition, *, passed: bool, needs_in_sync: bool, what: str, time_limit: str
) -> KafkaError | None:
    """The error that a client gets for what was appended; None where it is safe.

    `passed`: the high watermark has passed it. `needs_in_sync`: it counts only if enough replicas are in sync.
    """
    if passed:
        if needs_in_sync and not partition.has_enough_in_sync_replicas:
            return NotEnoughReplicasAfterAppend(f"{partition}: appended, but then too few replicas were in sync")
        return None
    if not partition.is_leader:
        return partition.not_leading()
    if partition.failed:
        return KafkaStorageError(f"{partition}: the {what} could not be synced")
    return RequestTimedOut(f"{partition}: appended, but not safe within {time_limit}")
