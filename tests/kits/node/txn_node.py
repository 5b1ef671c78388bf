"""A simulated broker with the requests of transactions."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kits.node.sim_node import COORDINATORS, Asked, SimNode
from kits.node.sim_node import simulated as simulated_node
from twofold.broker.coordinators.transactions.shard import TransactionShard
from twofold.config.internal_topics import TRANSACTION_STATE, coordinator_partition
from twofold.coordinator.transaction.records import TransactionMetadata, encode_key, encode_value
from twofold.log.api import Origin
from twofold.records.batch import BatchBuilder
from twofold.wire.errors import NotCoordinator

Pair = tuple[int, int]


class Node(SimNode):
    key, key_type = "x", 1

    # --- requests ---

    async def init(self, name: str = "x", pair: Pair = (-1, -1), timeout: int = 60_000, version: int = 4) -> Any:
        """(producer id, epoch), or the error code."""
        answer = await self.ask(
            "InitProducerId",
            version,
            transactional_id=name,
            transaction_timeout=timeout,
            producer_id=pair[0],
            producer_epoch=pair[1],
        )
        return answer["error_code"] or (answer["producer_id"], answer["producer_epoch"])

    def send_add(
        self, pair: Pair, *partitions: int, name: str = "x", topic: str = "t", version: int = 3
    ) -> Asked[list[int]]:
        receive = self.send(
            "AddPartitionsToTxn",
            version,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=pair[0],
            v3_and_below_producer_epoch=pair[1],
            v3_and_below_topics=[{"name": topic, "partitions": list(partitions)}],
        )

        async def codes() -> list[int]:
            rows = (await receive())["results_by_topic_v3_and_below"]
            return [row["partition_error_code"] for topic in rows for row in topic["results_by_partition"]]

        return Asked(codes, receive.is_answered)

    async def add(self, pair: Pair, *partitions: int, **more: Any) -> list[int]:
        return await self.send_add(pair, *partitions, **more)()

    async def produce(
        self, pair: Pair, partition: int = 0, sequence: int = 0, version: int = 9, name: str | None = "x"
    ) -> int:
        builder = BatchBuilder(
            producer_id=pair[0], producer_epoch=pair[1], base_sequence=sequence, transactional=name is not None
        )
        builder.add(b"k", b"v", self.broker.runtime.clock.wall_ms())
        topic: dict[str, Any] = {"name": "t"}
        if version >= 13:
            known = self.broker.image.topic("t")
            assert known is not None
            topic = {"topic_id": known.topic_id}
        rows = [{"index": partition, "records": builder.build()}]
        answer = await self.ask(
            "Produce",
            version,
            transactional_id=name,
            acks=-1,
            timeout=1000,
            topic_data=[{**topic, "partition_data": rows}],
        )
        return int(answer["responses"][0]["partition_responses"][0]["error_code"])

    async def end(self, pair: Pair, commit: bool = True, name: str = "x", version: int = 3) -> Any:
        """The error code, or from version 5 on the pair to go on with."""
        answer = await self.ask(
            "EndTxn",
            version,
            transactional_id=name,
            producer_id=pair[0],
            producer_epoch=pair[1],
            committed=commit,
        )
        if version < 5 or answer["error_code"]:
            return answer["error_code"]
        return answer["producer_id"], answer["producer_epoch"]

    async def describe(self, name: str = "x") -> dict[str, Any]:
        answer = await self.ask("DescribeTransactions", 0, transactional_ids=[name])
        row: dict[str, Any] = answer["transaction_states"][0]
        return row

    async def state(self, name: str = "x") -> Any:
        row = await self.describe(name)
        return row["error_code"] or row["transaction_state"]

    async def list(self, version: int = 2, **filters: Any) -> Any:
        answer = await self.ask("ListTransactions", version, **filters)
        return answer["error_code"] or {
            row["transactional_id"]: row["transaction_state"] for row in answer["transaction_states"]
        }

    # --- insides ---

    def shard(self, name: str = "x") -> TransactionShard:
        return self.broker.transactions.shards[coordinator_partition(name, COORDINATORS)]

    def lead_anew(self, name: str = "x") -> None:
        """The partition is led in a new epoch; loading has begun when this returns, and goes on with the next turn."""
        old = self.broker.transactions.shards.pop(coordinator_partition(name, COORDINATORS))
        old.resign(NotCoordinator("moved"))
        self.broker.transactions._lead(old.index, old.epoch)

    def stable_offset(self, partition: int = 0) -> int:
        found = self.broker.replicas.find("t", partition) or self.broker.replicas.leader("t", partition)
        return found.log.last_stable_offset

    def end_offset(self, partition: int = 0) -> int:
        found = self.broker.replicas.find("t", partition) or self.broker.replicas.leader("t", partition)
        return found.log.log_end_offset

    def write_raw(self, name: str, *values: TransactionMetadata | bytes | None, key: bytes | None = None) -> None:
        partition = self.broker.replicas.leader(TRANSACTION_STATE, coordinator_partition(name, COORDINATORS))
        partition.log.ensure_open()
        for value in values:
            builder = BatchBuilder()
            encoded = encode_value(value, 1) if isinstance(value, TransactionMetadata) else value
            builder.add(key or encode_key(name), encoded, 0)
            partition.append(builder.build(), -1, origin=Origin.COORDINATOR)


simulated = partial(simulated_node, Node)
exact = partial(simulated_node, Node, add_partitions_to_txn_retry_backoff_max_ms=0)


@contextmanager
def hearing(logger: logging.Logger, level: int) -> Iterator[list[str]]:
    """What is logged at this level or above."""
    heard: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextmanager
def held_markers(node: Node) -> Iterator[list[Any]]:
    """Markers are collected instead of sent; call them to let them go."""
    held: list[Any] = []
    markers = node.broker.transactions.markers
    original = markers.send
    markers.send = lambda *call: held.append(partial(original, *call))  # type: ignore[method-assign]
    try:
        yield held
    finally:
        markers.send = original  # type: ignore[method-assign]
