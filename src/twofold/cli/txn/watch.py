"""`twofold txn watch`: open transactions and which readers they hold back, as a table that keeps itself up to
date, or as one line of JSON per look."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from twofold.cli.common import plural
from twofold.client import Admin, TopicPartition
from twofold.client.admin.hanging import Blocked, ToldBy, find_blocked
from twofold.client.admin.transaction_model import TransactionListing, TransactionState
from twofold.wire.errors import KafkaError

ROWS = 20
OPEN_STATES = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class Look(NamedTuple):
    """What was seen at one time; `problem` where there was no answer."""

    now_ms: int
    listed: Sequence[TransactionListing] = ()
    blocked: Sequence[Blocked] = ()
    problem: str | None = None

    @property
    def ongoing(self) -> int:
        return sum(row.state is TransactionState.ONGOING for row in self.listed)


async def watch_transactions(
    admin: Admin,
    partitions: Sequence[TopicPartition],
    interval_s: float,
    count: int | None,
    show: Callable[[Look], None],
) -> bool:
    """Look again and again; a cluster that does not answer is said to, and asked again. Whether the last one did."""
    looks = 0
    look = Look(0)
    while count is None or looks < count:
        if looks:
            await admin.cluster.runtime.timers.sleep(interval_s)
        looks += 1
        try:
            listed = (await admin.list_transactions(states=OPEN_STATES)).get()
            blocked, _ = await find_blocked(admin, partitions)
        except KafkaError as error:
            look = Look(int(time.time() * 1000), problem=str(error))
        else:
            rows = [row for found in listed.values() for row in found]
            look = Look(int(time.time() * 1000), rows, blocked)
        show(look)
    return look.problem is None


@contextmanager
def live_table(console: Console) -> Iterator[Callable[[Look], None]]:
    with Live(console=console, auto_refresh=False, transient=False) as live:

        def show(look: Look) -> None:
            live.update(Text(f"no answer: {look.problem}") if look.problem else picture(look), refresh=True)

        yield show
    if not console.is_terminal:
        console.print()


@contextmanager
def lines(row_json: Callable[[Blocked, int], dict[str, object]]) -> Iterator[Callable[[Look], None]]:
    def show(look: Look) -> None:
        line: dict[str, object] = {"time_ms": look.now_ms}
        if look.problem is not None:
            line["error"] = look.problem
        else:
            line |= {"ongoing": look.ongoing, "being_ended": len(look.listed) - look.ongoing}
            line["blocked"] = [row_json(row, look.now_ms) for row in look.blocked]
        print(json.dumps(line, ensure_ascii=False))
        sys.stdout.flush()

    yield show


def picture(look: Look) -> Group:
    blocked, now_ms = look.blocked, look.now_ms
    head = Text(
        f"{time.strftime('%H:%M:%S')}  {look.ongoing:,} ongoing, {len(look.listed) - look.ongoing:,} being ended, "
        f"readers wait in "
        f"{plural(len(blocked), 'partition')}"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, side in (
        ("PARTITION", "left"),
        ("WAIT AT", "right"),
        ("HIDDEN", "right"),
        ("OPEN FOR", "right"),
        ("TRANSACTIONAL ID", "left"),
        ("GROUPS", "left"),
    ):
        table.add_column(name, justify="right" if side == "right" else "left", overflow="fold")
    for row in sorted(blocked, key=lambda row: row.began.ms)[:ROWS]:
        age_ms = row.began.age_ms(now_ms)
        bound = "at least " if row.began.told_by is ToldBy.BOUND else ""
        age = "-" if age_ms is None else f"{bound}{age_ms / 1000:,.0f} s"
        table.add_row(
            str(row.tp),
            f"{row.stable_offset:,}",
            f"{row.hidden:,}",
            age,
            row.transactional_id or "unknown",
            ", ".join(row.groups) or "-",
        )
    parts: list[object] = [head]
    if blocked:
        parts.append(table)
    if len(blocked) > ROWS:
        parts.append(Text(f"and {len(blocked) - ROWS:,} more: twofold txn blocked"))
    return Group(*parts)  # type: ignore[arg-type]
