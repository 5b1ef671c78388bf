"""From epoch 32764 through the change of producer ids, in every state, with a failover after every record.

`World` forgets everything but the log after each record, so every step below also says that the next coordinator
decides as this one would have.
"""

from itertools import product

import pytest

from kits.coordinator.transactions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    CONCURRENT_TRANSACTIONS,
    EMPTY,
    INVALID_PRODUCER_ID_MAPPING,
    MAX,
    OK,
    ONGOING,
    PRODUCER_FENCED,
    P,
    World,
    a_transaction,
    a_world_in,
    identity,
)

START = 32764
TVS = pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])


def pair_after(world: World, found, pair):
    """What the client holds after this reply; it waits for markers as clients do."""
    assert found != CONCURRENT_TRANSACTIONS
    world.complete()
    return found if isinstance(found, tuple) else pair


def init_anew(world, pair):
    return pair_after(world, world.init_done(), pair)


def init_named_twice(world, pair):
    first = world.init_done(*pair)
    assert world.init(*pair) == first, "the reply was lost"
    return pair_after(world, first, pair)


def commit(world, pair):
    assert world.add(*pair) == OK
    return pair_after(world, world.commit(*pair), pair)


def abort_twice(world, pair):
    assert world.add(*pair) == OK
    first = world.abort(*pair)
    assert world.abort(*pair) == CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.abort(*pair) == first, "the reply was lost"
    return pair_after(world, first, pair)


def empty_abort(world, pair):
    if world.tv < 2:
        return pair
    return pair_after(world, world.abort(*pair), pair)


def crash_and_init(world, pair):
    assert world.add(*pair) == OK
    assert world.init() == CONCURRENT_TRANSACTIONS
    return init_anew(world, pair)


def time_out_and_go_on(world, pair):
    assert world.add(*pair) == OK
    world.time_out()
    world.complete()
    if world.tv < 2:
        assert world.abort(*pair) == PRODUCER_FENCED
        return init_anew(world, pair)
    return pair_after(world, world.abort(*pair), pair)


STEPS = [
    init_anew,
    init_named_twice,
    commit,
    abort_twice,
    empty_abort,
    crash_and_init,
    time_out_and_go_on,
]


@TVS
@pytest.mark.parametrize("first", STEPS, ids=lambda step: step.__name__)
def test_every_walk_over_the_last_epochs_keeps_its_client(tv, first):
    """All walks of four steps. Their epochs go up by at most 2 a step, so most of them cross the end."""
    rotated = 0
    for rest in product(STEPS, repeat=3):
        world = World(tv, start=a_transaction(EMPTY, START), next_id=2000)
        pair = (P, START)
        for step in (first, *rest):
            old, pair = pair, step(world, pair)
            assert 0 <= pair[1] <= MAX, f"{step.__name__}: {pair}"
            assert pair == world.pair
            assert (pair[0] == old[0] and pair[1] >= old[1]) or (pair[0] > old[0] and pair[1] <= 1)
        rotated += pair[0] != P
        assert world.add(*pair) == OK, "the client of this walk owns the id"
    assert rotated > 0 or tv == 1


@TVS
def test_the_walk_by_transactions(tv):
    world = World(tv, start=a_transaction(EMPTY, START), next_id=2000)
    seen = [world.pair]
    for turn in range(5):
        world.transaction(commit=turn % 2 == 0)
        seen.append(world.pair)
    if tv == 1:
        assert seen == [(P, START)] * 6
    else:
        assert seen == [(P, START), (P, 32765), (P, 32766), (2000, 0), (2000, 1), (2000, 2)]


@TVS
def test_the_walk_by_inits(tv):
    world = World(tv, start=a_transaction(EMPTY, START), next_id=2000)
    assert [world.init() for _ in range(4)] == [(P, 32765), (P, 32766), (2000, 0), (2000, 1)]


ROTATIONS = {
    "Empty, init": (EMPTY, lambda world: world.init(), (2000, 0), (2000, 0)),
    "Empty, init named": (EMPTY, lambda world: world.init(P, MAX), (2000, 0), (2000, 0)),
    "Empty, abort": (EMPTY, lambda world: world.abort(), None, (2000, 0)),
    "Ongoing, commit": (ONGOING, lambda world: world.commit(), (P, MAX), (2000, 0)),
    "Ongoing, abort": (ONGOING, lambda world: world.abort(), (P, MAX), (2000, 0)),
    "Ongoing, fence": (ONGOING, lambda world: world.init(), (P, 32767), (2000, 0)),
    "Ongoing, timeout": (ONGOING, lambda world: world.time_out(), (P, 32767), (2000, 0)),
    "CompleteCommit, init": (COMPLETE_COMMIT, lambda world: world.init(), (2000, 0), (2000, 0)),
    "CompleteCommit, abort": (COMPLETE_COMMIT, lambda world: world.abort(), None, (2000, 0)),
    "CompleteAbort, init": (COMPLETE_ABORT, lambda world: world.init(), (2000, 0), (2000, 0)),
    "CompleteAbort, abort": (COMPLETE_ABORT, lambda world: world.abort(), None, (2000, 0)),
}


@TVS
@pytest.mark.parametrize("case", ROTATIONS)
def test_at_the_last_epoch_every_state_leads_to_a_new_producer_id(case, tv):
    state, step, expected_tv1, expected_tv2 = ROTATIONS[case]
    world = a_world_in(state, tv, epoch=MAX, client_version=2 if tv == 2 else 0)
    step(world)
    world.complete()
    expected = expected_tv1 if tv == 1 else expected_tv2
    if expected is None:  # TV1 has no empty abort
        assert len(world.log) == 1
        return
    assert world.pair == expected
    assert identity(world.init_done())[0] == 2000, "whatever happened, the next client starts under the new id"
    assert world.pair[1] <= 1


@pytest.mark.parametrize("state", [ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT, EMPTY], ids=lambda s: s.wire_name)
def test_the_holder_of_the_last_epoch_is_fenced_once_another_took_over(state):
    world = a_world_in(state, epoch=MAX, client_version=2)
    assert identity(world.init_done())[0] == 2000
    world.init_done()
    for commit_flag in (True, False):
        assert world.end(commit_flag, P, MAX) == INVALID_PRODUCER_ID_MAPPING
    assert world.add(P, MAX) == INVALID_PRODUCER_ID_MAPPING
    assert world.init(P, MAX) == PRODUCER_FENCED


@TVS
def test_ten_thousand_fences_never_hand_out_the_last_epoch(tv):
    world = World(tv, start=a_transaction(EMPTY, 30_000), next_id=2000, failover=False)
    for _ in range(10_000):
        world.add()
        assert identity(world.init_done())[1] <= MAX
    assert world.pair[0] > P
