"""Which transactional ids a cluster has."""

from collections.abc import Sequence

from twofold.client.admin.admin import Admin
from twofold.client.admin.transaction_model import TransactionState
from twofold.runtime.real import run


def transactional_ids(bootstrap_servers: str, states: Sequence[str] = ()) -> list[str]:
    """In one of the states, or in any."""

    async def ask() -> list[str]:
        async with Admin(bootstrap_servers=bootstrap_servers) as admin:
            found = (await admin.list_transactions(states=[TransactionState(state) for state in states])).get()
            return [row.transactional_id for rows in found.values() for row in rows]

    return run(ask())
