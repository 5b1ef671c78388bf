"""Transactions as `twofold txn list|describe|blocked` show them.

1. On a terminal: tables that fit 80 columns, states in words, times of this machine's zone, ages.
2. Into a pipe or a file: tables as Apache Kafka's tools print them, states by their names, times in milliseconds.
"""

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from twofold.cli.common import console, for_terminal, plural, print_table
from twofold.cli.txn.words import table
from twofold.client import Admin
from twofold.client.admin.hanging import Began, Blocked, ToldBy
from twofold.client.admin.transaction_model import TransactionDescription, TransactionListing, TransactionState

NONE = "None"
IDS_AT_ONCE = 1000
STATE_WORDS = {
    TransactionState.EMPTY: "none open",
    TransactionState.ONGOING: "open",
    TransactionState.PREPARE_COMMIT: "committing",
    TransactionState.PREPARE_ABORT: "aborting",
    TransactionState.COMPLETE_COMMIT: "committed",
    TransactionState.COMPLETE_ABORT: "aborted",
    TransactionState.PREPARE_EPOCH_FENCE: "fencing",
    TransactionState.DEAD: "expired",
    TransactionState.UNKNOWN: "unknown",
}
LABEL_WIDTH = 18

Described = Mapping[str, TransactionDescription]


def for_people() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


# Words and times


def duration(milliseconds: float) -> str:
    """For people: 4.2 s, 12 min, 3.5 h."""
    seconds = milliseconds / 1000
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.1f} {name}" if value < 10 else f"{value:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def open_for(began: Began, now_ms: int) -> str:
    """For people; what is not certain about an age is said with it."""
    age_ms = began.age_ms(now_ms)
    if age_ms is None:
        return "-"
    if began.told_by is ToldBy.BOUND:
        return f"at least {duration(age_ms)}"
    return f"{duration(age_ms)} by its records" if began.told_by is ToldBy.RECORD else duration(age_ms)


def local_time(timestamp_ms: int, now_ms: int) -> str:
    """In this machine's zone; the day only where it is not today. What no calendar has stays a number."""
    try:
        at, now = (datetime.fromtimestamp(ms / 1000) for ms in (timestamp_ms, now_ms))
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return at.strftime("%H:%M:%S" if at.date() == now.date() else "%Y-%m-%d %H:%M")


def _since(start_ms: int, now_ms: int) -> str:
    return f"{local_time(start_ms, now_ms)} ({duration(max(0, now_ms - start_ms))})"


def _began(began: Began, now_ms: int) -> str:
    if began.told_by is ToldBy.NOBODY:
        return "-"
    before = "before " if began.told_by is ToldBy.BOUND else ""
    return f"{before}{local_time(began.ms, now_ms)} ({open_for(began, now_ms)})"


def _wrapped(label: str, text: str) -> None:
    """A line of a description; what does not fit goes on below."""
    indent = " " * LABEL_WIDTH
    width = max(LABEL_WIDTH + 20, console().width)
    text = for_terminal(text)
    print(textwrap.fill(text, width, initial_indent=f"{label:<{LABEL_WIDTH}}", subsequent_indent=indent) or label)


# The tables


async def starts_of(admin: Admin, listed: Iterable[TransactionListing]) -> Described:
    """What coordinators have of those that are open: a listing does not tell since when."""
    names = sorted(row.transactional_id for row in listed if row.state.is_open)
    found: dict[str, TransactionDescription] = {}
    for at in range(0, len(names), IDS_AT_ONCE):
        found |= (await admin.describe_transactions(names[at : at + IDS_AT_ONCE])).values
    return found


def print_listed(rows: Sequence[TransactionListing], described: Described, now_ms: int) -> None:
    if not for_people():
        cells = ((row.transactional_id, row.coordinator_id, row.producer_id, row.state.value) for row in rows)
        print(table(["TransactionalId", "Coordinator", "ProducerId", "TransactionState"], cells))
        return

    def since(row: TransactionListing) -> str:
        found = described.get(row.transactional_id)
        is_known = row.state.is_open and found is not None and found.start_ms >= 0
        return _since(found.start_ms, now_ms) if found is not None and is_known else "-"

    print_table(
        ["TRANSACTIONAL ID", "STATE", "OPEN SINCE", "PRODUCER ID", "BROKER"],
        [
            (row.transactional_id, STATE_WORDS[row.state], since(row), row.producer_id, row.coordinator_id)
            for row in rows
        ],
        right=["PRODUCER ID", "BROKER"],
    )


DESCRIBED = (
    "CoordinatorId",
    "TransactionalId",
    "ProducerId",
    "ProducerEpoch",
    "TransactionState",
    "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
    "TopicPartitions",
)


def print_described(rows: Sequence[TransactionDescription], now_ms: int) -> None:
    if not for_people():
        print(table(DESCRIBED, (_described_cells(row, now_ms) for row in rows)))
        return
    for index, row in enumerate(rows):
        if index:
            print()
        _print_one(row, now_ms)


def _described_cells(row: TransactionDescription, now_ms: int) -> Sequence[object]:
    begun = row.start_ms >= 0
    return (
        row.coordinator_id,
        row.transactional_id,
        row.producer_id,
        row.producer_epoch,
        row.state.value,
        row.timeout_ms,
        row.start_ms if begun else NONE,
        now_ms - row.start_ms if begun else NONE,
        ",".join(map(str, sorted(row.partitions))),
    )


def _print_one(row: TransactionDescription, now_ms: int) -> None:
    is_open = row.state.is_open and row.start_ms >= 0
    since = f" since {_since(row.start_ms, now_ms)}" if is_open else ""
    if row.is_two_phase:
        timeout = "none: only a decision from outside ends it (two-phase commit)"
    else:
        ends_ms = row.start_ms + row.timeout_ms
        ends = f", ends at {local_time(ends_ms, now_ms)}" if is_open and row.is_ongoing else ""
        timeout = f"{duration(row.timeout_ms)}{ends}"
    _wrapped("transactional id", row.transactional_id)
    _wrapped("state", f"{STATE_WORDS[row.state]}{since}")
    _wrapped("timeout", timeout)
    _wrapped("producer", f"id {row.producer_id}, epoch {row.producer_epoch}")
    if row.opened_by:
        _wrapped("opened by", row.opened_by)
    _wrapped("coordinator", f"broker {row.coordinator_id}")
    names = ", ".join(map(str, sorted(row.partitions)))
    _wrapped("partitions", f"{len(row.partitions):,}: {names}" if names else "none")
    if row.last_two_phase is not None:
        _wrapped("last two-phase", str(row.last_two_phase))


def print_two_phase(rows: Sequence[TransactionDescription], now_ms: int) -> None:
    is_read = for_people()
    print_table(
        ["TRANSACTIONAL ID", "STATE", "TO COMPLETE IT, --state", "OPEN FOR", "PARTITIONS"],
        [
            (
                row.transactional_id,
                STATE_WORDS[row.state] if is_read else row.state.value,
                f"{row.producer_id}:{row.producer_epoch}" if row.is_ongoing else "-",
                duration(max(0, now_ms - row.start_ms)) if row.start_ms >= 0 else "-",
                len(row.partitions),
            )
            for row in rows
        ],
        right=["OPEN FOR", "PARTITIONS"],
    )


BLOCKED = (
    "Topic",
    "Partition",
    "LastStableOffset",
    "HighWatermark",
    "ProducerId",
    "ProducerEpoch",
    "TransactionalId",
    "TransactionDurationMs",
    "DurationToldBy",
    "Groups",
    "OpenedBy",
)


def print_blocked(found: Sequence[Blocked], now_ms: int) -> None:
    if not for_people():
        print(table(BLOCKED, (_blocked_cells(row, now_ms) for row in found)))
        return
    print(f"readers of committed records wait in {plural(len(found), 'partition')}")
    has_principals = any(row.opened_by for row in found)  # without logins the terminal has more room
    print_table(
        ["PARTITION", "WAIT AT", "HIDDEN", "OPEN SINCE", "TRANSACTIONAL ID", *["OPENED BY"] * has_principals, "GROUPS"],
        [
            (
                row.tp,
                row.stable_offset,
                row.hidden,
                _began(row.began, now_ms),
                row.transactional_id or "unknown",
                *[row.opened_by or "-"] * has_principals,
                ", ".join(row.groups) or "-",
            )
            for row in found
        ],
        right=["WAIT AT", "HIDDEN"],
    )


def _blocked_cells(row: Blocked, now_ms: int) -> Sequence[object]:
    age_ms, open_one = row.began.age_ms(now_ms), row.transaction
    return (
        row.tp.topic,
        row.tp.partition,
        row.stable_offset,
        row.high_watermark,
        NONE if open_one is None else open_one.producer_id,
        NONE if open_one is None else open_one.producer_epoch,
        row.transactional_id or NONE,
        NONE if age_ms is None else age_ms,
        row.began.told_by.value,
        ",".join(row.groups) or NONE,
        row.opened_by or NONE,
    )
