"""Epochs near their limit: from 32764 through 32766 to a new producer id, in every state, with a crash after every
record of the way.

The first record of each story is put into the log of the transaction coordinator by its own hand, because no client
could make 32764 transactions in a test. From there on clients walk, and the broker dies: right after a record, with or
without an answer to whoever asked for it. What was asked is asked again, and the walk ends where it would have without
a crash: nobody is fenced by a repetition, nobody ever holds epoch 32767, nothing is stuck.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from kits.wire.driver import TV1, TV2, Fatal, Fenced, Identity, Versions
from sim.transactions.history import Outcome
from sim.transactions.stage import Player, Stage, play
from twofold.coordinator.transaction.states import State
from twofold.types import ProducerEpoch

START = 32764
LAST = 32766
TIMEOUT_MS = 300

Walk = Callable[[Stage, Player], Awaitable[None]]


async def at_the_start(stage: Stage, versions: Versions, *, epoch: int = START, timeout_ms: int = 60_000) -> Player:
    """A player whose id has the epoch, in state EMPTY."""
    player = stage.player(versions=versions, timeout_ms=timeout_ms)
    await player.init()
    await stage.inject(lambda entry: entry._replace(producer_epoch=ProducerEpoch(epoch - 1)))
    await player.init()
    assert player.identity.producer_epoch == epoch
    return player


async def by_commits(stage: Stage, player: Player) -> None:
    for _ in range(4):
        assert await player.play()


async def by_aborts(stage: Stage, player: Player) -> None:
    for _ in range(4):
        assert not await player.play(commit=False)


async def by_empty_aborts(stage: Stage, player: Player) -> None:
    for _ in range(4):
        await player.abort_nothing()


async def by_bumps(stage: Stage, player: Player) -> None:
    """InitProducerId with the identity that the client has: each is one step, also when it is asked for twice."""
    for _ in range(4):
        await player.init(bump=True)
    assert await player.play()


async def by_bumps_between_transactions(stage: Stage, player: Player) -> None:
    """The way of a TV1 client, whose epoch moves only so."""
    for commit in (True, False, True, True):
        await player.play(commit=commit)
        await player.init(bump=True)


async def by_timeouts(stage: Stage, player: Player) -> None:
    """The coordinator ends each transaction, and its producer hears of that from its own abort."""
    for _ in range(4):
        txn = player.begin()
        await player.write(txn)
        await stage.until(lambda: stage.state_of() in (State.COMPLETE_ABORT, State.PREPARE_ABORT), "the timeout")
        assert not await player.end(txn, commit=False)


WALKS = [
    (by_commits, TV2),
    (by_aborts, TV2),
    (by_empty_aborts, TV2),
    (by_bumps, TV1),
    (by_bumps, TV2),
    (by_bumps_between_transactions, TV1),
    (by_timeouts, TV2),
]


def name_of(value: object) -> str | None:
    return getattr(value, "__name__", None) if callable(value) else "tv2" if value is TV2 else "tv1"


def crash_after_every_record(tell: Callable[[Stage], Awaitable[None]], walk: Callable[[Stage], Awaitable[None]]) -> int:
    """After how many records it died, one after the other."""
    for number in count(1):
        crashed = False

        async def story(stage: Stage, number: int = number) -> None:
            nonlocal crashed
            await tell(stage)
            written = 0

            def on_record() -> None:
                nonlocal written, crashed
                written += 1
                if written == number:
                    crashed = True
                    if number % 2:
                        # Before anybody hears of it.
                        asyncio.get_running_loop().call_soon(stage.crash)
                        stage.sim.network.reset("broker")
                    else:
                        # Whoever waits for the record is told; nothing else comes after it.
                        stage.crash_after(0)

            stage.on_record = on_record
            await walk(stage)
            stage.on_record = None

        play(story, seed=number)
        if not crashed:
            return number - 1
    raise AssertionError("unreachable")


@pytest.mark.parametrize(("walk", "versions"), WALKS, ids=name_of)
def test_a_walk_over_the_last_epochs_that_nothing_interrupts(walk: Walk, versions: Versions) -> None:
    async def story(stage: Stage) -> None:
        timeout_ms = TIMEOUT_MS if walk is by_timeouts else 60_000
        player = await at_the_start(stage, versions, timeout_ms=timeout_ms)
        before = player.identity
        await walk(stage, player)
        assert player.identity.producer_id != before.producer_id
        assert player.identity.producer_epoch == (2 if walk is by_bumps and versions is TV2 else 1)

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize(("walk", "versions"), WALKS, ids=name_of)
def test_a_walk_over_the_last_epochs_with_a_crash_after_every_record(walk: Walk, versions: Versions) -> None:
    async def start(stage: Stage) -> None:
        timeout_ms = TIMEOUT_MS if walk is by_timeouts else 60_000
        await at_the_start(stage, versions, timeout_ms=timeout_ms)

    async def on(stage: Stage) -> None:
        (player,) = stage.players
        before = player.identity
        await walk(stage, player)
        assert player.identity.producer_id != before.producer_id
        assert player.identity.producer_epoch == (2 if walk is by_bumps and versions is TV2 else 1)

    assert crash_after_every_record(start, on) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("versions", [TV1, TV2], ids=["tv1", "tv2"])
@pytest.mark.parametrize("epoch", [START, START + 1, LAST])
def test_an_id_that_is_taken_over_near_its_last_epoch_with_a_crash_after_every_record(
    versions: Versions, epoch: int
) -> None:
    """The first has a transaction open; whoever comes after it fences it, time after time."""

    async def start(stage: Stage) -> None:
        await at_the_start(stage, versions, epoch=epoch)

    async def on(stage: Stage) -> None:
        (owner,) = stage.players
        before = owner.identity
        for number in range(3):
            txn = owner.begin()
            await owner.write(txn)
            successor = stage.player(f"successor{number}", versions=versions)
            await successor.init()
            with pytest.raises((Fenced, Fatal)):  # of another epoch, or by now of another producer id
                await owner.end(txn)
            txn.told = Outcome.ABORTED  # whatever became of an answer: it asked after it was fenced
            owner = successor
        assert await owner.play()
        assert owner.identity.producer_id != before.producer_id

    assert crash_after_every_record(start, on) >= 10


@pytest.mark.parametrize("versions", [TV1, TV2], ids=["tv1", "tv2"])
def test_an_id_that_was_counted_too_far_is_not_stuck(versions: Versions) -> None:
    """Logs of older brokers hold open transactions under 32767, which is for markers only (KAFKA-20090)."""

    async def story(stage: Stage) -> None:
        player = await at_the_start(stage, versions, epoch=LAST)
        txn = player.begin()
        await player.write(txn)
        await stage.inject(lambda entry: entry._replace(producer_epoch=ProducerEpoch(LAST + 1)))
        assert stage.state_of() is State.ONGOING
        successor = stage.player("successor", versions=versions)
        await successor.init()
        assert successor.identity.producer_id != txn.identity[0]
        assert await successor.play()

    play(story)


def test_the_client_of_a_lost_answer_at_the_last_epoch_goes_on_under_the_new_producer_id() -> None:
    """Asked again after a failover: the coordinator knows who it was (KAFKA-20310, KAFKA-20357)."""

    async def story(stage: Stage) -> None:
        player = await at_the_start(stage, TV2, epoch=LAST)
        before = player.identity
        txn = player.begin()
        await player.write(txn)
        driver = player._driver
        txn.commit_sent_s = stage.now_s
        first = await driver.end_txn(True)
        stage.crash()
        await stage.until(lambda: stage.state_of() is State.COMPLETE_COMMIT and stage.node.up.is_set(), "the end")
        await driver.commit()
        assert driver.identity == Identity(first.producer_id, 0) != before
        player._end(txn, Outcome.COMMITTED)
        assert await player.play()

    play(story)
