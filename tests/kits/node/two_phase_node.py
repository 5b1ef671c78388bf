"""A simulated broker with the requests of KIP-939, and a power switch."""

import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from broker.coordinators.transactions.test_transaction_scenarios import Story
from kits.node.sim_node import COORDINATORS, NODE, Asked
from kits.node.sim_node import simulated as simulated_node
from kits.node.txn_node import Pair
from twofold.broker.network.context import Frame, Later
from twofold.config.internal_topics import CONSUMER_OFFSETS, coordinator_partition
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.log.log import PartitionLog
from twofold.records.batch import BatchBuilder
from twofold.runtime.sim import CutMode, Simulation
from twofold.types import TopicPartition

NONE: Pair = (-1, -1)
YEAR_MS = 365 * 86_400_000
LOADING = 14


class Given(NamedTuple):
    """The answer to InitProducerId without an error: what the client holds, and the transaction that it found."""

    pair: Pair
    ongoing: Pair


class TwoPhaseNode(Story):
    async def vow(
        self,
        name: str = "x",
        *,
        two_phase: bool = True,
        keep: bool = False,
        pair: Pair = NONE,
        timeout: int = 60_000,
        version: int = 6,
    ) -> Any:
        """InitProducerId 6: a `Given`, or the error code."""
        answer = await self.ask(
            "InitProducerId",
            version,
            transactional_id=name,
            transaction_timeout=timeout,
            producer_id=pair[0],
            producer_epoch=pair[1],
            enable2_pc=two_phase,
            keep_prepared_txn=keep,
        )
        given = Given(
            (answer["producer_id"], answer["producer_epoch"]),
            (answer["ongoing_txn_producer_id"], answer["ongoing_txn_producer_epoch"]),
        )
        if answer["error_code"]:
            assert given == (NONE, NONE), "an error comes with nothing"
            return answer["error_code"]
        return given

    async def keep(self, name: str = "x", *, two_phase: bool = True, **more: Any) -> Any:
        return await self.vow(name, two_phase=two_phase, keep=True, **more)

    async def vow7(self, name: str, timeout: int, interval: int, *, two_phase: bool, keep: bool) -> Any:
        """InitProducerId 7, whose bytes are written here: nobody else speaks it."""
        raw = name.encode()
        body = bytes([len(raw) + 1]) + raw + struct.pack(">iiqh??B", timeout, interval, -1, -1, two_phase, keep, 0)
        frame = struct.pack(">hhih", 22, 7, 1, -1) + b"\0" + body
        result = self._dispatcher.dispatch(self._peer, frame)
        answer = await result.answer if isinstance(result, Later) else result
        assert isinstance(answer, Frame)
        payload = b"".join(bytes(part) for part in answer.parts)[4:]
        _, _, _, error, *pairs, _ = struct.unpack(">iBihqhqhB", payload)
        return error or Given((pairs[0], pairs[1]), (pairs[2], pairs[3]))

    async def prepared(self, name: str = "x", *, offset: int | None = None) -> Pair:
        """The pair of an open two-phase transaction with a record in both partitions; nobody holds it any more."""
        pair: Pair = (await self.vow(name)).pair
        for partition in (0, 1):
            assert await self.produce(pair, partition, version=12, name=name) == 0
        if offset is not None:
            await self.ready()
            assert await self.commit_offset(pair, offset, name=name) == 0
        return pair

    def send_batch(
        self, pair: Pair, partition: int = 0, sequence: int = 0, *, acks: int = -1, version: int = 12, name: str = "x"
    ) -> Asked[int]:
        """Produce now; what is returned waits for the error code."""
        builder = BatchBuilder(producer_id=pair[0], producer_epoch=pair[1], base_sequence=sequence, transactional=True)
        builder.add(b"k", f"{partition}/{sequence}".encode(), self.broker.runtime.clock.wall_ms())
        rows = [{"index": partition, "records": builder.build()}]
        data = [{"name": "t", "partition_data": rows}]
        receive = self.send("Produce", version, transactional_id=name, acks=acks, timeout=30_000, topic_data=data)

        async def code() -> int:
            return int((await receive())["responses"][0]["partition_responses"][0]["error_code"])

        return Asked(code, receive.is_answered)

    async def set_transaction_version(self, level: int, *, upgrade: bool = False) -> None:
        kind = 1 if upgrade else 2
        rows = [{"feature": "transaction.version", "max_version_level": level, "upgrade_type": kind}]
        answer = await self.ask("UpdateFeatures", 1, feature_updates=rows, validate_only=False)
        assert answer["error_code"] == 0

    # --- insides ---

    def entry(self, name: str = "x") -> TransactionMetadata:
        return self.shard(name).committed.entries[name]

    def identities(self, name: str = "x") -> tuple[Pair, Pair]:
        """The pair of the transaction, and the one that the recovered client holds."""
        entry = self.entry(name)
        return (entry.producer_id, entry.producer_epoch), (entry.next_producer_id, entry.next_producer_epoch)

    def log(self, topic: str, partition: int) -> PartitionLog:
        return self.broker.replicas.leader(topic, partition).log

    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """Those that a transaction of these stories writes to."""
        group = TopicPartition(CONSUMER_OFFSETS, coordinator_partition("g", COORDINATORS))
        names = (TopicPartition("t", 0), TopicPartition("t", 1), group)
        return {name: self.log(*name) for name in names}

    def jump(self, ms: int) -> None:
        self.sim.jump_clock(NODE, ms)

    # --- the end of a process ---

    async def cut_power(self) -> None:
        """What is not on disk is gone; the machine starts again."""
        self.sim.crash(NODE, power_cut=True)
        await self.start()
        await self.loaded()

    async def kill(self) -> None:
        await self.restart()
        await self.loaded()

    async def loaded(self, name: str = "x") -> None:
        while await self.state(name) == LOADING:
            await self.sleep(0.01)
        await self.ready()

    async def settled(self, name: str = "x") -> Any:
        """How it ended."""
        for _ in range(500):
            if (state := await self.state(name)) in ("CompleteCommit", "CompleteAbort"):
                return state
            await self.sleep(0.01)
        raise AssertionError(f"{name} is {state}")


def two_phase(**settings: object) -> Any:
    return simulated_node(TwoPhaseNode, **{"transaction_two_phase_commit_enable": "true", **settings})


def exact(**settings: object) -> Any:
    """Who finds something under way is told so at once."""
    return two_phase(add_partitions_to_txn_retry_backoff_max_ms=0, **settings)


def play(
    story: Callable[[TwoPhaseNode], Awaitable[None]],
    seed: int = 1,
    cut_mode: CutMode = CutMode.REORDERED,
    **settings: object,
) -> None:
    """A story on a disk that loses what it may, in its own way for each seed."""
    with Simulation(seed, cut_mode=cut_mode) as sim:

        async def main() -> None:
            node = TwoPhaseNode(sim, **{"transaction_two_phase_commit_enable": "true", **settings})
            await node.start()
            await node.create_topic()
            await story(node)
            await node.broker.stop()

        sim.run(main(), timeout_s=86_400)
