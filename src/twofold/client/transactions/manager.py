"""A producer's transactions: what the application may call when, and what is said to the coordinator for it.

1. The state changes by the table in `transaction_states` only; a call that it does not have is refused, and nothing
   is sent.
2. One call at a time: a second one that comes while the first is under way is refused, too.
3. A call that runs out of time (`max_block_ms`) leaves the state as it is, and may be repeated: every request to the
   coordinator can be sent twice.
4. Once prepared, nothing but the application's decision is ever sent: no abort on an error, a time-out or `close`.
5. A transaction that the coordinator has aborted itself (timeout, heartbeats) is told apart from one that another
   producer fenced off: the first can be aborted here and the producer goes on. A partition's leader calls both
   INVALID_PRODUCER_EPOCH, so the coordinator is asked before the application is told what to do.
6. A caller that holds a stored state learns what became of it: `complete` says how the transaction ended, also when
   that was long before this producer began, and never says "committed" of what was aborted.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.admin.transaction_model import EndedTwoPhase
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import Coordinators
from twofold.client.config import ProducerConfig
from twofold.client.errors import (
    Fenced,
    IllegalTransactionCall,
    PreparedAborted,
    ProducerFailed,
    TransactionAborted,
    TransactionFailed,
)
from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.transactions import calls
from twofold.client.transactions.calls import TransactionCalls
from twofold.client.transactions.current import CurrentTransaction
from twofold.client.transactions.heartbeats import Heartbeats
from twofold.client.transactions.lost_partitions import lost_partitions
from twofold.client.transactions.prepared import PreparedTxnState, TransactionOutcome
from twofold.client.transactions.states import ADVICE, Call, Cause, ManagerEvent, ManagerState, after, allows
from twofold.connections.errors import GaveUp, UnsupportedByBroker
from twofold.connections.waiting import Deadline
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from twofold.client.producer.sender import Sender

log = logging.getLogger(__name__)

# Where a failed part loses the transaction; where one is lost or aborted already it changes nothing.
_OPEN = (ManagerState.IN_TRANSACTION, ManagerState.PREPARING, ManagerState.PREPARED, ManagerState.COMMITTING)
_FENCING = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)
Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class TransactionManager:
    """Of one producer, on its loop. `sender` is set right after both are made."""

    sender: "Sender"

    def __init__(self, runtime: Runtime, config: ProducerConfig, cluster: Cluster) -> None:
        self.state = ManagerState.UNINITIALIZED
        self.prepared = PreparedTxnState()
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)
        self._transactional_id = config.transactional_id or ""
        self._identity: ProducerIdentity | None = None
        self._aborted_as: ProducerIdentity | None = None  # what the coordinator made of us when it aborted by itself
        self._fate: EndedTwoPhase | None = None  # how others have ended what was prepared here
        self._error: KafkaError | None = None
        self._busy: Call | None = None
        self._resumed = False
        self._v2 = False
        self._calls = TransactionCalls(cluster, self._coordinators)
        self.open = CurrentTransaction(self._transactional_id, self._add_partitions_soon, self.on_failure)
        self._adding: asyncio.Task[None] | None = None
        self._heartbeats = Heartbeats(runtime, config.transaction_heartbeat_interval_ms / 1000, self._beat)

    @property
    def transactional_id(self) -> str:
        return self._transactional_id

    @property
    def identity(self) -> ProducerIdentity | None:
        return self._identity

    # What the application calls

    async def init(self, *, keep_prepared: bool) -> PreparedTxnState:
        with self._call(Call.INIT):
            deadline = self._deadline()
            try:
                started = await self._calls.init(
                    self._transactional_id, calls.Terms.of(self._config), deadline, keep=keep_prepared
                )
            except GaveUp:
                raise
            except KafkaError:
                self._on(ManagerEvent.REFUSED)
                raise
            self._v2 = started.v2
            self._heartbeats.enabled = started.heartbeats
            self._become(started.identity)
            self.prepared = started.ongoing
            if started.ongoing:
                self.open.begin(v2=self._v2)
                self.open.started = True
                self._on(ManagerEvent.KEPT)
                self._heartbeats.start()
            else:
                self._on(ManagerEvent.NONE_KEPT if keep_prepared else ManagerEvent.INITIALIZED)
            return self.prepared

    async def resume(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        if self._transactional_id not in ("", transactional_id):
            raise ValueError(
                f"a producer with transactional_id={self._transactional_id!r} cannot resume {transactional_id!r}: "
                "use one with that id, or one without an id"
            )
        if not transactional_id or producer_id < 0 or epoch < 0:
            raise ValueError(f"{transactional_id!r}, {producer_id}, {epoch} do not name a transaction")
        with self._call(Call.RESUME):
            self._transactional_id = transactional_id
            self._identity = ProducerIdentity(producer_id, epoch)
            self.prepared = PreparedTxnState.of(producer_id, epoch)
            self._resumed = True

    async def begin(self) -> None:
        with self._call(Call.BEGIN, move=False):
            await self._follow_version()
            self._on(Call.BEGIN)
            self.prepared = PreparedTxnState()
            self._error = self._aborted_as = None
            self.open.begin(v2=self._v2)
            self.sender.accept()
            self._heartbeats.start()

    def check_send(self) -> None:
        if self.state is not ManagerState.IN_TRANSACTION:
            self._check(Call.SEND)

    async def send_offsets(self, offsets: Offsets, group: ConsumerGroupMetadata) -> None:
        with self._call(Call.SEND_OFFSETS):
            if not offsets:
                return
            self.open.started = True
            deadline = self._deadline()
            try:
                identity = self._known_identity()
                if not self.open.knows_group(group.group_id):
                    await self._calls.add_offsets(self._transactional_id, identity, group.group_id, deadline)
                    self.open.add_group(group.group_id)
                await self._calls.commit_offsets(
                    self._transactional_id, identity, offsets, group, deadline, v2=self._v2
                )
            except KafkaError as error:
                self.on_failure(error)
                await self._ask_whether_fenced()
                raise self._failure(f"{len(offsets)} offsets of group {group.group_id!r} were not taken") from error

    async def prepare(self) -> PreparedTxnState:
        if not self._config.transaction_two_phase_commit_enable and self._transactional_id:
            raise IllegalTransactionCall(
                f"prepare_transaction() in state {self.state.value} of {self._transactional_id!r}: the producer does "
                "not take part in two-phase commit; set transaction_two_phase_commit_enable=True",
                Call.PREPARE,
                self.state,
            )
        with self._call(Call.PREPARE):
            await self.sender.flush()
            await self._check_no_failure("preparing")
            # A transaction without a record leaves no trace, and the next one will have the same producer id and epoch:
            # its own state must not be mistaken for this one's.
            identity = self._known_identity()
            self.prepared = PreparedTxnState.of(*identity) if self.open.started else PreparedTxnState()
            self._on(ManagerEvent.FLUSHED)
            return self.prepared

    async def commit(self) -> None:
        if self.state is ManagerState.ABORTABLE_ERROR and self._busy is None:
            with self._call(Call.ABORT, move=False):
                await self._ask_whether_fenced()
        with self._call(Call.COMMIT):
            await self._commit()

    async def abort(self) -> None:
        nothing_kept = self.state is ManagerState.NOTHING_KEPT
        with self._call(Call.ABORT):
            if nothing_kept:
                log.info("%s() of %r: no transaction was left open", Call.ABORT.value, self._transactional_id)
            else:
                await self._abort()

    async def complete(self, state: PreparedTxnState) -> TransactionOutcome:
        """Commit when `state` is the prepared transaction's, abort when it is another's. With none open, say what
        became of the one that `state` names."""
        if self.state is ManagerState.NOTHING_KEPT:
            with self._call(Call.COMPLETE):
                return await self._outcome(state)
        self._check(Call.COMPLETE)
        commit, is_empty = state == self.prepared, not self.prepared
        if self.state is (ManagerState.ABORTING if commit else ManagerState.COMMITTING):
            raise IllegalTransactionCall(
                f"complete_transaction({str(state)!r}) in state {self.state.value} of {self._transactional_id!r}: "
                f"the decision about {self.prepared} was made, and it was the other one",
                Call.COMPLETE,
                self.state,
            )
        await (self.commit() if commit else self.abort())
        if is_empty:
            return TransactionOutcome.NOTHING
        return TransactionOutcome.COMMITTED if commit else TransactionOutcome.ABORTED

    async def close(self) -> None:
        """Abort what is open and not prepared, so that readers need not wait for its timeout."""
        try:
            if self._busy is None and self.state in (
                ManagerState.IN_TRANSACTION,
                ManagerState.PREPARING,
                ManagerState.ABORTABLE_ERROR,
            ):
                timeout_ms = min(self._config.max_block_ms, self._config.request_timeout_ms)
                with self._call(Call.ABORT):
                    await self._abort(self._cluster.deadline(timeout_ms, "request_timeout_ms"))
        except KafkaError as error:
            log.warning("the open transaction of %r was not aborted: %s", self._transactional_id, error)
        finally:
            self._heartbeats.stop()
            if self._adding is not None:
                self._adding.cancel()
            self._coordinators.close()

    # How they are done

    async def _commit(self) -> None:
        if not self._resumed:
            await self.sender.flush()
            await self._check_no_failure("committing")
        identity = self._known_identity()
        if not self._resumed and not self.open.started:
            self._ended(identity)
            return
        try:
            after_it = await self._end(identity, commit=True)
        except GaveUp as late:
            raise self._unfinished(Call.COMMIT, late) from late
        except KafkaError as error:
            raise await self._on_commit_refused(identity, error) from error
        self._ended(after_it)

    async def _on_commit_refused(self, identity: ProducerIdentity, error: KafkaError) -> KafkaError:
        what = "the commit was refused"
        if self.prepared:
            explained = await self._explained(error, identity)
            aborted = self._aborted_by_others()
            if self._resumed:
                failure = self._give_up_resumed(what, explained)
            else:
                self._fail(ManagerEvent.FATAL, explained)
                failure = self._failure(what)
            return aborted or failure
        reason = error
        if self._v2 and isinstance(error, InvalidTxnState | ProducerFenced):
            # A producer with the right epoch may repeat an abort: whether the coordinator has aborted is what this
            # finds out. It can abort nothing else: an epoch that may not commit has no open transaction.
            try:
                self._aborted_as = await self._end(identity, commit=False)
                reason = _aborted_by_coordinator()
            except KafkaError:
                log.debug("%r is fenced", self._transactional_id)
        if isinstance(reason, TransactionAbortable):
            self._fail(ManagerEvent.ABORTABLE, await self._explained(reason, identity))
        else:
            self._fail(ManagerEvent.FATAL, await self._explained(error, identity))
        return self._failure(what)

    def _aborted_by_others(self) -> KafkaError | None:
        if self._fate is None or self._fate.is_committed:
            return None
        return PreparedAborted(self._transactional_id, self.prepared, self._fate.ending.cause)

    async def _ask_whether_fenced(self) -> None:
        """Ask after an error that may mean either: another producer has our id, or the coordinator has aborted.

        The question is the abort itself, because nothing else is left to do. Without an answer the error stays as it
        is, and the next call asks again.
        """
        if self.state is not ManagerState.ABORTABLE_ERROR or self._aborted_as or not isinstance(self._error, _FENCING):
            return
        identity = self._known_identity()
        await self._stop_sending()
        try:
            self._aborted_as = await self._end_abort(identity, None)
            self._error = await self._explained(_aborted_by_coordinator(), identity)
        except _FENCING as error:
            self._fail(ManagerEvent.FATAL, await self._explained(error, identity))
        except KafkaError as error:
            log.debug("whether %r is fenced: %s", self._transactional_id, error)

    async def _stop_sending(self) -> None:
        if self._adding is not None:
            # What is on its way stands before the end on the same connection.
            self._adding.cancel()
        await self.sender.quiet()

    async def _abort(self, deadline: Deadline | None = None) -> None:
        identity = self._known_identity()
        if not self._resumed:
            self.sender.refuse(TransactionAborted(f"the transaction of {self._transactional_id!r} was aborted"))
            await self._stop_sending()
            if not self.open.started:
                self._ended(identity)
                return
        try:
            after_it = self._aborted_as or await self._end_abort(identity, deadline)
            if not self._resumed and not self._v2 and self.open.lost_numbers:
                after_it = await self._calls.bump(self._transactional_id, self._config, after_it, self._deadline())
        except GaveUp as late:
            raise self._unfinished(Call.ABORT, late) from late
        except KafkaError as error:
            explained = await self._explained(error, identity)
            if self._resumed:
                raise self._give_up_resumed("the abort was refused", explained) from error
            self._fail(ManagerEvent.FATAL, explained)
            raise self._failure("the abort was refused") from error
        self._ended(after_it)

    async def _end_abort(self, identity: ProducerIdentity, deadline: Deadline | None) -> ProducerIdentity:
        try:
            return await self._end(identity, commit=False, deadline=deadline)
        except InvalidTxnState:
            # Before version 2 a coordinator that never heard of the transaction has nothing to end, and says so.
            if self._v2 or self._resumed or self.open.confirmed:
                raise
            return identity

    async def _end(
        self, identity: ProducerIdentity, *, commit: bool, deadline: Deadline | None = None
    ) -> ProducerIdentity:
        v2 = None if self._resumed else self._v2
        deadline = deadline or self._deadline()
        return await self._calls.end(self._transactional_id, identity, deadline, commit=commit, v2=v2)

    def _ended(self, identity: ProducerIdentity) -> None:
        self._heartbeats.stop()
        if self._resumed:
            self._forget_resumed()
            return
        self.prepared = PreparedTxnState()
        self._error = self._aborted_as = None
        self._become(identity)
        self._on(ManagerEvent.ENDED)

    def _give_up_resumed(self, doing: str, error: KafkaError) -> KafkaError:
        """A producer that resumes the transactions of others goes on with the next one."""
        self._error = error
        failure = self._failure(doing, "It cannot be ended under this identity any more")
        self._error = None
        self._forget_resumed()
        return failure

    def _forget_resumed(self) -> None:
        self._resumed = False
        self._fate = None
        self._identity = None
        self.prepared = PreparedTxnState()
        self._transactional_id = self._config.transactional_id or ""
        self._on(ManagerEvent.RESUMED_ENDED)

    async def _outcome(self, state: PreparedTxnState) -> TransactionOutcome:
        """What became of a transaction that is not open any more."""
        if not state:
            return TransactionOutcome.NOTHING
        try:
            last = (await self._calls.described(self._transactional_id, self._deadline())).last_two_phase
        except UnsupportedByBroker:
            last = None
        if last is None or last.state != state:
            log.info(
                "complete_transaction(%s) of %r: no transaction was left open, and the coordinator does not know what "
                "became of this one (the last two-phase transaction that it knows: %s)",
                state, self._transactional_id, last or "none",
            )  # fmt: skip
            return TransactionOutcome.UNKNOWN
        if not last.is_committed:
            raise PreparedAborted(self._transactional_id, state, last.ending.cause)
        return TransactionOutcome.COMMITTED

    async def _follow_version(self) -> None:
        """The cluster's transaction.version may have been raised or lowered since the last transaction."""
        v2 = self._calls.speaks_v2(self._transactional_id)
        if v2 is not None and v2 != self._v2:
            # A new epoch, so that no transaction has records of both kinds.
            identity = self._known_identity()
            try:
                bumped = await self._calls.bump(self._transactional_id, self._config, identity, self._deadline())
            except GaveUp:
                raise
            except KafkaError as error:
                self._fail(ManagerEvent.FATAL, await self._explained(error, identity))
                raise self._failure("beginning a transaction") from error
            self._become(bumped)
            self._v2 = v2

    def _become(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self.sender.adopt(identity)

    # What happens meanwhile

    def on_failure(self, error: KafkaError) -> None:
        """A part of the transaction was given up: nothing more of it is sent."""
        if self.state not in _OPEN:
            return
        # A partition's leader cannot tell whether the coordinator aborted or another producer came; the abort will.
        fatal = error.fatal and not isinstance(error, ProducerFenced)
        self._fail(ManagerEvent.FATAL if fatal else ManagerEvent.ABORTABLE, error)

    def _fail(self, event: ManagerEvent, error: KafkaError) -> None:
        log.warning("transaction of %r: %s", self._transactional_id, error)
        if self._error is None or event is ManagerEvent.FATAL:
            self._error = error
        self._on(event)
        if event is ManagerEvent.FATAL:
            self._heartbeats.stop()
        self.sender.refuse(error)

    def _add_partitions_soon(self) -> None:
        if self._adding is None or self._adding.done():
            self._adding = self._runtime.spawn(self._add_partitions(), name="add partitions to transaction")

    async def _add_partitions(self) -> None:
        try:
            while partitions := self.open.missing():
                self.open.started = True
                identity = self._known_identity()
                deadline = self._deadline()
                await self._calls.add_partitions(self._transactional_id, identity, partitions, deadline)
                self.open.add(partitions)
                self.sender.wake()
        except KafkaError as error:
            self.on_failure(error)

    async def _beat(self) -> bool:
        """Whether the coordinator heard of us, or need not."""
        if not self.open.started or self._identity is None or self.state is ManagerState.ABORTABLE_ERROR:
            return True
        identity = self._identity
        try:
            await self._calls.heartbeat(
                self._transactional_id, identity, self._config.transaction_heartbeat_interval_ms
            )
        except KafkaError as error:
            if error.retriable:
                log.debug("heartbeat of %r: %s", self._transactional_id, error)
                return False
            if isinstance(error, UnsupportedVersion):
                log.warning("no more heartbeats of %r: %s", self._transactional_id, error)
                self._heartbeats.enabled = False
            elif identity == self._identity:
                await self._on_heartbeat_refused(identity, error)
        return True

    async def _on_heartbeat_refused(self, identity: ProducerIdentity, error: KafkaError) -> None:
        if not isinstance(error, (TransactionAbortable, *_FENCING)):
            log.warning("heartbeat of %r (producer id %d, epoch %d): %s", self._transactional_id, *identity, error)
            return
        explained = await self._explained(error, identity)
        if identity == self._identity:
            self.on_failure(explained)

    # States and errors

    @contextmanager
    def _call(self, call: Call, *, move: bool = True) -> Iterator[None]:
        self._check(call)
        if self._busy is not None:
            raise IllegalTransactionCall(
                f"{call.value}() of {self._transactional_id!r}: {self._busy.value}() is under way", call, self.state
            )
        self._busy = call
        try:
            if move:
                self._on(call)
            yield
        finally:
            self._busy = None

    def _check(self, call: Call) -> None:
        if call is not Call.RESUME and not self._transactional_id:
            raise IllegalTransactionCall(
                f"{call.value}() in state {self.state.value}: the producer has no transactional_id", call, self.state
            )
        if allows(self.state, call):
            return
        if self.state in (ManagerState.ABORTABLE_ERROR, ManagerState.FATAL_ERROR):
            raise self._failure(f"{call.value}() in state {self.state.value}") from self._error
        advice = "it was called already" if call is Call.INIT else ADVICE[self.state]
        prepared = f" {self.prepared}" if self.prepared else ""
        raise IllegalTransactionCall(
            f"{call.value}() in state {self.state.value}{prepared} of {self._transactional_id!r}: {advice}",
            call,
            self.state,
        )

    def _on(self, cause: Cause) -> None:
        self.state = after(self.state, cause)

    async def _check_no_failure(self, doing: str) -> None:
        if self._error is not None:
            await self._ask_whether_fenced()
            raise self._failure(f"{doing} the transaction") from self._error

    def _known_identity(self) -> ProducerIdentity:
        assert self._identity is not None, f"no identity in state {self.state}"
        return self._identity

    def _deadline(self) -> Deadline:
        return self._cluster.deadline(self._config.max_block_ms, "max_block_ms")

    def _failure(self, doing: str, advice: str = "") -> KafkaError:
        """The error of a call that fails because of what happened to the transaction, or to the producer."""
        error = self._error
        assert error is not None
        producer = f"{doing}: transactional id {self._transactional_id!r}"
        if self._identity is not None:
            producer += f" (producer id {self._identity.producer_id}, epoch {self._identity.epoch})"
        if self.state is ManagerState.ABORTABLE_ERROR:
            return TransactionFailed(f"{producer}: {error}. Call abort_transaction(), then begin again")
        if not advice:
            advice = "Close this producer and start another"
            if self._fate is not None:
                advice += f"; transaction {self.prepared} was {'committed' if self._fate.is_committed else 'aborted'}"
            elif self.prepared:
                advice += f"; transaction {self.prepared} was prepared and is in doubt"
        kind = Fenced if isinstance(error, _FENCING) else ProducerFailed
        return kind(f"{producer}: {error}. {advice}")

    def _unfinished(self, call: Call, late: GaveUp) -> GaveUp:
        return GaveUp(
            f"{late}. Whether transactional id {self._transactional_id!r} has ended its transaction is not known: "
            f"call {call.value}() again",
            late.last,
        )

    async def _explained(self, error: KafkaError, identity: ProducerIdentity) -> KafkaError:
        """The same error with what the coordinator has instead of our epoch."""
        if not isinstance(error, _FENCING + calls.STATE_ERRORS) or isinstance(error, Fenced):
            return error
        found = await self._calls.describe(self._transactional_id)
        if found is None:
            return error
        if self.prepared and found.last_two_phase is not None and found.last_two_phase.state == self.prepared:
            self._fate = found.last_two_phase
        message = error.message or "the coordinator refused"
        if isinstance(error, TransactionAbortable) and found.state == "Ongoing":
            lost = await lost_partitions(self._cluster, found)
            if lost:
                gone = f"what the transaction wrote to {', '.join(map(str, lost))} is gone"
                return type(error)(f"{message}: {gone}, so it can only be aborted")
            return type(error)(f"{message}: an administrator has aborted a part of the open transaction")
        beside = found.beside(identity, self.prepared.identity)
        if isinstance(error, _FENCING) and not self.prepared and found.identity != identity:
            beside += "; another producer or an administrator took the id over, and what was open was aborted"
        return type(error)(f"{message}: {beside}")


def _aborted_by_coordinator() -> KafkaError:
    return TransactionAbortable("the coordinator has aborted the transaction")
