"""The racks of brokers are part of what a group of the new protocol is compared with."""

from dataclasses import replace
from functools import partial
from typing import Any

from kits.node.sim_node import SimNode
from kits.node.sim_node import simulated as simulated_node
from twofold.config.internal_topics import coordinator_partition
from twofold.controller.delta import ImageDelta
from twofold.controller.image import MetadataImage
from twofold.coordinator.group.assignors.hashes import group_hash, topic_hash
from twofold.coordinator.group.consumer.state import ConsumerGroup
from twofold.machine.maps import Map
from twofold.runtime.sim import Simulation


class Node(SimNode):
    def __init__(self, sim: Simulation, **settings: object) -> None:
        super().__init__(sim, **{"group_consumer_assignment_interval_ms": 0, **settings})

    async def beat(self, epoch: int, **more: Any) -> dict[str, Any]:
        body = {"group_id": "g", "member_id": "m", "member_epoch": epoch, "topic_partitions": None}
        answer = await self.ask("ConsumerGroupHeartbeat", 1, **{**body, **more})
        assert answer["error_code"] == 0, answer
        return answer

    async def join(self) -> dict[str, Any]:
        body = {"rebalance_timeout": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        return await self.beat(0, **body)

    @property
    def group(self) -> ConsumerGroup:
        return self.broker.groups.shards[coordinator_partition("g", 50)].state.consumers["g"]

    def hash_with(self, *racks: str) -> int:
        topic = self.broker.image.topics["t"]
        return group_hash([topic_hash(topic.topic_id, "t", 2, [list(racks)] * 2)])

    async def restart_in(self, rack: str | None) -> None:
        self.settings.pop("broker.rack", None)
        if rack is not None:
            self.settings["broker.rack"] = rack
        await self.restart()
        await self.sleep(0.1)


simulated = partial(simulated_node, Node)


def _brokers_changed(image: MetadataImage) -> ImageDelta:
    return ImageDelta(image.offset, changed_brokers=Map(dict(image.brokers.items())))


def _with_rack(image: MetadataImage, rack: str) -> MetadataImage:
    return replace(image, brokers=Map({key: replace(row, rack=rack) for key, row in image.brokers.items()}))


@simulated(broker_rack="r1")
async def test_the_hash_of_a_group_has_the_racks_of_its_partitions(node: Node) -> None:
    await node.join()
    assert node.group.metadata_hash == node.hash_with("r1")
    assert node.group.metadata_hash != node.hash_with()


@simulated()
async def test_brokers_without_racks_are_hashed_as_they_always_were(node: Node) -> None:
    await node.join()
    assert node.group.metadata_hash == node.hash_with()


@simulated(broker_rack="r1")
async def test_a_restart_moves_a_group_to_a_new_epoch_if_the_rack_is_another_one(node: Node) -> None:
    epoch = (await node.join())["member_epoch"]
    await node.restart_in("r1")
    assert (await node.beat(epoch))["member_epoch"] == epoch
    for rack in ("r2", None):
        await node.restart_in(rack)
        epoch += 1
        assert (await node.beat(epoch - 1))["member_epoch"] == epoch
        assert node.group.metadata_hash == (node.hash_with(rack) if rack else node.hash_with())


@simulated(broker_rack="r1")
async def test_a_broker_that_changes_its_rack_is_noticed_at_the_next_heartbeat(node: Node) -> None:
    """As one broker of several may while the coordinator goes on."""
    epoch = (await node.join())["member_epoch"]
    cluster, image = node.broker.groups.cluster, node.broker.image
    before = cluster.topics_version
    cluster.apply(_brokers_changed(image), image)
    assert cluster.topics_version == before, "a broker that registers again in its rack is nothing new"
    moved = _with_rack(image, "r2")
    cluster.apply(_brokers_changed(moved), moved)
    assert cluster.topics_version == before + 1
    assert (await node.beat(epoch))["member_epoch"] == epoch + 1
    assert node.group.metadata_hash == node.hash_with("r2")
