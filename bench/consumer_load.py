"""One consumer of a group that reads a topic as fast as it can and prints what it did as JSON: ours, or aiokafka.

    poll          await aio.Consumer.poll
    loop          async for record in aio.Consumer
    blocking      for record in twofold.Consumer
    aiokafka-many await AIOKafkaConsumer.getmany
    aiokafka-loop async for record in AIOKafkaConsumer

All are members of a group, commit by themselves, and check checksums. The time counts from the first record.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

Result = dict[str, float]
POLL_MS = 1_000
POLL_RECORDS = 500  # Kafka's own default, for all of them


class Meter:
    """Counts from the first records on: what comes before is the join of the group."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._started = self._cpu = 0.0
        self._bytes = self._count = 0

    def add(self, records: Iterable[Any]) -> bool:
        """Whether that is all."""
        for record in records:
            self.add_one(record)
        return self._count >= self._wanted

    def add_one(self, record: Any) -> bool:
        if not self._count:
            self._started, self._cpu = time.perf_counter(), time.process_time()
        self._count += 1
        self._bytes += len(record.value)
        return self._count >= self._wanted

    def result(self) -> Result:
        return {
            "records": self._count,
            "bytes": self._bytes,
            "seconds": time.perf_counter() - self._started,
            "cpu_seconds": time.process_time() - self._cpu,
        }


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "bootstrap_servers": options.address,
        "group_id": f"bench-{uuid4().hex}",
        "auto_offset_reset": "earliest",
        "max_poll_records": POLL_RECORDS,
    }


async def poll(options: argparse.Namespace) -> Result:
    from twofold.aio import Consumer

    meter = Meter(options.records)
    async with Consumer(**settings(options)) as consumer:
        consumer.subscribe([options.topic])
        while not meter.add(await consumer.poll(POLL_MS)):
            pass
        return meter.result()


async def loop(options: argparse.Namespace) -> Result:
    from twofold.aio import Consumer

    meter = Meter(options.records)
    async with Consumer(**settings(options)) as consumer:
        consumer.subscribe([options.topic])
        async for record in consumer:
            if meter.add_one(record):
                break
        return meter.result()


def blocking(options: argparse.Namespace) -> Result:
    from twofold import Consumer

    meter = Meter(options.records)
    with Consumer(**settings(options)) as consumer:
        consumer.subscribe([options.topic])
        for record in consumer:
            if meter.add_one(record):
                break
        return meter.result()


async def aiokafka_consumer(options: argparse.Namespace) -> Any:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(options.topic, **settings(options))
    await consumer.start()
    return consumer


async def aiokafka_many(options: argparse.Namespace) -> Result:
    meter = Meter(options.records)
    consumer = await aiokafka_consumer(options)
    try:
        done = False
        while not done:
            for records in (await consumer.getmany(timeout_ms=POLL_MS, max_records=POLL_RECORDS)).values():
                done = meter.add(records)
        return meter.result()
    finally:
        await consumer.stop()


async def aiokafka_loop(options: argparse.Namespace) -> Result:
    meter = Meter(options.records)
    consumer = await aiokafka_consumer(options)
    try:
        async for record in consumer:
            if meter.add_one(record):
                break
        return meter.result()
    finally:
        await consumer.stop()


CLIENTS: dict[str, Any] = {
    "poll": poll,
    "loop": loop,
    "blocking": blocking,
    "aiokafka-many": aiokafka_many,
    "aiokafka-loop": aiokafka_loop,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=list(CLIENTS))
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    options = parser.parse_args()
    client = CLIENTS[options.client]
    if asyncio.iscoroutinefunction(client):
        from twofold.runtime.real import run

        print(json.dumps(run(client(options))))
    else:
        print(json.dumps(client(options)))


if __name__ == "__main__":
    main()
