"""The states of a classic group, as data: what may follow what, and which errors members get meanwhile.

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


class GroupState(Enum):
    """Named as clients see them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"  # members are joining
    COMPLETING_REBALANCE = "CompletingRebalance"  # members know the generation and wait for the leader's assignment
    STABLE = "Stable"
    DEAD = "Dead"


class GroupEvent(Enum):
    REBALANCE = "a member joined, left, changed or fell silent"
    JOINED = "all members that are left have joined the next generation"
    EMPTIED = "no member is left to join the next generation"
    ASSIGNED = "the leader's assignment is in the log"
    REMOVED = "the group was deleted or has expired"


TRANSITIONS: Mapping[tuple[GroupState, GroupEvent], GroupState] = {
    (GroupState.EMPTY, GroupEvent.REBALANCE): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, GroupEvent.REBALANCE): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.REBALANCE): GroupState.PREPARING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.JOINED): GroupState.COMPLETING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, GroupEvent.EMPTIED): GroupState.EMPTY,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.ASSIGNED): GroupState.STABLE,
    (GroupState.EMPTY, GroupEvent.REMOVED): GroupState.DEAD,
    (GroupState.PREPARING_REBALANCE, GroupEvent.REMOVED): GroupState.DEAD,
    (GroupState.COMPLETING_REBALANCE, GroupEvent.REMOVED): GroupState.DEAD,
    (GroupState.STABLE, GroupEvent.REMOVED): GroupState.DEAD,
}

# The error that a member of the current generation gets; None means that the request is served.
HEARTBEAT: Mapping[GroupState, type[KafkaError] | None] = {
    GroupState.EMPTY: UnknownMemberId,
    GroupState.PREPARING_REBALANCE: RebalanceInProgress,
    GroupState.COMPLETING_REBALANCE: None,
    GroupState.STABLE: None,
    GroupState.DEAD: CoordinatorNotAvailable,
}
SYNC: Mapping[GroupState, type[KafkaError] | None] = {
    GroupState.EMPTY: UnknownMemberId,
    GroupState.PREPARING_REBALANCE: RebalanceInProgress,
    GroupState.COMPLETING_REBALANCE: None,
    GroupState.STABLE: None,
    GroupState.DEAD: CoordinatorNotAvailable,
}
COMMIT: Mapping[GroupState, type[KafkaError] | None] = {
    GroupState.EMPTY: None,
    GroupState.PREPARING_REBALANCE: None,  # what was read in this generation may still be committed
    GroupState.COMPLETING_REBALANCE: RebalanceInProgress,
    GroupState.STABLE: None,
    GroupState.DEAD: CoordinatorNotAvailable,
}


class RefusedGroupTransition(Exception):
    """A group was asked to do what its state does not allow: a mistake of ours, not of a client."""


def next_state(state: GroupState, event: GroupEvent) -> GroupState:
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise RefusedGroupTransition(f"a group in state {state.value} cannot take: {event.value}")
    return following


def may(state: GroupState, event: GroupEvent) -> bool:
    return (state, event) in TRANSITIONS
