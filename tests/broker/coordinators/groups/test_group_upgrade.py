"""Classic groups that turn into consumer groups at an odd moment."""

from functools import partial

from kits.node.sim_node import SimNode
from kits.node.sim_node import simulated as simulated_node

simulated = partial(simulated_node, SimNode)
SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
AGAIN = 27


@simulated(group_initial_rebalance_delay_ms=3000)
async def test_a_group_that_is_upgraded_in_its_first_round_has_an_epoch(node: SimNode) -> None:
    """Its generation is 0, and a member that is told epoch 0 is told to join, again and again."""
    waiting = node.send(
        "JoinGroup", 3, group_id="g", session_timeout=10_000, rebalance_timeout=60_000, member_id="",
        protocol_type="consumer", protocols=[{"name": "range", "metadata": SUBSCRIPTION}],
    )  # fmt: skip
    assert not waiting.is_answered()
    body = {"group_id": "g", "member_id": "m", "subscribed_topic_regex": "nothing.*", "topic_partitions": []}
    answer = await node.ask("ConsumerGroupHeartbeat", 1, member_epoch=0, rebalance_timeout=60_000, **body)
    assert (answer["error_code"], answer["member_epoch"]) == (0, 1)
    assert (await waiting())["error_code"] == AGAIN
    again = await node.ask(
        "ConsumerGroupHeartbeat", 1, group_id="g", member_id="m", member_epoch=1, topic_partitions=None
    )
    assert again["error_code"] == 0
