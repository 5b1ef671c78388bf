"""`twofold txn fate`: what became of each batch of a partition, which producer wrote it, and where its marker is.

1. Batches are read from an offset on (the start of the log otherwise), so many as are asked for. What they wait for may
   lie further on: reading goes on until every one of them has met its marker, or the log ends.
2. A marker ends what its producer has open there under the same epoch or an earlier one.
3. What has no marker is open, up to the high watermark that was seen first.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from twofold.cli import declare
from twofold.cli.admin import connected
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    FAILED,
    OK,
    USAGE,
    BootstrapServer,
    CliError,
    Format,
    OutputFormat,
    Progress,
    Timeout,
    complain,
    print_json,
    print_table,
    run_command,
)
from twofold.cli.txn.place import check_partition
from twofold.client import Admin, OffsetSpec, TopicPartition
from twofold.client.admin.hanging import owners_of
from twofold.client.admin.transaction_model import TransactionDescription
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.single_fetch import SingleFetch
from twofold.connections.errors import UnsupportedByBroker
from twofold.records.batch import Header, iter_headers
from twofold.records.control import ControlType, read_control_type

DEFAULT_LIMIT = 100
FETCH_BYTES = 8 << 20


class Fate(StrEnum):
    PLAIN = "plain"
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class BatchFate:
    """A batch, and what became of it."""

    base_offset: int
    last_offset: int
    records: int
    producer_id: int
    producer_epoch: int
    timestamp: int
    fate: Fate
    marker_offset: int | None = None
    """Of what ended it; of a marker, its own."""
    ends: str | None = None
    """What a control batch says."""


class Fates:
    """The rows of the first batches, and which of them still wait for their marker. Pure."""

    def __init__(self, limit: int) -> None:
        self.rows: list[BatchFate] = []
        self._limit = limit
        self._waiting: dict[int, list[int]] = {}  # by producer id: places in `rows`

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self._limit

    @property
    def is_done(self) -> bool:
        return self.is_full and not self._waiting

    def add(self, header: Header, control: ControlType | None) -> None:
        if control in (ControlType.COMMIT, ControlType.ABORT):
            self._end(header, control)
        if self.is_full:
            return
        fate = Fate.CONTROL if header.is_control else Fate.OPEN if header.is_transactional else Fate.PLAIN
        if fate is Fate.OPEN:
            self._waiting.setdefault(header.producer_id, []).append(len(self.rows))
        self.rows.append(
            BatchFate(
                header.base_offset,
                header.last_offset,
                header.count,
                header.producer_id,
                header.producer_epoch,
                header.max_timestamp,
                fate,
                header.base_offset if fate is Fate.CONTROL else None,
                None if control is None else control.name.lower(),
            )
        )

    def _end(self, header: Header, control: ControlType) -> None:
        fate = Fate.COMMITTED if control is ControlType.COMMIT else Fate.ABORTED
        left = []
        for place in self._waiting.pop(header.producer_id, ()):
            if self.rows[place].producer_epoch > header.producer_epoch:
                left.append(place)
            else:
                self.rows[place] = replace(self.rows[place], fate=fate, marker_offset=header.base_offset)
        if left:
            self._waiting[header.producer_id] = left


def fate(
    topic: Annotated[str, declare.Argument(metavar="TOPIC", help="The topic.")],
    partition: Annotated[int, declare.Argument(metavar="PARTITION", help="Its partition.")],
    offset: Annotated[
        int | None, declare.Option("--offset", min=0, help="Begin with the batch of this offset.")
    ] = None,
    limit: Annotated[int, declare.Option("--limit", min=1, help="Show so many batches.")] = DEFAULT_LIMIT,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show of each batch whether it is committed, aborted or open, which producer wrote it, and where its marker is."""

    async def main() -> int:
        tp = TopicPartition(topic, partition)
        async with connected(bootstrap_server, timeout) as admin:
            start, end = await _range(admin, tp, offset)
            fates = Fates(limit)
            with Progress("offsets", end - start, when=output is OutputFormat.TABLE) as bar:
                seen = start
                async for header, control in _batches(admin, tp, start, end):
                    fates.add(header, control)
                    bar.advance(header.next_offset - seen)
                    seen = header.next_offset
                    if fates.is_done:
                        break
            producers = {row.producer_id for row in fates.rows if row.producer_id >= 0}
            owners: dict[int, TransactionDescription] = {}
            code = OK
            try:
                owners = await owners_of(admin, producers)
            except UnsupportedByBroker as error:
                code = complain(f"cannot find the transactional ids of producers: {error}", FAILED)
        names = {producer_id: owner.transactional_id for producer_id, owner in owners.items()}
        if output is OutputFormat.JSON:
            print_json([_json(row, names) for row in fates.rows])
        else:
            _print(fates.rows, names, end)
        return code

    run_command(main, bootstrap_server)


async def _range(admin: Admin, tp: TopicPartition, offset: int | None) -> tuple[int, int]:
    await check_partition(admin, tp)
    first = (await admin.list_offsets({tp: OffsetSpec.EARLIEST}))[tp].offset
    end = (await admin.list_offsets({tp: OffsetSpec.LATEST}))[tp].offset
    start = first if offset is None else offset
    if offset is not None and not first <= offset < end:
        there = f"has offsets {first} to {end - 1}" if first < end else "is empty"
        raise CliError(f"--offset {offset} is not there: {tp} {there}", USAGE)
    return start, end


async def _batches(
    admin: Admin, tp: TopicPartition, start: int, end: int
) -> AsyncIterator[tuple[Header, ControlType | None]]:
    config = ConsumerConfig(
        bootstrap_servers=admin.config.bootstrap_servers,
        max_partition_fetch_bytes=FETCH_BYTES,
        request_timeout_ms=admin.config.request_timeout_ms,
    )
    fetch = SingleFetch(admin.cluster, config, tp)
    position = start
    while position < end:
        data = await fetch.fetch(position, 0, admin.cluster.deadline())
        before = position
        for at, header in iter_headers(data.records or b""):
            position = header.next_offset
            if header.last_offset >= start:
                yield header, read_control_type(data.records or b"", at) if header.is_control else None
        if position == before:
            return  # compaction took the rest


def _print(rows: Iterable[BatchFate], names: dict[int, str], end: int) -> None:
    found = list(rows)
    if not found:
        print(f"no batches up to offset {end}")
        return
    print_table(
        ["OFFSETS", "RECORDS", "FATE", "MARKER AT", "PRODUCER", "TRANSACTIONAL ID"],
        [
            (
                f"{row.base_offset}-{row.last_offset}" if row.last_offset > row.base_offset else row.base_offset,
                row.records,
                row.fate.value if row.ends is None else f"{row.fate.value}: {row.ends}",
                "-" if row.marker_offset is None else row.marker_offset,
                "-" if row.producer_id < 0 else f"{row.producer_id}:{row.producer_epoch}",
                names.get(row.producer_id, "-"),
            )
            for row in found
        ],
        right=["RECORDS", "MARKER AT"],
    )


def _json(row: BatchFate, names: dict[int, str]) -> dict[str, object]:
    return {
        "base_offset": row.base_offset,
        "last_offset": row.last_offset,
        "records": row.records,
        "fate": row.fate.value,
        "control": row.ends,
        "marker_offset": row.marker_offset,
        "producer_id": None if row.producer_id < 0 else row.producer_id,
        "producer_epoch": None if row.producer_id < 0 else row.producer_epoch,
        "transactional_id": names.get(row.producer_id),
        "timestamp": row.timestamp,
    }
