"""One client process whose threads are transactional producers, each in transactions of its own; prints JSON.

A transaction is begin, produce, commit; its latency is that of the commit, which with librdkafka covers all that the
broker is asked (the partition is added and the records are sent while the commit waits for them). All threads warm up
together, and only commits that end inside the measured interval count. The broker's processor time is read at both
ends of that interval.
"""

import argparse
import json
import threading
import time

from confluent_kafka import Producer

from bench import client_settings
from bench.processor import cpu_seconds

CONNECT_S = 30


class Clients:
    """The producers of a run, and the interval that counts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.ready = threading.Barrier(options.producers + 1)
        self.done = threading.Event()
        self.commits: list[list[tuple[float, float]]] = [[] for _ in range(options.producers)]  # (end, seconds)
        self.errors: list[str] = []

    def drive(self, number: int) -> None:
        try:
            producer = self.connect(number)
        except Exception as error:
            self.errors.append(repr(error))
            self.ready.abort()
            return
        self.ready.wait()
        try:
            self.repeat(number, producer)
        except Exception as error:
            self.errors.append(repr(error))

    def connect(self, number: int) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.options.address,
                "transactional.id": f"{self.options.topic}-{self.options.producers}-{number}",
                "transaction.timeout.ms": 60_000,
                "linger.ms": self.options.linger_ms,
                "log_level": 0,
                **client_settings.chosen(self.options),
            }
        )
        producer.init_transactions(CONNECT_S)
        return producer

    def repeat(self, number: int, producer: Producer) -> None:
        topic, partition = self.options.topic, number % self.options.partitions
        value, records = bytes(self.options.record_bytes), self.options.records
        commits = self.commits[number]
        while not self.done.is_set():
            producer.begin_transaction()
            for _ in range(records):
                producer.produce(topic, value, partition=partition)
            started = time.perf_counter()
            producer.commit_transaction(CONNECT_S)
            ended = time.perf_counter()
            commits.append((ended, ended - started))

    def run(self) -> dict[str, float | int | None]:
        options = self.options
        threads = [threading.Thread(target=self.drive, args=(n,), daemon=True) for n in range(options.producers)]
        for thread in threads:
            thread.start()
        try:
            self.ready.wait(2 * CONNECT_S)
        except threading.BrokenBarrierError:
            raise SystemExit(f"no transactions with {options.address}: {self.errors[:1]}") from None
        time.sleep(options.warmup)
        pid = options.pid
        began, spent = time.perf_counter(), cpu_seconds(pid) if pid else 0.0
        own = time.process_time()
        time.sleep(options.seconds)
        ended = time.perf_counter()
        spent, own = (cpu_seconds(pid) if pid else 0.0) - spent, time.process_time() - own
        self.done.set()
        for thread in threads:
            thread.join(2 * CONNECT_S)
        if self.errors:
            raise SystemExit(f"{len(self.errors)} producers failed: {self.errors[0]}")
        took = sorted(took for rows in self.commits for end, took in rows if began < end <= ended)
        if not took:
            raise SystemExit(f"no transaction ended within {options.seconds} s")
        return {
            "transactions": len(took),
            "seconds": ended - began,
            "rate": len(took) / (ended - began),
            "p50_ms": took[len(took) // 2] * 1000,
            "p99_ms": took[len(took) * 99 // 100] * 1000,
            "broker_us": spent / len(took) * 1e6 if pid else None,
            "client_us": own / len(took) * 1e6,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--pid", type=int, default=0, help="the broker, if its processor time is wanted")
    parser.add_argument("--topic", default="bench-transactions")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--records", type=int, default=1, help="a transaction")
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--linger-ms", type=float, default=5, help="the default of librdkafka; a commit does not wait")
    parser.add_argument("--warmup", type=float, default=1)
    parser.add_argument("--seconds", type=float, default=3)
    client_settings.add_to(parser)
    print(json.dumps(Clients(parser.parse_args()).run()))


if __name__ == "__main__":
    main()
