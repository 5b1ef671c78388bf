"""The metrics of a broker: names, types, labels, and what they mean. `docs/guide/metrics.md` is written from here.

1. What Apache Kafka measures has Kafka's name, as the JMX exporter spells it with its example rules for KRaft: domain,
   type and name of the MBean in lower case, joined by underscores; a meter `...PerSec` is a counter `..._total`. A
   test derives each name from its MBean and asks a running Kafka whether it has that MBean.
2. `proposed` ones are named in a KIP or in our own design and are in no released Kafka.
3. What only Twofold has is `twofold_*`: seconds instead of milliseconds, and few.
4. No label holds what clients choose freely, except names of topics.
"""

from typing import NamedTuple

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


class Family(NamedTuple):
    """One metric; `name` is without the `_total` that a counter's sample has, and without the `_bucket`, `_sum` and
    `_count` of those of a histogram."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    mbean: str = ""  # as Kafka has it, with the attribute behind the last colon
    proposed: bool = False

    @property
    def sample(self) -> str:
        return f"{self.name}_total" if self.kind == COUNTER else self.name


def _kafka(mbean: str, text: str, *labels: str, proposed: bool = False) -> Family:
    name, kind = exported(mbean)
    return Family(name, kind, labels, text, mbean, proposed)


def exported(mbean: str) -> tuple[str, str]:
    """Name and kind under which the JMX exporter tells an MBean's attribute."""
    where, _, attribute = mbean.rpartition(":")
    domain, _, properties = where.partition(":")
    values = dict(item.split("=", 1) for item in properties.split(","))
    parts = [domain, values["type"], values.get("name", "")]
    kind = GAUGE
    if attribute == "Count" and parts[2].endswith("PerSec"):
        parts[2], kind = parts[2].removesuffix("PerSec"), COUNTER
    elif attribute not in ("Value", "Count"):
        kind = COUNTER if attribute.endswith("-total") else GAUGE
        parts[2] = attribute.removesuffix("-total") if kind == COUNTER else attribute
    joined = "_".join(part for part in parts if part)
    return joined.replace(".", "_").replace("-", "_").lower(), kind


def _own(name: str, text: str, *labels: str, kind: str = GAUGE) -> Family:
    return Family(f"twofold_{name}", kind, labels, text)


# --- traffic ---

MESSAGES_IN = _kafka(
    "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec:Count",
    "Records appended, markers and records of coordinators included; without a label for the broker.", "topic",
)  # fmt: skip
BYTES_IN = _kafka(
    "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec:Count",
    "Bytes of the batches appended; without a label for the broker.", "topic",
)  # fmt: skip
BYTES_OUT = _kafka(
    "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec:Count",
    "Bytes of the batches given to consumers; without a label for the broker.", "topic",
)  # fmt: skip
REQUESTS = _kafka(
    "kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,version=10:Count",
    "Requests of each API and version.", "request", "version",
)  # fmt: skip
REQUEST_ERRORS = _kafka(
    "kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=Produce,error=NONE:Count",
    "Errors in answers: one for each partition, group, transaction or answer that has one. NONE is not counted.",
    "request", "error",
)  # fmt: skip
REQUEST_TIME = _own(
    "request_seconds",
    "From the moment the broker takes up a request until its answer goes out; a Fetch may wait for data meanwhile. "
    "_bucket, _sum and _count.",
    "request", kind=HISTOGRAM,
)  # fmt: skip
CONNECTIONS = _kafka(
    "kafka.server:type=socket-server-metrics,listener=PLAINTEXT,networkProcessor=0:connection-count",
    "Open connections of clients. There is one network processor, 0.", "listener", "networkProcessor",
)  # fmt: skip
PURGATORY = _kafka(
    "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch:Value",
    "Requests that wait: a Fetch for data, a Produce until its records are safe, a DeleteRecords for all replicas.",
    "delayedOperation",
)  # fmt: skip
MUTED_PRODUCE = _kafka("kafka.server:type=Produce:queue-size", "Connections muted by a quota of produced bytes.")
MUTED_FETCH = _kafka("kafka.server:type=Fetch:queue-size", "Connections muted by a quota of consumed bytes.")
MUTED_REQUEST = _kafka("kafka.server:type=Request:queue-size", "Connections muted by a quota of request time.")
MUTED_MUTATION = _kafka(
    "kafka.server:type=ControllerMutation:queue-size", "Connections muted by a quota of changes of topics."
)
THROTTLES = _own("quota_throttles", "How often a client had to wait because of a quota.", "quota", kind=COUNTER)
THROTTLED = _own("quota_throttled_seconds", "How long clients had to wait in all.", "quota", kind=COUNTER)
_SESSIONS = "kafka.server:type=FetchSessionCache"

FETCH_SESSIONS = _kafka(f"{_SESSIONS},name=NumIncrementalFetchSessions:Value", "Incremental fetch sessions (KIP-227).")
FETCH_SESSION_PARTITIONS = _kafka(
    f"{_SESSIONS},name=NumIncrementalFetchPartitionsCached:Value", "Partitions of all incremental fetch sessions."
)
FETCH_SESSION_EVICTIONS = _kafka(
    f"{_SESSIONS},name=IncrementalFetchSessionEvictionsPerSec:Count",
    "Incremental fetch sessions that were ended to make room for others.",
)

# --- partitions ---

PARTITIONS = _kafka("kafka.server:type=ReplicaManager,name=PartitionCount:Value", "Partitions of this broker.")
LEADERS = _kafka("kafka.server:type=ReplicaManager,name=LeaderCount:Value", "Partitions that this broker leads.")
UNDER_REPLICATED = _kafka(
    "kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions:Value",
    "Partitions that this broker leads and that lack replicas in sync. Those that are being added do not count.",
)
UNDER_MIN_ISR = _kafka(
    "kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount:Value",
    "Partitions that this broker leads with fewer replicas in sync than min.insync.replicas: acks=all is refused.",
)
ISR_EXPANDS = _kafka(
    "kafka.server:type=ReplicaManager,name=IsrExpandsPerSec:Count",
    "Replicas that came into sync, where this broker leads.",
)
ISR_SHRINKS = _kafka(
    "kafka.server:type=ReplicaManager,name=IsrShrinksPerSec:Count",
    "Changes by which replicas that had fallen behind are not in sync any more, where this broker leads.",
)
OFFLINE = _kafka(
    "kafka.server:type=ReplicaManager,name=OfflineReplicaCount:Value",
    "Partitions whose log failed: it takes no records until the broker has repaired it.",
)
PRODUCER_IDS = _kafka(
    "kafka.server:type=ReplicaManager,name=ProducerIdCount:Value",
    "Producer ids that partitions remember: one that wrote to three partitions counts three times.",
)
LATE = _kafka(
    "kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount:Value",
    "Partitions with a transaction that is open for longer than transaction.max.timeout.ms and five minutes.",
)
LSO_LAG = _kafka(
    "kafka.cluster:type=Partition,name=LastStableOffsetLag,topic=t,partition=0:Value",
    "From the last stable offset to the high watermark: what read_committed readers have to wait for.",
    "topic", "partition",
)  # fmt: skip
LOG_START = _kafka(
    "kafka.log:type=Log,name=LogStartOffset,topic=t,partition=0:Value", "First offset of the log.", "topic", "partition"
)
LOG_END = _kafka(
    "kafka.log:type=Log,name=LogEndOffset,topic=t,partition=0:Value", "One past the last offset.", "topic", "partition"
)
LOG_SIZE = _kafka("kafka.log:type=Log,name=Size,topic=t,partition=0:Value", "Bytes on disk.", "topic", "partition")
LOG_SEGMENTS = _kafka(
    "kafka.log:type=Log,name=NumLogSegments,topic=t,partition=0:Value", "Segments of the log.", "topic", "partition"
)
LSO = _own(
    "txn_last_stable_offset",
    "Last stable offset: the first record of the oldest open transaction, or the high watermark.",
    "topic", "partition",
)  # fmt: skip
PARTITION_OPEN = _own(
    "txn_partition_open_seconds",
    "Age of the oldest open transaction of the partition; only where one is open. From its start at the coordinator, "
    "or from the append of its first batch where no coordinator has it.",
    "topic", "partition",
)  # fmt: skip
AT_LEAST = _own(
    "txn_partitions_open_at_least",
    "Partitions whose oldest open transaction is older than its age says, because its first append is not known: the "
    "broker was killed within a minute of it, or the folder is another program's. Its age counts from the start.",
)
NOT_LOOKED_AT = _own(
    "partitions_not_looked_at",
    "Partitions with a log that the broker has not opened since its start: their transactions, stable offsets and "
    "producer ids are missing here. 0 within 30 s of a start; more where a log cannot be opened.",
)
LEFT_OUT = _own(
    "metrics_partitions_left_out",
    "Partitions without series of their own, because there are more than metrics.max.partitions.",
)

# --- the transaction coordinator ---

_COORDINATOR = "kafka.server:type=transaction-coordinator-metrics"

UNKNOWN_DESTINATION = _kafka(
    "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=UnknownDestinationQueueSize:Value",
    "Markers that wait for a leader to be known, or to be tried again.",
)
APPEND_RETRY = _kafka(
    "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=LogAppendRetryQueueSize:Value",
    "Transactions whose markers are all written and whose end is not yet in the transaction log.",
)
LOAD_MAX = _kafka(f"{_COORDINATOR}:partition-load-time-max", "Longest load of a led partition, in ms.")
LOAD_AVG = _kafka(f"{_COORDINATOR}:partition-load-time-avg", "Average load of the led partitions, in ms.")
OPEN_TIME = _kafka(
    f"{_COORDINATOR}:active-transaction-open-time-max", "Age of the oldest open transaction, in ms (KIP-939).",
    proposed=True,
)  # fmt: skip
TIMED_OUT = _kafka(
    f"{_COORDINATOR}:transactions-timed-out-total", "Transactions aborted because their time was up.", proposed=True
)
HEARTBEATS = _kafka(
    f"{_COORDINATOR}:active-heartbeat-transactions",
    "Open transactions whose producers promised heartbeats (KIP-1309).", proposed=True,
)  # fmt: skip
SILENT = _kafka(
    f"{_COORDINATOR}:heartbeat-expired-total",
    "Transactions aborted because no heartbeats came (KIP-1309).", proposed=True,
)  # fmt: skip
FENCED = _kafka(
    f"{_COORDINATOR}:transactions-fenced-total",
    "Open transactions aborted because another producer took over their id.", proposed=True,
)  # fmt: skip
COMMITTED = _kafka(
    f"{_COORDINATOR}:transactions-committed-total", "Transactions committed, all markers written.", proposed=True
)
ABORTED = _kafka(
    f"{_COORDINATOR}:transactions-aborted-total",
    "Transactions aborted for any reason, all markers written.", proposed=True,
)  # fmt: skip
DISK_SHORT = _own("disk_short", "1 while the disk is full and clients cannot write (log.reserve.bytes).")
TXN_IDS = _own("txn_ids", "Transactional ids that the coordinator knows.")
TXN_OPEN = _own("txn_open", "Transactions that are open (Ongoing) or decided and not complete.", "state")
TXN_OLDEST = _own("txn_oldest_open_seconds", "Age of the oldest open transaction; 0 where none is open.")
TXN_TWO_PHASE_OLDEST = _own(
    "txn_two_phase_oldest_open_seconds",
    "Age of the oldest open two-phase transaction (KIP-939), which only an outside decision ends; 0 without one.",
)
TXN_EXPIRED = _own("txn_expired_ids", "Transactional ids removed because no producer used them.", kind=COUNTER)
TXN_REFUSED = _own(
    "txn_refused_begins",
    "How often a transaction was not begun because its principal had quota.open.transactions.max open.",
    kind=COUNTER,
)
MARKERS_PENDING = _own("txn_markers_pending", "Decided transactions of which a marker is still to be written.")
TXN_END = _own(
    "txn_end_seconds",
    "From the decision (EndTxn, or whatever ended it) until every marker is written and readers see it; _bucket, _sum "
    "and _count, to the millisecond.",
    "result", kind=HISTOGRAM,
)  # fmt: skip
SHARDS = _own(
    "txn_coordinator_partitions",
    "Led partitions of the transaction log: active, loading, or corrupt (disabled).", "state",
)  # fmt: skip
CORRUPT = _own(
    "txn_coordinator_partition_corrupt",
    "1 for each partition of the transaction log that is disabled because its content cannot be true.", "partition",
)  # fmt: skip

# --- the group coordinator ---

_GROUPS = "kafka.server:type=group-coordinator-metrics"

GROUPS = _kafka(f"{_GROUPS},protocol=classic:group-count", "Groups that this broker coordinates.", "protocol")
CONSUMER_GROUPS = _kafka(
    f"{_GROUPS},state=stable:consumer-group-count",
    "Groups of the consumer protocol (KIP-848), by their state.",
    "state",
)
CONSUMER_REBALANCES = _kafka(
    f"{_GROUPS}:consumer-group-rebalance-count",
    "Steps of the epochs of consumer groups, for what members want or what topics there are.",
)
OFFSET_COMMITS = _kafka(f"{_GROUPS}:offset-commit-count", "Offsets committed.")
OFFSET_EXPIRATIONS = _kafka(f"{_GROUPS}:offset-expiration-count", "Offsets that expired.")
OFFSET_DELETIONS = _kafka(f"{_GROUPS}:offset-deletion-count", "Offsets deleted on request.")
GROUP_SHARDS = _kafka(f"{_GROUPS},state=active:num-partitions", "Led partitions of the group log.", "state")
GROUP_LOAD_MAX = _kafka(f"{_GROUPS}:partition-load-time-max", "Longest load of a led partition, in ms.")
GROUP_LOAD_AVG = _kafka(f"{_GROUPS}:partition-load-time-avg", "Average load of the led partitions, in ms.")

# --- the cluster ---

_CONTROLLER = "kafka.controller:type=KafkaController"

BROKER_STATE = _kafka("kafka.server:type=KafkaServer,name=BrokerState:Value", "3 while clients are served.")
ACTIVE_CONTROLLER = _kafka(f"{_CONTROLLER},name=ActiveControllerCount:Value", "1 where this node is the controller.")
ACTIVE_BROKERS = _kafka(f"{_CONTROLLER},name=ActiveBrokerCount:Value", "Brokers that may lead.")
FENCED_BROKERS = _kafka(f"{_CONTROLLER},name=FencedBrokerCount:Value", "Brokers that are registered and may not lead.")
TOPICS = _kafka(f"{_CONTROLLER},name=GlobalTopicCount:Value", "Topics of the cluster.")
ALL_PARTITIONS = _kafka(f"{_CONTROLLER},name=GlobalPartitionCount:Value", "Partitions of the cluster.")
LEADERLESS = _kafka(f"{_CONTROLLER},name=OfflinePartitionsCount:Value", "Partitions without a leader.")
FEATURE_LEVEL = _kafka(
    "kafka.server:type=MetadataLoader,name=FinalizedLevel,featureName=transactionVersion:Value",
    "Finalized level of each feature, written as Kafka writes it: transactionVersion.", "featureName",
)  # fmt: skip
METADATA_OFFSET = _kafka(
    "kafka.server:type=broker-metadata-metrics:last-applied-record-offset",
    "Offset of the metadata that the broker works with.",
)
SNAPSHOT_BYTES = _kafka(
    "kafka.server:type=SnapshotEmitter,name=LatestSnapshotGeneratedBytes:Value",
    "Size of the newest snapshot of the metadata that this node has written; 0 before the first.",
)
SNAPSHOT_AGE = _kafka(
    "kafka.server:type=SnapshotEmitter,name=LatestSnapshotGeneratedAgeMs:Value",
    "Time since that snapshot, or since the start if none was written, in ms.",
)
SNAPSHOTS = _own(
    "metadata_snapshots", "Snapshots of the metadata since the start: written or failed.", "result", kind=COUNTER
)
METADATA_LOG_BYTES = _own("metadata_log_bytes", "Bytes of the metadata log, without its snapshots.")
INFO = _own("info", "1, with the version, the node and the cluster.", "version", "node_id", "cluster_id")
TASKS = _own("tasks", "Tasks of the event loop: one or two per connection, and those in the background.")
DEAF = _own(
    "broker_deaf_seconds",
    "Time in which the broker could not listen (paused, suspended, event loop late); granted to every client.",
    kind=COUNTER,
)
SCRAPE = _own("metrics_last_scrape_seconds", "How long the previous answer of this page took to make.")

FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
