"""What there is to know of a group: members, offsets, lag, and why it does not get on.

1. Offsets are asked for in the order committed, last stable offset, end of the log, so that what happens in between
   never makes a lag negative or an open transaction out of a record that was just written.
2. Lag is the distance between offsets, from the committed one (or the start of the log, where that is later) to the
   end. `--exact` reads that part of the log and counts records: a transaction's marker has an offset too, and
   compaction leaves holes.
3. A reader with read_committed waits at the last stable offset for the transaction that begins there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from twofold.cli.common import plural
from twofold.client import (
    Admin,
    Consumer,
    GroupDescription,
    ListedOffset,
    MemberDescription,
    OffsetAndMetadata,
    OffsetSpec,
    ProducerDescription,
    Results,
    TopicPartition,
)
from twofold.client.cluster.metadata import group_by_topic
from twofold.client.config import security_options
from twofold.connections.errors import UnsupportedByBroker
from twofold.wire.errors import UnstableOffsetCommit

EMPTY = "Empty"
PREPARING = "PreparingRebalance"
COMPLETING = "CompletingRebalance"
ASSIGNING = "Assigning"
RECONCILING = "Reconciling"
POLL_MS = 100
"""Short: a poll of nothing but markers returns no records and takes its time, while positions move on."""

Offsets = Mapping[TopicPartition, ListedOffset]


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition of a group. Offsets that no broker can tell (no leader, no such topic) are None."""

    tp: TopicPartition
    committed: OffsetAndMetadata | None = None
    start: int | None = None
    end: int | None = None
    stable: int | None = None
    member: MemberDescription | None = None
    lag: int | None = None
    stable_lag: int | None = None

    @property
    def position(self) -> int | None:
        """Where a reader goes on: what is deleted cannot be read."""
        if self.committed is None or self.start is None:
            return None
        return max(self.committed.offset, self.start)

    @property
    def has_open_transaction(self) -> bool:
        return self.end is not None and self.stable is not None and self.stable < self.end


@dataclass(frozen=True, slots=True)
class GroupProblem:
    """Why a group does not get on. `kind` is for programs, `text` for people."""

    kind: str
    text: str
    tp: TopicPartition | None = None
    producer: ProducerDescription | None = None


@dataclass(frozen=True, slots=True)
class GroupReport:
    group: GroupDescription
    rows: tuple[OffsetRow, ...]
    problems: tuple[GroupProblem, ...] = ()

    @property
    def lag(self) -> int | None:
        return total(row.lag for row in self.rows)

    @property
    def stable_lag(self) -> int | None:
        return total(row.stable_lag for row in self.rows)


def ranges(partitions: Iterable[TopicPartition]) -> str:
    """Partitions in short, as in `orders:0-3,7 payments:0`."""
    parts: list[str] = []
    for topic, indexes in sorted(group_by_topic(partitions).items()):
        runs: list[list[int]] = []
        for index in sorted(indexes):
            if runs and index == runs[-1][1] + 1:
                runs[-1][1] = index
            else:
                runs.append([index, index])
        parts.append(f"{topic}:{','.join(str(a) if a == b else f'{a}-{b}' for a, b in runs)}")
    return " ".join(parts)


def total(lags: Iterable[int | None]) -> int | None:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


async def report_groups(
    admin: Admin, names: Iterable[str], *, exact: bool = False, problems: bool = True
) -> Results[str, GroupReport]:
    described = await admin.describe_groups(names)
    committed = await admin.list_group_offsets(described.values)
    errors = {**described.errors, **committed.errors}
    groups = {name: group for name, group in described.values.items() if name not in errors}
    wanted = {name: _partitions(group, committed.values[name].values) for name, group in groups.items()}
    ends = await ends_of(admin, {tp for partitions in wanted.values() for tp in partitions})
    reports = {
        name: GroupReport(group, _rows(wanted[name], group, committed.values[name].values, ends))
        for name, group in groups.items()
    }
    if exact:
        reports = {name: await _counted(admin, report) for name, report in reports.items()}
    if problems:
        pending = await _pending(admin, wanted)
        reports = {
            name: replace(report, problems=await _problems(admin, report, pending.get(name, [])))
            for name, report in reports.items()
        }
    return Results(reports, errors)


def _partitions(group: GroupDescription, committed: Iterable[TopicPartition]) -> list[TopicPartition]:
    """What the group has committed or is assigned."""
    assigned = (tp for member in group.members for tp in member.assignment or ())
    return sorted({*committed, *assigned})


@dataclass(frozen=True, slots=True)
class Ends:
    starts: Offsets
    stables: Offsets
    ends: Offsets


async def ends_of(admin: Admin, partitions: Iterable[TopicPartition]) -> Ends:
    """The ends of the partitions that exist and have a leader."""
    found = (await admin.describe_topics(sorted({tp.topic for tp in partitions}))).values
    known = [tp for tp in partitions if tp.topic in found and tp.partition in found[tp.topic].with_leader]
    latest = dict.fromkeys(known, OffsetSpec.LATEST)
    starts = await admin.list_offsets(dict.fromkeys(known, OffsetSpec.EARLIEST))
    stables = await admin.list_offsets(latest, isolation_level="read_committed")
    return Ends(starts, stables, await admin.list_offsets(latest))


def _rows(
    partitions: Iterable[TopicPartition],
    group: GroupDescription,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Ends,
) -> tuple[OffsetRow, ...]:
    owners = {tp: member for member in group.members for tp in member.assignment or ()}
    rows = (
        OffsetRow(
            tp,
            committed.get(tp),
            start=_offset(ends.starts.get(tp)),
            end=_offset(ends.ends.get(tp)),
            stable=_offset(ends.stables.get(tp)),
            member=owners.get(tp),
        )
        for tp in partitions
    )
    return tuple(
        replace(row, lag=_distance(row.position, row.end), stable_lag=_distance(row.position, row.stable))
        for row in rows
    )


def _offset(listed: ListedOffset | None) -> int | None:
    return None if listed is None else listed.offset


def _distance(position: int | None, end: int | None) -> int | None:
    return None if position is None or end is None else max(0, end - position)


# Records instead of offsets


async def _counted(admin: Admin, report: GroupReport) -> GroupReport:
    to_end = {row.tp: (row.position, row.end) for row in report.rows}
    to_stable = {row.tp: (row.position, row.stable) for row in report.rows}
    lags = await count_records(admin, to_end, "read_uncommitted")
    stable_lags = await count_records(admin, to_stable, "read_committed")
    rows = [replace(row, lag=lags.get(row.tp), stable_lag=stable_lags.get(row.tp)) for row in report.rows]
    return replace(report, rows=tuple(rows))


async def count_records(
    admin: Admin,
    ranges: Mapping[TopicPartition, tuple[int | None, int | None]],
    isolation_level: str,
    *,
    at_most: int | None = None,
) -> dict[TopicPartition, int]:
    """How many records a reader gets from the first offset of each range to before the second; ranges without both
    are left out. `at_most` ends the reading of a partition early."""
    bounds = {tp: (start, end) for tp, (start, end) in ranges.items() if start is not None and end is not None}
    counts = dict.fromkeys(bounds, 0)
    todo = {tp: end for tp, (start, end) in bounds.items() if start < end}
    if not todo:
        return counts
    async with Consumer(
        bootstrap_servers=admin.config.bootstrap_servers,
        client_id=admin.config.client_id,
        default_api_timeout_ms=admin.config.default_api_timeout_ms,
        **security_options(admin.config),
        isolation_level=isolation_level,
        # Should retention overtake the reading, what is left is counted.
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.assign(todo)
        for tp in todo:
            consumer.seek(tp, bounds[tp][0])
        while todo:
            for record in await consumer.poll(POLL_MS):
                tp = TopicPartition(record.topic, record.partition)
                if tp in todo and record.offset < todo[tp]:
                    counts[tp] += 1
            for tp, end in list(todo.items()):
                if await consumer.position(tp) >= end or (at_most is not None and counts[tp] >= at_most):
                    consumer.pause(tp)
                    del todo[tp]
    return counts


# Why it does not get on


async def _pending(admin: Admin, wanted: Mapping[str, Sequence[TopicPartition]]) -> dict[str, list[TopicPartition]]:
    """The partitions whose offsets are part of a transaction that is open, group by group."""
    try:
        found = (await admin.list_group_offsets(wanted, partitions=wanted, require_stable=True)).values
    except UnsupportedByBroker:
        return {}
    return {
        name: [tp for tp, error in offsets.errors.items() if isinstance(error, UnstableOffsetCommit)]
        for name, offsets in found.items()
    }


async def _problems(admin: Admin, report: GroupReport, pending: Iterable[TopicPartition]) -> tuple[GroupProblem, ...]:
    problems = [*_membership_problems(report), *_deleted_offsets(report)]
    problems += [_pending_problem(tp) for tp in pending]
    problems += await _transaction_problems(admin, report)
    return tuple(problems)


def _membership_problems(report: GroupReport) -> list[GroupProblem]:
    state, members = report.group.state, report.group.members
    if state == EMPTY:
        waiting = f"{plural(report.lag or 0, 'record')} {'waits' if report.lag == 1 else 'wait'} for one"
        return [GroupProblem("no-members", f"no members: {waiting}")] if report.lag else []
    if state == PREPARING:
        earlier = [member for member in members if member.assignment]
        if not earlier:
            return [_rebalancing("more members may join (group.initial.rebalance.delay.ms)")]
        return [
            _rebalancing(
                "every member has to join again, for which it has its max.poll.interval.ms; "
                f"members that may not have rejoined yet: {names_of(earlier)}"
            )
        ]
    if state == COMPLETING:
        return [_rebalancing(f"one of {names_of(members)} leads, and has not assigned the partitions yet")]
    if state == ASSIGNING:
        return [_rebalancing("the coordinator has not assigned the partitions yet")]
    if state == RECONCILING:
        moving = [member for member in members if set(member.assignment or ()) != set(member.target_assignment or ())]
        return [_rebalancing(f"partitions have yet to be given up or taken over by {names_of(moving or members)}")]
    return []


def _rebalancing(text: str) -> GroupProblem:
    return GroupProblem("rebalancing", f"rebalancing: {text}")


def names_of(members: Sequence[MemberDescription], limit: int = 5) -> str:
    """Members for a message, not all when they are many."""
    shown = ", ".join(str(member) for member in members[:limit])
    return shown if len(members) <= limit else f"{shown} and {len(members) - limit} more"


def _deleted_offsets(report: GroupReport) -> list[GroupProblem]:
    return [
        GroupProblem(
            "offset-deleted",
            f"offset {row.committed.offset} of {row.tp} is gone, the log starts at {row.start}: "
            "the next reader starts where its auto.offset.reset says",
            row.tp,
        )
        for row in report.rows
        if row.committed is not None and row.start is not None and row.committed.offset < row.start
    ]


def _pending_problem(tp: TopicPartition) -> GroupProblem:
    return GroupProblem(
        "pending-offsets",
        f"blocked by an open transaction: it holds an offset for {tp}, and the member that gets that partition waits "
        "for its end",
        tp,
    )


async def _transaction_problems(admin: Admin, report: GroupReport) -> list[GroupProblem]:
    waiting = await _at_stable_offset(admin, report.rows)
    if not waiting:
        return []
    try:
        producers = await admin.describe_producers([row.tp for row in waiting])
    except UnsupportedByBroker:
        return [_blocked(row, None) for row in waiting]
    problems = []
    for row in waiting:
        open_ones = [it for it in producers.values.get(row.tp, ()) if it.current_txn_start_offset >= 0]
        if open_ones:
            problems.append(_blocked(row, min(open_ones, key=lambda it: it.current_txn_start_offset)))
        elif row.tp in producers.errors:
            problems.append(_blocked(row, None))
        # Otherwise the transaction ended while we asked.
    return problems


async def _at_stable_offset(admin: Admin, rows: Iterable[OffsetRow]) -> list[OffsetRow]:
    """Those with nothing left to read before an open transaction. Markers of transactions that are over may still lie
    between the committed offset and it: clients differ in whether they commit past them."""
    held = [row for row in rows if row.has_open_transaction and row.position is not None]
    near = {row.tp: (row.position, row.stable) for row in held if row.stable_lag}
    counts = await count_records(admin, near, "read_committed", at_most=1)
    return [row for row in held if _is_at_stable(row) and not counts.get(row.tp)]


def _is_at_stable(row: OffsetRow) -> bool:
    # Only a reader of uncommitted records can be beyond it.
    return row.position is not None and row.stable is not None and row.position <= row.stable


def _blocked(row: OffsetRow, producer: ProducerDescription | None) -> GroupProblem:
    assert row.end is not None and row.stable is not None
    text = f"blocked by an open transaction: readers of {row.tp} with read_committed wait at offset {row.stable}"
    if producer is not None:
        text += f" for producer id {producer.producer_id} (epoch {producer.producer_epoch})"
        if producer.current_txn_start_ms >= 0:
            bound = " or earlier" if producer.current_txn_start_is_bound else ""
            text += f", open since {_moment(producer.current_txn_start_ms)}{bound}"
        elif producer.last_timestamp >= 0:
            text += f", whose last record has the timestamp {_moment(producer.last_timestamp)}"
    return GroupProblem("open-transaction", text, row.tp, producer)


def _moment(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
