"""Two transactional ids, a stage, and power that goes again and again: each time some partitions lose the marker that
they end with.

Markers are all that is lost, so everything must end as it was decided, and no client notices.
"""

from dataclasses import dataclass
from random import Random

from kits.folders.lost_tail import ends_with_marker, last_segment, lose_batches
from sim.broker.world import BROKER, DATA
from sim.transactions.history import Value, Write
from sim.transactions.stage import A, B, Player, Stage, play
from sim.transactions.watch import PREPARED
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.coordinator.transaction.states import State
from twofold.runtime.files import read_file
from twofold.types import TopicPartition

PLACES = (A, B, TopicPartition(CONSUMER_OFFSETS, 0))
IDS = ("one", "two")


@dataclass(frozen=True)
class LostMarkersPlan:
    seed: int
    rounds: tuple[int, ...]
    """How many transactions before each cut."""
    lost: float
    """Of the markers that may be lost."""


def make_lost_markers_plan(seed: int) -> LostMarkersPlan:
    random = Random(f"lost markers {seed}")
    rounds = tuple(random.randint(1, 5) for _ in range(random.randint(1, 5)))
    return LostMarkersPlan(seed, rounds, random.choice((0.3, 0.6, 1.0)))


def simulate_lost_markers(seed: int, plan: LostMarkersPlan | None = None) -> Stage:
    chosen = plan or make_lost_markers_plan(seed)

    async def story(stage: Stage) -> None:
        random = Random(f"lost markers {seed}/story")
        players = [stage.player(name, name) for name in IDS]
        for player in players:
            await player.init()
        for transactions in chosen.rounds:
            for _ in range(transactions):
                await step(random.choice(players), random)
            await stage.until(lambda: is_settled(stage), "the end of what was begun")
            marked = [place for place in PLACES if may_lose_its_marker(stage, place)]
            await come_back(stage, tuple(place for place in marked if random.random() < chosen.lost))

    return play(story, seed=seed)


async def step(player: Player, random: Random) -> None:
    commit = random.random() < 0.6
    way = random.random()
    if way < 0.2:
        await player.init()
    elif way < 0.6:
        await player.insist(commit=commit)
    else:
        await only(player, random.choice((A, B)), commit=commit)


async def only(player: Player, partition: TopicPartition, *, commit: bool) -> None:
    """A transaction in one partition alone: others keep the marker of an earlier one as their last batch."""
    txn = player.begin()

    async def write() -> None:
        await player._send(txn, [Write(partition, Value(txn.label, 0).encode())])

    await player.transaction(txn, write, commit=commit)


def is_settled(stage: Stage) -> bool:
    states = [stage.state_of(name) for name in IDS]
    return not any(state is State.ONGOING or state in PREPARED for state in states)


def may_lose_its_marker(stage: Stage, place: TopicPartition) -> bool:
    """Whether the partition ends with one that was not synced, and was not there after the cut before either."""
    log = None if stage.node.broker is None else stage.node.broker.logs.get(place)
    if log is None or not log.exists:
        return False
    certain = max((model.durable_to for model in stage.watch.of(place)), default=0)
    if max(certain, log.recovery_point) >= log.log_end_offset:
        return False
    disk = stage.sim.disk(BROKER)
    return ends_with_marker(read_file(disk, last_segment(disk, f"{DATA}/{place}")))


async def come_back(stage: Stage, lost: tuple[TopicPartition, ...]) -> None:
    """The power goes, and with it these markers; then it is there again."""
    runs = stage.node.runs
    lose_batches(stage.sim, BROKER, dict.fromkeys(lost, 1))
    await stage.until(lambda: stage.node.runs > runs and stage.node.up.is_set(), "the restart")
