"""A leader, its followers and a controller as values, with messages that are late or lost between them.

1. The controller is a model of Apache Kafka's: it alone changes the ISR, and it checks what the leader proposes.
2. The leader hears of the metadata late. So do followers of an election. Requests and answers get lost at any point.
3. A broker that dies comes back with another epoch, and may have lost the tail of its log. Fetches that it had sent
   before may still arrive. Each has the epoch of its broker: without it (Fetch below version 15) nothing could tell
   them from new ones, and the rules below would not hold (KIP-903).
4. An election puts another replica in the place of the leader: it has all that was committed, and a high watermark
   that is behind.
5. After each step `check` asks whether all that was ever committed is in the log of each member of the ISR.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from twofold.replication.isr import IsrChange, Reaction
from twofold.replication.leader import FollowerFetch, LeaderState
from twofold.wire.errors import (
    NONE,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidUpdateVersion,
    NotController,
)
from twofold.wire.messages.alter_partition import PartitionDataResult

LEADER = 1
LAG_MS = 30_000


class Broken(AssertionError):
    """What must hold does not."""


class State(NamedTuple):
    """A partition in the metadata."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


class Standing(NamedTuple):
    """A broker in the metadata."""

    epoch: int
    is_active: bool


class Image(NamedTuple):
    state: State
    brokers: dict[int, Standing]


class Sent(NamedTuple):
    """A fetch on its way to the leader."""

    replica: int
    leader_epoch: int
    fetch: FollowerFetch


@dataclass
class Disk:
    """How far a follower's log agrees with that of the leader."""

    end: int = 0
    epoch: int = 100  # of its broker
    hears_of: int = 0  # the leader epoch that it knows


@dataclass
class LeaderWorld:
    seed: int
    decisions: type[LeaderState] = LeaderState
    replicas: int = 3
    min_in_sync: int = 2
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        ids = tuple(range(LEADER, LEADER + self.replicas))
        self.state = State(ids, ids, 0, 0)  # as the controller has it
        self.brokers = {broker: Standing(100, True) for broker in ids}
        self.disks = {broker: Disk() for broker in ids if broker != LEADER}
        self.image = Image(self.state, dict(self.brokers))  # as the leader has it
        self.news: deque[Image] = deque()
        self.now_ms = 1_000_000
        self.log_end = self.high_watermark = 0
        self.committed = 0  # the highest high watermark that a leader ever had
        self.leading: LeaderState = self.decisions.begin(LEADER, self.state, 0, self.now_ms)
        self.fetches: dict[int, deque[Sent]] = {broker: deque() for broker in self.disks}
        self.change: IsrChange | None = None  # that the sender has to bring to the controller
        self.request: IsrChange | None = None  # on its way
        self.answer: tuple[IsrChange, PartitionDataResult] | None = None  # on its way back
        self.written: list[tuple[int, int]] = []  # what was promised to be safe: last offset, leader epoch
        self.acknowledged: list[int] = []

    # --- the leader ---

    def append(self) -> None:
        count = self.random.randint(1, 3)
        self.log_end += count
        if len(self.leading.isr.committed) >= self.leading.min_in_sync(self.min_in_sync):
            self.written.append((self.log_end - 1, self.leading.leader_epoch))
        self._advance()

    def _advance(self) -> None:
        leading = self.leading
        moved = leading.high_watermark(
            self.high_watermark, self.log_end, min_in_sync=self.min_in_sync, brokers=self.image.brokers.get,
            now_ms=self.now_ms, lag_ms=LAG_MS,
        )  # fmt: skip
        if moved < self.high_watermark:
            raise Broken(f"the high watermark fell from {self.high_watermark} to {moved}")
        if moved > self.high_watermark:
            ends = {LEADER: self.log_end} | {name: f.end_offset for name, f in leading.followers.items()}
            behind = {name: ends[name] for name in leading.isr.maximal if ends[name] < moved}
            if behind:
                raise Broken(f"the high watermark moves to {moved}, and in the maximal ISR are {behind}")
            if len(leading.isr.committed) < min(self.min_in_sync, len(leading.replicas)):
                raise Broken(f"the high watermark moves to {moved} with {leading.isr.committed} in sync")
        self.high_watermark = moved
        self.committed = max(self.committed, moved)
        self.acknowledged += [offset for offset, _ in self.written if offset < moved]
        self.written = [(offset, epoch) for offset, epoch in self.written if offset >= moved]

    def hear_fetch(self) -> None:
        """The leader gets the oldest fetch of a follower, and its answer may come back."""
        waiting = [name for name, sent in self.fetches.items() if sent]
        if not waiting:
            return
        name = self.random.choice(waiting)
        sent = self.fetches[name].popleft()
        leading = self.leading
        if sent.leader_epoch != leading.leader_epoch or name not in leading.followers:
            return  # 74, 75 or 6
        if sent.fetch.offset > self.log_end or leading.is_stale(sent.fetch, self.image.brokers.get(name)):
            return
        self.leading = leading.fetched(name, sent.fetch, self.log_end, self.now_ms)
        change = self.leading.expansion(name, self.high_watermark, self.image.brokers.get)
        if change is not None:
            self._propose(change)
        self._advance()
        disk = self.disks[name]
        is_same_process = sent.fetch.broker_epoch == disk.epoch and disk.end == sent.fetch.offset
        if is_same_process and disk.hears_of == sent.leader_epoch and self.random.random() < 0.8:
            disk.end = self.random.randint(disk.end, self.log_end)

    def shrink(self) -> None:
        change = self.leading.shrinking(self.log_end, self.now_ms, LAG_MS)
        if change is not None:
            self._propose(change)
        self._advance()

    def _propose(self, change: IsrChange) -> None:
        self.leading = self.leading.asking(change)
        self.change = change

    def hear_news(self) -> None:
        if not self.news:
            return
        self.image = self.news.popleft()
        state = self.image.state
        if state.leader_epoch > self.leading.leader_epoch:
            raise AssertionError("elections are told at once")
        self.leading = self.leading.updated(state)
        self._advance()

    # --- followers ---

    def send_fetch(self) -> None:
        name = self.random.choice(list(self.disks))
        disk = self.disks[name]
        if len(self.fetches[name]) < 3:
            disk.hears_of = self.state.leader_epoch if self.random.random() < 0.9 else disk.hears_of
            self.fetches[name].append(Sent(name, disk.hears_of, FollowerFetch(disk.end, 0, disk.epoch)))

    def restart(self) -> None:
        """A broker is killed and registers anew. It is out of the ISR, and may have lost the tail of its log."""
        name = self.random.choice(list(self.disks))
        disk = self.disks[name]
        disk.end = self.random.randint(disk.end // 2, disk.end)
        disk.epoch += 1
        self.brokers[name] = Standing(disk.epoch, False)
        self._leave(name)

    # --- the controller ---

    def fence(self) -> None:
        name = self.random.choice(list(self.disks))
        self.brokers[name] = self.brokers[name]._replace(is_active=False)
        self._leave(name)

    def unfence(self) -> None:
        name = self.random.choice(list(self.disks))
        self.brokers[name] = self.brokers[name]._replace(is_active=True)
        self._tell()

    def _leave(self, name: int) -> None:
        if name in self.state.isr:
            isr = tuple(other for other in self.state.isr if other != name)
            self.state = self.state._replace(isr=isr, partition_epoch=self.state.partition_epoch + 1)
        self._tell()

    def _tell(self) -> None:
        self.news.append(Image(self.state, dict(self.brokers)))

    def elect(self) -> None:
        """A replica that has all that was committed leads; its log may be shorter, its high watermark is behind."""
        self.state = self.state._replace(
            leader_epoch=self.state.leader_epoch + 1, partition_epoch=self.state.partition_epoch + 1
        )
        self.log_end = self.random.randint(self.committed, self.log_end)
        self.high_watermark = self.random.randint(self.high_watermark // 2, self.high_watermark)
        for disk in self.disks.values():
            disk.end = min(disk.end, self.log_end)
        self.written.clear()
        self.news.clear()
        self.image = Image(self.state, dict(self.brokers))
        self.change = self.request = self.answer = None
        self.leading = self._begin()

    def _begin(self) -> LeaderState:
        return self.decisions.begin(LEADER, self.state, self.log_end, self.now_ms)

    # --- between leader and controller ---

    def send_change(self) -> None:
        if self.request is None and self.answer is None and self.change is not None:
            self.request = self.change

    def lose_request(self) -> None:
        self.request = None

    def lose_answer(self) -> None:
        self.answer = None

    def decide(self) -> None:
        if self.request is None:
            return
        change, self.request = self.request, None
        code = self._problem(change)
        if code == NONE and set(change.broker_ids) != set(self.state.isr):
            self.state = self.state._replace(isr=change.broker_ids, partition_epoch=self.state.partition_epoch + 1)
            self._tell()
        self.answer = change, self._row(code)

    def _row(self, code: int) -> PartitionDataResult:
        state = self.state
        return PartitionDataResult(
            partition_index=0, error_code=code, leader_id=LEADER, leader_epoch=state.leader_epoch, isr=state.isr,
            partition_epoch=state.partition_epoch,
        )  # fmt: skip

    def _problem(self, change: IsrChange) -> int:
        if self.random.random() < 0.1:
            return self.random.choice((NotController.code, IneligibleReplica.code))
        if change.leader_epoch > self.state.leader_epoch or change.partition_epoch > self.state.partition_epoch:
            return NotController.code
        if change.leader_epoch < self.state.leader_epoch:
            return FencedLeaderEpoch.code
        if change.partition_epoch < self.state.partition_epoch:
            return InvalidUpdateVersion.code
        for member in change.members:
            standing = self.brokers[member.broker_id]
            if not standing.is_active or (
                member.broker_id != LEADER and member.broker_epoch not in (-1, standing.epoch)
            ):
                return IneligibleReplica.code
        return NONE

    def hear_answer(self) -> None:
        if self.answer is None:
            return
        (change, row), self.answer = self.answer, None
        self.leading, reaction = self.leading.answered(change, row)
        if reaction is not Reaction.SEND_AGAIN and self.change == change:
            self.change = None
        self._advance()

    # --- running ---

    def pass_time(self) -> None:
        self.now_ms += self.random.choice((10, 500, 5_000, 20_000))

    def step(self) -> None:
        name = self.random.choices(*STEPS)[0]
        self.log.append(name)
        getattr(self, name)()
        self.check()

    def check(self) -> None:
        ends = {LEADER: self.log_end} | {name: disk.end for name, disk in self.disks.items()}
        behind = {name: ends[name] for name in self.state.isr if ends[name] < self.committed}
        if behind:
            raise Broken(f"committed up to {self.committed}, and the ISR {self.state.isr} has {behind}")
        if self.acknowledged and max(self.acknowledged) >= self.committed:
            raise Broken(f"{max(self.acknowledged)} is acknowledged, and committed up to {self.committed}")

    def heal(self) -> None:
        """Nothing gets lost any more: all replicas come into the ISR, and all that was written is committed."""
        for name in self.disks:
            self.brokers[name] = self.brokers[name]._replace(is_active=True)
        self._tell()
        for _ in range(60):
            while self.news:
                self.hear_news()
            for name, disk in self.disks.items():
                disk.hears_of = self.state.leader_epoch
                self.fetches[name].clear()
                disk.end = self.log_end
                self.fetches[name].append(Sent(name, disk.hears_of, FollowerFetch(disk.end, 0, disk.epoch)))
                self.hear_fetch()
            self.send_change()
            self.decide()
            self.hear_answer()
            self.check()
        if set(self.state.isr) != set(self.state.replicas) or self.high_watermark != self.log_end:
            raise Broken(f"healed, and {self.state.isr} is in sync, {self.high_watermark} of {self.log_end} committed")


WEIGHTS = {
    "append": 12, "send_fetch": 24, "hear_fetch": 24, "shrink": 4, "pass_time": 4, "hear_news": 6, "send_change": 10,
    "decide": 8, "hear_answer": 8, "lose_request": 1, "lose_answer": 1, "restart": 1, "fence": 1, "unfence": 3,
    "elect": 1,
}  # fmt: skip
STEPS = (list(WEIGHTS), list(WEIGHTS.values()))


def walk(seed: int, decisions: type[LeaderState] = LeaderState, steps: int = 250) -> LeaderWorld:
    world = LeaderWorld(seed, decisions, replicas=2 + seed % 3, min_in_sync=1 + seed % 2)
    for _ in range(steps):
        world.step()
    world.heal()
    return world
