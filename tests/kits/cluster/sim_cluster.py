"""A controller and several brokers that replicate, on simulated machines.

async with SimCluster(sim, brokers=3) as cluster:
    await cluster.create("t", [1, 2], [2, 3])    # the replicas of partition 0, of partition 1
    await cluster.produce("t", 0, data_batch(3))
    await cluster.until_same("t", 0)
"""

from collections.abc import Awaitable, Callable
from functools import wraps

from kits.cluster.controller_node import ControllerNode
from kits.cluster.member_node import MemberNode
from twofold.broker.partitions.partition import Partition
from twofold.controller.image import PartitionState
from twofold.log.api import Bound
from twofold.log.log import PartitionLog
from twofold.records.batch import iter_headers
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition

PATIENCE_S = 60.0
SESSION_MS, HEARTBEAT_MS = 3000, 300
Story = Callable[["SimCluster"], Awaitable[None]]


class SimCluster:
    def __init__(self, sim: Simulation, *, brokers: int = 3, **settings: object) -> None:
        self.sim = sim
        self.runtime = sim.runtime("watch")
        self.controller: ControllerNode = None  # type: ignore[assignment]
        self._brokers = brokers
        self._settings = {"broker_heartbeat_interval_ms": HEARTBEAT_MS, "cordoned_log_dirs": "", **settings}
        self.members: dict[int, MemberNode] = {}

    async def start(self) -> "SimCluster":
        runtime = self.sim.runtime("c1")
        self.controller = ControllerNode(runtime, host="c1", broker_session_timeout_ms=SESSION_MS)
        await runtime.spawn(self.controller.start(), name="start the controller")
        for node_id in range(1, self._brokers + 1):
            member = MemberNode(self.sim, f"b{node_id}", node_id, self.controller.address, **self._settings)
            self.members[node_id] = await member.start()
        return self

    async def stop(self) -> None:
        for member in self.members.values():
            await member.stop()

    # --- administration ---

    async def create(self, name: str, *replicas: list[int], **configs: object) -> None:
        await self.create_unseen(name, *replicas, **configs)
        await self.until_seen()

    async def create_unseen(self, name: str, *replicas: list[int], **configs: object) -> None:
        assignments = [{"partition_index": at, "broker_ids": ids} for at, ids in enumerate(replicas)]
        settings = [{"name": key.replace("_", "."), "value": str(value)} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
        answer = await self.any().ask("CreateTopics", 5, topics=[{**topic, "configs": settings}], timeout=5000)
        assert answer["topics"][0]["error_code"] == 0, answer["topics"][0]["error_message"]

    async def delete(self, name: str) -> None:
        answer = await self.any().ask("DeleteTopics", 5, topic_names=[name], timeout=5000)
        assert answer["responses"][0]["error_code"] == 0, answer

    async def reassign(self, name: str, index: int, replicas: list[int]) -> None:
        rows = [{"name": name, "partitions": [{"partition_index": index, "replicas": replicas}]}]
        answer = await self.any().ask("AlterPartitionReassignments", 0, topics=rows, timeout=5000)
        assert answer["responses"][0]["partitions"][0]["error_code"] == 0, answer

    def any(self) -> MemberNode:
        """A broker that serves."""
        return next(m for m in self.members.values() if m.broker is not None and m.broker.server.is_open)

    # --- what is there ---

    def state(self, name: str, index: int) -> PartitionState:
        state = self.controller.controller.image.partition(name, index)
        assert state is not None
        return state

    def partition(self, node_id: int, name: str, index: int) -> Partition | None:
        return self.members[node_id].broker.replicas.find(name, index)

    def log(self, node_id: int, name: str, index: int) -> PartitionLog | None:
        return self.members[node_id].broker.logs.get(TopicPartition(name, index))

    def leader(self, name: str, index: int) -> MemberNode:
        return self.members[self.state(name, index).leader]

    # --- records ---

    async def produce(self, name: str, index: int, records: bytes, *, acks: int = -1) -> int:
        """To the leader; the error code."""
        rows = [{"name": name, "partition_data": [{"index": index, "records": records}]}]
        answer = await self.leader(name, index).ask(
            "Produce", 9, transactional_id=None, acks=acks, timeout=10_000, topic_data=rows
        )
        return int(answer["responses"][0]["partition_responses"][0]["error_code"])

    # --- waiting ---

    async def sleep(self, seconds: float) -> None:
        await self.runtime.timers.sleep(seconds)

    async def until(self, condition: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
        end_s = self.sim.now_s + within_s
        while not condition():
            assert self.sim.now_s < end_s, "it did not come to that"
            await self.sleep(0.01)

    async def until_seen(self) -> None:
        """All brokers know what the controller knows now."""
        await self.until_seen_by(*self.members)

    async def until_seen_by(self, *node_ids: int) -> None:
        offset = self.controller.controller.image.offset
        await self.until(lambda: all(self.members[node_id].broker.image.offset >= offset for node_id in node_ids))

    async def until_same(self, name: str, index: int, within_s: float = PATIENCE_S) -> None:
        """All replicas are in sync, and their logs are the same to the byte."""

        def is_settled() -> bool:
            state = self.state(name, index)
            if state.leader < 0 or set(state.isr) != set(state.replicas):
                return False
            logs = [self.log(node_id, name, index) for node_id in state.replicas]
            bounds = {(one.log_end_offset, one.high_watermark) for one in logs if one is not None}
            return len(bounds) == 1 and all(end == hw for end, hw in bounds) and None not in logs

        await self.until(is_settled, within_s)
        logs = [self.log(node_id, name, index) for node_id in self.state(name, index).replicas]
        assert len({content(one) for one in logs if one is not None}) == 1
        assert len({tuple(sorted(one.producers())) for one in logs if one is not None}) == 1


def content(log: PartitionLog) -> bytes:
    """All bytes of a log from its start."""
    records = b""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = bytes(log.read(offset, 1 << 20, Bound.LOG_END).records)
        records += read
        offset = [header.next_offset for _, header in iter_headers(read)][-1]
    return records


def clustered(*, brokers: int = 3, seed: int = 1, **settings: object) -> Callable[[Story], Callable[[], None]]:
    """Run a story with a cluster, for up to a day of its time."""

    def decorate(story: Story) -> Callable[[], None]:
        @wraps(story)
        def test() -> None:
            with Simulation(seed) as sim:

                async def main() -> None:
                    await story(await SimCluster(sim, brokers=brokers, **settings).start())

                sim.run(main(), timeout_s=86_400)

        del test.__wrapped__  # or pytest takes the cluster for a fixture
        return test

    return decorate
