"""The place of a member in a group of the new protocol: what its heartbeats say, and what their answers mean."""

from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.client.consumer.group.membership import Identity
from twofold.client.consumer.group.modern.membership import (
    EpochMembership,
    MemberTerms,
    PartitionId,
    SentHeartbeat,
    WantedTopics,
    leaving,
)
from twofold.client.consumer.group.modern.states import (
    TRANSITIONS,
    EpochEvent,
    EpochState,
    EpochVerdict,
    RefusedEpochTransition,
    next_state,
)
from twofold.wire import errors
from twofold.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsResult,
)

T, U = UUID(int=1), UUID(int=2)
SESSION_S, MAX_POLL_S = 45.0, 300.0
TERMS = MemberTerms("g", "m", None, None, None, int(MAX_POLL_S * 1000), SESSION_S)


def member(**terms: object) -> EpochMembership:
    made = EpochMembership(TERMS._replace(**terms))  # type: ignore[arg-type]
    made.wanted = WantedTopics(frozenset({"t"}))
    made.polled(0.0)
    return made


def answer(epoch: int, assigned: set[PartitionId] | None = None) -> ConsumerGroupHeartbeatResponse:
    rows = None
    if assigned is not None:
        topics = sorted({topic for topic, _ in assigned})
        rows = Assignment(
            topic_partitions=[
                TopicPartitionsResult(topic_id=topic, partitions=[n for one, n in sorted(assigned) if one == topic])
                for topic in topics
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=0, member_id="m", member_epoch=epoch, heartbeat_interval_ms=5000, assignment=rows
    )


def joined(assigned: set[PartitionId], **terms: object) -> EpochMembership:
    """Stable, with these."""
    made = member(**terms)
    made.join()
    made.answered(made.speak(), answer(1, assigned), 0.0)
    reconcile(made)
    if made.is_at(EpochState.ACKNOWLEDGING):
        made.answered(made.speak(), answer(1), 1.0)
    assert made.is_at(EpochState.STABLE)
    return made


def reconcile(made: EpochMembership) -> None:
    change = made.change(made.target)
    made.gave_up(change.revoked)
    made.took(change.added)


def test_every_pair_of_state_and_event_is_in_the_table_or_refused() -> None:
    for state, event in product(EpochState, EpochEvent):
        if (state, event) in TRANSITIONS:
            assert next_state(state, event) is TRANSITIONS[state, event]
        else:
            with pytest.raises(RefusedEpochTransition):
                next_state(state, event)


def test_a_member_that_joins_says_everything_and_owns_nothing() -> None:
    made = member(rack="r", server_assignor="range", instance_id="i")
    made.join()
    request = made.speak().request
    assert (request.member_id, request.member_epoch, request.instance_id, request.rack_id) == ("m", 0, "i", "r")
    assert (request.rebalance_timeout_ms, request.server_assignor) == (300_000, "range")
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (["t"], None)
    assert request.topic_partitions == []


def test_a_heartbeat_without_news_is_short_and_names_the_instance() -> None:
    made = joined({(T, 0)}, instance_id="i", rack="r")
    request = made.speak().request
    assert not made.must_speak
    assert (request.member_epoch, request.instance_id, request.rebalance_timeout_ms) == (1, "i", -1)
    assert (request.rack_id, request.server_assignor, request.subscribed_topic_names) == (None, None, None)
    assert (request.subscribed_topic_regex, request.topic_partitions) == (None, None)


def test_what_was_not_answered_is_said_again_in_full() -> None:
    """The answer may be lost: the coordinator takes the epoch before from a full heartbeat only."""
    made = joined({(T, 0)})
    made.unanswered(made.speak())
    request = made.speak().request
    assert (request.member_epoch, request.rebalance_timeout_ms, request.subscribed_topic_names) == (1, 300_000, ["t"])
    assert [(row.topic_id, list(row.partitions)) for row in request.topic_partitions or ()] == [(T, [0])]


def test_partitions_are_given_up_before_others_are_taken_and_then_acknowledged_at_once() -> None:
    made = joined({(T, 0), (T, 1)})
    made.answered(made.speak(), answer(2, {(T, 1), (U, 0)}), 2.0)
    assert made.is_at(EpochState.RECONCILING) and not made.must_speak
    change = made.change(made.target)
    assert change.revoked == {(T, 0)} and change.added == {(U, 0)}
    made.gave_up(change.revoked)
    assert made.took(change.added)
    assert made.is_at(EpochState.ACKNOWLEDGING) and made.must_speak
    sent = made.speak()
    rows = sent.request.topic_partitions or ()
    assert [(row.topic_id, list(row.partitions)) for row in rows] == [(T, [1]), (U, [0])]
    made.answered(sent, answer(3), 3.0)
    assert made.is_at(EpochState.STABLE) and not made.must_speak and made.epoch == 3


def test_a_heartbeat_that_left_before_the_change_acknowledges_nothing() -> None:
    made = joined({(T, 0), (T, 1)})
    made.answered(made.speak(), answer(2, {(T, 1)}), 2.0)
    early = made.speak()
    reconcile(made)
    made.answered(early, answer(2), 3.0)
    assert made.is_at(EpochState.ACKNOWLEDGING) and made.must_speak


def test_an_assignment_that_changes_again_is_reconciled_again() -> None:
    made = joined({(T, 0), (T, 1)})
    made.answered(made.speak(), answer(2, {(T, 1)}), 2.0)
    reconcile(made)
    made.answered(made.speak(), answer(3, {(T, 1), (U, 1)}), 3.0)
    assert made.is_at(EpochState.RECONCILING)
    reconcile(made)
    assert made.owned == {(T, 1), (U, 1)}


def test_topics_without_a_name_are_taken_when_they_have_one() -> None:
    made = member()
    made.join()
    made.answered(made.speak(), answer(1, {(T, 0), (U, 0)}), 0.0)
    change = made.change({(T, 0)})
    assert change.added == {(T, 0)} and not made.took(change.added)
    assert made.is_at(EpochState.RECONCILING) and made.may_hand_out(1.0), "what it has may be read meanwhile"
    assert made.took(made.change(made.target).added)


def test_a_member_that_gets_nothing_is_one_all_the_same() -> None:
    made = member()
    made.join()
    made.answered(made.speak(), answer(2, set()), 0.0)
    assert made.is_at(EpochState.RECONCILING), "the application hears that it has nothing"
    reconcile(made)
    assert made.is_at(EpochState.STABLE) and not made.must_speak


@pytest.mark.parametrize("error", [errors.UnknownMemberId, errors.FencedMemberEpoch])
def test_a_member_that_is_not_known_loses_what_it_had_and_joins_under_the_same_id(
    error: type[errors.KafkaError],
) -> None:
    made = joined({(T, 0)})
    assert made.failed(made.speak(), error("")) is EpochVerdict.REJOIN
    assert made.is_at(EpochState.UNJOINED) and made.owned == frozenset() and not made.may_hand_out(1.0)
    assert made.reads_as == Identity("m", 1), "a transaction of what was read is still fenced by the old epoch"
    made.join()
    assert made.speak().request.member_epoch == 0
    assert made.speak().request.topic_partitions == []


@pytest.mark.parametrize(
    "error",
    [
        errors.GroupAuthorizationFailed,
        errors.UnsupportedVersion,
        errors.InvalidRequest,
        errors.GroupMaxSizeReached,
        errors.FencedInstanceId,
        errors.UnreleasedInstanceId,
        errors.UnsupportedAssignor,
        errors.InvalidRegularExpression,
        errors.GroupIdNotFound,
        errors.UnknownServerError,
    ],
)
def test_other_errors_end_the_membership_for_good(error: type[errors.KafkaError]) -> None:
    made = joined({(T, 0)})
    assert made.failed(made.speak(), error("")) is EpochVerdict.FAIL
    assert made.is_at(EpochState.FAILED) and not made.must_speak and not made.may_hand_out(1.0)


def test_a_topic_without_the_right_to_it_is_told_and_the_member_goes_on() -> None:
    made = joined({(T, 0)})
    assert made.failed(made.speak(), errors.TopicAuthorizationFailed("")) is EpochVerdict.TELL
    assert made.may_hand_out(1.0)
    assert made.speak().request.rebalance_timeout_ms == 300_000, "the next one is full"


def test_answers_of_a_membership_that_is_over_are_old_news() -> None:
    made = joined({(T, 0)})
    late = made.speak()
    made.dropped()
    made.join()
    made.answered(late, answer(7, {(T, 5)}), 1.0)
    assert made.is_at(EpochState.JOINING) and made.epoch == 0
    assert made.failed(late, errors.UnknownMemberId("")) is None
    assert made.is_at(EpochState.JOINING)


def test_a_subscription_that_changes_is_said_at_once_and_only_that() -> None:
    made = joined({(T, 0)})
    made.wanted = WantedTopics(frozenset({"t", "u"}))
    assert made.must_speak
    request = made.speak().request
    assert (request.subscribed_topic_names, request.rebalance_timeout_ms) == (["t", "u"], -1)


def test_a_pattern_is_taken_away_by_an_empty_one_also_when_the_answer_was_lost() -> None:
    made = joined(set())
    made.wanted = WantedTopics(regex="a.*")
    sent = made.speak()
    assert (sent.request.subscribed_topic_names, sent.request.subscribed_topic_regex) == ([], "a.*")
    made.unanswered(sent)
    made.wanted = WantedTopics(frozenset({"t"}))
    assert made.speak().request.subscribed_topic_regex == ""


def test_a_member_that_was_paused_asks_before_it_hands_out_records() -> None:
    made = joined({(T, 0)})
    made.answered(made.speak(), answer(1), 10.0)
    assert made.may_hand_out(10.0 + SESSION_S - 0.1) and not made.must_ask(10.0 + SESSION_S - 0.1)
    assert not made.may_hand_out(10.0 + SESSION_S) and made.must_ask(10.0 + SESSION_S)
    made.answered(made.speak(), answer(1), 60.0)
    assert made.may_hand_out(60.0)


def test_a_consumer_that_does_not_poll_is_overdue_only_while_it_is_a_member() -> None:
    made = member()
    assert not made.is_poll_overdue(1e9)
    made.join()
    assert not made.is_poll_overdue(MAX_POLL_S - 1) and made.is_poll_overdue(MAX_POLL_S)


def test_leaving_is_for_good_or_of_a_static_member_for_a_while() -> None:
    assert leaving(TERMS).member_epoch == -1
    left = leaving(TERMS._replace(instance_id="i"))
    assert (left.member_epoch, left.instance_id) == (-2, "i")


def test_a_commit_that_is_refused_ends_the_membership_that_sent_it_and_no_other() -> None:
    made = joined({(T, 0)})
    assert not made.refused(Identity("m", 7))
    assert made.refused(Identity("m", 1)) and made.is_at(EpochState.UNJOINED)


class Coordinator:
    """One member of a group, as the broker keeps it: what it may have now, and what it still has to give up."""

    def __init__(self) -> None:
        self.epoch = 0
        self.target: set[PartitionId] = set()
        self.assigned: set[PartitionId] = set()
        self.pending: set[PartitionId] = set()
        self.knows = False

    def heard(self, sent: SentHeartbeat) -> ConsumerGroupHeartbeatResponse | errors.KafkaError:
        request = sent.request
        owned = None
        if request.topic_partitions is not None:
            owned = {(row.topic_id, n) for row in request.topic_partitions if row.topic_id for n in row.partitions}
        is_full = request.rebalance_timeout_ms != -1
        if request.member_epoch == 0:
            assert owned == set() and is_full
            self.knows = True
        elif not self.knows:
            return errors.UnknownMemberId("")
        before = set(self.assigned)
        if self.pending and owned is not None and not owned & self.pending:
            self.pending = set()
        if not self.pending:
            kept = self.assigned & self.target
            given = self.assigned - kept
            if given and (owned is None or given & owned):
                self.assigned, self.pending = kept, given
            else:
                self.assigned = set(self.target)
                self.epoch += 1
        tells = request.member_epoch == 0 or is_full or self.assigned != before
        return answer(max(self.epoch, 1), set(self.assigned) if tells else None)


PARTITIONS = [(T, 0), (T, 1), (U, 0), (U, 1)]
STEPS = st.one_of(
    st.tuples(st.just("target"), st.sets(st.sampled_from(PARTITIONS))),
    st.tuples(st.sampled_from(("beat", "request lost", "answer lost", "poll", "removed")), st.none()),
)


@given(st.lists(STEPS, max_size=40))
def test_whatever_is_lost_the_member_ends_with_what_the_coordinator_wants(
    steps: list[tuple[str, set[PartitionId] | None]],
) -> None:
    made, coordinator = member(), Coordinator()

    def beat(*, arrives: bool = True, returns: bool = True) -> None:
        if made.is_at(EpochState.UNJOINED):
            return
        sent = made.speak()
        said = coordinator.heard(sent) if arrives else None
        assert made.owned <= coordinator.assigned | coordinator.pending or not coordinator.knows
        if said is None or not returns:
            made.unanswered(sent)
        elif isinstance(said, errors.KafkaError):
            made.failed(sent, said)
        else:
            made.answered(sent, said, 0.0)

    def poll() -> None:
        if made.is_at(EpochState.UNJOINED):
            made.join()
        elif made.is_at(EpochState.RECONCILING):
            reconcile(made)

    for step, target in steps:
        if step == "target":
            coordinator.target = set(target or ())
        elif step == "removed":
            coordinator.knows, coordinator.assigned, coordinator.pending = False, set(), set()
        elif step == "poll":
            poll()
        else:
            beat(arrives=step != "request lost", returns=step == "beat")
    for _ in range(6):
        poll()
        beat()
    assert made.is_at(EpochState.STABLE)
    assert made.owned == coordinator.assigned == coordinator.target
