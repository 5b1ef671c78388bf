"""Steps of the machine and of an administrator: time, power, topics, and markers that are late."""

from functools import partial
from typing import Any

from kits.folders.lost_tail import lose_batches
from kits.node.sim_node import NODE
from kits.stories.node import StoryNode
from kits.stories.steps import step
from kits.stories.words import name_of, place, seconds


class Machine:
    def __init__(self, node: StoryNode) -> None:
        self._node = node
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
        sim.loop.call_later(seconds(duration), sim.resume, NODE)
        await sim.runtime("watch").timers.sleep(seconds(duration))

    @step("power cut")
    async def power_cut(self) -> None:
        """What is not on disk is gone; the machine starts again."""
        self._node.crash(power_cut=True)
        await self._node.start()

    @step("power cut that loses the last batch of {partitions...}")
    async def losing_cut(self, partitions: str) -> None:
        lose_batches(self._node.sim, NODE, {place(text): 1 for text in partitions.split()})
        await self._node.start()

    @step("kill -9")
    async def kill(self) -> None:
        await self._node.restart()

    @step("clean restart")
    async def restart(self) -> None:
        await self._node.broker.stop()
        self._node.crash(power_cut=False)
        await self._node.start()

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
