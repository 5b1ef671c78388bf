"""The states of a classic group, as data: what may follow what, and what members are told meanwhile.

    Empty --REBALANCE--> PreparingRebalance --JOINED--> CompletingRebalance --ASSIGNED--> Stable
                              ^    |    ^                      |                            |
    Empty <--EMPTIED----------+----+    +------REBALANCE-------+---------REBALANCE----------+

Everything may be REMOVED, and nothing follows Dead.
"""

from collections.abc import Mapping
from enum import Enum

from twofold.wire.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)


class State(Enum):
    """Named as clients see them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"  # members are joining
    COMPLETING_REBALANCE = "CompletingRebalance"  # members know the generation and wait for the leader's assignment
    STABLE = "Stable"
    DEAD = "Dead"


class Event(Enum):
    REBALANCE = "a member joined, left, changed or fell silent"
    JOINED = "all members that are left have joined the next generation"
    EMPTIED = "nobody is left to join the next generation"
    ASSIGNED = "the leader's assignment is in the log"
    REMOVED = "the group was deleted or has expired"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.EMPTY, Event.REBALANCE): State.PREPARING_REBALANCE,
    (State.STABLE, Event.REBALANCE): State.PREPARING_REBALANCE,
    (State.COMPLETING_REBALANCE, Event.REBALANCE): State.PREPARING_REBALANCE,
    (State.PREPARING_REBALANCE, Event.JOINED): State.COMPLETING_REBALANCE,
    (State.PREPARING_REBALANCE, Event.EMPTIED): State.EMPTY,
    (State.COMPLETING_REBALANCE, Event.ASSIGNED): State.STABLE,
    (State.EMPTY, Event.REMOVED): State.DEAD,
    (State.PREPARING_REBALANCE, Event.REMOVED): State.DEAD,
    (State.COMPLETING_REBALANCE, Event.REMOVED): State.DEAD,
    (State.STABLE, Event.REMOVED): State.DEAD,
}

# What a member of the current generation is told; None means that the request is served.
HEARTBEAT: Mapping[State, type[KafkaError] | None] = {
    State.EMPTY: UnknownMemberId,
    State.PREPARING_REBALANCE: RebalanceInProgress,
    State.COMPLETING_REBALANCE: None,
    State.STABLE: None,
    State.DEAD: CoordinatorNotAvailable,
}
SYNC: Mapping[State, type[KafkaError] | None] = {
    State.EMPTY: UnknownMemberId,
    State.PREPARING_REBALANCE: RebalanceInProgress,
    State.COMPLETING_REBALANCE: None,
    State.STABLE: None,
    State.DEAD: CoordinatorNotAvailable,
}
COMMIT: Mapping[State, type[KafkaError] | None] = {
    State.EMPTY: None,
    State.PREPARING_REBALANCE: None,  # what was read in this generation may still be committed
    State.COMPLETING_REBALANCE: RebalanceInProgress,
    State.STABLE: None,
    State.DEAD: CoordinatorNotAvailable,
}


class RefusedTransition(Exception):
    """A group was asked to do what its state does not allow: a mistake of ours, not of a client."""


def next_state(state: State, event: Event) -> State:
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise RefusedTransition(f"a group in state {state.value} cannot take: {event.value}")
    return following


def may(state: State, event: Event) -> bool:
    return (state, event) in TRANSITIONS
