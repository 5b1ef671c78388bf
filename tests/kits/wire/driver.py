"""A transactional producer made of single requests, for the protocol with implicit adding (TV2) and the one before.

The lower half sends one request and returns its answer as it came: nothing is tried again, and nothing that the driver
knows changes, so that a test can send what is late, stale or wrong. The upper half (`init`, `send`, `send_offsets`,
`commit`, `abort`, `run_transaction`) reacts to errors as the stock producer does:

    15, 16, a lost connection       find the coordinator again, then the same request
    14, 51 and what is retriable    the same request, after a pause
    90, and 47 but from Produce     Fenced
    what only this transaction has  Abortable: `abort`, then go on
    the rest                        Fatal
    no end within `patience_ms`     TimedOut: the same call may be made again (from `send`: Abortable)

It needs nothing but a Runtime, so it works in the simulator and against a real server.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kits.wire.requests import GROUP_KEY, TRANSACTION_KEY, Wire, by_topic, rows_by_topic
from twofold.connections.errors import BrokerUnreachable
from twofold.connections.waiting import Deadline
from twofold.records.batch import BatchBuilder, increment_sequence
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    KafkaError,
    NetworkException,
    NotCoordinator,
    ProducerFenced,
    RequestTimedOut,
    raise_for,
)
from twofold.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from twofold.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from twofold.wire.messages.end_txn import EndTxnRequest
from twofold.wire.messages.init_producer_id import InitProducerIdRequest
from twofold.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from twofold.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

T = TypeVar("T")
Value = bytes | tuple[bytes | None, bytes | None]

CONCURRENT_BACKOFF_S = 0.02
FIRST_IMPLICIT_PRODUCE = 12
FIRST_TOPIC_ID_PRODUCE = 13


@dataclass(frozen=True, slots=True)
class Versions:
    init_producer_id: int = 5
    add_partitions: int = 3
    add_offsets: int = 4
    produce: int = 12
    txn_offset_commit: int = 5
    end_txn: int = 5

    @property
    def adds_implicitly(self) -> bool:
        return self.produce >= FIRST_IMPLICIT_PRODUCE


TV2 = Versions()
TV1 = Versions(produce=11, txn_offset_commit=4, end_txn=4)


class Identity(NamedTuple):
    producer_id: int = -1
    producer_epoch: int = -1


NO_IDENTITY = Identity()


class Member(NamedTuple):
    """Who commits offsets; the default is nobody in particular."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


NOBODY = Member()


class TransactionError(Exception):
    """What an application sees of an error that was not tried again. `in_doubt`: an attempt may have been carried out,
    although the call failed."""

    def __init__(self, api: str, error: KafkaError, in_doubt: bool = False) -> None:
        super().__init__(f"{api}: {error}" + (" (in doubt)" if in_doubt else ""))
        self.api = api
        self.error = error
        self.in_doubt = in_doubt


class Fenced(TransactionError):
    """A newer producer has this transactional id: the end of this one."""


class Abortable(TransactionError):
    """The transaction cannot commit; after `abort` the next one can."""


class Fatal(TransactionError):
    """The end of this producer."""


class TimedOut(TransactionError):
    """The answer is still open; calling again goes on with the same request."""


# By API and error code; what is not named is the API's last entry.
_OTHERS = None
_JUDGEMENT: Mapping[str, Mapping[int | None, type[TransactionError]]] = {
    "InitProducerId": {31: Abortable, 53: Abortable, _OTHERS: Fatal},
    "AddPartitionsToTxn": {48: Fatal, 49: Fatal, 53: Fatal, _OTHERS: Abortable},
    "AddOffsetsToTxn": {30: Abortable, 120: Abortable, _OTHERS: Fatal},
    "Produce": {31: Fatal, 35: Fatal, 48: Fatal, 49: Fatal, 53: Fatal, _OTHERS: Abortable},
    "TxnOffsetCommit": dict.fromkeys((22, 25, 30, 69, 82, 113, 120), Abortable) | {_OTHERS: Fatal},
    "EndTxn": {_OTHERS: Fatal},
    "EndTxn(commit)": {120: Abortable, _OTHERS: Fatal},
}


def judge(api: str, error: KafkaError, in_doubt: bool = False) -> TransactionError:
    """What a producer does about an error that it does not try again."""
    if isinstance(error, ProducerFenced) or (isinstance(error, InvalidProducerEpoch) and api != "Produce"):
        return Fenced(api, error, in_doubt)
    table = _JUDGEMENT[api]
    return table.get(error.code, table[_OTHERS])(api, error, in_doubt)


class TxnDriver(Wire):
    """One instance of a transactional id. Calls are made one after the other, as the stock producer does."""

    def __init__(
        self,
        runtime: Runtime,
        bootstrap_servers: str,
        transactional_id: str,
        *,
        versions: Versions = TV2,
        timeout_ms: int = 60_000,
        patience_ms: int = 60_000,
        **options: Any,
    ) -> None:
        super().__init__(runtime, bootstrap_servers, **{"client_id": transactional_id, **options})
        self.transactional_id = transactional_id
        self.versions = versions
        self.timeout_ms = timeout_ms
        self.patience_ms = patience_ms
        self.identity = Identity()
        self.partitions: set[TopicPartition] = set()
        """Of the open transaction, as the coordinator confirmed them (TV1) or may know them (TV2)."""
        self.groups: set[str] = set()
        self._sequences: dict[TopicPartition, int] = {}
        self._needs_new_epoch = False

    # Single requests, raw answers

    async def find_coordinator(self, *, version: int = 6) -> Any:
        return await self.find(self.transactional_id, TRANSACTION_KEY, version)

    async def init_producer_id(
        self, expected: Identity = NO_IDENTITY, *, timeout_ms: int | None = None, version: int | None = None
    ) -> Any:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms if timeout_ms is None else timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.producer_epoch,
        )
        return await self._coordinate(request, "InitProducerId", version or self.versions.init_producer_id)

    async def add_partitions(
        self, partitions: Iterable[TopicPartition], *, identity: Identity | None = None, version: int | None = None
    ) -> Any:
        """AddPartitionsToTxn 0 to 3, the versions of clients."""
        who = identity or self.identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in by_topic(sorted(partitions)).items()
            ],
        )
        chosen = self.versions.add_partitions if version is None else version
        return await self._coordinate(request, "AddPartitionsToTxn", chosen)

    async def add_offsets(self, group: str, *, identity: Identity | None = None, version: int | None = None) -> Any:
        who = identity or self.identity
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            group_id=group,
        )
        chosen = self.versions.add_offsets if version is None else version
        return await self._coordinate(request, "AddOffsetsToTxn", chosen)

    async def produce(self, batches: Mapping[TopicPartition, bytes], *, version: int | None = None) -> Any:
        """All of the batches in one request, to the leader of the first; acks=all."""
        version = version or self.versions.produce
        node_id = await self.leader(next(iter(batches)))
        topics = []
        for name, rows in rows_by_topic(batches).items():
            topic = await self.cluster.topic(name, self.cluster.deadline())
            data = [PartitionProduceData(index=index, records=batch) for index, batch in rows]
            topics.append(TopicProduceData(name=name, topic_id=topic.topic_id, partition_data=data))
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=self.cluster.config.request_timeout_ms,
            topic_data=topics,
        )
        return await self.ask(node_id, request, "Produce", version)

    async def txn_offset_commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        member: Member = NOBODY,
        identity: Identity | None = None,
        version: int | None = None,
    ) -> Any:
        who = identity or self.identity
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=""
                        )
                        for index, offset in rows
                    ],
                )
                for name, rows in rows_by_topic(offsets).items()
            ],
        )
        node_id = await self.coordinator(group, GROUP_KEY)
        chosen = self.versions.txn_offset_commit if version is None else version
        return await self.ask(node_id, request, "TxnOffsetCommit", chosen)

    async def end_txn(self, commit: bool, *, identity: Identity | None = None, version: int | None = None) -> Any:
        who = identity or self.identity
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            committed=commit,
        )
        chosen = self.versions.end_txn if version is None else version
        return await self._coordinate(request, "EndTxn", chosen)

    def batch(
        self, values: Sequence[Value], sequence: int, *, identity: Identity | None = None, transactional: bool = True
    ) -> bytes:
        who = identity or self.identity
        builder = BatchBuilder(
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        now_ms = self.runtime.clock.wall_ms()
        for value in values:
            key, data = value if isinstance(value, tuple) else (None, value)
            builder.add(key, data, now_ms)
        return builder.build()

    async def _coordinate(self, request: Any, api: str, version: int) -> Any:
        node_id = await self.coordinator(self.transactional_id, TRANSACTION_KEY)
        return await self.ask(node_id, request, api, version)

    # What the stock producer makes of them

    async def init(self, expected: Identity = NO_IDENTITY) -> Identity:
        """initTransactions: fences whoever had this id before."""

        async def attempt() -> Identity:
            answer = await self.init_producer_id(expected)
            raise_for(answer.error_code, self.transactional_id)
            return Identity(answer.producer_id, answer.producer_epoch)

        self._adopt(await self._insist("InitProducerId", attempt))
        return self.identity

    async def send(self, records: Mapping[TopicPartition, Sequence[Value]]) -> dict[TopicPartition, int]:
        """The base offset of each partition's batch, once all are acknowledged."""
        if not self.versions.adds_implicitly:
            await self._add(set(records) - self.partitions)
        batches = {}
        for tp, values in records.items():
            sequence = self._sequences.get(tp, 0)
            batches[tp] = self.batch(values, sequence)
            self._sequences[tp] = increment_sequence(sequence, len(values))
        self.partitions.update(records)
        offsets: dict[TopicPartition, int] = {}
        try:
            await self._insist("Produce", lambda: self._produce_rest(batches, offsets))
        except TransactionError as error:
            # Which sequences the broker has seen is not known any more.
            self._needs_new_epoch = True
            if isinstance(error, TimedOut):
                raise Abortable("Produce", error.error, error.in_doubt) from error
            raise
        return offsets

    async def _add(self, partitions: set[TopicPartition]) -> None:
        async def attempt() -> None:
            answer = await self.add_partitions(partitions)
            rows = [row for topic in answer.results_by_topic_v3_and_below for row in topic.results_by_partition]
            _raise_worst([row.partition_error_code for row in rows], f"{sorted(partitions)}")

        if partitions:
            await self._insist("AddPartitionsToTxn", attempt)
            self.partitions |= partitions

    async def _produce_rest(self, batches: Mapping[TopicPartition, bytes], offsets: dict[TopicPartition, int]) -> None:
        """Those of the batches that have no offset yet; the same bytes as before, so that a repetition is known."""
        rest = {tp: batch for tp, batch in batches.items() if tp not in offsets}
        answer = await self.produce(rest)
        codes = []
        for topic in answer.responses:
            for row in topic.partition_responses:
                name = topic.name or self.cluster.cache.name_of(topic.topic_id)
                if row.error_code == 0:
                    assert name is not None, topic
                    offsets[TopicPartition(name, row.index)] = row.base_offset
                codes.append(row.error_code)
        _raise_worst(codes, f"{sorted(rest)}")

    async def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int], *, member: Member = NOBODY) -> None:
        """sendOffsetsToTransaction."""

        async def add() -> None:
            raise_for((await self.add_offsets(group)).error_code, group)

        async def commit() -> None:
            answer = await self.txn_offset_commit(group, offsets, member=member)
            _raise_worst([row.error_code for topic in answer.topics for row in topic.partitions], group)

        if not self.versions.adds_implicitly and group not in self.groups:
            await self._insist("AddOffsetsToTxn", add)
        self.groups.add(group)
        await self._insist("TxnOffsetCommit", commit)

    async def commit(self) -> None:
        if self.partitions or self.groups:
            await self._end(True)

    async def abort(self) -> None:
        """Also what is left to do after Abortable. A TV2 client asks always: it may not know what it has begun."""
        if self.versions.adds_implicitly or self.partitions or self.groups:
            await self._end(False)
        if self._needs_new_epoch:
            await self.init(self.identity)

    async def _end(self, commit: bool) -> None:
        async def attempt() -> Any:
            answer = await self.end_txn(commit)
            raise_for(answer.error_code, self.transactional_id)
            return answer

        answer = await self._insist("EndTxn(commit)" if commit else "EndTxn", attempt)
        self.partitions.clear()
        self.groups.clear()
        if self.versions.end_txn >= 5 and answer.producer_id != -1:
            self._adopt(Identity(answer.producer_id, answer.producer_epoch))

    def _adopt(self, identity: Identity) -> None:
        """A new epoch counts its records from 0."""
        self.identity = identity
        self.partitions.clear()
        self.groups.clear()
        self._sequences.clear()
        self._needs_new_epoch = False

    async def run_transaction(
        self,
        records: Mapping[TopicPartition, Sequence[Value]],
        offsets: tuple[str, Mapping[TopicPartition, int]] | None = None,
        *,
        commit: bool = True,
        member: Member = NOBODY,
    ) -> dict[TopicPartition, int]:
        """Send, send offsets, end. After Abortable the transaction is aborted already."""
        try:
            sent = await self.send(records) if records else {}
            if offsets is not None:
                await self.send_offsets(*offsets, member=member)
            if commit:
                await self.commit()
            else:
                await self.abort()
        except Abortable:
            await self.abort()
            raise
        return sent

    # Trying again

    async def _insist(self, api: str, attempt: Callable[[], Awaitable[T]]) -> T:
        config = self.cluster.config
        deadline = Deadline(self.runtime.clock, self.patience_ms, "patience_ms")
        failures = 0
        in_doubt = False
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                in_doubt |= not isinstance(error, _REFUSED) and (_is_tried_again(error) or error.code < 0)
                if not _is_tried_again(error):
                    raise judge(api, error, in_doubt) from error
                if isinstance(error, CoordinatorNotAvailable | NotCoordinator | NetworkException) or api == "Produce":
                    self.forget()
                failures += 1
                pause_s = config.retry_backoff.delay_s(failures, self.runtime.random)
                if isinstance(error, ConcurrentTransactions):
                    pause_s = CONCURRENT_BACKOFF_S
                if pause_s >= deadline.remaining_s():
                    raise TimedOut(api, error, in_doubt) from error
            await self.runtime.timers.sleep(pause_s)


# Told before anything was done.
_REFUSED = (ConcurrentTransactions, CoordinatorLoadInProgress, BrokerUnreachable)


def _is_tried_again(error: KafkaError) -> bool:
    # Whoever gave up waiting inside the cluster was waiting for a broker that may come back.
    return error.retriable or isinstance(error, RequestTimedOut)


def _raise_worst(codes: Sequence[int], text: str) -> None:
    """Raise what must not be tried again before what may be."""
    errors = []
    for code in codes:
        try:
            raise_for(code, text)
        except KafkaError as error:
            errors.append(error)
    for worst in sorted(errors, key=lambda error: error.retriable):
        raise worst
