"""Ending the transaction that a person, or a program, was shown; or nothing.

1. What was shown travels with the request, and the coordinator compares it when it decides (`Verdict.was_compared`).
2. Brokers that do not know these fields ignore them. So what is open is read again immediately before every request,
   and `EndedTransaction.is_exact` is false where the broker did not compare at the write.
3. Apache Kafka answers CONCURRENT_TRANSACTIONS when it begins to abort, and wants to be asked again. It is read again
   instead: the request that comes after the abort would end the next transaction.
4. The producer of what was ended is shut out afterwards, unless a new instance has the id by then.
"""

from collections.abc import Awaitable, Callable

from twofold.client.admin.transaction_model import EndedTransaction, TransactionDescription, TransactionState
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import CONCURRENT_BACKOFF_MS
from twofold.client.errors import EndedMeanwhile
from twofold.client.transactions.calls import Terms, TransactionCalls
from twofold.connections.waiting import Backoff, Deadline, retry
from twofold.wire.errors import ConcurrentTransactions, InvalidTxnState, TransactionalIdNotFound

Read = Callable[[str, Deadline], Awaitable[TransactionDescription]]
"""What the coordinator has of an id."""

_GONE = (InvalidTxnState, TransactionalIdNotFound)
_ABORTED = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)


async def end_shown(
    cluster: Cluster, calls: TransactionCalls, read: Read, shown: TransactionDescription, terms: Terms
) -> EndedTransaction:
    """Abort the transaction that was shown and shut its producer out; EndedMeanwhile, and nothing is done, where it is
    not open any more. Where none was shown to be open, only the producer is shut out, if none is open still."""
    name = shown.transactional_id
    if shown.state.is_open and not shown.is_ongoing:
        raise InvalidTxnState(
            f"{name!r} is decided ({shown.state.value}) and its markers are being written: it cannot be aborted"
        )
    deadline = cluster.deadline()
    backoff = Backoff(CONCURRENT_BACKOFF_MS, cluster.config.retry_backoff_max_ms)
    ending = _Ending(calls, read, shown, terms, deadline)
    is_exact = await retry(cluster.runtime, backoff, deadline, f"ending the transaction of {name!r}", ending.end)
    if shown.is_ongoing:
        await retry(cluster.runtime, backoff, deadline, f"fencing the producer of {name!r}", ending.shut_out)
    return EndedTransaction(
        name, shown.producer_id, shown.producer_epoch, shown.start_ms, shown.partitions, is_exact=is_exact
    )


class _Ending:
    def __init__(
        self, calls: TransactionCalls, read: Read, shown: TransactionDescription, terms: Terms, deadline: Deadline
    ) -> None:
        self._calls = calls
        self._read = read
        self._shown = shown
        self._terms = terms
        self._deadline = deadline
        self._may_have_acted = False  # a request whose effect is not known was sent

    async def end(self) -> bool:
        """One attempt; whether the coordinator has compared."""
        shown = self._shown
        found = await self._read(shown.transactional_id, self._deadline)
        if not found.is_still(shown):
            if not self._may_have_acted or not shown.is_ongoing or found.start_ms != shown.start_ms:
                raise ended_meanwhile(shown, found)
            if found.state in _ABORTED:
                return False
            if found.is_ongoing:  # under the epoch that shuts its producer out: being aborted
                raise ConcurrentTransactions(f"the transaction of {shown.transactional_id!r} is being aborted")
            raise ended_meanwhile(shown, found)
        self._may_have_acted = True
        verdict = await self._calls.init_if(shown.transactional_id, self._terms, shown, self._deadline)
        error = verdict.error
        if error is None:
            if shown.is_ongoing and not verdict.was_compared:
                raise EndedMeanwhile(
                    f"that transaction has ended meanwhile ({shown.in_words} was shown of {shown.transactional_id!r}), "
                    "and this broker cannot compare it at the write: no transaction was aborted, but the producer of "
                    "the id was fenced"
                )
            return verdict.was_compared
        if verdict.was_compared:
            self._may_have_acted = False
            if isinstance(error, _GONE):
                raise ended_meanwhile(shown, await self._read(shown.transactional_id, self._deadline))
        raise error

    async def shut_out(self) -> None:
        """One attempt, when the markers are written."""
        shown = self._shown
        found = await self._read(shown.transactional_id, self._deadline)
        if found.start_ms != shown.start_ms or found.is_ongoing:
            return  # a new instance has the id, and so the old one is fenced
        if found.state.is_open:
            raise ConcurrentTransactions(f"markers of {shown.transactional_id!r} are missing in {found.partitions}")
        verdict = await self._calls.init_if(shown.transactional_id, self._terms, found, self._deadline)
        if verdict.error is not None and not isinstance(verdict.error, _GONE):
            raise verdict.error


def ended_meanwhile(shown: TransactionDescription, found: TransactionDescription) -> EndedMeanwhile:
    name = shown.transactional_id
    if not shown.is_ongoing:
        what = "has begun a transaction" if found.is_ongoing else "has another producer"
        return EndedMeanwhile(
            f"{name!r} {what} meanwhile, nothing was done: {shown.in_words} was shown, and the coordinator has "
            f"{found.in_words} now"
        )
    return EndedMeanwhile(
        f"that transaction has ended meanwhile, nothing was done: {shown.in_words} was shown of {name!r}, and the "
        f"coordinator has {found.in_words} now"
    )
