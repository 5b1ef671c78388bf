"""The page that Prometheus gets, and the same as JSON, from a table of queries. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client.core import Metric

from twofold.broker.metrics.families import Family
from twofold.spark.metrics import families
from twofold.spark.metrics.table import QueryRow, QueryState, QueryTable, SourceRow
from twofold.spark.offsets import to_json

Labels: TypeAlias = Mapping[str, str]
Sample: TypeAlias = tuple[Labels, float]
TRANSACTION_STATES = ("writing", "prepared", "committing", "aborting")
LONGEST_ERROR = 300


def metrics(table: QueryTable, now: float, *, watch_failures: int, listener_errors: int) -> Iterator[Metric]:
    rows = list(table.rows())
    running = [row for row in rows if not row.is_over]
    yield _metric(families.QUERY_INFO, ((_info(row), 1) for row in rows))
    yield _metric(families.QUERY_STATE, (sample for row in rows for sample in _states(row)))
    yield _of(families.LAST_BATCH, rows, lambda row: row.last_batch)
    yield _of(families.PROGRESS_AGE, running, lambda row: now - row.at)
    yield _of(families.BATCHES, rows, lambda row: row.batches)
    yield _of(families.FAILURES, rows, lambda row: row.failures)
    yield _metric(families.ROWS_READ, ((_labels(row, source), source.rows) for row in rows for source in row.sources))
    yield _of(families.ROWS_WRITTEN, rows, lambda row: row.rows_written)
    yield _of(families.BYTES_WRITTEN, rows, lambda row: row.bytes_written)
    yield from _behind(running, now)
    yield _commits(rows)
    yield _metric(families.PHASE, (sample for row in rows for sample in _phases(row)))
    yield from _transactions(running, now)
    yield _of(families.TRANSACTIONS_COMMITTED, rows, lambda row: row.committed)
    yield _metric(families.LEFT_OUT, [({}, table.left_out)])
    yield _metric(families.WATCH_FAILURES, [({}, watch_failures)])
    yield _metric(families.LISTENER_ERRORS, [({}, listener_errors)])


def _info(row: QueryRow) -> Labels:
    sources = ", ".join(source.name for source in row.sources)
    return {"query": row.name, "query_id": row.query_id, "run_id": row.run_id, "sources": sources, "sink": row.sink}


def _states(row: QueryRow) -> Iterator[Sample]:
    for state in QueryState:
        yield {"query": row.name, "state": state.value}, float(row.state is state)


def _phases(row: QueryRow) -> Iterator[Sample]:
    for phase, seconds in row.phases_s.items():
        yield {"query": row.name, "phase": phase}, seconds


def _behind(rows: Iterable[QueryRow], now: float) -> Iterator[Metric]:
    found = [
        (_labels(row, source), behind)
        for row in rows
        for source in row.sources
        if (behind := row.fresh_behind(source, now)) is not None
    ]
    yield _metric(families.BEHIND_AVG, ((labels, behind.average) for labels, behind in found))
    yield _metric(families.BEHIND_MAX, ((labels, behind.most) for labels, behind in found))
    yield _metric(families.BEHIND_MIN, ((labels, behind.least) for labels, behind in found))
    yield _metric(families.BEHIND, ((labels, behind.total) for labels, behind in found))


def _commits(rows: Iterable[QueryRow]) -> Metric:
    family = families.COMMIT
    metric = Metric(family.name, family.help, family.kind)
    for row in rows:
        labels = {"query": row.name}
        for bound_s, count in row.commits.buckets():
            bound = "+Inf" if bound_s == float("inf") else repr(bound_s)
            metric.add_sample(f"{family.name}_bucket", labels | {"le": bound}, count)
        metric.add_sample(f"{family.name}_count", labels, row.commits.count)
        metric.add_sample(f"{family.name}_sum", labels, row.commits.total_s)
    return metric


def _transactions(rows: Iterable[QueryRow], now: float) -> Iterator[Metric]:
    found = [(row.name, told) for row in rows if (told := row.fresh_transactions(now)) is not None]
    yield _metric(
        families.TRANSACTIONS,
        (
            ({"query": name, "state": state}, told.by_state.get(state, 0))
            for name, told in found
            for state in TRANSACTION_STATES
        ),
    )
    yield _metric(families.OLDEST_TRANSACTION, (({"query": name}, told.oldest_s) for name, told in found))


def _labels(row: QueryRow, source: SourceRow) -> Labels:
    """Two sources of a query may read the same topics: the second has its number behind its name."""
    names = [other.name for other in row.sources]
    number = next(index for index, other in enumerate(row.sources) if other is source)
    name = source.name if names.index(source.name) == number else f"{source.name} {number}"
    return {"query": row.name, "source": name}


def _of(family: Family, rows: Iterable[QueryRow], value: Callable[[QueryRow], float]) -> Metric:
    return _metric(family, (({"query": row.name}, value(row)) for row in rows))


def _metric(family: Family, samples: Iterable[Sample]) -> Metric:
    metric = Metric(family.name, family.help, family.kind)
    for labels, value in samples:
        metric.add_sample(family.sample, dict(labels), value)
    return metric


# JSON


def queries_json(table: QueryTable, now: float) -> list[dict[str, Any]]:
    """Each query: Spark's words where it has some. Rates are of the last `table.RATE_S` seconds."""
    return [_query_json(row, now) for row in table.rows()]


def _query_json(row: QueryRow, now: float) -> dict[str, Any]:
    found = row.fresh_transactions(now)
    return {
        "name": row.name,
        "id": row.query_id,
        "runId": row.run_id,
        "state": row.state.value,
        "error": row.error.partition("\n")[0][:LONGEST_ERROR] or None,
        "last_batch": None if row.last_batch < 0 else row.last_batch,
        "batches": row.batches,
        "progress_age_s": round(now - row.at, 1),
        "rows_read_per_s": round(row.read_rate.per_second(now), 1),
        "rows_written_per_s": round(row.written_rate.per_second(now), 1),
        "bytes_written_per_s": round(row.bytes_rate.per_second(now), 1),
        "last_commit_s": None if row.last_commit_s is None else round(row.last_commit_s, 3),
        "transactions": None if found is None else dict(found.by_state),
        "oldest_transaction_s": None if found is None else round(found.oldest_s, 1),
        "sources": [_source_json(row, source, now) for source in row.sources],
        "sink": {"description": row.sink or None},
    }


def _source_json(row: QueryRow, source: SourceRow, now: float) -> dict[str, Any]:
    behind = row.fresh_behind(source, now)
    return {
        "description": source.name,
        "endOffset": None if source.end is None else to_json(source.end),
        "metrics": {} if behind is None else behind.words(),
        "offsetsBehindLatest": None if behind is None else behind.total,
    }
