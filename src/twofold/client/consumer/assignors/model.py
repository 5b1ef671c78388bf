"""What an assignor takes and gives.

An assignor is pure: the leader of a group hands it the members with their subscriptions and the number of partitions of
each topic, and gets the partitions of each member. Every member of a group may become its leader, whatever client it
is, so an assignor gives what the assignor of the same name in Apache Kafka gives.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from twofold.types import TopicPartition

NO_GENERATION = -1

Assignments = dict[str, tuple[TopicPartition, ...]]


class RebalanceProtocol(IntEnum):
    """EAGER: a member gives up everything before it joins. COOPERATIVE: only what it is told to give up (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


class SubscribedMember(NamedTuple):
    """A member as it joined. `owned` is what it had in `generation`, which is -1 where its client does not tell."""

    id: str
    instance_id: str | None = None
    topics: tuple[str, ...] = ()
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    user_data: bytes = b""


class Assignor(Protocol):
    @property
    def name(self) -> str:
        """By which the members of a group agree on it."""

    @property
    def protocols(self) -> tuple[RebalanceProtocol, ...]:
        """Those it can work with, best first."""

    def assign(self, members: Sequence[SubscribedMember], partitions: Mapping[str, int]) -> Assignments:
        """An entry for every member, in the order of topics and partitions. `partitions` has how many each topic has;
        a topic that is missing there gets no owner."""

    def user_data(self, generation: int) -> bytes:
        """What a member adds to its subscription, with the generation in which it got what it owns."""


def in_javas_order(text: str) -> bytes:
    """Java compares UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def in_order(members: Sequence[SubscribedMember]) -> list[SubscribedMember]:
    """Static members first, by their instance ids, so that a restart moves nothing; then the others by member id."""
    return sorted(members, key=_static_first)


def _static_first(member: SubscribedMember) -> tuple[bool, bytes]:
    dynamic = member.instance_id is None
    return dynamic, in_javas_order(member.id if member.instance_id is None else member.instance_id)


def partitions_of(topic: str, partitions: Mapping[str, int]) -> Iterator[TopicPartition]:
    return (TopicPartition(topic, index) for index in range(partitions.get(topic, 0)))


def sorted_assignments(found: Mapping[str, Sequence[TopicPartition]]) -> Assignments:
    return {member: tuple(sorted(owned)) for member, owned in found.items()}
