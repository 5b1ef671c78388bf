"""One replicated metadata log and the controllers that share it: who leads, what is committed, who knows how much.

There is no voting here; a test decides who leads and how much of what was not committed survives. Everything else is as
in a real quorum:

1. What is committed never changes. The tail of the leader that is not is cut, at a batch, by the next election; what is
   left of it is committed together with the first batch of the new epoch.
2. Whoever is elected leads once it has loaded all that is committed.
3. A leader that was deposed may not know it yet: it goes on appending, and nothing of that is ever committed.
4. A standby loads what is committed when it gets round to it, in batches or as a snapshot.
5. Values are bytes.

Checked here: a new leader begins with Abort("Controller failover") where the committed log has an open transaction, and
nowhere else.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from sim.broker.watch import Violation, require
from sim.metadata.truth import FAILOVER, Entry, Reader, Truth, check_image, flat
from twofold.config.settings import Settings
from twofold.controller.image import MetadataImage
from twofold.controller.records import AbortTransaction, BeginTransaction, EndTransaction, decode
from twofold.controller.snapshot_records import snapshot_values
from twofold.quorum.loader import CommittedBatch, MetadataLoader
from twofold.quorum.quorum_controller import QuorumController
from twofold.runtime.sim import Simulation
from twofold.wire.errors import NotController

CLUSTER_ID = "AMfjnEcPR1OcURHLX8pQFQ"


class Batch(NamedTuple):
    """Without values: the change of the leader that an epoch begins with."""

    base_offset: int
    epoch: int
    values: tuple[bytes, ...]

    @property
    def end(self) -> int:
        return self.base_offset + max(1, len(self.values))

    def entries(self) -> list[Entry]:
        return _decoded(self)


@lru_cache(maxsize=1000)
def _decoded(batch: Batch) -> list[Entry]:
    decoded = ((offset, decode(value)) for offset, value in enumerate(batch.values, batch.base_offset))
    return [(offset, record) for offset, record in decoded if record is not None]


class Replica:
    """The log as one controller sees it when it leads: what it has to append to."""

    def __init__(self, quorum: "Quorum") -> None:
        self.tail: list[Batch] = []
        """Appended in its epoch, and not known to be committed."""
        self.epoch = -1
        self.appended = 0
        self.on_append: Callable[[], None] = lambda: None
        self.refuse_in = 0
        """How many appends from now one is refused, because there is no room for it; 0: none."""
        self._quorum = quorum
        self._end = 0
        self._begins_with_abort = False
        self._in_transaction = False

    @property
    def end_offset(self) -> int:
        return self.tail[-1].end if self.tail else self._end

    def begin(self, epoch: int) -> None:
        self.epoch, self.tail, self._end = epoch, [], self._quorum.end
        self.refuse_in = 0
        self._begins_with_abort = self._in_transaction = self._quorum.truth.opened is not None

    def append(self, values: Sequence[bytes], epoch: int) -> int:
        if epoch != self.epoch:
            raise NotController(f"epoch {epoch} is over, this is {self.epoch}")
        if self.refuse_in:
            self.refuse_in -= 1
            if not self.refuse_in:
                self._quorum.note("refuse an append")
                raise NotController("there is no room in the buffers")
        batch = Batch(self.end_offset, epoch, tuple(values))
        self._check(batch.entries())
        self.tail.append(batch)
        self.appended += 1
        self._quorum.note(f"append {batch.base_offset}-{batch.end - 1} epoch {epoch} {flat(batch.entries())}")
        self.on_append()
        return batch.end - 1

    def take(self, count: int) -> list[Batch]:
        """The first of its tail, which are committed now."""
        taken, self.tail = self.tail[:count], self.tail[count:]
        if taken:
            self._end = taken[-1].end
        return taken

    def _check(self, entries: Sequence[Entry]) -> None:
        for offset, record in entries:
            is_failover = isinstance(record, AbortTransaction) and record.reason == FAILOVER
            require(
                is_failover == self._begins_with_abort,
                f"a new leader begins with {FAILOVER!r} where a transaction is open, and nowhere else: {record} at "
                f"{offset}, first of its epoch with an open transaction: {self._begins_with_abort}",
            )
            self._begins_with_abort = False
            ends = isinstance(record, EndTransaction | AbortTransaction)
            if isinstance(record, BeginTransaction) or ends:
                require(self._in_transaction == ends, f"{record} at {offset}, inside a transaction: {not ends}")
                self._in_transaction = not ends


class Quorum:
    def __init__(self, truth: Truth, note: Callable[[str], None]) -> None:
        self.truth = truth
        self.note = note
        self.batches: list[Batch] = []
        """What is committed."""
        self.epoch = 0
        self.leader: Replica | None = None
        """Whose tail counts."""

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def commit(self, count: int) -> None:
        """The first batches of the leader's tail are committed; the leader is told by somebody else."""
        if self.leader is not None:
            for batch in self.leader.take(count):
                self._commit(batch)

    def _commit(self, batch: Batch) -> None:
        self.note(f"commit {batch.base_offset}-{batch.end - 1}")
        self.batches.append(batch)
        self.truth.commit(batch.entries(), batch.end)

    def elect(self, replica: Replica, keep: int) -> int:
        """A new epoch. Of the tail of the leader before, so many batches are not lost."""
        self.commit(keep)
        lost = 0 if self.leader is None else len(self.leader.tail)
        self.epoch += 1
        self.leader = replica
        replica.tail = []
        self.note(f"elect epoch {self.epoch}, {keep} batches kept, {lost} lost")
        self._commit(Batch(self.end, self.epoch, ()))
        return self.epoch

    def ends_batch(self, end: int) -> bool:
        """Where a snapshot may end."""
        return any(batch.end == end for batch in self.batches)

    def read(self, offset: int, limit: int) -> list[Batch]:
        first = next((at for at, batch in enumerate(self.batches) if batch.base_offset >= offset), len(self.batches))
        return self.batches[first : first + limit]


class Member:
    """A controller of the quorum, from its start to its crash."""

    def __init__(
        self, sim: Simulation, quorum: Quorum, number: int, violations: list[Violation], settings: Settings
    ) -> None:
        self.name = f"controller{number}"
        self.number = number
        self.position = 0
        """What is below it knows to be committed."""
        self.elected: int | None = None
        """The epoch in which it will lead, once it has loaded all."""
        self.is_deposed = False
        """It leads no longer, and does not know."""
        self.replica = Replica(quorum)
        self.runtime = sim.runtime(self.name)
        self.controller = QuorumController(self.runtime, settings, self.replica, node_id=number, cluster_id=CLUSTER_ID)
        self.reader = Reader(quorum.truth, self.name, violations)
        self.controller.subscribe(self.reader)
        self._quorum = quorum
        self._violations = violations
        self._checked: MetadataImage | None = None

    @property
    def leads(self) -> bool:
        """Really."""
        return self._quorum.leader is self.replica and self.replica.epoch == self._quorum.epoch

    @property
    def lag(self) -> int:
        return self._quorum.end - self.position

    # -- leading

    def elect(self, keep: int, others: "Sequence[Member]", *, told: bool = True) -> None:
        """Depose whoever leads; without `told` that one does not hear of it yet."""
        for other in (*others, self):
            other.elected = None
            if other.controller.is_leader:
                other.is_deposed = True
                if told or other is self:
                    other.resign()
        self.elected = self._quorum.elect(self.replica, keep)

    def resign(self) -> None:
        self._quorum.note(f"{self.name} resigns")
        self.replica.epoch = -1
        self.is_deposed = False
        self.controller.resign(NotController("another controller leads"))

    def lead_if_ready(self) -> bool:
        if self.elected is None or self.lag:
            return False
        epoch, self.elected = self.elected, None
        truth = self._quorum.truth
        must_write = truth.opened is not None or truth.image.is_empty
        self.replica.begin(epoch)
        self._quorum.note(f"{self.name} leads epoch {epoch}")
        before = self.replica.appended
        led = self.controller.lead(epoch)
        led.add_done_callback(lambda done: done.cancelled() or done.exception())
        wrote = self.replica.appended - before
        require(wrote == must_write, f"{self.name} wrote {wrote} batches when it began to lead epoch {epoch}")
        return True

    def tell(self, limit: int | None = None) -> None:
        """The leader hears what of its writing is committed."""
        batches = self._quorum.read(self.position, len(self._quorum.batches) if limit is None else limit)
        if self.leads and batches:
            self.position = batches[-1].end
            self.controller.committed(self.position - 1)
            self.check()

    # -- standing by

    def load(self, limit: int, *, at_once: bool = False) -> None:
        """Take in batches and show them, each or all together."""
        for batch in self._quorum.read(self.position, limit):
            self.controller.load(batch.entries())
            self.position = batch.end
            if not at_once:
                self.controller.show()
                self.check()
        self.controller.show()
        self.check()

    def load_snapshot(self, index: int) -> bool:
        """What the log says at one of the images that may be seen, if that is newer than what is known here."""
        image = self._quorum.truth.images[index]
        end = image.offset + 1
        if end <= self.position or image.is_empty or not self._quorum.ends_batch(end):
            return False
        entries = [(image.offset, record) for value in snapshot_values(image) if (record := decode(value)) is not None]
        self._quorum.note(f"{self.name} loads the snapshot of {image.offset}")
        self.controller.load(entries, is_snapshot=True)
        self.controller.show()
        self.position = end
        self.check()
        return True

    def catch_up(self) -> None:
        self.load(len(self._quorum.batches))

    def check(self) -> None:
        """Whoever reads now reads what was published last, and that may be seen."""
        image = self.controller.image
        if image is not self._checked:  # what may be seen once may be seen for ever
            check_image(self._quorum.truth, image, f"{self.name} shows")
            self._checked = image
        require(image is self.reader.image or image.offset < 0, f"{self.name} shows what it has not published")
        if self._violations:
            raise self._violations[0]


class Follower:
    """A broker or a tool that reads what is committed: the same invariants hold for it."""

    def __init__(self, quorum: Quorum, name: str, violations: list[Violation]) -> None:
        self.loader = MetadataLoader()
        self.position = 0
        self.reader = Reader(quorum.truth, name, violations)
        self._quorum = quorum

    def load(self, limit: int) -> None:
        batches = self._quorum.read(self.position, limit)
        if batches:
            self.position = batches[-1].end
            for one in self.loader.load([CommittedBatch(batch.entries(), batch.end - 1) for batch in batches]):
                self.reader(one.delta, one.image)

    def load_snapshot(self, index: int) -> bool:
        image = self._quorum.truth.images[index]
        if image.offset < self.position or image.is_empty or not self._quorum.ends_batch(image.offset + 1):
            return False
        values = [decode(value) for value in snapshot_values(image)]
        published = self.loader.load_snapshot([record for record in values if record is not None], image.offset)
        self.position = image.offset + 1
        self.reader(published.delta, published.image)
        return True


def load_afresh(quorum: Quorum, *, callbacks: int) -> MetadataLoader:
    """All that is committed, from the beginning, in so many callbacks."""
    loader = MetadataLoader()
    size = max(1, -(-len(quorum.batches) // callbacks))
    for at in range(0, len(quorum.batches), size):
        loader.load([CommittedBatch(batch.entries(), batch.end - 1) for batch in quorum.batches[at : at + size]])
    return loader


def check_pure(quorum: Quorum) -> None:
    """Loading is a function of the log: in one callback or in several, it comes to the same."""
    expected = quorum.truth.image
    for callbacks in (1, 3):
        image = load_afresh(quorum, callbacks=callbacks).image
        check_image(quorum.truth, image, f"a load in {callbacks} callbacks gives")
        at_end = replace(image, offset=expected.offset)
        require(at_end == expected, f"a load in {callbacks} callbacks ends at {image.offset}, not {expected.offset}")
