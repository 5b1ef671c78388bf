"""The driver's part: which driver may decide, what was decided, and what becomes of everything else.

1. Nothing is swept but what was open while this driver had the query: it fences all others and signs as the owner
   before it looks, and sees that it still is after it has looked. Later drivers open their transactions later.
2. A batch is decided once, by one record, after every transaction of it was found open under the identity that wrote
   it; what is decided is carried out before anything else, and never aborted.
3. A driver that has lost the query decides nothing, sweeps nothing and says so.
4. A decision whose outcome is not known is looked up before anything follows from it.
5. A batch is skipped only if it is the one that was decided: it has the same number and the same input.
6. A name that was decided under is never taken for a new one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from twofold.client import Admin, ConfigResource, ResourceType, TransactionDescription, TransactionState
from twofold.client.parts import NO_TIMEOUT_MS, Cluster, Coordinators, ProducerConfig, Terms, TransactionCalls
from twofold.connections.waiting import Deadline
from twofold.runtime.api import Runtime
from twofold.sink import names, recognition
from twofold.sink.adoption import former_journals
from twofold.sink.completion import REFUSED, Completion, CompletionOutcome
from twofold.sink.decided import UNKNOWN, DecidedEntry, Input, Purpose
from twofold.sink.errors import Revoked, Stale, Unsupported, VoteFailed, superseded, two_phase_is_gone
from twofold.sink.inspection import FoundJournal
from twofold.sink.journal import GroupOffsets, Journal
from twofold.sink.register import BatchDecision, Mode, Participant, Register
from twofold.sink.steps import Reached, unobserved
from twofold.sink.transactions import TransactionLookup
from twofold.sink.writer import Conditions
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 900_000
DEFAULT_HEARTBEAT_INTERVAL_MS = 3_000
PATIENCE_MS = 10_000
DRIVER_TIMEOUT_MS = 60_000
"""Of the journal's transactions and of those that are ended by a sweep; less where brokers allow less."""
SWEEP_ATTEMPTS = 5
DECIDING_ATTEMPTS = 5
TIMEOUT_SETTING = "transaction.max.timeout.ms"
LEAST_TIME_LEFT = 0.1
"""Of a transaction's timeout: with less than that a decision might come too late for it."""

NO_TWO_PHASE = (UnsupportedVersion, TransactionalIdAuthorizationFailed)
FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)

OffsetsOf = Callable[[str, int], GroupOffsets | None]


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """`exactly_once` is auto, 2pc or resume. `where` and `query_name` name the checkpoint and the query to people.
    `former` are the prefixes that the version before may have given the query; None where the user has chosen the
    prefix. `is_once` says that the prefix is forgotten after its write."""

    prefix: str
    exactly_once: str = "auto"
    decision_topic: str | None = None
    transaction_timeout_ms: int | None = None
    heartbeat_interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS
    where: str = ""
    former: tuple[str, ...] | None = None
    query_name: str = ""
    is_once: bool = False


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A batch whose tasks are about to start: the name that it is decided under, and what it reads if that is known."""

    name: str
    purpose: Purpose = Purpose.QUERY
    read: Input | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the tasks of a batch have to know."""

    owner: str
    round: int
    decided: tuple[tuple[str, int], ...]
    conditions: Conditions
    upcoming: Upcoming | None = None


@dataclass(frozen=True, slots=True)
class Votes:
    """A batch whose tasks are done. Those that wrote nothing are not among the participants."""

    owner: str
    query_id: str
    run_id: str
    batch_id: int
    conditions: Conditions
    participants: tuple[Participant, ...]
    purpose: Purpose = Purpose.QUERY
    read: Input | None = None

    @property
    def decision(self) -> BatchDecision:
        return BatchDecision(self.query_id, self.run_id, self.batch_id, self.conditions.mode, self.participants)


def no_offsets(query_id: str, batch_id: int) -> GroupOffsets | None:
    return None


class Driver:
    """Of one process and one prefix; everything runs on the client's loop."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: Cluster,
        config: ProducerConfig,
        settings: SinkSettings,
        offsets_of: OffsetsOf = no_offsets,
        reached: Reached = unobserved,
    ) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._config = config
        self._settings = settings
        self._offsets_of = offsets_of
        self._reached = reached
        self._coordinators = Coordinators(cluster)
        self._calls = TransactionCalls(cluster, self._coordinators)
        self._transactions = TransactionLookup(cluster, self._coordinators)
        self.journal = Journal(runtime, cluster, config, settings.prefix, settings.decision_topic, reached)
        self._held: tuple[str, Conditions] | None = None
        self._opened_by = ""
        self._timeout_ms = DRIVER_TIMEOUT_MS

    async def close(self) -> None:
        await self.journal.close()
        self._coordinators.close()

    # Before the tasks of a batch

    async def start(self, owner: str, upcoming: Upcoming | None = None) -> Plan:
        """Fence, complete, sweep; most of it only for the first batch of a process. Then look whether the batch was
        decided before."""
        self._reached("start")
        deadline = self._deadline()
        async with self._naming_the_winner(owner, deadline):
            conditions = await self._hold(owner, deadline)
            register = self.journal.register
            if upcoming is not None:
                register = register.recalling(await self._recognise(upcoming, deadline))
        decided = tuple((entry.name, entry.batch_id) for entry in register.decided)
        return Plan(owner, register.round, decided, conditions, upcoming)

    async def _hold(self, owner: str, deadline: Deadline) -> Conditions:
        """Take the query over, unless this driver has it already and nothing is to do."""
        if self._held is not None and self._held[0] == owner:
            register = await self.journal.glance(deadline)
            if register.owner != owner:
                self._held = None  # a driver that asks once more wants it back
                raise self._superseded(register)
            if register.pending is None and self.journal.is_read:
                return self._held[1]
        conditions = await self.take_over(owner, deadline)
        self._held = owner, conditions
        self._opened_by = owner
        return conditions

    async def _recognise(self, upcoming: Upcoming, deadline: Deadline) -> DecidedEntry | None:
        """What was decided under that name. Raise if the batch is neither new nor the one that was decided."""
        register = self.journal.register
        entry = await self._known(register, upcoming.name, upcoming.purpose, deadline)
        if entry is None and upcoming.purpose is not Purpose.ONCE:
            remembered = await self.journal.remembered(deadline)
            recognition.check_new(self._settings.prefix, upcoming.name, upcoming.purpose, register, remembered)
        if entry is None or upcoming.read is None or upcoming.read.batch_id > entry.batch_id:
            return entry
        recognition.check_same(entry, upcoming.read, self.journal.topic, self._settings.where)
        if recognition.lacks_digest(entry, upcoming.read):
            log.warning(
                "batch %d of query %s was decided by a version that kept no digest of its input: it is taken for the "
                "same once, and has the digest %s from now on",
                upcoming.read.batch_id, upcoming.name, upcoming.read.digest,
            )  # fmt: skip
            entry = entry.noted(upcoming.read)
            await self.journal.append(register.noting(entry, self._now_ms()))
        return entry

    async def _known(self, register: Register, name: str, purpose: Purpose, deadline: Deadline) -> DecidedEntry | None:
        """The register has the names of late; the whole journal is read for another one."""
        entry = register.entry(name)
        if entry is not None or purpose is Purpose.ONCE:
            return entry
        remembered = await self.journal.remembered(deadline)
        return remembered.get(name)

    async def open_journal(self, deadline: Deadline) -> Conditions:
        """Fence the driver before, and read what it has written."""
        await self._cluster.bootstrap(min(PATIENCE_MS, deadline.remaining_ms()))
        await self.journal.create()
        conditions = await self._agree(deadline)
        await self._open(conditions, deadline)
        self._reached("start: fenced")
        await self._keep_dropped_names(deadline)
        return conditions

    async def take_over(self, owner: str, deadline: Deadline, *, accept_loss: bool = False) -> Conditions:
        """The driver before is fenced; what it decided is done, everything else is aborted."""
        conditions = await self.open_journal(deadline)
        try:
            return await self._end_what_is_left(owner, conditions, deadline, accept_loss)
        except NO_TWO_PHASE as error:
            raise Unsupported(await self._why_readers_wait(deadline) or str(error)) from error

    async def _end_what_is_left(
        self, owner: str, conditions: Conditions, deadline: Deadline, accept_loss: bool
    ) -> Conditions:
        await self._settle(deadline, accept_loss=accept_loss)
        if self.journal.version is None:
            await self._adopt(owner, conditions, deadline)
        self._reached("start: settled")
        register = self.journal.register
        if register.owner != owner:
            # Before anything is swept: a driver that was fenced meanwhile cannot sign, and has nothing to sweep.
            await self.journal.append(self._signed(register, owner))
        await self.sweep(owner, deadline)
        await self._sweep_adopted(deadline)
        return conditions

    async def _adopt(self, owner: str, conditions: Conditions, deadline: Deadline) -> None:
        """Finish the journals that this query goes on from, say there where it goes on, and know what they knew."""
        settings = self._settings
        if settings.former is None:
            return
        found = await former_journals(
            self._cluster, settings.prefix, settings.decision_topic, settings.former, settings.where, deadline
        )
        register = self.journal.register
        for row in found:
            old = await self._hand_over(row, owner, conditions, deadline)
            register = register.adopting(row.prefix, old, self._now_ms())
            log.warning("what was written under the prefix %s goes on under %s", row.prefix, settings.prefix)
        if found:
            # One record: whatever ends this driver before it, the next one finds all of this to do again.
            await self.journal.append(self._signed(register, owner))

    def _signed(self, register: Register, owner: str) -> Register:
        return register.owned_by(owner, self._now_ms(), self._settings.where, self._settings.query_name)

    async def _hand_over(self, row: FoundJournal, owner: str, conditions: Conditions, deadline: Deadline) -> Register:
        assert row.register is not None
        if row.register.moved_to:
            return row.register
        settings = replace(self._settings, prefix=row.prefix, decision_topic=row.topic, former=None)
        old = Driver(self._runtime, self._cluster, self._config, settings, self._offsets_of, self._reached)
        try:
            await old._open(conditions, deadline)
            await old._settle(deadline)
            before = old.journal.register
            await old.journal.append(before.moved(owner, self._settings.prefix, self._settings.where, self._now_ms()))
            return before
        finally:
            await old.close()

    async def _keep_dropped_names(self, deadline: Deadline) -> None:
        """The version before dropped names from the register. Its old records have them until they are compacted; what
        this version writes first are records for those names."""
        if self.journal.version != 1:
            return
        register = self.journal.register
        remembered = await self.journal.remembered(deadline)
        dropped = remembered.unwritten(entry.name for entry in register.decided)
        if dropped:
            await self.journal.append(register.remembering(dropped, self._now_ms()))

    async def _agree(self, deadline: Deadline) -> Conditions:
        """Which of the ways to exactly once these brokers offer."""
        wanted = self._settings.exactly_once
        mode = Mode.RESUME
        if wanted != "resume":
            reason = await self._why_not_two_phase(deadline)
            if reason is None:
                mode = Mode.TWO_PHASE
            elif wanted == "2pc":
                raise Unsupported(f"exactlyOnce=2pc: {await self._why_readers_wait(deadline) or reason}")
            else:
                log.warning(
                    "exactlyOnce=auto takes the resume path, which loses a decided batch if brokers or driver are away "
                    "for longer than the transaction timeout: %s",
                    reason,
                )
        timeout_ms = self._settings.transaction_timeout_ms or await self._longest_timeout_ms()
        interval_ms = self._settings.heartbeat_interval_ms
        if mode is Mode.RESUME or not self._calls.has_heartbeats(self._driver_id):
            interval_ms = 0
        return Conditions(mode, timeout_ms, min(interval_ms, timeout_ms))

    async def _why_not_two_phase(self, deadline: Deadline) -> str | None:
        try:
            # What an earlier driver left half written is kept by this, and ended when the journal is opened.
            await self._calls.init(self._driver_id, Terms(NO_TIMEOUT_MS, two_phase=True), deadline, keep=True)
        except NO_TWO_PHASE as error:
            return str(error)
        return None

    async def _why_readers_wait(self, deadline: Deadline) -> str | None:
        """Where brokers have no two-phase commit any more: transactions that were prepared when they had it."""
        found = await self._transactions.describe(await self.open_ids(deadline), deadline)
        prepared = sorted(name for name, row in found.items() if row is not None and row.timeout_ms == NO_TIMEOUT_MS)
        return two_phase_is_gone(self._settings.prefix, prepared) if prepared else None

    async def _longest_timeout_ms(self) -> int:
        """What the broker allows at most: a decision has all that time to be carried out."""
        node_id = next(iter(self._cluster.cache.nodes), None)
        if node_id is None:
            return DEFAULT_TIMEOUT_MS
        resource = ConfigResource(ResourceType.BROKER, str(node_id))
        found = await Admin.on(self._cluster).describe_configs([resource])
        for entry in found.values.get(resource, ()):
            if entry.name == TIMEOUT_SETTING and entry.value is not None:
                return int(entry.value)
        return DEFAULT_TIMEOUT_MS

    async def _open(self, conditions: Conditions, deadline: Deadline) -> Register:
        self._timeout_ms = min(DRIVER_TIMEOUT_MS, conditions.timeout_ms)
        two_phase = conditions.mode is Mode.TWO_PHASE
        return await self.journal.open(deadline, two_phase=two_phase, timeout_ms=self._timeout_ms)

    # After them

    async def commit(self, votes: Votes) -> None:
        """The batch is visible when this returns. An error before the decision means that it was not decided."""
        self._reached("commit")
        deadline = self._deadline()
        async with self._naming_the_winner(votes.owner, deadline):
            await self._commit(votes, deadline)
        self._reached("commit: done")
        await self._sweep_quietly(votes.owner, deadline)
        if self._settings.is_once and votes.purpose is Purpose.ONCE:
            await self._forget_quietly()

    async def _commit(self, votes: Votes, deadline: Deadline) -> None:
        attempt = 0
        while True:
            attempt += 1
            register = await self._owned(votes.owner, votes.conditions, deadline)
            entry = await self._known(register, votes.query_id, votes.purpose, deadline)
            if entry is not None and entry.batch_id >= votes.batch_id:
                if votes.read is not None:
                    recognition.check_same(entry, votes.read, self.journal.topic, self._settings.where)
                await self._settle(deadline)
                if self.journal.register.recalling(entry).decided_batch(votes.query_id) < votes.batch_id:
                    raise Revoked(
                        f"batch {votes.batch_id} of query {votes.query_id} was decided and taken back, because its "
                        "transactions have timed out: it will be written again"
                    )
                break
            if register.pending is not None:
                await self._settle(deadline)
                continue
            if votes.participants:
                await self._check_votes(votes, deadline)
                self._reached("commit: checked")
            try:
                await self._decide(register.recalling(entry), votes)
            except KafkaError as error:
                # The planner of this query may have fenced the journal of this process. Open it again and look.
                if attempt == DECIDING_ATTEMPTS or deadline.expired:
                    raise
                log.warning("batch %d may be decided or not, the journal is read again: %s", votes.batch_id, error)
                continue
            if not votes.participants:
                break
            self._reached("commit: decided")
            await self._settle(deadline, just_decided=True)
            break

    async def abort(self, owner: str, conditions: Conditions | None, participants: list[Participant]) -> None:
        """Spark gave the batch up, perhaps after it was decided: what is decided is done, the rest is aborted.

        A task may still be at work, and prepare its transaction after this: it looks at the round when it has, and
        what it prepared before it looked is found by the sweep.
        """
        self._reached("abort")
        deadline = self._deadline()
        async with self._naming_the_winner(owner, deadline):
            try:
                await self._owned(owner, conditions, deadline)
            except Stale:
                await self._abort_own(participants, deadline)
                raise
            await self._settle(deadline)
            await self.journal.append(self.journal.register.given_up(self._now_ms()))
            await self.sweep(owner, deadline)

    async def _owned(self, owner: str, conditions: Conditions | None, deadline: Deadline) -> Register:
        """The journal, open and owned by this driver as far as a writer can tell."""
        register = await self.journal.glance(deadline)
        if register.owner != owner and not self.journal.is_read:
            register = await self.journal.read(deadline)  # it may be our own signature that cannot be read yet
        if register.owner == owner and not (self.journal.is_open and self._opened_by == owner):
            # Looked at before, so that a driver that has lost the query does not fence the one that has it. What was
            # opened for an earlier owner of this process was fenced when this one signed.
            register = await self._open(conditions or await self._agree(deadline), deadline)
            self._opened_by = owner
        if register.owner != owner:
            raise self._superseded(register)
        return register

    @asynccontextmanager
    async def _naming_the_winner(self, owner: str, deadline: Deadline) -> AsyncIterator[None]:
        """A driver that was fenced has lost the query: say to which driver, and not only that it was fenced."""
        try:
            yield
        except FENCED as error:
            found = await self.journal.glance(deadline)
            if found.owner == owner:
                raise  # by another process of its own
            raise self._superseded(found) from error

    async def named(self, plan: Plan, query_id: str, batch_id: int, error: KafkaError) -> KafkaError:
        """Why a task's transaction was ended: Stale where another driver did it, or the error itself."""
        try:
            await self.check_current(plan, query_id, batch_id)
        except Stale as stale:
            return stale
        except KafkaError as failed:
            log.info("whether the task was left behind is not known: %s", failed)
        return error

    def _superseded(self, register: Register) -> Stale:
        return superseded(register, self._settings.prefix, self._settings.where)

    async def _check_votes(self, votes: Votes, deadline: Deadline) -> None:
        found = await self._transactions.describe([p.transactional_id for p in votes.participants], deadline)
        now_ms = self._now_ms()
        for participant in votes.participants:
            problem = self._problem(votes.conditions, participant, found[participant.transactional_id], now_ms)
            if problem is not None:
                after = "it will be written again" if votes.purpose is Purpose.QUERY else "it can be written again"
                if self._settings.is_once:
                    after += (
                        f". Without transactionalIdPrefix a write has {votes.conditions.timeout_ms} ms from the first "
                        "row of a task to its end: with one, two-phase commit leaves it all the time that it takes"
                    )
                raise VoteFailed(
                    f"the transaction {participant.ongoing.producer_id}:{participant.ongoing.epoch} of "
                    f"{participant.transactional_id!r} (task {participant.partition}) {problem}: batch "
                    f"{votes.batch_id} is not decided, nothing of it is visible, and {after}"
                )

    def _problem(
        self, conditions: Conditions, participant: Participant, found: TransactionDescription | None, now_ms: int
    ) -> str | None:
        if found is None:
            return "is not known to its coordinator any more"
        if found.state is not TransactionState.ONGOING or found.identity != participant.ongoing:
            return f"is over: the coordinator has {found.in_words} now"
        if conditions.mode is Mode.TWO_PHASE:
            if found.timeout_ms != NO_TIMEOUT_MS:
                return f"has a timeout of {found.timeout_ms} ms, and was to have none"
            return None
        left_ms = found.start_ms + found.timeout_ms - now_ms
        if found.start_ms >= 0 and left_ms < found.timeout_ms * LEAST_TIME_LEFT:
            return f"has only {left_ms} of its {found.timeout_ms} ms left (transactionTimeoutMs)"
        return None

    async def _decide(self, register: Register, votes: Votes) -> None:
        """Write the decision. A batch without rows has nothing to decide: the journal keeps its input all the same, and
        the offsets of the group move."""
        now_ms = self._now_ms()
        if votes.participants:
            await self.journal.append(register.deciding(votes.decision, now_ms, votes.purpose, votes.read))
            return
        offsets = self._offsets_of(votes.query_id, votes.batch_id)
        if offsets is not None or votes.read is not None:
            finished = register.finished(votes.query_id, votes.batch_id, now_ms, votes.purpose, votes.read)
            await self.journal.append(finished, offsets)

    async def _settle(self, deadline: Deadline, *, just_decided: bool = False, accept_loss: bool = False) -> None:
        """Carry out the decision that is not done, if there is one, and say so."""
        pending = self.journal.register.pending
        if pending is None:
            return
        completion = Completion(
            self._runtime, self._calls, self._transactions, pending, deadline, self._reached, accept_loss=accept_loss
        )
        outcome = await (completion.run() if just_decided else completion.run_again())
        if outcome is CompletionOutcome.ABORTED:
            await self._append(self.journal.register.revoked(self._now_ms()), deadline)
            if just_decided:
                raise Revoked(
                    f"{pending} was taken back, because its transactions have timed out: it will be written again"
                )
            log.warning("%s was taken back, because its transactions have timed out", pending)
            return
        await self._append(self.journal.register.done(self._now_ms()), deadline, self._offsets_after(pending))

    def _offsets_after(self, decision: BatchDecision) -> GroupOffsets | None:
        """Those of the batch that was decided, and of no other with its number."""
        offsets = self._offsets_of(decision.query_id, decision.batch_id)
        entry = self.journal.register.entry(decision.query_id)
        known = UNKNOWN if entry is None else entry.digest(decision.batch_id) or UNKNOWN
        if offsets is None or UNKNOWN in (known, offsets.digest) or known == offsets.digest:
            return offsets
        log.warning("the offsets of %s are left out, because the checkpoint has other input for it", decision)
        return None

    async def _append(self, register: Register, deadline: Deadline, offsets: GroupOffsets | None = None) -> None:
        """If this driver has lost the query meanwhile, the error names the driver that has it."""
        before = self.journal.register.owner
        try:
            await self.journal.append(register, offsets)
        except KafkaError as error:
            found = await self.journal.glance(deadline)
            if found.owner != before:
                raise self._superseded(found) from error
            raise

    # What no decision covers

    async def open_ids(self, deadline: Deadline) -> list[str]:
        """Ids of this prefix's tasks that have an open transaction."""
        return await self._transactions.task_ids(self._settings.prefix, [TransactionState.ONGOING], deadline)

    async def sweep(self, owner: str, deadline: Deadline) -> int:
        """Abort what is open and not decided; how much that was."""
        pending = self.journal.register.pending
        spared = {participant.transactional_id for participant in pending.participants} if pending else set()
        left = [name for name in await self.open_ids(deadline) if name not in spared]
        if not left:
            return 0
        found = await self._transactions.describe(left, deadline)
        register = await self.journal.read(deadline)
        if register.owner != owner:
            raise self._superseded(register)
        still = {name: row for name, row in found.items() if row is not None and row.state is TransactionState.ONGOING}
        await asyncio.gather(*(self._abort_left(name, row, deadline) for name, row in still.items()))
        return len(left)

    async def _sweep_adopted(self, deadline: Deadline) -> None:
        """A task of a driver that was handed over may have prepared late. As in `sweep`: what was listed before the
        journal is found to be ours still was not opened by a query that has come back to it."""
        for prefix in self.journal.register.adopted:
            left = await self._transactions.task_ids(prefix, [TransactionState.ONGOING], deadline)
            if not left:
                continue
            found = await self._transactions.describe(left, deadline)
            journal = Journal(self._runtime, self._cluster, self._config, prefix, self._settings.decision_topic)
            if (await journal.read(deadline)).moved_to == self._settings.prefix:
                rows = {name: row for name, row in found.items() if row is not None and row.is_ongoing}
                await asyncio.gather(*(self._abort_left(name, row, deadline) for name, row in rows.items()))

    async def _forget_quietly(self) -> None:
        try:
            await self.journal.forget()
        except KafkaError as error:
            log.info("the prefix %r is forgotten by its next write: %s", self._settings.prefix, error)

    async def _sweep_quietly(self, owner: str, deadline: Deadline) -> None:
        """The batch is committed: what a sweep cannot do now, the next one does."""
        try:
            await self.sweep(owner, deadline)
        except KafkaError as error:
            log.warning("transactions that no decision covers may be open until the next batch: %s", error)

    async def _abort_left(self, name: str, found: TransactionDescription, deadline: Deadline) -> None:
        """That transaction and no other: the id may be in use again by the time at which a request arrives that was
        given up here. An InitProducerId that keeps nothing would end whatever it finds then."""
        for _ in range(SWEEP_ATTEMPTS):
            try:
                identity = found.identity
                if found.timeout_ms == NO_TIMEOUT_MS:
                    terms = Terms(NO_TIMEOUT_MS, two_phase=True)
                    started = await self._calls.init(name, terms, deadline, keep=True)
                    if started.ongoing.identity != found.identity:
                        return
                    identity = started.identity
                await self._calls.end(name, identity, deadline, commit=False, v2=None)
            except REFUSED as error:
                log.info("the abort of %r was refused: %s", name, error)
            else:
                log.info("the transaction that %r left open is aborted", name)
                return
            # It ended meanwhile, or a task that was left behind has just prepared it.
            row = (await self._transactions.describe([name], deadline))[name]
            if row is None or row.state is not TransactionState.ONGOING or row.identity != found.identity:
                return
            found = row

    async def _abort_own(self, participants: list[Participant], deadline: Deadline) -> None:
        for participant in participants:
            try:
                await self._calls.end(
                    participant.transactional_id, participant.client, deadline, commit=False, v2=participant.v2
                )
            except KafkaError as error:
                log.info("this driver did not abort the transaction of %r: %s", participant.transactional_id, error)

    # For tasks

    async def check_current(self, plan: Plan, query_id: str, batch_id: int, *, prepared: bool = False) -> None:
        """Raise for a task that was left behind. It harms nothing, but what it prepared would hold back readers: so
        after that, everything that was written to the journal until now is looked at."""
        journal, deadline = self.journal, self._deadline()
        register = await (journal.read(deadline) if prepared else journal.glance(deadline))
        if not journal.is_read:
            return  # what cannot be read yet may be what this driver has signed
        if register.owner != plan.owner:
            raise self._superseded(register)
        if register.decided_batch(query_id) >= batch_id:
            raise Stale(f"batch {batch_id} of query {query_id} was decided without this attempt of the task")
        if register.round != plan.round:
            raise Stale(f"batch {batch_id} of query {query_id} was given up while this attempt of the task was at work")

    @property
    def _driver_id(self) -> str:
        return names.driver_id(self._settings.prefix)

    def _now_ms(self) -> int:
        return self._runtime.clock.wall_ms()

    def _deadline(self) -> Deadline:
        return self._cluster.deadline(self._config.delivery_timeout_ms, "kafka.delivery.timeout.ms")
