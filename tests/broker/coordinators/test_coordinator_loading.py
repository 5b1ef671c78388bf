"""When the partitions of a coordinator are loaded."""

from collections import Counter
from unittest.mock import patch

from kits.node.txn_node import Node, simulated
from twofold.broker.coordinators.transactions.service import TransactionService
from twofold.broker.coordinators.transactions.shard import TransactionShard


@simulated()
async def test_what_a_killed_broker_led_is_loaded_once_after_its_restart(node: Node) -> None:
    """Registering begins a new epoch: what was loaded for the one before would be loaded for nothing."""
    ids = [f"id-{number}" for number in range(5)]
    for name in ids:
        assert isinstance(await node.init(name), tuple)
    loads: Counter[int] = Counter()
    original = TransactionService.load_shard

    async def load_shard(self: TransactionService, shard: TransactionShard) -> None:
        loads[shard.index] += 1
        await original(self, shard)

    with patch.object(TransactionService, "load_shard", load_shard):
        await node.restart()
        for name in ids:
            while await node.state(name) != "Empty":
                await node.sleep(0.01)
    assert len(loads) == len({node.shard(name).index for name in ids})
    assert set(loads.values()) == {1}
