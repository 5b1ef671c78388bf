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
8. A topic with start offsets (KIP-664) is an administrator's: it ends exactly the transactions that begin there. As
   many offsets as partitions, and an abort, else INVALID_REQUEST (42). No such transaction: INVALID_TXN_STATE (48),
   another epoch of its producer: 47. Coordinator epoch -1, an administrator's, passes and is written; the partition
   keeps the one that it has. Rows of these have the tag StartOffsetChecked, also with an error.
9. With the tag Repair such a topic has lost the marker of a decided transaction. The record of its coordinator must
   show the very outcome that is asked for, else 48. What is written is the coordinator's marker, and it is synced.
10. An abort of what a coordinator's record shows as committed is refused (48), with start offsets or without, where it
   is open. While a coordinator is loaded that is not known: COORDINATOR_LOAD_IN_PROGRESS (14).
11. Only administrators ask this over the network as long as one broker has all partitions: each request is logged, with
   its client.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

from twofold.broker.coordinators.transactions.markers import NEWEST_VERSION, Outcomes, write_markers
from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.transaction.proofs import Pair
from twofold.log.api import TransactionMarker
from twofold.types import ProducerEpoch, ProducerId, TopicPartition
from twofold.wire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    CoordinatorLoadInProgress,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTxnState,
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

KEY = 27

Codes: TypeAlias = dict[int, dict[TopicPartition, int]]  # by producer id

MOST_NAMED = 20  # partitions in a line of the audit

log = logging.getLogger(__name__)


class _ByHand(NamedTuple):
    """What an administrator wants ended."""

    marker: WritableTxnMarker
    topic_partition: TopicPartition
    start_offset: int | None
    """None where there is not one for each partition."""
    repair: bool


def handle(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    if not (
        cluster_allows(services.authorizer, context, Operation.CLUSTER_ACTION, quiet=True)
        or cluster_allows(services.authorizer, context, Operation.ALTER)
    ):
        raise ClusterAuthorizationFailed("neither ALTER nor CLUSTER_ACTION on the cluster")
    _audit(services, context, request)
    writes = _Writes(services, request)
    return writes.response() if writes.is_done else writes.wait()


def error_response(request: WriteTxnMarkersRequest, error: KafkaError, version: int) -> WriteTxnMarkersResponse:
    codes: Codes = {}
    for marker in request.markers:
        for topic_partition in _partitions(marker):
            codes.setdefault(marker.producer_id, {})[topic_partition] = error.code
    return _response(codes, {(wanted.marker.producer_id, wanted.topic_partition) for wanted in _by_hand(request)})


class _Writes:
    """One request while it is carried out."""

    def __init__(self, services: Services, request: WriteTxnMarkersRequest) -> None:
        self._codes: Codes = {}
        self._waiting = 0
        self._done: asyncio.Future[None] | None = None
        for topic_partition, markers in self._by_partition(services, request).items():
            self._write(services, topic_partition, markers)
        self._by_hand = {(wanted.marker.producer_id, wanted.topic_partition) for wanted in _by_hand(request)}
        for wanted in _by_hand(request):
            try:
                marker = _marker_by_hand(services, wanted)
            except KafkaError as error:
                self._codes.setdefault(wanted.marker.producer_id, {})[wanted.topic_partition] = error.code
                log.info("%s: not aborted by hand: %s", wanted.topic_partition, error)
            else:
                self._write(services, wanted.topic_partition, [marker], durable=wanted.repair)

    def _write(
        self,
        services: Services,
        topic_partition: TopicPartition,
        markers: list[TransactionMarker],
        *,
        durable: bool = False,
    ) -> None:
        settle = partial(self._settle, topic_partition, markers)
        outcomes = write_markers(services.core, services.groups, *topic_partition, markers, settle, durable=durable)
        if outcomes is None:
            self._waiting += 1
        else:
            self._note(topic_partition, markers, outcomes)

    def _by_partition(
        self, services: Services, request: WriteTxnMarkersRequest
    ) -> dict[TopicPartition, list[TransactionMarker]]:
        """What is to be written where; rows that are refused without the log are filled in."""
        found: dict[TopicPartition, list[TransactionMarker]] = {}
        impossible = None
        for asked in request.markers:
            partitions = dict.fromkeys(_partitions(asked, by_hand=False))
            if not partitions:
                continue
            row = self._codes.setdefault(asked.producer_id, {})
            marker = _marker(asked)
            for topic_partition in partitions:
                if services.image.partition(*topic_partition) is None:
                    row[topic_partition] = UnknownTopicOrPartition.code
                elif asked.transaction_version < 0:
                    row[topic_partition] = UnknownServerError.code
                elif (refused := _refused(services, topic_partition, asked)) is not None:
                    log.info("%s: not aborted: %s", topic_partition, refused)
                    row[topic_partition] = refused.code
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
            self._codes.setdefault(marker.producer_id, {})[topic_partition] = NONE if outcome is None else outcome.code

    @property
    def is_done(self) -> bool:
        return not self._waiting

    async def wait(self) -> WriteTxnMarkersResponse:
        if not self.is_done:
            self._done = asyncio.get_running_loop().create_future()
            await self._done
        return self.response()

    def response(self) -> WriteTxnMarkersResponse:
        return _response(self._codes, self._by_hand)


def _partitions(marker: WritableTxnMarker, *, by_hand: bool = True) -> Iterator[TopicPartition]:
    return (
        TopicPartition(topic.name, index)
        for topic in marker.topics
        if by_hand or (topic.txn_start_offsets is None and not topic.repair)
        for index in topic.partition_indexes
    )


def _by_hand(request: WriteTxnMarkersRequest) -> Iterator[_ByHand]:
    for marker in request.markers:
        for topic in marker.topics:
            offsets = topic.txn_start_offsets
            if offsets is None and topic.repair:
                offsets = ()
            if offsets is None:
                continue
            fits = len(offsets) == len(topic.partition_indexes)
            for place, index in enumerate(topic.partition_indexes):
                start_offset = offsets[place] if fits else None
                yield _ByHand(marker, TopicPartition(topic.name, index), start_offset, topic.repair)


def _marker_by_hand(services: Services, wanted: _ByHand) -> TransactionMarker:
    """The marker that ends a transaction where an administrator saw it begin; nothing happens in between."""
    asked, topic_partition, start_offset, repair = wanted
    if start_offset is None:
        raise InvalidRequest(f"TxnStartOffsets must have one offset for each partition of {topic_partition.topic}")
    if asked.transaction_result and not repair:
        raise InvalidRequest("an administrator may abort what begins at an offset, not commit it")
    if services.image.partition(*topic_partition) is None:
        raise UnknownTopicOrPartition(f"there is no {topic_partition}")
    rows = services.replicas.leader(*topic_partition).log.producers()
    found = next((row for row in rows if row.producer_id == asked.producer_id), None)
    if found is None or start_offset < 0 or found.current_txn_start_offset != start_offset:
        raise InvalidTxnState(
            f"producer {asked.producer_id} has no transaction in {topic_partition} that begins at {start_offset}"
        )
    if found.producer_epoch != asked.producer_epoch:
        raise InvalidProducerEpoch(
            f"producer {asked.producer_id} has epoch {found.producer_epoch} in {topic_partition}, "
            f"not {asked.producer_epoch}"
        )
    pair = Pair(ProducerId(asked.producer_id), ProducerEpoch(asked.producer_epoch))
    if repair:
        return _missing_marker(services, topic_partition, pair, asked.transaction_result)
    _check_not_committed(services, topic_partition, pair)
    # As of the first version, in which a marker has the epoch of what it ends.
    return TransactionMarker(*pair, asked.coordinator_epoch, False, 0, by_hand=True)


def _missing_marker(services: Services, topic_partition: TopicPartition, pair: Pair, commit: bool) -> TransactionMarker:
    """The marker of what was decided, if it was decided so; nothing happens between this and the write."""
    outcome = services.transactions.proven_outcome(pair)
    if outcome is None or outcome.commit != commit:
        said = "shows no outcome" if outcome is None else f"says {'commit' if outcome.commit else 'abort'}"
        raise InvalidTxnState(
            f"{topic_partition}: no repair of producer {pair.producer_id}, epoch {pair.producer_epoch} to "
            f"{'commit' if commit else 'abort'}: the coordinator's record {said}"
        )
    return outcome.marker(pair)


def _check_not_committed(services: Services, topic_partition: TopicPartition, pair: Pair) -> None:
    outcome = services.transactions.proven_outcome(pair)
    if outcome is not None and outcome.commit:
        raise InvalidTxnState(
            f"the transaction of {outcome.transactional_id!r} (producer {pair.producer_id}, epoch "
            f"{pair.producer_epoch}) was committed, {topic_partition} lacks its marker: `twofold txn repair` writes it"
        )


def _refused(services: Services, topic_partition: TopicPartition, asked: WritableTxnMarker) -> KafkaError | None:
    """Why a marker without a start offset must not be written: it would abort a part of what was committed."""
    if asked.transaction_result:
        return None
    try:
        partition_log = services.replicas.leader(*topic_partition).log
        pair = Pair(ProducerId(asked.producer_id), ProducerEpoch(asked.producer_epoch))
        if any((producer_id, epoch) == pair for _, producer_id, epoch, *_ in partition_log.open_transactions()):
            _check_not_committed(services, topic_partition, pair)
    except KafkaError as error:
        return error if isinstance(error, InvalidTxnState | CoordinatorLoadInProgress) else None
    return None


def _audit(services: Services, context: RequestContext, request: WriteTxnMarkersRequest) -> None:
    for marker in request.markers:
        found = [str(partition) for partition in _partitions(marker)]
        if found:
            more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
            services.transactions.audit.warning(
                "WriteTxnMarkers",
                "WriteTxnMarkers by %s (%s, client %s): %s%s producer %d, epoch %d, in %s%s",
                context.principal,
                context.client_host,
                context.client_id,
                "repair: " if any(topic.repair for topic in marker.topics) else "",
                "commit" if marker.transaction_result else "abort",
                marker.producer_id,
                marker.producer_epoch,
                ", ".join(found[:MOST_NAMED]),
                more,
            )


def _marker(asked: WritableTxnMarker) -> TransactionMarker:
    return TransactionMarker(
        ProducerId(asked.producer_id),
        ProducerEpoch(asked.producer_epoch),
        asked.coordinator_epoch,
        asked.transaction_result,
        max(0, min(asked.transaction_version, NEWEST_VERSION)),
    )


def _response(codes: Codes, by_hand: set[tuple[int, TopicPartition]]) -> WriteTxnMarkersResponse:
    markers = []
    for producer_id, rows in codes.items():
        topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
        for (topic, index), code in rows.items():
            checked = (producer_id, TopicPartition(topic, index)) in by_hand
            topics.setdefault(topic, []).append(
                WritableTxnMarkerPartitionResult(partition_index=index, error_code=code, start_offset_checked=checked)
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
