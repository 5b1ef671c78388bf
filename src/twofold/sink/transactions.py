"""A sink's transactions as their coordinators have them. Nothing here changes anything."""

from collections.abc import Iterable, Mapping, Sequence

from twofold.client import Admin, TransactionDescription, TransactionState
from twofold.client.parts import Cluster, Coordinators
from twofold.connections.errors import UnsupportedByBroker
from twofold.connections.waiting import Deadline
from twofold.sink import names
from twofold.wire.errors import TransactionalIdNotFound

Descriptions = Mapping[str, TransactionDescription | None]
"""By id; None for one that its coordinator does not know."""


class TransactionLookup:
    def __init__(self, cluster: Cluster, coordinators: Coordinators) -> None:
        self._admin = Admin.on(cluster, coordinators)

    async def describe(self, transactional_ids: Iterable[str], deadline: Deadline) -> Descriptions:
        found = await self._admin.describe_transactions(transactional_ids, deadline=deadline)
        for error in found.errors.values():
            if not isinstance(error, TransactionalIdNotFound):
                raise error
        return {**found.values, **dict.fromkeys(found.errors)}

    async def task_ids(self, prefix: str, states: Sequence[TransactionState], deadline: Deadline) -> list[str]:
        """Ids of the prefix's tasks that are in one of the states, at any broker."""
        pattern = names.task_pattern(prefix)
        found = await self._admin.list_transactions(states=states, pattern=pattern, deadline=deadline)
        if any(isinstance(error, UnsupportedByBroker) for error in found.errors.values()):
            # Brokers older than KIP-1152 list everybody's.
            found = await self._admin.list_transactions(states=states, deadline=deadline)
        listed = [row.transactional_id for rows in found.get().values() for row in rows]
        return [name for name in listed if names.is_task_id(prefix, name)]
