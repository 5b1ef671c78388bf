"""Consumer groups with a log in memory, topics and a clock in hand."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from twofold.coordinator.group.consumer.checks import check_request
from twofold.coordinator.group.consumer.groups import ConsumerGroups, GroupDecision
from twofold.coordinator.group.consumer.state import ConsumerGroup
from twofold.coordinator.group.consumer.surroundings import ConsumerGroupConfig, SubscribableTopic, Timings
from twofold.coordinator.group.context import Client, Instant
from twofold.coordinator.group.records import LogRecord, decode, encode_key, encode_value
from twofold.coordinator.group.state import GroupMachine
from twofold.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

WALL = 1_700_000_000_000
SESSION, REBALANCE = 45_000, 60_000


class Topics:
    """The topics of a cluster, and what groups have set."""

    def __init__(self, **partitions: int) -> None:
        self.known: dict[str, SubscribableTopic] = {}
        self.own: dict[str, Timings] = {}
        self.timings_of_all = Timings(SESSION, 5_000, 0)
        self.topics_version = 0
        self.newest_topic_version = 0
        for name, count in partitions.items():
            self.create(name, count)

    def create(self, name: str, partitions: int) -> None:
        self.topics_version += 1
        self.newest_topic_version = self.topics_version
        self.known[name] = SubscribableTopic(UUID(int=self.topics_version), partitions)

    def grow(self, name: str, partitions: int) -> None:
        self.topics_version += 1
        self.known[name] = SubscribableTopic(self.known[name].topic_id, partitions)

    def delete(self, name: str) -> None:
        self.topics_version += 1
        del self.known[name]

    def topic(self, name: str) -> SubscribableTopic | None:
        return self.known.get(name)

    def racks(self, name: str) -> Sequence[Sequence[str]]:
        return ()

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((name for name, topic in self.known.items() if topic.topic_id == topic_id), None)

    def timings(self, group_id: str) -> Timings:
        return self.own.get(group_id, self.timings_of_all)


class ConsumerWorld:
    """Every record is written as bytes and read again before it is applied."""

    def __init__(self, topics: Topics, log: list[LogRecord] | None = None, **config: Any) -> None:
        self.topics = topics
        self.config = ConsumerGroupConfig(**config)
        self.machine = GroupMachine()
        self.log: list[LogRecord] = [] if log is None else log
        self.batches: list[int] = []  # where each batch ends
        self.state = self.machine.apply_all(self.machine.initial(), enumerate(self.log))
        self.groups = ConsumerGroups(self.config, topics, lambda: f"made-{len(self.log)}")
        self.monotonic_ms, self.wall_ms = 0, WALL
        self.groups.load(self.state, self.now)

    @property
    def now(self) -> Instant:
        return Instant(self.wall_ms, self.monotonic_ms)

    @property
    def group(self) -> ConsumerGroup:
        return self.state.consumers["g"]

    def restart(self, log: list[LogRecord] | None = None) -> "ConsumerWorld":
        """A new coordinator on the same log, or on the beginning of it."""
        settings = {name: getattr(self.config, name) for name in ConsumerGroupConfig.__slots__}
        world = ConsumerWorld(self.topics, self.log if log is None else log, **settings)
        world.wall_ms = self.wall_ms
        return world

    def write(self, decision: GroupDecision[Any]) -> Any:
        for record in decision.records:
            read = decode(encode_key(record), encode_value(record))  # type: ignore[arg-type]
            if read is not None:  # a removal of what is never written
                assert read == record, f"{record} reads as {read}"
                self.state = self.machine.apply_all(self.state, [(len(self.log), read)])
                self.log.append(read)
        if decision.records:
            self.batches.append(len(self.log))
        self.groups.accept(self.state, decision, self.now)
        return decision.answer

    def advance(self, ms: int) -> None:
        self.monotonic_ms += ms
        self.wall_ms += ms
        while (decision := self.groups.tick(self.state, self.now)) is not None:
            self.write(decision)

    def beat(
        self,
        member: str,
        epoch: int,
        *,
        owned: Mapping[str, Sequence[int]] | None = None,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        instance: str | None = None,
        rebalance: int = -1,
        assignor: str | None = None,
        version: int = 1,
    ) -> ConsumerGroupHeartbeatResponse:
        rows = None
        if owned is not None:
            rows = [
                TopicPartitions(topic_id=self.topics.known[name].topic_id, partitions=p) for name, p in owned.items()
            ]
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=epoch,
            instance_id=instance,
            rebalance_timeout_ms=rebalance,
            subscribed_topic_names=topics,
            subscribed_topic_regex=pattern,
            server_assignor=assignor,
            topic_partitions=rows,
        )
        client = Client(version, "client", "/10.0.0.1")
        check_request(request, version, self.config)
        decision = self.groups.heartbeat(self.state, None, request, client, self.now)
        answer: ConsumerGroupHeartbeatResponse = self.write(decision)
        return answer

    def join(self, member: str, *topics: str, **more: Any) -> ConsumerGroupHeartbeatResponse:
        return self.beat(member, 0, owned={}, topics=topics or ("t",), rebalance=REBALANCE, **more)

    def resolve(self, **found: Sequence[str]) -> None:
        """The outcome of a resolution, by pattern."""
        topics = {pattern: frozenset(names) for pattern, names in found.items()}
        decision = self.groups.resolved(self.state, "g", topics, self.topics.topics_version, self.now)
        self.groups.resolution_ended("g")
        if decision is not None:
            self.write(decision)


def assigned(answer: ConsumerGroupHeartbeatResponse) -> dict[UUID, list[int]] | None:
    if answer.assignment is None:
        return None
    return {row.topic_id: list(row.partitions) for row in answer.assignment.topic_partitions if row.topic_id}
