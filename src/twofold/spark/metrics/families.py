"""The metrics of queries: names, types, labels, and what they mean. `docs/guide/metrics.md` is written from here.

1. Rates are counters: Prometheus makes rates of them, and the rate of a query that stands still becomes 0 by itself.
2. What brokers were asked is left out when it is older than `table.FRESH_S`: no number outlives what it was read from.
3. Labels are the query and its source. Queries that ended leave after a while, and there are never more than
   `table.MAX_QUERIES`.
"""

from twofold.broker.metrics.families import COUNTER, GAUGE, HISTOGRAM, Family


def _own(name: str, text: str, *labels: str, kind: str = GAUGE) -> Family:
    return Family(f"twofold_spark_{name}", kind, labels, text)


QUERY_INFO = _own(
    "query_info",
    "1, with what Spark's pages do not show: the ids of the query and of its run, its sources and its sink.",
    "query", "query_id", "run_id", "sources", "sink",
)  # fmt: skip
QUERY_STATE = _own(
    "query_state", "1 for the state of the query: starting, running, idle, stopped or failed.", "query", "state"
)
LAST_BATCH = _own("last_batch", "Number of the last batch that is done.", "query")
PROGRESS_AGE = _own(
    "progress_age_seconds",
    "Since Spark said last that the query made progress or is idle. Spark says so after every batch, and every ten "
    "seconds while there is nothing to read.",
    "query",
)  # fmt: skip
BATCHES = _own("batches", "Batches that are done.", "query", kind=COUNTER)
FAILURES = _own("query_failures", "Runs of the query that ended with an error.", "query", kind=COUNTER)
ROWS_READ = _own("rows_read", "Rows that were read.", "query", "source", kind=COUNTER)
ROWS_WRITTEN = _own("rows_written", "Rows of the batches that were committed.", "query", kind=COUNTER)
BYTES_WRITTEN = _own(
    "bytes_written", "Bytes of keys, values and headers of these rows, before compression.", "query", kind=COUNTER
)
BEHIND_AVG = _own(
    "avg_offsets_behind_latest",
    "Offsets behind the latest, average of the partitions: Spark's avgOffsetsBehindLatest, asked anew all the time.",
    "query", "source",
)  # fmt: skip
BEHIND_MAX = _own(
    "max_offsets_behind_latest",
    "Offsets behind the latest, of the partition that is furthest: Spark's maxOffsetsBehindLatest.",
    "query", "source",
)  # fmt: skip
BEHIND_MIN = _own(
    "min_offsets_behind_latest",
    "Offsets behind the latest, of the partition that is nearest: Spark's minOffsetsBehindLatest.",
    "query", "source",
)  # fmt: skip
BEHIND = _own("offsets_behind_latest", "Offsets behind the latest, of all partitions together.", "query", "source")
COMMIT = _own(
    "commit_seconds",
    "What it takes to make a batch visible when its tasks are done: the vote, the decision, the end of its "
    "transactions. _bucket, _sum and _count.",
    "query", kind=HISTOGRAM,
)  # fmt: skip
PHASE = _own(
    "phase_seconds",
    "Time that batches spent in each phase, by Spark's names: triggerExecution is all of it, addBatch the work, "
    "walCommit and commitOffsets the checkpoint.",
    "query", "phase", kind=COUNTER,
)  # fmt: skip
TRANSACTIONS = _own(
    "transactions",
    "Transactions of the query that are not over: writing (a task is at work), prepared (waits for the decision or its "
    "end), committing, aborting.",
    "query", "state",
)  # fmt: skip
OLDEST_TRANSACTION = _own(
    "oldest_transaction_seconds", "Age of the oldest of these transactions; 0 without one.", "query"
)
TRANSACTIONS_COMMITTED = _own(
    "transactions_committed", "Transactions of the batches that were committed.", "query", kind=COUNTER
)
LEFT_OUT = _own("queries_left_out", "Queries without series of their own, because there are too many.")
WATCH_FAILURES = _own(
    "watch_failures", "Looks at the brokers that failed: offsets and transactions are missing for that time.",
    kind=COUNTER,
)  # fmt: skip
LISTENER_ERRORS = _own(
    "listener_errors", "Events that could not be taken. The log has the first; no query suffers.", kind=COUNTER
)

FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
