"""DescribeLogDirs: API key 35, versions 1-5.

1. One row for the one data directory, by its absolute path: the partitions that are kept there, or those of them that
   were asked for, with their sizes. A partition that was never written has no files and the size 0. The lag of a
   replica that leads is 0, and no replica is about to move.
2. From version 4 on how large the disk is and how much of it is free; from version 5 on whether the directory is
   cordoned, which it never is.
3. A directory that cannot be looked at: KAFKA_STORAGE_ERROR (56) in its row, and nothing else.
4. Needs DESCRIBE on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) for all (from version 3 on) and no rows.
5. Sizes of many partitions are looked up in slices; other connections are served in between.
"""

import logging
from collections.abc import Iterator

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.types import TopicPartition
from twofold.wire.errors import NONE, ClusterAuthorizationFailed, KafkaError, KafkaStorageError
from twofold.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

KEY = 35

PARTITIONS_PER_TURN = 500

log = logging.getLogger(__name__)


async def handle(
    services: Services, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    if not cluster_allows(services.authorizer, context, Operation.DESCRIBE):
        raise ClusterAuthorizationFailed("no DESCRIBE on the cluster")
    directory = services.logs.directory
    try:
        volume = await services.runtime.blocking(services.runtime.disk.volume, directory)
        topics = await _topics(services, request)
    except OSError as error:
        log.error("%s cannot be described: %s", directory, error)
        return _one(DescribeLogDirsResult(error_code=KafkaStorageError.code, log_dir=directory, topics=()))
    return _one(
        DescribeLogDirsResult(
            error_code=NONE,
            log_dir=volume.path,
            topics=topics,
            total_bytes=volume.total_bytes,
            usable_bytes=volume.free_bytes,
        )
    )


def error_response(request: DescribeLogDirsRequest, error: KafkaError, version: int) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=error.code, results=())


def _one(row: DescribeLogDirsResult) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(results=(row,))


async def _topics(services: Services, request: DescribeLogDirsRequest) -> list[DescribeLogDirsTopic]:
    rows: dict[str, list[DescribeLogDirsPartition]] = {}
    for count, name in enumerate(_held(services, request), 1):
        found = services.logs.get(name)
        size = found.size_bytes if found is not None and found.exists else 0
        rows.setdefault(name.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=name.partition, partition_size=size, offset_lag=0, is_future_key=False
            )
        )
        if count % PARTITIONS_PER_TURN == 0:
            await services.runtime.timers.sleep(0)
    return [DescribeLogDirsTopic(name=topic, partitions=found) for topic, found in rows.items()]


def _held(services: Services, request: DescribeLogDirsRequest) -> Iterator[TopicPartition]:
    """The partitions asked for that have a replica here, each once, as the image had them in the beginning."""
    image = services.image
    if request.topics is None:
        asked = (TopicPartition(topic.name, index) for topic in image.topics.values() for index in topic.partitions)
    else:
        names = dict.fromkeys(TopicPartition(row.topic, index) for row in request.topics for index in row.partitions)
        asked = (name for name in names)
    for name in asked:
        state = image.partition(*name)
        if state is not None and services.node_id in state.replicas:
            yield name
