"""The administrator's calls about transactions (KIP-664, KIP-939), a part of `twofold.client.admin.admin.Admin`.

1. Coordinators are asked about ids, leaders about producers; with `broker_id` that broker is asked instead, whatever it
   is. What one broker refuses is told for that broker and hides nothing of the others.
2. What is ended is what was shown, or nothing. By a marker: the start offset is looked up at the leader first, and a
   broker that knows KIP-664's field compares it when it writes. By the coordinator: `shown_transactions`.
3. Fencing asks for the id as its producer would, without two-phase commit: the transaction is aborted, its producer
   fenced, and a two-phase id loses its endless timeout.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from twofold.client.admin.model import ProducerDescription, Results
from twofold.client.admin.shown_transactions import end_shown, ended_meanwhile
from twofold.client.admin.transaction_model import (
    NO_TIMEOUT_MS,
    AbortedInPartition,
    AbortTransactionSpec,
    EndedTransaction,
    FencedProducer,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import CoordinatorKind, Coordinators
from twofold.client.errors import EndedMeanwhile
from twofold.client.transactions.calls import Started, Terms, TransactionCalls, description
from twofold.client.transactions.prepared import PreparedTxnState
from twofold.connections.connection import Connection
from twofold.connections.errors import GaveUp, UnsupportedByBroker
from twofold.connections.waiting import Deadline, retry
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionCoordinatorFenced,
    UnsupportedVersion,
    error_for,
)
from twofold.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from twofold.wire.messages.describe_transactions import TransactionState as DescribedRow
from twofold.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from twofold.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

T = TypeVar("T")
K = TypeVar("K")
DURATIONS_SINCE = 1
PATTERNS_SINCE = 2
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1
"""Of an administrator's markers (KIP-664)."""
_FENCED = (ProducerFenced, InvalidProducerEpoch)
_NOT_THAT_ONE = (InvalidTxnState.code, InvalidProducerEpoch.code)
NO_DURATION = -1
LIST_TRANSACTIONS = KEYS["ListTransactions"]
FENCING_TIMEOUT_MS = 60_000
"""The transaction timeout that a fenced id is left with."""


class TransactionAdminCalls(ABC):
    _cluster: Cluster
    _found_coordinators: Coordinators | None = None

    @abstractmethod
    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker_id: int | None = None
    ) -> Results[TopicPartition, tuple[ProducerDescription, ...]]: ...

    @property
    def _transactions(self) -> TransactionCalls:
        return TransactionCalls(self._cluster, self._their_coordinators)

    @property
    def _their_coordinators(self) -> Coordinators:
        if self._found_coordinators is None:
            self._found_coordinators = Coordinators(self._cluster)
        return self._found_coordinators

    # Looking

    async def list_transactions(
        self,
        *,
        states: Sequence[TransactionState] = (),
        producer_ids: Sequence[int] = (),
        duration_ms: int | None = None,
        pattern: str | None = None,
        broker_id: int | None = None,
        deadline: Deadline | None = None,
    ) -> Results[int, tuple[TransactionListing, ...]]:
        """The transactional ids of every broker (or of one) by broker; filters are joined by "and"."""
        deadline = deadline or self._cluster.deadline()
        request = ListTransactionsRequest(
            state_filters=[state.value for state in states],
            producer_id_filters=list(producer_ids),
            duration_filter=NO_DURATION if duration_ms is None else duration_ms,
            transactional_id_pattern=pattern,
        )
        await self._cluster.refresh(deadline)
        nodes = list(self._cluster.cache.nodes) if broker_id is None else [broker_id]
        found = await asyncio.gather(*(_settled(self._list_at(node, request, deadline)) for node in nodes))
        return _results(zip(nodes, found, strict=True))

    async def _list_at(
        self, node_id: int, request: ListTransactionsRequest, deadline: Deadline
    ) -> tuple[TransactionListing, ...]:
        async def attempt() -> tuple[TransactionListing, ...]:
            connection = await self._cluster.connection(node_id, deadline)
            _check_filters(connection, request)
            response: ListTransactionsResponse = await self._cluster.ask(
                connection, request, "ListTransactions", deadline
            )
            if response.error_code == UnsupportedVersion.code and request.transactional_id_pattern is not None:
                raise UnsupportedByBroker(
                    f"{connection.label} cannot filter transactions by pattern: it runs without RE2, and its log says "
                    "what to install there (twofold[re2])"
                )
            if response.error_code:
                raise error_for(response.error_code)(f"{connection.label} does not list transactions")
            return tuple(
                TransactionListing(
                    row.transactional_id, node_id, row.producer_id, TransactionState.parse(row.transaction_state)
                )
                for row in response.transaction_states
            )

        return await self._cluster.retry(f"ListTransactions at broker {node_id}", attempt, deadline)

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, broker_id: int | None = None, deadline: Deadline | None = None
    ) -> Results[str, TransactionDescription]:
        """What the coordinators (or the broker that is asked instead) have of each; TRANSACTIONAL_ID_NOT_FOUND for an
        id that was never used."""
        deadline = deadline or self._cluster.deadline()
        left = list(dict.fromkeys(transactional_ids))
        values: dict[str, TransactionDescription] = {}
        errors: dict[str, KafkaError] = {}
        while left:
            # The coordinator of the first is asked about all of them. The next round asks the other coordinators.
            some = await self._describe_some(left, broker_id, deadline)
            values |= some.values
            errors |= some.errors
            left = [name for name in left if name not in values and name not in errors]
        return Results(values, errors)

    async def _describe_some(
        self, names: list[str], broker_id: int | None, deadline: Deadline
    ) -> Results[str, TransactionDescription]:
        first = names[0]

        async def ask(connection: Connection) -> Results[str, TransactionDescription]:
            request = DescribeTransactionsRequest(transactional_ids=names, outcomes=True)
            response: DescribeTransactionsResponse = await self._cluster.ask(
                connection, request, "DescribeTransactions", deadline
            )
            asked = broker_id
            if asked is None:
                asked = self._their_coordinators.node_of(CoordinatorKind.TRANSACTION, first)
            return _described(response.transaction_states, first, asked, by_coordinator=broker_id is None)

        what = f"DescribeTransactions of {first!r}"
        if broker_id is None:
            try:
                return await self._their_coordinators.ask(CoordinatorKind.TRANSACTION, first, what, ask, deadline)
            except GaveUp:
                raise
            except KafkaError as error:
                return Results({}, {first: error})

        async def attempt() -> Results[str, TransactionDescription]:
            return await ask(await self._cluster.connection(broker_id, deadline))

        return await self._cluster.retry(what, attempt, deadline)

    # Ending

    async def abort_transaction(self, spec: AbortTransactionSpec) -> AbortedInPartition:
        """Write the marker of an abort to one partition, whatever the coordinator thinks: for a transaction that no
        coordinator knows. `force_terminate_transaction` ends one that has a coordinator, in all of its partitions.

        The transaction is looked up at the leader, and where it begins goes with the request: EndedMeanwhile, and
        nothing is written, where another one is open by then."""
        try:
            found = await self._open_one(spec)
        except UnsupportedByBroker:
            if spec.coordinator_epoch is None:
                raise
            await self._write_abort(spec, None, max(spec.coordinator_epoch, 0))
            return AbortedInPartition(spec.tp, spec.producer_id, spec.producer_epoch, None, is_exact=False)
        start_offset = found.current_txn_start_offset
        try:
            is_exact = await self._write_abort(spec, start_offset, NO_COORDINATOR_EPOCH)
        except TransactionCoordinatorFenced:
            # Apache Kafka has no word for "an administrator": it wants the epoch of a coordinator, at least the last.
            known = found.coordinator_epoch if spec.coordinator_epoch is None else spec.coordinator_epoch
            if (await self._open_one(spec)).current_txn_start_offset != start_offset:
                raise _begins_elsewhere(spec) from None
            is_exact = await self._write_abort(spec, start_offset, max(known, 0))
        return AbortedInPartition(spec.tp, spec.producer_id, spec.producer_epoch, start_offset, is_exact)

    async def _open_one(self, spec: AbortTransactionSpec) -> ProducerDescription:
        for row in (await self.describe_producers([spec.tp])).get()[spec.tp]:
            if (row.producer_id, row.producer_epoch) != (spec.producer_id, spec.producer_epoch):
                continue
            if row.current_txn_start_offset == NO_OFFSET:
                continue
            if spec.start_offset is None or row.current_txn_start_offset == spec.start_offset:
                return row
        raise _begins_elsewhere(spec)

    async def _write_abort(self, spec: AbortTransactionSpec, start_offset: int | None, coordinator_epoch: int) -> bool:
        """Whether the leader has compared the start offset with what is open."""
        offsets = None if start_offset is None else [start_offset]
        topic = WritableTxnMarkerTopic(
            name=spec.tp.topic, partition_indexes=[spec.tp.partition], txn_start_offsets=offsets
        )
        marker = WritableTxnMarker(
            producer_id=spec.producer_id,
            producer_epoch=spec.producer_epoch,
            transaction_result=False,
            topics=[topic],
            coordinator_epoch=coordinator_epoch,
        )
        deadline = self._cluster.deadline()
        attempts = 0

        async def attempt() -> bool:
            nonlocal attempts
            leader = (await self._cluster.leader(spec.tp, deadline)).leader
            request = WriteTxnMarkersRequest(markers=[marker])
            attempts += 1
            response: WriteTxnMarkersResponse = await self._cluster.request(
                leader, request, "WriteTxnMarkers", deadline
            )
            row = response.markers[0].topics[0].partitions[0]
            if row.error_code in _NOT_THAT_ONE:
                raise _begins_elsewhere(spec, after_a_failure=attempts > 1)
            if row.error_code:
                raise error_for(row.error_code)(f"{spec.tp}: producer {spec.producer_id} was not aborted there")
            return row.start_offset_checked

        return await self._cluster.retry(f"WriteTxnMarkers to {spec.tp}", attempt, deadline)

    async def fence_producers(self, transactional_ids: Iterable[str]) -> Results[str, FencedProducer]:
        """End what is open under these ids and shut their producers out."""
        names = list(dict.fromkeys(transactional_ids))
        found = await asyncio.gather(*(_settled(self._fence(name)) for name in names))
        return _results(zip(names, found, strict=True))

    async def force_terminate_transaction(
        self, transactional_id: str, *, expected: TransactionDescription | None = None
    ) -> EndedTransaction | None:
        """Abort the transaction of an id (KIP-939: also one that is prepared), and shut its producer out.
        TRANSACTIONAL_ID_NOT_FOUND for an id that was never used: InitProducerId, which ends transactions, would create
        it.

        `expected` is what `describe_transactions` gave before: exactly that is ended, and returned. EndedMeanwhile, and
        nothing is done, where the id has another transaction by then, or none."""
        if expected is None:
            # A request of its own: an id that expires just then is created all the same.
            await self._described(transactional_id, self._cluster.deadline())
            await self._fence(transactional_id)
            return None
        return await end_shown(self._cluster, self._transactions, self._described, expected, Terms(FENCING_TIMEOUT_MS))

    async def _described(self, transactional_id: str, deadline: Deadline) -> TransactionDescription:
        return (await self.describe_transactions([transactional_id], deadline=deadline)).get()[transactional_id]

    async def _fence(self, transactional_id: str) -> FencedProducer:
        started = await self._transactions.init(
            transactional_id, Terms(FENCING_TIMEOUT_MS), self._cluster.deadline(), keep=False
        )
        return FencedProducer(started.identity.producer_id, started.identity.epoch)

    async def complete_transaction(
        self,
        transactional_id: str,
        state: PreparedTxnState | str | bytes,
        *,
        commit: bool,
        expected: TransactionDescription | None = None,
    ) -> EndedTransaction:
        """End a prepared transaction as the outside system has decided (KIP-939). INVALID_TXN_STATE, and nothing is
        done, where the id's open transaction is another. `expected` is what `describe_transactions` gave before."""
        state = PreparedTxnState.parse(state)
        deadline, calls = self._cluster.deadline(), self._transactions
        described = await self._described(transactional_id, deadline)
        if expected is not None and not described.is_still(expected):
            raise ended_meanwhile(expected, described)
        check_prepared(described, state)
        try:
            await calls.end(transactional_id, state.identity, deadline, commit=commit, v2=None)
        except _FENCED:
            # A producer has taken the transaction over without ending it: it is now that producer's to end.
            started = await self._take_over(described, deadline)
            await calls.end(transactional_id, started.identity, deadline, commit=commit, v2=started.v2)
        return EndedTransaction(
            transactional_id,
            described.producer_id,
            described.producer_epoch,
            described.start_ms,
            described.partitions,
            # A two-phase producer has an epoch for each transaction, which EndTxn names.
            is_exact=described.is_two_phase and bool(calls.speaks_v2(transactional_id)),
        )

    async def _take_over(self, shown: TransactionDescription, deadline: Deadline) -> Started:
        """Take the prepared transaction that was shown over, to end it. Where another one is open, nothing is done."""
        terms = Terms(NO_TIMEOUT_MS, two_phase=True)

        async def attempt() -> Started:
            verdict = await self._transactions.init_if(shown.transactional_id, terms, shown, deadline, keep=True)
            if isinstance(verdict.error, InvalidTxnState):
                raise ended_meanwhile(shown, await self._described(shown.transactional_id, deadline))
            if verdict.error is not None:
                raise verdict.error
            assert verdict.started is not None
            return verdict.started

        what = f"taking {shown.transactional_id!r} over"
        started = await retry(self._cluster.runtime, self._cluster.config.retry_backoff, deadline, what, attempt)
        if started.ongoing.identity != shown.identity:
            raise InvalidTxnState(
                f"{shown.transactional_id!r} had {started.ongoing or 'nothing'} prepared, not {shown.producer_id}:"
                f"{shown.producer_epoch}, when its producer was taken over: it was not ended"
            )
        return started


def check_prepared(described: TransactionDescription, state: PreparedTxnState) -> None:
    """Whether that is what the id has open."""
    found = PreparedTxnState.of(*described.identity)
    if not described.is_ongoing or found != state:
        raise InvalidTxnState(
            f"the coordinator has {described.transactional_id!r} in state {described.state.value} as {found}, not "
            f"{state} in state {TransactionState.ONGOING.value}: nothing was changed; the last two-phase transaction "
            f"that was decided: {described.last_two_phase or 'none is known'}"
        )


def _begins_elsewhere(spec: AbortTransactionSpec, *, after_a_failure: bool = False) -> EndedMeanwhile:
    where = "" if spec.start_offset is None else f" that begins at offset {spec.start_offset}"
    done = "Nothing was done"
    if after_a_failure:
        done = (
            "The answer to the first attempt was lost, so that attempt may have ended it: "
            f"`twofold txn fate {spec.tp.topic} {spec.tp.partition}` shows what became of it"
        )
    return EndedMeanwhile(
        f"producer {spec.producer_id}, epoch {spec.producer_epoch} has no transaction in {spec.tp}{where}: that "
        f"transaction has ended meanwhile, or it never was there. {done}"
    )


def _check_filters(connection: Connection, request: ListTransactionsRequest) -> None:
    """A filter that the broker does not know would be left out, and more would come back than was asked for."""
    needed = {
        DURATIONS_SINCE: request.duration_filter != NO_DURATION and "duration",
        PATTERNS_SINCE: request.transactional_id_pattern is not None and "pattern",
    }
    for version, name in needed.items():
        if name and not connection.supports(LIST_TRANSACTIONS, version):
            raise UnsupportedByBroker(
                f"{connection.label} cannot filter transactions by {name}: it serves ListTransactions up to "
                f"{connection.version(LIST_TRANSACTIONS)}, and {version} is needed"
            )


def _described(
    rows: Sequence[DescribedRow], first: str, node_id: int, *, by_coordinator: bool
) -> Results[str, TransactionDescription]:
    """Where coordinators are asked, the first id decides whether the right one was: the others may have another."""
    values: dict[str, TransactionDescription] = {}
    errors: dict[str, KafkaError] = {}
    for row in rows:
        name = row.transactional_id
        if row.error_code:
            error = error_for(row.error_code)(f"broker {node_id} does not describe {name!r}")
            if by_coordinator and error.retriable:
                if name == first:
                    raise error
                continue
            errors[name] = error
            continue
        values[name] = description(row, node_id)
    return Results(values, errors)


async def _settled(work: Awaitable[T]) -> T | KafkaError:
    try:
        return await work
    except KafkaError as error:
        return error


def _results(pairs: Iterable[tuple[K, T | KafkaError]]) -> Results[K, T]:
    values: dict[K, T] = {}
    errors: dict[K, KafkaError] = {}
    for key, outcome in pairs:
        if isinstance(outcome, KafkaError):
            errors[key] = outcome
        else:
            values[key] = outcome
    return Results(values, errors)
