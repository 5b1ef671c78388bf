"""Fills the data folder of a stopped broker with transactions, through the log layer, and dies of SIGKILL.

`python -m bench.transaction_folder DATA --state-topic-id ID --topic-id ID [--ids N] [--open N] [--aborted N] ...`
  --ids      transactional ids whose last transaction is complete, in `__transaction_state`
  --open     transactions that are open: an id, and a record in a partition of `curve`
  --hanging  transactions that no coordinator knows: only the record
  --aborted  transactions that were aborted: a record and a marker in partition 0 of `curve`
  --spread   over how many partitions of `curve` the open ones are spread (1)
"""

import argparse
import asyncio
import os
import signal
import time
import uuid
from collections.abc import Iterable, Iterator
from itertools import islice

from twofold.config.internal_topics import TRANSACTION_STATE, coordinator_partition
from twofold.config.topic import LogConfig
from twofold.coordinator.transaction.records import TransactionMetadata, encode_key, encode_value
from twofold.coordinator.transaction.states import State
from twofold.log.api import Origin
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager, LogOptions
from twofold.records.batch import BatchBuilder
from twofold.records.control import end_transaction_marker
from twofold.runtime.real import real_runtime
from twofold.types import FIRST_PRODUCER_EPOCH, ProducerId, TopicPartition

TOPIC = "curve"
PARTITIONS = 50
FIRST_PRODUCER_ID = 1_000_000
TIMEOUT_MS = 900_000
RECORDS_PER_BATCH = 500
BATCHES_PER_APPEND = 1000


def open_id(number: int) -> str:
    return f"open-{number}"


def known_id(number: int) -> str:
    return f"application-{number}"


def state_records(options: argparse.Namespace, now_ms: int) -> Iterator[tuple[str, TransactionMetadata]]:
    places = [frozenset([TopicPartition(TOPIC, index)]) for index in range(options.spread)]
    for number in range(options.open):
        place = places[number % options.spread]
        yield (
            open_id(number),
            TransactionMetadata(
                ProducerId(FIRST_PRODUCER_ID + number),
                FIRST_PRODUCER_EPOCH,
                TIMEOUT_MS,
                State.ONGOING,
                place,
                now_ms,
                now_ms,
            ),
        )
    for number in range(options.ids):
        producer_id = FIRST_PRODUCER_ID + options.open + number
        yield (
            known_id(number),
            TransactionMetadata(
                ProducerId(producer_id),
                FIRST_PRODUCER_EPOCH,
                TIMEOUT_MS,
                State.COMPLETE_COMMIT,
                frozenset(),
                now_ms,
                now_ms,
            ),
        )


def write_state(logs: list[PartitionLog], options: argparse.Namespace, now_ms: int) -> None:
    builders = [BatchBuilder(base_sequence=0) for _ in logs]

    def write(index: int) -> None:
        if builders[index].count:
            logs[index].append(builders[index].build(), origin=Origin.COORDINATOR, leader_epoch=0)
            builders[index] = BatchBuilder(base_sequence=0)

    for transactional_id, value in state_records(options, now_ms):
        index = coordinator_partition(transactional_id, len(logs))
        builders[index].add(encode_key(transactional_id), encode_value(value, 1), now_ms)
        if builders[index].count >= RECORDS_PER_BATCH:
            write(index)
    for index in range(len(logs)):
        write(index)


def data_batch(producer_id: int, now_ms: int) -> bytes:
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
    builder.add(None, bytes(100), now_ms)
    return builder.build()


def aborted(producer_id: int, now_ms: int) -> bytes:
    marker = end_transaction_marker(
        commit=False, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=now_ms
    )
    return data_batch(producer_id, now_ms) + marker


def write_data(log: PartitionLog, batches: Iterable[bytes]) -> None:
    rest = iter(batches)
    while chunk := b"".join(islice(rest, BATCHES_PER_APPEND)):
        log.append(chunk, origin=Origin.COORDINATOR, leader_epoch=0, transaction_version=0)
        log.advance_high_watermark(log.log_end_offset)


async def fill(options: argparse.Namespace) -> None:
    manager = LogManager(real_runtime(), options.data, LogOptions(transaction_verification_enabled=False))
    manager.load()
    now_ms = int(time.time() * 1000)
    if options.ids or options.open:
        topic_id, config = uuid.UUID(options.state_topic_id), LogConfig()
        write_state(
            [manager.get_or_create(TopicPartition(TRANSACTION_STATE, p), topic_id, config) for p in range(PARTITIONS)],
            options,
            now_ms,
        )
    first = FIRST_PRODUCER_ID + options.open + options.ids
    written = [range(FIRST_PRODUCER_ID, FIRST_PRODUCER_ID + options.open)]
    written += [range(first + options.aborted, first + options.aborted + options.hanging)]
    for index in range(options.spread if any(written) else bool(options.aborted)):
        log = manager.get_or_create(TopicPartition(TOPIC, index), uuid.UUID(options.topic_id), LogConfig())
        if index == 0:
            write_data(log, (aborted(first + number, now_ms) for number in range(options.aborted)))
        for producers in written:
            write_data(log, (data_batch(number, now_ms) for number in producers[index :: options.spread]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--state-topic-id", required=True)
    parser.add_argument("--topic-id", required=True)
    parser.add_argument("--ids", type=int, default=0)
    parser.add_argument("--open", type=int, default=0)
    parser.add_argument("--hanging", type=int, default=0)
    parser.add_argument("--aborted", type=int, default=0)
    parser.add_argument("--spread", type=int, default=1)
    asyncio.run(fill(parser.parse_args()))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
