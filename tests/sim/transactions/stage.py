"""A broker, two partitions, a group, and players with transactional ids who do what a story says.

Like a seed's run, everything is watched and checked, but what happens is written down by hand: a story is short, and
the broker dies where the test wants it to.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kits.wire.driver import TV2, Fenced, Identity, Versions
from kits.wire.requests import GROUP_KEY, TRANSACTION_KEY, Wire
from sim.broker.watch import require
from sim.broker.world import BROKER, DATA, BrokerNode, BrokerSimulation, ErrorLog
from sim.transactions.check import check_logs, offsets_follow, reached_the_end, readers_see_committed
from sim.transactions.clients import BOOTSTRAP, Actor, Bookkeeper, Past, ReaderApp, ledger
from sim.transactions.cycles import no_cycles
from sim.transactions.history import History, Outcome, Txn, Value, Write
from sim.transactions.log import LogTruth
from sim.transactions.plan import ReaderPlan, WriterPlan
from sim.transactions.watch import PREPARED, TxnWatch, batches_on_disk
from twofold.client import Admin, NewTopic
from twofold.coordinator.transaction.coordinator import Decision
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.states import State
from twofold.runtime.api import Runtime
from twofold.runtime.sim.disk import CutMode
from twofold.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ID = "id"
PROGRESS_S = 30.0
STORY_S = 100.0
NEVER = 1 << 60
SETTINGS = {
    "node.id": "1",
    "listeners": "PLAINTEXT://broker:9092",
    "auto.create.topics.enable": "false",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "offsets.topic.num.partitions": "1",
    "log.cleaner.enable": "false",
}


@dataclass(frozen=True)
class StagePlan:
    seed: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    cut_mode: CutMode = CutMode.REORDERED
    has_disk_errors: bool = False
    first_epoch: int = 0

    @property
    def loses_ids(self) -> bool:
        return bool(self.first_epoch)


class Player(Actor):
    """One instance of a transactional id; a story tells it what to do."""

    @property
    def identity(self) -> Identity:
        return self._driver.identity

    async def init(self, *, bump: bool = False) -> None:
        """`bump`: as the one who has the id already, for the next epoch (KIP-360)."""
        expected = self.identity if bump else Identity()
        await self._insist(lambda: self._driver.init(expected))
        self._given()

    async def abort_nothing(self) -> None:
        """What a TV2 client does that does not know whether its first batch arrived."""
        txn = self.begin()
        await self.end(txn, commit=False)

    async def write(self, txn: Txn, *, offsets: bool = True) -> None:
        """To both partitions, and an offset for the group."""
        await self._send(txn, [Write(tp, Value(txn.label, number).encode()) for number, tp in enumerate((A, B))])
        if offsets:
            group = ledger(self.plan.transactional_id)
            await self._send_offsets(txn, group, {A: self._scene.next_number(group)})

    async def play(self, *, commit: bool = True, offsets: bool = True) -> bool:
        txn = self.begin()
        return await self.transaction(txn, lambda: self.write(txn, offsets=offsets), commit=commit)

    async def end(self, txn: Txn, *, commit: bool = True) -> bool:
        """What was begun and written before."""

        async def nothing() -> None:
            return None

        return await self.transaction(txn, nothing, commit=commit)

    async def insist(self, *, commit: bool = True) -> None:
        """Until it is done, under a new epoch where the old one was taken away: a crash may take longer than the
        timeout of a transaction."""
        while True:
            try:
                if await self.play(commit=commit) or not commit:
                    return
            except Fenced as error:
                self._scene.note(f"fenced {self.instance} {error}")
                await self.init()

    async def close(self) -> None:
        await self._driver.close()


class Stage:
    """See `sim_txn_clients.Scene`, which this is for the players."""

    def __init__(self, sim: BrokerSimulation, watch: TxnWatch, plan: StagePlan) -> None:
        self.plan = plan
        self.sim = sim
        self.watch = watch
        self.history = History()
        self.draining = True
        self.past: deque[Past] = deque(maxlen=200)
        self.node = BrokerNode(sim, watch, plan)
        self.node.downtime_s = (0.001, 0.01)
        self.on_record: Callable[[], None] | None = None
        """Called after every record of a transactional id."""
        self.on_started: Callable[[], None] | None = None
        """Called once, when the broker has died and is started again."""
        self.players: list[Player] = []
        self._numbers: dict[str, int] = {}
        self._supervisor: asyncio.Task[None] | None = None
        watch.on_record = self._recorded
        self._died = watch.crash
        watch.crash = self._when_dead  # type: ignore[method-assign]

    @property
    def now_s(self) -> float:
        return self.sim.now_s

    def note(self, text: str) -> None:
        self.sim.note(text)

    def next_number(self, group: str) -> int:
        self._numbers[group] = self._numbers.get(group, 0) + 1
        return self._numbers[group]

    def on_commit(self, actor: Actor) -> None:
        """Nobody waits for this here."""

    def state_of(self, transactional_id: str = ID) -> State | None:
        known = self.watch.known.get(transactional_id)
        return None if known is None or known.value is None else known.value.state

    # The broker

    def _recorded(self) -> None:
        if self.on_record is not None:
            self.on_record()

    def _when_dead(self, power_cut: bool) -> None:
        """The broker is dead at this moment, and is started a little later."""
        self._died(power_cut)
        if self.on_started is not None:
            asyncio.get_running_loop().call_later(0.0005, self.on_started)
            self.on_started = None

    async def start(self) -> None:
        self._supervisor = asyncio.get_running_loop().create_task(self.node.supervise(), name="supervisor")
        await self.until(self.node.up.is_set, "the start")

    async def set_up(self) -> None:
        await self.run_on("setup", self._create_topics)

    async def _create_topics(self, runtime: Runtime) -> None:
        async with Admin(runtime=runtime, bootstrap_servers=BOOTSTRAP) as admin:
            (await admin.create_topics([NewTopic(name=A.topic, num_partitions=2)])).get()
        wire = Wire(runtime, BOOTSTRAP)
        for kind in (TRANSACTION_KEY, GROUP_KEY):
            while (await wire.find("any", kind)).coordinators[0].error_code:
                await runtime.timers.sleep(0.01)
        await wire.close()

    async def restart(self) -> None:
        """A clean stop and a start."""
        runs = self.node.runs
        self.node.stop()
        await self.until(lambda: self.node.runs > runs and self.node.up.is_set(), "the restart")

    async def inject(
        self, change: Callable[[TransactionMetadata], TransactionMetadata], transactional_id: str = ID
    ) -> None:
        """Write a record of the id that no client could bring about, and start the broker with it."""
        broker = self.node.broker
        assert broker is not None
        self.watch.blind = True
        decided = broker.transactions.shard(transactional_id).decide(
            transactional_id, lambda entry, now_ms, pending: Decision(change(entry) if entry is not None else None)
        )
        await decided
        self.watch.blind = False
        await self.restart()

    def crash(self, *, power_cut: bool = False) -> None:
        self.sim.crash(BROKER, power_cut=power_cut)

    def crash_after(self, operations: int, *, power_cut: bool = False) -> None:
        self.sim.crash_after(BROKER, operations, power_cut=power_cut)

    async def run_on(self, node: str, work: Callable[[Runtime], Awaitable[None]]) -> None:
        runtime = self.sim.runtime(node)

        async def run() -> None:
            await work(runtime)

        await runtime.spawn(run(), name=node)

    # The players

    def player(
        self, node: str = "first", transactional_id: str = ID, *, versions: Versions = TV2, timeout_ms: int = 60_000
    ) -> Player:
        plan = WriterPlan(
            node=node,
            transactional_id=transactional_id,
            versions=versions,
            timeout_ms=timeout_ms,
            pause_s=0.0,
            partitions=2,
            sends=1,
            parallel=False,
            abort=0.0,
            hang=0.0,
            offsets=True,
            request_timeout_ms=500,
        )
        player = Player(self, self.sim.runtime(node), plan, f"{node}/{len(self.players) + 1}")
        self.players.append(player)
        return player

    async def until(self, condition: Callable[[], bool], what: str, bound_s: float = PROGRESS_S) -> None:
        started = self.now_s
        while not condition():
            await asyncio.sleep(0.01)
            self.raise_if_wrong()
            require(self.now_s - started < bound_s, f"stuck: {what}")

    def raise_if_wrong(self) -> None:
        if self.watch.violations:
            raise self.watch.violations[0]
        if self._supervisor is not None and self._supervisor.done():
            self._supervisor.result()
        if self.sim.failures:
            raise self.sim.failures.pop(0)

    # The end

    async def finish(self, *, restart: bool = True) -> None:
        """Everything comes to an end, and is what it was told to be, also after another restart."""
        self.sim.disk(BROKER).cut_power_after(NEVER)
        await self.until(self.node.up.is_set, "the broker")
        await self.until(self._is_settled, f"the ids: {self.watch.known}")
        if restart:
            runs = self.node.runs
            self.crash()
            await self.until(lambda: self.node.runs > runs and self.node.up.is_set(), "the last restart")
        await self.run_on("last", self._read)
        self.raise_if_wrong()
        self._check()
        for player in self.players:
            await player.close()

    def _is_settled(self) -> bool:
        states = [known.value.state for known in self.watch.known.values() if known.value is not None]
        return not any(state in PREPARED or state is State.ONGOING for state in states)

    async def _read(self, runtime: Runtime) -> None:
        for committed in (True, False):
            app = ReaderApp(self, runtime, ReaderPlan(f"read-{committed}", committed, 0.01, 1 << 20, 1500), [A, B])
            ends = {tp: self.watch.truth(tp).end for tp in (A, B)}
            while app.behind(ends):
                await app.poll()
            await app.close()
        groups = {txn.group: [A] for txn in self.history.txns if txn.group}
        if groups:
            keeper = Bookkeeper(self, runtime, groups)
            for group in groups:
                seen = len(self.history.offset_reads)
                while len(self.history.offset_reads) == seen:
                    await keeper.ask(group, stable=True)
            await keeper.close()

    def logs(self) -> dict[TopicPartition, LogTruth]:
        disk = self.sim.disk(BROKER)
        return {tp: LogTruth(tp, batches_on_disk(disk, f"{DATA}/{tp}")) for tp in (A, B)}

    def _check(self) -> None:
        history, logs = self.history, self.logs()
        check_logs(history, logs)
        readers_see_committed(history, logs)
        for reading in history.readings:
            reached_the_end(reading, logs)
        offsets_follow(history, logs)
        no_cycles(history, logs)

    def outcomes(self) -> list[Outcome]:
        return [txn.outcome for txn in self.history.txns]


async def _tell(story: Callable[[Stage], Awaitable[Any]], stage: Stage) -> None:
    await story(stage)


def play(
    story: Callable[[Stage], Awaitable[Any]], *, seed: int = 0, settings: Mapping[str, str] | None = None
) -> Stage:
    """Set up, tell the story, and look at the end."""
    plan = StagePlan(seed=seed, settings=SETTINGS | dict(settings or {}))
    with TxnWatch() as watch, ErrorLog(plan) as errors:
        sim = BrokerSimulation(plan, watch)
        try:
            with sim:
                stage = Stage(sim, watch, plan)

                async def main() -> None:
                    await stage.start()
                    await stage.set_up()
                    telling = asyncio.get_running_loop().create_task(_tell(story, stage))
                    await stage.until(telling.done, "the story", STORY_S)
                    telling.result()
                    await stage.finish()

                sim.run(main(), timeout_s=600)
                if errors.unexpected:
                    raise errors.unexpected[0]
                return stage
        except BaseException as error:
            error.add_note("\n".join(["the end of the trace:", *sim.trace[-40:]]))
            raise
