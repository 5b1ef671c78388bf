"""What the machine of consumer groups is given: settings, the topics of the cluster, and what each group has set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from twofold.config.settings import Settings

UPGRADES = frozenset({"upgrade", "bidirectional"})
DOWNGRADES = frozenset({"downgrade", "bidirectional"})


class Timings(NamedTuple):
    """What a group may set for itself; else the broker's settings hold."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    max_size: int = 2**31 - 1
    classic_max_size: int = 2**31 - 1
    min_session_timeout_ms: int = 6_000  # of classic members
    max_session_timeout_ms: int = 1_800_000
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: str = "bidirectional"
    pattern_refresh_interval_ms: int = 600_000

    @classmethod
    def from_settings(cls, settings: Settings) -> "ConsumerGroupConfig":
        return cls(
            max_size=settings.int("group.consumer.max.size"),
            classic_max_size=settings.int("group.max.size"),
            min_session_timeout_ms=settings.int("group.min.session.timeout.ms"),
            max_session_timeout_ms=settings.int("group.max.session.timeout.ms"),
            assignors=tuple(settings.list("group.consumer.assignors")),
            migration_policy=settings.string("group.consumer.migration.policy").lower(),
            pattern_refresh_interval_ms=settings.int("group.consumer.regex.refresh.interval.ms"),
        )

    @property
    def may_upgrade(self) -> bool:
        return self.migration_policy in UPGRADES

    @property
    def may_downgrade(self) -> bool:
        return self.migration_policy in DOWNGRADES


class SubscribableTopic(NamedTuple):
    topic_id: UUID
    partitions: int


class GroupSurroundings(Protocol):
    """The topics that exist now, and what groups have set for themselves."""

    @property
    def topics_version(self) -> int:
        """Another one after every change of the topics (a new one, one less, one with more partitions) and of racks."""
        ...

    @property
    def newest_topic_version(self) -> int:
        """The version that the newest topic came with."""
        ...

    def topic(self, name: str) -> SubscribableTopic | None: ...

    def racks(self, name: str) -> Sequence[Sequence[str]]:
        """The racks of the replicas of each partition of a topic; nothing at all where no broker has a rack."""
        ...

    def topic_name(self, topic_id: UUID) -> str | None: ...

    def timings(self, group_id: str) -> Timings: ...
