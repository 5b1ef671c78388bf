"""Groups as the administrator's client shows them, and the form in which consumers keep assignments inside a group."""

import struct
from typing import NamedTuple

from twofold.client.cluster.metadata import Node
from twofold.types import TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupListing(NamedTuple):
    """State and type are empty where the broker is too old to tell (before versions 4 and 5 of ListGroups)."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


class MemberDescription(NamedTuple):
    """`assignment` is None where it is not a consumer's (Connect and others keep theirs in a form of their own);
    `target_assignment` is what a member of the consumer protocol (KIP-848) is moving to, None for others."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...] | None
    target_assignment: tuple[TopicPartition, ...] | None = None
    epoch: int | None = None  # of a member of a consumer group
    type: str = "classic"  # the protocol that it speaks

    def __str__(self) -> str:
        """As short as it can be and still be found: the names that its owner gave it, and where it runs."""
        return f"{self.group_instance_id or self.client_id or self.member_id} at {self.client_host.removeprefix('/')}"


class GroupDescription(NamedTuple):
    """`protocol` is the assignor; a classic group tells it only while it is stable."""

    group_id: str
    state: str
    type: str
    protocol_type: str
    protocol: str
    coordinator: Node
    members: tuple[MemberDescription, ...]
    group_epoch: int | None = None  # of a consumer group (KIP-848)
    target_epoch: int | None = None


class OffsetAndMetadata(NamedTuple):
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class ConsumerGroupMetadata(NamedTuple):
    """The member that commits offsets for a group. With the generation and member id of a consumer, a member that has
    lost its partitions to another is refused (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def read_assignment(data: bytes) -> tuple[TopicPartition, ...] | None:
    """The partitions of a ConsumerProtocolAssignment of any version, none while there is no assignment yet; None for
    bytes of another form."""
    if not data:
        return ()
    partitions: list[TopicPartition] = []
    try:
        _, count = struct.unpack_from(">hi", data)
        position = 6
        for _ in range(count):
            (size,) = struct.unpack_from(">h", data, position)
            position += 2
            if size < 0:
                return None
            topic = data[position : position + size].decode()
            position += size
            (length,) = struct.unpack_from(">i", data, position)
            indexes = struct.unpack_from(f">{length}i", data, position + 4)
            position += 4 + 4 * length
            partitions += (TopicPartition(topic, index) for index in indexes)
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(partitions)
