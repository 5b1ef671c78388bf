"""The decisions of the transaction coordinator: what a client may do with an id now, and which error it gets if not.

1. A decision is a function of the entry, the request and the time. It changes nothing: it returns the record to append,
   the reply, and its effects as data. The reply is given and the effects are run once the record is committed. A failed
   append therefore leaves no trace, and a repeated attempt to fence does not use up epochs (KAFKA-9666).
2. The entry is what is committed. While something of the id is on its way (`pending`: an append, or markers), nothing
   else is decided about it; where the client may already hold the identity that is on its way, this is checked before
   the identity (KAFKA-18464, KAFKA-18660). An id that is pending and absent is being created or removed. Verification
   alone does not care (KAFKA-14904).
3. Clients are held to the exact epoch (KAFKA-9600). What was answered before is answered again, whether the reply was
   lost or the coordinator has moved since.
4. The protocol of EndTxn follows the version of the request; that of a fence follows the server's transaction.version.
5. No decision hands out epoch 32767.
6. A principal has at most `max_open` open transactions here. The next one waits, by its client's asking again; no other
   transaction is ended for it. To add to an open transaction is always allowed.
7. An administrator ends what was shown, or nothing: a request that names the expected transaction is refused where
   another one is open, or none. Its success says that this request has ended it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from twofold.config.settings import Settings
from twofold.coordinator.transaction.damage import UNDAMAGED, Damage, check_whole
from twofold.coordinator.transaction.effects import (
    Asker,
    Audit,
    CountAbort,
    Effects,
    NoteSignOfLife,
    RememberCause,
    ReportAbort,
    is_of_another,
)
from twofold.coordinator.transaction.heartbeats import AbortCause
from twofold.coordinator.transaction.records import NEVER_MS, NO_TOPIC_IDS, TransactionMetadata
from twofold.coordinator.transaction.refusals import (
    busy,
    check_id,
    check_room,
    fenced,
    too_old,
    unknown,
    wrong_id,
    wrong_state,
)
from twofold.coordinator.transaction.states import EXPIRABLE, PREPARING, Event, State
from twofold.coordinator.transaction.transitions import (
    EPOCH_MAX,
    EXHAUSTED,
    added,
    client_pair,
    completed,
    created,
    ended_with_epoch_kept,
    ended_with_epoch_raised,
    fenced_without_retry,
    has_kept,
    initialized,
    is_two_phase,
    kept,
    reply_pair,
)
from twofold.types import (
    FIRST_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    TopicPartition,
)
from twofold.wire.errors import (
    NONE,
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    TransactionalIdNotFound,
)

TV2 = 2


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    two_phase_commit_enable: bool = False
    max_open: int = 0  # transactions of one principal; 0: any number

    @classmethod
    def from_settings(cls, settings: Settings) -> "TransactionConfig":
        return cls(
            max_timeout_ms=settings.int("transaction.max.timeout.ms"),
            id_expiration_ms=settings.int("transactional.id.expiration.ms"),
            two_phase_commit_enable=settings.bool("transaction.two.phase.commit.enable"),
            max_open=settings.int("quota.open.transactions.max"),
        )


class Expected(NamedTuple):
    """The transaction that an administrator has seen under an id, as DescribeTransactions shows it. Under the first
    protocol many transactions share an epoch, so the time of the start belongs to it; NO_TIMESTAMP: none was open."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    start_ms: int

    def is_met_by(self, entry: TransactionMetadata) -> bool:
        if (entry.producer_id, entry.producer_epoch) != (self.producer_id, self.producer_epoch):
            return False
        if self.start_ms == NO_TIMESTAMP:
            return entry.state is not State.ONGOING
        return entry.state is State.ONGOING and entry.start_ms == self.start_ms


class InitRequest(NamedTuple):
    transactional_id: str
    timeout_ms: int
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    enable_2pc: bool = False
    keep_prepared_txn: bool = False
    heartbeat_interval_ms: int = 0
    expected: Expected | None = None

    @property
    def names_producer(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID or self.producer_epoch != NO_PRODUCER_EPOCH


class Decision(NamedTuple):
    """`value` is to be appended (None: nothing). When it is committed, the effects are run and the pairs are the reply.
    A request that is refused has no decision: the error is raised."""

    value: TransactionMetadata | None
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    ongoing_producer_id: ProducerId = NO_PRODUCER_ID
    ongoing_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    effects: Effects = ()
    # The record ends the transaction that is in the way. The request is to be decided again when that is complete.
    decide_again: bool = False


NOTHING = Decision(None)


class Coordinator:
    def __init__(
        self,
        config: TransactionConfig,
        new_producer_id: Callable[[], ProducerId],
        topic_id: Callable[[str], UUID | None] = lambda topic: None,
        count_open: Callable[[str], int] = lambda principal: 0,
    ) -> None:
        """`new_producer_id` raises CoordinatorLoadInProgress when it has none at hand (KAFKA-14417). `topic_id` tells
        which topic a name stands for now, `count_open` how many transactions of a principal are open."""
        self.config = config
        self._new_producer_id = new_producer_id
        self._topic_id = topic_id
        self._count_open = count_open

    # --- InitProducerId ---

    def check_init(self, request: InitRequest) -> None:
        """Raise what is wrong with the request itself. Call it once, before the id is looked up."""
        timeout_ms, enable_2pc, interval_ms = request.timeout_ms, request.enable_2pc, request.heartbeat_interval_ms
        check_id(request.transactional_id)
        if interval_ms:
            _check_interval(request)
        if enable_2pc:
            if not self.config.two_phase_commit_enable:
                raise TransactionalIdAuthorizationFailed(
                    f"{request.transactional_id!r} may not use two-phase commit: transaction.two.phase.commit.enable"
                )
        elif not 0 < timeout_ms <= self.config.max_timeout_ms or timeout_ms == NEVER_MS:
            raise InvalidTransactionTimeout(
                f"transaction timeout {timeout_ms} ms of {request.transactional_id!r} is not within 1 and "
                f"{self.config.max_timeout_ms}: transaction.timeout.ms, transaction.max.timeout.ms"
            )

    def init_producer_id(
        self,
        entry: TransactionMetadata | None,
        request: InitRequest,
        now_ms: int,
        *,
        pending: bool,
        server_version: int,
        damage: Damage = UNDAMAGED,
        asker: Asker | None = None,
    ) -> Decision:
        """`damage`: what an open transaction has lost that is to become a two-phase one."""
        if request.keep_prepared_txn:
            _check_keep(request, server_version)
        if request.enable_2pc and server_version < TV2:
            raise too_old(request.transactional_id, "uses two-phase commit", server_version)
        timeout_ms = NEVER_MS if request.enable_2pc else request.timeout_ms
        interval_ms = request.heartbeat_interval_ms
        if pending:
            raise busy(request.transactional_id)
        if request.expected is not None:
            _check_expected(entry, request.transactional_id, request.expected)
        if entry is None:
            value = created(self._new_producer_id(), timeout_ms, interval_ms, now_ms)
            return Decision(value, value.producer_id, value.producer_epoch)
        if request.names_producer and not _may_init(entry, request):
            raise fenced(request.transactional_id, entry, request.producer_id, request.producer_epoch)
        if entry.state in PREPARING:
            raise busy(request.transactional_id)
        if entry.state is State.ONGOING:
            if request.keep_prepared_txn:
                check_whole(entry, request.transactional_id, damage)
                return self._keep(entry, request, timeout_ms, now_ms)
            return self._take_over(entry, request, now_ms, server_version, asker)
        identity, previous_id, last_epoch = self._next_identity(entry, request)
        value = initialized(entry, identity, previous_id, last_epoch, timeout_ms, interval_ms, now_ms)
        return Decision(value, *identity)

    def _next_identity(
        self, entry: TransactionMetadata, request: InitRequest
    ) -> tuple[ProducerPair, ProducerId, ProducerEpoch]:
        """The next identity of the client, where no transaction is open, and its producer id and epoch before."""
        producer_id, epoch = entry.producer_id, entry.producer_epoch
        if request.names_producer:
            is_current = request.producer_epoch == epoch and request.producer_id == producer_id
            if not is_current:
                if request.producer_epoch != entry.last_producer_epoch or epoch == EPOCH_MAX:
                    raise fenced(request.transactional_id, entry, request.producer_id, request.producer_epoch)
                # The reply was lost. It is given again, and written again so that it is durable; the previous id
                # stays, or the next retry after a change of ids would be fenced.
                return (producer_id, epoch), entry.previous_producer_id, entry.last_producer_epoch
            last_epoch = epoch
        else:
            last_epoch = NO_PRODUCER_EPOCH
        if epoch >= EXHAUSTED:
            return (self._new_producer_id(), FIRST_PRODUCER_EPOCH), producer_id, last_epoch
        return (producer_id, ProducerEpoch(epoch + 1)), producer_id, last_epoch

    def _take_over(
        self, entry: TransactionMetadata, request: InitRequest, now_ms: int, server_version: int, asker: Asker | None
    ) -> Decision:
        """Abort what is open under the id that the client initializes."""
        transactional_id = request.transactional_id
        abort = self.fence(entry, now_ms, server_version=server_version)
        effects: Effects = (CountAbort(AbortCause.FENCE), *_remembered(transactional_id, AbortCause.FENCE, entry))
        if asker is not None:
            effects = (Audit(asker, "InitProducerId", "abort", transactional_id, entry), *effects)
        if request.expected is None or abort.value is None:
            return abort._replace(effects=effects)
        # Answered when the abort is decided. An administrator that had to ask again could not tell whether it was this
        # request that has ended the transaction.
        return Decision(abort.value, *reply_pair(abort.value), effects=effects)

    def _keep(self, entry: TransactionMetadata, request: InitRequest, timeout_ms: int, now_ms: int) -> Decision:
        """KIP-939: the transaction goes on, and only the client that has recovered it may end it."""
        value = kept(entry, self._new_producer_id, timeout_ms, request.heartbeat_interval_ms, now_ms)
        value = self._with_topic_ids(value, entry, entry.partitions)
        return Decision(value, *client_pair(value), entry.producer_id, entry.producer_epoch)

    def _with_topic_ids(
        self, value: TransactionMetadata, entry: TransactionMetadata, partitions: frozenset[TopicPartition]
    ) -> TransactionMetadata:
        """What is prepared in a topic is prepared in that topic, not in a later one of its name."""
        if not is_two_phase(value):
            return value
        known = entry.topic_ids if entry.state is State.ONGOING else NO_TOPIC_IDS
        names = {topic for topic, _ in partitions} - {topic for topic, _ in known}
        found = ((topic, self._topic_id(topic)) for topic in names)
        return value._replace(topic_ids=known | {(topic, topic_id) for topic, topic_id in found if topic_id})

    # --- AddPartitionsToTxn, AddOffsetsToTxn ---

    def add_partitions(
        self,
        entry: TransactionMetadata | None,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: frozenset[TopicPartition],
        client_version: int,
        now_ms: int,
        *,
        pending: bool,
        server_version: int,
        principal: str = "",
    ) -> Decision:
        decision = self._add(
            entry, transactional_id, producer_id, producer_epoch, partitions, client_version, now_ms, pending,
            server_version, principal,
        )  # fmt: skip
        if entry is not None and entry.heartbeat_interval_ms:
            return decision._replace(effects=(NoteSignOfLife(transactional_id),))
        return decision

    def _add(
        self,
        entry: TransactionMetadata | None,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: frozenset[TopicPartition],
        client_version: int,
        now_ms: int,
        pending: bool,
        server_version: int,
        principal: str,
    ) -> Decision:
        if not partitions:
            raise InvalidRequest(f"{transactional_id!r} adds no partitions to its transaction")
        if entry is None:
            raise busy(transactional_id) if pending else unknown(transactional_id)
        if pending:
            raise busy(transactional_id)
        if has_kept(entry):
            _check_kept_member(entry, transactional_id, producer_id, producer_epoch, partitions)
            return NOTHING
        if producer_id != entry.producer_id:
            raise wrong_id(transactional_id, entry, producer_id)
        if producer_epoch != entry.producer_epoch:
            raise fenced(transactional_id, entry, producer_id, producer_epoch)
        state = entry.state
        if state is State.ONGOING:
            if partitions <= entry.partitions:
                return NOTHING
        elif state in PREPARING:
            raise busy(transactional_id)
        elif server_version < TV2 and is_two_phase(entry):
            raise too_old(transactional_id, "begins a two-phase transaction", server_version)
        if state is not State.ONGOING:
            check_room(transactional_id, principal, self.config.max_open, self._count_open)
        value = added(entry, partitions, client_version, now_ms, principal)
        return Decision(self._with_topic_ids(value, entry, partitions))

    def verify(
        self,
        entry: TransactionMetadata | None,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: frozenset[TopicPartition],
    ) -> dict[TopicPartition, int]:
        """The error code of each partition: whether it belongs to the open transaction of this producer."""
        if entry is None:
            return dict.fromkeys(partitions, InvalidProducerIdMapping.code)
        absent = TransactionAbortable.code
        if has_kept(entry) and entry.state is State.ONGOING:
            if (producer_id, producer_epoch) == client_pair(entry):
                return dict.fromkeys(partitions, InvalidTxnState.code)
            absent = ProducerFenced.code
        if producer_id != entry.producer_id:
            wrong = ProducerFenced if producer_id == client_pair(entry)[0] else InvalidProducerIdMapping
            return dict.fromkeys(partitions, wrong.code)
        if producer_epoch != entry.producer_epoch:
            return dict.fromkeys(partitions, ProducerFenced.code)
        if entry.state in PREPARING:
            return dict.fromkeys(partitions, ConcurrentTransactions.code)
        present = entry.partitions
        return {partition: NONE if partition in present else absent for partition in partitions}

    # --- EndTxn ---

    def end(
        self,
        entry: TransactionMetadata | None,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        commit: bool,
        now_ms: int,
        *,
        version: int,
        pending: bool,
        damage: Damage = UNDAMAGED,
        asker: Asker | None = None,
    ) -> Decision:
        """`damage`: what the transaction has lost, where it is open and is to be committed."""
        if entry is None:
            raise busy(transactional_id) if pending else unknown(transactional_id)
        decision = self._end(entry, transactional_id, producer_id, producer_epoch, commit, now_ms, version, pending)
        if decision.value is None:
            return decision
        if damage is not UNDAMAGED:
            check_whole(entry, transactional_id, damage)
        is_told = asker is not None and (is_two_phase(entry) or is_of_another(entry, asker))
        if not entry.heartbeat_interval_ms and not is_told:
            return decision
        effects: Effects = _remembered(transactional_id, AbortCause.CLIENT, entry)
        if is_told and asker is not None:
            outcome = "commit" if commit else "abort"
            effects = (Audit(asker, "EndTxn", outcome, transactional_id, entry), *effects)
        return decision._replace(effects=effects)

    def _end(
        self,
        entry: TransactionMetadata,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        commit: bool,
        now_ms: int,
        version: int,
        pending: bool,
    ) -> Decision:
        if version < TV2:
            return self._end_v1(entry, transactional_id, producer_id, producer_epoch, commit, now_ms, pending)
        if pending:
            raise busy(transactional_id)
        if has_kept(entry):
            self._check_kept_end(entry, transactional_id, producer_id, producer_epoch)
            return self._end_raised(entry, commit, now_ms)
        is_current = producer_id == entry.producer_id and producer_epoch == entry.producer_epoch
        if is_current and entry.state is State.ONGOING:
            if commit and producer_epoch == EPOCH_MAX:
                raise fenced(transactional_id, entry, producer_id, producer_epoch)
            return self._end_raised(entry, commit, now_ms)
        return self._end_closed(entry, transactional_id, producer_id, producer_epoch, commit, now_ms)

    def _end_v1(
        self,
        entry: TransactionMetadata,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        commit: bool,
        now_ms: int,
        pending: bool,
    ) -> Decision:
        if has_kept(entry) and entry.state is State.ONGOING:
            raise fenced(transactional_id, entry, producer_id, producer_epoch)
        if producer_id != entry.producer_id:
            raise wrong_id(transactional_id, entry, producer_id)
        if producer_epoch != entry.producer_epoch:
            raise fenced(transactional_id, entry, producer_id, producer_epoch)
        if pending:
            raise busy(transactional_id)
        state = entry.state
        if state is State.ONGOING:
            return Decision(ended_with_epoch_kept(entry, commit, now_ms))
        if state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
            return NOTHING
        if state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT):
            raise busy(transactional_id)
        raise wrong_state(transactional_id, entry, commit)

    def _end_raised(self, entry: TransactionMetadata, commit: bool, now_ms: int) -> Decision:
        event = Event.COMMIT if commit else Event.ABORT
        value = ended_with_epoch_raised(entry, event, now_ms, self._new_producer_id)
        return Decision(value, *reply_pair(value))

    def _end_closed(
        self,
        entry: TransactionMetadata,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        commit: bool,
        now_ms: int,
    ) -> Decision:
        """EndTxn v5 where nothing is open, or under another identity than the current one."""
        state, epoch = entry.state, entry.producer_epoch
        is_rotated_retry = producer_id == entry.previous_producer_id and producer_epoch == EXHAUSTED and epoch == 0
        if producer_id != entry.producer_id and not is_rotated_retry:
            raise wrong_id(transactional_id, entry, producer_id)
        is_ended = state is State.COMPLETE_COMMIT or state is State.COMPLETE_ABORT
        is_before = producer_id == entry.producer_id and producer_epoch + 1 == epoch
        # Where the transaction was one of TV1, the epoch before is not the one that ended it but that of a fenced
        # producer: the current one may be in use by another client.
        is_retry = entry.client_version >= TV2 and (
            (is_ended and (is_rotated_retry or is_before)) or (is_before and state in PREPARING)
        )
        is_current = producer_id == entry.producer_id and producer_epoch == epoch and state in EXPIRABLE
        if is_retry and epoch != EPOCH_MAX:
            return self._end_again(entry, transactional_id, commit)
        if not is_current:
            raise fenced(transactional_id, entry, producer_id, producer_epoch)
        if commit:
            raise wrong_state(transactional_id, entry, commit)
        return self._end_raised(entry, commit, now_ms)

    def _end_again(self, entry: TransactionMetadata, transactional_id: str, commit: bool) -> Decision:
        """A retry: the answer is given again, and nothing is written."""
        state = entry.state
        if state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
            return Decision(None, entry.producer_id, entry.producer_epoch)
        if state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT):
            raise busy(transactional_id)
        if commit and state is State.COMPLETE_ABORT:
            # Only a coordinator that aborted on its own leads here; the client must learn that it was fenced
            # (KAFKA-20785).
            raise ProducerFenced(
                f"the transaction of {transactional_id!r} that is to be committed was aborted by the coordinator, and "
                f"its producer fenced with epoch {entry.producer_epoch}"
            )
        raise wrong_state(transactional_id, entry, commit)

    def _check_kept_end(
        self, entry: TransactionMetadata, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> None:
        """Only the client that recovered a prepared transaction may end it."""
        if entry.state is State.ONGOING:
            if (producer_id, producer_epoch) == client_pair(entry):
                return
        elif (producer_id, producer_epoch) == (entry.previous_producer_id, entry.last_producer_epoch):
            raise busy(transactional_id)
        if producer_id in (entry.producer_id, entry.next_producer_id, entry.previous_producer_id):
            raise fenced(transactional_id, entry, producer_id, producer_epoch)
        raise wrong_id(transactional_id, entry, producer_id)

    # --- what the coordinator does on its own ---

    def fence(self, entry: TransactionMetadata, now_ms: int, *, server_version: int) -> Decision:
        """Abort an open transaction under an epoch that its producer does not have."""
        if server_version < TV2:
            value = fenced_without_retry(entry, now_ms, self._new_producer_id)
        else:
            value = ended_with_epoch_raised(entry, Event.FENCE, now_ms, self._new_producer_id)
        return Decision(value, decide_again=True)

    def abort(
        self, entry: TransactionMetadata, transactional_id: str, cause: AbortCause, now_ms: int, *, server_version: int
    ) -> Decision:
        """End what has taken too long, or whose client has gone silent."""
        report = ReportAbort(cause, transactional_id, entry)
        effects = (report, CountAbort(cause), *_remembered(transactional_id, cause, entry))
        return self.fence(entry, now_ms, server_version=server_version)._replace(effects=effects)

    def complete(self, entry: TransactionMetadata, now_ms: int) -> TransactionMetadata:
        """Every marker of a decided transaction is written."""
        return completed(entry, now_ms)

    def is_timed_out(self, entry: TransactionMetadata, age_ms: int) -> bool:
        """`age_ms`: how long the transaction has been open, without the time in which the broker could not listen."""
        return entry.state is State.ONGOING and entry.timeout_ms != NEVER_MS and age_ms > entry.timeout_ms

    def is_expired(self, entry: TransactionMetadata, now_ms: int) -> bool:
        return entry.state in EXPIRABLE and entry.last_update_ms <= now_ms - self.config.id_expiration_ms


# --- checks ---


def check_identity(producer_id: ProducerId, producer_epoch: ProducerEpoch) -> None:
    """What InitProducerId says of the identity that its client has had, with or without a transactional id."""
    if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest(f"producer id {producer_id} and epoch {producer_epoch}: give both or neither")


def _check_interval(request: InitRequest) -> None:
    interval_ms, client = request.heartbeat_interval_ms, repr(request.transactional_id)
    if interval_ms < 0:
        raise InvalidRequest(f"heartbeat interval {interval_ms} ms of {client} is negative")
    if request.enable_2pc:
        raise InvalidRequest(
            f"heartbeat interval {interval_ms} ms of {client}: heartbeats cannot be combined with enable2Pc: a "
            "two-phase transaction never times out"
        )
    if interval_ms > request.timeout_ms:
        raise InvalidRequest(
            f"heartbeat interval {interval_ms} ms of {client} is longer than its timeout {request.timeout_ms} ms"
        )


def _check_keep(request: InitRequest, server_version: int) -> None:
    if request.names_producer:
        raise InvalidRequest(
            f"{request.transactional_id!r} keeps its prepared transaction, which gives it a new identity, and names "
            f"producer id {request.producer_id}"
        )
    if server_version < TV2:
        raise too_old(request.transactional_id, "keeps its prepared transaction", server_version)


def _check_expected(entry: TransactionMetadata | None, transactional_id: str, expected: Expected) -> None:
    if entry is None:
        raise TransactionalIdNotFound(f"{transactional_id!r} is not known here any more")
    if not expected.is_met_by(entry):
        raise InvalidTxnState(
            f"{transactional_id!r} has producer id {entry.producer_id}, epoch {entry.producer_epoch}, state "
            f"{entry.state.wire_name}, start {entry.start_ms}, and was expected to have {expected.producer_id}, epoch "
            f"{expected.producer_epoch}, start {expected.start_ms}"
        )


def _may_init(entry: TransactionMetadata, request: InitRequest) -> bool:
    """Whether the identity that the request names is one that the client of this id may still hold."""
    if entry.state is State.ONGOING and (has_kept(entry) or is_two_phase(entry)):
        # Kafka lets any epoch of the producer id pass here and end what is open. An old incarnation must not end what
        # the new one has prepared.
        return (request.producer_id, request.producer_epoch) == client_pair(entry)
    return request.producer_id == entry.producer_id or (
        request.producer_id == entry.previous_producer_id and request.producer_epoch >= EXHAUSTED
    )


def _check_kept_member(
    entry: TransactionMetadata,
    transactional_id: str,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    partitions: frozenset[TopicPartition],
) -> None:
    """No client may widen a kept transaction. What the old incarnation did is confirmed when it is repeated."""
    if entry.state in PREPARING:
        if producer_id not in (entry.producer_id, entry.next_producer_id):
            raise wrong_id(transactional_id, entry, producer_id)
        raise busy(transactional_id)
    if (producer_id, producer_epoch) == client_pair(entry):
        raise InvalidTxnState(f"{transactional_id!r} has recovered a prepared transaction and may only end it")
    if producer_id not in (entry.producer_id, entry.next_producer_id):
        raise wrong_id(transactional_id, entry, producer_id)
    is_old = producer_id == entry.producer_id and producer_epoch == entry.producer_epoch
    if not is_old or not partitions <= entry.partitions:
        raise fenced(transactional_id, entry, producer_id, producer_epoch)


def _remembered(transactional_id: str, cause: AbortCause, entry: TransactionMetadata) -> Effects:
    return (RememberCause(transactional_id, cause),) if entry.heartbeat_interval_ms else ()
