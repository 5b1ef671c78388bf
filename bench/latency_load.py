"""One confluent-kafka process that sends at a fixed rate and reads what it sent: prints how long each took, as JSON.

A record carries the moment it was due, not the moment it was handed over, so that a broker that stalls is charged for
everything that had to wait behind it (no coordinated omission).
"""

import argparse
import json
import threading
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

WARM_UP_S = 1.5


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    places = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {name: ordered[min(len(ordered) - 1, int(len(ordered) * at))] * 1e3 for name, at in places.items()}


class Reader(threading.Thread):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self.stopped = False
        self.consumer = Consumer(
            {
                "bootstrap.servers": options.address,
                "group.id": "latency",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "fetch.error.backoff.ms": 1,
            }
        )
        rows = [TopicPartition(options.topic, p) for p in range(options.partitions)]
        for row in rows:
            _, row.offset = self.consumer.get_watermark_offsets(row, 30)
        self.consumer.assign(rows)
        self.consumer.poll(1)

    def run(self) -> None:
        while not self.stopped:
            message = self.consumer.poll(0.05)
            if message is not None and message.error() is None:
                key = message.key()
                assert key is not None
                self.times.append(time.perf_counter() - float(key))
        self.consumer.close()


def measure(options: argparse.Namespace) -> dict[str, object]:
    producer = Producer({"bootstrap.servers": options.address, "acks": "all", "linger.ms": 0, "log_level": 0})
    reader = Reader(options)
    reader.start()
    acknowledged: list[float] = []
    failed = 0

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal failed
        failed += error is not None
        acknowledged.append(time.perf_counter() - float(message.key() or b""))

    value = bytes(options.record_bytes)
    started = time.perf_counter()
    number, total = 0, int(options.rate * (WARM_UP_S + options.seconds))
    while number < total:
        due = started + number / options.rate
        while (now := time.perf_counter()) < due:
            producer.poll(min(due - now, 0.001) if due - now > 0.0002 else 0)
        producer.produce(
            options.topic, value, key=repr(due), partition=number % options.partitions, on_delivery=on_delivery
        )
        number += 1
        producer.poll(0)
    producer.flush(30)
    deadline = time.perf_counter() + 10
    while len(reader.times) < total and time.perf_counter() < deadline:
        time.sleep(0.01)
    reader.stopped = True
    reader.join(10)
    warm = int(options.rate * WARM_UP_S)
    return {
        "failed": failed,
        "missing": total - len(reader.times),
        "acknowledged": percentiles(acknowledged[warm:]),
        "read": percentiles(reader.times[warm:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--rate", type=float, required=True, help="records per second")
    parser.add_argument("--seconds", type=float, default=5)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
