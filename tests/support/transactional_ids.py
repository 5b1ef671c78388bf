"""Which transactional ids a cluster has."""

from collections.abc import Sequence

from twofold.client.cluster import Cluster
from twofold.client.config import ClientConfig
from twofold.client.coordinators import Coordinators
from twofold.client.transaction_calls import TransactionCalls
from twofold.runtime.real import real_runtime, run


def transactional_ids(bootstrap_servers: str, states: Sequence[str] = ()) -> list[str]:
    """In one of the states, or in any."""

    async def ask() -> list[str]:
        cluster = Cluster(real_runtime(), ClientConfig(bootstrap_servers=bootstrap_servers))
        try:
            calls = TransactionCalls(cluster, Coordinators(cluster))
            return await calls.list_ids(list(states), ".*", cluster.deadline())
        finally:
            await cluster.close()

    return run(ask())
