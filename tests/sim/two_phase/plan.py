"""What one seed decides before a run of two-phase transactions."""

from dataclasses import dataclass
from random import Random

from kits.wire.driver import TV2, Versions
from sim.broker.plan import INT_MAX, LONG_MAX
from sim.transactions.plan import LEFT, WRITTEN, ReaderPlan
from twofold.runtime.sim.disk import CutMode

FAULTS = ("reset", "partition", "loss", "duplicate", "delay", "slow disk", "pause")
BROKER_FAULTS = ("kill", "power", "restart", "sync", "full")
LAST_EPOCH = 32_766


@dataclass(frozen=True)
class AppPlan:
    """An application that keeps a database and the log in step."""

    node: str
    transactional_id: str
    versions: Versions
    timeout_ms: int
    pause_s: float
    partitions: int
    """At most so many in a send."""
    sends: int
    abort: float
    offsets: bool
    request_timeout_ms: int
    vows: bool
    """Two-phase from the beginning of each transaction; otherwise it becomes that when it is prepared."""
    dies: float
    """How often at each of the places where it matters."""


@dataclass(frozen=True)
class TwoPhasePlan:
    seed: int
    duration_s: float
    faults: tuple[str, ...]
    cut_mode: CutMode
    settings: dict[str, str]
    internal_configs: dict[str, str]
    topics: dict[str, int]
    topic_configs: dict[str, str]
    writers: tuple[AppPlan, ...]
    readers: tuple[ReaderPlan, ...]
    ghosts: float
    """How often a request of the past is sent again, by somebody else."""
    first_epoch: int
    """Of every id: as if it had been in use for long; 0 for new ones."""
    copiers: tuple[()] = ()

    @property
    def loses_ids(self) -> bool:
        return True

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
        clients: list[AppPlan | ReaderPlan] = [*self.writers, *self.readers]
        return [client.node for client in clients]


def make_two_phase_plan(seed: int) -> TwoPhasePlan:
    random = Random(f"{seed}/two-phase plan")
    faults = [fault for fault in BROKER_FAULTS if random.random() < (0.5 if fault in ("kill", "power") else 0.15)]
    faults += [fault for fault in FAULTS if random.random() < 0.2]
    faults += ["client kill"] + ["clock"] * (random.random() < 0.5)
    apps = _apps(random)
    converts = not all(app.vows for app in apps)
    return TwoPhasePlan(
        seed=seed,
        duration_s=random.uniform(0.8, 2.5),
        faults=tuple(faults),
        cut_mode=random.choice((CutMode.ORDERED, CutMode.REORDERED)),
        # What is not vowed yet is as safe as the settings make it, and no safer.
        settings=_settings(random, synced=converts and "power" in faults),
        internal_configs={
            "internal.segment.bytes": str(random.choice((1500, 20_000))),
            "min.cleanable.dirty.ratio": "0.01",
        },
        topics={WRITTEN: random.randint(1, 2), LEFT: 1},
        topic_configs={
            "internal.segment.bytes": str(random.choice((1000, 1 << 20))),
            "message.timestamp.after.max.ms": str(LONG_MAX),
        },
        writers=apps,
        readers=(ReaderPlan("reader0", True, 0.1, random.choice((300, 1 << 20)), 1000),),
        ghosts=random.choice((0.0, 0.1, 0.1)),
        first_epoch=random.choice((0, LAST_EPOCH - 4, LAST_EPOCH - 1, LAST_EPOCH)),
    )


def _settings(random: Random, *, synced: bool) -> dict[str, str]:
    """Nothing is flushed but what must be."""
    settings = {
        "node.id": "1",
        "listeners": "PLAINTEXT://broker:9092",
        "auto.create.topics.enable": "false",
        "transaction.two.phase.commit.enable": "true",
        "log.retention.ms": "-1",
        "producer.id.expiration.ms": str(INT_MAX),
        "transaction.state.log.num.partitions": "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "transactional.id.expiration.ms": str(random.choice((86_400_000, 604_800_000))),
        "add.partitions.to.txn.retry.backoff.max.ms": str(random.choice((0, 100))),
        "offsets.topic.num.partitions": "1",
        "log.cleaner.enable": random.choice(("true", "false")),
        "log.cleaner.backoff.ms": "300",
        "log.cleaner.dedupe.buffer.size": "1048576",
        "log.flush.offset.checkpoint.interval.ms": str(random.randint(200, 5000)),
        "replica.high.watermark.checkpoint.interval.ms": str(random.randint(200, 5000)),
    }
    if synced:
        settings["log.flush.interval.messages"] = "1"
    return settings


def _apps(random: Random) -> tuple[AppPlan, ...]:
    """One or two ids, each with one or two instances that do not know of each other."""
    plans: list[AppPlan] = []
    for number in range(random.choice((1, 2))):
        vows = random.random() < 0.75
        for _ in range(random.choice((1, 2, 2))):
            plans.append(
                AppPlan(
                    node=f"app{len(plans)}",
                    transactional_id=f"t{number}",
                    versions=TV2,
                    timeout_ms=random.choice((600, 60_000)),
                    pause_s=random.choice((0.02, 0.1)),
                    partitions=2,
                    sends=random.choice((1, 2)),
                    abort=random.choice((0.1, 0.3)),
                    offsets=random.random() < 0.5,
                    request_timeout_ms=random.choice((500, 1500)),
                    vows=vows,
                    dies=random.choice((0.05, 0.2, 0.35)),
                )
            )
    return tuple(plans)
