"""What a seed decides before a run of a group whose members speak the new protocol, the classic one, or one after the
other."""

from dataclasses import dataclass
from random import Random

from sim.groups.member import MemberPlan
from sim.groups.world import SLACK_S, GroupPlan
from twofold.runtime.sim.disk import CutMode

CLASSIC, MODERN = "classic", "modern"
FAULTS = ("reset", "partition", "loss", "duplicate", "delay", "slow disk", "clock", "pause", "client kill")
PATTERN_S = 11.0  # patterns are resolved again not sooner than ten seconds after the last time


@dataclass(frozen=True)
class SeatPlan(MemberPlan):
    """A client with the protocol that it speaks first."""

    protocol: str
    switches: bool
    """Whether it speaks the other protocol when it is started again, as in a rolling upgrade or its way back."""
    heartbeat_version: int
    pattern: str
    """Subscribes by this in place of names."""
    assignor: str | None


@dataclass(frozen=True)
class ConsumerGroupPlan(GroupPlan):
    is_durable: bool = False
    """Whether `__consumer_offsets` is synced before an answer. Only then a power cut may take nothing."""

    @property
    def patience_s(self) -> float:
        """A static member waits for the session of its former self, and a member that was forgotten is found out."""
        sessions = max(member.session_timeout_ms for member in self.members)
        rebalances = max(member.rebalance_timeout_ms for member in self.members)
        patterns = any(isinstance(member, SeatPlan) and member.pattern for member in self.members)
        return 3 * sessions / 1000 + 2 * rebalances / 1000 + SLACK_S + (PATTERN_S if patterns else 0)


def make_consumer_group_plan(seed: int) -> ConsumerGroupPlan:
    random = Random(f"{seed}/consumer group plan")
    is_durable = random.random() < 0.4
    faults = ["kill"] * (random.random() < 0.7) + ["restart"] * (random.random() < 0.3)
    faults += ["power"] * (is_durable and random.random() < 0.7)
    faults += [fault for fault in FAULTS if random.random() < 0.4]
    classic_share = random.choice((0.0, 0.0, 0.3, 0.6))
    faults += ["migrate"] * (classic_share > 0 and random.random() < 0.6)
    count = random.randint(2, 6)
    session_ms, rebalance_ms = random.choice((1500, 3000)), random.choice((1000, 3000))
    topics = {"a": random.randint(1, 5), "b": random.randint(1, 4)}
    return ConsumerGroupPlan(
        seed=seed,
        duration_s=random.uniform(5, 12),
        faults=tuple(faults),
        settings=_settings(random, session_ms),
        offsets_configs={
            "internal.segment.bytes": str(random.choice((1500, 20_000, 1 << 20))),
            "min.cleanable.dirty.ratio": random.choice(("0.01", "0.5")),
        }
        | ({"flush.messages": "1"} if is_durable else {}),
        topics=topics,
        members=tuple(_seat(random, n, session_ms, rebalance_ms, classic_share) for n in range(count)),
        late=random.randint(0, count - 1),
        cut_mode=random.choice((CutMode.ORDERED, CutMode.REORDERED)),
        has_power_cuts="power" in faults,
        is_durable=is_durable,
    )


def _settings(random: Random, session_ms: int) -> dict[str, str]:
    return {
        "node.id": "1",
        "listeners": "PLAINTEXT://broker:9092",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": str(random.choice((1, 3))),
        "offsets.retention.check.interval.ms": str(random.choice((1000, 600_000))),
        "offsets.load.buffer.size": str(random.choice((500, 5_242_880))),
        "group.min.session.timeout.ms": "100",
        "group.initial.rebalance.delay.ms": str(random.choice((0, 300))),
        "group.consumer.min.session.timeout.ms": "100",
        "group.consumer.session.timeout.ms": str(session_ms),
        "group.consumer.min.heartbeat.interval.ms": "50",
        "group.consumer.heartbeat.interval.ms": str(random.choice((100, session_ms // 4))),
        "group.consumer.assignment.interval.ms": str(random.choice((0, 0, 300, 1000))),
        "group.consumer.migration.policy": random.choice(("bidirectional", "bidirectional", "upgrade")),
        "log.cleaner.backoff.ms": str(random.choice((300, 2000))),
        "log.cleaner.dedupe.buffer.size": "1048576",
        "connections.max.idle.ms": str(random.choice((1500, 600_000))),
    }


def _seat(random: Random, number: int, session_ms: int, rebalance_ms: int, classic_share: float) -> SeatPlan:
    return SeatPlan(
        node=f"member{number}",
        instance_id=f"static{number}" if random.random() < 0.35 else None,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        request_timeout_ms=random.choice((500, 1500)),
        join_version=random.choice((9, 9, 9, 7, 5)),
        commit_pause_s=random.choice((0.1, 0.3)),
        rejoins_when_cut_off=random.random() < 0.2,
        protocol=CLASSIC if random.random() < classic_share else MODERN,
        switches=classic_share > 0 and random.random() < 0.6,
        heartbeat_version=random.choice((1, 1, 1, 0)),
        pattern=random.choice(("", "", "", "", "[ab]", "a|b")),
        assignor=random.choice((None, None, "uniform", "range")),
    )
