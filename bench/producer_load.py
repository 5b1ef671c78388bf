"""One producer that sends as fast as it can and prints what it did as JSON: ours, or a peer, with the same settings.

    send          await aio.Producer.send, one record per call
    send-batch    aio.Producer.send_batch, a list of values per call
    send-arrow    the same from an Arrow array, where pyarrow is installed
    send-blocking twofold.Producer.send, from one thread
    aiokafka      await AIOKafkaProducer.send
    confluent     confluent_kafka.Producer.produce

All are idempotent and wait for all replicas; a rate counts what was acknowledged.
"""

import argparse
import asyncio
import json
import time
from typing import Any

BATCH_BYTES = 16_384  # Kafka's own default, for producers that take one record per call
COLUMN_RECORDS = 10_000
LINGER_MS = 5
CHECK_EVERY = 500

Result = dict[str, float]


def result(records: int, started: float, cpu: float) -> Result:
    return {
        "records": records,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
    }


async def send(options: argparse.Namespace) -> Result:
    from twofold.aio import Producer

    value = bytes(options.record_bytes)
    async with Producer(bootstrap_servers=options.address, batch_size=BATCH_BYTES, linger_ms=LINGER_MS) as producer:
        await (await producer.send(options.topic, value))
        started, cpu, count = time.perf_counter(), time.process_time(), 0
        deliveries = []
        while time.perf_counter() < started + options.seconds:
            for _ in range(CHECK_EVERY):
                delivery = await producer.send(options.topic, value)
            deliveries.append(delivery)
            count += CHECK_EVERY
        await producer.flush()
        found = result(count, started, cpu)
        for delivery in deliveries:
            await delivery
        return found


def column(options: argparse.Namespace) -> list[bytes]:
    return [index.to_bytes(4, "big") * (options.record_bytes // 4) for index in range(COLUMN_RECORDS)]


async def send_columns(options: argparse.Namespace, values: Any) -> Result:
    from twofold.aio import Producer

    async with Producer(bootstrap_servers=options.address) as producer:
        await (await producer.send_batch(options.topic, None, values[:100]))
        started, cpu, count = time.perf_counter(), time.process_time(), 0
        deliveries = []
        while time.perf_counter() < started + options.seconds:
            deliveries.append(await producer.send_batch(options.topic, None, values))
            count += len(values)
        await producer.flush()
        found = result(count, started, cpu)
        for delivery in deliveries:
            await delivery
        return found


async def send_batch(options: argparse.Namespace) -> Result:
    return await send_columns(options, column(options))


async def send_arrow(options: argparse.Namespace) -> Result:
    import pyarrow

    return await send_columns(options, pyarrow.array(column(options), pyarrow.binary()))


def send_blocking(options: argparse.Namespace) -> Result:
    import twofold

    value = bytes(options.record_bytes)
    with twofold.Producer(bootstrap_servers=options.address, batch_size=BATCH_BYTES, linger_ms=LINGER_MS) as producer:
        producer.send(options.topic, value).result()
        started, cpu, count = time.perf_counter(), time.process_time(), 0
        deliveries = []
        while time.perf_counter() < started + options.seconds:
            for _ in range(CHECK_EVERY):
                delivery = producer.send(options.topic, value)
            deliveries.append(delivery)
            count += CHECK_EVERY
        producer.flush()
        found = result(count, started, cpu)
        for delivery in deliveries:
            delivery.result()
        return found


async def aiokafka(options: argparse.Namespace) -> Result:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=options.address,
        enable_idempotence=True,
        acks="all",
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()
    try:
        value = bytes(options.record_bytes)
        await producer.send_and_wait(options.topic, value)
        started, cpu, count = time.perf_counter(), time.process_time(), 0
        futures = []
        while time.perf_counter() < started + options.seconds:
            for _ in range(CHECK_EVERY):
                future = await producer.send(options.topic, value)
            futures.append(future)
            count += CHECK_EVERY
        await producer.flush()
        found = result(count, started, cpu)
        for future in futures:
            await future
        return found
    finally:
        await producer.stop()


def confluent(options: argparse.Namespace) -> Result:
    from confluent_kafka import Producer

    failed = 0

    def on_delivery(error: Any, _: Any) -> None:
        nonlocal failed
        failed += error is not None

    producer = Producer(
        {
            "bootstrap.servers": options.address,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": LINGER_MS,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 << 10,
            "log_level": 0,
        }
    )
    value = bytes(options.record_bytes)
    producer.produce(options.topic, value)
    producer.flush(30)
    started, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < started + options.seconds:
        for index in range(CHECK_EVERY):
            # A callback for one record in 500: the rate is that of the calls, not of the callbacks.
            callback: dict[str, Any] = {"on_delivery": on_delivery} if index == 0 else {}
            while True:
                try:
                    producer.produce(options.topic, value, **callback)
                    break
                except BufferError:
                    producer.poll(0.01)
            count += 1
        producer.poll(0)
    left = producer.flush(120)
    found = result(count, started, cpu)
    if left or failed:
        raise SystemExit(f"{left} records are not acknowledged, {failed} failed")
    return found


CLIENTS: dict[str, Any] = {
    "send": send,
    "send-batch": send_batch,
    "send-arrow": send_arrow,
    "send-blocking": send_blocking,
    "aiokafka": aiokafka,
    "confluent": confluent,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=list(CLIENTS))
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    client = CLIENTS[options.client]
    if asyncio.iscoroutinefunction(client):
        from twofold.runtime.real import run

        print(json.dumps(run(client(options))))
    else:
        print(json.dumps(client(options)))


if __name__ == "__main__":
    main()
