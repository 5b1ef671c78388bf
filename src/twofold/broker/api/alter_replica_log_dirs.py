"""AlterReplicaLogDirs: API key 34, versions 1-2.

1. There is one data directory, named by its absolute path as DescribeLogDirs does: what is sent there is there already.
   Any other path: LOG_DIR_NOT_FOUND (57) in each of its rows.
2. A partition without a replica here: UNKNOWN_TOPIC_OR_PARTITION (3).
3. A partition that is named more than once has one row, for the last directory that names it.
4. Needs ALTER on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) in each row.
"""

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.types import TopicPartition
from twofold.wire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    KafkaError,
    KafkaStorageError,
    LogDirNotFound,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

KEY = 34


async def handle(
    services: Services, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    if not cluster_allows(services.authorizer, context, Operation.ALTER):
        raise ClusterAuthorizationFailed("no ALTER on the cluster")
    try:
        volume = await services.runtime.blocking(services.runtime.disk.volume, services.logs.directory)
    except OSError as error:
        raise KafkaStorageError(f"{services.logs.directory} cannot be looked at: {error}") from error
    return _response({name: _code(services, name, path, volume.path) for name, path in _destinations(request).items()})


def error_response(request: AlterReplicaLogDirsRequest, error: KafkaError, version: int) -> AlterReplicaLogDirsResponse:
    return _response(dict.fromkeys(_destinations(request), error.code))


def _destinations(request: AlterReplicaLogDirsRequest) -> dict[TopicPartition, str]:
    return {
        TopicPartition(topic.name, index): row.path
        for row in request.dirs
        for topic in row.topics
        for index in topic.partitions
    }


def _code(services: Services, name: TopicPartition, path: str, own_path: str) -> int:
    if path != own_path:
        return LogDirNotFound.code
    state = services.image.partition(*name)
    return NONE if state is not None and services.node_id in state.replicas else UnknownTopicOrPartition.code


def _response(codes: dict[TopicPartition, int]) -> AlterReplicaLogDirsResponse:
    rows: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for name, code in codes.items():
        rows.setdefault(name.topic, []).append(
            AlterReplicaLogDirPartitionResult(partition_index=name.partition, error_code=code)
        )
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(topic_name=topic, partitions=found) for topic, found in rows.items()]
    )
