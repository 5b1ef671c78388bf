"""A broker and the processes of a sink, who do what a story says; in the end the same is checked as for a seed."""

import asyncio
import dataclasses
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from sim.broker.world import BrokerSimulation, ErrorLog
from sim.frame import MAX_VIRTUAL_S
from sim.sink.plan import SinkPlan, make_sink_plan
from sim.sink.spark import QUERY, Process, Row, Written
from sim.sink.world import TAIL, NobodyWatches, SinkWorld, check, told
from twofold.client.cluster.cluster import Cluster
from twofold.connections.errors import NoAnswer
from twofold.runtime.sim.loop import current_life
from twofold.sink.driver import Plan, Votes
from twofold.sink.errors import DecidedDataLost
from twofold.sink.register import Mode
from twofold.wire.apis import KEYS

RUN = "run1"
CALM: dict[str, Any] = {
    "faults": (),
    "late": 0.0,
    "rows": 4,
    "empty": 0.0,
    "keys": 2,
    "partitions": 1,
    "batches": 3,
    "tasks": 1,
    "hosts": 1,
    "cores": 2,
    "request_timeout_ms": 400,
    "timeout_ms": 4000,
    "task_fails": 0.0,
    "speculation": 0.0,
    "pace_s": 0.001,
    "group": True,
}


class Held:
    """A request that is on its way for as long as the story wants."""

    def __init__(self, api: str, node: str, name: str) -> None:
        self.api = api
        self.name = name
        self.node = node
        self.message: Any = None
        self.version = 0


class SinkStage(SinkWorld):
    def __init__(self, plan: SinkPlan, sim: BrokerSimulation, directory: Path) -> None:
        super().__init__(plan, sim, directory)
        self._held: list[Held] = []
        self._cluster: Cluster | None = None

    def start_driver(self) -> None:
        """Nobody: the story is the driver."""

    def process(self, kind: str = "worker") -> Process:
        return Process(self, kind)

    def rows(self, batch_id: int) -> list[Row]:
        return self.checkpoint.batches[batch_id]

    async def plan_batch(self, planner: Process, owner: str = "me") -> Plan:
        return await planner.call(lambda: planner.driver.start(owner))

    async def write(
        self, worker: Process, plan: Plan, batch_id: int, rows: list[Row] | None = None, run_id: str = RUN
    ) -> Written:
        some = self.rows(batch_id) if rows is None else rows
        return await worker.call(lambda: worker.write(plan, run_id, batch_id, 0, some))

    async def commit(self, committer: Process, batch_id: int, *written: Written) -> None:
        votes = self.votes(batch_id, *written)
        await committer.call(lambda: committer.driver.commit(votes))
        self.checkpoint.committed[batch_id] = RUN

    def votes(self, batch_id: int, *written: Written) -> Votes:
        first = written[0]
        participants = tuple(w.participant for w in written if w.participant is not None)
        return Votes(first.plan.owner, QUERY, first.run_id, batch_id, first.plan.conditions, participants)

    async def batch(self, planner: Process, worker: Process, committer: Process, batch_id: int) -> None:
        plan = await self.plan_batch(planner)
        await self.commit(committer, batch_id, await self.write(worker, plan, batch_id))

    def on_step(self, wanted: str, act: Callable[[str], None]) -> None:
        """Once."""

        def at_step(step: str, node: str) -> None:
            if step == wanted:
                self.at_step = None
                act(node)

        self.at_step = at_step

    # Requests that come late

    def hold(self, api: str, process: Process, name: str = "") -> Held:
        """Its next request of this kind, about such a transactional id, is not answered, and arrives when it is
        delivered."""
        held = Held(api, process.node, name)
        self._held.append(held)
        return held

    def deliver(self, held: Held) -> None:
        assert held.message is not None, "it was never sent"
        runtime = self.sim.runtime("late")
        cluster = Cluster(runtime, self.processes[0].config)

        async def send() -> None:
            answer = await cluster.request(None, held.message, held.api, cluster.deadline(), version=held.version)
            self.note(f"late: {held.message} is answered {answer}")

        runtime.spawn(send(), name="late")

    def takes(self, cluster: Cluster, connection: Any, message: Any, api: str, options: Mapping[str, Any]) -> bool:
        life = current_life()
        for held in self._held:
            if life is None or (held.api, held.node) != (api, life.node) or held.message is not None:
                continue
            if message.transactional_id.startswith(held.name):
                held.message = message
                held.version = options.get("version") or connection.version(KEYS[api])
                self.note(f"held: {message}")
                return True
        return False


def play(
    story: Callable[[SinkStage], Awaitable[None]],
    mode: Mode = Mode.TWO_PHASE,
    *,
    seed: int = 0,
    loses: bool = False,
    virtual_s: float = MAX_VIRTUAL_S,
    **changes: Any,
) -> SinkStage:
    """Tell the story; then everything ends, and is looked at. Batches that the story did not commit are not there.
    `loses`: a story in which the query stops for good, because somebody ended what was decided."""
    calm = CALM | {"heartbeat_interval_ms": 0 if mode is Mode.RESUME else 300}
    plan = dataclasses.replace(make_sink_plan(seed, mode), **(calm | changes))
    original = Cluster.ask

    async def ask(self: Cluster, connection: Any, message: Any, api: str, deadline: Any, **options: Any) -> Any:
        if stage.takes(self, connection, message, api, options):
            await self.runtime.timers.sleep(self.config.request_timeout_ms / 1000)
            raise NoAnswer(f"{api} was not answered in time")
        return await original(self, connection, message, api, deadline, **options)

    stage: SinkStage
    with tempfile.TemporaryDirectory() as directory, ErrorLog(plan) as errors:
        sim = BrokerSimulation(plan, NobodyWatches())

        async def main() -> None:
            nonlocal stage
            stage = SinkStage(plan, sim, Path(directory))
            await stage.start()
            await story(stage)
            if loses:
                stage.lost, stage.may_lose = DecidedDataLost("as the story says"), True
            await stage.close()

        try:
            Cluster.ask = ask  # type: ignore[method-assign]
            with sim:
                sim.run(main(), timeout_s=virtual_s)
                if errors.unexpected:
                    raise errors.unexpected[0]
            stage.checkpoint.batches = [
                rows if n in stage.checkpoint.committed else [] for n, rows in enumerate(stage.checkpoint.batches)
            ]
            check(stage)
            return stage
        except BaseException as error:
            error.add_note("\n".join(["the end of the trace:", *told(sim)[-TAIL:]]))
            raise
        finally:
            Cluster.ask = original  # type: ignore[method-assign]


async def within(seconds: float, work: Awaitable[Any]) -> Any:
    """Of virtual time."""
    return await asyncio.wait_for(work, seconds)
