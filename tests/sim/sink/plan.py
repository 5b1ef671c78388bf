"""What one seed decides before a run of the exactly-once sink."""

from dataclasses import dataclass
from random import Random

from twofold.runtime.sim.disk import CutMode
from twofold.sink.register import Mode

BROKER_FAULTS = ("kill", "power", "restart")
NETWORK_FAULTS = ("reset", "partition", "loss", "duplicate", "delay", "late")
OTHER_FAULTS = ("slow disk", "clock", "pause")
SPARK_FAULTS = ("process kill", "step kill", "driver kill", "second driver", "step crash", "step pause")
RESTORE = "restore"
"""Of the checkpoint, from an older copy. Chosen by itself, so that it changes nothing else of a seed."""
LONG_MAX = 2**63 - 1


@dataclass(frozen=True)
class SinkPlan:
    seed: int
    mode: Mode
    batches: int
    rows: int
    """Of a batch."""
    empty: float
    """How often a batch has none."""
    keys: int
    partitions: int
    tasks: int
    """At most so many in a batch; how many, and who writes which keys, is decided anew whenever it is written."""
    hosts: int
    cores: int
    """Tasks that run at a time."""
    faults: tuple[str, ...]
    cut_mode: CutMode
    settings: dict[str, str]
    heartbeat_interval_ms: int
    timeout_ms: int
    request_timeout_ms: int
    task_fails: float
    """How often an attempt of a task raises."""
    speculation: float
    forgets: float
    """How often Spark dies, or is stopped, after a commit and before it has noted it."""
    new_process: float
    """How often a process is not used again."""
    pace_s: float
    """Between two sends of a task."""
    group: bool
    """Whether the offsets of the input are committed to a group, with the record that says that a batch is done."""
    late: float
    """How often a request to the coordinator is only answered with silence, and comes much later."""
    topic_configs: tuple[tuple[str, str], ...] = ()

    @property
    def has_power_cuts(self) -> bool:
        return "power" in self.faults or "step crash" in self.faults

    @property
    def has_disk_errors(self) -> bool:
        return False


def make_sink_plan(seed: int, mode: Mode = Mode.TWO_PHASE) -> SinkPlan:
    random = Random(f"{seed}/sink plan {mode}")
    faults = [fault for fault in BROKER_FAULTS if random.random() < 0.35]
    faults += [fault for fault in NETWORK_FAULTS if random.random() < 0.2]
    faults += [fault for fault in OTHER_FAULTS if random.random() < 0.2]
    faults += [fault for fault in SPARK_FAULTS if random.random() < 0.45]
    if Random(f"{seed}/restore {mode}").random() < 0.2:
        faults.append(RESTORE)
    power = "power" in faults or "step crash" in faults
    return SinkPlan(
        seed=seed,
        mode=mode,
        batches=random.randint(2, 5),
        rows=random.choice((6, 12, 24)),
        empty=random.choice((0.0, 0.2)),
        keys=random.choice((1, 4, 9)),
        partitions=random.choice((1, 2, 3)),
        tasks=random.choice((1, 2, 4)),
        hosts=random.choice((1, 2)),
        cores=random.choice((1, 2, 4)),
        faults=tuple(faults),
        cut_mode=random.choice((CutMode.ORDERED, CutMode.REORDERED)),
        settings=_settings(random, synced=power),
        heartbeat_interval_ms=0 if mode is Mode.RESUME else random.choice((0, 300, 300, 1000)),
        timeout_ms=random.choice((1500, 4000) if mode is Mode.RESUME else (4000, 60_000)),
        request_timeout_ms=random.choice((400, 1000)),
        task_fails=random.choice((0.0, 0.05, 0.2)),
        speculation=random.choice((0.0, 0.0, 0.2, 0.5)),
        forgets=random.choice((0.0, 0.2, 0.5)),
        new_process=random.choice((0.0, 0.3, 1.0)),
        pace_s=random.choice((0.001, 0.02, 0.1)),
        group=random.random() < 0.5,
        late=random.choice((0.01, 0.05)) if "late" in faults else 0.0,
    )


def _settings(random: Random, *, synced: bool) -> dict[str, str]:
    settings = {
        "node.id": "1",
        "listeners": "PLAINTEXT://broker:9092",
        "auto.create.topics.enable": "false",
        "transaction.two.phase.commit.enable": "true",
        "transaction.heartbeat.enable": "true",
        "log.retention.ms": "-1",
        "transaction.state.log.num.partitions": "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "offsets.topic.num.partitions": "1",
        "log.cleaner.enable": "false",
        "log.message.timestamp.after.max.ms": str(LONG_MAX),
    }
    if synced:
        # What is not vowed yet is as safe as the settings make it, and no safer.
        settings["log.flush.interval.messages"] = "1"
    return settings
