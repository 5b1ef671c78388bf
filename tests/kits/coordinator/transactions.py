"""A transactional id in a world without a broker: decisions, their records, and a failover after every record.

What a request is told is a number where it is an error, 0 or the identity where it is not, so that a story reads

    assert world.init() == (1000, 0)
    assert world.end(commit=True, epoch=7) == PRODUCER_FENCED
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from twofold.coordinator.transaction.coordinator import Coordinator, Decision, InitRequest, TransactionConfig
from twofold.coordinator.transaction.effects import Effect
from twofold.coordinator.transaction.records import (
    NEVER_MS,
    TransactionMetadata,
    TransactionRecord,
    decode,
    encode_key,
    encode_value,
)
from twofold.coordinator.transaction.state import TransactionMachine, TransactionsState
from twofold.coordinator.transaction.states import PREPARING, TRANSITIONS, State
from twofold.types import ProducerEpoch, ProducerId, ProducerPair, TopicPartition
from twofold.wire.errors import CoordinatorLoadInProgress, KafkaError

EMPTY, ONGOING = State.EMPTY, State.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = State.PREPARE_COMMIT, State.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = State.COMPLETE_COMMIT, State.COMPLETE_ABORT
STEPS = frozenset((source, target) for (source, _), target in TRANSITIONS.items())
RECORDED_STATES = (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)

OK = 0
COORDINATOR_LOAD_IN_PROGRESS = 14
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
PRODUCER_FENCED = 90
TRANSACTIONAL_ID_NOT_FOUND = 105
TRANSACTION_ABORTABLE = 120
INVALID_REGULAR_EXPRESSION = 128

TXN = "pay-7"
P = ProducerId(1000)  # the first producer id of a world
NOW = 1_700_000_000_000
TIMEOUT_MS = 60_000
DAY_MS = 86_400_000
MAX = 32766  # the last epoch that a client can have

Told = int | tuple[int, ...]


def identity(answer: Told) -> ProducerPair:
    """The producer id and the epoch that a request was answered with."""
    assert isinstance(answer, tuple), f"error {answer}"
    return ProducerId(answer[0]), ProducerEpoch(answer[1])


def partitions(*names: str) -> frozenset[TopicPartition]:
    """`partitions("t-0", "t-1")`"""
    return frozenset(TopicPartition(topic, int(index)) for topic, index in (name.rsplit("-", 1) for name in names))


T0 = partitions("t-0")


def a_transaction(
    state: State, epoch: int = 5, producer_id: int = P, *, of: Iterable[TopicPartition] = T0, **fields: Any
) -> TransactionMetadata:
    """An entry as it may stand in the log, reached or not."""
    has_partitions = state is ONGOING or state in PREPARING
    start_ms = -1 if state is EMPTY else NOW
    return TransactionMetadata(
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        timeout_ms=fields.pop("timeout_ms", TIMEOUT_MS),
        state=state,
        partitions=frozenset(of) if has_partitions else frozenset(),
        last_update_ms=fields.pop("last_update_ms", NOW),
        start_ms=fields.pop("start_ms", start_ms),
        previous_producer_id=fields.pop("previous_producer_id", producer_id),
        **fields,
    )


def ids_from(first: int) -> Callable[[], ProducerId]:
    return map(ProducerId, count(first)).__next__


def no_ids() -> ProducerId:
    raise CoordinatorLoadInProgress("no block of producer ids yet")


def told(decide: Callable[[], object]) -> int:
    """The code of the error that it raises; 0 for none."""
    try:
        decide()
    except KafkaError as error:
        return error.code
    return OK


def reloaded(record: TransactionRecord, version: int = 1) -> TransactionRecord:
    value = None if record.value is None else encode_value(record.value, version)
    found = decode(encode_key(record.transactional_id), value)
    assert found is not None
    return found


class World:
    """One transactional id. Every record is written, and the coordinator fails over to another that has only the log.

    `pending` while a decided transaction waits for its markers: `complete` says that they are written.
    """

    def __init__(
        self,
        tv: int = 2,
        *,
        config: TransactionConfig | None = None,
        start: TransactionMetadata | None = None,
        next_id: int = P,
        failover: bool = True,
    ) -> None:
        self.tv = tv  # of the server, and of the client unless a call says otherwise
        self.coordinator = Coordinator(config or TransactionConfig(two_phase_commit_enable=True), ids_from(next_id))
        self.now_ms = NOW
        self.log: list[TransactionRecord] = []
        self.effects: list[Effect] = []  # of all decisions
        self.failover = failover
        self.is_marking = True  # False: what a decided transaction looks like to the checks behind `pending`
        self.state = TransactionsState()
        if start is not None:
            self.write(start)

    # --- the log ---

    @property
    def entry(self) -> TransactionMetadata | None:
        return self.state.entries.get(TXN)

    @property
    def pending(self) -> bool:
        return self.is_marking and TXN in self.state.preparing

    @property
    def now(self) -> TransactionMetadata:
        assert self.entry is not None
        return self.entry

    @property
    def pair(self) -> tuple[int, int]:
        return self.now.producer_id, self.now.producer_epoch

    @property
    def written(self) -> list[State | None]:
        return [None if record.value is None else record.value.state for record in self.log]

    def write(self, value: TransactionMetadata | None) -> None:
        old = self.entry
        if value is not None and self.log:
            step = (None if old is None else old.state, value.state)
            assert step in STEPS, f"{old} -> {value}"
        record = TransactionRecord(TXN, value)
        self.log.append(record)
        # What the next coordinator would read, after what it would have read before.
        seen = reloaded(record, 1 if self.tv >= 1 else 0) if self.failover else record
        self.state = TransactionMachine(check=True).apply(self.state, seen, len(self.log) - 1)

    def reload(self) -> None:
        version = 1 if self.tv >= 1 else 0
        records = [reloaded(record, version) for record in self.log]
        self.state = TransactionMachine(check=True).apply_all(TransactionsState(), list(enumerate(records)))

    def _do(self, decide: Callable[[], Decision]) -> Told:
        try:
            decision = decide()
        except KafkaError as error:
            return error.code
        if decision.value is not None:
            self.write(decision.value)
        self.effects += decision.effects
        if decision.decide_again:
            return CONCURRENT_TRANSACTIONS
        if decision.producer_id == -1:
            return OK
        pair = (decision.producer_id, decision.producer_epoch)
        if decision.ongoing_producer_id == -1:
            return pair
        return (*pair, decision.ongoing_producer_id, decision.ongoing_producer_epoch)

    # --- requests ---

    def init(self, producer_id: int = -1, epoch: int = -1, timeout_ms: int = TIMEOUT_MS, **more: Any) -> Told:
        request = InitRequest(TXN, timeout_ms, ProducerId(producer_id), ProducerEpoch(epoch), **more)

        def decide() -> Decision:
            self.coordinator.check_init(request)
            return self.coordinator.init_producer_id(
                self.entry, request, self.now_ms, pending=self.pending, server_version=self.tv
            )

        return self._do(decide)

    def keep(self, **more: int) -> Told:
        return self.init(keep_prepared_txn=True, **{"enable_2pc": True, **more})

    def init_done(self, *pair: int) -> Told:
        """What a client does that is told to come back: it comes back when the markers are written."""
        found = self.init(*pair)
        while found == CONCURRENT_TRANSACTIONS:
            self.complete()
            found = self.init(*pair)
        return found

    def add(
        self,
        producer_id: int | None = None,
        epoch: int | None = None,
        of: frozenset[TopicPartition] = T0,
        client_version: int | None = None,
    ) -> Told:
        identity = self._identity(producer_id, epoch)
        version = (2 if self.tv >= 2 else 0) if client_version is None else client_version
        return self._do(
            lambda: self.coordinator.add_partitions(
                self.entry, TXN, *identity, of, version, self.now_ms, pending=self.pending, server_version=self.tv
            )
        )

    def verify(
        self, producer_id: int | None = None, epoch: int | None = None, of: frozenset[TopicPartition] = T0
    ) -> dict[TopicPartition, int]:
        return self.coordinator.verify(self.entry, *self._identity(producer_id, epoch), of)

    def end(
        self, commit: bool, producer_id: int | None = None, epoch: int | None = None, version: int | None = None
    ) -> Told:
        identity = self._identity(producer_id, epoch)
        chosen = (2 if self.tv >= 2 else 1) if version is None else version
        return self._do(
            lambda: self.coordinator.end(
                self.entry, TXN, *identity, commit, self.now_ms, version=chosen, pending=self.pending
            )
        )

    def commit(self, *pair: int) -> Told:
        return self.end(True, *pair)

    def abort(self, *pair: int) -> Told:
        return self.end(False, *pair)

    def _identity(self, producer_id: int | None, epoch: int | None) -> ProducerPair:
        """By default what the coordinator has: the client that does everything right."""
        entry = self.entry
        return (
            ProducerId(producer_id if producer_id is not None else entry.producer_id if entry else -1),
            ProducerEpoch(epoch if epoch is not None else entry.producer_epoch if entry else -1),
        )

    # --- what happens without a request ---

    def complete(self) -> None:
        if self.pending:
            self.write(self.coordinator.complete(self.now, self.now_ms))

    def sweep(self) -> bool:
        """The timeout sweep: whether it ended the transaction."""
        if self.pending or not self.coordinator.is_timed_out(self.now, self.now_ms - self.now.start_ms):
            return False
        self._do(lambda: self.coordinator.fence(self.now, self.now_ms, server_version=self.tv))
        return True

    def time_out(self) -> None:
        self.now_ms = max(self.now_ms, self.now.start_ms + self.now.timeout_ms) + 1
        assert self.sweep()

    def expire(self) -> bool:
        if self.pending or not self.coordinator.is_expired(self.now, self.now_ms):
            return False
        self.write(None)
        return True

    def transaction(self, commit: bool = True) -> Told:
        """A whole transaction by the client that does everything right."""
        assert self.add() == OK
        found = self.end(commit)
        self.complete()
        return found


def a_world_in(state: State, tv: int = 2, epoch: int = 5, **fields: Any) -> World:
    return World(tv, start=a_transaction(state, epoch, **fields), next_id=2000)


NEVER = NEVER_MS
