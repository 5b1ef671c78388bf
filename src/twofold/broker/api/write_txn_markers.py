"""WriteTxnMarkers: API key 27, versions 1-2.

1. Without ALTER or CLUSTER_ACTION on the cluster: CLUSTER_AUTHORIZATION_FAILED (31) everywhere.
2. A marker without partitions has no row, and no markers give no rows. The markers of one producer share a row; where
   two of them are for one partition both are written, and the later one's outcome is told.
3. A partition that does not exist, also under an illegal name: UNKNOWN_TOPIC_OR_PARTITION (3). Led elsewhere:
   NOT_LEADER_OR_FOLLOWER (6). Too few replicas in sync: 19 before, 20 after the append.
4. A negative producer id or epoch: UNKNOWN_SERVER_ERROR (-1) everywhere and nothing is written (Kafka may have written
   some by then). A negative transaction version: -1 on that marker's partitions. Versions above 2 act as 2, and version
   1 of the request means 0.
5. What the log refuses: INVALID_PRODUCER_EPOCH (47), TRANSACTION_COORDINATOR_FENCED (52). A producer that the partition
   does not know is no reason, and neither is a marker that was written before.
6. Partitions of `__consumer_offsets` are handed to the group coordinator, whose 14, 15 and 16 become 6: come again.
7. The answer waits until every marker is as safe as acks=all asks for, at most `request.timeout.ms`.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from twofold.broker.authorizer import Operation, cluster_allows
from twofold.broker.context import RequestContext
from twofold.broker.markers import NEWEST_VERSION, Outcomes, write_markers
from twofold.log.api import TransactionMarker
from twofold.types import TopicPartition
from twofold.wire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    KafkaError,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from twofold.broker.broker import Broker

KEY = 27

Codes: TypeAlias = dict[int, dict[TopicPartition, int]]  # by producer id


def handle(
    broker: "Broker", context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    if not (
        cluster_allows(broker.authorizer, context, Operation.CLUSTER_ACTION)
        or cluster_allows(broker.authorizer, context, Operation.ALTER)
    ):
        raise ClusterAuthorizationFailed("neither ALTER nor CLUSTER_ACTION on the cluster")
    writes = _Writes(broker, request)
    return writes.response() if writes.is_done else writes.wait()


def error_response(request: WriteTxnMarkersRequest, error: KafkaError, version: int) -> WriteTxnMarkersResponse:
    codes: Codes = {}
    for marker in request.markers:
        for topic_partition in _partitions(marker):
            codes.setdefault(marker.producer_id, {})[topic_partition] = error.code
    return _response(codes)


class _Writes:
    """One request while it is carried out."""

    def __init__(self, broker: "Broker", request: WriteTxnMarkersRequest) -> None:
        self._codes: Codes = {}
        self._waiting = 0
        self._done: asyncio.Future[None] | None = None
        for topic_partition, markers in self._by_partition(broker, request).items():
            topic, index = topic_partition
            settle = partial(self._settle, topic_partition, markers)
            outcomes = write_markers(broker, topic, index, markers, settle)
            if outcomes is None:
                self._waiting += 1
            else:
                self._note(topic_partition, markers, outcomes)

    def _by_partition(
        self, broker: "Broker", request: WriteTxnMarkersRequest
    ) -> dict[TopicPartition, list[TransactionMarker]]:
        """What is to be written where; rows that are refused without the log are filled in."""
        found: dict[TopicPartition, list[TransactionMarker]] = {}
        impossible = None
        for asked in request.markers:
            partitions = dict.fromkeys(_partitions(asked))
            if not partitions:
                continue
            row = self._codes.setdefault(asked.producer_id, {})
            marker = _marker(asked)
            for topic_partition in partitions:
                if broker.image.partition(*topic_partition) is None:
                    row[topic_partition] = UnknownTopicOrPartition.code
                elif asked.transaction_version < 0:
                    row[topic_partition] = UnknownServerError.code
                else:
                    row.setdefault(topic_partition, NONE)
                    found.setdefault(topic_partition, []).append(marker)
                    if asked.producer_id < 0 or asked.producer_epoch < 0:
                        impossible = asked
        if impossible is not None:
            raise UnknownServerError(
                f"no producer has the id {impossible.producer_id} and the epoch {impossible.producer_epoch}"
            )
        return found

    def _settle(self, topic_partition: TopicPartition, markers: list[TransactionMarker], outcomes: Outcomes) -> None:
        self._note(topic_partition, markers, outcomes)
        self._waiting -= 1
        if self.is_done and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _note(self, topic_partition: TopicPartition, markers: list[TransactionMarker], outcomes: Outcomes) -> None:
        for marker, outcome in zip(markers, outcomes, strict=True):
            self._codes[marker.producer_id][topic_partition] = NONE if outcome is None else outcome.code

    @property
    def is_done(self) -> bool:
        return not self._waiting

    async def wait(self) -> WriteTxnMarkersResponse:
        if not self.is_done:
            self._done = asyncio.get_running_loop().create_future()
            await self._done
        return self.response()

    def response(self) -> WriteTxnMarkersResponse:
        return _response(self._codes)


def _partitions(marker: WritableTxnMarker) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes)


def _marker(asked: WritableTxnMarker) -> TransactionMarker:
    return TransactionMarker(
        asked.producer_id,
        asked.producer_epoch,
        asked.coordinator_epoch,
        asked.transaction_result,
        max(0, min(asked.transaction_version, NEWEST_VERSION)),
    )


def _response(codes: Codes) -> WriteTxnMarkersResponse:
    markers = []
    for producer_id, rows in codes.items():
        topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
        for (topic, index), code in rows.items():
            topics.setdefault(topic, []).append(
                WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
            )
        markers.append(
            WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
            )
        )
    return WriteTxnMarkersResponse(markers=markers)
