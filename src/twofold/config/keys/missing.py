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

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

OTHER_AUTHORIZER = MissingPart(
    "authorizer of that class", "its rules would not be obeyed", f"use {STANDARD_AUTHORIZER}"
)
AUTHORIZER = MissingPart("authorizer", "every client could do everything", _OPEN)
_OTHER_LOGIN = "remove the setting, and use PLAIN, SCRAM or OAUTHBEARER, or leave this node to Apache Kafka"
SASL = MissingPart(
    "Java classes for SASL", "clients would be checked in another way than the one that is meant", _OTHER_LOGIN
)
KERBEROS = MissingPart("Kerberos (GSSAPI)", "no client could log in by it", _OTHER_LOGIN)
DELEGATION_TOKENS = MissingPart("delegation tokens", "no client could log in by them", _OTHER_LOGIN)
TLS = MissingPart(
    "Java classes and stores for TLS",
    "connections would be secured in another way than the one that is meant",
    "remove the setting, and give keys and certificates in PEM, or leave this node to Apache Kafka",
)
QUOTA_CALLBACKS = MissingPart(
    "classes that decide quotas", "only the quotas of the metadata would hold", "remove the setting, and set the quotas"
)
LISTENERS_STAY = MissingPart(
    "change of this setting while the broker runs",
    "its listeners would stay as they are",
    "set it in server.properties; certificates and keys are read anew when their files change",
)
POLICIES = MissingPart("policies", "clients could do what the class forbids", _OPEN)
CLUSTER = MissingPart("clusters of several nodes", "this node would start a cluster of its own", _ALONE)
ROLES = MissingPart("controllers that are no brokers", "this node would be both", _ALONE)
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


def unless_one_of(missing: MissingPart, *known: str) -> Refused:
    return Refused(missing, " or ".join(known), lambda value: value in ("", None, *known))


def unless_one(missing: MissingPart) -> Refused:
    return Refused(missing, "1", lambda value: isinstance(value, int) and value <= 1)


def unless_equal(missing: MissingPart, harmless: Value, text: str) -> Refused:
    return Refused(missing, text, lambda value: value == harmless)


def by_other_settings(missing: MissingPart, unless: str) -> Refused:
    """What is allowed depends on other settings: `twofold.config.servable` decides."""
    return Refused(missing, unless, lambda value: True)


BOTH_ROLES = Refused(ROLES, "both are named, or broker", lambda value: isinstance(value, tuple) and "broker" in value)
