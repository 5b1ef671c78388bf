"""The transaction coordinator of this broker: its shards, what clients ask of them, and what time does to them.

1. Every decision is the pure coordinator's (`coordinator.transaction`); it is answered when its record is committed.
2. Instead of CONCURRENT_TRANSACTIONS, which a client only answers by asking again, a request waits for what is under
   way, at most `add.partitions.to.txn.retry.backoff.max.ms`; 0 turns the waiting off.
3. A heartbeat never waits: it would come too late (KIP-1309).
4. The broker's log names the client that takes over an id and so aborts its open transaction, and the client that ends
   a two-phase transaction. The line is written when the decision is committed.
5. What a principal has open is counted over all shards that are loaded: the sum is as long as there are partitions of
   the log, whatever is open in them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias, TypeGuard
from uuid import UUID

from twofold.broker.coordinators.groups.service import GroupService
from twofold.broker.coordinators.service import CoordinatorService
from twofold.broker.coordinators.transactions.effects import TransactionCounts
from twofold.broker.coordinators.transactions.markers import MarkerSender
from twofold.broker.coordinators.transactions.missing_markers import MarkerOutcome, MissingMarkers, proven_outcome
from twofold.broker.coordinators.transactions.producer_ids import ProducerIdBlocks
from twofold.broker.coordinators.transactions.shard import Decide, TransactionShard
from twofold.broker.coordinators.transactions.sweeps import TransactionSweeps
from twofold.broker.coordinators.transactions.wholeness import damage_of, loss_of
from twofold.broker.coordinators.waiting import is_done
from twofold.broker.core import BrokerCore
from twofold.broker.network.audit import AUDIT_LOG
from twofold.broker.network.context import ANONYMOUS, RequestContext
from twofold.broker.network.quiet import QuietLog
from twofold.config.internal_topics import TRANSACTION_STATE
from twofold.controller.delta import ImageDelta
from twofold.controller.features import TRANSACTION_VERSION
from twofold.controller.image import MetadataImage
from twofold.coordinator.transaction.coordinator import (
    TV2,
    Coordinator,
    Decision,
    InitRequest,
    TransactionConfig,
)
from twofold.coordinator.transaction.damage import UNDAMAGED
from twofold.coordinator.transaction.heartbeats import heartbeat
from twofold.coordinator.transaction.proofs import Pair
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.refusals import TooManyOpen, being_aborted, check_id
from twofold.coordinator.transaction.states import State
from twofold.coordinator.transaction.transitions import has_kept, is_two_phase
from twofold.types import NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition
from twofold.wire.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidTxnState,
    InvalidUpdateVersion,
    KafkaError,
    UnknownTopicOrPartition,
)

Codes: TypeAlias = Mapping[TopicPartition, int]

log = logging.getLogger(__name__)


class Admission(NamedTuple):
    """What the coordinator says to a leader: the error codes of partitions that are not admitted, and whether what is
    written to the others must be on disk before it is acknowledged."""

    codes: Codes
    two_phase: bool = False


class TransactionService(CoordinatorService[TransactionShard]):
    topic = TRANSACTION_STATE
    what = "transactional id"

    def __init__(
        self, core: BrokerCore, groups: GroupService, producer_ids: ProducerIdBlocks, missing_markers: MissingMarkers
    ) -> None:
        super().__init__(core)
        self.config = TransactionConfig.from_settings(core.settings)
        self.coordinator = Coordinator(self.config, producer_ids.take, self._topic_id, self._count_open)
        self.markers = MarkerSender(core, groups)
        self._missing_markers = missing_markers
        self.sweeps = TransactionSweeps(self, core)
        self.counts = TransactionCounts()
        self.audit = QuietLog(logging.getLogger(AUDIT_LOG), core.runtime.clock)  # which client ended whose transaction
        self._going_down = 0  # requests that lower transaction.version below 2
        self.being_deleted: Counter[str] = Counter()  # topics, by the requests that delete them

    @property
    def server_version(self) -> int:
        """The finalized transaction.version."""
        return self._core.image.features.get(TRANSACTION_VERSION, 0)

    @contextmanager
    def going_down_to(self, version: int) -> Iterator[None]:
        """Lower transaction.version in here: raises where a two-phase transaction is open, and none begins."""
        self._going_down += 1
        try:
            self._check_none_is_open(version)
            yield
        finally:
            self._going_down -= 1

    def _check_may_begin(self) -> None:
        if self._going_down:
            raise CoordinatorNotAvailable(f"no two-phase transaction begins while {TRANSACTION_VERSION} is lowered")

    def _check_none_is_open(self, version: int) -> None:
        found = [
            (transactional_id, entry)
            for shard in self.all_active()
            for transactional_id in shard.state.ongoing
            if is_two_phase(entry := shard.state.entries[transactional_id])
        ]
        if found:
            transactional_id, entry = min(found)
            what = "a two-phase transaction is" if len(found) == 1 else f"{len(found):,} two-phase transactions are"
            raise InvalidUpdateVersion(
                f"nothing was changed: {TRANSACTION_VERSION}={version}: {what} open, {transactional_id!r} has "
                f"{entry.producer_id}:{entry.producer_epoch}, and below {TV2} a prepared state would not tell "
                "transactions apart: complete them first; `twofold txn list --two-phase` shows them"
            )

    def _topic_id(self, name: str) -> UUID | None:
        topic = self._core.image.topic(name)
        return None if topic is None else topic.topic_id

    def _count_open(self, principal: str) -> int:
        return sum(shard.state.opened_by.get(principal, 0) for shard in self.led() if shard.is_active)

    def _value_version(self) -> int:
        return 1 if self.server_version >= 1 else 0

    # --- following the metadata ---

    def apply(self, delta: ImageDelta, image: MetadataImage) -> None:
        self.follow(delta)
        self.markers.metadata_changed()

    def stop(self) -> None:
        super().stop()
        self.markers.stop()

    def make_shard(self, index: int, epoch: int) -> TransactionShard:
        core = self._core
        return TransactionShard(
            index,
            epoch,
            lambda: core.replicas.leader(TRANSACTION_STATE, index),
            core.runtime,
            core.attention,
            core.replicas.purgatory,
            self.coordinator,
            self.markers,
            self.counts,
            self.audit,
            value_version=self._value_version,
            commit_timeout_ms=core.settings.int("request.timeout.ms"),
            repairs=self._missing_markers.repairs(self.markers),
        )

    async def load_shard(self, shard: TransactionShard) -> None:
        await shard.load(self._core.settings.int("transaction.state.log.load.buffer.size"))

    def all_active(self) -> list[TransactionShard]:
        """Every shard that can be asked; raises while one of them cannot be asked yet."""
        if self._stopping:
            raise CoordinatorNotAvailable("the broker is stopping")
        shards = [shard for shard in self.led() if not shard.is_corrupt]
        for shard in shards:
            shard.check_active()
        return shards

    def proven_outcome(self, pair: Pair) -> MarkerOutcome | None:
        """How the transaction with this pair was decided, where a record proves it; raises while one cannot be read."""
        return proven_outcome(self.all_active(), pair)

    # --- what clients ask ---

    async def init_producer_id(self, request: InitRequest, asker: RequestContext) -> Decision:
        before: list[TransactionMetadata | None] = []
        decision = await self._init_producer_id(request, asker, before)
        if asker.charge is not None and before[-1:] == [None]:
            asker.charge.new_transactional_id()
        value = decision.value
        if value is not None and decision.ongoing_producer_id != NO_PRODUCER_ID and is_two_phase(value):
            await self._sync(request.transactional_id, value)
        return decision

    async def _sync(self, transactional_id: str, value: TransactionMetadata) -> None:
        """A transaction became a two-phase one after it had begun: what it has written so far goes to disk as well, and
        what a late request of its old instance adds from now on."""
        replicas, image = self._core.replicas, self._core.image
        try:
            held = [replicas.leader(*name) for name in sorted(value.partitions) if image.partition(*name) is not None]
            for partition in held:
                partition.two_phase[value.producer_id] = True
            await asyncio.gather(*(partition.log.sync() for partition in held))
        except (OSError, KafkaError) as error:
            # The record is written. A client that asks again is answered when this has succeeded.
            raise CoordinatorNotAvailable(f"{transactional_id!r} is not on disk: {error}") from error

    def _init_producer_id(
        self, request: InitRequest, asker: RequestContext, before: list[TransactionMetadata | None]
    ) -> "Awaitable[Decision]":
        """`before` gets what was known of the id when it was decided on."""
        transactional_id = request.transactional_id
        self.coordinator.check_init(request)

        def decide(entry: TransactionMetadata | None, now_ms: int, pending: bool) -> Decision:
            before.append(entry)
            if request.enable_2pc:
                self._check_may_begin()
            damage = UNDAMAGED
            makes_two_phase = request.enable_2pc and request.keep_prepared_txn
            if makes_two_phase and not pending and _is_open(entry) and not is_two_phase(entry):
                damage = loss_of(self._core, self.being_deleted, transactional_id, entry)
            return self.coordinator.init_producer_id(
                entry, request, now_ms,
                pending=pending, server_version=self.server_version, damage=damage, asker=asker,
            )  # fmt: skip

        return self._decide(transactional_id, decide)

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: frozenset[TopicPartition],
        client_version: int,
        principal: str,
    ) -> "Awaitable[Decision]":
        check_id(transactional_id)
        opener = "" if principal == ANONYMOUS else principal
        if self._core.logs.reserve.is_short:
            raise CoordinatorNotAvailable("the disk is full: transactions can be ended and not extended")

        def decide(entry: TransactionMetadata | None, now_ms: int, pending: bool) -> Decision:
            try:
                decision = self.coordinator.add_partitions(
                    entry, transactional_id, producer_id, producer_epoch, partitions, client_version, now_ms,
                    pending=pending, server_version=self.server_version, principal=opener,
                )  # fmt: skip
            except TooManyOpen as error:
                self._refused(error)
                raise
            if decision.value is not None and is_two_phase(decision.value):
                self._check_may_begin()
            if decision.value is not None and self.being_deleted:
                self._check_not_deleted(partitions)
            if decision.value is not None and self._core.is_member:
                self._check_led_here(transactional_id, partitions)
            return decision

        return self._decide(transactional_id, decide)

    def _refused(self, error: TooManyOpen) -> None:
        self.counts.refused_begins += 1
        self._core.quiet.warning("open transactions", "%s", error.message)

    def _check_not_deleted(self, partitions: frozenset[TopicPartition]) -> None:
        for topic, index in sorted(partitions):
            if self.is_being_deleted(topic):
                raise UnknownTopicOrPartition(f"{topic}-{index}: the topic is being deleted")

    def _check_led_here(self, transactional_id: str, partitions: frozenset[TopicPartition]) -> None:
        """A decision is brought to partitions of this broker only: with another one's it would never be complete."""
        for topic, index in sorted(partitions):
            state = self._core.image.partition(topic, index)
            if state is None or state.leader == self._core.node_id:
                continue
            if state.leader < 0:
                raise CoordinatorNotAvailable(f"{topic}-{index} has no leader: it must not become another broker's")
            error = InvalidTxnState(
                f"{topic}-{index} is led by broker {state.leader}, and the coordinator of {transactional_id!r} is "
                f"broker {self._core.node_id}: transactions across brokers are not served by Twofold yet. Keep "
                f"{TRANSACTION_STATE} on brokers of Apache Kafka (kafka-reassign-partitions.sh)"
            )
            self._core.quiet.warning("transactions across brokers", "%s", error.message)
            raise error

    def is_being_deleted(self, topic: str) -> bool:
        return topic in self.being_deleted

    def end(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        commit: bool,
        client_version: int,
        asker: RequestContext,
    ) -> "Awaitable[Decision]":
        check_id(transactional_id)

        def decide(entry: TransactionMetadata | None, now_ms: int, pending: bool) -> Decision:
            damage = UNDAMAGED
            if commit and not pending and _is_open(entry):
                damage = damage_of(self._core, self.being_deleted, transactional_id, entry)
            return self.coordinator.end(
                entry, transactional_id, producer_id, producer_epoch, commit, now_ms,
                version=client_version, pending=pending, damage=damage, asker=asker,
            )  # fmt: skip

        return self._decide(transactional_id, decide)

    def heartbeat(self, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> None:
        """A sign of life; raises what its producer should know."""
        check_id(transactional_id)
        shard = self.shard(transactional_id)
        entry = shard.committed.entries.get(transactional_id)
        if heartbeat(entry, transactional_id, producer_id, producer_epoch, shard.causes.get(transactional_id)):
            shard.note_sign_of_life(transactional_id)

    def verify(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: frozenset[TopicPartition],
    ) -> Codes:
        """The error code of each partition: whether it belongs to the producer's transaction."""
        check_id(transactional_id)
        entry = self.shard(transactional_id).committed.entries.get(transactional_id)
        return self.coordinator.verify(entry, producer_id, producer_epoch, partitions)

    def admits(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        topic_partition: TopicPartition,
    ) -> bool | None:
        """Whether the transaction that a partition plainly belongs to is a two-phase one; None where more is to be
        said, which `admit` does."""
        if not transactional_id:
            return None
        try:
            entry = self.shard(transactional_id).committed.entries.get(transactional_id)
        except KafkaError:
            return None
        if (
            entry is None
            or entry.state is not State.ONGOING
            or entry.producer_id != producer_id
            or entry.producer_epoch != producer_epoch
            or topic_partition not in entry.partitions
            or has_kept(entry)
        ):
            return None
        return is_two_phase(entry)

    def begun(
        self, transactional_id: str, producer_id: ProducerId, topic_partition: TopicPartition
    ) -> tuple[ProducerEpoch, int] | None:
        """Epoch and start of the producer's open transaction, where a partition is part of it already."""
        try:
            entry = self.shard(transactional_id).committed.entries.get(transactional_id)
        except KafkaError:
            return None
        if (
            entry is None
            or entry.state is not State.ONGOING
            or entry.client_version < 2
            or entry.producer_id != producer_id
            or topic_partition not in entry.partitions
        ):
            return None
        return entry.producer_epoch, entry.start_ms

    def admit(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: frozenset[TopicPartition],
        principal: str,
        *,
        adds: bool,
    ) -> "Admission | Awaitable[Admission]":
        """Whether the producer may write to the partitions in its transaction; `adds` makes them part of it."""
        try:
            if not adds:
                codes = self.verify(transactional_id, producer_id, producer_epoch, partitions)
                return Admission(codes, self.is_two_phase(transactional_id))
            decided = self.add_partitions(transactional_id, producer_id, producer_epoch, partitions, 2, principal)
        except KafkaError as error:
            return Admission(dict.fromkeys(partitions, error.code))
        if is_done(decided):
            return Admission({}, self.is_two_phase(transactional_id))
        return self._admit_later(transactional_id, decided, partitions)

    async def _admit_later(
        self, transactional_id: str, decided: Awaitable[Decision], partitions: frozenset[TopicPartition]
    ) -> "Admission":
        try:
            await decided
        except KafkaError as error:
            return Admission(dict.fromkeys(partitions, error.code))
        return Admission({}, self.is_two_phase(transactional_id))

    def is_two_phase(self, transactional_id: str) -> bool:
        """Whether only an outside decision ends the transactions of an id; yes where it cannot be said, which costs
        time and no data."""
        try:
            entry = self.shard(transactional_id).state.entries.get(transactional_id)
        except KafkaError:
            return True
        return entry is not None and is_two_phase(entry)

    def may_be_prepared(self, partition: TopicPartition) -> bool:
        """Whether an undecided two-phase transaction has written to a partition; yes where it cannot be said."""
        for shard in self.led():
            if not shard.is_active:
                return True
            state = shard.state
            for transactional_id in (*state.ongoing, *state.preparing):
                entry = state.entries[transactional_id]
                if is_two_phase(entry) and partition in entry.partitions:
                    return True
        return False

    def _decide(self, transactional_id: str, decide: Decide) -> "Awaitable[Decision]":
        """A future that is done where the decision may be answered at once, which is the common case. A refusal is
        raised, here or when the answer is awaited."""
        decided: asyncio.Future[Decision] | None = None
        try:
            decided = self.shard(transactional_id).decide(transactional_id, decide)
            if decided.done() and not decided.result().decide_again:
                return decided
        except ConcurrentTransactions as error:
            if self._patience_s <= 0 or isinstance(error, TooManyOpen):
                raise
        return self._patiently(transactional_id, decide, decided)

    @property
    def _patience_s(self) -> float:
        settings = self._core.settings
        most_ms = settings.int("add.partitions.to.txn.retry.backoff.max.ms")
        return min(most_ms, settings.int("request.timeout.ms")) / 1000

    async def _patiently(
        self, transactional_id: str, decide: Decide, decided: "asyncio.Future[Decision] | None"
    ) -> Decision:
        """Decide again as soon as what is under way is over, until the patience ends."""
        clock = self._core.runtime.clock
        until = clock.monotonic() + self._patience_s
        while True:
            try:
                if decided is None:
                    await self.shard(transactional_id).settled(transactional_id, until - clock.monotonic())
                    decided = self.shard(transactional_id).decide(transactional_id, decide)
                decision = await decided
                if not decision.decide_again:
                    return decision
                raise being_aborted(transactional_id)
            except ConcurrentTransactions as error:
                if clock.monotonic() >= until or isinstance(error, TooManyOpen):
                    raise
                decided = None


def _is_open(entry: TransactionMetadata | None) -> "TypeGuard[TransactionMetadata]":
    return entry is not None and entry.state is State.ONGOING
