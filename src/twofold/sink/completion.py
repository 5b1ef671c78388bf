"""What is decided is carried out: every transaction of a decision ends as it says, however often this is begun.

1. With two-phase commit nothing but the decision ends a transaction: those that are open are committed, under the
   identity that may, or under a new one where a driver before took that. What became of the others the coordinator's
   record tells: one that was aborted is an operator's doing, and is told. Of a broker that keeps no such record
   (Apache Kafka), what is neither open nor aborted was committed before.
2. Without it a transaction may have timed out. If none was committed the decision is taken back: the others are
   aborted, by a request that tells whether one was committed meanwhile. If one was, a part of the batch is
   lost, and the query stops; so it does if a coordinator has forgotten what became of one.
3. Nothing is done until every marker is written: after that an id is free for its next transaction.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from twofold.client import TransactionDescription, TransactionState
from twofold.client.parts import NO_TIMEOUT_MS, ProducerIdentity, Terms, TransactionCalls
from twofold.connections.waiting import Deadline
from twofold.runtime.api import Runtime
from twofold.sink.errors import DecidedDataLost
from twofold.sink.register import BatchDecision, Mode, Participant
from twofold.sink.steps import Reached, unobserved
from twofold.sink.transactions import Descriptions, TransactionLookup
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
)

log = logging.getLogger(__name__)

AT_ONCE = 64
# Another process has ended the transaction, or has taken over its ending.
REFUSED = (InvalidTxnState, ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, TransactionAbortable)
COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
ABORTED = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT, TransactionState.PREPARE_EPOCH_FENCE)
PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.2
Act = Callable[[Participant], Awaitable[bool]]


class CompletionOutcome(Enum):
    COMMITTED = 1
    ABORTED = 2
    """Nothing of the decision was committed, and nothing of it will be."""


class Completion:
    """Of one decision."""

    def __init__(
        self,
        runtime: Runtime,
        calls: TransactionCalls,
        transactions: TransactionLookup,
        decision: BatchDecision,
        deadline: Deadline,
        reached: Reached = unobserved,
        *,
        accept_loss: bool = False,
    ) -> None:
        self._runtime = runtime
        self._calls = calls
        self._transactions = transactions
        self._decision = decision
        self._deadline = deadline
        self._reached = reached
        self._accept_loss = accept_loss
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> CompletionOutcome:
        """For the driver that has just decided: all is expected to be as it was."""
        ended = await self._each(self._decision.participants, self._commit)
        self._reached("commit: ended")
        if all(ended):
            await self._until_complete()
            return CompletionOutcome.COMMITTED
        return await self.run_again()

    async def run_again(self) -> CompletionOutcome:
        """For a driver that found the decision: anything may have happened since."""
        if self._decision.mode is Mode.RESUME:
            return await self._resume()
        found = await self._describe()
        gone = [participant for participant in self._decision.participants if was_aborted(found, participant)]
        if gone:
            self._report_loss(gone)
        left = [p for p in self._decision.participants if is_open(found, p)]
        await self._each(left, self._commit_or_take_over)
        await self._until_complete()
        return CompletionOutcome.COMMITTED

    async def _each(self, participants: Sequence[Participant], act: Act) -> list[bool]:
        async def one(participant: Participant) -> bool:
            async with self._gate:
                done = await act(participant)
                self._reached("commit: one ended")
                return done

        return await asyncio.gather(*map(one, participants))

    async def _describe(self) -> Descriptions:
        ids = [participant.transactional_id for participant in self._decision.participants]
        return await self._transactions.describe(ids, self._deadline)

    # Ending one

    async def _commit(self, participant: Participant) -> bool:
        return await self._end(participant, participant.client, commit=True)

    async def _end(self, participant: Participant, identity: ProducerIdentity, *, commit: bool) -> bool:
        """Whether the coordinator took it, now or before; False when it has something else."""
        name = participant.transactional_id
        try:
            await self._calls.end(name, identity, self._deadline, commit=commit, v2=participant.v2)
        except REFUSED as error:
            log.info("%s of %r was refused: %s", "commit" if commit else "abort", name, error)
            return False
        return True

    async def _commit_or_take_over(self, participant: Participant) -> bool:
        if await self._commit(participant):
            return True
        name = participant.transactional_id
        terms = Terms(NO_TIMEOUT_MS, two_phase=True)
        started = await self._calls.init(name, terms, self._deadline, keep=True)
        if started.ongoing.identity == participant.ongoing:
            await self._calls.end(name, started.identity, self._deadline, commit=True, v2=participant.v2)
        elif started.ongoing:
            # What a task left open that was too late for its batch.
            await self._end(participant, started.identity, commit=False)
        return True

    # Without two-phase commit

    async def _resume(self) -> CompletionOutcome:
        while True:
            found = await self._describe()
            participants = self._decision.participants
            left = [p for p in participants if is_open(found, p)]
            committed = [p for p in participants if was_committed(found, p)]
            forgotten = [p for p in participants if found[p.transactional_id] is None]
            known = {*left, *committed, *forgotten}
            lost = [p for p in participants if p not in known]
            if forgotten:
                self._report_forgotten(forgotten)
            if lost and (committed or forgotten):
                self._report_loss(lost)
                lost = []
            if lost:
                return await self._take_back(left, lost)
            if all(await self._each(left, self._commit)):
                await self._until_complete()
                return CompletionOutcome.COMMITTED
            # One timed out between the question and the commit.
            if self._deadline.expired:
                raise self._deadline.gave_up(f"committing the transactions of {self._decision}")
            await self._runtime.timers.sleep(PAUSE_S)

    async def _take_back(self, left: Sequence[Participant], lost: Sequence[Participant]) -> CompletionOutcome:
        async def abort(participant: Participant) -> bool:
            return await self._end(participant, participant.client, commit=False)

        aborted = await self._each(left, abort)
        if not all(aborted):
            # Was it committed by a driver that has lost the query, or did it time out just now?
            found = await self._describe()
            if any(was_committed(found, participant) for participant in left):
                self._report_loss(lost)
                return await self._resume()
        return CompletionOutcome.ABORTED

    def _report_loss(self, lost: Sequence[Participant]) -> None:
        if not self._accept_loss:
            raise data_lost(self._decision, lost)
        log.error("%s; going on, because the loss was accepted", _what_is_lost(self._decision, lost))

    def _report_forgotten(self, forgotten: Sequence[Participant]) -> None:
        if not self._accept_loss:
            raise outcome_forgotten(self._decision, forgotten)
        log.error("%s; going on, because the loss was accepted", _what_is_forgotten(self._decision, forgotten))

    async def _until_complete(self) -> None:
        pause_s = PAUSE_S
        while True:
            found = await self._describe()
            if not any(_is_ending(found, participant) for participant in self._decision.participants):
                return
            if self._deadline.expired:
                raise self._deadline.gave_up(f"waiting for the markers of {self._decision}")
            await self._runtime.timers.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


def data_lost(decision: BatchDecision, lost: Sequence[Participant]) -> DecidedDataLost:
    return DecidedDataLost(
        f"{_what_is_lost(decision, lost)}. `twofold pipeline recover --accept-loss` goes on without them; then repair "
        "the output"
    )


def outcome_forgotten(decision: BatchDecision, forgotten: Sequence[Participant]) -> DecidedDataLost:
    """Committed or aborted, and then not used for so long that the coordinator removed the id: to write the batch again
    could double it, to go on could lose it."""
    return DecidedDataLost(
        f"{_what_is_forgotten(decision, forgotten)}. See whether the output has the batch; `twofold pipeline recover "
        "--accept-loss` takes it as written, then repair the output"
    )


def _what_is_forgotten(decision: BatchDecision, forgotten: Sequence[Participant]) -> str:
    return (
        f"{decision} was decided, and the coordinators do not know any more what became of {len(forgotten)} of them "
        f"({_ids(forgotten)}), because that was longer ago than transactional.id.expiration.ms"
    )


def _what_is_lost(decision: BatchDecision, lost: Sequence[Participant]) -> str:
    why = (
        "an operator or another program ended them"
        if decision.mode is Mode.TWO_PHASE
        else "they timed out after the decision (transactionTimeoutMs), or an operator ended them"
    )
    return (
        f"{decision} was decided, and {len(lost)} of them ({_ids(lost)}) were aborted all the same: {why}. "
        "What they wrote is lost, and other parts of the batch are committed: to write it again would double those"
    )


def _ids(participants: Sequence[Participant]) -> str:
    ids = ", ".join(repr(participant.transactional_id) for participant in participants[:3])
    return ids + (f" and {len(participants) - 3} more" if len(participants) > 3 else "")


def is_open(found: Descriptions, participant: Participant) -> bool:
    row = found.get(participant.transactional_id)
    return row is not None and row.state is TransactionState.ONGOING and row.identity == participant.ongoing


def _is_ending(found: Descriptions, participant: Participant) -> bool:
    row = found.get(participant.transactional_id)
    return row is not None and (row.state is TransactionState.PREPARE_COMMIT or is_open(found, participant))


def was_committed(found: Descriptions, participant: Participant) -> bool:
    row = found.get(participant.transactional_id)
    return row is not None and _ended(row, participant, COMMITTED, committed=True)


def was_aborted(found: Descriptions, participant: Participant) -> bool:
    row = found.get(participant.transactional_id)
    return row is not None and _ended(row, participant, ABORTED, committed=False)


def _ended(
    row: TransactionDescription, participant: Participant, states: Sequence[TransactionState], *, committed: bool
) -> bool:
    """By the record of that transaction, where there is one: the state may be that of a later one, or of none."""
    last = row.last_two_phase
    if last is not None and ProducerIdentity(last.state.producer_id, last.state.epoch) == participant.ongoing:
        return last.is_committed == committed
    return row.state in states
