"""The leader's decisions under lost answers, late metadata, restarts and elections: what was committed stays."""

from dataclasses import replace

import pytest

from kits.replication.leader_world import Broken, walk
from twofold.replication.isr import Isr, IsrMember, Reaction
from twofold.replication.leader import LeaderState

WALKS = 300
FOUND_WITHIN = 1500


@pytest.mark.parametrize("seed", range(0, WALKS, 100))
def test_what_was_committed_is_in_every_member_of_the_isr(seed):
    """And after all faults are healed, all replicas are in sync and everything is committed."""
    acknowledged = changes = 0
    for number in range(seed, seed + 100):
        world = walk(number)
        acknowledged += len(world.acknowledged)
        changes += world.state.partition_epoch
    assert (acknowledged > 1000, changes > 400) == (True, True), "the walks reach what they are about"


class ForgetsWhoJoins(LeaderState):
    """The high watermark counts the committed ISR only, also while a replica is being added."""

    def asking(self, change):
        return replace(self, isr=_CommittedOnly(self.isr.committed, change))

    @staticmethod
    def _is_about_to_join(*args):
        return False


class _CommittedOnly(Isr):
    @property
    def maximal(self):
        return self.committed


class CountsTheNewIsr(LeaderState):
    """A member that is about to leave holds nothing back any more."""

    def asking(self, change):
        return replace(self, isr=Isr(change.broker_ids, change))


class KeepsFollowersOverEpochs(LeaderState):
    """What was known of followers before an election still counts."""

    _before: dict = {}

    @classmethod
    def begin(cls, node_id, assignment, log_end, now_ms):
        state = super().begin(node_id, assignment, log_end, now_ms)
        if assignment.leader_epoch == 0:
            return state
        known = {name: cls._before.get(name, follower) for name, follower in state.followers.items()}
        return replace(state, followers=known)

    def fetched(self, replica, fetch, log_end, now_ms):
        state = super().fetched(replica, fetch, log_end, now_ms)
        type(self)._before = dict(state.followers)
        return state


class TakesFollowersBehindTheHighWatermark(LeaderState):
    def expansion(self, replica, high_watermark, brokers):
        return super().expansion(replica, self.epoch_start, brokers)


class ForgetsTheEpochStart(LeaderState):
    """A new leader, whose high watermark is behind, takes followers that lack what the leader before committed."""

    def expansion(self, replica, high_watermark, brokers):
        return replace(self, epoch_start=0).expansion_as_always(replica, high_watermark, brokers)

    def expansion_as_always(self, replica, high_watermark, brokers):
        return LeaderState.expansion(self, replica, high_watermark, brokers)


class LetsTheHighWatermarkFall(LeaderState):
    def high_watermark(self, current, log_end, **rest):
        return super().high_watermark(0, log_end, **rest)


class IgnoresMinInsync(LeaderState):
    def min_in_sync(self, wanted):
        return 1 if wanted > 1 else 0


class RunsAheadOfTheIsr(LeaderState):
    """One follower is enough."""

    def high_watermark(self, current, log_end, **rest):
        ends = sorted(follower.end_offset for follower in self.followers.values())
        return max(current, min(log_end, ends[-1]))


class TrustsEveryEpoch(LeaderState):
    """A fetch of a process that is over counts, and the controller is not told which process is meant."""

    def is_stale(self, fetch, registration):
        return False

    def expansion(self, replica, high_watermark, brokers):
        change = super().expansion(replica, high_watermark, lambda name: _Always(self.followers[name]))
        return (
            None if change is None else change._replace(members=tuple(IsrMember(m.broker_id) for m in change.members))
        )


class _Always:
    is_active = True

    def __init__(self, follower):
        self.epoch = follower.broker_epoch


class GivesUpOnALostAnswer(LeaderState):
    def answered(self, change, row):
        state, reaction = super().answered(change, row)
        if reaction in (Reaction.SEND_AGAIN, Reaction.LEFT_PENDING):
            return replace(state, isr=Isr(state.isr.committed)), Reaction.ROLLED_BACK
        return state, reaction

    @staticmethod
    def _is_about_to_join(*args):
        return False


class LetsOldNewsEndAChange(LeaderState):
    """Metadata of the partition epoch that is known already ends what is pending."""

    def updated(self, assignment):
        if assignment.partition_epoch == self.partition_epoch:
            return replace(self, isr=Isr(self.isr.committed))
        return super().updated(assignment)

    @staticmethod
    def _is_about_to_join(*args):
        return False


class TakesOldAnswers(LeaderState):
    """A success of an older partition epoch is the new state."""

    def answered(self, change, row):
        if not row.error_code:
            return replace(self, isr=Isr(change.broker_ids), partition_epoch=change.partition_epoch + 1), (
                Reaction.COMMITTED
            )
        return super().answered(change, row)


class NeverSendsAgain(LeaderState):
    def answered(self, change, row):
        state, reaction = super().answered(change, row)
        return state, Reaction.IGNORED if reaction is Reaction.SEND_AGAIN else reaction


class NeverTriesAgain(LeaderState):
    """A refused change stays pending."""

    def answered(self, change, row):
        state, reaction = super().answered(change, row)
        return (self, reaction) if reaction is Reaction.ROLLED_BACK else (state, reaction)


PLANTED = [
    ForgetsWhoJoins, CountsTheNewIsr, KeepsFollowersOverEpochs, TakesFollowersBehindTheHighWatermark,
    ForgetsTheEpochStart, LetsTheHighWatermarkFall, IgnoresMinInsync, RunsAheadOfTheIsr, TrustsEveryEpoch,
    GivesUpOnALostAnswer, LetsOldNewsEndAChange, TakesOldAnswers, NeverSendsAgain, NeverTriesAgain,
]  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug):
    for seed in range(FOUND_WITHIN):
        try:
            walk(seed, bug)
        except Broken:
            return
    pytest.fail(f"{FOUND_WITHIN} walks have not noticed {bug.__name__}")
