"""The metadata record of client quotas: how much a user, a client id or an address may take."""

from typing import Any, NamedTuple

from twofold.machine.schema import BOOL, FLOAT64, NULLABLE_STRING, STRING, Kind, array, nested

USER, CLIENT_ID, IP = "user", "client-id", "ip"


class QuotaEntity(NamedTuple):
    """What a quota binds: a user, a client id, an address; without a name all of that type that have no own quota."""

    entity_type: str
    entity_name: str | None


class ClientQuota(NamedTuple):
    """How much a client may take; `remove` takes the limit away."""

    entity: tuple[QuotaEntity, ...]
    key: str
    value: float
    remove: bool


QuotaOwner = frozenset[QuotaEntity]
"""What the quotas of an image bind: the order of a record's entities has no meaning."""

# key on the wire, class, fields
QUOTAS: tuple[tuple[int, type[Any], dict[str, Kind]], ...] = (
    (
        14, ClientQuota,
        {
            "entity": array(nested(QuotaEntity, entity_type=STRING, entity_name=NULLABLE_STRING)), "key": STRING,
            "value": FLOAT64, "remove": BOOL,
        },
    ),
)  # fmt: skip


def in_order(owner: QuotaOwner) -> tuple[QuotaEntity, ...]:
    """The entities as they are written: the same in every process."""
    return tuple(sorted(owner, key=_entity_key))


def owner_key(owner: QuotaOwner) -> list[tuple[str, bool, str]]:
    """What owners are sorted by."""
    return sorted(map(_entity_key, owner))


def _entity_key(entity: QuotaEntity) -> tuple[str, bool, str]:
    return entity.entity_type, entity.entity_name is not None, entity.entity_name or ""
