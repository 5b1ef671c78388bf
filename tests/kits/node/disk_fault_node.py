"""A simulated broker whose disk can be hurt: one producer that retries as clients do, and a reader."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kits.node.sim_node import NODE, SimNode
from twofold.log.log import PartitionLog
from twofold.records.batch import BatchBuilder, iter_headers, iter_records
from twofold.runtime.sim.disk import SimDisk

STORAGE_ERROR = 56
CORRUPT_MESSAGE = 2


class FaultyNode(SimNode):
    @property
    def disk(self) -> SimDisk:
        return self.sim.disk(NODE)

    def log(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        return self.broker.replicas.leader(topic, partition).log

    async def put(self, value: str, *, partition: int = 0, pid: int = -1, sequence: int = -1) -> int:
        """The error code of one record."""
        builder = BatchBuilder(producer_id=pid, producer_epoch=0 if pid >= 0 else -1, base_sequence=sequence)
        builder.add(b"k", value.encode(), self.broker.runtime.clock.wall_ms())
        rows = [{"index": partition, "records": builder.build()}]
        body = {"acks": -1, "timeout": 2000, "topic_data": [{"name": "t", "partition_data": rows}]}
        answer = await self.ask("Produce", 9, **body)
        return int(answer["responses"][0]["partition_responses"][0]["error_code"])

    async def put_until_taken(self, value: str, *, seconds: float = 120.0, **more: Any) -> float:
        """As clients do with a retriable error; how long it took."""
        start = self.broker.runtime.clock.monotonic()
        while (code := await self.put(value, **more)) != 0:
            assert code == STORAGE_ERROR
            assert self.broker.runtime.clock.monotonic() - start < seconds, f"{value} is still refused"
            await self.sleep(0.1)
        return self.broker.runtime.clock.monotonic() - start

    async def fetch(self, offset: int, partition: int = 0) -> tuple[int, list[str]]:
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        body = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0}
        answer = await self.ask("Fetch", 11, **body, topics=[{"topic": "t", "partitions": [part]}])
        row = answer["responses"][0]["partitions"][0]
        data = bytes(row["records"] or b"")
        values = [record.value for at, _ in iter_headers(data) for record in iter_records(data, at)]
        found = [str(value, "utf-8") for value in values if value is not None]
        assert len(found) == len(values)
        return int(row["error_code"]), found

    async def read(self, partition: int = 0) -> list[str]:
        values: list[str] = []
        while True:
            code, found = await self.fetch(len(values), partition)
            assert code == 0
            if not found:
                return values
            values += found

    async def cut_power(self) -> None:
        self.sim.crash(NODE, power_cut=True)
        await self.start()


@contextmanager
def log_lines(level: int = logging.WARNING) -> Iterator[list[str]]:
    """What the broker logs at this level or above."""
    heard: list[str] = []
    handler = logging.Handler(level)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("twofold")
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
