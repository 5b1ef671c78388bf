"""What one seed decides before a run of controllers: who asks, how the log is shared, and what goes wrong."""

from dataclasses import dataclass
from random import Random

from twofold.runtime.sim.disk import CutMode

QUORUM, FILES = "quorum", "files"
QUORUM_FAULTS = ("move", "move at append", "late", "crash", "slow", "snapshot", "refuse")
FILES_FAULTS = ("kill", "power", "kill at append", "restart", "sync", "write", "slow")


@dataclass(frozen=True)
class AdminPlan:
    """Somebody who creates, grows, changes and deletes topics."""

    node: str
    pause_s: float
    timeout_s: float
    tries: int
    largest: int
    """So many partitions at a time."""
    cancels: bool
    """What takes too long is given up by the node that serves it as well."""


@dataclass(frozen=True)
class BrokerPlan:
    """One that registers, is unfenced, asks for producer ids, leaves or dies, and comes back."""

    broker_id: int
    pause_s: float
    timeout_s: float
    leaves: float
    """How often."""


@dataclass(frozen=True)
class MetadataPlan:
    seed: int
    duration_s: float
    variant: str
    controllers: int
    records: int
    """Of one batch; more of them are a transaction."""
    faults: tuple[str, ...]
    cut_mode: CutMode
    admins: tuple[AdminPlan, ...]
    brokers: tuple[BrokerPlan, ...]
    settings: dict[str, str]

    @property
    def has_disk_errors(self) -> bool:
        return "sync" in self.faults or "write" in self.faults


def make_metadata_plan(seed: int) -> MetadataPlan:
    random = Random(f"{seed}/metadata plan")
    variant = random.choice((QUORUM, QUORUM, FILES))
    known = QUORUM_FAULTS if variant == QUORUM else FILES_FAULTS
    return MetadataPlan(
        seed=seed,
        duration_s=random.uniform(0.2, 0.6),
        variant=variant,
        controllers=random.choice((2, 2, 3)),
        records=random.choice((1, 1, 2, 3)),
        faults=tuple(fault for fault in known if random.random() < 0.45),
        cut_mode=random.choice((CutMode.ORDERED, CutMode.REORDERED)),
        admins=tuple(
            AdminPlan(
                node=f"admin{number}",
                pause_s=random.choice((0.001, 0.01)),
                timeout_s=random.choice((0.02, 0.1, 0.5)),
                tries=random.choice((2, 8)),
                largest=random.choice((2, 6)),
                cancels=random.random() < 0.5,
            )
            for number in range(random.choice((1, 2, 2)))
        ),
        brokers=tuple(
            BrokerPlan(
                broker_id=number + 1,
                pause_s=random.choice((0.005, 0.02)),
                timeout_s=random.choice((0.05, 0.3)),
                leaves=random.choice((0.0, 0.05, 0.2)),
            )
            for number in range(random.choice((1, 1, 2)))
        ),
        settings=_small_files(random) if variant == FILES else {},
    )


def _small_files(random: Random) -> dict[str, str]:
    """Snapshots and segments that come and go within a run, or do not."""
    if random.random() < 0.4:
        return {}
    return {
        "metadata.log.max.record.bytes.between.snapshots": str(random.choice((1000, 4000))),
        "internal.metadata.log.segment.bytes": str(random.choice((2000, 8000))),
        "metadata.max.retention.bytes": str(random.choice((1, 10_000))),
    }
