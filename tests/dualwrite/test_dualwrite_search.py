"""The protocol of a dual write: one writer and two recoveries, in every order, with every single fault.

What is searched is what runs: `twofold.dualwrite.protocol`, in a simulated database and a simulated log.
"""

import os

import pytest

from kits.dualwrite.places import Isolation
from kits.dualwrite.planted import PLANTED
from kits.dualwrite.search import Found, search
from kits.dualwrite.world import Faults, Script, World

LONG = bool(os.environ.get("TWOFOLD_LONG"))
NO_FAULT = Faults(errors=0, doubts=0, silences=0)
ONE_FAULT = {
    "no fault": NO_FAULT,
    "the database fails once": NO_FAULT._replace(errors=1),
    "an answer to COMMIT is lost": NO_FAULT._replace(doubts=1),
    "a request to the log stays without an answer": NO_FAULT._replace(silences=1),
    "the database ends a transaction, and the caller goes on": NO_FAULT._replace(slips=1),
}
# A process that recovers does it once: the one after it is another.
SCRIPTS = (Script("the writer", writes=1, tries=1), Script("the first", tries=0), Script("the second", tries=0))
PAIR = (Script("the writer", writes=1, tries=0), Script("the first", writes=1, tries=0))
FAULTS = (*ONE_FAULT.values(), NO_FAULT._replace(doubts=1, slips=1))
# The level of most programs is searched with every fault. The others differ from it only in what a lock and a read see.
SHORT = [(Isolation.READ_COMMITTED, fault) for fault in ONE_FAULT] + [
    (isolation, "no fault") for isolation in Isolation if isolation is not Isolation.READ_COMMITTED
]
ALL = [(isolation, fault) for isolation in Isolation for fault in ONE_FAULT]


@pytest.mark.parametrize(("isolation", "fault"), ALL if LONG else SHORT)
def test_table_and_log_agree_in_every_state_of_a_writer_and_two_recoveries(
    isolation: Isolation, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    searched = search(World(isolation, SCRIPTS), ONE_FAULT[fault])
    with capsys.disabled():
        print(f"\n{isolation.value}, {fault}: {searched.states:,} states, {searched.moves:,} moves")
    assert searched.written == 1


def test_a_writer_and_one_that_recovers_and_writes_have_nothing_to_find() -> None:
    """The worlds in which the planted bugs are looked for, without one."""
    assert not any(finds_something(World(Isolation.READ_COMMITTED, PAIR), faults) for faults in FAULTS)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    """A search that finds nothing shows only that it looks; these show what it would see."""
    assert any(finds_something(World(Isolation.READ_COMMITTED, PAIR, PLANTED[bug]()), faults) for faults in FAULTS)


def finds_something(world: World, faults: Faults) -> bool:
    try:
        return search(world, faults).written < 2
    except Found as found:
        return len(found.path) > 5


@pytest.mark.parametrize("isolation", Isolation)
def test_table_and_log_agree_when_one_that_recovers_writes_too(
    isolation: Isolation, capsys: pytest.CaptureFixture[str]
) -> None:
    """A writer that settles its own work has the owner that it had before: the other one must not be misled by that."""
    scripts = (Script("the writer", writes=2, tries=1), Script("the first", writes=1, tries=0))
    chosen = [Faults(errors=1, doubts=1, silences=1, slips=1)] if LONG else ONE_FAULT.values()
    searched = [search(World(isolation, scripts), faults) for faults in chosen]
    with capsys.disabled():
        print(f"\n{isolation.value}, both write: {sum(one.states for one in searched):,} states")
    assert all(one.written == 3 for one in searched)
