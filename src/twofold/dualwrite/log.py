"""The log's part of a dual write: the operations of the protocol on a producer, for the two fronts.

A producer lives from one take-over to the next: FenceLog makes a new one and closes the one before. What became of
earlier transactions is asked of an administrator's client, which is closed after the answer.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import twofold.client.admin.blocking as blocking_admin
import twofold.client.producer.blocking as blocking_producer
from twofold.client.admin.admin import Admin as AioAdmin
from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.admin.model import Results
from twofold.client.admin.transaction_model import TransactionDescription
from twofold.client.config import ClientConfig, ProducerConfig, from_keywords
from twofold.client.errors import PreparedAborted
from twofold.client.producer import accumulator
from twofold.client.producer.producer import Producer as AioProducer
from twofold.client.transactions.prepared import PreparedTxnState, TransactionOutcome
from twofold.connections.errors import GaveUp
from twofold.dualwrite.errors import Unsuitable
from twofold.dualwrite.operations import (
    Answer,
    Away,
    Contradicted,
    Failed,
    FencedOff,
    Kept,
    LastEnded,
    LogEnded,
    Ok,
    Prepared,
)
from twofold.records.batch import RecordHeader
from twofold.types import TopicPartition
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
)

FENCING = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)
Offsets: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]
Group: TypeAlias = str | ConsumerGroupMetadata
Described: TypeAlias = Results[str, TransactionDescription]


def producer_config(transactional_id: str, options: Mapping[str, Any]) -> ProducerConfig:
    """The settings of the producer; those that the protocol needs are not for the caller to choose."""
    for name in ("transactional_id", "transaction_two_phase_commit_enable", "transaction_timeout_ms"):
        if name in options:
            raise ValueError(f"{name} is set by the dual write itself")
    return from_keywords(
        ProducerConfig,
        {**options, "transactional_id": transactional_id, "transaction_two_phase_commit_enable": True},
    )


def admin_options(config: ProducerConfig) -> dict[str, Any]:
    """Of the administrator's client beside that producer. It waits no longer than the producer would."""
    names = ClientConfig.__dataclass_fields__
    options = {name: getattr(config, name) for name in names}
    options["default_api_timeout_ms"] = min(config.default_api_timeout_ms, config.max_block_ms)
    return options


# Answers


def answer_of(error: KafkaError) -> Answer:
    """What an error of the producer means for the protocol."""
    if isinstance(error, PreparedAborted):
        return Contradicted(error)
    if is_forgotten(error):
        return Failed(error)
    if isinstance(error, FENCING):
        return FencedOff(error)
    if isinstance(error, GaveUp) or error.retriable:
        return Away(error)
    return Failed(error)


def is_forgotten(error: KafkaError) -> bool:
    """Whether the id has another producer id now, or none because it was not used for long: the row tells whether
    another process has taken over, or this one has only been idle."""
    return isinstance(error, InvalidProducerIdMapping) or isinstance(error.__cause__, InvalidProducerIdMapping)


def refused_commit(error: KafkaError) -> Answer:
    """The same of a commit: where the records are gone, the log cannot do any more what the database has done."""
    if isinstance(error.__cause__, TransactionAbortable):
        return Contradicted(error)
    if is_forgotten(error):
        return FencedOff(error)  # nothing is forgotten while it is open: another process has ended it
    return answer_of(error)


def kept_of(kept: PreparedTxnState, described: Described, transactional_id: str) -> Answer:
    found = described.values.get(transactional_id)
    last = None if found is None else found.last_two_phase
    return Kept(kept, None if last is None else LastEnded(last.state, last.is_committed))


def outcome_of(state: PreparedTxnState, described: Described, transactional_id: str) -> Answer:
    found = described.values.get(transactional_id)
    outcome = None if found is None else found.outcome_of(state.producer_id, state.epoch)
    return Failed() if outcome is None else LogEnded(outcome)


def ended_of(outcome: TransactionOutcome) -> Answer:
    """NOTHING: the transaction had no records, and so nothing of it is missing."""
    return LogEnded(outcome is not TransactionOutcome.ABORTED)


def block_has_ended(transactional_id: str) -> Unsuitable:
    return Unsuitable(
        f"the block of transaction() of {transactional_id!r} has ended: what it sends would be in another's",
        transactional_id=transactional_id,
    )


# Without asyncio


class BlockingLog:
    def __init__(self, config: ProducerConfig) -> None:
        assert config.transactional_id is not None
        self.config = config
        self.transactional_id = config.transactional_id
        self._producer: blocking_producer.Producer | None = None

    @property
    def producer(self) -> blocking_producer.Producer:
        assert self._producer is not None, "no take-over before"
        return self._producer

    def cluster_id(self) -> str:
        with self._admin() as admin:
            return admin.describe_cluster().cluster_id

    def fence(self) -> Answer:
        try:
            self.close()
            self._producer = blocking_producer.Producer.of(self.config)
            kept = self._producer.init_transactions(keep_prepared_txn=True)
            with self._admin() as admin:
                described = admin.describe_transactions([self.transactional_id])
            return kept_of(kept, described, self.transactional_id)
        except KafkaError as error:
            return answer_of(error)

    def begin(self) -> Answer:
        try:
            self.producer.begin_transaction()
            return Ok()
        except KafkaError as error:
            return answer_of(error)

    def prepare(self) -> Answer:
        try:
            return Prepared(self.producer.prepare_transaction())
        except KafkaError as error:
            return answer_of(error)

    def complete(self, state: PreparedTxnState) -> Answer:
        try:
            return ended_of(self.producer.complete_transaction(state))
        except KafkaError as error:
            return refused_commit(error)

    def abort(self) -> Answer:
        try:
            self.producer.abort_transaction()
            return Ok()
        except KafkaError as error:
            return answer_of(error)

    def ask(self, state: PreparedTxnState) -> Answer:
        try:
            with self._admin() as admin:
                described = admin.describe_transactions([self.transactional_id])
            return outcome_of(state, described, self.transactional_id)
        except KafkaError as error:
            return Away(error)

    def close(self) -> None:
        """What is prepared stays as it is."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(flush=False)

    def _admin(self) -> blocking_admin.Admin:
        return blocking_admin.Admin(**admin_options(self.config))


class Records:
    """What a block sends to the log."""

    def __init__(self, producer: blocking_producer.Producer, transactional_id: str) -> None:
        self._open: blocking_producer.Producer | None = producer
        self._transactional_id = transactional_id

    def end(self) -> None:
        """With its block: the producer's next transaction is another one's."""
        self._open = None

    @property
    def _producer(self) -> blocking_producer.Producer:
        if self._open is None:
            raise block_has_ended(self._transactional_id)
        return self._open

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[RecordHeader] = (),
    ) -> blocking_producer.Delivery:
        """See `twofold.Producer.send`."""
        return self._producer.send(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    def send_batch(
        self, topic: str, keys: Any, values: Any, *, partition: int | None = None, timestamp_ms: int | None = None
    ) -> blocking_producer.ColumnDelivery:
        """See `twofold.Producer.send_batch`."""
        return self._producer.send_batch(topic, keys, values, partition=partition, timestamp_ms=timestamp_ms)

    def send_offsets(self, offsets: Offsets, group: Group) -> None:
        """Commit a group's offsets as a part of the transaction."""
        self._producer.send_offsets_to_transaction(offsets, group)


# With asyncio


class AioLog:
    def __init__(self, config: ProducerConfig) -> None:
        assert config.transactional_id is not None
        self.config = config
        self.transactional_id = config.transactional_id
        self._producer: AioProducer | None = None

    @property
    def producer(self) -> AioProducer:
        assert self._producer is not None, "no take-over before"
        return self._producer

    async def cluster_id(self) -> str:
        async with self._admin() as admin:
            return (await admin.describe_cluster()).cluster_id

    async def fence(self) -> Answer:
        try:
            await self.close()
            self._producer = AioProducer.of(self.config)
            kept = await self._producer.init_transactions(keep_prepared_txn=True)
            async with self._admin() as admin:
                described = await admin.describe_transactions([self.transactional_id])
            return kept_of(kept, described, self.transactional_id)
        except KafkaError as error:
            return answer_of(error)

    async def begin(self) -> Answer:
        try:
            await self.producer.begin_transaction()
            return Ok()
        except KafkaError as error:
            return answer_of(error)

    async def prepare(self) -> Answer:
        try:
            return Prepared(await self.producer.prepare_transaction())
        except KafkaError as error:
            return answer_of(error)

    async def complete(self, state: PreparedTxnState) -> Answer:
        try:
            return ended_of(await self.producer.complete_transaction(state))
        except KafkaError as error:
            return refused_commit(error)

    async def abort(self) -> Answer:
        try:
            await self.producer.abort_transaction()
            return Ok()
        except KafkaError as error:
            return answer_of(error)

    async def ask(self, state: PreparedTxnState) -> Answer:
        try:
            async with self._admin() as admin:
                described = await admin.describe_transactions([self.transactional_id])
            return outcome_of(state, described, self.transactional_id)
        except KafkaError as error:
            return Away(error)

    async def close(self) -> None:
        """What is prepared stays as it is."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(flush=False)

    def _admin(self) -> AioAdmin:
        return AioAdmin(**admin_options(self.config))


class AsyncRecords:
    """What a block sends to the log."""

    def __init__(self, producer: AioProducer, transactional_id: str) -> None:
        self._open: AioProducer | None = producer
        self._transactional_id = transactional_id

    def end(self) -> None:
        """With its block: the producer's next transaction is another one's."""
        self._open = None

    @property
    def _producer(self) -> AioProducer:
        if self._open is None:
            raise block_has_ended(self._transactional_id)
        return self._open

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[RecordHeader] = (),
    ) -> accumulator.Delivery:
        """See `twofold.aio.Producer.send`."""
        return await self._producer.send(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    async def send_batch(
        self, topic: str, keys: Any, values: Any, *, partition: int | None = None, timestamp_ms: int | None = None
    ) -> accumulator.ColumnDelivery:
        """See `twofold.aio.Producer.send_batch`."""
        return await self._producer.send_batch(topic, keys, values, partition=partition, timestamp_ms=timestamp_ms)

    async def send_offsets(self, offsets: Offsets, group: Group) -> None:
        """Commit a group's offsets as a part of the transaction."""
        await self._producer.send_offsets_to_transaction(offsets, group)
