"""Metadata records that mean nothing here and are kept for the software that understands them.

A data directory may come from Apache Kafka and go back to it. What its users stored there, and Twofold has no part for,
is in the image as the records themselves (`MetadataImage.kept`), under a key that says what a later record replaces.
Whether a directory that has them may be opened at all is decided in `openable.py`.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple
from uuid import UUID

from twofold.machine.schema import BYTES, INT8, INT32, INT64, STRING, UUID_, Kind, array


class AccessControlEntry(NamedTuple):
    """What a principal may do, or may not."""

    id: UUID
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class RemoveAccessControlEntry(NamedTuple):
    """An entry is gone."""

    id: UUID


class UserScramCredential(NamedTuple):
    """What a user's password is checked against."""

    name: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class RemoveUserScramCredential(NamedTuple):
    """A credential is gone."""

    name: str
    mechanism: int


class DelegationToken(NamedTuple):
    """A token that stands for its owner until it expires."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int
    token_id: str


class RemoveDelegationToken(NamedTuple):
    """A token is gone."""

    token_id: str


KeptKey = tuple[str, Hashable]

# key on the wire, class, fields
KEPT: tuple[tuple[int, type[Any], dict[str, Kind]], ...] = (
    (
        10, DelegationToken,
        {
            "owner": STRING, "requester": STRING, "renewers": array(STRING), "issue_timestamp": INT64,
            "max_timestamp": INT64, "expiration_timestamp": INT64, "token_id": STRING,
        },
    ),
    (
        11, UserScramCredential,
        {
            "name": STRING, "mechanism": INT8, "salt": BYTES, "stored_key": BYTES, "server_key": BYTES,
            "iterations": INT32,
        },
    ),
    (
        18, AccessControlEntry,
        {
            "id": UUID_, "resource_type": INT8, "resource_name": STRING, "pattern_type": INT8, "principal": STRING,
            "host": STRING, "operation": INT8, "permission_type": INT8,
        },
    ),
    (19, RemoveAccessControlEntry, {"id": UUID_}),
    (22, RemoveUserScramCredential, {"name": STRING, "mechanism": INT8}),
    (26, RemoveDelegationToken, {"token_id": STRING}),
)  # fmt: skip

ACL, SCRAM, TOKEN = "AccessControlEntry", "UserScramCredential", "DelegationToken"


def kept_key(record: Any) -> KeptKey:
    """Under which name a record is kept, or what it takes away."""
    if isinstance(record, AccessControlEntry | RemoveAccessControlEntry):
        return ACL, record.id
    if isinstance(record, UserScramCredential | RemoveUserScramCredential):
        return SCRAM, (record.name, record.mechanism)
    if isinstance(record, DelegationToken | RemoveDelegationToken):
        return TOKEN, record.token_id
    raise TypeError(f"{type(record).__name__} is not kept")


def takes_away(record: Any) -> bool:
    """Whether the record ends what another one began."""
    return isinstance(record, RemoveAccessControlEntry | RemoveUserScramCredential | RemoveDelegationToken)
