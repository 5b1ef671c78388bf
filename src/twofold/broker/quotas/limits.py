"""Which limit binds a client: the quotas of an image, by kind, in Apache Kafka's order of precedence.

1. The most specific quota binds: of a user and a client id, of a user and the default client id, of a user, of the
   default user and a client id, of both defaults, of the default user, of a client id, of the default client id.
2. The quota of a user is one budget for all its clients, that of a client id one for all users; every other is a budget
   for each pair of user and client id, defaults included.
3. A client without an id is bound as one whose id is empty.
4. The name of a user is its principal's, without the type.
5. An address is bound by its own limit, or by the default of addresses. Addresses are compared as Java writes them.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple, TypeAlias

from twofold.controller.quota_records import CLIENT_ID, IP, USER, QuotaOwner
from twofold.controller.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from twofold.security.addresses import java_address


class QuotaKind(Enum):
    """What is limited; the value is Kafka's key of the quota."""

    PRODUCE = PRODUCER_BYTE_RATE
    FETCH = CONSUMER_BYTE_RATE
    REQUEST = REQUEST_PERCENTAGE
    CONTROLLER_MUTATION = CONTROLLER_MUTATION_RATE

    @property
    def label(self) -> str:
        """As Kafka names it in metrics: Produce, Fetch, Request, ControllerMutation."""
        return self.name.title().replace("_", "")


NEW_TRANSACTIONAL_ID = "NewTransactionalId"
"""The label of our own limit."""
CONNECTION = "Connection"
"""The label of the rate at which an address may open connections."""


class _Slot(Enum):
    ABSENT = "absent"
    DEFAULT = "default"


_ABSENT, _DEFAULT = _Slot.ABSENT, _Slot.DEFAULT
_Key: TypeAlias = tuple[str | _Slot, str | _Slot]


class Budget(NamedTuple):
    """Whose taking is summed up: the user and the client id, each empty where the budget is for all of them."""

    user: str
    client_id: str


class Limit(NamedTuple):
    """How much a budget may take per second."""

    budget: Budget
    bound: float


class Limits:
    """The quotas of one kind."""

    __slots__ = ("_by_owner",)

    def __init__(self, by_owner: Mapping[_Key, float]) -> None:
        self._by_owner = by_owner

    def __bool__(self) -> bool:
        return bool(self._by_owner)

    def find(self, user: str, client_id: str) -> Limit | None:
        by_owner = self._by_owner
        if not by_owner:
            return None
        for key, budget in (
            ((user, client_id), (user, client_id)),
            ((user, _DEFAULT), (user, client_id)),
            ((user, _ABSENT), (user, "")),
            ((_DEFAULT, client_id), (user, client_id)),
            ((_DEFAULT, _DEFAULT), (user, client_id)),
            ((_DEFAULT, _ABSENT), (user, "")),
            ((_ABSENT, client_id), ("", client_id)),
            ((_ABSENT, _DEFAULT), ("", client_id)),
        ):
            bound = by_owner.get(key)
            if bound is not None:
                return Limit(Budget(*budget), bound)
        return None


def limits_of(quotas: Iterable[tuple[QuotaOwner, Mapping[str, float]]]) -> dict[QuotaKind, Limits]:
    """The quotas of users and client ids, by kind."""
    tables: dict[QuotaKind, dict[_Key, float]] = {kind: {} for kind in QuotaKind}
    for owner, values in quotas:
        names = dict(owner)
        if IP in names:
            continue
        key = (_slot(names, USER), _slot(names, CLIENT_ID))
        for kind in QuotaKind:
            bound = values.get(kind.value)
            if bound is not None:
                tables[kind][key] = bound
    return {kind: Limits(table) for kind, table in tables.items()}


def connection_rates_of(quotas: Iterable[tuple[QuotaOwner, Mapping[str, float]]]) -> dict[str | None, float]:
    """How many connections per second an address may open; None stands for every address without a rate of its own.

    Of two spellings of one address the lower rate binds.
    """
    rates: dict[str | None, float] = {}
    for owner, values in quotas:
        names, rate = dict(owner), values.get(CONNECTION_CREATION_RATE)
        if IP not in names or rate is None:
            continue
        name = names[IP]
        host = None if name is None else java_address(name)
        rates[host] = min(rate, rates.get(host, rate))
    return rates


def user_of(principal: str) -> str:
    """The name in a principal: `alice` of `User:alice`."""
    return principal.partition(":")[2]


def _slot(names: Mapping[str, str | None], kind: str) -> str | _Slot:
    if kind not in names:
        return _ABSENT
    name = names[kind]
    return _DEFAULT if name is None else name
