"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 34."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirTopic:
    name: str
    partitions: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDir:
    path: str
    topics: Sequence[AlterReplicaLogDirTopic]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirsRequest:
    """API key 34, versions 1-2."""

    dirs: Sequence[AlterReplicaLogDir]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirPartitionResult:
    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str
    partitions: Sequence[AlterReplicaLogDirPartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirsResponse:
    """API key 34, versions 1-2."""

    throttle_time_ms: int = 0
    results: Sequence[AlterReplicaLogDirTopicResult]
