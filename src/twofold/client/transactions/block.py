"""`async with producer.transaction() as txn`: how a transaction ends when the block does."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.errors import Fenced, InDoubt
from twofold.client.producer.accumulator import ColumnDelivery, Delivery
from twofold.client.transactions.prepared import PreparedTxnState
from twofold.client.transactions.states import ManagerState
from twofold.records.batch import RecordHeader
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

if TYPE_CHECKING:
    from twofold.client.producer.producer import Producer

# Where the end of the block commits, or says why it cannot; elsewhere the block has decided itself.
UNDECIDED = (ManagerState.IN_TRANSACTION, ManagerState.PREPARED, ManagerState.ABORTABLE_ERROR, ManagerState.FATAL_ERROR)
ABORTS = (ManagerState.IN_TRANSACTION, ManagerState.PREPARING, ManagerState.PREPARED, ManagerState.ABORTABLE_ERROR)


class Transaction:
    """1. The end of the block commits, unless the block has committed or aborted itself.
    2. An exception aborts, and goes on; that the abort failed, too, is a note on it. But an error of the client's own
       gives way to Fenced, when that is what the abort finds: the advice to abort and begin again would be wrong.
    3. Once prepared, an exception sends nothing: it becomes the cause of InDoubt. One that is no Exception (an
       interrupt, a cancellation) stays what it is, and gets a note.
    """

    def __init__(self, producer: "Producer") -> None:
        self._producer = producer

    @property
    def prepared_state(self) -> PreparedTxnState:
        """Empty until `prepare` returned."""
        return self._producer._transactions.prepared

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[RecordHeader] = (),
    ) -> Delivery:
        return await self._producer.send(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    async def send_batch(
        self, topic: str, keys: Any, values: Any, *, partition: int | None = None, timestamp_ms: int | None = None
    ) -> ColumnDelivery:
        return await self._producer.send_batch(topic, keys, values, partition=partition, timestamp_ms=timestamp_ms)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | ConsumerGroupMetadata
    ) -> None:
        await self._producer.send_offsets_to_transaction(offsets, group)

    async def prepare(self) -> PreparedTxnState:
        return await self._producer.prepare_transaction()

    async def commit(self) -> None:
        await self._producer.commit_transaction()

    async def abort(self) -> None:
        await self._producer.abort_transaction()

    @property
    def aborts_on_error(self) -> bool:
        """Whether leaving the block by an exception would abort now."""
        transactions = self._producer._transactions
        return transactions.state in ABORTS and not transactions.prepared

    async def __aenter__(self) -> "Transaction":
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transactions = self._producer._transactions
        if error is None:
            if transactions.state in UNDECIDED:
                await self._commit()
        elif transactions.prepared:
            doubt = InDoubt(transactions.prepared)
            if isinstance(error, Exception):
                raise doubt from error
            error.add_note(str(doubt))
        elif self.aborts_on_error:
            await self._abort(error)

    async def _commit(self) -> None:
        try:
            await self._producer.commit_transaction()
        except KafkaError as error:
            if self._producer._transactions.state is ManagerState.ABORTABLE_ERROR and await self._abort(error):
                error.add_note("the block has aborted the transaction: the next one can begin")
            raise

    async def _abort(self, error: BaseException) -> bool:
        """Whether it is aborted; otherwise a note says why not."""
        try:
            await self._producer.abort_transaction()
            return True
        except KafkaError as another:
            if isinstance(another, Fenced) and isinstance(error, KafkaError):
                raise another from error
            error.add_note(f"the transaction could not be aborted either: {another}")
            return False
