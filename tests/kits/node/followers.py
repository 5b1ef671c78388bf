"""Other brokers beside a running one: their registrations, fetches over a socket, and answers of a controller."""

from typing import Any

from kits.node.markers import lead, register
from kits.node.running import FETCH, Client, Node, fetched
from twofold.broker.partitions.partition import Partition
from twofold.replication.isr import IsrChange
from twofold.replication.leader import Follower as LedFollower
from twofold.wire.messages.alter_partition import PartitionDataResult
from twofold.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState

VERSION = 18


class Follower:
    """Broker `node_id`, which follows one partition."""

    def __init__(self, node: Node, client: Client, node_id: int, topic: str, index: int) -> None:
        registration = node.broker.image.broker(node_id)
        assert registration is not None, "`register` it first"
        self.node_id = node_id
        self.broker_epoch = registration.epoch
        self.offset = self.log_start_offset = 0
        self.leader_epoch = node.broker.replicas.leader(topic, index).leader_epoch
        self.last_epoch = -1
        self._node = node
        self._client = client
        self._topic_id, self._index = node.topic_id(topic), index
        self.session = (0, -1)  # id and epoch; (0, 0) opens one

    def request(self, *, max_wait_ms: int = 0, names: bool = True, **changed: Any) -> FetchRequest:
        """`names`: whether the partition is named; in a session it need not be."""
        asked = {
            "partition": self._index,
            "fetch_offset": self.offset,
            "log_start_offset": self.log_start_offset,
            "current_leader_epoch": self.leader_epoch,
            "last_fetched_epoch": self.last_epoch,
            "partition_max_bytes": 1 << 20,
            **changed,
        }
        topic = FetchTopic(topic_id=self._topic_id, partitions=[FetchPartition(**asked)])
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=10 << 20,
            session_id=self.session[0],
            session_epoch=self.session[1],
            replica_state=ReplicaState(replica_id=self.node_id, replica_epoch=self.broker_epoch),
            topics=[topic] if names else [],
        )

    async def fetch(self, **changed: Any) -> PartitionData:
        """Ask once; what comes is not taken."""
        (row,) = fetched(await self._client.call(self.request(**changed), FETCH, VERSION))
        return row

    def ask(self, **changed: Any) -> None:
        self._client.ask(self.request(**changed), FETCH, VERSION)

    async def answer(self) -> PartitionData:
        (row,) = fetched((await self._client.answer(FETCH, VERSION))[1])
        return row

    async def catch_up(self) -> None:
        """Take all that the leader has, and tell it."""
        log = self._node.broker.replicas.leader(*self._name()).log
        self.offset, self.last_epoch = log.log_end_offset, log.leader_epoch
        self.leader_epoch = self._node.broker.replicas.leader(*self._name()).leader_epoch
        row = await self.fetch()
        assert row.error_code == 0, row.error_code

    def _name(self) -> tuple[str, int]:
        name = self._node.broker.image.topic_names[self._topic_id]
        return name, self._index


class Neighbourhood:
    """A node that leads a partition of several replicas; the test plays the controller."""

    def __init__(self, node: Node, replicas: tuple[int, ...]) -> None:
        self.node = node
        self.now_ms = 1_000_000
        self.proposed: list[tuple[Partition, IsrChange]] = []
        self.followers: dict[int, Follower] = {}
        self._replicas = replicas
        neighbours = node.broker.replicas.neighbours
        neighbours.now_ms = lambda: self.now_ms
        neighbours.propose = lambda partition, change: self.proposed.append((partition, change))

    @property
    def partition(self) -> Partition:
        return self.node.broker.replicas.leader("t", 0)

    def known(self, node_id: int) -> LedFollower:
        """What the leader knows of a follower."""
        assert self.partition.leading is not None
        return self.partition.leading.followers[node_id]

    def change(self, **fields: Any) -> None:
        """A newer record of the partition, in the same leader epoch unless `leader_epoch` is named."""
        state = self.node.broker.image.topics["t"].partitions[0]
        lead(self.node, "t", 0, **{"leader_epoch": state.leader_epoch, **fields})

    def answer(self, error_code: int = 0, **fields: Any) -> bool:
        """The controller's answer to the change that was proposed last."""
        partition, change = self.proposed[-1]
        row = {
            "partition_index": 0,
            "error_code": error_code,
            "leader_id": 1,
            "leader_epoch": change.leader_epoch,
            "isr": change.broker_ids,
            "partition_epoch": change.partition_epoch + 1,
            **fields,
        }
        return partition.isr_answered(change, PartitionDataResult(**row))


async def neighbourhood(
    node: Node, *, replicas: tuple[int, ...] = (1, 2, 3), isr: tuple[int, ...] | None = None, **configs: Any
) -> Neighbourhood:
    await node.create("t", **configs)
    for other in replicas[1:]:
        register(node, other)
    world = Neighbourhood(node, replicas)
    world.change(leader_epoch=1, replicas=replicas, isr=replicas if isr is None else isr)
    for other in replicas[1:]:
        world.followers[other] = Follower(node, await node.connect(), other, "t", 0)
    return world
