"""What a transactional producer says to its coordinators: one method a request, errors in words, retries inside.

What a broker may lack is named here. Two-phase commit needs InitProducerId 6 (KIP-939) and is refused without it.
Heartbeats need InitProducerId 7 and TxnHeartbeat (KIP-1309); without them the producer works and is warned, because
the interval is a field that a broker may ignore. A cluster whose finalized `transaction.version` is below 2 (KIP-890)
gets what its clients said before: partitions and groups are added to a transaction by the producer, and the versions
that imply it are not used.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.admin.transaction_model import (
    NO_TIMEOUT_MS,
    Decided,
    EndedTwoPhase,
    TransactionDescription,
    TransactionState,
)
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import CoordinatorKind, Coordinators
from twofold.client.cluster.metadata import group_by_topic
from twofold.client.config import ProducerConfig
from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.transactions.prepared import PreparedTxnState
from twofold.connections.connection import Connection
from twofold.connections.errors import UnsupportedByBroker
from twofold.connections.waiting import Deadline
from twofold.types import NO_PRODUCER_ID, NO_TIMESTAMP, Ending, TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    OperationNotAttempted,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
    error_for,
)
from twofold.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from twofold.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from twofold.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from twofold.wire.messages.describe_transactions import TransactionState as DescribedRow
from twofold.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from twofold.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from twofold.wire.messages.txn_heartbeat import TxnHeartbeatRequest, TxnHeartbeatResponse
from twofold.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

INIT_PRODUCER_ID = KEYS["InitProducerId"]
ADD_PARTITIONS = KEYS["AddPartitionsToTxn"]
END_TXN = KEYS["EndTxn"]
TXN_OFFSET_COMMIT = KEYS["TxnOffsetCommit"]
TXN_HEARTBEAT = KEYS["TxnHeartbeat"]
PRODUCE = KEYS["Produce"]

TRANSACTION_VERSION = "transaction.version"
# The first versions that belong to transaction.version 2, and what came before them.
V2_APIS = {PRODUCE: 12, END_TXN: 5, TXN_OFFSET_COMMIT: 5}
LAST_ADD_PARTITIONS_OF_CLIENTS = 3
TWO_PHASE_SINCE = 6
HEARTBEATS_SINCE = 7
# A broker that is asked what became of a transaction gets this long; the error is told without it otherwise.
DESCRIBE_TIMEOUT_MS = 2_000
SHORTEST_HEARTBEAT_TIMEOUT_MS = 2_000

_ENDINGS = frozenset(Ending)
COMMITTED, ABORTED = 1, 2  # outcomes, as DescribeTransactions numbers them

log = logging.getLogger(__name__)

STATE_ERRORS = (InvalidTxnState, TransactionAbortable)
Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class Started(NamedTuple):
    """What init_transactions got: the identity from now on, and the transaction that was kept."""

    identity: ProducerIdentity
    ongoing: PreparedTxnState
    v2: bool
    heartbeats: bool


class Verdict(NamedTuple):
    """What became of InitProducerId for a transaction that was shown: the coordinator's error, or None; and whether the
    coordinator has compared that transaction with what is open. A broker that does not know the fields has not."""

    error: KafkaError | None
    was_compared: bool
    started: Started | None = None


class Terms(NamedTuple):
    """What InitProducerId asks for."""

    timeout_ms: int
    two_phase: bool = False
    interval_ms: int = 0

    @classmethod
    def of(cls, config: ProducerConfig) -> "Terms":
        two_phase = config.transaction_two_phase_commit_enable
        timeout_ms = NO_TIMEOUT_MS if two_phase else config.transaction_timeout
        return cls(timeout_ms, two_phase, config.transaction_heartbeat_interval_ms)


class TransactionCalls:
    """Of one client, for any transactional ids."""

    def __init__(self, cluster: Cluster, coordinators: Coordinators) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._is_warned = False

    def speaks_v2(self, transactional_id: str) -> bool | None:
        """Whether the cluster has finalized transaction.version 2; None when there is no connection to tell."""
        connection = self._coordinators.connected(CoordinatorKind.TRANSACTION, transactional_id)
        return None if connection is None else _speaks_v2(connection)

    def has_heartbeats(self, transactional_id: str) -> bool:
        """Whether the coordinator, which was asked something before, takes heartbeats (KIP-1309)."""
        connection = self._coordinators.connected(CoordinatorKind.TRANSACTION, transactional_id)
        return connection is not None and _takes_heartbeats(connection)

    async def init(
        self, transactional_id: str, terms: Terms, deadline: Deadline, *, keep: bool = False, patient: bool = True
    ) -> Started:
        """Without patience one attempt, whose failure tells whether it can have had an effect."""

        async def attempt(connection: Connection) -> Started:
            _check_init(connection, terms, keep=keep)
            request = _init_request(transactional_id, terms, keep=keep)
            return self._started(connection, terms, await self._init(connection, request, deadline))

        what = f"InitProducerId of {transactional_id!r}"
        return await self._coordinators.ask(
            CoordinatorKind.TRANSACTION, transactional_id, what, attempt, deadline, patient=patient
        )

    async def init_if(
        self,
        transactional_id: str,
        terms: Terms,
        shown: TransactionDescription,
        deadline: Deadline,
        *,
        keep: bool = False,
    ) -> Verdict:
        """One attempt to take the id over if it still has what was shown: the open transaction, or none. What the
        coordinator says is returned; an error on the way to it is raised, and then the outcome is not known."""

        async def attempt(connection: Connection) -> Verdict:
            _check_init(connection, terms, keep=keep)
            request = _init_request(transactional_id, terms, keep=keep)
            request.expected_producer_id = shown.producer_id
            request.expected_producer_epoch = shown.producer_epoch
            request.expected_start_ms = shown.start_ms if shown.is_ongoing else NO_TIMESTAMP
            response: InitProducerIdResponse = await self._cluster.ask(connection, request, "InitProducerId", deadline)
            if response.error_code:
                return Verdict(_init_error(connection, request, response.error_code), response.expected_checked)
            return Verdict(None, response.expected_checked, self._started(connection, terms, response))

        what = f"InitProducerId of {transactional_id!r}"
        return await self._coordinators.ask(
            CoordinatorKind.TRANSACTION, transactional_id, what, attempt, deadline, patient=False
        )

    def _started(self, connection: Connection, terms: Terms, response: InitProducerIdResponse) -> Started:
        identity = ProducerIdentity(response.producer_id, response.producer_epoch)
        ongoing = PreparedTxnState.of(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
        heartbeats = terms.interval_ms > 0 and self._check_heartbeats(connection, terms)
        return Started(identity, ongoing, _speaks_v2(connection), heartbeats)

    def _check_heartbeats(self, connection: Connection, terms: Terms) -> bool:
        """Whether the broker took the interval; the first that does not is named in the log."""
        takes = _takes_heartbeats(connection)
        if not takes and not self._is_warned:
            self._is_warned = True
            served = connection.version(INIT_PRODUCER_ID)
            log.warning(
                "%s serves InitProducerId up to %d%s: transaction_heartbeat_interval_ms=%d has no effect, and what a "
                "producer leaves open when it dies is aborted after transaction_timeout_ms=%d. Heartbeats (KIP-1309) "
                "need InitProducerId %d and TxnHeartbeat: Twofold with transaction.heartbeat.enable=true",
                connection.label, served, "" if connection.supports(TXN_HEARTBEAT) else " and no TxnHeartbeat",
                terms.interval_ms, terms.timeout_ms, HEARTBEATS_SINCE,
            )  # fmt: skip
        return takes

    async def bump(
        self, transactional_id: str, config: ProducerConfig, identity: ProducerIdentity, deadline: Deadline
    ) -> ProducerIdentity:
        """The next epoch; refused if another producer has taken it (KIP-360)."""

        two_phase = config.transaction_two_phase_commit_enable

        async def attempt(connection: Connection) -> ProducerIdentity:
            if two_phase and not _speaks_v2(connection):
                raise _too_old(connection, "transaction_two_phase_commit_enable")
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=config.transaction_timeout,
                transaction_heartbeat_interval_ms=config.transaction_heartbeat_interval_ms,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                enable2_pc=two_phase,
            )
            response = await self._init(connection, request, deadline)
            return ProducerIdentity(response.producer_id, response.producer_epoch)

        what = f"InitProducerId of {transactional_id!r}"
        return await self._coordinators.ask(CoordinatorKind.TRANSACTION, transactional_id, what, attempt, deadline)

    async def _init(
        self, connection: Connection, request: InitProducerIdRequest, deadline: Deadline
    ) -> InitProducerIdResponse:
        response: InitProducerIdResponse = await self._cluster.ask(connection, request, "InitProducerId", deadline)
        if response.error_code:
            raise _init_error(connection, request, response.error_code)
        return response

    async def add_partitions(
        self, transactional_id: str, identity: ProducerIdentity, partitions: list[TopicPartition], deadline: Deadline
    ) -> None:
        topics = [
            AddPartitionsToTxnTopic(name=name, partitions=rows) for name, rows in group_by_topic(partitions).items()
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=topics,
        )

        async def attempt(connection: Connection) -> None:
            version = connection.version(ADD_PARTITIONS, at_most=LAST_ADD_PARTITIONS_OF_CLIENTS)
            response: AddPartitionsToTxnResponse = await self._cluster.ask(
                connection, request, "AddPartitionsToTxn", deadline, version=version
            )
            found = {
                TopicPartition(topic.name, row.partition_index): error_for(row.partition_error_code)
                for topic in response.results_by_topic_v3_and_below
                for row in topic.results_by_partition
                if row.partition_error_code
            }
            # Of several, the one that says why, before those that were not tried because of it.
            for tp, error in sorted(found.items(), key=lambda item: item[1] is OperationNotAttempted):
                raise error(f"{tp} was not added to the transaction of {transactional_id!r}")

        what = f"AddPartitionsToTxn of {transactional_id!r}"
        await self._coordinators.ask(CoordinatorKind.TRANSACTION, transactional_id, what, attempt, deadline)

    async def commit_offsets(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        offsets: Offsets,
        group: ConsumerGroupMetadata,
        deadline: Deadline,
        *,
        v2: bool,
    ) -> None:
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group.group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=_offset_topics(offsets),
        )

        async def attempt(connection: Connection) -> None:
            first = V2_APIS[TXN_OFFSET_COMMIT]
            version = connection.version(TXN_OFFSET_COMMIT, at_most=None if v2 else first - 1)
            if v2 and version < first:
                raise UnsupportedByBroker(f"{connection.label} serves TxnOffsetCommit up to {version}, not {first}")
            response: TxnOffsetCommitResponse = await self._cluster.ask(
                connection, request, "TxnOffsetCommit", deadline, version=version
            )
            for topic in response.topics:
                for row in topic.partitions:
                    if row.error_code:
                        tp = TopicPartition(topic.name, row.partition_index)
                        raise error_for(row.error_code)(f"offset of {tp} for group {group.group_id!r}")

        what = f"TxnOffsetCommit of {transactional_id!r} for group {group.group_id!r}"
        await self._coordinators.ask(CoordinatorKind.GROUP, group.group_id, what, attempt, deadline)

    async def add_offsets(
        self, transactional_id: str, identity: ProducerIdentity, group: str, deadline: Deadline
    ) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            group_id=group,
        )

        async def attempt(connection: Connection) -> None:
            response: AddOffsetsToTxnResponse = await self._cluster.ask(
                connection, request, "AddOffsetsToTxn", deadline
            )
            if response.error_code:
                raise error_for(response.error_code)(f"group {group!r} was not added to {transactional_id!r}")

        what = f"AddOffsetsToTxn of {transactional_id!r}"
        await self._coordinators.ask(CoordinatorKind.TRANSACTION, transactional_id, what, attempt, deadline)

    async def end(
        self, transactional_id: str, identity: ProducerIdentity, deadline: Deadline, *, commit: bool, v2: bool | None
    ) -> ProducerIdentity:
        """The identity after it: with version 2 under the next epoch. `v2` None goes by what the cluster speaks."""
        word = "commit" if commit else "abort"
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )

        async def attempt(connection: Connection) -> ProducerIdentity:
            by_v2 = _speaks_v2(connection) if v2 is None else v2
            first = V2_APIS[END_TXN]
            version = connection.version(END_TXN, at_most=None if by_v2 else first - 1)
            if by_v2 and version < first:
                raise UnsupportedByBroker(f"{connection.label} serves EndTxn up to {version}, not {first}")
            response: EndTxnResponse = await self._cluster.ask(connection, request, "EndTxn", deadline, version=version)
            if response.error_code:
                raise error_for(response.error_code)(f"{connection.label} refused to {word}")
            if response.producer_id == NO_PRODUCER_ID:
                return identity
            return ProducerIdentity(response.producer_id, response.producer_epoch)

        what = f"EndTxn({word}) of {transactional_id!r}"
        return await self._coordinators.ask(CoordinatorKind.TRANSACTION, transactional_id, what, attempt, deadline)

    async def heartbeat(self, transactional_id: str, identity: ProducerIdentity, interval_ms: int) -> None:
        """One attempt: the next heartbeat is the retry."""
        request = TxnHeartbeatRequest(
            transactional_id=transactional_id, producer_id=identity.producer_id, producer_epoch=identity.epoch
        )
        timeout_ms = max(interval_ms, SHORTEST_HEARTBEAT_TIMEOUT_MS)
        deadline = self._cluster.deadline(timeout_ms, "transaction_heartbeat_interval_ms")

        async def attempt(connection: Connection) -> None:
            response: TxnHeartbeatResponse = await self._cluster.ask(connection, request, "TxnHeartbeat", deadline)
            if response.error_code:
                raise error_for(response.error_code)(response.error_message or "the heartbeat was refused")

        what = f"TxnHeartbeat of {transactional_id!r}"
        await self._coordinators.ask(
            CoordinatorKind.TRANSACTION, transactional_id, what, attempt, deadline, patient=False
        )

    async def describe(self, transactional_id: str) -> TransactionDescription | None:
        """What the coordinator has of a transactional id; None when it does not say."""
        deadline = self._cluster.deadline(DESCRIBE_TIMEOUT_MS, "DescribeTransactions")
        try:
            return await self.described(transactional_id, deadline)
        except KafkaError:
            return None

    async def described(self, transactional_id: str, deadline: Deadline) -> TransactionDescription:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])

        async def attempt(connection: Connection) -> TransactionDescription:
            response: DescribeTransactionsResponse = await self._cluster.ask(
                connection, request, "DescribeTransactions", deadline
            )
            row = response.transaction_states[0]
            if row.error_code:
                raise error_for(row.error_code)(f"{connection.label} does not describe {transactional_id!r}")
            return description(row, self._coordinators.node_of(CoordinatorKind.TRANSACTION, transactional_id))

        what = f"DescribeTransactions of {transactional_id!r}"
        return await self._coordinators.ask(CoordinatorKind.TRANSACTION, transactional_id, what, attempt, deadline)


def description(row: DescribedRow, coordinator_id: int) -> TransactionDescription:
    """Of an answer without an error."""
    return TransactionDescription(
        row.transactional_id,
        coordinator_id,
        TransactionState.parse(row.transaction_state),
        row.producer_id,
        row.producer_epoch,
        row.transaction_timeout_ms,
        row.transaction_start_time_ms,
        tuple(TopicPartition(topic.topic, index) for topic in row.topics for index in topic.partitions),
        _last_two_phase(row),
        Decided(row.decided_producer_id, row.decided_epoch, row.decided_outcome == COMMITTED)
        if row.decided_outcome in (COMMITTED, ABORTED)
        else None,
        row.opened_by,
    )


def _last_two_phase(row: DescribedRow) -> EndedTwoPhase | None:
    """None also where a newer broker says something that is not known here."""
    if row.last_two_phase_ending not in _ENDINGS or min(row.last_two_phase_producer_id, row.last_two_phase_epoch) < 0:
        return None
    state = PreparedTxnState.of(row.last_two_phase_producer_id, row.last_two_phase_epoch)
    return EndedTwoPhase(state, Ending(row.last_two_phase_ending))


def _init_request(transactional_id: str, terms: Terms, *, keep: bool) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=terms.timeout_ms,
        transaction_heartbeat_interval_ms=terms.interval_ms,
        enable2_pc=terms.two_phase,
        keep_prepared_txn=keep,
    )


def _speaks_v2(connection: Connection) -> bool:
    if connection.finalized_features.get(TRANSACTION_VERSION, 0) < 2:
        return False
    return all(connection.supports(key, version) for key, version in V2_APIS.items())


def _takes_heartbeats(connection: Connection) -> bool:
    return connection.supports(INIT_PRODUCER_ID, HEARTBEATS_SINCE) and connection.supports(TXN_HEARTBEAT)


def _check_init(connection: Connection, terms: Terms, *, keep: bool) -> None:
    """One clear error for what the broker lacks."""
    two_phase = terms.two_phase
    served = connection.version(INIT_PRODUCER_ID)
    if (two_phase or keep) and served < TWO_PHASE_SINCE:
        wanted = "transaction_two_phase_commit_enable" if two_phase else "keep_prepared_txn"
        raise UnsupportedByBroker(
            f"{connection.label} serves InitProducerId up to {served}: {wanted} needs {TWO_PHASE_SINCE} "
            "(two-phase commit, KIP-939). Apache Kafka 4 serves it when unstable.api.versions.enable=true; without it, "
            "resume() finishes a transaction whose producer id and epoch were kept"
        )
    if (two_phase or keep) and not _speaks_v2(connection):
        raise _too_old(connection, "keep_prepared_txn" if keep else "transaction_two_phase_commit_enable")


def _too_old(connection: Connection, wanted: str) -> UnsupportedByBroker:
    level = connection.finalized_features.get(TRANSACTION_VERSION, 0)
    return UnsupportedByBroker(
        f"{connection.label} has finalized {TRANSACTION_VERSION}={level}: {wanted} needs 2, where every transaction "
        "has an epoch of its own (KIP-890); `twofold cluster features` or kafka-features.sh raises it"
    )


def _init_error(connection: Connection, request: InitProducerIdRequest, code: int) -> KafkaError:
    error = error_for(code)
    message = f"{connection.label} refused InitProducerId of {request.transactional_id!r}"
    if error is InvalidTransactionTimeout:
        message += (
            f": transaction_timeout_ms={request.transaction_timeout_ms} is above the broker's "
            "transaction.max.timeout.ms, or not positive"
        )
    elif error is TransactionalIdAuthorizationFailed and request.enable2_pc:
        message += (
            ": two-phase commit is off there (transaction.two.phase.commit.enable), or the principal lacks WRITE or "
            "TWO_PHASE_COMMIT on the id"
        )
    elif error is TransactionalIdAuthorizationFailed:
        message += ": the principal lacks WRITE on the id"
    elif error is UnsupportedVersion and request.keep_prepared_txn:
        message += ": it does not implement keep_prepared_txn (KIP-939)"
    elif error is UnsupportedVersion and request.enable2_pc:
        message += f": two-phase commit needs {TRANSACTION_VERSION} 2 there"
    elif request.producer_id != NO_PRODUCER_ID:
        message += f" with producer id {request.producer_id}, epoch {request.producer_epoch}"
    return error(message)


def _offset_topics(offsets: Offsets) -> list[TxnOffsetCommitRequestTopic]:
    topics = []
    for name, indexes in group_by_topic(offsets).items():
        rows = []
        for index in indexes:
            value = offsets[TopicPartition(name, index)]
            row = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
            rows.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=row.offset,
                    committed_metadata=row.metadata,
                    committed_leader_epoch=row.leader_epoch,
                )
            )
        topics.append(TxnOffsetCommitRequestTopic(name=name, partitions=rows))
    return topics
