"""A million records through an embedded broker, sent and read back by a stock client; then the verdict.

Run it with `.venv/bin/python examples/million.py`. The verdict is computed from what the client reads, not from the
broker's counters.
"""

import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from twofold.embedded import Broker

RECORDS = 1_000_000
PARTITIONS = 4
TOPIC = "million"


def send(address: str, progress: Progress) -> list[str]:
    task = progress.add_task("sent and acknowledged", total=RECORDS)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "log_level": 0,  # it outlives the broker for a moment, and would say so
        }
    )
    refused: list[str] = []
    acknowledged = 0

    def on_delivery(error, message):
        nonlocal acknowledged
        if error is not None:
            refused.append(str(error))
        acknowledged += 1

    for number in range(RECORDS):
        while True:
            try:
                producer.produce(
                    TOPIC, value=b"order-%d" % number, partition=number % PARTITIONS, on_delivery=on_delivery
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 5_000 == 0:
            producer.poll(0)
            progress.update(task, completed=acknowledged)
    while producer.flush(0.2):
        progress.update(task, completed=acknowledged)
    progress.update(task, completed=acknowledged)
    return refused


def read(address: str, progress: Progress) -> tuple[int, int, int]:
    """(distinct records, doubled, out of order) over all partitions."""
    task = progress.add_task("read back", total=RECORDS)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "demo",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.max.bytes": 32 << 20,
        }
    )
    consumer.assign([TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    seen = bytearray(RECORDS)
    last = [-1] * PARTITIONS
    doubled = disordered = count = 0
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        for message in consumer.consume(10_000, timeout=1.0):
            if message.error() is not None:
                at_end.add(message.partition())
                continue
            number = int(message.value()[6:])
            doubled += seen[number]
            seen[number] = 1
            disordered += number <= last[message.partition()]
            last[message.partition()] = number
            count += 1
        progress.update(task, completed=count)
    consumer.close()
    return sum(seen), doubled, disordered


def main() -> int:
    console = Console()
    columns = (TextColumn("{task.description:>22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    started = time.monotonic()
    with Broker() as broker:
        console.print(f"broker on {broker.bootstrap_servers}, ready after {time.monotonic() - started:.2f} s")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        with Progress(*columns, console=console) as progress:
            sending = time.monotonic()
            refused = send(broker.bootstrap_servers, progress)
            reading = time.monotonic()
            distinct, doubled, disordered = read(broker.bootstrap_servers, progress)
            done = time.monotonic()

    lost = RECORDS - distinct
    table = Table(title="what the client read back", show_header=False)
    for label, value in (
        ("records sent", f"{RECORDS:,}"),
        ("refused", f"{len(refused):,}"),
        ("lost", f"{lost:,}"),
        ("doubled", f"{doubled:,}"),
        ("out of order", f"{disordered:,}"),
        ("sent per second", f"{RECORDS / (reading - sending):,.0f}"),
        ("read per second", f"{RECORDS / (done - reading):,.0f}"),
    ):
        table.add_row(label, value)
    console.print(table)
    good = not (refused or lost or doubled or disordered)
    console.print("[bold green]nothing lost, nothing doubled" if good else "[bold red]the log lost or doubled records")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except KafkaException as error:
        sys.exit(f"the client failed: {error}")
