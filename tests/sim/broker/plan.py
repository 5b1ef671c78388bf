"""What one seed decides before its run: topics, clients, settings, and which faults there are.

Each seed takes only some of the kinds of faults: a run with all of them at once spends its time on the loudest.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from twofold.runtime.sim.disk import CutMode

COMPRESSIONS = ("none", "none", "gzip", "snappy", "lz4", "zstd")
BROKER_FAULTS = ("kill", "power", "restart", "sync", "full")
OTHER_FAULTS = ("reset", "partition", "loss", "duplicate", "delay", "slow disk", "clock", "client kill")
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class TopicPlan:
    name: str
    partitions: int
    configs: dict[str, str]
    durable: bool
    """Synced before it is acknowledged: then a power cut loses nothing either."""


@dataclass(frozen=True)
class ProducerPlan:
    node: str
    idempotent: bool
    patient: bool
    """Never gives a record up."""
    pause_s: float
    burst: int
    value_bytes: int
    options: dict[str, Any]


@dataclass(frozen=True)
class ConsumerPlan:
    node: str
    poll_ms: int
    options: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    seed: int
    duration_s: float
    faults: tuple[str, ...]
    cut_mode: CutMode
    settings: dict[str, str]
    topics: tuple[TopicPlan, ...]
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    side_topics: bool
    """Other topics come, change and go, and somebody writes to them."""
    side_producer: ProducerPlan
    random: Random = field(repr=False)

    @property
    def has_power_cuts(self) -> bool:
        return "power" in self.faults

    @property
    def has_disk_errors(self) -> bool:
        return "sync" in self.faults or "full" in self.faults


def make_plan(seed: int) -> Plan:
    random = Random(f"{seed}/plan")
    faults = [fault for fault in BROKER_FAULTS if random.random() < 0.35]
    if not {"kill", "power"} & set(faults) and random.random() < 0.8:
        faults.append(random.choice(("kill", "kill", "power")))
    faults += [fault for fault in OTHER_FAULTS if random.random() < 0.35]
    topics = tuple(_topic(random, n) for n in range(random.randint(1, 3)))
    return Plan(
        seed=seed,
        duration_s=random.uniform(2, 7),
        faults=tuple(faults),
        cut_mode=random.choice((CutMode.ORDERED, CutMode.REORDERED)),
        settings=_settings(random),
        topics=topics,
        producers=tuple(_producer(random, n) for n in range(random.randint(1, 3))),
        consumers=tuple(_consumer(random, n) for n in range(random.randint(1, 2))),
        side_topics=random.random() < 0.5,
        side_producer=_side_producer(random),
        random=random,
    )


def _settings(random: Random) -> dict[str, str]:
    return {
        "node.id": "1",
        "listeners": "PLAINTEXT://broker:9092",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "-1",
        "producer.id.expiration.ms": str(INT_MAX),
        "log.initial.task.delay.ms": str(random.randint(100, 3000)),
        "log.retention.check.interval.ms": str(random.randint(500, 5000)),
        "log.segment.delete.delay.ms": str(random.choice((0, 1000, 60_000))),
        "log.flush.offset.checkpoint.interval.ms": str(random.randint(200, 5000)),
        "log.flush.start.offset.checkpoint.interval.ms": str(random.randint(200, 5000)),
        "replica.high.watermark.checkpoint.interval.ms": str(random.randint(200, 5000)),
        "connections.max.idle.ms": str(random.choice((1500, 20_000, 600_000))),
        "queued.max.requests": str(random.choice((1, 5, 500))),
    }


def topic_configs(random: Random) -> dict[str, str]:
    """Configurations that change how things are stored, and nothing that a client can tell."""
    return {
        "internal.segment.bytes": str(random.choice((600, 3000, 20_000, 1 << 20))),
        "segment.ms": str(random.choice((700, 5000, 604_800_000))),
        "index.interval.bytes": str(random.choice((0, 200, 4096))),
        "compression.type": random.choice(("producer", "producer", "producer", "uncompressed", "lz4", "zstd")),
        "message.timestamp.type": random.choice(("CreateTime", "CreateTime", "LogAppendTime")),
    }


def _topic(random: Random, number: int) -> TopicPlan:
    durable = random.random() < 0.4
    configs = topic_configs(random) | {"message.timestamp.after.max.ms": str(LONG_MAX)}
    if durable:
        configs["flush.messages"] = "1"
    elif random.random() < 0.4:
        configs |= random.choice(({"flush.messages": str(random.randint(2, 20))}, {"flush.ms": "300"}))
    return TopicPlan(f"topic{number}", random.randint(1, 4), configs, durable)


def _client(random: Random) -> dict[str, Any]:
    return {
        "bootstrap_servers": "broker:9092",
        "request_timeout_ms": random.choice((700, 1500, 4000)),
        "default_api_timeout_ms": 10_000,
        "retry_backoff_ms": random.choice((20, 100)),
        "reconnect_backoff_ms": random.choice((20, 100)),
        "socket_connection_setup_timeout_ms": random.choice((500, 3000)),
        "metadata_max_age_ms": random.choice((500, 5000, 300_000)),
    }


def _producer(random: Random, number: int) -> ProducerPlan:
    idempotent = number == 0 or random.random() < 0.75
    patient = random.random() < 0.7
    options = _client(random) | {
        "enable_idempotence": idempotent,
        "acks": "all",
        "max_in_flight_requests_per_connection": random.choice((1, 2, 5, 5)) if idempotent else 1,
        "linger_ms": random.choice((0, 5, 50)),
        "batch_size": random.choice((200, 1000, 16_384)),
        "compression_type": random.choice(COMPRESSIONS),
        "max_block_ms": 600_000,
    }
    patience_ms = 600_000 if patient else random.randint(1, 1500)
    options["delivery_timeout_ms"] = options["request_timeout_ms"] + options["linger_ms"] + patience_ms
    return ProducerPlan(
        node=f"producer{number}",
        idempotent=idempotent,
        patient=patient,
        pause_s=random.choice((0.05, 0.1, 0.3)),
        burst=random.choice((1, 3, 8)),
        value_bytes=random.choice((20, 100, 400)),
        options=options,
    )


def _side_producer(random: Random) -> ProducerPlan:
    plan = _producer(random, 0)
    options = plan.options | {"max_block_ms": 300, "delivery_timeout_ms": 5000}
    return replace(plan, node="side", patient=False, pause_s=0.3, options=options)


def _consumer(random: Random, number: int) -> ConsumerPlan:
    options = _client(random) | {
        "auto_offset_reset": random.choice(("earliest", "earliest", "latest")),
        "isolation_level": random.choice(("read_committed", "read_uncommitted")),
        "fetch_min_bytes": random.choice((1, 1, 3000)),
        "fetch_max_wait_ms": random.choice((100, 300, 500)),
        "fetch_max_bytes": random.choice((500, 20_000, 52_428_800)),
        "max_partition_fetch_bytes": random.choice((200, 5000, 1_048_576)),
        "max_poll_records": random.choice((1, 50, 500)),
        "allow_auto_create_topics": False,
    }
    return ConsumerPlan(f"consumer{number}", random.choice((50, 300, 1000)), options)
