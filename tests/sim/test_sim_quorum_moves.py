"""Two controllers on one replicated log; leadership is moved after every single batch of a metadata transaction.

An operation is asked of the first controller, in batches of one or two records. After its k-th batch was appended the
other one is elected: j batches are committed and the first controller knows, s - j survive as well, the rest is lost,
for every k >= s >= j >= 0. What is checked at every step is in `sim_quorum_truth` (images), `sim_quorum_requests`
(answers, and whole or not at all) and `sim_quorum_log` (the abort by the new leader).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from enum import Enum

import pytest

from sim.metadata.log import Batch, Member
from sim.metadata.requests import Ask
from sim.metadata.stage import Stage, play, turns
from sim.metadata.truth import FAILOVER, Transaction
from twofold.controller.features import initial_levels
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    MetadataRecord,
    encode,
)

pytestmark = pytest.mark.slow  # it enumerates

NEVER = 10_000
LONG = bool(os.environ.get("TWOFOLD_LONG"))
"""Otherwise every second case is left out where leadership goes back as well."""
MakeAsk = Callable[[Stage, Member], Awaitable[Ask]]


class Back(Enum):
    """What happens after the move."""

    NOT = "the new leader stays"
    LOST = "leadership goes back, and what the new leader wrote first is lost"
    KEPT = "leadership goes back, and what the new leader wrote first is kept"
    LATE = "the old leader hears of it when it has written the rest, which is lost"


async def prepared(stage: Stage) -> Member:
    """A leader, a broker and three topics of it."""
    leader = stage.members[0]
    stage.lead(leader)
    stage.commit()
    await stage.register(1, 1, leader)
    await stage.done(stage.shelf.create([2, 1, 2]), leader)
    return leader


async def create(stage: Stage, leader: Member) -> Ask:
    return stage.shelf.create([2, 1])


async def grow(stage: Stage, leader: Member) -> Ask:
    return stage.shelf.grow({"r1-0": 4, "r1-2": 5})


async def delete(stage: Stage, leader: Member) -> Ask:
    return stage.shelf.delete(["r1-0", "r1-1", "r1-2"])


async def alter(stage: Stage, leader: Member) -> Ask:
    return stage.shelf.alter(["r1-0", "r1-1", "r1-2"])


async def register(stage: Stage, leader: Member) -> Ask:
    """The broker comes back as another incarnation: what the former led has no leader until it is unfenced."""
    await asyncio.sleep(1)  # its session is over
    return stage.shelf.register(1, 2)


async def come_back(stage: Stage, leader: Member) -> Ask:
    """It is unfenced, and leads again what waited for it."""
    await asyncio.sleep(1)
    response = await stage.done(stage.shelf.register(1, 2), leader)
    return stage.shelf.beat(1, response.broker_epoch, leader.controller.image.offset)


async def leave(stage: Stage, leader: Member) -> Ask:
    """It wants to stop: all that it leads is taken from it."""
    return stage.shelf.beat(1, stage.shelf.registered[1], leader.controller.image.offset, leaves=True)


KINDS: dict[str, MakeAsk] = {
    "CreateTopics": create,
    "CreatePartitions": grow,
    "DeleteTopics": delete,
    "IncrementalAlterConfigs": alter,
    "BrokerRegistration": register,
    "BrokerHeartbeat that unfences": come_back,
    "BrokerHeartbeat that fences": leave,
}


def count_batches(make: MakeAsk, records: int) -> int:
    """Of the operation, when nobody disturbs it."""

    async def story(stage: Stage) -> int:
        leader = await prepared(stage)
        ask = await make(stage, leader)
        before = leader.replica.appended
        await stage.done(ask, leader)
        stage.finish()
        return leader.replica.appended - before

    return play(story, records=records)


def move(make: MakeAsk, records: int, appended: int, committed: int, survived: int, back: Back) -> None:
    async def story(stage: Stage) -> None:
        first, second = stage.members
        await prepared(stage)
        ask = await make(stage, first)
        moment = stage.moment(first)
        transactions = len(stage.truth.transactions)
        asked = asyncio.Event()
        start = first.replica.appended
        loop = asyncio.get_running_loop()

        def step() -> None:
            """Right after an append, before anybody else goes on."""
            count = first.replica.appended - start
            if count <= committed:
                stage.commit(1)
            if count == appended:
                stage.lead(second, survived - committed, told=back is not Back.LATE)
                asked.set()

        def on_append() -> None:
            loop.call_soon(step)

        first.replica.on_append = on_append
        task = stage.start(ask, first)
        if appended == 0:
            stage.lead(second, told=back is not Back.LATE)
            asked.set()
        await asyncio.wait_for(asked.wait(), 10)
        first.replica.on_append = lambda: None
        leader = second
        if back is Back.LATE:
            await turns(30)
            stage.check()
            first.resign()
            first.catch_up()
        elif back is not Back.NOT:
            stage.lead(first, len(second.replica.tail) if back is Back.KEPT else 0)
            leader = first
        stage.commit()
        settled = await stage.outcome(ask, task, moment)
        check_aborted(stage, transactions, leader)
        if not settled.is_refused:
            assert survived == appended, "answered, although something of it was lost"
        await again(stage, ask, leader)
        stage.finish()

    play(story, records=records)


async def again(stage: Stage, ask: Ask, leader: Member) -> None:
    """Whatever became of it, the same request is decided by the leader, and other requests are."""
    await stage.done(ask, leader)
    if 1 in stage.truth.image.brokers and stage.truth.image.brokers[1].is_active:
        await stage.done(stage.shelf.create([2, 2]), leader)


def check_aborted(stage: Stage, before: int, leader: Member) -> None:
    """What was open in the committed log when a new leader came is aborted by it, once, and nothing is open."""
    assert stage.truth.opened is None
    assert open_at(leader) is None
    aborted = [one for one in stage.truth.transactions[before:] if one.reason is not None]
    assert [one.reason for one in aborted] in ([], [FAILOVER])


@pytest.mark.parametrize("records", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("back", Back, ids=lambda back: back.name)
def test_leadership_moves_after_every_batch_of_an_operation(kind: str, records: int, back: Back) -> None:
    batches = count_batches(KINDS[kind], records)
    assert batches >= 3 if records == 1 else batches >= 2, "no transaction of several batches"
    step = 1 if LONG or records > 1 or back is Back.NOT else 2
    for appended in range(batches + 1):
        for committed in range(appended + 1):
            for survived in range(committed, appended + 1, step):
                move(KINDS[kind], records, appended, committed, survived, back)


# -- hazards that the upstream implementation had


async def half_done(stage: Stage, batches: int) -> "tuple[Ask, asyncio.Task[object]]":
    """Topics that are being created: so many batches are appended, and none of them is committed."""
    leader = await prepared(stage)
    ask = await create(stage, leader)
    task = stage.start(ask, leader)
    start = leader.replica.appended
    while leader.replica.appended - start < batches:
        await asyncio.sleep(0)
    return ask, task


def open_at(member: Member) -> object:
    """The transaction that a member finds open in the log, as far as it has read."""
    return member.controller.transaction


def kinds_of(batch: Batch) -> list[type[MetadataRecord]]:
    return [type(record) for _, record in batch.entries()]


def test_hazard_i_no_reader_sees_half_of_a_transaction_whose_end_is_appended_and_not_committed() -> None:
    async def story(stage: Stage) -> None:
        first = stage.members[0]
        before = first.controller.image
        ask, task = await half_done(stage, 1)
        before = first.controller.image
        await turns(20)
        assert kinds_of(first.replica.tail[-1])[-1] is EndTransaction
        assert open_at(first) is None, "as far as the next who writes is concerned it is over"
        for _ in range(len(first.replica.tail) - 1):
            stage.commit(1)
            await turns(3)
            assert first.controller.image is before and not task.done()
        exists = stage.start(ask, first)
        await turns(30)
        assert not exists.done(), "who is told that the topics exist is told something that nobody can see yet"
        stage.commit(1)
        await turns(5)
        assert task.done() and exists.done() and len(first.controller.image.topics) == len(before.topics) + 2
        stage.finish()

    play(story)


def test_hazard_ii_a_leader_deposed_with_an_uncommitted_begin_takes_the_next_begin() -> None:
    async def story(stage: Stage) -> None:
        first, second = stage.members
        ask, task = await half_done(stage, 1)
        assert kinds_of(first.replica.tail[0])[0] is BeginTransaction and open_at(first) is not None
        stage.lead(second)
        assert open_at(first) is None, "it was never committed"
        assert not second.replica.tail, "nothing is open in the log: nothing is to be aborted"
        await turns(5)
        assert task.done()
        await stage.done(ask, second)
        assert [one.name for one in stage.truth.transactions[-1:]] == ["CreateTopics"]
        stage.lead(first)
        await stage.done(await create(stage, first), first)
        stage.finish()

    play(story)


def test_hazard_iii_a_leader_deposed_with_an_uncommitted_end_takes_the_abort_of_the_next_leader() -> None:
    async def story(stage: Stage) -> None:
        first, second = stage.members
        await half_done(stage, 1)
        await turns(20)
        assert kinds_of(first.replica.tail[-1])[-1] is EndTransaction
        before = first.controller.image
        stage.lead(second, len(first.replica.tail) - 1)
        assert open_at(first) is not None, "all but End is committed"
        assert [kinds_of(batch) for batch in second.replica.tail] == [[AbortTransaction]]
        stage.commit()
        assert open_at(first) is None and open_at(second) is None
        assert first.controller.image.topics == second.controller.image.topics == before.topics
        assert stage.truth.transactions[-1].reason == FAILOVER
        stage.finish()

    play(story)


# -- bootstrap


def bootstrap_batches() -> list[Batch]:
    """The first transaction of a log as Apache Kafka may write it: a record a batch."""
    records: list[MetadataRecord] = [BeginTransaction("Bootstrap records"), *initial_levels(), EndTransaction()]
    return [Batch(1 + at, 1, (encode(record),)) for at, record in enumerate(records)]


@pytest.mark.parametrize("back", [Back.NOT, Back.LOST, Back.KEPT], ids=lambda back: back.name)
def test_leadership_moves_after_every_record_of_a_bootstrap(back: Back) -> None:
    """Scenario 108: half of it counts as nothing."""
    levels = {record.name: record.feature_level for record in initial_levels()}
    for survived in range(len(bootstrap_batches()) + 1):

        async def story(stage: Stage, survived: int = survived) -> None:
            first, second = stage.members
            first.elected = stage.quorum.elect(first.replica, 0)
            first.replica.tail = bootstrap_batches()
            stage.lead(second, survived)
            leader = second
            if back is not Back.NOT:
                stage.lead(first, len(second.replica.tail) if back is Back.KEPT else 0)
                leader = first
            stage.commit()
            assert dict(leader.controller.image.features) == levels
            ends = [one.reason for one in stage.truth.transactions]
            assert ends == ([None] if survived in (0, len(bootstrap_batches())) else [FAILOVER, None])
            await stage.register(1, 1, leader)
            stage.finish()

        play(story)


def test_a_bootstrap_that_was_lost_is_written_by_the_next_leader() -> None:
    async def story(stage: Stage) -> None:
        first, second = stage.members
        stage.lead(first)
        assert len(first.replica.tail) == 1
        stage.lead(second)
        assert len(second.replica.tail) == 1
        stage.lead(first, 1)
        assert not first.replica.tail
        assert stage.truth.transactions == [Transaction("Bootstrap records", 2, 6)]
        stage.finish()

    play(story)


# -- slow standbys, snapshots, restarts


@pytest.mark.parametrize("lag", [0, 1, 3, 100])
def test_a_slow_standby_shows_whole_transactions_only_and_leads_after_it_has_loaded_all(lag: int) -> None:
    async def story(stage: Stage) -> None:
        first, second = stage.members
        await prepared(stage)
        for number in range(6):
            task = stage.start(await create(stage, first), first)
            while not task.done():
                await asyncio.sleep(0)
                stage.quorum.commit(1)
                first.tell()
                if second.lag > lag:
                    second.load(1)
                second.check()
            second.load(NEVER, at_once=number % 2 == 0)
        second.elect(0, [first])
        if second.lag:
            assert not second.lead_if_ready()
        first.catch_up()
        second.catch_up()
        assert second.lead_if_ready()
        stage.finish()

    play(story)


def test_a_snapshot_in_the_middle_of_a_transaction_makes_a_standby_forget_it() -> None:
    """The standby has half of a transaction; the snapshot that it gets was made after the end of it."""

    async def story(stage: Stage) -> None:
        first, second = stage.members
        leader = await prepared(stage)
        task = stage.start(await create(stage, leader), leader)
        while not leader.replica.tail:
            await asyncio.sleep(0)
        stage.commit(1)
        assert open_at(second) is not None
        while not task.done():
            await asyncio.sleep(0)
            stage.quorum.commit(1)
            first.tell()
        image = second.controller.image
        assert second.load_snapshot(len(stage.truth.images) - 1)
        assert open_at(second) is None
        assert len(second.controller.image.topics) == len(image.topics) + 2
        stage.lead(second)
        assert not second.replica.tail
        await stage.done(await create(stage, second), second)
        stage.finish()

    play(story)
