"""What one seed decides before a run of everything at once: plain producers and readers, a group, transactions of both
protocols, two-phase ones, topics that are trimmed, compacted, and deleted under the feet of those who write to them."""

from dataclasses import dataclass, replace
from random import Random

from sim.broker.plan import INT_MAX, LONG_MAX, Plan, make_plan
from sim.groups.world import GroupPlan, make_group_plan
from sim.transactions.history import TABLE
from sim.transactions.plan import CopierPlan, ReaderPlan, WriterPlan, make_txn_plan
from sim.two_phase.plan import AppPlan, make_two_phase_plan
from twofold.runtime.sim.disk import CutMode

BROKER_FAULTS = ("kill", "restart", "sync", "full")
FAULTS = ("reset", "partition", "loss", "duplicate", "delay", "slow disk", "clock", "pause", "client kill")
SHORT, MORTAL = "short", "mortal"
"""A topic of which only the last is kept, and one that is deleted and made again."""
TRIMMED_CONFIGS = {
    SHORT: {
        "cleanup.policy": "delete",
        "retention.bytes": "200",
        "internal.segment.bytes": "250",
        "file.delete.delay.ms": "100",
    },
    TABLE: {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "500",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "200",
    },
}


@dataclass(frozen=True)
class MixedPlan:
    """As `TxnPlan`, with the plans of the others who use the same broker."""

    seed: int
    duration_s: float
    faults: tuple[str, ...]
    cut_mode: CutMode
    settings: dict[str, str]
    internal_configs: dict[str, str]
    topics: dict[str, int]
    topic_configs: dict[str, str]
    writers: tuple[WriterPlan | AppPlan, ...]
    copiers: tuple[CopierPlan, ...]
    readers: tuple[ReaderPlan, ...]
    ghosts: float
    plain: Plan
    group: GroupPlan
    transactional_members: bool
    """Members commit some of their numbers in transactions, under the generation that they have."""
    deletes: float
    """How long the topic lives that is deleted while transactions write to it, on average; 0 for always."""
    alters: bool
    """Somebody changes configurations all the time."""
    first_epoch: int = 0

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
        return True

    @property
    def clients(self) -> list[str]:
        nodes = [client.node for client in self.writers]
        nodes += [client.node for client in self.copiers]
        nodes += [client.node for client in self.readers]
        nodes += [client.node for client in self.plain.producers]
        nodes += [client.node for client in self.plain.consumers]
        nodes += [client.node for client in self.group.members]
        return nodes

    @property
    def outside_ids(self) -> set[str]:
        """Ids whose transactions are decided by a database."""
        return {plan.transactional_id for plan in self.writers if isinstance(plan, AppPlan)}


def make_mixed_plan(seed: int) -> MixedPlan:
    random = Random(f"{seed}/mixed plan")
    power = random.random() < 0.3
    faults = [fault for fault in BROKER_FAULTS if random.random() < (0.6 if fault == "kill" else 0.15)]
    faults += ["power"] * power
    faults += [fault for fault in FAULTS if random.random() < (0.5 if fault == "client kill" else 0.25)]
    duration_s = random.uniform(1.5, 4)
    txn = make_txn_plan(seed)
    # Apps and writers use no names in common.
    apps = make_two_phase_plan(seed).writers[: random.choice((0, 1, 2))]
    settings = _settings(random, txn.settings, synced=power)
    longest_ms = int(settings["transaction.max.timeout.ms"])
    return MixedPlan(
        seed=seed,
        duration_s=duration_s,
        faults=tuple(faults),
        cut_mode=txn.cut_mode,
        settings=settings,
        internal_configs=txn.internal_configs,
        topics=txn.topics,
        topic_configs=txn.topic_configs,
        writers=(
            *(
                replace(plan, timeout_ms=min(plan.timeout_ms, longest_ms))
                for plan in txn.writers[: random.choice((1, 2))]
            ),
            *(replace(plan, timeout_ms=min(plan.timeout_ms, longest_ms)) for plan in apps),
        ),
        copiers=tuple(replace(plan, timeout_ms=min(plan.timeout_ms, longest_ms)) for plan in txn.copiers),
        readers=txn.readers,
        ghosts=txn.ghosts,
        plain=_plain(seed, random, faults, settings, duration_s, synced=power),
        group=_group(seed, random, faults, settings, duration_s),
        transactional_members=random.random() < 0.7,
        deletes=random.choice((0.0, 0.2, 0.6)),
        alters=random.random() < 0.4,
    )


def _settings(random: Random, settings: dict[str, str], *, synced: bool) -> dict[str, str]:
    expiration_ms = random.choice((800, 3000, 86_400_000))
    settings = settings | {
        "transaction.two.phase.commit.enable": "true",
        "transactional.id.expiration.ms": str(expiration_ms),
        "transaction.max.timeout.ms": str(min(60_000, expiration_ms - 1)),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "group.min.session.timeout.ms": "100",
        "group.initial.rebalance.delay.ms": str(random.choice((0, 300))),
        "log.cleaner.enable": "true",
        "log.cleaner.backoff.ms": str(random.choice((200, 1000))),
        "log.initial.task.delay.ms": "100",
        "log.retention.check.interval.ms": str(random.choice((100, 400))),
        "log.segment.delete.delay.ms": str(random.choice((0, 1000, 60_000))),
        "producer.id.expiration.ms": str(INT_MAX),
    }
    settings.pop("log.flush.interval.messages", None)
    if synced:
        settings["log.flush.interval.messages"] = "1"
    return settings


def _plain(
    seed: int, random: Random, faults: list[str], settings: dict[str, str], duration_s: float, *, synced: bool
) -> Plan:
    plan = make_plan(seed)
    topics = tuple(
        replace(
            topic,
            partitions=min(2, topic.partitions),
            durable=topic.durable or synced,
            # One that asks for fewer syncs than the broker would lose what all others keep.
            configs={key: value for key, value in topic.configs.items() if not (synced and key.startswith("flush"))},
        )
        for topic in plan.topics[:1]
    )
    return replace(
        plan,
        faults=tuple(faults),
        settings=settings,
        duration_s=duration_s,
        topics=topics,
        producers=plan.producers[: random.choice((1, 2))],
        consumers=plan.consumers[:1],
        side_topics=plan.side_topics and random.random() < 0.5,
    )


def _group(seed: int, random: Random, faults: list[str], settings: dict[str, str], duration_s: float) -> GroupPlan:
    plan = make_group_plan(seed)
    members = plan.members[: random.choice((2, 3))]
    return replace(
        plan,
        faults=tuple(faults),
        settings=settings,
        duration_s=duration_s,
        topics={"a": random.randint(1, 3), "b": 1},
        members=members,
        late=min(plan.late, len(members) - 1),
    )


TOPIC_CHANGES = (
    {"index.interval.bytes": "100"},
    {"internal.segment.bytes": "800"},
    {"segment.ms": "500"},
    {"message.timestamp.after.max.ms": str(LONG_MAX)},
    {"compression.type": "zstd"},
    {"compression.type": "producer"},
)
"""What may change under the feet of clients, without them seeing anything of it."""
