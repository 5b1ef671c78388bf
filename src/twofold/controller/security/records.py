"""Metadata records of security: access control entries, and the credentials of users who log in with SCRAM."""

from typing import Any, NamedTuple
from uuid import UUID

from twofold.machine.schema import BYTES, INT8, INT32, STRING, UUID_, Kind


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


# key on the wire, class, fields
SECURITY: tuple[tuple[int, type[Any], dict[str, Kind]], ...] = (
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
)  # fmt: skip
