"""What a handler may know beside the state and its request."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID

from twofold.config.settings import Settings
from twofold.controller.image import MetadataImage
from twofold.controller.records import MetadataRecord
from twofold.machine.runtime import Result
from twofold.wire.errors import KafkaError

T = TypeVar("T")
Answer: TypeAlias = Result[MetadataRecord, T]

_RESERVED_IDS = 100  # ids below are names for something: no id, the metadata topic, lost or unknown directories


class Chance(Protocol):
    """The part of `random.Random` that decisions here need; the caller brings the source."""

    def getrandbits(self, k: int, /) -> int: ...

    def randrange(self, stop: int, /) -> int: ...

    def shuffle(self, x: list[Any], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Context:
    """The world of a handler; `random` is the only part that is not a value."""

    node_id: int
    cluster_id: str
    settings: Settings
    random: Chance
    next_offset: int  # the offset of the first record that the handler writes

    def settings_at(self, image: MetadataImage) -> Settings:
        """The settings under what was changed while running."""
        broker, cluster = image.broker_configs(self.node_id), image.broker_configs()
        return self.settings.with_dynamic(broker=broker, cluster=cluster) if broker or cluster else self.settings


def new_id(random: Chance) -> UUID:
    """A random id whose text does not begin with a dash, which tools would take for an option."""
    while True:
        found = UUID(int=random.getrandbits(128), version=4)
        # The first character of the base64 form is made of the six highest bits; 62 is the dash.
        if found.int >> 122 != 62 and found.int >= _RESERVED_IDS:
            return found


def error_row(error: KafkaError) -> tuple[int, str | None]:
    """Code and message as responses carry them."""
    return error.code, error.message or None
