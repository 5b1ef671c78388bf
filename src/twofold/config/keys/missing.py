"""Parts of Kafka that Twofold does not have, and settings that must not be believed because of that.

A setting without effect is accepted where nothing depends on it. Where its user relies on it (to keep clients out, to
join a cluster, to keep records safe), the broker does not start with it: an error is seen at once, an open broker is
not. What is refused has a `Refused`: the missing part, and the values that ask for nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from twofold.config.definition import Value


@dataclass(frozen=True, slots=True)
class MissingPart:
    """A part that Twofold does not have, what would be without it, and what to do."""

    what: str
    otherwise: str
    advice: str

    def __str__(self) -> str:
        return f"Twofold has no {self.what} yet, and {self.otherwise}; {self.advice}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A setting is refused until the missing part is there. `accepts` tells the values that ask for nothing."""

    missing: MissingPart
    unless: str
    accepts: Callable[[Value], bool]


_OPEN = "remove the setting if the broker may be open to all, or leave this node to Apache Kafka"
_ALONE = "remove the setting if one node is meant, or leave this node to Apache Kafka"

AUTHORIZER = MissingPart("authorizer", "every client could do everything", _OPEN)
SASL = MissingPart("SASL", "every client could connect without credentials", _OPEN)
TLS = MissingPart("TLS", "every client could connect, and the network could be read", _OPEN)
POLICIES = MissingPart("policies", "clients could do what the class forbids", _OPEN)
QUOTA_CALLBACKS = MissingPart(
    "classes that decide quotas", "only the quotas of the metadata would hold", "remove the setting, and set the quotas"
)
PER_ADDRESS = MissingPart(
    "limits of single addresses", "max.connections.per.ip would hold for these addresses too", "remove the setting"
)
CLUSTER = MissingPart("clusters of several nodes", "this node would start a cluster of its own", _ALONE)
ROLES = MissingPart("nodes with one role", "this node would be broker and controller of a cluster of its own", _ALONE)
REPLICAS = MissingPart(
    "replication", "each record would have one copy, on this node", "set it to 1, or remove it, if one copy is enough"
)
TIERED_STORAGE = MissingPart(
    "tiered storage", "no record would be copied to it", "remove the setting, or leave this node to Apache Kafka"
)
METADATA_DIRECTORY = MissingPart(
    "directory of its own for the metadata",
    "the metadata in it would not be found",
    "move __cluster_metadata-0 from it into log.dirs, and remove the setting",
)
PROVIDERS = MissingPart("config providers", "${...} would be taken as it is written", "write the values themselves")


def unless_default(missing: MissingPart, default: Value) -> Refused:
    return Refused(missing, "empty or the default", lambda value: value in (default, "", (), None))


def unless_empty(missing: MissingPart) -> Refused:
    return Refused(missing, "empty", lambda value: value in ("", (), None))


def unless_one(missing: MissingPart) -> Refused:
    return Refused(missing, "1", lambda value: isinstance(value, int) and value <= 1)


def unless_equal(missing: MissingPart, harmless: Value, text: str) -> Refused:
    return Refused(missing, text, lambda value: value == harmless)


def by_other_settings(missing: MissingPart, unless: str) -> Refused:
    """What is allowed depends on other settings: `twofold.config.servable` decides."""
    return Refused(missing, unless, lambda value: True)


BOTH_ROLES = Refused(ROLES, "both are named", lambda value: isinstance(value, tuple) and len(set(value)) == 2)
