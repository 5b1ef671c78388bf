"""A journal that goes on under another name: what was decided is carried out, what was open is ended, and a query that
comes back to its own journal has it."""

from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from kits.processes.server import TwofoldServer
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.records.columnar import Columns
from twofold.runtime.real import real_runtime, run
from twofold.sink.decided import Input
from twofold.sink.driver import Driver, Plan, SinkSettings, Upcoming, Votes
from twofold.sink.errors import Stale
from twofold.sink.register import BatchDecision, Participant
from twofold.sink.slots import Slots, Use
from twofold.sink.writer import TaskWriter

SETTINGS = {"transaction.two.phase.commit.enable": "true", "transaction.heartbeat.enable": "true"}
_numbers = count()
Story = Callable[["Broker"], Awaitable[None]]


class Broker:
    def __init__(self, server: TwofoldServer, directory: Path) -> None:
        self.config = ProducerConfig(bootstrap_servers=server.bootstrap_servers, linger_ms=0)
        self.cluster = Cluster(real_runtime(), self.config, allow_auto_create=True)
        self.directory = directory
        self.number = next(_numbers)
        self.topic = f"out{self.number}"
        self._made: list[Driver | TaskWriter] = []

    def name(self, query: str) -> str:
        return f"spark-{query}{self.number}"

    def driver(self, query: str, where: str) -> Driver:
        settings = SinkSettings(self.name(query), where=f"{where}{self.number}", former=())
        driver = Driver(self.cluster.runtime, self.cluster, self.config, settings)
        self._made.append(driver)
        return driver

    async def prepared(self, query: str, plan: Plan) -> Participant:
        runtime, prefix = self.cluster.runtime, self.name(query)
        slots = Slots(prefix, self.directory / f"slots-{next(_numbers)}")
        writer = TaskWriter(runtime, self.cluster, self.config, slots)
        self._made.append(writer)
        await writer.begin(plan.conditions, Use("run", 0))
        await writer.topic(self.topic)
        rows = Columns(None, pa.array([query.encode()]), runtime.clock.wall_ms())
        await writer.send(self.topic, [(0, batch) for batch in rows.encode()])
        participant = await writer.prepare(0)
        assert participant is not None
        return participant

    async def states(self, driver: Driver, *participants: Participant) -> list[str]:
        """Once the markers of what was decided are written: a decision is answered before that."""
        names = [participant.transactional_id for participant in participants]
        while True:
            found = await driver._transactions.describe(names, self.cluster.deadline())
            states = [row.state.value if (row := found[name]) is not None else "" for name in names]
            if not any(state.startswith("Prepare") for state in states):
                return states
            await self.cluster.runtime.timers.sleep(0.01)

    async def close(self) -> None:
        for one in self._made:
            await one.close()
        await self.cluster.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("adoption"), SETTINGS) as running:
        yield running


@pytest.fixture
def tell(server: TwofoldServer, tmp_path: Path) -> Callable[[Story], None]:
    def told(story: Story) -> None:
        async def main() -> None:
            broker = Broker(server, tmp_path)
            try:
                await story(broker)
            finally:
                await broker.close()

        run(main())

    return told


def upcoming(query: str, batch_id: int = 0) -> Upcoming:
    return Upcoming(query, read=Input(batch_id, "d"))


def test_a_new_query_at_the_same_place_completes_what_the_one_before_decided_and_ends_the_rest(
    tell: Callable[[Story], None],
) -> None:
    async def story(broker: Broker) -> None:
        first = broker.driver("one", "/c")
        plan = await first.start("first", upcoming("one"))
        decided, left = await broker.prepared("one", plan), await broker.prepared("one", plan)
        decision = BatchDecision("one", "run", 0, plan.conditions.mode, (decided,))
        await first.journal.append(first.journal.register.deciding(decision, 1))
        second = broker.driver("two", "/c")
        plan = await second.start("second", upcoming("two"))
        assert dict(plan.decided) == {"one": 0}
        assert await broker.states(second, decided, left) == ["CompleteCommit", "CompleteAbort"]
        with pytest.raises(Stale, match=f"goes on under the prefix '{broker.name('two')}'"):
            await first.start("first", upcoming("one", 1))

    tell(story)


def test_a_query_at_another_place_is_left_alone(tell: Callable[[Story], None]) -> None:
    async def story(broker: Broker) -> None:
        first = broker.driver("one", "/c")
        plan = await first.start("first", upcoming("one"))
        left = await broker.prepared("one", plan)
        await broker.driver("two", "/d").start("second", upcoming("two"))
        assert await broker.states(first, left) == ["Ongoing"]
        await first.commit(Votes("first", "one", "run", 0, plan.conditions, (left,)))

    tell(story)


def test_a_query_that_was_moved_comes_back_to_its_journal_and_neither_ends_what_is_the_others(
    tell: Callable[[Story], None],
) -> None:
    """Its checkpoint was moved away, and another query was started at the old place before it came back."""

    async def story(broker: Broker) -> None:
        first = broker.driver("one", "/c")
        await first.start("first", upcoming("one"))
        second = broker.driver("two", "/c")
        plan_of_second = await second.start("second", upcoming("two"))
        left = await broker.prepared("two", plan_of_second)
        moved = broker.driver("one", "/moved")
        plan = await moved.start("moved", upcoming("one"))
        assert moved.journal.register.moved_to == ""
        mine = await broker.prepared("one", plan)
        await broker.driver("two", "/c").start("second again", upcoming("two"))
        assert await broker.states(moved, mine, left) == ["Ongoing", "CompleteAbort"]
        await moved.commit(Votes("moved", "one", "run", 0, plan.conditions, (mine,)))
        assert await broker.states(moved, mine) == ["CompleteCommit"]

    tell(story)


def test_a_task_that_prepares_after_its_journal_was_handed_over_is_swept_by_the_next_start(
    tell: Callable[[Story], None],
) -> None:
    async def story(broker: Broker) -> None:
        first = broker.driver("one", "/c")
        plan = await first.start("first", upcoming("one"))
        await broker.driver("two", "/c").start("second", upcoming("two"))
        late = await broker.prepared("one", plan)
        again = broker.driver("two", "/c")
        await again.start("second again", upcoming("two"))
        assert await broker.states(again, late) == ["CompleteAbort"]

    tell(story)
