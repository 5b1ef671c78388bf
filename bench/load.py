"""One confluent-kafka client process that produces or fetches as fast as it can and prints what it did as JSON."""

import argparse
import json
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from bench import client_settings


def produce(options: argparse.Namespace) -> dict[str, float]:
    producer = Producer(
        {
            "bootstrap.servers": options.address,
            "enable.idempotence": options.idempotent,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 << 10,
            "message.timeout.ms": 15_000,
            **({"transactional.id": f"{options.topic}-load"} if options.commit_ms else {}),
            **client_settings.chosen(options),
        }
    )
    failed = 0
    done = 0

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal failed, done
        done += 1
        failed += error is not None

    value = bytes(options.record_bytes)
    partitions = options.partitions
    commit_s = options.commit_ms / 1000
    if commit_s:
        producer.init_transactions(30)
        producer.begin_transaction()
    for partition in range(partitions):  # connect and warm up outside the measurement
        producer.produce(options.topic, value, partition=partition, on_delivery=on_delivery)
    if producer.flush(10) or failed:
        raise SystemExit(f"no answer from {options.address}")
    warm = done
    started = time.perf_counter()
    end = started + options.seconds
    commit_at = started + commit_s
    sent = 0
    while (now := time.perf_counter()) < end:
        if commit_s and now >= commit_at:
            producer.commit_transaction(30)
            producer.begin_transaction()
            commit_at = time.perf_counter() + commit_s
        for _ in range(1000):
            try:
                producer.produce(options.topic, value, partition=sent % partitions, on_delivery=on_delivery)
            except BufferError:
                producer.poll(0.01)
                continue
            sent += 1
        producer.poll(0)
    if commit_s:
        producer.commit_transaction(120)
    producer.flush(120)
    took = time.perf_counter() - started
    return {"records": done - warm, "seconds": took, "failed": failed}


def fetch(options: argparse.Namespace) -> dict[str, float]:
    consumer = Consumer(
        {
            "bootstrap.servers": options.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.max.bytes": 64 << 20,
            "max.partition.fetch.bytes": 8 << 20,
            "fetch.message.max.bytes": 8 << 20,
            "queued.min.messages": 200_000,
            "queued.max.messages.kbytes": 256 << 10,
            "check.crcs": False,
            **client_settings.chosen(options),
        }
    )
    consumer.assign([TopicPartition(options.topic, p, OFFSET_BEGINNING) for p in range(options.partitions)])
    if not consumer.consume(1, 10.0):
        raise SystemExit(f"no records from {options.address}")
    count = failed = 0
    started = time.perf_counter()
    end = started + options.seconds
    while count < options.count and time.perf_counter() < end:
        messages = consumer.consume(20_000, 0.5)
        failed += sum(m.error() is not None for m in messages[:1])
        count += len(messages)
    took = time.perf_counter() - started
    consumer.close()
    return {"records": count, "seconds": took, "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["produce", "fetch"])
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--count", type=int, default=1 << 60)
    parser.add_argument("--idempotent", action="store_true")
    parser.add_argument("--commit-ms", type=int, default=0, help="produce in transactions, a commit every so often")
    client_settings.add_to(parser)
    options = parser.parse_args()
    print(json.dumps(produce(options) if options.what == "produce" else fetch(options)))


if __name__ == "__main__":
    main()
