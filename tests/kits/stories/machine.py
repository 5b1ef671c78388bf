"""Steps of the machine and of an administrator: time, power, topics, and markers that are late."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kits.folders.lost_tail import last_segment, lose_batches, start_of_tail
from kits.node.sim_node import NODE
from kits.stories.node import StoryNode
from kits.stories.steps import step
from kits.stories.words import name_of, place, seconds
from twofold.config.internal_topics import TRANSACTION_STATE
from twofold.coordinator.transaction.records import encode_key, encode_value
from twofold.log.api import Origin
from twofold.records.batch import BatchBuilder
from twofold.runtime.files import read_file
from twofold.types import ProducerEpoch


class Machine:
    def __init__(self, node: StoryNode, forget_requests: Callable[[], None]) -> None:
        self._node = node
        self._forget_requests = forget_requests
        self._held: list[Any] = []
        self._send: Any = None

    # --- time and power ---

    @step(r"clock \+{duration}")
    async def clock(self, duration: str) -> None:
        """Time passes, and everything that waits for it happens."""
        await self._node.sleep(seconds(duration))

    @step(r"the wall clock jumps \+{duration}")
    async def jump(self, duration: str) -> None:
        self._node.sim.jump_clock(NODE, round(seconds(duration) * 1000))

    @step(r"the broker is paused for {duration}")
    async def pause(self, duration: str) -> None:
        """SIGSTOP and SIGCONT; clients wait meanwhile."""
        sim = self._node.sim
        sim.pause(NODE)
        await sim.runtime("watch").timers.sleep(seconds(duration))
        sim.resume(NODE)

    @step("power cut")
    async def power_cut(self) -> None:
        """What is not on disk is gone; the machine starts again."""
        self._node.crash(power_cut=True)
        await self._start()

    async def _start(self) -> None:
        self._forget_requests()
        self._held.clear()
        await self._node.start()

    @step("power cut that loses the last batch of {partitions...}")
    async def losing_cut(self, partitions: str) -> None:
        lose_batches(self._node.sim, NODE, {place(text): 1 for text in partitions.split()})
        await self._start()

    @step("a backup of {partition} without its last marker is put back")
    async def put_back(self, partition: str) -> None:
        """The folder says that it was closed cleanly, so the broker looks for nothing when it starts."""
        await self._node.broker.stop()
        self._node.crash(power_cut=False)
        disk, folder = self._node.sim.disk(NODE), f"/data/{place(partition)}"
        path = last_segment(disk, folder)
        file = disk.open(path)
        file.truncate(start_of_tail(read_file(disk, path), 1))
        file.close()
        for name in disk.list(folder):
            if name.endswith((".snapshot", ".txnindex")):
                disk.remove(f"{folder}/{name}")
        await self._start()

    @step("kill -9")
    async def kill(self) -> None:
        self._node.crash(power_cut=False)
        await self._start()

    @step("clean restart")
    async def restart(self) -> None:
        await self._node.broker.stop()
        self._node.crash(power_cut=False)
        await self._start()

    @step("{transactional_id} has come to epoch {epoch}")
    async def come_to_epoch(self, transactional_id: str, epoch: str) -> None:
        """As after that many transactions: a record is written, and the coordinator starts with it."""
        entry = self._node.broker.transactions.shards[0].committed.entries[transactional_id]
        builder = BatchBuilder()
        builder.add(
            encode_key(transactional_id), encode_value(entry._replace(producer_epoch=ProducerEpoch(int(epoch))), 1), 0
        )
        leader = self._node.broker.replicas.leader(TRANSACTION_STATE, 0)
        leader.append(builder.build(), -1, origin=Origin.COORDINATOR)
        await self.kill()

    # --- topics ---

    @step("topic {name} with {count} partitions?")
    async def create(self, name: str, count: str) -> None:
        row = {"name": name, "num_partitions": int(count), "replication_factor": 1, "assignments": [], "configs": []}
        answer = await self._node.ask("CreateTopics", 5, topics=[row], timeout=1000)
        assert answer["topics"][0]["error_code"] == 0, answer

    @step("delete topic {name}")
    async def delete(self, name: str) -> str:
        answer = await self._node.ask("DeleteTopics", 5, topic_names=[name], timeout=1000)
        row = answer["responses"][0]
        return name_of(row["error_code"]) + (f": {row['error_message']}" if row["error_message"] else "")

    # --- markers ---

    @step("markers are held back")
    async def hold(self) -> None:
        """The coordinator has decided, and no partition knows; `markers go out` or the end of the process ends it."""
        markers = self._node.broker.transactions.markers
        self._send = markers.send
        markers.send = lambda *call: self._held.append(partial(self._send, *call))  # type: ignore[method-assign]

    @step("markers go out")
    async def release(self) -> None:
        self._node.broker.transactions.markers.send = self._send  # type: ignore[method-assign]
        while self._held:
            self._held.pop(0)()
