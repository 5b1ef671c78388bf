"""How a partition changes: the one place that elects leaders and keeps the ISR and the eligible leader replicas.

In this order:

1. A move of replicas is complete when the new ISR holds all that are being added, and one at least that stays; where
   the replicas become fewer, all that stay. Then the removed ones leave the replicas and the ISR.
2. A replica that leaves the ISR while that is below the effective min.insync.replicas becomes an eligible leader: it
   has all that was acknowledged. One that did not stop in order is none, because it may have lost its last writes. An
   ISR that is large enough again ends eligibility.
3. The leader stays while it is accepted and in the ISR; a preferred election asks the first replica before it. Else the
   first accepted replica of the ISR leads; of the eligible ones, only if the ISR is empty; then the last known leader,
   if ISR and eligible leaders are empty; last, where the topic allows it, any replica. The last two are unclean: the
   ISR is the new leader alone, and the partition is recovering until that leader says otherwise. The only replica of a
   partition leads whatever is known of it: there is no other that could have more.
4. The leader epoch rises with an election, and when a replica is taken away, so that its fetches end. Before
   metadata.version 3.6-IV0 also when the ISR shrinks.
5. The ISR is never empty without eligible leaders: the last one in sync stays in it, without leading.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from twofold.controller.image import PartitionState
from twofold.controller.levels import LOG_DIRECTORIES
from twofold.controller.records import LEADER_UNCHANGED, NO_LEADER, RECOVERED, STATE_UNCHANGED, PartitionChange
from twofold.controller.replicas.rules import MIGRATING_DIRECTORY, Accepts, TopicRules

RECOVERING = 1
EPOCH_KEPT_ON_SHRINK = 12  # 3.6-IV0

Ids = tuple[int, ...]


class Election(Enum):
    PREFERRED = "preferred"  # the first replica, if it can lead
    ONLINE = "online"  # keep a leader that can go on
    UNCLEAN = "unclean"  # online, and rather lose records than have no leader


@dataclass(frozen=True, slots=True)
class Goal:
    """What a partition is to become; None where it stays as it is."""

    isr: Ids | None = None
    replicas: Ids | None = None
    adding: Ids | None = None
    removing: Ids | None = None
    election: Election = Election.ONLINE
    recovery_state: int | None = None
    lost: int | None = None  # a broker that did not stop in order: it is no eligible leader any more
    directories: Mapping[int, UUID] = field(default_factory=dict)


class _Target(NamedTuple):
    """The partition as it will be, as far as it is decided."""

    isr: Ids
    replicas: Ids
    adding: Ids
    removing: Ids


class _Elected(NamedTuple):
    leader: int
    is_unclean: bool = False


def change_partition(
    index: int, topic_id: UUID, old: PartitionState, goal: Goal, rules: TopicRules, accepts: Accepts
) -> PartitionChange | None:
    """The record that leads to the goal, or as far as it can be reached; None where nothing changes."""
    target = _completed(_target(old, goal))
    eligible = _eligible(old, target.isr, goal.lost, rules)
    elected = _elect(old, target, eligible, goal.election, rules, accepts)
    leader = LEADER_UNCHANGED
    isr: Ids | None = None
    if elected.leader != old.leader:
        leader = elected.leader
        if elected.is_unclean:
            isr, eligible = (leader,), ()
        elif leader in eligible:
            target = target._replace(isr=(leader,))
            eligible = tuple(other for other in eligible if other != leader)
    if target.isr and not rules.eligible_leaders:
        eligible = ()
    if leader == LEADER_UNCHANGED and not set(old.replicas) <= set(target.replicas):
        leader = old.leader
    if isr is None and target.isr != old.isr and (target.isr or rules.eligible_leaders):
        isr = target.isr
    shrinks = isr is not None and not set(old.isr) <= set(isr)
    if leader == LEADER_UNCHANGED and shrinks and rules.level < EPOCH_KEPT_ON_SHRINK:
        leader = old.leader
    change = PartitionChange(
        index,
        topic_id,
        isr=isr,
        leader=leader,
        replicas=_if_new(target.replicas, old.replicas),
        removing_replicas=_if_new(target.removing, old.removing_replicas),
        adding_replicas=_if_new(target.adding, old.adding_replicas),
        leader_recovery_state=_recovery_state(old, goal, elected, leader),
        directories=_directories(old, target.replicas, goal, rules),
        eligible_leader_replicas=_if_new(eligible, old.eligible_leader_replicas),
        last_known_elr=_last_known(old, leader, rules),
    )
    return None if change == PartitionChange(index, topic_id) else change


def _if_new(value: Ids, old: Ids) -> Ids | None:
    return None if value == old else value


def _target(old: PartitionState, goal: Goal) -> _Target:
    return _Target(
        old.isr if goal.isr is None else goal.isr,
        old.replicas if goal.replicas is None else goal.replicas,
        old.adding_replicas if goal.adding is None else goal.adding,
        old.removing_replicas if goal.removing is None else goal.removing,
    )


def _completed(target: _Target) -> _Target:
    """The target after the move of its replicas, if that can end now."""
    adding, removing = target.adding, target.removing
    if not adding and not removing:
        return target
    isr = tuple(replica for replica in target.isr if replica not in removing)
    replicas = tuple(replica for replica in target.replicas if replica not in removing)
    if removing and (not isr or not replicas):
        return target
    if not set(adding) <= set(isr):
        return target
    if len(adding) < len(removing) and not set(replicas) <= set(isr):
        return target  # to end it now would leave fewer in sync than there are
    return _Target(isr, replicas, (), ())


def _eligible(old: PartitionState, isr: Ids, lost: int | None, rules: TopicRules) -> Ids:
    if not rules.eligible_leaders:
        return old.eligible_leader_replicas  # they may still lead, and are forgotten when one does
    if len(isr) >= rules.min_isr:
        return ()
    candidates = {*old.eligible_leader_replicas, *old.isr}
    return tuple(sorted(replica for replica in candidates if replica not in isr and replica != lost))


def _elect(
    old: PartitionState, target: _Target, eligible: Ids, election: Election, rules: TopicRules, accepts: Accepts
) -> _Elected:
    def may_lead(replica: int) -> bool:
        return (replica in target.isr or (not target.isr and replica in eligible)) and accepts(replica)

    first = target.replicas[0]
    if election is Election.PREFERRED and may_lead(first):
        return _Elected(first)
    if may_lead(old.leader):
        return _Elected(old.leader)
    for replica in target.replicas:
        if may_lead(replica):
            return _Elected(replica)
    is_only = len(target.replicas) == 1
    known = target.replicas if is_only else old.last_known_elr if rules.eligible_leaders else ()
    if not eligible and not target.isr and len(known) == 1 and accepts(known[0]):
        return _Elected(known[0], is_unclean=True)
    if election is Election.UNCLEAN:
        for replica in target.replicas:
            if accepts(replica):
                return _Elected(replica, is_unclean=True)
    return _Elected(NO_LEADER)


def _recovery_state(old: PartitionState, goal: Goal, elected: _Elected, leader: int) -> int:
    if goal.recovery_state is not None and goal.recovery_state != old.leader_recovery_state:
        return goal.recovery_state
    if not 0 <= leader == elected.leader != old.leader:
        return STATE_UNCHANGED
    is_only = len(old.replicas) == 1  # nothing was lost that another one has
    wanted = RECOVERED if is_only else RECOVERING if elected.is_unclean else old.leader_recovery_state
    return STATE_UNCHANGED if wanted == old.leader_recovery_state else wanted


def _last_known(old: PartitionState, leader: int, rules: TopicRules) -> Ids | None:
    if rules.eligible_leaders and leader == NO_LEADER and old.has_leader and not old.last_known_elr:
        return (old.leader,)
    forgets = rules.eligible_leaders or len(old.replicas) == 1
    return () if leader >= 0 and old.last_known_elr and forgets else None


def _directories(old: PartitionState, replicas: Ids, goal: Goal, rules: TopicRules) -> tuple[UUID, ...] | None:
    if rules.level < LOG_DIRECTORIES or (replicas == old.replicas and not goal.directories):
        return None
    had = old.directories or (MIGRATING_DIRECTORY,) * len(old.replicas)
    known = dict(zip(old.replicas, had, strict=True)) | dict(goal.directories)
    wanted = tuple(known[replica] if replica in known else rules.default_directory(replica) for replica in replicas)
    return None if wanted == had else wanted
