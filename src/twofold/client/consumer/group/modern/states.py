"""Where a member of the new protocol stands, as data: what may follow what, and what an error of the coordinator means.

    UNJOINED --JOIN--> JOINING --ASSIGNED--> RECONCILING --RECONCILED--> ACKNOWLEDGING --ACKNOWLEDGED--> STABLE
                                                  ^                            |                            |
                                                  +----------ASSIGNED----------+----------ASSIGNED----------+

Everything but FAILED may be DROPPED, which leads to UNJOINED; everything may have FAILED, and nothing follows that.

UNJOINED: no member. Partitions that are still assigned are lost; `poll` says so before it joins.
JOINING: the heartbeat with epoch 0 is due or on its way.
RECONCILING: the coordinator has told which partitions to have; `poll` gives up and takes some.
ACKNOWLEDGING: that is done; the next heartbeat, which is due at once, says so.
"""

from collections.abc import Mapping
from enum import Enum

from twofold.wire.errors import FencedMemberEpoch, KafkaError, TopicAuthorizationFailed, UnknownMemberId


class EpochState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    STABLE = "stable"
    FAILED = "failed"


class EpochEvent(Enum):
    JOIN = "poll joins the group"
    ASSIGNED = "the coordinator tells which partitions to have"
    RECONCILED = "the application has these and no others"
    ACKNOWLEDGED = "the coordinator knows that"
    DROPPED = "the membership is over"
    FAILED = "the coordinator has refused the member for good"


_S, _E = EpochState, EpochEvent

TRANSITIONS: Mapping[tuple[EpochState, EpochEvent], EpochState] = {
    (_S.UNJOINED, _E.JOIN): _S.JOINING,
    (_S.JOINING, _E.ASSIGNED): _S.RECONCILING,
    (_S.RECONCILING, _E.ASSIGNED): _S.RECONCILING,  # another set, before the first was reached
    (_S.ACKNOWLEDGING, _E.ASSIGNED): _S.RECONCILING,
    (_S.STABLE, _E.ASSIGNED): _S.RECONCILING,
    (_S.RECONCILING, _E.RECONCILED): _S.ACKNOWLEDGING,
    (_S.ACKNOWLEDGING, _E.ACKNOWLEDGED): _S.STABLE,
    **{(state, _E.DROPPED): _S.UNJOINED for state in EpochState if state is not _S.FAILED},
    **{(state, _E.FAILED): _S.FAILED for state in EpochState},
}

IS_MEMBER = frozenset({_S.RECONCILING, _S.ACKNOWLEDGING, _S.STABLE})
"""Where commits are taken, and records of what is assigned may be handed out."""


class EpochVerdict(Enum):
    """What an error of a heartbeat means. Those that pass (the coordinator moved, loads or is silent) never get
    here."""

    REJOIN = "the coordinator knows the member no more, or not with this epoch: what it had is lost, and it joins again"
    TELL = "the application hears of it, and the member goes on"
    FAIL = "for good: the application has to change something"


VERDICTS: Mapping[type[KafkaError], EpochVerdict] = {
    UnknownMemberId: EpochVerdict.REJOIN,
    FencedMemberEpoch: EpochVerdict.REJOIN,
    TopicAuthorizationFailed: EpochVerdict.TELL,
}
"""What is not here is FAIL."""


class RefusedEpochTransition(Exception):
    """A mistake of ours: the table has no such pair."""


def next_state(state: EpochState, event: EpochEvent) -> EpochState:
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise RefusedEpochTransition(f"a member that is {state.value} cannot take: {event.value}")
    return following


def verdict_on(error: KafkaError) -> EpochVerdict:
    found = (verdict for kind, verdict in VERDICTS.items() if isinstance(error, kind))
    return next(found, EpochVerdict.FAIL)
