"""The wire-level driver as a transactional client: the newer protocol (TV2) without any client library."""

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from kits.clients.transactional import LIMIT, PATIENCE_S, Refused, Row, Source
from kits.wire.driver import TV2, Abortable, Fatal, Fenced, TransactionError, TxnDriver, Versions
from kits.wire.reader import TxnReader
from twofold.runtime.api import Runtime
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

KINDS = {Fenced: "fenced", Abortable: "abortable", Fatal: "fatal"}


class SingleRequests:
    """Reads with partitions assigned by hand; what it may send is what `TxnDriver` makes of the answers."""

    def __init__(self, address: str, versions: Versions = TV2) -> None:
        self.address, self._versions = address, versions
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._driver: TxnDriver | None = None
        self._reader: TxnReader | None = None
        self._rows: deque[Row] = deque()
        self._runtime: Runtime = self._do(self._make_runtime())

    async def _make_runtime(self) -> Runtime:
        return real_runtime()

    def _do(self, story: Coroutine[Any, Any, Any], patience_s: float = PATIENCE_S) -> Any:
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(story, patience_s), self._loop)
        try:
            return future.result(patience_s + 5)
        except TransactionError as error:
            raise Refused(KINDS.get(type(error), "fatal"), type(error.error).__name__, str(error)) from error
        except KafkaError as error:
            raise Refused("abortable", type(error).__name__, str(error)) from error
        except TimeoutError as error:
            raise Refused("fatal", "Timeout", f"no end within {patience_s} s") from error

    def open(self, transactional_id: str, timeout_ms: int, source: Source | None = None) -> None:
        self._id, self._timeout_ms, self._source = transactional_id, timeout_ms, source
        self.reopen()

    def reopen(self) -> None:
        self._do(self._reopen(), 2 * PATIENCE_S)

    async def _reopen(self) -> None:
        await self._close()
        patience_ms = int(PATIENCE_S * 1000)
        self._driver = TxnDriver(
            self._runtime, self.address, self._id,
            versions=self._versions, timeout_ms=self._timeout_ms, patience_ms=patience_ms, request_timeout_ms=10_000,
        )  # fmt: skip
        await self._driver.init()
        if self._source is not None:
            where = [TopicPartition(self._source.topic, index) for index in range(self._source.partitions)]
            self._reader = TxnReader(self._runtime, self.address, where, request_timeout_ms=10_000)
            committed = await self._reader.committed(self._source.group, where)
            self._reader.positions = {at: max(offset, 0) for at, offset in committed.items()}
            self._rows.clear()

    @property
    def _producer(self) -> TxnDriver:
        assert self._driver is not None
        return self._driver

    def begin(self) -> None:
        self._batches: dict[TopicPartition, list[bytes]] = {}

    def send(self, topic: str, rows: Sequence[tuple[int, str]]) -> None:
        for partition, value in rows:
            self._batches.setdefault(TopicPartition(topic, partition), []).append(value.encode())

    def flush(self) -> None:
        batches, self._batches = self._batches, {}
        if batches:
            self._do(self._producer.send(batches))

    def send_offsets(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        offsets = {TopicPartition(topic, partition): offset for partition, offset in positions.items()}
        self._do(self._producer.send_offsets(group, offsets))

    def commit(self) -> bool:
        self.flush()
        self._do(self._producer.commit())
        return True

    def abort(self) -> None:
        self._do(self._producer.abort())

    def poll(self, wait_s: float) -> list[Row]:
        assert self._reader is not None
        if not self._rows:
            before = dict(self._reader.positions)
            try:
                seen = self._do(self._reader.poll(int(wait_s * 1000)))
            except Refused:
                self._reader.positions = before  # an error of one partition takes the records of the others with it
                raise
            self._rows.extend(Row(row.topic_partition.partition, row.offset, row.value.decode()) for row in seen)
        return [self._rows.popleft() for _ in range(min(LIMIT, len(self._rows)))]

    def rewind(self, positions: Mapping[int, int]) -> None:
        """What was fetched and not handed out yet comes again too."""
        assert self._reader is not None and self._source is not None
        first = dict(positions)
        for row in self._rows:
            first.setdefault(row.partition, row.offset)
        self._rows.clear()
        for partition, offset in first.items():
            self._reader.positions[TopicPartition(self._source.topic, partition)] = offset

    def read(self, topic: str, partitions: int, *, committed: bool) -> list[Row]:
        return self._do(self._read(topic, partitions, committed), 4 * PATIENCE_S)  # type: ignore[no-any-return]

    async def _read(self, topic: str, partitions: int, committed: bool) -> list[Row]:
        where = [TopicPartition(topic, index) for index in range(partitions)]
        reader = TxnReader(self._runtime, self.address, where, committed=committed)
        try:
            seen = await reader.read_to_end(100)
        finally:
            await reader.close()
        return [Row(row.topic_partition.partition, row.offset, (row.value or b"").decode()) for row in seen]

    async def _close(self) -> None:
        for part in (self._driver, self._reader):
            if part is not None:
                await part.close()
        self._driver = self._reader = None

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
