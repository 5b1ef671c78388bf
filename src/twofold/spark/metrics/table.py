"""What is known of the queries of one application. Pure: times are given, in seconds of a clock that never goes back.

1. A query that is started again is the same one: its counters go on.
2. Queries that ended stay for a while, so that a failure is seen, and leave when others need their place. There are
   never more than MAX_QUERIES; those that find no place are counted.
3. A rate is of the last RATE_S seconds up to now. That of a query that stands still is 0, and never the one of its last
   batch.
4. What the brokers said counts for FRESH_S. Then it is not known any more.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from twofold.broker.metrics.durations import OF_TRANSACTIONS_S, Durations
from twofold.sink.behind import Behind, behind, offsets_of
from twofold.spark.metrics.reports import Report
from twofold.spark.offsets import Offsets

MAX_QUERIES = 100
MAX_SOURCES = 20
MAX_PHASES = 20
MAX_NAME = 100
RATE_S = 30.0
FRESH_S = 30.0
KEPT_ENDED_S = 3600.0


class QueryState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    """The last look found rows."""
    IDLE = "idle"
    """The last look found none."""
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = (QueryState.STOPPED, QueryState.FAILED)


@dataclass(slots=True)
class Rate:
    """How much came in the last RATE_S seconds."""

    _taken: deque[tuple[float, int]] = field(default_factory=deque)
    _since: float = 0.0

    def take(self, now: float, count: int) -> None:
        if not self._taken:
            self._since = max(self._since, now - RATE_S)
        self._taken.append((now, count))
        self._forget(now)

    def begin(self, now: float) -> None:
        """Nothing can have come before: a rate right after the start is not diluted by the time before it."""
        self._since = now

    def per_second(self, now: float) -> float:
        self._forget(now)
        window = min(RATE_S, max(1.0, now - self._since))
        return sum(count for _, count in self._taken) / window

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0][0] < now - RATE_S:
            self._taken.popleft()


@dataclass(frozen=True, slots=True)
class Transactions:
    """Of a query, not over: how many by their standing, and the age of the oldest."""

    by_state: Mapping[str, int]
    oldest_s: float


@dataclass(slots=True)
class SourceRow:
    name: str
    rows: int = 0
    end: Offsets | None = None
    behind: Behind | None = None
    behind_at: float = 0.0


@dataclass(slots=True)
class QueryRow:
    query_id: str
    run_id: str
    name: str
    state: QueryState = QueryState.STARTING
    last_batch: int = -1
    batches: int = 0
    failures: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    committed: int = 0
    error: str = ""
    sink: str = ""
    at: float = 0.0
    """Of the last event."""
    last_report: int = -1
    sources: list[SourceRow] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)
    commits: Durations = field(default_factory=lambda: Durations(OF_TRANSACTIONS_S))
    last_commit_s: float | None = None
    transactions: Transactions | None = None
    transactions_at: float = 0.0
    read_rate: Rate = field(default_factory=Rate)
    written_rate: Rate = field(default_factory=Rate)
    bytes_rate: Rate = field(default_factory=Rate)

    @property
    def is_over(self) -> bool:
        return self.state in ENDED

    def fresh_behind(self, source: SourceRow, now: float) -> Behind | None:
        return None if self.is_over or now - source.behind_at > FRESH_S else source.behind

    def fresh_transactions(self, now: float) -> Transactions | None:
        return None if now - self.transactions_at > FRESH_S else self.transactions


class QueryTable:
    def __init__(self) -> None:
        self._rows: dict[str, QueryRow] = {}  # by query id, the one with the oldest event first
        self._without_place: dict[str, None] = {}

    @property
    def left_out(self) -> int:
        return len(self._without_place)

    def rows(self) -> Iterator[QueryRow]:
        yield from sorted(self._rows.values(), key=lambda row: row.name)

    def get(self, query_id: str) -> QueryRow | None:
        return self._rows.get(query_id)

    # What Spark says

    def started(self, query_id: str, run_id: str, name: str | None, now: float) -> None:
        row = self._place(query_id, run_id, name, now)
        if row is not None:
            row.state, row.run_id, row.error, row.at = QueryState.STARTING, run_id, "", now
            for rate in (row.read_rate, row.written_rate, row.bytes_rate):
                rate.begin(now)

    def progressed(self, progress: Mapping[str, Any], now: float) -> None:
        row = self._place(progress["id"], progress["runId"], progress.get("name"), now)
        if row is None:
            return
        row.at = now
        phases = progress.get("durationMs") or {}
        if not progress["numInputRows"] and "addBatch" not in phases:
            self._note_idle(row, progress, now)
            return
        row.state = QueryState.RUNNING
        row.last_batch = max(row.last_batch, int(progress["batchId"]))
        row.batches += 1
        for phase, ms in phases.items():
            if phase in row.phases_s or len(row.phases_s) < MAX_PHASES:
                row.phases_s[phase] = row.phases_s.get(phase, 0.0) + ms / 1000
        self._take_sources(row, progress["sources"], now)
        row.read_rate.take(now, int(progress["numInputRows"]))

    def _note_idle(self, row: QueryRow, progress: Mapping[str, Any], now: float) -> None:
        """Spark numbers such a progress as the batch that would come next."""
        row.state = QueryState.IDLE
        row.last_batch = max(row.last_batch, int(progress["batchId"]) - 1)
        self._take_sources(row, progress["sources"], now)

    def _take_sources(self, row: QueryRow, sources: Any, now: float) -> None:
        for index, found in enumerate(sources[:MAX_SOURCES]):
            if index == len(row.sources):
                row.sources.append(SourceRow(f"source {index}"))
            source = row.sources[index]
            source.rows += int(found["numInputRows"])
            end, latest = offsets_of(found.get("endOffset")), offsets_of(found.get("latestOffset"))
            if end is not None:
                source.end = end
                source.name = _topics(end, source.name)
            if end is not None and latest is not None:
                source.behind, source.behind_at = behind(end, latest), now

    def idle(self, query_id: str, run_id: str, now: float) -> None:
        row = self._rows.get(query_id)
        if row is not None and row.run_id == run_id:
            row.state, row.at = QueryState.IDLE, now

    def ended(self, query_id: str, run_id: str, error: str | None, now: float) -> None:
        self._without_place.pop(query_id, None)
        row = self._rows.get(query_id)
        if row is None or row.run_id != run_id:  # a run that came after has begun
            return
        row.at, row.error = now, error or ""
        row.state = QueryState.FAILED if error else QueryState.STOPPED
        row.failures += 1 if error else 0

    # What the plan, the sink and the brokers say

    def described(self, query_id: str, sources: Mapping[int, str], sink: str) -> None:
        row = self._rows.get(query_id)
        if row is not None:
            row.sink = sink[:MAX_NAME]
            for index, name in sources.items():
                while len(row.sources) <= index < MAX_SOURCES:
                    row.sources.append(SourceRow(f"source {len(row.sources)}"))
                row.sources[index].name = name[:MAX_NAME]

    def reported(self, report: Report, now: float) -> None:
        """A batch that comes again after a restart was counted, or its rows were skipped."""
        row = self._rows.get(report.query_id)
        if row is None:
            return
        row.commits.add(report.commit_s)
        row.last_commit_s = report.commit_s
        row.last_report = report.batch_id
        row.rows_written += report.rows
        row.bytes_written += report.bytes
        row.committed += report.transactions
        row.written_rate.take(now, report.rows)
        row.bytes_rate.take(now, report.bytes)

    def looked_at_source(self, query_id: str, index: int, latest: Offsets, now: float) -> None:
        row = self._rows.get(query_id)
        if row is not None and index < len(row.sources) and (end := row.sources[index].end) is not None:
            row.sources[index].behind, row.sources[index].behind_at = behind(end, latest), now

    def looked_at_transactions(self, query_id: str, found: Transactions, now: float) -> None:
        row = self._rows.get(query_id)
        if row is not None:
            row.transactions, row.transactions_at = found, now

    # Places

    def _place(self, query_id: str, run_id: str, name: str | None, now: float) -> QueryRow | None:
        row = self._rows.pop(query_id, None)
        if row is None:
            self._make_room(now)
            if len(self._rows) >= MAX_QUERIES:
                self._without_place[query_id] = None
                while len(self._without_place) > MAX_QUERIES:
                    del self._without_place[next(iter(self._without_place))]
                return None
            row = QueryRow(query_id, run_id, (name or query_id)[:MAX_NAME], at=now)
            row.name = self._unique(row.name, query_id)
        self._without_place.pop(query_id, None)
        self._rows[query_id] = row
        return row

    def _unique(self, name: str, query_id: str) -> str:
        """A name is taken again by another query: what ended has it no longer."""
        for other in [other for other in self._rows.values() if other.name == name]:
            if not other.is_over:
                return f"{name} ({query_id[:8]})"
            del self._rows[other.query_id]
        return name

    def _make_room(self, now: float) -> None:
        over = [row for row in self._rows.values() if row.is_over]
        for row in over:
            if now - row.at > KEPT_ENDED_S:
                del self._rows[row.query_id]
        over = [row for row in over if row.query_id in self._rows]
        while over and len(self._rows) >= MAX_QUERIES:
            del self._rows[over.pop(0).query_id]


def _topics(end: Offsets, known: str) -> str:
    """Where the plan does not tell what a source reads, the topics of its offsets do."""
    topics = ",".join(sorted({tp.topic for tp in end}))
    return topics[:MAX_NAME] if known.startswith("source ") and topics else known
