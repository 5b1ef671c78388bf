"""The clients of a run of transactions: writers, copiers, readers, and ghosts who send what was sent before."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol

from kits.wire.driver import Abortable, Fatal, Fenced, Identity, TimedOut, TransactionError, TxnDriver
from kits.wire.reader import Seen, TxnReader
from kits.wire.requests import Wire
from sim.broker.watch import require
from sim.transactions.history import History, OffsetRead, Outcome, Polled, Reading, Txn, Value, Write, at, decode_value
from sim.transactions.plan import MAX_HOPS, ActorPlan, CopierPlan, ReaderPlan, WriterPlan
from sim.transactions.watch import TxnWatch
from twofold.coordinator.transaction.states import State
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import InvalidProducerIdMapping, KafkaError, UnstableOffsetCommit

BOOTSTRAP = "broker:9092"
PATIENCE_MS = 4000
REPEATED = ("Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")
REMEMBERED = 200


class Past(NamedTuple):
    """A request that somebody sent."""

    message: Any
    api: str
    version: int | None
    identity: Identity
    is_tv2: bool


class MayLoseIds(Protocol):
    @property
    def loses_ids(self) -> bool: ...


class Scene(Protocol):
    @property
    def plan(self) -> MayLoseIds: ...

    history: History
    draining: bool
    past: "deque[Past]"

    @property
    def watch(self) -> TxnWatch: ...

    @property
    def now_s(self) -> float: ...

    def note(self, text: str) -> None: ...

    def next_number(self, group: str) -> int: ...

    def on_commit(self, actor: "Actor") -> None: ...


class SimDriver(TxnDriver):
    """Leaves traces of what it sent, for the ghosts."""

    past: "deque[Past] | None" = None

    async def ask(self, node_id: int | None, message: Any, api: str, version: int | None = None) -> Any:
        if self.past is not None and api in REPEATED:
            self.past.append(Past(message, api, version, self.identity, self.versions.adds_implicitly))
        return await super().ask(node_id, message, api, version)


class Actor:
    """Somebody with a transactional id, who comes back when the id was taken from him."""

    def __init__(self, scene: Scene, runtime: Runtime, plan: ActorPlan, instance: str) -> None:
        self.plan = plan
        self.instance = instance
        self.count = 0
        self.committed = 0
        self._scene = scene
        self._runtime = runtime
        self._random = Random(runtime.random.getrandbits(64))
        self._driver = SimDriver(
            runtime,
            BOOTSTRAP,
            plan.transactional_id,
            versions=plan.versions,
            timeout_ms=plan.timeout_ms,
            patience_ms=PATIENCE_MS,
            request_timeout_ms=plan.request_timeout_ms,
            socket_connection_setup_timeout_ms=1000,
            client_id=instance,
        )
        self._driver.past = scene.past

    async def run(self) -> None:
        try:
            while not self.is_done():
                try:
                    await self._insist(self._driver.init)
                    self._given()
                    await self.work()
                except Fenced as error:
                    self._scene.note(f"fenced {self.instance} {error}")
                except Fatal as error:
                    # None of what happens here is the end of a producer, but that another has its id; at the end of
                    # the epochs, or when the id was not used for long, that is one with a new producer id.
                    if not (self._scene.plan.loses_ids and isinstance(error.error, InvalidProducerIdMapping)):
                        raise AssertionError(f"{self.instance}: {error}") from error
                await self._sleep(self._random.uniform(0, 0.5))
        finally:
            await self._driver.close()

    async def work(self) -> None:
        """Until it is fenced, or done."""
        raise TypeError(f"{type(self).__name__} does not say what it does")

    def is_done(self) -> bool:
        return self._scene.draining

    async def _sleep(self, seconds: float) -> None:
        await self._runtime.timers.sleep(seconds)

    async def _hang(self) -> None:
        """Long enough for its transaction to be given up, or nearly so."""
        await self._sleep(min(self.plan.timeout_ms / 1000, 2) * self._random.uniform(0.5, 2))

    async def _insist(self, call: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await call()
            except TimedOut as error:
                self._scene.note(f"timed out {self.instance} {error}")

    def _given(self) -> None:
        self._scene.history.given(self.instance, self._driver.identity)
        self._scene.note(f"given {self.instance} {self._driver.identity}")

    # One transaction

    def begin(self) -> Txn:
        txn = Txn(
            label=f"{self.instance}.{self.count}",
            transactional_id=self.plan.transactional_id,
            instance=self.instance,
            number=self.count,
            identity=self._driver.identity,
            is_tv2=self.plan.versions.adds_implicitly,
            began_s=self._scene.now_s,
        )
        self.count += 1
        self._scene.history.txns.append(txn)
        return txn

    async def transaction(self, txn: Txn, steps: Callable[[], Awaitable[None]], *, commit: bool) -> bool:
        """Whether it was committed; raises Fenced, and nothing else that a producer survives."""
        try:
            await steps()
            if commit:
                await self._commit(txn)
                return True
        except (Abortable, TimedOut) as error:
            self._scene.note(f"aborts {txn.label} {error}")
        await self._insist(self._driver.abort)
        self._end(txn, Outcome.ABORTED)
        return False

    async def _commit(self, txn: Txn) -> None:
        txn.commit_sent_s = self._scene.now_s
        self._scene.on_commit(self)
        in_doubt = False
        while True:
            try:
                await self._driver.commit()
            except TimedOut as error:
                in_doubt |= error.in_doubt
                continue
            except TransactionError as error:
                in_doubt |= error.in_doubt
                self._scene.note(f"refused {txn.label} {error}")
                if not in_doubt:
                    txn.told = Outcome.ABORTED
                raise
            self._end(txn, Outcome.COMMITTED)
            self.committed += 1
            return

    def _end(self, txn: Txn, outcome: Outcome) -> None:
        txn.told, txn.ended_s = outcome, self._scene.now_s
        self._scene.note(f"told {txn.label} {outcome.value}")
        if outcome is Outcome.COMMITTED or txn.is_tv2:  # a TV1 client that added nothing has nothing to abort
            self._scene.watch.check_told(txn.identity, txn.is_tv2, outcome is Outcome.COMMITTED)
        if self._driver.identity != txn.identity:
            self._given()

    async def _send(self, txn: Txn, writes: list[Write]) -> None:
        txn.writes += writes
        records: dict[TopicPartition, list[bytes | tuple[bytes | None, bytes | None]]] = {}
        for write in writes:
            key = write.key
            records.setdefault(write.topic_partition, []).append(write.value if key is None else (key, write.value))
        bases = await self._driver.send(records)
        for tp, base in bases.items():
            for place, write in enumerate(write for write in writes if write.topic_partition == tp):
                write.offset = base + place if base >= 0 else -1

    async def _send_apart(self, txn: Txn, writes: list[Write]) -> None:
        """One request for each partition, all at once."""

        async def send(tp: TopicPartition) -> TransactionError | None:
            try:
                await self._send(txn, [write for write in writes if write.topic_partition == tp])
            except TransactionError as error:
                return error
            return None

        chosen = dict.fromkeys(write.topic_partition for write in writes)
        tasks = [self._runtime.spawn(send(tp), name=f"send {tp}") for tp in chosen]
        errors = [error for error in await asyncio.gather(*tasks) if error is not None]
        # The worst comes first: who is fenced has nothing left to abort.
        for error in sorted(errors, key=lambda error: not isinstance(error, Fatal | Fenced)):
            raise error

    async def _send_offsets(self, txn: Txn, group: str, offsets: dict[TopicPartition, int]) -> None:
        txn.group, txn.offsets = group, offsets
        await self._driver.send_offsets(group, offsets)
        txn.offsets_acknowledged_s = self._scene.now_s


class Writer(Actor):
    plan: WriterPlan

    def __init__(
        self, scene: Scene, runtime: Runtime, plan: WriterPlan, instance: str, targets: list[TopicPartition]
    ) -> None:
        super().__init__(scene, runtime, plan, instance)
        self._targets = targets

    async def work(self) -> None:
        while not self.is_done():
            await self._sleep(self._random.uniform(0, 2 * self.plan.pause_s))
            commit = self._random.random() >= self.plan.abort
            txn = self.begin()
            await self.transaction(txn, partial(self._steps, txn), commit=commit)

    async def _steps(self, txn: Txn) -> None:
        random = self._random
        number = 0
        for _ in range(random.randint(1, self.plan.sends)):
            chosen = random.sample(self._targets, min(len(self._targets), random.randint(1, self.plan.partitions)))
            writes = []
            for tp in chosen:
                for _ in range(random.randint(1, 3)):
                    writes.append(Write(tp, Value(txn.label, number).encode()))
                    number += 1
            if self.plan.parallel:
                await self._send_apart(txn, writes)
            else:
                await self._send(txn, writes)
            if random.random() < self.plan.hang:
                await self._sleep(
                    self.plan.timeout_ms / 1000 * random.uniform(0.5, 2) if self.plan.timeout_ms < 5000 else 1
                )
        if self.plan.offsets:
            group = ledger(self.plan.transactional_id)
            await self._send_offsets(txn, group, {self._targets[0]: self._scene.next_number(group)})


def ledger(transactional_id: str) -> str:
    """The group for which the writers of an id commit growing numbers."""
    return f"ledger-{transactional_id}"


class Copier(Actor):
    """Reads, writes what it read to the other topic, and commits how far it is, all in one transaction."""

    plan: CopierPlan

    def __init__(
        self,
        scene: Scene,
        runtime: Runtime,
        plan: CopierPlan,
        instance: str,
        sources: list[TopicPartition],
        targets: list[TopicPartition],
    ) -> None:
        super().__init__(scene, runtime, plan, instance)
        self.positions: dict[TopicPartition, int] = dict.fromkeys(sources, 0)
        """What it has committed."""
        self.stopping = False
        self._targets = targets
        self._reader = TxnReader(
            runtime,
            BOOTSTRAP,
            sources,
            max_bytes=self._random.choice((300, 1 << 20)),
            request_timeout_ms=plan.request_timeout_ms,
            socket_connection_setup_timeout_ms=1000,
        )

    def is_done(self) -> bool:
        return self.stopping

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._reader.close()

    async def work(self) -> None:
        await self._rewind()
        while not self.is_done():
            if self._scene.draining:
                self._reader.max_bytes = 1 << 20
            await self._sleep(self._random.uniform(0, 2 * (0.02 if self._scene.draining else self.plan.pause_s)))
            rows = await self._poll()
            if self._reader.positions != self.positions:
                txn = self.begin()
                txn.reads = [(row.topic_partition, row.offset, row.value or b"") for row in rows]
                moved = {tp: end for tp, end in self._reader.positions.items() if end != self.positions[tp]}
                txn.consumed_from = {tp: self.positions[tp] for tp in moved}
                commit = self._scene.draining or self._random.random() >= self.plan.abort
                if await self.transaction(txn, lambda: self._steps(txn, rows, moved), commit=commit):  # noqa: B023
                    self.positions |= moved
                else:
                    await self._rewind()

    async def _rewind(self) -> None:
        """To where the group is: what was read and not committed is read again."""
        while True:
            asked_s = self._scene.now_s
            try:
                found = await self._reader.committed(self.plan.group, self.positions)
                break
            except KafkaError as error:
                self._scene.note(f"waits {self.instance} {error}")
                self._reader.forget()
            await self._sleep(0.05)
        for tp, offset in found.items():
            self._scene.history.offset_reads.append(
                OffsetRead(self.plan.group, tp, offset, True, asked_s, self._scene.now_s)
            )
        self.positions = {tp: max(offset, 0) for tp, offset in found.items()}
        self._reader.positions = dict(self.positions)

    async def _poll(self) -> list[Seen]:
        try:
            return await self._reader.poll(200)
        except KafkaError as error:
            self._scene.note(f"error {self.instance} {error}")
            self._reader.forget()
            return []

    async def _steps(self, txn: Txn, rows: list[Seen], moved: dict[TopicPartition, int]) -> None:
        writes: list[Write] = []
        for row in rows:
            value = decode_value(row.value or b"")
            if value.hops < MAX_HOPS:
                source = at(row.topic_partition, row.offset)
                copied = Value(txn.label, len(writes), value.hops + 1, source)
                writes.append(Write(self._targets[row.offset % len(self._targets)], copied.encode()))
        if writes:
            await self._send(txn, writes)
        if self._random.random() < self.plan.hang and not self._scene.draining:
            await self._hang()
        await self._send_offsets(txn, self.plan.group, dict(moved))


class ReaderApp:
    def __init__(self, scene: Scene, runtime: Runtime, plan: ReaderPlan, partitions: list[TopicPartition]) -> None:
        self.plan = plan
        self.reading = Reading(plan.node, plan.committed)
        scene.history.readings.append(self.reading)
        self._scene = scene
        self._runtime = runtime
        self._reader = TxnReader(
            runtime,
            BOOTSTRAP,
            partitions,
            committed=plan.committed,
            max_bytes=plan.max_bytes,
            request_timeout_ms=plan.request_timeout_ms,
            socket_connection_setup_timeout_ms=1000,
            client_id=plan.node,
        )

    async def run(self) -> None:
        try:
            while True:
                await self.poll()
                pause_s = min(0.04, self.plan.pause_s) if self._scene.draining else self.plan.pause_s
                await self._runtime.timers.sleep(self._runtime.random.uniform(0, 2 * pause_s))
        finally:
            await self._reader.close()

    async def poll(self) -> None:
        try:
            rows = await self._reader.poll(self._runtime.random.choice((0, 200)))
        except KafkaError as error:
            self._scene.note(f"error {self.plan.node} {error}")
            self._reader.forget()
            return
        now_s = self._scene.now_s
        for row in rows:
            answer = self._reader.answers[row.topic_partition]
            self._scene.note(f"read {self.plan.node} {row.topic_partition} {row.offset} {row.value!r}")
            self.reading.polled.append(
                Polled(
                    row.topic_partition,
                    row.offset,
                    row.value or b"",
                    now_s,
                    answer.last_stable_offset,
                    answer.high_watermark,
                )
            )
        for tp, answer in self._reader.answers.items():
            stable, high = answer.last_stable_offset, answer.high_watermark
            require(stable <= high, f"{self.plan.node} was told a last stable offset of {stable} of {high} in {tp}")
        self.reading.positions = dict(self._reader.positions)

    async def close(self) -> None:
        await self._reader.close()

    def behind(self, ends: dict[TopicPartition, int]) -> list[str]:
        return [
            f"{self.plan.node} is at {self.reading.positions.get(tp)} of {tp}, which ends at {end}"
            for tp, end in ends.items()
            if self.reading.positions.get(tp) != end
        ]


class Bookkeeper:
    """Asks all the time how far the groups are."""

    def __init__(self, scene: Scene, runtime: Runtime, groups: dict[str, list[TopicPartition]]) -> None:
        self._scene = scene
        self._runtime = runtime
        self._groups = groups
        partitions = next(iter(groups.values()))
        self._reader = TxnReader(
            runtime, BOOTSTRAP, partitions, request_timeout_ms=700, socket_connection_setup_timeout_ms=1000
        )

    async def run(self) -> None:
        random = self._runtime.random
        try:
            while True:
                await self._runtime.timers.sleep(random.uniform(0, 0.6))
                with suppress(KafkaError):
                    await self.ask(random.choice(list(self._groups)), stable=random.random() < 0.6)
        finally:
            await self._reader.close()

    async def close(self) -> None:
        await self._reader.close()

    async def ask(self, group: str, *, stable: bool) -> None:
        asked_s = self._scene.now_s
        must_wait = self._open_offsets(group)
        try:
            found = await self._reader.committed(group, self._groups[group], stable=stable)
        except UnstableOffsetCommit:
            return
        except KafkaError:
            self._reader.forget()
            raise
        for tp, offset in found.items():
            self._scene.history.offset_reads.append(OffsetRead(group, tp, offset, stable, asked_s, self._scene.now_s))
        still = [label for label in self._open_offsets(group) if label in must_wait]
        require(not (stable and still), f"{group}: {found} was told as stable while {still} was open")

    def _open_offsets(self, group: str) -> list[str]:
        """Transactions with acknowledged offsets for the group that are open at this moment."""
        found = []
        for txn in self._scene.history.txns:
            if txn.group == group and txn.offsets_acknowledged_s is not None and txn.ended_s is None:
                known = self._scene.watch.known.get(txn.transactional_id)
                value = known.value if known is not None else None
                if value is not None and (value.state, value.producer_id, value.producer_epoch) == (
                    State.ONGOING,
                    *txn.identity,
                ):
                    found.append(txn.label)
        return found


class Ghost:
    """Sends again what others have sent, later, on a connection of its own.

    A request of the first protocol is repeated only when its epoch is over: within an epoch that protocol cannot tell
    a repetition from the next transaction, which is what KIP-890 is about.
    """

    def __init__(self, scene: Scene, runtime: Runtime, pause_s: float) -> None:
        self.repeated = 0
        self._scene = scene
        self._runtime = runtime
        self._pause_s = pause_s
        self._wire = Wire(runtime, BOOTSTRAP, request_timeout_ms=2000, socket_connection_setup_timeout_ms=1000)

    async def run(self) -> None:
        random = self._runtime.random
        try:
            while not self._scene.draining:
                await self._runtime.timers.sleep(random.uniform(0, 2 * self._pause_s))
                if self._scene.past:
                    past = random.choice(self._scene.past)
                    if past.is_tv2 or self._is_over(past.identity):
                        with suppress(KafkaError):
                            await self._wire.ask(None, past.message, past.api, past.version)
                            self.repeated += 1
        finally:
            await self._wire.close()

    def _is_over(self, identity: Identity) -> bool:
        given = self._scene.history.identities
        return any(
            producer_id == identity.producer_id and epoch > identity.producer_epoch for producer_id, epoch in given
        )
