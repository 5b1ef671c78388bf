"""What a run of the cluster world does, drawn from its seed."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from sim.broker.plan import ProducerPlan
from twofold.runtime.sim.disk import CutMode

BROKERS = (1, 2, 3)
BOOTSTRAP = ",".join(f"b{number}:9092" for number in BROKERS)
BROKER_FAULTS = ("kill", "power", "pause", "stop", "lost disk")
OTHER_FAULTS = (
    "between brokers",
    "from the controller",
    "one way",
    "controller",
    "reset",
    "delay",
    "moves",
    "elections",
)


@dataclass(frozen=True)
class ClusterTopic:
    name: str
    partitions: int
    configs: dict[str, str]


@dataclass(frozen=True)
class ClusterPlan:
    seed: int
    duration_s: float
    faults: tuple[str, ...]
    cut_mode: CutMode
    eligible_leaders: bool
    """Eligible leader replicas (KIP-966). Without them a power cut may lose what was acknowledged, as in Kafka."""
    settings: dict[str, str]
    controller_settings: dict[str, str]
    topics: tuple[ClusterTopic, ...]
    producers: tuple[ProducerPlan, ...]
    readers: int
    random: Random = field(repr=False)

    @property
    def has_disk_errors(self) -> bool:
        return False


def make_cluster_plan(seed: int) -> ClusterPlan:
    random = Random(f"{seed}/cluster plan")
    eligible = random.random() < 0.7
    mild = [fault for fault in BROKER_FAULTS if eligible or fault not in ("power", "lost disk")]
    faults = [fault for fault in mild if random.random() < 0.4] or [random.choice(mild)]
    faults += [fault for fault in OTHER_FAULTS if random.random() < 0.3]
    return ClusterPlan(
        seed=seed,
        duration_s=random.uniform(5, 20),
        faults=tuple(faults),
        cut_mode=random.choice((CutMode.ORDERED, CutMode.REORDERED)),
        eligible_leaders=eligible,
        settings=_settings(random),
        controller_settings={"broker.session.timeout.ms": "3000", "min.insync.replicas": "2"},
        topics=tuple(_topic(random, number) for number in range(random.randint(1, 2))),
        producers=tuple(_producer(random, number) for number in range(random.randint(1, 2))),
        readers=random.randint(0, 1),
        random=random,
    )


def _settings(random: Random) -> dict[str, str]:
    return {
        "process.roles": "broker",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "-1",
        "min.insync.replicas": "2",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
        "replica.lag.time.max.ms": str(random.choice((1000, 2000, 5000))),
        "replica.fetch.wait.max.ms": str(random.choice((100, 500))),
        "replica.fetch.backoff.ms": str(random.choice((50, 500))),
        "replica.socket.timeout.ms": "3000",
        "replica.fetch.response.max.bytes": str(random.choice((1000, 10_485_760))),
        "replica.high.watermark.checkpoint.interval.ms": str(random.randint(200, 5000)),
        "log.flush.offset.checkpoint.interval.ms": str(random.randint(200, 5000)),
        "num.replica.fetchers": str(random.choice((1, 1, 2))),
        "controller.quorum.request.timeout.ms": "1000",
        "controller.quorum.fetch.timeout.ms": "2000",
        "request.timeout.ms": "3000",
    }


def _topic(random: Random, number: int) -> ClusterTopic:
    configs = {
        "min.insync.replicas": str(random.choice((1, 2, 2, 2))),
        "internal.segment.bytes": str(random.choice((3000, 1 << 20))),
    }
    if random.random() < 0.2:
        configs["unclean.leader.election.enable"] = "true"
    return ClusterTopic(f"topic{number}", random.randint(1, 2), configs)


def _producer(random: Random, number: int) -> ProducerPlan:
    options: dict[str, Any] = {
        "bootstrap_servers": BOOTSTRAP,
        "request_timeout_ms": random.choice((1500, 4000)),
        "default_api_timeout_ms": 10_000,
        "retry_backoff_ms": random.choice((20, 100)),
        "reconnect_backoff_ms": random.choice((20, 100)),
        "socket_connection_setup_timeout_ms": 1000,
        "metadata_max_age_ms": random.choice((500, 5000)),
        "enable_idempotence": True,
        "acks": "all",
        "max_in_flight_requests_per_connection": random.choice((1, 5, 5)),
        "linger_ms": random.choice((0, 5)),
        "batch_size": random.choice((200, 1000)),
        "max_block_ms": 600_000,
        "delivery_timeout_ms": 600_000,
    }
    return ProducerPlan(
        node=f"producer{number}",
        idempotent=True,
        patient=True,
        pause_s=random.choice((0.05, 0.2)),
        burst=random.choice((1, 3, 8)),
        value_bytes=random.choice((20, 100)),
        options=options,
    )
