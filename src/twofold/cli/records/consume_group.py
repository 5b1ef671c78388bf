"""`twofold consume --group`: a member of a group that prints what it reads.

1. Offsets are committed after their records were printed and flushed, so that a crash prints some twice and loses none.
2. Where the group has no offset, reading starts at the end, or at the beginning with `--from-beginning`.
3. `--exit` stops at what was the end of each partition when this member got it; partitions of other members are theirs.
4. However it ends, unless by kill -9, it commits what it has printed and leaves the group.
"""

import sys

from twofold.cli.common import FAILED, USAGE, CliError, Progress, complain
from twofold.cli.records.formats import Formatter
from twofold.client import Consumer, OffsetAndMetadata, RebalanceListener, TopicPartition
from twofold.client.errors import CommitFailed
from twofold.wire.errors import RebalanceInProgress

POLL_MS = 1_000
POLL_RECORDS = 5_000


def check_options(partition: list[int] | None, start: str) -> None:
    if partition:
        raise CliError("--partition does not go with --group: the group decides which member reads what", USAGE)
    if start != "beginning":
        raise CliError(
            "--offset does not go with --group: it goes on where the group has committed; "
            "`twofold group reset-offsets` moves that",
            USAGE,
        )


class GroupReader(RebalanceListener):
    """It hears of rebalances itself: it commits before partitions go, and asks for the ends of those that come."""

    def __init__(self, consumer: Consumer, formatter: Formatter) -> None:
        self._consumer = consumer
        self._formatter = formatter
        self._printed: dict[TopicPartition, OffsetAndMetadata] = {}  # and not committed yet
        self._ends: dict[TopicPartition, int] = {}
        self._joined = False

    async def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._joined = True
        if partitions:
            self._ends |= await self._consumer.end_offsets(partitions)

    async def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        await self._commit()
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        for tp in partitions:
            # The next owner may have read on: what was printed here must not be committed later.
            self._printed.pop(tp, None)
            self._ends.pop(tp, None)

    async def print_records(self, topic: str, count: int | None, *, exit_at_end: bool) -> None:
        self._consumer.subscribe([topic], listener=self)
        left = count
        try:
            with Progress("records read", count, when=count is not None and not sys.stdout.isatty()) as progress:
                while left is None or left > 0:
                    if exit_at_end and await self._is_at_end():
                        break
                    printed = await self._print_some(POLL_RECORDS if left is None else min(left, POLL_RECORDS))
                    progress.advance(printed)
                    if left is not None:
                        left -= printed
        finally:
            # An interrupt may have come between the flush and the commit.
            await self._commit(last=True)

    async def _is_at_end(self) -> bool:
        if not self._joined:
            return False
        for tp, end in list(self._ends.items()):
            if await self._consumer.position(tp) < end:
                return False
        return True

    async def _print_some(self, limit: int) -> int:
        records = await self._consumer.poll(POLL_MS, max_records=limit)
        if records:
            out = sys.stdout.buffer
            out.write(b"".join(map(self._formatter, records)))
            out.flush()
            for record in records:
                next_one = OffsetAndMetadata(record.offset + 1, leader_epoch=record.leader_epoch)
                self._printed[TopicPartition(record.topic, record.partition)] = next_one
        await self._commit()
        return len(records)

    async def _commit(self, *, last: bool = False) -> None:
        """What was not committed, the next owner of the partition prints again; that is no error before the end."""
        if not self._printed:
            return
        offsets = dict(self._printed)
        try:
            await self._consumer.commit(offsets)
        except (CommitFailed, RebalanceInProgress) as error:
            if last:
                complain(f"not committed, so that it is printed again: {_shown(offsets)} ({error})", FAILED)
            return
        self._printed.clear()


def _shown(offsets: dict[TopicPartition, OffsetAndMetadata]) -> str:
    return ", ".join(f"{tp} up to offset {row.offset - 1}" for tp, row in offsets.items())
