"""Groups that change their type at an odd moment."""

from functools import partial
from typing import Any

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


@simulated(group_consumer_assignment_interval_ms=0)
async def test_a_group_that_turns_classic_on_its_way_is_shared_out_anew(node: SimNode) -> None:
    """A partition that the log promises to one member may still be read by another one."""
    body = {"group_id": "g", "member_id": "new", "instance_id": "i", "topic_partitions": []}
    answer = await node.ask(
        "ConsumerGroupHeartbeat", 1, member_epoch=0, rebalance_timeout=60_000, subscribed_topic_names=["t"], **body
    )
    assert len(answer["assignment"]["topic_partitions"][0]["partitions"]) == 2
    waits = await classic_join(node, 3)
    assert waits["error_code"] == 0
    replaces = await classic_join(node, 5, group_instance_id="i")
    assert replaces["error_code"] == 0
    rows = (await node.ask("ListGroups", 5, states_filter=[], types_filter=[]))["groups"]
    assert [(row["group_type"], row["group_state"]) for row in rows] == [("classic", "PreparingRebalance")]
    place = {"group_id": "g", "generation_id": waits["generation_id"], "member_id": waits["member_id"]}
    assert (await node.ask("SyncGroup", 3, assignments=[], **place))["error_code"] == AGAIN


async def classic_join(node: SimNode, version: int, **more: Any) -> dict[str, Any]:
    return await node.ask(
        "JoinGroup", version, group_id="g", session_timeout=10_000, rebalance_timeout=60_000, member_id="",
        protocol_type="consumer", protocols=[{"name": "range", "metadata": SUBSCRIPTION}], **more,
    )  # fmt: skip
