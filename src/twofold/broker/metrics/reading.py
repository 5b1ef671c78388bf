"""The metrics of a broker, read from its state at the moment of a scrape.

1. Nothing is kept up to date for metrics but a few plain numbers: a broker that is not scraped pays for nothing else.
2. Reading goes in pieces of about a millisecond, with other work of the loop in between. What is told is therefore
   not of one instant, but every number was true during the scrape.
3. Nothing is opened or loaded for a scrape: the broker itself looks at every partition soon after the start
   (`first_look`), and how many it has not looked at yet is told.
4. Partitions may be many. At most `metrics.max.partitions` have series of their own: first those whose readers wait
   for a transaction, then those that were used first; how many are left out is told.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import Metric

from twofold.broker.metrics import families
from twofold.broker.metrics.durations import Durations
from twofold.broker.metrics.families import Family
from twofold.broker.network.server import Server
from twofold.broker.partitions.first_look import FirstLook
from twofold.broker.quotas.limits import QuotaKind
from twofold.broker.services import Services
from twofold.config.listeners import ListenerAddress
from twofold.coordinator.group.consumer.state import ConsumerGroupState
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.states import State
from twofold.coordinator.transaction.transitions import is_two_phase
from twofold.log.api import OpenTransaction
from twofold.log.log import PartitionLog
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.version import VERSION
from twofold.wire.errors import error_for

if TYPE_CHECKING:
    from twofold.broker.coordinators.shard import CoordinatorShard

RUNNING = 3  # as Kafka numbers the states of a broker
LATE_MARGIN_MS = 300_000
SAMPLES_PER_PIECE = 100
PARTITIONS_PER_PIECE = 100
IDS_PER_PIECE = 1000

T = TypeVar("T")
Labels: TypeAlias = Mapping[str, str]
Sample: TypeAlias = tuple[Labels, float]

log = logging.getLogger(__name__)


class PartitionRows(NamedTuple):
    """Numbers of partitions, which may be very many: no object is made for each, as prometheus_client does.

    Names of topics need no escaping: they consist of letters, digits, dots, dashes and underscores.
    """

    family: Family
    partitions: Sequence[TopicPartition]
    values: Sequence[float]

    def metric(self) -> Metric:
        labels = ({"topic": topic, "partition": str(index)} for topic, index in self.partitions)
        return _metric(self.family, zip(labels, self.values, strict=True))

    def text(self) -> str:
        name = self.family.sample
        return "".join(
            f'{name}{{topic="{topic}",partition="{index}"}} {value}\n'
            for (topic, index), value in zip(self.partitions, self.values, strict=True)
        )


Piece: TypeAlias = Metric | PartitionRows | None
"""A metric, a part of one that goes on with the next piece, or a step without a result."""


class BrokerCollector:
    """A collector of prometheus_client that can also be read piece by piece."""

    def __init__(
        self, services: Services, server: Server, first_look: FirstLook, listeners: Sequence[ListenerAddress]
    ) -> None:
        self._services = services
        self._server = server
        self._first_look = first_look
        self._listeners = listeners
        self._max_partitions = services.settings.int("metrics.max.partitions")
        self._process: Any = ProcessCollector(registry=None)
        self.last_scrape_s = 0.0

    def collect(self) -> Iterator[Metric]:
        """Everything in one go, for a registry of one's own."""
        previous: Metric | None = None
        for piece in self.pieces():
            if piece is None:
                continue
            metric = piece.metric() if isinstance(piece, PartitionRows) else piece
            if previous is not None and metric.name == previous.name:
                previous.samples.extend(metric.samples)
                continue
            if previous is not None:
                yield previous
            previous = metric
        if previous is not None:
            yield previous

    def pieces(self) -> Iterator[Piece]:
        """The metrics in small steps."""
        yield from self._process.collect()
        yield from self._cluster()
        yield None
        yield from self._partitions()
        yield from self._transactions()
        yield from self._groups()

    # --- the broker and its cluster ---

    def _cluster(self) -> Iterator[Metric]:
        services = self._services
        image = services.image
        labels = {"version": VERSION, "node_id": str(services.node_id), "cluster_id": services.cluster_id}
        yield _metric(families.INFO, [(labels, 1)])
        yield _one(families.TASKS, _tasks())
        yield _one(families.DEAF, services.core.attention.deaf_s)
        yield _one(families.SCRAPE, self.last_scrape_s)
        yield _one(families.BROKER_STATE, RUNNING)
        controller = services.core.controller
        yield _one(families.ACTIVE_CONTROLLER, int(controller.is_leader))
        active = len(image.active_brokers())
        yield _one(families.ACTIVE_BROKERS, active)
        yield _one(families.FENCED_BROKERS, len(image.brokers) - active)
        yield _one(families.TOPICS, len(image.topics))
        yield _one(families.METADATA_OFFSET, image.offset)
        snapshots = controller.snapshots
        if snapshots is not None:
            yield _one(families.SNAPSHOT_BYTES, snapshots.latest_bytes)
            yield _one(families.SNAPSHOT_AGE, int(snapshots.age_s * 1000))
            results = (("written", snapshots.written), ("failed", snapshots.failed))
            yield _metric(families.SNAPSHOTS, [({"result": name}, count) for name, count in results])
            yield _one(families.METADATA_LOG_BYTES, controller.log_size_bytes)
        levels = [({"featureName": _camel(name)}, level) for name, level in sorted(image.features.items())]
        yield _metric(families.FEATURE_LEVEL, levels)
        yield _metric(families.CONNECTIONS, self._connections())
        yield from self._quotas()
        purgatory = services.replicas.purgatory
        waiting = (
            ("Fetch", purgatory.fetches),
            ("Produce", purgatory.produces),
            ("DeleteRecords", purgatory.deletions),
        )
        yield _metric(families.PURGATORY, [({"delayedOperation": name}, len(parked)) for name, parked in waiting])
        yield _one(families.FETCH_SESSIONS, len(services.fetch_sessions))
        yield _one(families.FETCH_SESSION_PARTITIONS, services.fetch_sessions.partitions)
        yield _one(families.FETCH_SESSION_EVICTIONS, services.fetch_sessions.evictions)
        requests = self._server.dispatcher.requests()
        counts = [({"request": api, "version": str(version)}, count) for api, version, count in requests]
        yield _metric(families.REQUESTS, counts)
        calls = self._server.dispatcher.calls()
        errors = [
            ({"request": api, "error": error_for(code).name}, count)
            for api, found in calls.items()
            for code, count in found.errors.items()
        ]
        yield _metric(families.REQUEST_ERRORS, errors)
        yield _histogram(families.REQUEST_TIME, {})
        for api, found in calls.items():  # one piece each: a histogram has some twenty lines
            yield _histogram(families.REQUEST_TIME, {api: found.times()})

    def _connections(self) -> list[Sample]:
        counts = {listener.name: 0 for listener in self._listeners}
        for connection in self._server.connections:
            counts[connection.peer.listener] = counts.get(connection.peer.listener, 0) + 1
        return [({"listener": name, "networkProcessor": "0"}, count) for name, count in counts.items()]

    def _quotas(self) -> Iterator[Metric]:
        """Without names of users and client ids, which clients choose."""
        muted = self._server.mutes.by_quota
        for kind, family in (
            (QuotaKind.PRODUCE, families.MUTED_PRODUCE),
            (QuotaKind.FETCH, families.MUTED_FETCH),
            (QuotaKind.REQUEST, families.MUTED_REQUEST),
            (QuotaKind.CONTROLLER_MUTATION, families.MUTED_MUTATION),
        ):
            yield _metric(family, [({}, muted.get(kind.label, 0))])
        found = self._server.dispatcher.quotas.throttles
        yield _metric(families.THROTTLES, [({"quota": quota}, one.count) for quota, one in found.items()])
        yield _metric(families.THROTTLED, [({"quota": quota}, one.total_ms / 1000) for quota, one in found.items()])

    # --- partitions ---

    def _partitions(self) -> Iterator[Piece]:
        yield from self._counts_of_the_image()
        traffic: dict[str, list[int]] = {}
        producer_ids = failed = under_min_isr = 0
        waiting: list[PartitionLog] = []  # their readers do
        others: list[PartitionLog] = []
        for piece in _slices(list(self._services.replicas.partitions()), PARTITIONS_PER_PIECE):
            for partition in piece:
                totals = traffic.setdefault(partition.topic_partition.topic, [0, 0, 0])
                totals[0] += partition.messages_in
                totals[1] += partition.bytes_in
                totals[2] += partition.bytes_out
                failed += partition.failed
                under_min_isr += partition.is_leader and len(partition.isr) < partition.min_in_sync_replicas
                partition_log = partition.log
                producer_ids += partition_log.producer_count
                is_held = partition_log.last_stable_offset < partition_log.high_watermark
                (waiting if is_held else others).append(partition_log)
            yield None
        find = self._services.replicas.find
        for some in _slices(self._services.logs.logs(), PARTITIONS_PER_PIECE):
            for unused in some:
                if find(*unused.topic_partition) is None:
                    failed += unused.failure is not None
                    if unused.is_open:
                        producer_ids += unused.producer_count
                        others.append(unused)
            yield None
        yield _one(families.OFFLINE, failed)
        yield _one(families.UNDER_MIN_ISR, under_min_isr)
        neighbours = self._services.replicas.neighbours
        yield _one(families.ISR_EXPANDS, neighbours.isr_expands)
        yield _one(families.ISR_SHRINKS, neighbours.isr_shrinks)
        yield _one(families.PRODUCER_IDS, producer_ids)
        yield _one(families.NOT_LOOKED_AT, self._first_look.remaining)
        yield from self._traffic(traffic)
        yield from self._open_transactions(waiting)
        chosen = [*waiting, *others][: self._max_partitions]
        yield _one(families.LEFT_OUT, len(waiting) + len(others) - len(chosen))
        yield from _offsets(chosen)

    def _open_transactions(self, logs: list[PartitionLog]) -> Iterator[Piece]:
        now_ms = self._services.runtime.clock.wall_ms()
        late_ms = self._services.settings.int("transaction.max.timeout.ms") + LATE_MARGIN_MS
        owners: dict[int, TransactionMetadata] = {}
        if logs:
            yield from self._find_owners(owners)
        names: list[TopicPartition] = []
        ages: list[float] = []
        late = bounds = 0
        for piece in _slices(logs, PARTITIONS_PER_PIECE):
            for partition_log in piece:
                oldest = partition_log.oldest_open_transaction()
                if oldest is not None:
                    name = partition_log.topic_partition
                    since_ms, is_exact = open_since(oldest, name, owners.get(oldest.producer_id))
                    age_ms = max(0, now_ms - since_ms)
                    late += age_ms > late_ms
                    bounds += not is_exact
                    names.append(name)
                    ages.append(age_ms / 1000)
            yield None
        yield _one(families.LATE, late)
        yield _one(families.AT_LEAST, bounds)
        most = self._max_partitions
        yield PartitionRows(families.PARTITION_OPEN, names[:most], ages[:most])

    def _find_owners(self, owners: dict[int, TransactionMetadata]) -> Iterator[Piece]:
        """What coordinators have open or are ending, by producer id."""
        for shard in self._services.transactions.led():
            state = shard.committed
            for piece in _slices(chain(state.ongoing, state.preparing), IDS_PER_PIECE):
                for transactional_id in piece:
                    entry = state.entries[transactional_id]
                    owners[entry.producer_id] = entry
                yield None

    def _counts_of_the_image(self) -> Iterator[Piece]:
        image, node_id = self._services.image, self._services.node_id
        total = led = held = leaderless = under_replicated = looked_at = 0
        for topic in image.topics.values():
            for state in topic.partitions.values():
                total += 1
                held += node_id in state.replicas
                if state.leader == node_id:
                    led += 1
                    under_replicated += len(state.isr) < len(state.replicas) - len(state.adding_replicas)
                leaderless += not state.has_leader
            looked_at += len(topic.partitions)
            if looked_at >= IDS_PER_PIECE:
                looked_at = 0
                yield None
        yield _one(families.PARTITIONS, held)
        yield _one(families.LEADERS, led)
        yield _one(families.UNDER_REPLICATED, under_replicated)
        yield _one(families.ALL_PARTITIONS, total)
        yield _one(families.LEADERLESS, leaderless)

    def _traffic(self, traffic: dict[str, list[int]]) -> Iterator[Piece]:
        """The totals of a broker hold what went through deleted topics, too: a counter never falls."""
        for at, family in enumerate((families.MESSAGES_IN, families.BYTES_IN, families.BYTES_OUT)):
            total = self._services.replicas.gone[at] + sum(totals[at] for totals in traffic.values())
            told = islice(traffic.items(), self._max_partitions)
            samples: list[Sample] = [({}, total), *(({"topic": topic}, totals[at]) for topic, totals in told)]
            yield from _in_pieces(family, samples)

    # --- transactions ---

    def _transactions(self) -> Iterator[Piece]:
        service = self._services.transactions
        shards = service.led()
        open_by_state = dict.fromkeys((State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT), 0)
        ids = preparing = 0
        now_ms = self._services.runtime.clock.wall_ms()
        oldest_ms = oldest_two_phase_ms = now_ms
        for shard in shards:
            state = shard.committed
            entries = state.entries
            ids += len(entries)
            preparing += len(state.preparing)
            open_by_state[State.ONGOING] += len(state.ongoing)
            for piece in _slices(state.preparing, IDS_PER_PIECE):
                for transactional_id in piece:
                    open_by_state[entries[transactional_id].state] += 1
                yield None
            for piece in _slices(state.ongoing, IDS_PER_PIECE):
                found = [entries[transactional_id] for transactional_id in piece]
                oldest_ms = min(oldest_ms, *(entry.start_ms for entry in found))
                vowed = (entry.start_ms for entry in found if is_two_phase(entry))
                oldest_two_phase_ms = min(oldest_two_phase_ms, min(vowed, default=now_ms))
                yield None
        age_ms = now_ms - oldest_ms
        markers = service.markers
        yield _one(families.TXN_IDS, ids)
        yield _metric(families.TXN_OPEN, [({"state": key.wire_name}, n) for key, n in open_by_state.items()])
        yield _one(families.TXN_OLDEST, age_ms / 1000)
        yield _one(families.TXN_TWO_PHASE_OLDEST, (now_ms - oldest_two_phase_ms) / 1000)
        yield _one(families.OPEN_TIME, age_ms)
        yield _one(families.TXN_EXPIRED, service.counts.removed_ids)
        yield _one(families.TXN_REFUSED, service.counts.refused_begins)
        yield _one(families.TIMED_OUT, service.counts.timed_out)
        yield _one(families.HEARTBEATS, sum(len(shard.signs_ms) for shard in shards))
        yield _one(families.SILENT, service.counts.silent)
        yield _one(families.DISK_SHORT, int(self._services.logs.reserve.is_short))
        yield _one(families.FENCED, service.counts.fenced)
        yield _one(families.COMMITTED, markers.committed)
        yield _one(families.ABORTED, markers.aborted)
        yield _histogram(families.TXN_END, {"commit": markers.committing, "abort": markers.aborting})
        yield _one(families.MARKERS_PENDING, markers.ending_transactions)
        yield _one(families.UNKNOWN_DESTINATION, markers.unknown_destination_queue_size)
        yield _one(families.APPEND_RETRY, max(0, preparing - markers.ending_transactions))
        yield _metric(families.SHARDS, _shard_states(shards, corrupt="corrupt"))
        corrupt: list[Sample] = [({"partition": str(shard)}, 1) for shard in shards if shard.is_corrupt]
        yield _metric(families.CORRUPT, corrupt)
        yield from _load_times(shards, families.LOAD_MAX, families.LOAD_AVG)

    # --- groups ---

    def _groups(self) -> Iterator[Metric]:
        shards = self._services.groups.led()
        groups = sum(len(shard.committed.groups) for shard in shards)
        states = Counter(group.state for shard in shards for group in shard.committed.consumers.values())
        by_protocol = [({"protocol": "classic"}, groups), ({"protocol": "consumer"}, states.total())]
        yield _metric(families.GROUPS, by_protocol)
        by_state = [({"state": state.value.lower()}, states[state]) for state in ConsumerGroupState]
        yield _metric(families.CONSUMER_GROUPS, by_state)
        for family, counted in (
            (families.CONSUMER_REBALANCES, [shard.consumers.rebalances for shard in shards]),
            (families.OFFSET_COMMITS, [shard.offsets.committed for shard in shards]),
            (families.OFFSET_EXPIRATIONS, [shard.offsets.expired for shard in shards]),
            (families.OFFSET_DELETIONS, [shard.offsets.deleted for shard in shards]),
        ):
            yield _metric(family, [({}, sum(counted))])
        yield _metric(families.GROUP_SHARDS, _shard_states(shards, corrupt="failed"))
        yield from _load_times(shards, families.GROUP_LOAD_MAX, families.GROUP_LOAD_AVG)


def open_since(opened: OpenTransaction, name: TopicPartition, owner: TransactionMetadata | None) -> tuple[int, bool]:
    """(when a transaction began, whether that is exact). Its coordinator knows best, if this is the transaction that it
    has open: not an older one of the same producer, which no coordinator ends."""
    if owner is None or name not in owner.partitions or owner.start_ms < 0:
        return opened.since_ms, opened.is_exact
    if owner.state is State.ONGOING and owner.producer_epoch != opened.producer_epoch:
        return opened.since_ms, opened.is_exact
    return owner.start_ms, True


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0  # read from outside of the loop


def _offsets(logs: list[PartitionLog]) -> Iterator[Piece]:
    readers: tuple[tuple[Family, Callable[[PartitionLog], int]], ...] = (
        (families.LSO_LAG, lambda log: max(0, log.high_watermark - log.last_stable_offset)),
        (families.LSO, lambda log: log.last_stable_offset),
        (families.LOG_START, lambda log: log.log_start_offset),
        (families.LOG_END, lambda log: log.log_end_offset),
        (families.LOG_SIZE, lambda log: log.size_bytes),
        (families.LOG_SEGMENTS, lambda log: log.segment_count),
    )
    for family, read in readers:
        yield PartitionRows(family, (), ())  # the head of the metric, also where no partition follows
        for some in _slices(logs, PARTITIONS_PER_PIECE):
            names = [partition_log.topic_partition for partition_log in some]
            yield PartitionRows(family, names, [read(partition_log) for partition_log in some])


def _shard_states(shards: "Iterable[CoordinatorShard[Any, Any]]", *, corrupt: str) -> list[Sample]:
    counts = {"active": 0, "loading": 0, corrupt: 0}
    for shard in shards:
        counts[corrupt if shard.is_corrupt else "active" if shard.is_active else "loading"] += 1
    return [({"state": state}, count) for state, count in counts.items()]


def _load_times(shards: "Iterable[CoordinatorShard[Any, Any]]", longest: Family, average: Family) -> Iterator[Metric]:
    times = [shard.load_time_ms for shard in shards if shard.load_time_ms > 0]  # what was empty was not loaded
    yield _one(longest, max(times, default=0.0))
    yield _one(average, sum(times) / len(times) if times else 0.0)


def _slices(items: Iterable[T], size: int) -> Iterator[list[T]]:
    items = iter(items)
    while piece := list(islice(items, size)):
        yield piece


def _camel(feature: str) -> str:
    """`transaction.version` as Kafka's own metric has it."""
    return re.sub(r"[.](\w)", lambda match: match.group(1).upper(), feature)


def _one(family: Family, value: float) -> Metric:
    return _metric(family, [({}, value)])


def _in_pieces(family: Family, samples: list[Sample]) -> Iterator[Metric]:
    for at in range(0, max(1, len(samples)), SAMPLES_PER_PIECE):
        yield _metric(family, samples[at : at + SAMPLES_PER_PIECE])


def _metric(family: Family, samples: Iterable[Sample]) -> Metric:
    metric = Metric(family.name, family.help, family.kind)
    for labels, value in samples:
        metric.add_sample(family.sample, dict(labels), value)
    return metric


def _histogram(family: Family, by_label: Mapping[str, Durations]) -> Metric:
    """With one label, whose values are the keys."""
    metric = Metric(family.name, family.help, family.kind)
    for value, durations in by_label.items():
        labels = {family.labels[0]: value}
        for bound_s, count in durations.buckets():
            metric.add_sample(f"{family.name}_bucket", labels | {"le": _bound(bound_s)}, count)
        metric.add_sample(f"{family.name}_count", labels, durations.count)
        metric.add_sample(f"{family.name}_sum", labels, durations.total_s)
    return metric


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else repr(seconds)


class _Single:
    """The registry that the text form of one metric is asked from."""

    __slots__ = ("_metric",)

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> tuple[Metric, ...]:
        return (self._metric,)


def text_of(piece: Metric | PartitionRows, previous: str) -> bytes:
    """A piece in the text format; without its head where it continues the metric named `previous`."""
    if isinstance(piece, PartitionRows):
        head = b"" if piece.family.name == previous else generate_latest(_Single(_metric(piece.family, ())))
        return head + piece.text().encode()
    text = generate_latest(_Single(piece))
    return text.split(b"\n", 2)[2] if piece.name == previous else text


def name_of(piece: Metric | PartitionRows) -> str:
    return piece.family.name if isinstance(piece, PartitionRows) else str(piece.name)


class Scraper:
    """Makes the page."""

    def __init__(self, collector: BrokerCollector, runtime: Runtime) -> None:
        self.collector = collector
        self._runtime = runtime

    async def page(self) -> bytes:
        clock, timers = self._runtime.clock, self._runtime.timers
        started = clock.monotonic()
        parts: list[bytes] = []
        previous = ""
        for piece in self.collector.pieces():
            if piece is not None:
                parts.append(text_of(piece, previous))
                previous = name_of(piece)
            await timers.sleep(0)
        self.collector.last_scrape_s = clock.monotonic() - started
        return b"".join(parts)
