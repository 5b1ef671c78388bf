"""Who has a query: what a driver has signed counts at once for its tasks and its commits, readable or not."""

from pathlib import Path

import pytest

from kits.processes.server import TwofoldServer
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.runtime.real import real_runtime, run
from twofold.sink.decided import Input
from twofold.sink.driver import Driver, SinkSettings, Votes
from twofold.sink.errors import Stale

SETTINGS = {"transaction.two.phase.commit.enable": "true", "transaction.heartbeat.enable": "true"}


@pytest.mark.interop
def test_tasks_that_start_at_once_find_their_driver_in_the_journal(tmp_path: Path):
    """The marker of a record is written after its commit is answered; until then readers see the record before it."""

    async def story(address: str) -> None:
        runtime, config = real_runtime(), ProducerConfig(bootstrap_servers=address)
        cluster = Cluster(runtime, config)
        planner, task = (Driver(runtime, cluster, config, SinkSettings("p")) for _ in range(2))
        before = None
        for number in range(30):
            plan = await planner.start(f"owner-{number}")
            await task.check_current(plan, "q", 0)
            await task.check_current(plan, "q", 0, prepared=True)
            if before is not None:
                with pytest.raises(Stale, match=f"driver owner-{number} has taken over"):
                    await task.check_current(before, "q", 0, prepared=True)
            before = plan
        for driver in (planner, task):
            await driver.close()
        await cluster.close()

    with TwofoldServer(tmp_path, SETTINGS) as server:
        run(story(server.bootstrap_servers))


@pytest.mark.interop
def test_a_batch_without_rows_is_finished_although_the_planner_has_fenced_the_committer(tmp_path: Path):
    """The two are processes of one driver. The planner opens the journal again where it finds a half-written record."""

    async def story(address: str) -> None:
        runtime, config = real_runtime(), ProducerConfig(bootstrap_servers=address)
        cluster = Cluster(runtime, config)
        planner, committer = (Driver(runtime, cluster, config, SinkSettings("p")) for _ in range(2))
        plan = await planner.start("me")
        for batch_id in range(3):
            read = Input(batch_id, f"digest-{batch_id}")
            await committer.commit(Votes("me", "q", "run", batch_id, plan.conditions, (), read=read))
            await planner.take_over("me", planner._deadline())
            assert planner.journal.register.decided_batch("q") == batch_id
        for driver in (planner, committer):
            await driver.close()
        await cluster.close()

    with TwofoldServer(tmp_path, SETTINGS) as server:
        run(story(server.bootstrap_servers))
