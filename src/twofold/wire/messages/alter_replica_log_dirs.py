"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 34."""

from collections.abc import Sequence

from twofold.wire.message import Message


class AlterReplicaLogDirTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[int]

    def __init__(self, *, name: str, partitions: Sequence[int] = ()) -> None:
        self.name = name
        self.partitions = partitions


class AlterReplicaLogDir(Message):
    __slots__ = ("path", "topics")
    path: str
    topics: Sequence[AlterReplicaLogDirTopic]

    def __init__(self, *, path: str, topics: Sequence[AlterReplicaLogDirTopic]) -> None:
        self.path = path
        self.topics = topics


class AlterReplicaLogDirsRequest(Message):
    """API key 34, versions 1-2."""

    __slots__ = ("dirs",)
    dirs: Sequence[AlterReplicaLogDir]

    def __init__(self, *, dirs: Sequence[AlterReplicaLogDir]) -> None:
        self.dirs = dirs


class AlterReplicaLogDirPartitionResult(Message):
    __slots__ = ("partition_index", "error_code")
    partition_index: int
    error_code: int

    def __init__(self, *, partition_index: int, error_code: int) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class AlterReplicaLogDirTopicResult(Message):
    __slots__ = ("topic_name", "partitions")
    topic_name: str
    partitions: Sequence[AlterReplicaLogDirPartitionResult]

    def __init__(self, *, topic_name: str, partitions: Sequence[AlterReplicaLogDirPartitionResult]) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class AlterReplicaLogDirsResponse(Message):
    """API key 34, versions 1-2."""

    __slots__ = ("throttle_time_ms", "results")
    throttle_time_ms: int
    results: Sequence[AlterReplicaLogDirTopicResult]

    def __init__(self, *, throttle_time_ms: int = 0, results: Sequence[AlterReplicaLogDirTopicResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results
