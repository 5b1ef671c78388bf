"""Metadata records that mean nothing here and are kept for the software that understands them.

A data directory may come from Apache Kafka and go back to it. What its users stored there, and Twofold has no part for,
is in the image as the records themselves (`MetadataImage.kept`), under a key that says what a later record replaces.
Whether a directory that has them may be opened at all is decided in `fitness/openable.py`.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

from twofold.machine.schema import INT64, STRING, Kind, array


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
    (26, RemoveDelegationToken, {"token_id": STRING}),
)  # fmt: skip

TOKEN = "DelegationToken"


def kept_key(record: Any) -> KeptKey:
    """Under which name a record is kept, or what it takes away."""
    if isinstance(record, DelegationToken | RemoveDelegationToken):
        return TOKEN, record.token_id
    raise TypeError(f"{type(record).__name__} is not kept")


def takes_away(record: Any) -> bool:
    """Whether the record ends what another one began."""
    return isinstance(record, RemoveDelegationToken)
