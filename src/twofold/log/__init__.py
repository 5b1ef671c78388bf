"""Partition storage in Kafka's on-disk format."""

from twofold.log.api import (
    AbortedTransaction,
    AppendResult,
    Bound,
    Origin,
    ProducerRow,
    ReadResult,
    TimestampOffset,
)
from twofold.log.log import PartitionLog
from twofold.log.manager import DataDirectoryError, LogManager, LogOptions

__all__ = [
    "AbortedTransaction",
    "AppendResult",
    "Bound",
    "DataDirectoryError",
    "LogManager",
    "LogOptions",
    "Origin",
    "PartitionLog",
    "ProducerRow",
    "ReadResult",
    "TimestampOffset",
]
