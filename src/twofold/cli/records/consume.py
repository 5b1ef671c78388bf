"""`twofold consume`: records to standard output."""

import sys
from typing import Annotated, Any

from twofold.cli import declare
from twofold.cli.admin import connected
from twofold.cli.command_config import make_config
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    OK,
    USAGE,
    BootstrapServer,
    CliError,
    Count,
    Progress,
    Timeout,
    parse_pairs,
    run_command,
    timestamp_ms,
)
from twofold.cli.records.consume_group import GroupReader, check_options
from twofold.cli.records.formats import TEMPLATE_HELP, Formatter, json_line, plain, template
from twofold.client import Consumer, TopicPartition
from twofold.client.config import ConsumerConfig
from twofold.wire.errors import UnknownTopicOrPartition

POLL_MS = 1_000
POLL_RECORDS = 5_000
START_HELP = (
    "Where to start: beginning, end, an offset, -N for N records before the end, or @TIMESTAMP "
    "(milliseconds since 1970, or like 2026-07-01T12:00:00)."
)

FromBeginning = Annotated[
    bool,
    declare.Option(
        "--from-beginning", help="The same as -o beginning; with --group, where the group has no offset yet."
    ),
]
Group = Annotated[
    str | None,
    declare.Option("--group", "-g", metavar="ID", help="Read as a member of this group, and commit what was printed."),
]


def consume(
    topic: Annotated[str, declare.Argument(metavar="TOPIC", help="The topic.")],
    partition: Annotated[
        list[int] | None, declare.Option("--partition", "-p", min=0, help="Default: all; repeatable.")
    ] = None,
    offset: Annotated[str, declare.Option("--offset", "-o", metavar="WHERE", help=START_HELP)] = "beginning",
    from_beginning: FromBeginning = False,
    group: Group = None,
    count: Count = None,
    exit_at_end: Annotated[bool, declare.Option("--exit", "-e", help="Stop at the end instead of waiting.")] = False,
    isolation: Annotated[
        str, declare.Option("--isolation", metavar="LEVEL", help="read_committed or read_uncommitted.")
    ] = "read_uncommitted",
    key_separator: Annotated[
        str | None,
        declare.Option("--key-separator", "-K", metavar="TEXT", help="Print the key and this before values."),
    ] = None,
    output: Annotated[
        str,
        declare.Option(
            "--format", "-f", metavar="FORMAT", help=f"value, json (one object per line), or {TEMPLATE_HELP}."
        ),
    ] = "value",
    settings: Annotated[
        list[str] | None, declare.Option("-X", metavar="KEY=VALUE", help="Any consumer setting; repeatable.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print the records of a topic, and wait for more unless told to stop."""

    async def main() -> int:
        formatter = _formatter(output, key_separator)
        start = "beginning" if from_beginning else offset
        _check_start(start)
        if group is not None:
            check_options(partition, start)
        values = {
            **_reading(group, from_beginning),
            "default.api.timeout.ms": int(timeout * 1000),
            **parse_pairs(settings or (), "-X"),
            "isolation.level": isolation,
        }
        defaults = {"max.partition.fetch.bytes": 4 * 1024 * 1024}
        async with Consumer.of(make_config(ConsumerConfig, bootstrap_server, values, defaults)) as consumer:
            partitions = await _partitions(bootstrap_server, timeout, topic, partition)
            if group is not None:
                await GroupReader(consumer, formatter).print_records(topic, count, exit_at_end=exit_at_end)
                return OK
            consumer.assign(partitions)
            await _seek(consumer, start)
            ends = await consumer.end_offsets(partitions) if exit_at_end else None
            await _print_records(consumer, formatter, count, ends)
        return OK

    run_command(main, bootstrap_server)


def _reading(group: str | None, from_beginning: bool) -> dict[str, Any]:
    """The settings that -X may change: of a member of a group, or of a consumer that is on its own."""
    if group is None:
        return {"auto.offset.reset": "earliest"}
    reset = "earliest" if from_beginning else "latest"
    return {"group.id": group, "enable.auto.commit": "false", "auto.offset.reset": reset}


def _formatter(output: str, key_separator: str | None) -> Formatter:
    if output in ("value", "table"):
        return plain(key_separator)
    if key_separator is not None:
        raise CliError("--key-separator does not go with --format: put %k into the template", USAGE)
    return json_line if output == "json" else template(output)


async def _partitions(server: str, timeout_s: float, topic: str, chosen: list[int] | None) -> list[TopicPartition]:
    async with connected(server, timeout_s) as admin:
        results = await admin.describe_topics([topic])
    if isinstance(results.errors.get(topic), UnknownTopicOrPartition):
        raise CliError(f"no topic {topic} at {server}; `twofold topic list` shows those that exist")
    existing = results.get()[topic].partitions
    for index in chosen or ():
        if index not in existing:
            raise CliError(f"topic {topic} has partitions 0 to {len(existing) - 1}, there is no {index}", USAGE)
    return [TopicPartition(topic, index) for index in chosen or existing]


def _check_start(start: str) -> None:
    if start in ("beginning", "end") or start.removeprefix("-").isdecimal():
        return
    if start.startswith("@"):
        timestamp_ms(start[1:], start)
        return
    raise CliError(f"--offset {start!r} is none of: beginning, end, an offset, -N, @TIMESTAMP", USAGE)


async def _seek(consumer: Consumer, start: str) -> None:
    if start == "beginning":
        consumer.seek_to_beginning()
    elif start == "end":
        consumer.seek_to_end()
        # The end as of now, not as of the first fetch.
        for tp in consumer.assignment:
            await consumer.position(tp)
    elif start.startswith("@"):
        await consumer.seek_to_timestamp(timestamp_ms(start[1:], start))
    elif start.startswith("-"):
        begins = await consumer.beginning_offsets(consumer.assignment)
        for tp, end in (await consumer.end_offsets(consumer.assignment)).items():
            consumer.seek(tp, max(begins[tp], end + int(start)))
    else:
        for tp in consumer.assignment:
            consumer.seek(tp, int(start))


async def _print_records(
    consumer: Consumer, formatter: Formatter, count: int | None, ends: dict[TopicPartition, int] | None
) -> None:
    out = sys.stdout.buffer
    total = count
    if ends is not None and count is None:
        total = sum([max(0, end - await consumer.position(tp)) for tp, end in ends.items()])
    bounded = total is not None and not sys.stdout.isatty()
    left = count
    with Progress("records read", total, when=bounded) as progress:
        while left is None or left > 0:
            if ends is not None and await _is_at_end(consumer, ends):
                return
            limit = POLL_RECORDS if left is None else min(left, POLL_RECORDS)
            records = await consumer.poll(POLL_MS, max_records=limit)
            if ends is not None:
                records = [record for record in records if record.offset < ends[TopicPartition(*record[:2])]]
            if records:
                out.write(b"".join(map(formatter, records)))
                out.flush()
                progress.advance(len(records))
            if left is not None:
                left -= len(records)


async def _is_at_end(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    for tp, end in ends.items():
        if await consumer.position(tp) < end:
            return False
        # What is written from here on is not asked for any more.
        consumer.pause(tp)
    return True
