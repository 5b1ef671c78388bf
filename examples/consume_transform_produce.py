"""Consume, transform, produce, exactly once, with Twofold's own clients: words in, their lengths out.

    python examples/consume_transform_produce.py

starts a broker and two workers, processes of this file. Each worker reads words as a member of a group and writes their
lengths in transactions that commit what it has read as well. Meanwhile the workers are killed with -9 or paused past
their session, and started again. In the end every word must have been counted exactly once. With `--group-protocol
consumer` the broker assigns the partitions (KIP-848).
"""

import argparse
import random
import signal
import subprocess
import sys
import time

from twofold import Admin, Consumer, NewTopic, Producer, TopicPartition
from twofold.embedded import Broker
from twofold.errors import Fenced, KafkaError

WORDS, LENGTHS, GROUP = "words", "lengths", "counters"
PARTITIONS = 4
SESSION_MS = 6_000
HEARTBEAT_MS = 500
# With the classic protocol the consumers say how long a session is, with the new one the broker.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
}
PATIENCE_S = 120


# What you would write yourself


def work(servers: str, name: str, group_protocol: str) -> None:
    """One worker. `transactional_id` is its name: a second worker with the same name fences the first."""
    heartbeats = {"heartbeat_interval_ms": HEARTBEAT_MS} if group_protocol == "classic" else {}
    with (
        Consumer(
            bootstrap_servers=servers,
            group_id=GROUP,
            group_protocol=group_protocol,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=SESSION_MS,
            value_deserializer=bytes.decode,
            **heartbeats,
        ) as consumer,
        Producer(
            bootstrap_servers=servers,
            transactional_id=name,
            transaction_timeout_ms=10_000,
            value_serializer=lambda number: str(number).encode(),
        ) as producer,
    ):
        producer.init_transactions()
        consumer.subscribe([WORDS])
        while True:
            records = consumer.poll(timeout_ms=500, max_records=20)
            if records:
                copy(consumer, producer, records)


def copy(consumer: Consumer, producer: Producer, records: list) -> None:
    offsets = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
    try:
        with producer.transaction() as txn:
            for record in records:
                txn.send(LENGTHS, len(record.value), key=record.key, partition=record.partition)
            # With the membership: a worker that was paused and has lost its partitions is refused here.
            txn.send_offsets(offsets, consumer.group_metadata())
    except Fenced:
        raise  # another worker has this name
    except KafkaError as error:
        print(f"aborted, read again: {error}", file=sys.stderr)
        for tp, found in consumer.committed(consumer.assignment).items():
            if found is None:
                consumer.seek_to_beginning(tp)
            else:
                consumer.seek(tp, found)


# What goes wrong, and the check


class Worker:
    def __init__(self, servers: str, number: int, group_protocol: str) -> None:
        self._command = [sys.executable, __file__, "--work", servers, f"worker-{number}", group_protocol]
        self._process = subprocess.Popen(self._command)

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = subprocess.Popen(self._command)

    def pause(self, seconds: float) -> None:
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def send_words(servers: str, numbers: range) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for number in numbers:
            producer.send(WORDS, b"x" * (number % 50), key=b"%d" % number, partition=number % PARTITIONS)


def await_committed(servers: str, count: int) -> None:
    """Until the workers have committed that they have read so many words."""
    deadline = time.monotonic() + PATIENCE_S
    with Admin(bootstrap_servers=servers) as admin:
        while True:
            found = admin.list_group_offsets([GROUP]).values.get(GROUP)
            if found is not None and sum(row.offset for row in found.values.values()) >= count:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {count} words were read within {PATIENCE_S} s: {found}")
            time.sleep(0.1)


def read_lengths(servers: str) -> list[tuple[int, int]]:
    """Number and length of every word that a reader of committed records finds."""
    rows = []
    with Consumer(
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        key_deserializer=int,
        value_deserializer=int,
    ) as consumer:
        partitions = [TopicPartition(LENGTHS, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        while any(consumer.lag().values()):
            rows += [(record.key, record.value) for record in consumer.poll(timeout_ms=500)]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=4_000)
    parser.add_argument("--crashes", type=int, default=4)
    parser.add_argument("--pauses", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group-protocol", choices=["classic", "consumer"], default="classic")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return 0
    with Broker(settings=SETTINGS) as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic(WORDS, PARTITIONS), NewTopic(LENGTHS, PARTITIONS)]).get()
        run(servers, options)
        rows = read_lengths(servers)
    expected = [(number, number % 50) for number in range(options.words)]
    holds = sorted(rows) == expected
    lost, doubled = options.words - len(set(rows)), len(rows) - len(set(rows))
    print(f"{options.words:,} words, {lost} lost, {doubled} doubled: {'exactly once' if holds else 'NOT exactly once'}")
    return 0 if holds else 1


def run(servers: str, options: argparse.Namespace) -> None:
    """Words come while workers are killed and paused; returns when all are read."""
    chance = random.Random(options.seed)
    accidents = ["crash"] * options.crashes + ["pause"] * options.pauses
    chance.shuffle(accidents)
    part = max(1, options.words // (len(accidents) + 1))
    workers = [Worker(servers, number, options.group_protocol) for number in (1, 2)]
    try:
        for place, accident in enumerate(accidents):
            send_words(servers, range(place * part, (place + 1) * part))
            await_committed(servers, place * part + 1)  # they are at it
            worker = chance.choice(workers)
            if accident == "crash":
                worker.crash()
            else:
                worker.pause(SESSION_MS / 1000 + 2)
            print(f"a worker: {accident}")
        send_words(servers, range(len(accidents) * part, options.words))
        await_committed(servers, options.words)
    finally:
        for worker in workers:
            worker.end()


if __name__ == "__main__":
    sys.exit(main())
