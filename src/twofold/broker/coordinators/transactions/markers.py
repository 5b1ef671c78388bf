"""Markers: the end of a transaction, brought to every partition that it wrote to.

1. A decided transaction ends everywhere with that decision: a marker is tried again for ever, at the leader that the
   metadata names by then. Only a newer owner stops it (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED): the
   other partitions still get theirs, and this coordinator completes nothing.
2. A marker counts when it is as safe as acks=all asks for; at `__consumer_offsets`, when its offsets are visible too
   (KAFKA-17507).
3. What comes back for a transaction that was given up, purged or sent again is ignored: a transaction under way
   is known by its object, not by its id (KAFKA-16352).
4. A partition that is gone from the metadata needs no marker.
5. The common case, led here and safe at once, is done when `send` returns: no task, no future, no timer.
6. A marker that a power cut took (`broker.missing_markers`) goes the same way, and is synced before it counts: what
   proves it may be gone after the next transaction of its id. If the partition refuses it, it is given up.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from twofold.broker.coordinators.groups.service import GroupService
from twofold.broker.core import BrokerCore
from twofold.broker.metrics.durations import OF_TRANSACTIONS_S, Durations
from twofold.broker.partitions.append_fate import append_fate
from twofold.broker.partitions.purgatory import DelayedProduce
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.coordinator.transaction.records import NEVER_MS, TransactionMetadata
from twofold.coordinator.transaction.states import State
from twofold.log.api import TransactionMarker
from twofold.runtime.api import TimerHandle
from twofold.types import TopicPartition
from twofold.wire.errors import (
    NONE,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
    TransactionCoordinatorFenced,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnsupportedForMessageFormat,
    UnsupportedVersion,
    error_for,
)
from twofold.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

NEWEST_VERSION = 2  # of transactions, as far as markers differ
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 1.0
WRITES_PER_TURN = 500

Outcome: TypeAlias = KafkaError | None
Outcomes: TypeAlias = list[Outcome]
Remote: TypeAlias = Callable[[int, WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]

# An error that is in neither table is unexpected: the sender logs it and tries again all the same.
_RETRIED = (
    UnknownTopicOrPartition, NotLeaderOrFollower, NotEnoughReplicas, NotEnoughReplicasAfterAppend, RequestTimedOut,
    KafkaStorageError,
)  # fmt: skip
_FENCED = (InvalidProducerEpoch, TransactionCoordinatorFenced)
_NEVER_WRITTEN = (UnsupportedForMessageFormat, UnsupportedVersion)
_NO_SHARD = (CoordinatorNotAvailable, CoordinatorLoadInProgress, NotCoordinator)

log = logging.getLogger(__name__)


# --- writing, as the leader of a partition ---


def write_markers(
    core: BrokerCore,
    groups: GroupService,
    topic: str,
    index: int,
    markers: Sequence[TransactionMarker],
    on_later: Callable[[Outcomes], None],
    *,
    durable: bool = False,
) -> Outcomes | None:
    """Write markers to a partition that this broker leads, each with its own outcome.

    The outcomes at once, or None: then `on_later` gets them when the markers are safe, or when that takes longer than
    `request.timeout.ms`. With `durable` they are safe when they are synced.
    """
    try:
        if topic == CONSUMER_OFFSETS:
            return _complete_offsets(core, groups, index, markers, on_later, durable)
        partition = core.replicas.leader(topic, index)
        outcomes = partition.append_markers(markers, durable=durable)
    except KafkaError as error:
        return [error] * len(markers)
    except Exception as error:
        log.exception("writing %d markers to %s-%d failed", len(markers), topic, index)
        return [UnknownServerError(repr(error))] * len(markers)
    high_watermark = partition.log.high_watermark
    if len(outcomes) == 1 and type(first := outcomes[0]) is int and first < high_watermark:
        return [None]  # almost always
    last = -1
    for outcome in outcomes:
        if type(outcome) is int and outcome >= high_watermark:
            last = outcome
    refused: Outcomes = [None if type(outcome) is int else outcome for outcome in outcomes]  # type: ignore[misc]
    if last < 0:
        return refused

    def finish(produce: DelayedProduce) -> None:
        fate = append_fate(
            partition,
            passed=not produce.waiting,
            needs_in_sync=True,
            what="marker",
            time_limit="request.timeout.ms",
        )
        on_later([fate if outcome is None else outcome for outcome in refused])

    timeout_s = core.settings.int("request.timeout.ms") / 1000
    core.replicas.purgatory.park_produce([(partition, last)], timeout_s, finish)
    return None


def _complete_offsets(
    core: BrokerCore,
    groups: GroupService,
    index: int,
    markers: Sequence[TransactionMarker],
    on_later: Callable[[Outcomes], None],
    durable: bool,
) -> Outcomes | None:
    """The same for `__consumer_offsets`, where the group coordinator writes the marker and obeys it."""
    if core.image.partition(CONSUMER_OFFSETS, index) is None:
        raise UnknownTopicOrPartition(f"{CONSUMER_OFFSETS} has no partition {index}")
    outcomes: Outcomes = [None] * len(markers)
    waiting = 0

    def settle(place: int, future: "asyncio.Future[None]") -> None:
        nonlocal waiting
        waiting -= 1
        outcomes[place] = _outcome_of(future)
        if not waiting:
            on_later(outcomes)

    unsettled: list[tuple[int, asyncio.Future[None]]] = []
    for place, marker in enumerate(markers):
        try:
            future = groups.complete_transaction(index, marker, durable=durable)
        except KafkaError as error:
            outcomes[place] = _as_leader_error(error)
            continue
        if future.done():
            outcomes[place] = _outcome_of(future)
        else:
            unsettled.append((place, future))
    waiting = len(unsettled)
    for place, future in unsettled:
        future.add_done_callback(partial(settle, place))
    return None if waiting else outcomes


def _outcome_of(future: "asyncio.Future[None]") -> Outcome:
    if future.cancelled():
        return NotLeaderOrFollower("the group coordinator gave up")
    error = future.exception()
    if error is None or isinstance(error, KafkaError):
        return None if error is None else _as_leader_error(error)
    return UnknownServerError(repr(error))


def _as_leader_error(error: KafkaError) -> KafkaError:
    """The sender of markers knows leaders of partitions, not coordinators of groups. It tries these errors again."""
    return NotLeaderOrFollower(error.message) if isinstance(error, _NO_SHARD) else error


# --- sending, as the coordinator of a transaction ---


class _Ending:
    """A transaction whose markers are under way."""

    __slots__ = (
        "decided_ms", "durable", "has_failed", "is_live", "is_repair", "key", "marker", "on_done", "remaining", "shard",
        "transactional_id",
    )  # fmt: skip

    def __init__(
        self,
        shard: int,
        transactional_id: str,
        marker: TransactionMarker,
        partitions: frozenset[TopicPartition],
        on_done: Callable[[], None],
        durable: bool,
        *,
        is_repair: bool = False,
    ) -> None:
        self.shard = shard
        self.transactional_id = transactional_id
        self.is_repair = is_repair  # of a transaction that is complete
        self.key: Key = (transactional_id, *marker[:2]) if is_repair else transactional_id
        self.durable = durable
        self.marker = marker
        self.remaining = set(partitions)
        self.on_done = on_done
        self.is_live = True
        self.has_failed = False  # and was complained about
        self.decided_ms = 0  # on the wall clock: it may be from before a restart


Parcel: TypeAlias = tuple[_Ending, TopicPartition]
Key: TypeAlias = "str | tuple[str, int, int]"
"""An id has one transaction that is being ended, and may have earlier ones that are repaired."""


class MarkerSender:
    """Brings the markers of decided transactions to the leaders of their partitions."""

    def __init__(self, core: BrokerCore, groups: GroupService, remote: Remote | None = None) -> None:
        """`remote` asks another broker; where there is none, its partitions wait until this one leads them."""
        self._core = core
        self._groups = groups
        self._remote = remote
        self.committed = 0  # transactions that ended, for metrics
        self.aborted = 0
        self.committing = Durations(OF_TRANSACTIONS_S)  # from the decision to the last marker
        self.aborting = Durations(OF_TRANSACTIONS_S)
        self._endings: dict[Key, _Ending] = {}
        self._parked: deque[Parcel] = deque()  # to be looked up and tried again
        self._due = 0  # how many of them the round that is under way has still to try
        self._outboxes: dict[int, deque[Parcel]] = {}  # by leader; there while a delivery to it is due or under way
        self._deliveries: dict[int, asyncio.Task[None]] = {}
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0
        self._delay_s = FIRST_RETRY_S

    # --- for the coordinator ---

    def send(
        self,
        shard: int,
        coordinator_epoch: int,
        transactional_id: str,
        value: TransactionMetadata,
        on_done: Callable[[], None],
    ) -> None:
        """Write the markers of a transaction that is in a PREPARE state; `on_done` is called once, when all are safe.

        It may be called before this returns. Sending an id again replaces what was under way for it.
        """
        version = value.client_version
        marker = TransactionMarker(
            value.producer_id,
            value.producer_epoch,
            coordinator_epoch,
            value.state == State.PREPARE_COMMIT,
            version if version < NEWEST_VERSION else NEWEST_VERSION,
        )
        partitions = value.partitions
        # The end of a two-phase transaction must not be known here before it is on disk there.
        ending = _Ending(shard, transactional_id, marker, partitions, on_done, value.timeout_ms == NEVER_MS)
        ending.decided_ms = value.last_update_ms
        self._begin(ending, partitions)

    def send_missing(
        self,
        shard: int,
        transactional_id: str,
        marker: TransactionMarker,
        partitions: frozenset[TopicPartition],
        on_done: Callable[[], None],
    ) -> None:
        """Write the marker of a transaction that is complete to partitions that have lost it; `on_done` is called once,
        when each of them has it on disk or has refused it."""
        self._begin(_Ending(shard, transactional_id, marker, partitions, on_done, True, is_repair=True), partitions)

    def _begin(self, ending: _Ending, partitions: frozenset[TopicPartition]) -> None:
        older = self._endings.get(ending.key)
        if older is not None:
            older.is_live = False
        self._endings[ending.key] = ending
        if not partitions:
            self._finish(ending)
        # In order: that of a set of names is another in every process.
        for topic_partition in sorted(partitions) if len(partitions) > 1 else partitions:
            if not ending.is_live:
                break
            self._dispatch(ending, topic_partition)

    def remaining(self, transactional_id: str) -> frozenset[TopicPartition] | None:
        """The partitions that still lack a marker; None for an id that has none under way."""
        ending = self._endings.get(transactional_id)
        return None if ending is None else frozenset(ending.remaining)

    def purge(self, shard: int) -> None:
        """Another broker coordinates these transactions from now on, or they are loaded anew."""
        for ending in [ending for ending in self._endings.values() if ending.shard == shard]:
            self._drop(ending)

    def metadata_changed(self) -> None:
        """Called with every new image: what has no leader yet may have one now."""
        if self._parked:
            self._due, self._delay_s = len(self._parked), FIRST_RETRY_S
            self._arm(0.0)

    def stop(self) -> None:
        for ending in list(self._endings.values()):
            self._drop(ending)
        for delivery in self._deliveries.values():
            delivery.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- for metrics ---

    @property
    def ending_transactions(self) -> int:
        return len(self._endings)

    @property
    def unknown_destination_queue_size(self) -> int:
        """How many markers have no leader that could be asked, or are to be tried again."""
        return len(self._parked)

    # --- one marker ---

    def _dispatch(self, ending: _Ending, topic_partition: TopicPartition) -> None:
        topic, index = topic_partition
        core = self._core
        known = core.replicas.find(topic, index)
        if known is None or not known.is_leader:
            state = core.image.partition(topic, index)
            if state is None:
                log.info("%s is deleted, no marker for %s", topic_partition, ending.transactional_id)
                self._settle(ending, topic_partition, None)
                return
            if state.leader != core.node_id:
                self._forward(ending, topic_partition, state.leader)
                return

        def settle(outcomes: Outcomes) -> None:
            self._settle(ending, topic_partition, outcomes[0])

        outcomes = write_markers(core, self._groups, topic, index, (ending.marker,), settle, durable=ending.durable)
        if outcomes is not None:
            self._settle(ending, topic_partition, outcomes[0])

    def _settle(self, ending: _Ending, topic_partition: TopicPartition, outcome: Outcome) -> None:
        if not ending.is_live:
            return
        if outcome is None or isinstance(outcome, _NEVER_WRITTEN):
            ending.remaining.discard(topic_partition)
            if not ending.remaining:
                self._finish(ending)
        elif isinstance(outcome, _FENCED):
            # It stays in `remaining`, so that the transaction is never complete here.
            log.warning(
                "a marker of %s (producer %d, epoch %d) is given up: a newer coordinator or producer owns it: %s: %s",
                ending.transactional_id,
                ending.marker.producer_id,
                ending.marker.producer_epoch,
                topic_partition,
                outcome,
            )
            if ending.is_repair:
                self._settle(ending, topic_partition, None)
        else:
            self._complain(ending, topic_partition, outcome)
            self._park(ending, topic_partition)

    def _complain(self, ending: _Ending, topic_partition: TopicPartition, error: KafkaError) -> None:
        if not ending.has_failed:
            ending.has_failed = True
            level = logging.INFO if isinstance(error, _RETRIED) else logging.ERROR
            log.log(
                level, "the marker of %s for %s is tried again: %s", ending.transactional_id, topic_partition, error
            )

    def _finish(self, ending: _Ending) -> None:
        took_ms = self._core.runtime.clock.wall_ms() - ending.decided_ms
        if ending.is_repair:
            log.info(
                "%s: the lost markers of producer %d are written", ending.transactional_id, ending.marker.producer_id
            )
        elif ending.marker.commit:
            self.committed += 1
            self.committing.add(took_ms / 1000)
        else:
            self.aborted += 1
            self.aborting.add(took_ms / 1000)
        self._drop(ending)
        ending.on_done()

    def _drop(self, ending: _Ending) -> None:
        ending.is_live = False
        if self._endings.get(ending.key) is ending:
            del self._endings[ending.key]

    # --- again ---

    def _park(self, ending: _Ending, topic_partition: TopicPartition) -> None:
        self._parked.append((ending, topic_partition))
        self._arm(self._delay_s)

    def _arm(self, delay_s: float) -> None:
        if self._timer is not None:
            if self._timer_s <= delay_s:
                return
            self._timer.cancel()
        self._timer_s = delay_s
        self._timer = self._core.runtime.timers.call_later(delay_s, self._retry)

    def _retry(self) -> None:
        """Try what is parked, once each; the loop gets its turns in between."""
        self._timer = None
        parked = self._parked
        if not self._due:
            self._due, self._delay_s = len(parked), min(2 * self._delay_s, LAST_RETRY_S)
        for _ in range(min(self._due, WRITES_PER_TURN)):
            self._due -= 1
            ending, topic_partition = parked.popleft()
            if ending.is_live:
                self._dispatch(ending, topic_partition)
        if self._due:
            self._arm(0.0)
        elif parked:
            self._arm(self._delay_s)
        else:
            self._delay_s = FIRST_RETRY_S

    # --- to other brokers ---

    def _forward(self, ending: _Ending, topic_partition: TopicPartition, leader: int) -> None:
        """Put a marker into the next request to its leader; all of one turn of the loop share it."""
        registration = self._core.image.broker(leader)
        if self._remote is None or registration is None or registration.fenced:
            self._park(ending, topic_partition)
            return
        outbox = self._outboxes.get(leader)
        if outbox is None:
            outbox = self._outboxes[leader] = deque()
            delivery = self._deliver(self._remote, leader, outbox)
            self._deliveries[leader] = self._core.runtime.spawn(delivery, name=f"markers to broker {leader}")
        outbox.append((ending, topic_partition))

    async def _deliver(self, remote: Remote, leader: int, outbox: deque[Parcel]) -> None:
        """One request at a time, until nothing is left for this leader."""
        parcels: list[Parcel] = []
        try:
            while parcels := [parcel for parcel in outbox if parcel[0].is_live]:
                outbox.clear()
                answers = _answers(await remote(leader, marker_request(parcels)))
                for ending, topic_partition in parcels:
                    code = answers.get((ending.marker.producer_id, *topic_partition), UnknownServerError.code)
                    outcome = None if code == NONE else error_for(code)(f"broker {leader} says so")
                    self._settle(ending, topic_partition, outcome)
        except (OSError, TimeoutError, KafkaError) as error:
            log.info("broker %d did not answer for %d markers: %s", leader, len(parcels), error)
        finally:
            del self._outboxes[leader], self._deliveries[leader]
            for parcel in (*parcels, *outbox):
                if parcel[0].is_live and parcel[1] in parcel[0].remaining:
                    self._park(*parcel)


def marker_request(parcels: Sequence[Parcel]) -> WriteTxnMarkersRequest:
    """One request for the markers of any number of transactions."""
    topics: dict[_Ending, dict[str, list[int]]] = {}
    for ending, (topic, index) in parcels:
        topics.setdefault(ending, {}).setdefault(topic, []).append(index)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=ending.marker.producer_id,
                producer_epoch=ending.marker.producer_epoch,
                transaction_result=ending.marker.commit,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in partitions.items()
                ],
                coordinator_epoch=ending.marker.coordinator_epoch,
                transaction_version=ending.marker.transaction_version,
            )
            for ending, partitions in topics.items()
        ]
    )


def _answers(response: WriteTxnMarkersResponse) -> dict[tuple[int, str, int], int]:
    return {
        (marker.producer_id, topic.name, row.partition_index): row.error_code
        for marker in response.markers
        for topic in marker.topics
        for row in topic.partitions
    }
