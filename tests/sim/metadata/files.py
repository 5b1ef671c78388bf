"""A controller that is a quorum of its own, on a simulated disk, with somebody who starts it again whenever it died.

Checked of each life, beside what `sim_quorum_truth` checks of what it shows:

1. What was ever committed is in the log that the next life reads, unchanged, or in the snapshot that it begins with.
2. It begins with Abort("Controller failover") where its log ends inside a transaction, and nowhere else.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID

from sim.broker.watch import Violation, require
from sim.broker.world import BrokerSimulation
from sim.metadata.log import CLUSTER_ID
from sim.metadata.truth import FAILOVER, Entry, Reader, Truth, difference, flat
from twofold.config.settings import Settings
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    MetadataRecord,
    decode,
)
from twofold.controller.replay import ControllerState, MetadataMachine
from twofold.metadata_log.errors import UnusableMetadata
from twofold.quorum.controller import Controller
from twofold.runtime.api import Runtime
from twofold.runtime.sim import CutMode, Simulation
from twofold.wire.errors import KafkaError

NODE = "controller"
DATA = "/data"


class MetadataSimulation(Simulation):
    """Tells when the controller dies, whatever kills it."""

    def __init__(self, seed: int, cut_mode: CutMode = CutMode.ORDERED) -> None:
        super().__init__(seed, cut_mode=cut_mode)
        BrokerSimulation.latest = self  # type: ignore[assignment]  # its trace is all that is wanted of it
        self.died = asyncio.Event()

    def crash(self, node: str, *, power_cut: bool = True) -> None:
        if node == NODE:
            self.died.set()
        super().crash(node, power_cut=power_cut)


class WatchedController(Controller):
    """Tells the truth of everything that it reads and writes, before it acts on it."""

    def __init__(
        self, truth: Truth, sim: Simulation, runtime: Runtime, settings: Settings, stop: asyncio.Event
    ) -> None:
        super().__init__(
            runtime,
            settings,
            log_dir=DATA,
            cluster_id=CLUSTER_ID,
            directory_id=UUID(int=7),
            on_failure=lambda error: stop.set(),
        )
        self.appended = 0
        self.crash_in: tuple[int, bool] | None = None
        """After how many more batches it dies, and whether the power goes."""
        self._truth = truth
        self._sim = sim
        self._position = 0
        self._unsettled: list[tuple[list[Entry], int]] = []  # in the log, and not known to be committed
        self._append = self._log.append
        self._log.append = self._watched_append  # type: ignore[method-assign]

    def _watched_append(self, values: Sequence[bytes], epoch: int) -> int:
        last = self._append(values, epoch)
        decoded = ((at, decode(value)) for at, value in enumerate(values, last + 1 - len(values)))
        entries = [(at, record) for at, record in decoded if record is not None]
        self._sim.note(f"append {entries[0][0]}-{last} epoch {epoch} {flat(entries)}")
        self._unsettled.append((entries, last + 1))
        self.appended += 1
        if self.crash_in is not None:
            left, power_cut = self.crash_in
            self.crash_in = (left - 1, power_cut) if left > 1 else None
            if left == 1:
                asyncio.get_running_loop().call_soon(lambda: self._sim.crash(NODE, power_cut=power_cut))
        return last

    def committed(self, offset: int) -> None:
        while self._unsettled and self._unsettled[0][1] <= offset + 1:
            self._truth.commit(*self._unsettled.pop(0))
        super().committed(offset)

    def load(self, entries: Sequence[Entry], *, is_snapshot: bool = False) -> None:
        truth = self._truth
        if is_snapshot:
            self._check_snapshot(entries)
        elif entries:
            unknown = [entry for entry in entries if entry[0] not in truth.values]
            for offset, record in entries:
                known = truth.values.get(offset, record)
                require(record == known, f"at offset {offset} {known} was committed, and {record} is read")
            require(
                not unknown or (len(unknown) == len(entries) and unknown[0][0] >= truth.end),
                f"{unknown} was read where all below {truth.end} is committed",
            )
            if unknown:
                self._unsettled.append((unknown, unknown[-1][0] + 1))
        if entries:
            self._position = entries[-1][0] + 1
        super().load(entries, is_snapshot=is_snapshot)

    def _check_snapshot(self, entries: Sequence[Entry]) -> None:
        truth, offset = self._truth, entries[-1][0]
        self._sim.note(f"reads the snapshot of {offset}")
        start = truth.transaction_around(offset)
        require(offset < truth.end and start is None, f"a snapshot of {offset}, inside the transaction of {start}")
        image = MetadataMachine().apply_all(ControllerState(), entries).image
        wrong = difference(truth.images[truth.index_at(offset)], image)
        require(not wrong, f"the snapshot of {offset} {wrong}")

    def lead(self, epoch: int, bootstrap: Sequence[MetadataRecord] = ()) -> "asyncio.Future[None]":
        last = max(self._truth.values, default=-1)
        require(self._position > last, f"{last} was committed, and the log ends at {self._position}")
        is_open = self._truth.opened is not None
        for _, record in (entry for entries, _ in self._unsettled for entry in entries):
            if isinstance(record, BeginTransaction | EndTransaction | AbortTransaction):
                is_open = isinstance(record, BeginTransaction)
        before = len(self._unsettled)
        led = super().lead(epoch, bootstrap)
        first = [record for entries, _ in self._unsettled[before:] for _, record in entries][:1]
        aborts = first == [AbortTransaction(FAILOVER)]
        require(aborts == is_open, f"epoch {epoch} begins with {first}, with an open transaction: {is_open}")
        return led


class Node:
    """The machine on which the controller runs."""

    def __init__(self, sim: MetadataSimulation, truth: Truth, violations: list[Violation], settings: dict[str, str]):
        self.controller: WatchedController | None = None
        self.runtime: Runtime | None = None
        self.downtime_s = 0.01
        self.lives = 0
        self.disk_fails = False
        self.on_started: Callable[[], None] = lambda: None
        self._sim = sim
        self._truth = truth
        self._violations = violations
        self._settings = Settings.from_mapping({"broker.session.timeout.ms": "100"} | settings)
        self._random = Random(f"{sim.seed}/node")
        self._stop: asyncio.Event | None = None
        disk = sim.disk(NODE)
        disk.make_dirs(DATA)
        disk.sync_dir("/")

    async def supervise(self) -> None:
        while True:
            runtime = self._sim.runtime(NODE)
            self._sim.died.clear()
            process = runtime.spawn(self._run(runtime), name=NODE)
            death = asyncio.get_running_loop().create_task(self._sim.died.wait())
            await asyncio.wait([process, death], return_when=asyncio.FIRST_COMPLETED)
            self.controller = self.runtime = self._stop = None
            if not death.done():
                death.cancel()
                self._on_exit(process)
            await asyncio.sleep(self._random.uniform(0, 2 * self.downtime_s))

    async def _run(self, runtime: Runtime) -> None:
        stop = self._stop = asyncio.Event()
        controller = WatchedController(self._truth, self._sim, runtime, self._settings, stop)
        reader = Reader(self._truth, f"life {self.lives}", self._violations)
        controller.subscribe(reader)
        self.lives += 1
        if self.lives > 1:
            self.on_started()
        await controller.start()
        require(controller.image is reader.image, "what is shown at the start was not published")
        self.controller, self.runtime = controller, runtime
        await stop.wait()
        self.controller = None
        await controller.stop()

    def _on_exit(self, process: "asyncio.Task[None]") -> None:
        self._sim.crash(NODE, power_cut=False)
        error = process.exception()
        if error is not None:
            self._sim.note(f"{NODE} failed {error!r}")
            if (
                not self.disk_fails
                or not isinstance(error, OSError | KafkaError)
                or isinstance(error, UnusableMetadata)
            ):
                raise error

    def stop(self) -> None:
        if self._stop is not None:
            self._stop.set()
