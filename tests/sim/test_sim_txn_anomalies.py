"""What independent testers found in systems like ours, told one by one.

The seeds of `test_sim_transactions` look for the same things under random faults; here each happens for certain.

A request that a proxy would hold back and release later is simply sent late, by the driver that would have sent it.
"""

from typing import Any

import pytest

from kits.wire.driver import TV1, TV2, Abortable, Fenced, Versions
from kits.wire.reader import TxnReader
from sim.transactions.history import Outcome, Txn, Value, Write
from sim.transactions.log import Fate
from sim.transactions.stage import ID, A, B, Player, Stage, play
from twofold.coordinator.transaction.states import State
from twofold.types import TopicPartition
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    ProducerFenced,
    UnstableOffsetCommit,
)

TIMEOUT_MS = 200
both = pytest.mark.parametrize("versions", [TV1, TV2], ids=["tv1", "tv2"])


async def reading(stage: Stage, *, committed: bool = True) -> list[bytes]:
    """What a new reader finds now, on both partitions."""
    found: list[bytes] = []

    async def read(runtime: Any) -> None:
        reader = TxnReader(runtime, "broker:9092", [A, B], committed=committed)
        found.extend(row.value or b"" for row in await reader.read_to_end())
        await reader.close()

    await stage.run_on("reader", read)
    return found


def produced(answer: Any) -> list[tuple[int, int]]:
    """(error code, base offset) of each partition."""
    return [(row.error_code, row.base_offset) for topic in answer.responses for row in topic.partition_responses]


def late(player: Player, txn: Txn, tp: TopicPartition, *, sequence: int = 0) -> dict[TopicPartition, bytes]:
    """A batch of the transaction, that arrives when it is over."""
    value = Value(txn.label, 100 + len(txn.writes)).encode()
    txn.writes.append(Write(tp, value))
    return {tp: player._driver.batch([value], sequence, identity=player._driver.identity)}


async def ended(stage: Stage) -> None:
    await stage.until(lambda: stage.state_of() is State.COMPLETE_ABORT, "the timeout")


# Reads


def test_g0_two_transactions_may_interleave_in_a_partition() -> None:
    """Allowed: the log keeps the order of arrival, and a reader gets the records of both in that order."""

    async def story(stage: Stage) -> None:
        first, second = stage.player("first", "one"), stage.player("second", "two")
        await first.init()
        await second.init()
        mine, yours = first.begin(), second.begin()
        for player, txn in ((first, mine), (second, yours), (first, mine), (second, yours)):
            await player._send(txn, [Write(A, Value(txn.label, len(txn.writes)).encode())])
        assert await second.end(yours)
        assert await reading(stage) == [], "the first transaction holds the readers of the second up"
        assert await first.end(mine)
        assert [value.split(b"|")[0] for value in await reading(stage)] == [
            label.encode() for label in (mine.label, yours.label, mine.label, yours.label)
        ]

    play(story)


@both
def test_g1a_a_commit_that_comes_after_the_coordinator_has_aborted(versions: Versions) -> None:
    async def story(stage: Stage) -> None:
        player = stage.player(versions=versions, timeout_ms=TIMEOUT_MS)
        await player.init()
        txn = player.begin()
        await player.write(txn)
        await ended(stage)
        with pytest.raises(Fenced):
            await player.end(txn)
        assert txn.outcome is Outcome.ABORTED
        assert await reading(stage) == []

    play(story)


@both
def test_g1a_a_restart_between_the_decision_to_abort_and_its_markers(versions: Versions) -> None:
    async def story(stage: Stage) -> None:
        player = stage.player(versions=versions)
        await player.init()
        txn = player.begin()
        await player.write(txn)
        stage.crash_after(1)  # the decision is the first write that follows
        assert not await player.end(txn, commit=False)
        assert await reading(stage) == []
        assert await player.play()
        assert len(await reading(stage)) == 2

    play(story)


@both
def test_a_transaction_does_not_see_its_own_records_before_it_commits(versions: Versions) -> None:
    async def story(stage: Stage) -> None:
        player = stage.player(versions=versions)
        await player.init()
        txn = player.begin()
        await player.write(txn)
        assert await reading(stage) == []
        assert len(await reading(stage, committed=False)) == 2
        assert await player.end(txn)
        assert len(await reading(stage)) == 2

    play(story)


@both
def test_readers_of_uncommitted_data_see_what_was_aborted(versions: Versions) -> None:
    async def story(stage: Stage) -> None:
        player = stage.player(versions=versions)
        await player.init()
        await player.play(commit=False)
        await player.play()
        assert (len(await reading(stage)), len(await reading(stage, committed=False))) == (2, 4)

    play(story)


# Requests that come late


def test_an_abort_that_comes_when_the_next_transaction_is_open() -> None:
    """The lost write: what the next one commits is there."""

    async def story(stage: Stage) -> None:
        player = stage.player()
        await player.init()
        old = player.identity
        await player.play(commit=False)
        txn = player.begin()
        await player.write(txn)
        assert (await player._driver.end_txn(False, identity=old)).error_code == ProducerFenced.code
        assert stage.state_of() is State.ONGOING
        assert await player.end(txn)
        assert len(await reading(stage)) == 2

    play(story)


def test_a_commit_that_comes_when_the_next_transaction_is_open() -> None:
    async def story(stage: Stage) -> None:
        player = stage.player()
        await player.init()
        old = player.identity
        assert await player.play()
        again = await player._driver.end_txn(True, identity=old)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, *player.identity), "a repetition"
        txn = player.begin()
        await player.write(txn)
        assert (await player._driver.end_txn(True, identity=old)).error_code == ProducerFenced.code
        assert stage.state_of() is State.ONGOING
        assert not await player.end(txn, commit=False)
        assert len(await reading(stage)) == 2

    play(story)


def test_the_first_protocol_cannot_tell_a_late_commit_from_the_next_one() -> None:
    """Why KIP-890 raises the epoch with every transaction: pinned, because TV1 clients are served as they expect."""

    async def story(stage: Stage) -> None:
        player = stage.player(versions=TV1)
        await player.init()
        assert await player.play()
        txn = player.begin()
        await player.write(txn)
        txn.commit_sent_s = stage.now_s
        held_back = await player._driver.end_txn(True)
        assert held_back.error_code == 0
        assert len(await reading(stage)) == 4
        await stage.until(lambda: stage.state_of() is State.COMPLETE_COMMIT, "the markers")
        assert (await player._driver.end_txn(False)).error_code == InvalidTxnState.code

    play(story)


@both
@pytest.mark.parametrize("place", ["a partition of the transaction", "another partition"])
def test_a_batch_that_comes_after_the_timeout_leaves_nothing_open(versions: Versions, place: str) -> None:
    """The hanging transaction: refused, and readers go on."""

    async def story(stage: Stage) -> None:
        player = stage.player(versions=versions, timeout_ms=TIMEOUT_MS)
        await player.init()
        txn = player.begin()
        await player._send(txn, [Write(A, Value(txn.label, 0).encode())])
        await ended(stage)
        tp = A if place == "a partition of the transaction" else B
        batch = late(player, txn, tp, sequence=1 if tp == A else 0)
        assert produced(await player._driver.produce(batch)) == [(InvalidProducerEpoch.code, -1)]
        assert stage.watch.truth(tp).open_blocks == []
        assert stage.state_of() is State.COMPLETE_ABORT
        successor = stage.player("successor", versions=versions)
        await successor.init()
        assert await successor.play()
        assert len(await reading(stage)) == 2

    play(story)


@both
def test_a_batch_that_comes_after_the_next_transaction_began(versions: Versions) -> None:
    """It was given up, so the client has a newer epoch: it does not become a part of what it does not belong to."""

    async def story(stage: Stage) -> None:
        player = stage.player(versions=versions)
        await player.init()
        old = player.begin()
        held_back = late(player, old, A)
        if versions is TV1:
            await player._driver._add({A})
        assert not await player.end(old, commit=False)
        if versions is TV1:
            await player.init(bump=True)
        txn = player.begin()
        await player.write(txn)
        assert produced(await player._driver.produce(held_back)) == [(InvalidProducerEpoch.code, -1)]
        assert await player.end(txn)
        assert len(await reading(stage)) == 2

    play(story)


@both
def test_an_instance_that_was_fenced_changes_nothing_any_more(versions: Versions) -> None:
    async def story(stage: Stage) -> None:
        first, second = stage.player("first", versions=versions), stage.player("second", versions=versions)
        await first.init()
        old = first.begin()
        await first.write(old)
        await second.init()
        txn = second.begin()
        await second.write(txn)
        with pytest.raises(Abortable):
            await first._send(old, [Write(A, Value(old.label, 50).encode())])
        with pytest.raises(Fenced):
            await first._send_offsets(old, "other", {A: 7})
        with pytest.raises(Fenced):
            await first.end(old)
        old.offsets = {}
        assert stage.state_of() is State.ONGOING
        assert await second.end(txn)
        assert len(await reading(stage)) == 2

    play(story)


# Crashes


@both
def test_batches_that_are_sent_again_after_a_crash_are_there_once(versions: Versions) -> None:
    """Killed between append and acknowledgement: the window of five batches is what the log says."""

    async def story(stage: Stage) -> None:
        player = stage.player(versions=versions)
        await player.init()
        txn = player.begin()
        driver = player._driver
        if versions is TV1:
            await driver._add({A})
        batches = []
        for number in range(5):
            value = Value(txn.label, number).encode()
            txn.writes.append(Write(A, value, number))
            batches.append({A: driver.batch([value], number)})
        driver.partitions.add(A)
        for number, batch in enumerate(batches):
            assert produced(await driver.produce(batch)) == [(0, number)]
        runs = stage.node.runs
        stage.crash()
        await stage.until(lambda: stage.node.runs > runs and stage.node.up.is_set(), "the broker")
        driver.forget()
        for number, batch in enumerate(batches):
            assert produced(await driver.produce(batch)) == [(0, number)]
        assert await player.end(txn)
        assert len(await reading(stage)) == 5

    play(story)


@both
@pytest.mark.parametrize("commit", [False, True])
def test_offsets_of_a_transaction_are_unstable_until_its_end_also_after_a_crash(
    versions: Versions, commit: bool
) -> None:
    async def story(stage: Stage) -> None:
        player = stage.player(versions=versions)
        await player.init()
        txn = player.begin()
        await player.write(txn)
        runs = stage.node.runs
        stage.crash()
        await stage.until(lambda: stage.node.runs > runs and stage.node.up.is_set(), "the broker")

        async def ask(runtime: Any) -> None:
            reader = TxnReader(runtime, "broker:9092", [A])
            group = txn.group
            with pytest.raises(UnstableOffsetCommit):
                await reader.committed(group, [A])
            assert await reader.committed(group, [A], stable=False) == {A: -1}
            await player.end(txn, commit=commit)
            await stage.until(
                lambda: stage.state_of(ID) in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT),
                "the end",
            )
            assert await reader.committed(group, [A]) == {A: 1 if commit else -1}
            await reader.close()

        await stage.run_on("asker", ask)

    play(story)


def test_after_an_abort_the_group_is_where_it_was() -> None:
    """The rewind: whoever reads on from the group's position gets the same records again."""

    async def story(stage: Stage) -> None:
        player = stage.player()
        await player.init()
        assert await player.play()
        assert not await player.play(commit=False)

        async def ask(runtime: Any) -> None:
            reader = TxnReader(runtime, "broker:9092", [A])
            assert await reader.committed("ledger-id", [A]) == {A: 1}
            await reader.close()

        await stage.run_on("asker", ask)

    play(story)


def test_a_decided_transaction_ends_as_decided_wherever_the_broker_dies_between_its_markers() -> None:
    """Torn transactions: after each write of the end of one, one run."""
    for writes in range(1, 6):

        async def story(stage: Stage, writes: int = writes) -> None:
            player = stage.player()
            await player.init()
            txn = player.begin()
            await player.write(txn)
            stage.crash_after(writes)
            assert await player.end(txn)
            await stage.until(lambda: stage.state_of() is State.COMPLETE_COMMIT, "the markers")
            fates = {block.fate for tp in (A, B) for block in stage.watch.truth(tp).blocks}
            assert fates == {Fate.COMMITTED}

        play(story, seed=writes)
