"""The stage `a sink`: the exactly-once sink of Spark, one process per word, on a simulated broker.

`planner` opens a batch, tasks write, `committer` decides. A process dies at the step that the story names.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from kits.stories.steps import Stage, step
from sim.sink.spark import PREFIX, QUERY, TOPIC, Died, Process, Written
from sim.sink.stage import SinkStage as World
from sim.sink.stage import play
from sim.sink.world import OPEN, _read_all
from twofold.runtime.api import Runtime
from twofold.sink import names
from twofold.sink.driver import Plan
from twofold.wire.errors import KafkaError

RUN = "run1"
SETTLE_S = 0.05


class SinkStories(Stage):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._processes: dict[str, Process] = {}
        self._plan: Plan | None = None
        self._written: dict[int, list[Written]] = {}
        self._owner = ""

    def _process(self, name: str, kind: str) -> Process:
        if name not in self._processes or not self._processes[name].is_alive:
            self._processes[name] = self._world.process(kind)
        return self._processes[name]

    async def do(self, command: str) -> list[str]:
        said = await super().do(command)
        await asyncio.sleep(SETTLE_S)
        return said

    # --- one micro-batch ---

    @step("{client}: plan the next batch")
    async def plan(self, client: str) -> str:
        """It takes over: finishes what was decided, aborts what was not, and signs the journal."""
        self._owner = client
        planner = self._process(f"{client}'s planner", "planner")
        self._plan = await self._world.plan_batch(planner, client)
        last = dict(self._plan.decided).get(QUERY)
        return "no batch was decided" if last is None else f"batch {last} was decided last"

    @step(r"{client}: write rows (?P<first>\d+) to (?P<last>\d+) of batch {batch}")
    async def write(self, client: str, first: str, last: str, batch: str) -> str:
        assert self._plan is not None, "nothing is planned"
        plan, rows = self._plan, self._world.rows(int(batch))[int(first) : int(last) + 1]
        worker = self._process(client, "worker")
        try:
            written = await self._world.write(worker, plan, int(batch), rows)
        except (KafkaError, Died) as error:
            return type(error).__name__
        self._written.setdefault(int(batch), []).append(written)
        if written.participant is None:
            return "nothing to do: the batch is decided"
        return f"prepared as {written.participant.transactional_id}"

    @step("{client}: commit batch {batch}")
    async def commit(self, client: str, batch: str) -> str:
        committer = self._process(f"{client}'s committer", "committer")
        try:
            await self._world.commit(committer, int(batch), *self._written[int(batch)])
        except (KafkaError, Died) as error:
            return "dies" if isinstance(error, Died) else type(error).__name__
        return "committed"

    @step("the last task of batch {batch} is forgotten")
    async def forget(self, batch: str) -> None:
        """Spark takes the result of another attempt: this one has no vote."""
        self._written[int(batch)].pop()

    @step("the tasks of batch {batch} are forgotten")
    async def forget_all(self, batch: str) -> None:
        """Spark runs the batch again."""
        self._written[int(batch)].clear()

    @step("the next process to reach '{place...}' dies")
    async def die(self, place: str) -> None:
        self._world.on_step(place, self._world.kill)

    @step("Spark has noted batch {batch}")
    async def noted(self, batch: str) -> None:
        self._world.checkpoint.committed[int(batch)] = RUN

    # --- looks ---

    @step("read committed")
    async def read(self) -> str:
        values = (await self._all(TOPIC))[0]
        return f"rows {' '.join(value.decode() for value in values)}" if values else "no rows"

    @step("journal")
    async def journal(self) -> list[str]:
        topic = names.decision_topic(PREFIX)
        bodies = [json.loads(value) for value in (await self._all(topic))[0]]
        return [_journal_text(body) for body in bodies if "part" not in body]

    async def _all(self, topic: str) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}

        async def work(runtime: Runtime) -> None:
            found.update(await _read_all(runtime, topic, 1))

        await self._world.run_on("reader", work)
        return found

    @step("open transactions")
    async def open(self) -> list[str]:
        broker = self._world.node.broker
        assert broker is not None
        rows = [
            f"{name} {entry.state.wire_name}"
            for shard in broker.transactions.all_active()
            for name, entry in sorted(shard.committed.entries.items())
            if entry.state in OPEN
        ]
        return rows or ["none"]


def _journal_text(body: dict[str, Any]) -> str:
    match body["t"]:
        case "commit":
            return f"commit batch {body['batchId']}"
        case "owner":
            return f"owner {body['owner']}"
        case kind:
            return str(kind)


def play_on_a_sink(_: str, tell: Callable[[Stage], Awaitable[None]]) -> None:
    async def story(world: World) -> None:
        await tell(SinkStories(world))

    play(story)
