"""What one seed decides before a run of transactions: topics, writers, copiers, readers, settings and faults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from kits.wire.driver import TV1, TV2, Versions
from sim.broker.plan import INT_MAX, LONG_MAX
from sim.frame import BrokerPlan
from twofold.runtime.sim.disk import CutMode

FAULTS = ("features", "reset", "partition", "loss", "duplicate", "delay", "slow disk", "clock", "pause", "client kill")
BROKER_FAULTS = ("kill", "restart", "sync", "full")
MAX_HOPS = 2
WRITTEN, LEFT, RIGHT = "written", "left", "right"
"""Writers write to `written` and `left`; copiers bring everything from left to right and back."""


@dataclass(frozen=True)
class WriterPlan:
    node: str
    transactional_id: str
    versions: Versions
    timeout_ms: int
    pause_s: float
    partitions: int
    """At most so many in a transaction."""
    sends: int
    parallel: bool
    """Its requests do not wait for each other, where they concern other partitions."""
    abort: float
    hang: float
    """How often it stays silent in the middle, for longer than its timeout."""
    offsets: bool
    request_timeout_ms: int


@dataclass(frozen=True)
class CopierPlan:
    node: str
    transactional_id: str
    versions: Versions
    source: str
    target: str
    group: str
    timeout_ms: int
    pause_s: float
    abort: float
    hang: float
    request_timeout_ms: int


@dataclass(frozen=True)
class ReaderPlan:
    node: str
    committed: bool
    pause_s: float
    max_bytes: int
    request_timeout_ms: int


class ActorPlan(Protocol):
    """What every client with a transactional id has."""

    @property
    def node(self) -> str: ...

    @property
    def transactional_id(self) -> str: ...

    @property
    def versions(self) -> Versions: ...

    @property
    def timeout_ms(self) -> int: ...

    @property
    def request_timeout_ms(self) -> int: ...


class WritingPlan(ActorPlan, Protocol):
    @property
    def offsets(self) -> bool: ...


class WorldPlan(BrokerPlan, Protocol):
    """What every world of transactions has."""

    @property
    def duration_s(self) -> float: ...

    @property
    def faults(self) -> Sequence[str]: ...

    @property
    def internal_configs(self) -> Mapping[str, str]: ...

    @property
    def topics(self) -> Mapping[str, int]: ...

    @property
    def topic_configs(self) -> dict[str, str]: ...

    @property
    def writers(self) -> Sequence[WritingPlan]: ...

    @property
    def copiers(self) -> Sequence[CopierPlan]: ...

    @property
    def readers(self) -> Sequence[ReaderPlan]: ...

    @property
    def ghosts(self) -> float: ...

    @property
    def first_epoch(self) -> int: ...

    @property
    def loses_ids(self) -> bool: ...

    @property
    def has_power_cuts(self) -> bool: ...

    @property
    def clients(self) -> list[str]: ...


@dataclass(frozen=True)
class TxnPlan:
    seed: int
    duration_s: float
    faults: tuple[str, ...]
    cut_mode: CutMode
    settings: dict[str, str]
    internal_configs: dict[str, str]
    topics: dict[str, int]
    topic_configs: dict[str, str]
    writers: tuple[WriterPlan, ...]
    copiers: tuple[CopierPlan, ...]
    readers: tuple[ReaderPlan, ...]
    ghosts: float
    """How often a request of the past is sent again, by somebody else."""
    first_epoch: int
    """Where the ids begin: some are near the end of their producer id."""

    @property
    def loses_ids(self) -> bool:
        """Whether somebody may find that the producer id of his is not that of his transactional id any more."""
        return bool(self.first_epoch)

    @property
    def has_power_cuts(self) -> bool:
        return "power" in self.faults

    @property
    def has_disk_errors(self) -> bool:
        return "sync" in self.faults or "full" in self.faults

    @property
    def compacted(self) -> bool:
        return self.settings["log.cleaner.enable"] == "true"

    @property
    def clients(self) -> list[str]:
        clients: list[WriterPlan | CopierPlan | ReaderPlan] = [*self.writers, *self.copiers, *self.readers]
        return [client.node for client in clients]


def make_txn_plan(seed: int) -> TxnPlan:
    random = Random(f"{seed}/transaction plan")
    power = random.random() < 0.3
    faults = [fault for fault in BROKER_FAULTS if random.random() < (0.7 if fault == "kill" else 0.2)]
    faults += ["power"] * power
    faults += [fault for fault in FAULTS if random.random() < (0.5 if fault == "client kill" else 0.3)]
    return TxnPlan(
        seed=seed,
        duration_s=random.uniform(1, 4),
        faults=tuple(faults),
        cut_mode=random.choice((CutMode.ORDERED, CutMode.REORDERED)),
        settings=_settings(random, synced=power),
        internal_configs={
            "internal.segment.bytes": str(random.choice((1500, 20_000, 1 << 20))),
            "min.cleanable.dirty.ratio": random.choice(("0.01", "0.5")),
        },
        topics={WRITTEN: random.randint(1, 3), LEFT: random.randint(1, 2), RIGHT: random.randint(1, 2)},
        topic_configs={
            "internal.segment.bytes": str(random.choice((1000, 20_000, 1 << 20))),
            "index.interval.bytes": str(random.choice((0, 200, 4096))),
            "message.timestamp.type": random.choice(("CreateTime", "CreateTime", "LogAppendTime")),
            "message.timestamp.after.max.ms": str(LONG_MAX),
        },
        writers=_writers(random),
        copiers=_copiers(random),
        readers=tuple(_reader(random, n) for n in range(random.randint(1, 2))),
        ghosts=random.choice((0.0, 0.3, 0.3)),
        first_epoch=random.randint(32752, 32766) if random.random() < 0.2 else 0,
    )


def _settings(random: Random, *, synced: bool) -> dict[str, str]:
    settings = {
        "node.id": "1",
        "listeners": "PLAINTEXT://broker:9092",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "-1",
        "producer.id.expiration.ms": str(INT_MAX),
        "transaction.state.log.num.partitions": str(random.choice((1, 3))),
        "transaction.state.log.load.buffer.size": str(random.choice((500, 5_242_880))),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(random.choice((100, 500, 1500))),
        "add.partitions.to.txn.retry.backoff.max.ms": str(random.choice((0, 100))),
        "offsets.topic.num.partitions": str(random.choice((1, 3))),
        "offsets.load.buffer.size": str(random.choice((500, 5_242_880))),
        "log.cleaner.enable": random.choice(("true", "false")),
        "log.cleaner.backoff.ms": str(random.choice((300, 2000))),
        "log.cleaner.dedupe.buffer.size": "1048576",
        "connections.max.idle.ms": str(random.choice((1500, 600_000))),
        "log.flush.offset.checkpoint.interval.ms": str(random.randint(200, 5000)),
        "replica.high.watermark.checkpoint.interval.ms": str(random.randint(200, 5000)),
    }
    if synced:
        # Otherwise a power cut takes what was acknowledged, of some partitions more than of others.
        settings["log.flush.interval.messages"] = "1"
    return settings


def _versions(random: Random) -> Versions:
    return random.choice((TV2, TV2, TV2, TV1))


def _writers(random: Random) -> tuple[WriterPlan, ...]:
    """Some of them share an id with another, and fight for it."""
    plans: list[WriterPlan] = []
    for number in range(random.randint(2, 3)):
        shared = bool(plans) and random.random() < 0.35
        transactional_id = random.choice(plans).transactional_id if shared else f"w{number}"
        plans.append(
            WriterPlan(
                node=f"writer{number}",
                transactional_id=transactional_id,
                versions=_versions(random),
                timeout_ms=random.choice((600, 2000, 60_000)),
                pause_s=random.choice((0.03, 0.1, 0.3)),
                partitions=random.choice((1, 2, 3)),
                sends=random.choice((1, 1, 3)),
                parallel=random.random() < 0.4,
                abort=random.choice((0.0, 0.2, 0.5)),
                hang=random.choice((0.0, 0.0, 0.1)),
                offsets=random.random() < 0.5,
                request_timeout_ms=random.choice((500, 1500)),
            )
        )
    return tuple(plans)


def _copiers(random: Random) -> tuple[CopierPlan, ...]:
    """One for each direction, sometimes with a rival of the same id."""
    if random.random() < 0.4:
        return ()
    plans: list[CopierPlan] = []
    for source, target in ((LEFT, RIGHT), (RIGHT, LEFT)):
        for instance in range(random.choice((1, 1, 2))):
            plans.append(
                CopierPlan(
                    node=f"{source}-copier{instance}",
                    transactional_id=f"copy-{source}",
                    versions=_versions(random),
                    source=source,
                    target=target,
                    group=f"from-{source}",
                    timeout_ms=random.choice((600, 2000, 60_000)),
                    pause_s=random.choice((0.05, 0.2)),
                    abort=random.choice((0.0, 0.2)),
                    hang=random.choice((0.0, 0.05)),
                    request_timeout_ms=random.choice((500, 1500)),
                )
            )
    return tuple(plans)


def _reader(random: Random, number: int) -> ReaderPlan:
    return ReaderPlan(
        node=f"reader{number}",
        committed=number == 0 or random.random() < 0.5,
        pause_s=random.choice((0.03, 0.1, 0.3)),
        max_bytes=random.choice((300, 2000, 1 << 20)),
        request_timeout_ms=random.choice((500, 1500)),
    )
