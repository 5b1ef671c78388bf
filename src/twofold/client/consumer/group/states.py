"""Where a member of a group stands, as data: what may follow what, and what an error of the coordinator means there.

    UNJOINED --PREPARE--> PREPARING --PREPARED--> PREPARED --SENT--> JOINING --JOINED--> SYNCING --SYNCED--> ASSIGNED
        ^                     ^                      ^                  |                   |                   |
        |                     |                      +------AGAIN-------+                   |                 TAKEN
        |                     +-----------------------------PREPARE-------------------------|---------------> STABLE
        +-----------------------------------------DROPPED (from everywhere)-----------------+

UNJOINED: there is no generation. Partitions that are still assigned are lost, and the next round begins with saying so.
PREPARING: `poll` commits, and tells the listener what is given up. PREPARED: that is done; JoinGroup may leave.
ASSIGNED: the coordinator has confirmed the generation; `poll` has not handed its partitions to the application yet.
FENCED: another consumer has the `group_instance_id`; nothing leads away from there.
"""

from collections.abc import Mapping
from enum import Enum, auto

from twofold.wire.errors import (
    FencedInstanceId,
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)


class MembershipState(Enum):
    UNJOINED = "unjoined"
    PREPARING = "preparing"
    PREPARED = "prepared"
    JOINING = "joining"
    SYNCING = "syncing"
    ASSIGNED = "assigned"
    STABLE = "stable"
    FENCED = "fenced"


class MembershipEvent(Enum):
    PREPARE = "poll begins a round"
    PREPARED = "what had to be given up is given up"
    SENT = "JoinGroup leaves"
    JOINED = "the coordinator has answered JoinGroup"
    SYNCED = "the coordinator has answered SyncGroup"
    TAKEN = "the application has its partitions"
    AGAIN = "JoinGroup has to be sent again"
    DROPPED = "the generation is over for this member"
    FENCED = "another consumer has the instance id"


_S, _E = MembershipState, MembershipEvent

TRANSITIONS: Mapping[tuple[MembershipState, MembershipEvent], MembershipState] = {
    (_S.UNJOINED, _E.PREPARE): _S.PREPARING,
    (_S.STABLE, _E.PREPARE): _S.PREPARING,
    (_S.PREPARING, _E.PREPARE): _S.PREPARING,  # again, when the first was interrupted
    (_S.PREPARING, _E.PREPARED): _S.PREPARED,
    (_S.PREPARED, _E.SENT): _S.JOINING,
    (_S.JOINING, _E.JOINED): _S.SYNCING,
    (_S.JOINING, _E.AGAIN): _S.PREPARED,
    (_S.SYNCING, _E.SYNCED): _S.ASSIGNED,
    (_S.ASSIGNED, _E.TAKEN): _S.STABLE,
    **{(state, _E.DROPPED): _S.UNJOINED for state in MembershipState if state is not _S.FENCED},
    **{(state, _E.FENCED): _S.FENCED for state in MembershipState},
}

MAY_COMMIT = frozenset({_S.PREPARING, _S.ASSIGNED, _S.STABLE})
"""Where the generation that the member has is the one whose partitions the application reads."""
IN_ROUND = frozenset({_S.PREPARED, _S.JOINING, _S.SYNCING})
MAY_HAND_OUT = frozenset({_S.PREPARED, _S.JOINING, _S.SYNCING, _S.STABLE})
"""Where `poll` returns records of what is assigned. In a round that is what a cooperative member keeps meanwhile."""


class AnswerVerdict(Enum):
    """What an error means. Those that pass (the coordinator moved, loads or does not answer) never get here."""

    REJOIN = "join again, with the same generation"
    RESET_GENERATION = "the generation is over; the coordinator may still know the member"
    RESET_MEMBER = "the coordinator does not know the member"
    FENCED = "another consumer has the instance id"
    IGNORE = "old news"
    RAISE = "for the application"


class GroupRequest(Enum):
    JOIN = auto()
    SYNC = auto()
    HEARTBEAT = auto()
    COMMIT = auto()


VERDICTS: Mapping[GroupRequest, Mapping[type[KafkaError], AnswerVerdict]] = {
    GroupRequest.JOIN: {
        RebalanceInProgress: AnswerVerdict.REJOIN,
        UnknownMemberId: AnswerVerdict.RESET_MEMBER,
        IllegalGeneration: AnswerVerdict.RESET_GENERATION,
        FencedInstanceId: AnswerVerdict.FENCED,
    },
    GroupRequest.SYNC: {
        # The assignment of this generation was missed: what was owned before it may be another member's by now.
        RebalanceInProgress: AnswerVerdict.RESET_GENERATION,
        IllegalGeneration: AnswerVerdict.RESET_GENERATION,
        UnknownMemberId: AnswerVerdict.RESET_MEMBER,
        FencedInstanceId: AnswerVerdict.FENCED,
    },
    GroupRequest.HEARTBEAT: {
        RebalanceInProgress: AnswerVerdict.REJOIN,
        IllegalGeneration: AnswerVerdict.RESET_GENERATION,
        UnknownMemberId: AnswerVerdict.RESET_MEMBER,
        FencedInstanceId: AnswerVerdict.FENCED,
    },
    GroupRequest.COMMIT: {
        RebalanceInProgress: AnswerVerdict.REJOIN,
        IllegalGeneration: AnswerVerdict.RESET_GENERATION,
        UnknownMemberId: AnswerVerdict.RESET_MEMBER,
        FencedInstanceId: AnswerVerdict.FENCED,
    },
}
"""What is not here is RAISE, for example INCONSISTENT_GROUP_PROTOCOL and GROUP_MAX_SIZE_REACHED. MEMBER_ID_REQUIRED is
no failure: its answer has the member id for the next JoinGroup."""


class RefusedMembershipTransition(Exception):
    """A mistake of ours: the table has no such pair."""


def next_state(state: MembershipState, event: MembershipEvent) -> MembershipState:
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise RefusedMembershipTransition(f"a member that is {state.value} cannot take: {event.value}")
    return following


def verdict_on(request: GroupRequest, error: KafkaError) -> AnswerVerdict:
    found = (verdict for kind, verdict in VERDICTS[request].items() if isinstance(error, kind))
    return next(found, AnswerVerdict.RAISE)
