"""`twofold produce`: records from standard input."""

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import Annotated, Any

from twofold.cli import declare
from twofold.cli.admin import connected
from twofold.cli.command_config import make_config
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    FAILED,
    OK,
    USAGE,
    BootstrapServer,
    CliError,
    Count,
    Progress,
    Timeout,
    complain,
    parse_pairs,
    plural,
    run_command,
)
from twofold.cli.records.formats import NewRecord, parse_json_line, unescape
from twofold.client import Delivery, Producer
from twofold.client.config import ProducerConfig
from twofold.wire.errors import KafkaError

READ_BYTES = 256 * 1024
MAX_PENDING = 50_000  # records whose fate is looked at later


class InputFormat(StrEnum):
    LINES = "lines"
    JSON = "json"


def produce(
    topic: Annotated[str, declare.Argument(metavar="TOPIC", help="The topic.")],
    key_separator: Annotated[
        str | None, declare.Option("--key-separator", "-K", metavar="TEXT", help="What ends the key in each line.")
    ] = None,
    key: Annotated[str | None, declare.Option("--key", "-k", help="The same key for all records.")] = None,
    partition: Annotated[int | None, declare.Option("--partition", "-p", min=0, help="Default: by the key.")] = None,
    header: Annotated[
        list[str] | None, declare.Option("--header", "-H", metavar="NAME=VALUE", help="For all records; repeatable.")
    ] = None,
    compression: Annotated[
        str, declare.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    delimiter: Annotated[str, declare.Option("--delimiter", "-D", metavar="TEXT", help="What ends a record.")] = r"\n",
    null: Annotated[bool, declare.Option("--null", "-Z", help="Empty keys and values are null.")] = False,
    count: Count = None,
    acks: Annotated[str, declare.Option("--acks", help="all, 1 or 0.")] = "all",
    settings: Annotated[
        list[str] | None, declare.Option("-X", metavar="KEY=VALUE", help="Any producer setting; repeatable.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    input_format: Annotated[
        InputFormat, declare.Option("--format", help="Lines, or JSON as `twofold consume --format json` prints it.")
    ] = InputFormat.LINES,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Send standard input to a topic, one record per line.

    Nothing is printed unless something fails.
    """

    async def main() -> int:
        headers = tuple((name, value.encode()) for name, value in parse_pairs(header or (), "--header").items())
        parse = _parser(input_format, key_separator, key, headers, null)
        linger_ms = 5 if sys.stdin.isatty() else 20
        values: dict[str, Any] = {
            "compression.type": compression,
            "acks": acks,
            **_patience(timeout, linger_ms),
            **parse_pairs(settings or (), "-X"),
        }
        defaults = {"linger.ms": linger_ms, "batch.size": 131_072}
        producer = Producer.of(make_config(ProducerConfig, bootstrap_server, values, defaults))
        try:
            # Ask the broker first: if it is not there, a producer would keep trying for a while.
            async with connected(bootstrap_server, timeout):
                await _check_partition(producer, topic, partition, timeout)
            with Progress(f"records to {topic}", when=not sys.stdin.isatty()) as progress:
                sending = _Sending(producer, topic, partition, progress)
                await sending.send_all(_read_records(unescape(delimiter)), parse, count)
                return await sending.finish()
        finally:
            await producer.close(flush=False)

    run_command(main, bootstrap_server)


def _patience(timeout_s: float, linger_ms: int) -> dict[str, int]:
    """With a record, too, where the user has said how much; otherwise a producer's own, which outlives a restart."""
    if timeout_s == DEFAULT_TIMEOUT_S:
        return {}
    timeout_ms = int(timeout_s * 1000)
    return {"request.timeout.ms": timeout_ms, "delivery.timeout.ms": timeout_ms + linger_ms}


async def _check_partition(producer: Producer, topic: str, partition: int | None, timeout_s: float) -> None:
    partitions = await producer.partitions_for(topic, timeout_ms=min(5.0, timeout_s) * 1000)
    if partition is not None and partition not in partitions:
        raise CliError(f"topic {topic} has partitions 0 to {len(partitions) - 1}, there is no {partition}", USAGE)


class _Sending:
    """Sends, and looks at the fates in the order of sending so that not all of them are kept."""

    def __init__(self, producer: Producer, topic: str, partition: int | None, progress: Progress) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._progress = progress
        self._pending: deque[Delivery] = deque()
        self._failed = 0
        self._first_error: KafkaError | None = None

    async def send_all(
        self, chunks: AsyncIterator[list[bytes]], parse: Callable[[bytes, int], NewRecord], count: int | None
    ) -> None:
        number = 0
        async for lines in chunks:
            for line in lines:
                number += 1
                await self._send(parse(line, number))
                if number == count:
                    return
            self._progress.advance(len(lines))
            while len(self._pending) > MAX_PENDING or (self._pending and self._pending[0].done()):
                await self._check(self._pending.popleft())

    async def _send(self, record: NewRecord) -> None:
        delivery = await self._producer.send(
            self._topic,
            record.value,
            key=record.key,
            partition=self._partition,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers,
        )
        self._pending.append(delivery)

    async def _check(self, delivery: Delivery) -> None:
        try:
            await delivery
        except KafkaError as error:
            self._failed += 1
            self._first_error = self._first_error or error

    async def finish(self) -> int:
        await self._producer.flush()
        for delivery in self._pending:
            await self._check(delivery)
        if self._first_error is None:
            return OK
        what = f"{plural(self._failed, 'record')} {'was' if self._failed == 1 else 'were'} not written"
        return complain(f"{what} to {self._topic}: {self._first_error}", FAILED)


def _parser(
    input_format: InputFormat,
    key_separator: str | None,
    fixed_key: str | None,
    headers: tuple[tuple[str, bytes | None], ...],
    null: bool,
) -> Callable[[bytes, int], NewRecord]:
    if input_format is InputFormat.JSON:
        if key_separator is not None:
            raise CliError("--key-separator does not go with --format json, where the key has its own field", USAGE)
        return lambda line, number: _with_headers(parse_json_line(line, number), headers)
    separator = None if key_separator is None else unescape(key_separator)
    if separator == b"":
        raise CliError("--key-separator is empty", USAGE)
    default_key = None if fixed_key is None else fixed_key.encode()

    def parse(line: bytes, _: int) -> NewRecord:
        key, value = default_key, line
        if separator is not None:
            before, found, after = line.partition(separator)
            if found:
                key, value = before, after
        if null:
            return NewRecord(key or None, value or None, headers)
        return NewRecord(key, value, headers)

    return parse


def _with_headers(record: NewRecord, headers: tuple[tuple[str, bytes | None], ...]) -> NewRecord:
    return record._replace(headers=record.headers + headers)


async def _read_records(delimiter: bytes) -> AsyncIterator[list[bytes]]:
    """Standard input, cut at the delimiter. The last record needs none."""
    if not delimiter:
        raise CliError("--delimiter is empty", USAGE)
    rest = b""
    async for chunk in _read_stdin():
        *lines, rest = (rest + chunk).split(delimiter)
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _read_stdin() -> AsyncIterator[bytes]:
    """Read on a thread that does not keep the process alive: a read of a terminal cannot be interrupted."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)

    def read() -> None:
        while True:
            try:
                # Not sys.stdin: its lock, held by a thread that reads, would stop the interpreter's exit.
                chunk = os.read(0, READ_BYTES)
            except OSError:
                chunk = b""
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except (RuntimeError, asyncio.CancelledError):
                return
            if not chunk:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await chunks.get():
        yield chunk
