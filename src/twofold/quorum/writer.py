"""How operations get into the metadata log: as one batch, or as a metadata transaction (KIP-868).

1. What fits into one append is one batch, which is there entirely or not at all.
2. What does not is Begin, its records in many batches, and End. Between two batches the event loop goes on, so that a
   topic of 100,000 partitions delays no other record, heartbeat or read.
3. One operation at a time, and no foreign records inside it: a request that comes meanwhile waits in line and is
   decided on the image after it. A request that has nothing to write on the published image is answered at once.
4. An operation that fails on its way is ended by Abort, and the state is as before it; so is one that is cut short by
   a controller that stops. One that is lost with the leadership is aborted by the next leader.
5. The client's answer comes when End is committed and every subscriber has seen the image after it; so does an
   answer about what another request has written, such as that a topic exists already.
6. A cluster whose metadata.version does not know transactions gets one batch of what a batch may hold, or a refusal.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from twofold.controller.features import supports_transactions
from twofold.controller.image import METADATA_VERSION
from twofold.controller.operation import Begin, Operation, advance
from twofold.controller.records import AbortTransaction, BeginTransaction, Config, EndTransaction, MetadataRecord
from twofold.controller.replay import ControllerState
from twofold.machine.runtime import MAX_PENDING, MachineRuntime, Result
from twofold.runtime.api import Runtime
from twofold.wire.errors import KafkaError, NotController, PolicyViolation

T = TypeVar("T")

APPEND_RECORDS = 500  # of one append, and the steps of an operation in one turn of the event loop
APPEND_BYTES = 1024 * 1024  # about; only values of configurations are ever long
ATOMIC_RECORDS = 10_000  # of one batch where there are no transactions: Kafka's bound
MAX_TEXT_BYTES = 255  # of the name of a transaction and of the reason of its end

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job(Generic[T]):
    """An operation that takes more than one turn of the event loop."""

    name: str
    operation: Operation[T]
    epoch: int
    transactional: bool
    answer: "asyncio.Future[T]"
    records: list[MetadataRecord]  # decided, not appended
    response: T  # once it is decided to the end
    is_decided: bool
    begun: bool = False


class MetadataWriter:
    def __init__(self, machine: MachineRuntime[ControllerState, MetadataRecord], runtime: Runtime) -> None:
        self._machine = machine
        self._runtime = runtime
        self._job: _Job[Any] | None = None
        self._line: deque[tuple[Begin[Any], str, asyncio.Future[Any]]] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether an operation is under way that others wait for."""
        return self._job is not None

    def submit(self, begin: Begin[T], name: str) -> "asyncio.Future[T]":
        """Do the operation that `begin` makes of an image; what is wrong already is raised.

        `begin` may be called twice: on the image that others see, to find out whether there is anything to write.
        """
        self._machine.check_writable()
        return self._start(begin, name) if self._job is None else self._stand_in_line(begin, name)

    def _start(self, begin: Begin[T], name: str) -> "asyncio.Future[T]":
        image = self._machine.state.image
        operation = begin(image)
        records: list[MetadataRecord] = []
        response, is_done = advance(operation, records, APPEND_RECORDS)
        if is_done and _fitting(records) == len(records):
            return self._write(records, response)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        transactional = supports_transactions(image)
        self._job = job = _Job(name, operation, self._machine.epoch, transactional, answer, records, response, is_done)
        self._runtime.spawn(self._go_on(job), name=f"metadata operation {name}")
        return answer

    def _write(self, records: list[MetadataRecord], response: T) -> "asyncio.Future[T]":
        # Without records it is an answer about what is there, and of that a part may be lost yet.
        return self._machine.write(lambda state, now: Result(records, response, wait=True))

    def _stand_in_line(self, begin: Begin[T], name: str) -> "asyncio.Future[T]":
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        operation = begin(self._machine.committed.image)
        records: list[MetadataRecord] = []
        for _ in range(APPEND_RECORDS):
            response, is_done = advance(operation, records, 1)
            if is_done and not records:
                answer.set_result(response)
                return answer
            if records:
                break
        operation.close()
        if len(self._line) >= MAX_PENDING:
            raise NotController(f"{len(self._line)} requests wait for the end of a metadata transaction")
        self._line.append((begin, name, answer))
        return answer

    # -- an operation in many turns

    async def _go_on(self, job: _Job[T]) -> None:
        try:
            response = await self._write_all(job)
        except Exception as error:
            self._fail(job, error)
        else:
            if response is not None:
                _pass_on(response, job.answer)
        finally:
            if self._job is job:
                self._job = None
                self._serve_line()

    async def _write_all(self, job: _Job[T]) -> "asyncio.Future[T] | None":
        while True:
            await self._runtime.timers.sleep(0)
            if self._job is not job:
                return None  # `stop()` took this job and has failed its answer
            # What is one batch is decided to its end; pieces of a transaction leave before the next are decided.
            if not job.is_decided and (not job.transactional or len(job.records) <= APPEND_RECORDS):
                job.response, job.is_decided = advance(job.operation, job.records, APPEND_RECORDS)
            if not job.transactional:
                _check_atomic(job)
            if job.is_decided and (not job.transactional or _fitting(job.records) == len(job.records)):
                records = [*job.records, EndTransaction()] if job.begun else job.records
                return self._write(records, job.response)
            if job.transactional and (job.is_decided or len(job.records) >= APPEND_RECORDS):
                self._append_piece(job)

    def _append_piece(self, job: _Job[Any]) -> None:
        count = _fitting(job.records)
        records, job.records = job.records[:count], job.records[count:]
        if not job.begun:
            records.insert(0, BeginTransaction(shortened(job.name)))
        self._machine.extend(records, job.epoch)
        job.begun = True

    def _fail(self, job: _Job[Any], error: Exception) -> None:
        if self._job is job and job.begun:
            self._abort(job, f"{job.name}: {error}")
        if not job.answer.done():
            job.answer.set_exception(error)

    def _abort(self, job: _Job[Any], reason: str) -> None:
        try:
            self._machine.extend([AbortTransaction(shortened(reason))], job.epoch)
        except KafkaError as error:
            log.info("a metadata transaction is left to the next leader to abort: %s", error)

    def _serve_line(self) -> None:
        while self._line and self._job is None:
            begin, name, answer = self._line.popleft()
            if answer.done():
                continue  # no request waits any more
            try:
                self._machine.check_writable()
                started = self._start(begin, name)
            except Exception as error:
                answer.set_exception(error)
            else:
                _pass_on(started, answer)

    # -- the end of leading

    def stop(self, error: KafkaError, *, reason: str | None = None) -> None:
        """End the job under way and refuse the jobs in line; with `reason` the log is still ours, and gets Abort."""
        job, self._job = self._job, None
        answers = [answer for _, _, answer in self._line]
        self._line.clear()
        if job is not None:
            job.operation.close()
            if job.begun and reason is not None:
                self._abort(job, reason)
            answers.append(job.answer)
        for answer in answers:
            if not answer.done():
                answer.set_exception(type(error)(error.message))


def _check_atomic(job: _Job[Any]) -> None:
    if len(job.records) > ATOMIC_RECORDS:
        raise PolicyViolation(
            f"{job.name} needs more than {ATOMIC_RECORDS} metadata records, which takes a metadata transaction: "
            f"upgrade {METADATA_VERSION} to 13 (3.6-IV1) or newer, or ask for less at a time"
        )


def _fitting(records: Sequence[MetadataRecord]) -> int:
    """How many of the first records go into one append; one at least, where there is one."""
    size = 0
    for count, record in enumerate(records[:APPEND_RECORDS]):
        if isinstance(record, Config):
            size += len(record.value or "")
            if size > APPEND_BYTES and count:
                return count
    return min(len(records), APPEND_RECORDS)


def _pass_on(source: "asyncio.Future[T]", target: "asyncio.Future[T]") -> None:
    def settle(_: "asyncio.Future[T]") -> None:
        if source.cancelled():
            return
        error = source.exception()
        if target.done():
            return  # no request waits any more
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(source.result())

    source.add_done_callback(settle)


def shortened(text: str) -> str:
    """At most so many bytes as a transaction's texts may have, cut at a character."""
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
