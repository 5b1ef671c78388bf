"""A look at every partition that has a log, soon after the start and without haste.

Logs are opened when they are first used. What only an opened log can tell (which transactions are open, where the last
stable offset stands, how many producers are remembered) would be missing from the metrics, and the alerts blind, until
a client came by.

1. Each log is opened. Where a transaction is open, or a killed process left the high watermark behind, the broker leads
   the partition at once, as it would for the first request; the others stay as a clean shutdown left them, so that the
   next stop has nothing to write for them. `remaining` says how many are still to come: "none" can be told from "not
   known yet".
2. Requests go first. A turn takes about half a millisecond and is followed by a rest four times as long; only where
   that would take longer than `WITHIN_S` in all are the rests shorter.
3. The event loop does not wait for the disk: a thread reads what an opening reads, some partitions ahead.
4. What a killed process left unsynced is synced in threads, some partitions at a time, before the partition is led:
   leading would do it on the event loop.
5. A log that cannot be opened stays counted and is tried again: what is in it is unknown.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from twofold.broker.partitions.partition import must_sync_first
from twofold.broker.partitions.replicas import ReplicaManager
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, KafkaStorageError

WITHIN_S = 20.0
TURN_S = 0.0005
LOOKS_PER_TURN = 8
REST = 4.0  # for each second of work
READ_AHEAD = 32
SYNCS_AT_ONCE = 16
AGAIN_S = 10.0

log = logging.getLogger(__name__)


class FirstLook:
    def __init__(self, replicas: ReplicaManager, logs: LogManager, runtime: Runtime) -> None:
        self._replicas = replicas
        self._logs = logs
        self._runtime = runtime
        self._waiting: deque[PartitionLog] = deque()
        self._unsynced: list[PartitionLog] = []
        self._failed: list[TopicPartition] = []
        self.on_walked: Callable[[], None] | None = None  # each was looked at, or could not be

    @property
    def remaining(self) -> int:
        return len(self._waiting) + len(self._unsynced) + len(self._failed)

    def begin(self) -> None:
        """Note what is to be looked at; before the first request, so that the count is right from the beginning."""
        self._waiting.extend(known for known in self._logs.logs() if known.exists)

    async def run(self) -> None:
        started = self._runtime.clock.monotonic()
        count = len(self._waiting)
        await self._walk()
        if self.on_walked is not None:
            self.on_walked()
        while self._failed:
            await self._runtime.timers.sleep(AGAIN_S)
            # A log may have been deleted meanwhile, or opened anew, which makes another object of it.
            again = [known for name in self._failed if (known := self._logs.get(name)) is not None]
            self._waiting.extend(again)
            self._failed.clear()
            await self._walk()
        log.info("looked at %d partitions in %.1f s", count, self._runtime.clock.monotonic() - started)

    async def _walk(self) -> None:
        deadline = self._runtime.clock.monotonic() + WITHIN_S
        while self._waiting:
            ahead = min(READ_AHEAD, len(self._waiting))
            reads = [known.read_ahead() for known in islice(self._waiting, ahead) if not known.is_open]
            if reads:  # none after a recovery, which has opened them all
                await self._runtime.blocking(_do_all, reads)
            while ahead > 0:
                ahead -= await self._turn(deadline)
            if len(self._unsynced) >= SYNCS_AT_ONCE:
                await self._sync()
        await self._sync()

    async def _turn(self, deadline: float) -> int:
        """Look for a moment, then rest; returns at how many."""
        clock = self._runtime.clock
        began = clock.monotonic()
        looks = 0
        while self._waiting and looks < LOOKS_PER_TURN and (not looks or clock.monotonic() - began < TURN_S):
            self._look(self._waiting.popleft())
            looks += 1
        ended = clock.monotonic()
        turns_left = len(self._waiting) / looks
        left = (deadline - ended) / turns_left - (ended - began) if turns_left else 0.0
        await self._runtime.timers.sleep(max(0.0, min((ended - began) * REST, left)))
        return looks

    def _look(self, known: PartitionLog) -> None:
        try:
            known.ensure_open()
            if must_sync_first(known):
                self._unsynced.append(known)
            elif known.oldest_open_transaction() is not None or known.high_watermark < known.log_end_offset:
                self._lead(known)
        except KafkaStorageError as error:
            self._could_not(known, error)

    def _lead(self, known: PartitionLog) -> None:
        try:
            self._replicas.leader(*known.topic_partition)
        except KafkaStorageError:
            raise
        except KafkaError as error:
            log.debug("%s is not for this broker to lead: %s", known.topic_partition, error)

    async def _sync(self) -> None:
        while some := self._unsynced[:SYNCS_AT_ONCE]:
            outcomes = await asyncio.gather(*(known.sync() for known in some), return_exceptions=True)
            del self._unsynced[: len(some)]
            for known, outcome in zip(some, outcomes, strict=True):
                try:
                    if outcome is not None:
                        raise outcome
                    self._lead(known)
                except (OSError, KafkaStorageError) as error:
                    self._could_not(known, error)

    def _could_not(self, known: PartitionLog, error: Exception) -> None:
        self._failed.append(known.topic_partition)
        log.warning("%s cannot be looked at; the next try is in %d s: %s", known.topic_partition, AGAIN_S, error)


def _do_all(works: Iterable[Callable[[], None]]) -> None:
    for work in works:
        work()
