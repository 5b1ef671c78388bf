"""The decisions of the transaction coordinator: who may do what with an id now, and what it is told if not.

1. A decision is a function of the entry, the request and the time. It changes nothing; what it returns is to be
   appended, and the reply is given once that is committed. A failed append therefore leaves no trace here, and a
   repeated attempt to fence does not use up epochs (KAFKA-9666).
2. The entry is what is committed. While something of the id is on its way (`pending`: an append, or markers), nothing
   else is decided about it; where the client may already hold the identity that is on its way, this is checked before
   the identity (KAFKA-18464, KAFKA-18660). An id that is pending and absent is being created or removed. Verification
   alone does not care (KAFKA-14904).
3. Clients are held to the exact epoch (KAFKA-9600). What was answered before is answered again, whether the reply was
   lost or the coordinator has moved since.
4. The protocol of EndTxn follows the version of the request; that of a fence follows the server's transaction.version.
5. No decision hands out epoch 32767.
6. An administrator ends what was shown, or nothing: a request that names the expected transaction is refused where
   another one is open, or none. Its success says that this request has ended it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from twofold.config.settings import Settings
from twofold.coordinator.transaction.records import NEVER_MS, NO_TOPIC_IDS, Transaction
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
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition
from twofold.wire.errors import (
    NONE,
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    TransactionalIdNotFound,
    UnsupportedVersion,
)

TV2 = 2


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    two_phase_commit_enable: bool = False

    @classmethod
    def from_settings(cls, settings: Settings) -> "TransactionConfig":
        return cls(
            max_timeout_ms=settings.int("transaction.max.timeout.ms"),
            id_expiration_ms=settings.int("transactional.id.expiration.ms"),
            two_phase_commit_enable=settings.bool("transaction.two.phase.commit.enable"),
        )


class Expected(NamedTuple):
    """The transaction that an administrator has seen under an id, as DescribeTransactions shows it. Under the first
    protocol many transactions share an epoch, so the time of the start belongs to it; NO_TIMESTAMP: none was open."""

    producer_id: int
    producer_epoch: int
    start_ms: int

    def is_met_by(self, entry: Transaction) -> bool:
        if (entry.producer_id, entry.producer_epoch) != (self.producer_id, self.producer_epoch):
            return False
        if self.start_ms == NO_TIMESTAMP:
            return entry.state is not State.ONGOING
        return entry.state is State.ONGOING and entry.start_ms == self.start_ms


class InitRequest(NamedTuple):
    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    enable_2pc: bool = False
    keep_prepared_txn: bool = False
    heartbeat_interval_ms: int = 0
    expected: Expected | None = None

    @property
    def names_producer(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID or self.producer_epoch != NO_PRODUCER_EPOCH


class Decision(NamedTuple):
    """`value` is to be appended (None: nothing); then the rest is the reply. `error` is told instead of success, and
    only after the append: somebody else's transaction is being ended, come back."""

    value: Transaction | None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_PRODUCER_EPOCH
    error: type[KafkaError] | None = None


NOTHING = Decision(None)


class Coordinator:
    def __init__(
        self,
        config: TransactionConfig,
        new_producer_id: Callable[[], int],
        topic_id: Callable[[str], UUID | None] = lambda topic: None,
    ) -> None:
        """`new_producer_id` raises CoordinatorLoadInProgress when it has none at hand (KAFKA-14417). `topic_id` tells
        which topic a name stands for now."""
        self.config = config
        self._new_producer_id = new_producer_id
        self._topic_id = topic_id

    # --- InitProducerId ---

    def check_init(self, request: InitRequest) -> None:
        """What is wrong with the request itself, before anyone looks for its id."""
        timeout_ms, enable_2pc, interval_ms = request.timeout_ms, request.enable_2pc, request.heartbeat_interval_ms
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            raise InvalidRequest(
                f"producer id {request.producer_id} and epoch {request.producer_epoch}: give both or neither"
            )
        _check_id(request.transactional_id)
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
        self, entry: Transaction | None, request: InitRequest, now_ms: int, *, pending: bool, server_version: int
    ) -> Decision:
        self.check_init(request)
        if request.keep_prepared_txn:
            _check_keep(request, server_version)
        if request.enable_2pc and server_version < TV2:
            raise _too_old(request.transactional_id, "uses two-phase commit", server_version)
        timeout_ms = NEVER_MS if request.enable_2pc else request.timeout_ms
        interval_ms = request.heartbeat_interval_ms
        if pending:
            raise _busy(request.transactional_id)
        if request.expected is not None:
            _check_expected(entry, request.transactional_id, request.expected)
        if entry is None:
            value = created(self._new_producer_id(), timeout_ms, interval_ms, now_ms)
            return Decision(value, value.producer_id, 0)
        if request.names_producer and not _may_init(entry, request):
            raise _fenced(request.transactional_id, entry, request.producer_id, request.producer_epoch)
        if entry.state in PREPARING:
            raise _busy(request.transactional_id)
        if entry.state is State.ONGOING:
            if request.keep_prepared_txn:
                return self._keep(entry, request, timeout_ms, now_ms)
            fenced = self.fence(entry, now_ms, server_version=server_version)
            if request.expected is None or fenced.value is None:
                return fenced
            # Told at once, and not to come back: who comes back could not tell its own work from another's.
            return Decision(fenced.value, *reply_pair(fenced.value))
        identity, previous_id, last_epoch = self._next_identity(entry, request)
        value = initialized(entry, identity, previous_id, last_epoch, timeout_ms, interval_ms, now_ms)
        return Decision(value, *identity)

    def _next_identity(self, entry: Transaction, request: InitRequest) -> tuple[tuple[int, int], int, int]:
        """Who the client of an id without an open transaction is next, and who and what it was before."""
        producer_id, epoch = entry.producer_id, entry.producer_epoch
        if request.names_producer:
            is_current = request.producer_epoch == epoch and request.producer_id == producer_id
            if not is_current:
                if request.producer_epoch != entry.last_producer_epoch or epoch == EPOCH_MAX:
                    raise _fenced(request.transactional_id, entry, request.producer_id, request.producer_epoch)
                # The reply was lost. It is given again, and written again so that it is durable; the previous id
                # stays, or the next retry after a change of ids would be fenced.
                return (producer_id, epoch), entry.previous_producer_id, entry.last_producer_epoch
            last_epoch = epoch
        else:
            last_epoch = NO_PRODUCER_EPOCH
        identity = (self._new_producer_id(), 0) if epoch >= EXHAUSTED else (producer_id, epoch + 1)
        return identity, producer_id, last_epoch

    def _keep(self, entry: Transaction, request: InitRequest, timeout_ms: int, now_ms: int) -> Decision:
        """KIP-939: the transaction goes on, and only who recovered it may end it."""
        value = kept(entry, self._new_producer_id, timeout_ms, request.heartbeat_interval_ms, now_ms)
        value = self._with_topic_ids(value, entry, entry.partitions)
        return Decision(value, *client_pair(value), entry.producer_id, entry.producer_epoch)

    def _with_topic_ids(
        self, value: Transaction, entry: Transaction, partitions: frozenset[TopicPartition]
    ) -> Transaction:
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
        entry: Transaction | None,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        client_version: int,
        now_ms: int,
        *,
        pending: bool,
        server_version: int,
    ) -> Decision:
        _check_id(transactional_id)
        if not partitions:
            raise InvalidRequest(f"{transactional_id!r} adds no partitions to its transaction")
        if entry is None:
            raise _busy(transactional_id) if pending else _unknown(transactional_id)
        if pending:
            raise _busy(transactional_id)
        if has_kept(entry):
            _check_kept_member(entry, transactional_id, producer_id, producer_epoch, partitions)
            return NOTHING
        if producer_id != entry.producer_id:
            raise _wrong_id(transactional_id, entry, producer_id)
        if producer_epoch != entry.producer_epoch:
            raise _fenced(transactional_id, entry, producer_id, producer_epoch)
        state = entry.state
        if state is State.ONGOING:
            if partitions <= entry.partitions:
                return NOTHING
        elif state in PREPARING:
            raise _busy(transactional_id)
        elif server_version < TV2 and is_two_phase(entry):
            raise _too_old(transactional_id, "begins a two-phase transaction", server_version)
        return Decision(self._with_topic_ids(added(entry, partitions, client_version, now_ms), entry, partitions))

    def verify(
        self, entry: Transaction | None, producer_id: int, producer_epoch: int, partitions: frozenset[TopicPartition]
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
        entry: Transaction | None,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        now_ms: int,
        *,
        version: int,
        pending: bool,
    ) -> Decision:
        _check_id(transactional_id)
        if entry is None:
            raise _busy(transactional_id) if pending else _unknown(transactional_id)
        if version < TV2:
            return self._end_v1(entry, transactional_id, producer_id, producer_epoch, commit, now_ms, pending)
        if pending:
            raise _busy(transactional_id)
        if has_kept(entry):
            self._check_kept_end(entry, transactional_id, producer_id, producer_epoch)
            return self._end_raised(entry, commit, now_ms)
        is_current = producer_id == entry.producer_id and producer_epoch == entry.producer_epoch
        if is_current and entry.state is State.ONGOING:
            if commit and producer_epoch == EPOCH_MAX:
                raise _fenced(transactional_id, entry, producer_id, producer_epoch)
            return self._end_raised(entry, commit, now_ms)
        return self._end_closed(entry, transactional_id, producer_id, producer_epoch, commit, now_ms)

    def _end_v1(
        self,
        entry: Transaction,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        now_ms: int,
        pending: bool,
    ) -> Decision:
        if has_kept(entry) and entry.state is State.ONGOING:
            raise _fenced(transactional_id, entry, producer_id, producer_epoch)
        if producer_id != entry.producer_id:
            raise _wrong_id(transactional_id, entry, producer_id)
        if producer_epoch != entry.producer_epoch:
            raise _fenced(transactional_id, entry, producer_id, producer_epoch)
        if pending:
            raise _busy(transactional_id)
        state = entry.state
        if state is State.ONGOING:
            return Decision(ended_with_epoch_kept(entry, commit, now_ms))
        if state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
            return NOTHING
        if state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT):
            raise _busy(transactional_id)
        raise _wrong_state(transactional_id, entry, commit)

    def _end_raised(self, entry: Transaction, commit: bool, now_ms: int) -> Decision:
        event = Event.COMMIT if commit else Event.ABORT
        value = ended_with_epoch_raised(entry, event, now_ms, self._new_producer_id)
        return Decision(value, *reply_pair(value))

    def _end_closed(
        self,
        entry: Transaction,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        now_ms: int,
    ) -> Decision:
        """EndTxn v5 where nothing is open, or under another identity than the current one."""
        state, epoch = entry.state, entry.producer_epoch
        is_rotated_retry = producer_id == entry.previous_producer_id and producer_epoch == EXHAUSTED and epoch == 0
        if producer_id != entry.producer_id and not is_rotated_retry:
            raise _wrong_id(transactional_id, entry, producer_id)
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
            raise _fenced(transactional_id, entry, producer_id, producer_epoch)
        if commit:
            raise _wrong_state(transactional_id, entry, commit)
        return self._end_raised(entry, commit, now_ms)

    def _end_again(self, entry: Transaction, transactional_id: str, commit: bool) -> Decision:
        """A retry: what was decided is told again, and nothing is written."""
        state = entry.state
        if state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
            return Decision(None, entry.producer_id, entry.producer_epoch)
        if state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT):
            raise _busy(transactional_id)
        if commit and state is State.COMPLETE_ABORT:
            # Only a coordinator that aborted on its own leads here; the client must learn that it was fenced
            # (KAFKA-20785).
            raise ProducerFenced(
                f"the transaction of {transactional_id!r} that is to be committed was aborted by the coordinator, and "
                f"its producer fenced with epoch {entry.producer_epoch}"
            )
        raise _wrong_state(transactional_id, entry, commit)

    def _check_kept_end(self, entry: Transaction, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Only the client that recovered a prepared transaction may end it."""
        if entry.state is State.ONGOING:
            if (producer_id, producer_epoch) == client_pair(entry):
                return
        elif (producer_id, producer_epoch) == (entry.previous_producer_id, entry.last_producer_epoch):
            raise _busy(transactional_id)
        if producer_id in (entry.producer_id, entry.next_producer_id, entry.previous_producer_id):
            raise _fenced(transactional_id, entry, producer_id, producer_epoch)
        raise _wrong_id(transactional_id, entry, producer_id)

    # --- what the coordinator does on its own ---

    def fence(self, entry: Transaction, now_ms: int, *, server_version: int) -> Decision:
        """Abort an open transaction under an epoch that its producer does not have."""
        if server_version < TV2:
            value = fenced_without_retry(entry, now_ms, self._new_producer_id)
        else:
            value = ended_with_epoch_raised(entry, Event.FENCE, now_ms, self._new_producer_id)
        return Decision(value, error=ConcurrentTransactions)

    def complete(self, entry: Transaction, now_ms: int) -> Transaction:
        """Every marker of a decided transaction is written."""
        return completed(entry, now_ms)

    def is_timed_out(self, entry: Transaction, age_ms: int) -> bool:
        """`age_ms`: how long the transaction has been open, without the time in which nobody could hear its client."""
        return entry.state is State.ONGOING and entry.timeout_ms != NEVER_MS and age_ms > entry.timeout_ms

    def is_expired(self, entry: Transaction, now_ms: int) -> bool:
        return entry.state in EXPIRABLE and entry.last_update_ms <= now_ms - self.config.id_expiration_ms


# --- checks ---


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty")


def _check_interval(request: InitRequest) -> None:
    interval_ms, who = request.heartbeat_interval_ms, repr(request.transactional_id)
    if interval_ms < 0:
        raise InvalidRequest(f"heartbeat interval {interval_ms} ms of {who} is negative")
    if request.enable_2pc:
        raise InvalidRequest(f"{who} wants heartbeats, and a two-phase transaction, which no silence may end")
    if interval_ms > request.timeout_ms:
        raise InvalidRequest(
            f"heartbeat interval {interval_ms} ms of {who} is longer than its timeout {request.timeout_ms} ms"
        )


def _check_keep(request: InitRequest, server_version: int) -> None:
    if request.names_producer:
        raise InvalidRequest(
            f"{request.transactional_id!r} keeps its prepared transaction, which gives it a new identity, and names "
            f"producer id {request.producer_id}"
        )
    if server_version < TV2:
        raise _too_old(request.transactional_id, "keeps its prepared transaction", server_version)


def _check_expected(entry: Transaction | None, transactional_id: str, expected: Expected) -> None:
    if entry is None:
        raise TransactionalIdNotFound(f"{transactional_id!r} is not known here any more")
    if not expected.is_met_by(entry):
        raise InvalidTxnState(
            f"{transactional_id!r} has producer id {entry.producer_id}, epoch {entry.producer_epoch}, state "
            f"{entry.state.wire_name}, start {entry.start_ms}, and was expected to have {expected.producer_id}, epoch "
            f"{expected.producer_epoch}, start {expected.start_ms}"
        )


def _may_init(entry: Transaction, request: InitRequest) -> bool:
    """Whether the identity that the request names is one that the client of this id may still hold."""
    if entry.state is State.ONGOING and (has_kept(entry) or is_two_phase(entry)):
        # Kafka lets any epoch of the producer id pass here and end what is open. An old incarnation must not end what
        # the new one has prepared.
        return (request.producer_id, request.producer_epoch) == client_pair(entry)
    return request.producer_id == entry.producer_id or (
        request.producer_id == entry.previous_producer_id and request.producer_epoch >= EXHAUSTED
    )


def _check_kept_member(
    entry: Transaction,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: frozenset[TopicPartition],
) -> None:
    """Nobody may widen a kept transaction; who repeats what the old incarnation did is told that it is done."""
    if entry.state in PREPARING:
        if producer_id not in (entry.producer_id, entry.next_producer_id):
            raise _wrong_id(transactional_id, entry, producer_id)
        raise _busy(transactional_id)
    if (producer_id, producer_epoch) == client_pair(entry):
        raise InvalidTxnState(f"{transactional_id!r} has recovered a prepared transaction and may only end it")
    if producer_id not in (entry.producer_id, entry.next_producer_id):
        raise _wrong_id(transactional_id, entry, producer_id)
    is_old = producer_id == entry.producer_id and producer_epoch == entry.producer_epoch
    if not is_old or not partitions <= entry.partitions:
        raise _fenced(transactional_id, entry, producer_id, producer_epoch)


# --- errors ---


def _busy(transactional_id: str) -> KafkaError:
    return ConcurrentTransactions(f"the last transition of {transactional_id!r} is not finished")


def _too_old(transactional_id: str, does: str, server_version: int) -> KafkaError:
    """Below TV2 the transactions of an id share a pair: a stored state would name them all."""
    return UnsupportedVersion(
        f"{transactional_id!r} {does}: that needs transaction.version {TV2}, the cluster has {server_version}"
    )


def _unknown(transactional_id: str) -> KafkaError:
    return InvalidProducerIdMapping(f"{transactional_id!r} has no producer id: it never had one, or it expired")


def _wrong_id(transactional_id: str, entry: Transaction, producer_id: int) -> KafkaError:
    return InvalidProducerIdMapping(
        f"{transactional_id!r} has producer id {client_pair(entry)[0]}, the request {producer_id}"
    )


def _fenced(transactional_id: str, entry: Transaction, producer_id: int, producer_epoch: int) -> KafkaError:
    holder, epoch = client_pair(entry)
    return ProducerFenced(
        f"{transactional_id!r} belongs to producer id {holder} with epoch {epoch}, the request has {producer_id} with "
        f"epoch {producer_epoch}"
    )


def _wrong_state(transactional_id: str, entry: Transaction, commit: bool) -> KafkaError:
    verb = "committed" if commit else "aborted"
    return InvalidTxnState(f"the transaction of {transactional_id!r} is {entry.state.wire_name}: it cannot be {verb}")
