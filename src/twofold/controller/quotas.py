"""AlterClientQuotas as an operation on the image, and DescribeClientQuotas as a question to it.

1. An owner is a user, a client id, or a user and a client id together; or an address alone. A null name is the default
   of its type. The first rule to fail decides for an owner, always with INVALID_REQUEST (42): an entity type that is
   unknown, an empty name, no entity, an address with something else, a text that is no address, a key twice, an
   unknown key, a value that is not above 0, a fraction for a key that is whole. Other owners are not concerned.
2. An owner that the request names again is refused (42), and what its first entry said counts. The answer has one row
   per owner.
3. Records are written only for what changes: to take away what is not there is fine.
4. A description has the owners that match every component: an exact name, the default, or any name of a type. A
   strict one has those with no further type. Unknown types are UNSUPPORTED_VERSION (35).
"""

import ipaddress
import math
from collections.abc import Mapping, Sequence

from twofold.controller.context import Context, error_row
from twofold.controller.image import MetadataImage
from twofold.controller.operation import Operation
from twofold.controller.quota_records import (
    CLIENT_ID,
    IP,
    USER,
    ClientQuota,
    QuotaEntity,
    QuotaOwner,
    in_order,
    owner_key,
)
from twofold.wire.errors import NONE, InvalidRequest, KafkaError, UnsupportedVersion
from twofold.wire.messages import describe_client_quotas as describe_messages
from twofold.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityDataResult,
    EntryData,
    EntryDataResult,
)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

EXACT, DEFAULT, ANY = 0, 1, 2  # how a component of a filter matches

_MOST_WHOLE = 2**63 - 1
# The keys of a kind of owner, and the largest whole number that they take; None takes fractions.
_OF_CLIENTS: Mapping[str, int | None] = {
    PRODUCER_BYTE_RATE: _MOST_WHOLE,
    CONSUMER_BYTE_RATE: _MOST_WHOLE,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_OF_ADDRESSES: Mapping[str, int | None] = {CONNECTION_CREATION_RATE: 2**31 - 1}
_TYPES = (USER, CLIENT_ID, IP)
_LEAST_FRACTION = 1e-6


def alter_client_quotas(
    image: MetadataImage, request: AlterClientQuotasRequest, context: Context
) -> Operation[AlterClientQuotasResponse]:
    rows: dict[QuotaOwner, tuple[int, str | None]] = {}
    for entry in request.entries:
        owner = _owner(entry)
        try:
            if owner in rows:
                raise InvalidRequest(f"the entity {describe_owner(owner)} is named more than once")
            records = _alter(image, owner, entry)
        except KafkaError as error:
            rows[owner] = error_row(error)
        else:
            rows[owner] = NONE, None
            if not request.validate_only:
                yield from records
        yield None
    return AlterClientQuotasResponse(
        entries=tuple(
            EntryDataResult(
                error_code=code,
                error_message=message,
                entity=tuple(EntityDataResult(entity_type=kind, entity_name=name) for kind, name in in_order(owner)),
            )
            for owner, (code, message) in rows.items()
        )
    )


def describe_owner(owner: QuotaOwner) -> str:
    """For people: `user=alice, client-id=<default>`."""
    return (
        ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in in_order(owner))
        or "without a type"
    )


def _owner(entry: EntryData) -> QuotaOwner:
    return frozenset(
        QuotaEntity(*found) for found in {one.entity_type: one.entity_name for one in entry.entity}.items()
    )


def _alter(image: MetadataImage, owner: QuotaOwner, entry: EntryData) -> list[ClientQuota]:
    wanted: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in wanted:
            raise InvalidRequest(f"{op.key} is given more than once for {describe_owner(owner)}")
        wanted[op.key] = None if op.remove else op.value
    keys = _keys(owner)
    present: Mapping[str, float] = image.quotas.get(owner, {})
    entity = in_order(owner)
    records: list[ClientQuota] = []
    for key, value in wanted.items():
        if value is None:
            if key in present:
                records.append(ClientQuota(entity, key, 0.0, remove=True))
            continue
        _check_value(keys, key, value)
        if present.get(key) != value:
            records.append(ClientQuota(entity, key, value, remove=False))
    return records


def _keys(owner: QuotaOwner) -> Mapping[str, int | None]:
    """The keys that the owner may have, once nothing is wrong with it."""
    types = {entity.entity_type for entity in owner}
    if not types:
        raise InvalidRequest("a quota needs an entity: a user, a client-id, both, or an ip")
    for kind, name in in_order(owner):
        if kind not in _TYPES:
            raise InvalidRequest(f"{kind!r} is no entity type: {', '.join(_TYPES)} are known")
        if name == "":
            raise InvalidRequest(f"the {kind} has an empty name; null stands for the default")
    if IP not in types:
        return _OF_CLIENTS
    if len(types) > 1:
        raise InvalidRequest("an ip has quotas of its own: it cannot be combined with a user or a client-id")
    (address,) = owner
    if address.entity_name is not None:
        try:
            ipaddress.ip_address(address.entity_name)
        except ValueError:
            raise InvalidRequest(f"{address.entity_name!r} is no IP address; names are not looked up") from None
    return _OF_ADDRESSES


def _check_value(keys: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in keys:
        raise InvalidRequest(f"{key!r} is no quota of this entity: {', '.join(keys)} are known")
    if math.isnan(value) or value <= 0:
        raise InvalidRequest(f"{key}={value} is not greater than 0; to lift a limit, remove it")
    most = keys[key]
    if most is None:
        return
    if value > most:
        raise InvalidRequest(f"{key}={value} is above {most}")
    if abs(value % 1.0) > _LEAST_FRACTION:
        raise InvalidRequest(f"{key}={value} is no whole number")


# -- DescribeClientQuotas


def describe_client_quotas(
    image: MetadataImage, request: describe_messages.DescribeClientQuotasRequest
) -> describe_messages.DescribeClientQuotasResponse:
    exact, present = _filter(request.components)
    types = exact.keys() | present
    if IP in types and len(types) > 1:
        raise InvalidRequest("an ip has quotas of its own: a filter cannot combine it with a user or a client-id")
    found = [
        describe_messages.EntryData(
            entity=tuple(
                describe_messages.EntityData(entity_type=kind, entity_name=name) for kind, name in in_order(owner)
            ),
            values=tuple(describe_messages.ValueData(key=key, value=value) for key, value in sorted(limits.items())),
        )
        for owner, limits in sorted(image.quotas.items(), key=lambda item: owner_key(item[0]))
        if _matches(dict(owner), exact, present, strict=request.strict)
    ]
    return describe_messages.DescribeClientQuotasResponse(error_code=NONE, error_message="", entries=tuple(found))


def _described(owner: QuotaOwner, limits: Mapping[str, float]) -> describe_messages.EntryData:
    entity = (describe_messages.EntityData(entity_type=kind, entity_name=name) for kind, name in in_order(owner))
    values = (describe_messages.ValueData(key=key, value=value) for key, value in sorted(limits.items()))
    return describe_messages.EntryData(entity=tuple(entity), values=tuple(values))


def _filter(components: Sequence[describe_messages.ComponentData]) -> tuple[dict[str, str | None], set[str]]:
    """Which types have to have which name, and which only have to be there."""
    exact: dict[str, str | None] = {}
    present: set[str] = set()
    for component in components:
        kind, match = component.entity_type, component.match
        if not kind:
            raise InvalidRequest("a component without an entity type")
        if kind in exact or kind in present:
            raise InvalidRequest(f"{kind} is there more than once")
        if kind not in _TYPES:
            raise UnsupportedVersion(f"{kind!r} is no entity type: {', '.join(_TYPES)} are known")
        if component.match_type == EXACT:
            if match is None:
                raise InvalidRequest(f"{kind} has to match exactly, and what is null")
            exact[kind] = match
        elif component.match_type in (DEFAULT, ANY):
            if match is not None:
                raise InvalidRequest(f"{kind} has match type {component.match_type}, which takes no name: {match!r}")
            if component.match_type == DEFAULT:
                exact[kind] = None
            else:
                present.add(kind)
        else:
            raise InvalidRequest(f"match type {component.match_type}: 0, 1 and 2 are known")
    return exact, present


def _matches(
    owner: Mapping[str, str | None], exact: Mapping[str, str | None], present: set[str], *, strict: bool
) -> bool:
    if strict and len(owner) != len(exact) + len(present):
        return False
    return all(kind in owner and owner[kind] == name for kind, name in exact.items()) and present <= owner.keys()
