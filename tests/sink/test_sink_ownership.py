"""Who has a query: what a driver has signed counts at once for its tasks and its commits, readable or not."""

from pathlib import Path

import pytest

from kits.processes.server import TwofoldServer
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.runtime.real import real_runtime, run
from twofold.sink.decided import Input, Purpose
from twofold.sink.driver import Driver, SinkSettings, Upcoming, Votes
from twofold.sink.errors import Stale
from twofold.sink.inspection import Inspector
from twofold.sink.names import ONCE_TOPIC

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


@pytest.mark.interop
@pytest.mark.parametrize("at", ["before it is told", "in its commit", "while it gives up"])
def test_the_loser_of_two_jobs_under_one_prefix_is_told_which_driver_has_won(tmp_path: Path, at: str):
    """Each driver has connections of its own, as two programs have. The loser's journal is fenced, and its request is
    answered by INVALID_PRODUCER_EPOCH: what it raises says what that means, and what to do."""

    async def story(address: str) -> None:
        runtime, config = real_runtime(), ProducerConfig(bootstrap_servers=address)
        clusters = [Cluster(runtime, config) for _ in range(2)]
        loser, winner = (Driver(runtime, cluster, config, SinkSettings("p")) for cluster in clusters)
        plan = await loser.start("first job")
        deadline = loser._deadline()
        if at == "before it is told":
            # The winner signs between the look of the loser and its own signature.
            await loser.open_journal(deadline)
            await winner.start("second job")
            with pytest.raises(Stale, match=r"driver second job has taken over .* transactionalIdPrefix='p'"):
                async with loser._naming_the_winner("first job", deadline):
                    await loser.journal.append(loser.journal.register.owned_by("first job", 1))
        else:
            votes = Votes("first job", "w", "run", 0, plan.conditions, (), read=Input(0, "digest"))
            await winner.start("second job")
            with pytest.raises(Stale, match=r"driver second job has taken over .* transactionalIdPrefix of its own"):
                await (loser.commit(votes) if at == "in its commit" else loser.abort("first job", None, []))
        for driver in (loser, winner):
            await driver.close()
        for cluster in clusters:
            await cluster.close()

    with TwofoldServer(tmp_path, SETTINGS) as server:
        run(story(server.bootstrap_servers))


@pytest.mark.interop
def test_jobs_of_one_process_one_after_the_other_do_not_find_their_journal_fenced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A foreachBatch writes batch after batch: each is started in one process and committed in another."""

    async def story(address: str) -> None:
        runtime, config = real_runtime(), ProducerConfig(bootstrap_servers=address)
        cluster = Cluster(runtime, config)
        planner, committer = (Driver(runtime, cluster, config, SinkSettings("p")) for _ in range(2))
        for number in range(4):
            plan = await planner.start(f"job-{number}")
            read = Input(0, "digest")
            await committer.commit(Votes(f"job-{number}", f"w{number}", "run", 0, plan.conditions, (), read=read))
        for driver in (planner, committer):
            await driver.close()
        await cluster.close()

    with TwofoldServer(tmp_path, SETTINGS) as server:
        run(story(server.bootstrap_servers))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.interop
def test_a_prefix_that_was_given_for_one_write_is_forgotten_after_it(tmp_path: Path):
    async def story(address: str) -> None:
        runtime, config = real_runtime(), ProducerConfig(bootstrap_servers=address)
        cluster = Cluster(runtime, config)
        settings = SinkSettings("spark-once-0-0", "resume", ONCE_TOPIC, is_once=True)
        driver, inspector = Driver(runtime, cluster, config, settings), Inspector(cluster)
        for number in range(2):
            owner, write = f"job-{number}", Upcoming(f"w{number}", Purpose.ONCE)
            plan = await driver.start(owner, write)
            assert plan.decided == ()
            await driver.journal.read(driver._deadline())  # until the marker is there
            found = await inspector.find(ONCE_TOPIC, None, driver._deadline(), thorough=True)
            assert [row.prefix for row in found] == ["spark-once-0-0"]
            await driver.commit(Votes(owner, write.name, "run", 0, plan.conditions, (), Purpose.ONCE))
            await driver.journal.read(driver._deadline())
            assert await inspector.find(ONCE_TOPIC, None, driver._deadline(), thorough=True) == []
        await driver.close()
        inspector.close()
        await cluster.close()

    with TwofoldServer(tmp_path, SETTINGS) as server:
        run(story(server.bootstrap_servers))
