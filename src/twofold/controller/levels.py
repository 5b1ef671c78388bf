"""metadata.version: the levels that Apache Kafka has given it, and what the metadata can hold since which of them.

1. A level that brings something changes the metadata: below it that something cannot be written. Going down past such a
   level loses it; going down past the others loses nothing. The table is Kafka's, and a test asks Kafka for it.
2. A field that a level does not have is left out where the metadata means the same without it, as where replicas are:
   brokers say that themselves. Everything else is refused.
"""

from typing import NamedTuple

METADATA_VERSION = "metadata.version"


class Level(NamedTuple):
    """One level, the name of the release that brought it, and what only it and those above can hold."""

    number: int
    name: str
    brings: str = ""

    def __str__(self) -> str:
        return f"{self.number} ({self.name})"


LEVELS = (
    Level(7, "3.3-IV3", "features"),
    Level(8, "3.4-IV0", "the state of a migration from ZooKeeper"),
    Level(9, "3.5-IV0"),
    Level(10, "3.5-IV1"),
    Level(11, "3.5-IV2", "SCRAM credentials"),
    Level(12, "3.6-IV0"),
    Level(13, "3.6-IV1", "metadata transactions"),
    Level(14, "3.6-IV2", "delegation tokens"),
    Level(15, "3.7-IV0", "registrations of controllers"),
    Level(16, "3.7-IV1"),
    Level(17, "3.7-IV2", "log directories of brokers and replicas"),
    Level(18, "3.7-IV3"),
    Level(19, "3.7-IV4"),
    Level(20, "3.8-IV0"),
    Level(21, "3.9-IV0"),
    Level(22, "4.0-IV0"),
    Level(23, "4.0-IV1", "eligible leader replicas"),
    Level(24, "4.0-IV2"),
    Level(25, "4.0-IV3"),
    Level(26, "4.1-IV0"),
    Level(27, "4.1-IV1"),
    Level(28, "4.2-IV0"),
    Level(29, "4.2-IV1"),
    Level(30, "4.3-IV0", "cordoned log directories"),
)
OLDEST, NEWEST = LEVELS[0].number, LEVELS[-1].number

ZOOKEEPER_MIGRATION = 8
SCRAM_CREDENTIALS = 11
TRANSACTIONS = 13
DELEGATION_TOKENS = 14
LOG_DIRECTORIES = 17
ELIGIBLE_LEADER_REPLICAS = 23
CORDONED_LOG_DIRECTORIES = 30

_BY_NUMBER = {level.number: level for level in LEVELS}


def describe(number: int) -> str:
    """A level as people know it, e.g. `13 (3.6-IV1)`."""
    return str(_BY_NUMBER.get(number, number))


def changes_between(lower: int, upper: int) -> list[Level]:
    """The levels above `lower`, up to `upper`, that changed the metadata."""
    return [level for level in LEVELS if lower < level.number <= upper and level.brings]
