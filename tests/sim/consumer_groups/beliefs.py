"""What members take for their own."""

from dataclasses import dataclass

from twofold.types import TopicPartition


@dataclass(frozen=True)
class Belief:
    """What a member takes for its own at this moment."""

    name: str
    member_id: str
    is_classic: bool
    epoch: int
    owned: frozenset[TopicPartition]
