"""The membership as a pure machine: the table, the verdicts, what is given up, and how long a member is sure."""

import itertools
from typing import Any

import pytest

from twofold.client.consumer.assignors import RebalanceProtocol, assignor_named
from twofold.client.consumer.group.membership import (
    AssignmentChange,
    ClientMembership,
    GivenUp,
    Identity,
    common_protocol,
)
from twofold.client.consumer.group.states import (
    MAY_COMMIT,
    MAY_HAND_OUT,
    TRANSITIONS,
    VERDICTS,
    AnswerVerdict,
    GroupRequest,
    MembershipEvent,
    MembershipState,
    RefusedMembershipTransition,
    next_state,
    verdict_on,
)
from twofold.types import TopicPartition
from twofold.wire import errors
from twofold.wire.errors import (
    FencedInstanceId,
    GroupAuthorizationFailed,
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)

S, E = MembershipState, MembershipEvent
A, B, C = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0))
SESSION_S, MAX_POLL_S = 10.0, 300.0
ME = Identity("me", 3)


def fresh(protocol: RebalanceProtocol = RebalanceProtocol.COOPERATIVE) -> ClientMembership:
    return ClientMembership(protocol, SESSION_S, MAX_POLL_S)


def at(state: MembershipState, protocol: RebalanceProtocol = RebalanceProtocol.COOPERATIVE) -> ClientMembership:
    """A member that came to this state, with a generation where it has one."""
    found = fresh(protocol)
    if state is S.UNJOINED:
        return found
    for step in (
        lambda: found.prepare((), frozenset()),
        found.prepared,
        found.sent,
        lambda: found.joined(ME),
        lambda: found.synced(100.0),
        lambda: found.taken(AssignmentChange((), ())),
    ):
        step()
        if found.state is state and state in (S.SYNCING, S.ASSIGNED, S.STABLE):
            return found
    for step in (lambda: found.prepare((), frozenset()), found.prepared, found.sent):
        step()
        if found.state is state:
            return found
    found.failed(GroupRequest.HEARTBEAT, FencedInstanceId(), ME)
    assert found.state is state
    return found


# The table


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_every_pair_of_state_and_event_is_in_the_table_or_refused(state: S, event: E) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) in S
    else:
        with pytest.raises(RefusedMembershipTransition, match=f"{state.value} cannot take: {event.value}"):
            next_state(state, event)


def test_every_state_is_reached_and_only_a_fenced_member_is_at_an_end() -> None:
    reached = {S.UNJOINED}
    while following := {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] in reached} - reached:
        reached |= following
    assert reached == set(S)
    final = {state for state in S if all(target is state for (one, _), target in TRANSITIONS.items() if one is state)}
    assert final == {S.FENCED}


def test_nothing_is_committed_or_handed_out_without_a_generation() -> None:
    for state in (S.UNJOINED, S.FENCED):
        assert state not in MAY_COMMIT and state not in MAY_HAND_OUT
    # Between JoinGroup and the answer to SyncGroup a commit would be one of no generation.
    assert not MAY_COMMIT & {S.PREPARED, S.JOINING, S.SYNCING}


# Verdicts


@pytest.mark.parametrize("request_", GroupRequest)
def test_errors_that_pass_have_no_verdict_because_they_are_tried_again(request_: GroupRequest) -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, KafkaError)]
    assert not any(kind.retriable for kind in VERDICTS[request_])
    for kind in kinds:
        if kind not in VERDICTS[request_]:
            assert verdict_on(request_, kind()) is AnswerVerdict.RAISE


@pytest.mark.parametrize("state", [S.PREPARING, S.PREPARED, S.ASSIGNED, S.STABLE])
@pytest.mark.parametrize("request_", [GroupRequest.HEARTBEAT, GroupRequest.COMMIT])
@pytest.mark.parametrize(
    ("error", "member_id"), [(UnknownMemberId(), ""), (IllegalGeneration(), "me"), (FencedInstanceId(), "me")]
)
def test_what_ends_a_generation_ends_it_wherever_the_member_stands(
    state: S, request_: GroupRequest, error: KafkaError, member_id: str
) -> None:
    member = at(state)
    verdict = member.failed(request_, error, ME)
    assert verdict is verdict_on(request_, error)
    assert member.state is (S.FENCED if verdict is AnswerVerdict.FENCED else S.UNJOINED)
    assert member.identity == Identity(member_id, -1)
    assert not member.may_commit and not member.may_hand_out(100.0)


@pytest.mark.parametrize("state", [S.JOINING, S.SYNCING])
@pytest.mark.parametrize("error", [UnknownMemberId(), IllegalGeneration(), RebalanceInProgress()])
def test_in_a_round_the_answers_to_other_requests_are_old_news(state: S, error: KafkaError) -> None:
    member = at(state)
    for request_ in (GroupRequest.HEARTBEAT, GroupRequest.COMMIT):
        assert member.failed(request_, error, ME) is AnswerVerdict.IGNORE
        assert member.state is state and member.has_generation


def test_an_answer_to_another_generation_or_member_changes_nothing() -> None:
    member = at(S.STABLE)
    for sent in (Identity("me", 2), Identity("other", 3)):
        for error in (UnknownMemberId(), IllegalGeneration(), FencedInstanceId(), RebalanceInProgress()):
            assert member.failed(GroupRequest.HEARTBEAT, error, sent) is AnswerVerdict.IGNORE
    assert (member.state, member.identity, member.rejoin_reason) == (S.STABLE, ME, "")


def test_a_rebalance_asks_for_a_round_and_keeps_the_generation() -> None:
    member = at(S.STABLE)
    assert not member.needs_round
    assert member.failed(GroupRequest.HEARTBEAT, RebalanceInProgress(), ME) is AnswerVerdict.REJOIN
    assert member.needs_round and member.identity == ME


def test_a_round_that_fails_is_repeated_and_one_without_its_assignment_loses_the_generation() -> None:
    member = at(S.JOINING)
    assert member.failed(GroupRequest.JOIN, GroupAuthorizationFailed(), ME) is AnswerVerdict.RAISE
    assert member.state is S.PREPARED and member.has_generation
    for error in (RebalanceInProgress(), GroupAuthorizationFailed()):
        member = at(S.SYNCING)
        member.failed(GroupRequest.SYNC, error, ME)
        assert member.state is S.UNJOINED and member.identity == Identity("me", -1)


def test_the_member_id_that_came_along_is_used_by_the_next_join() -> None:
    member = fresh()
    member.prepare((), frozenset())
    member.prepared()
    member.sent()
    member.take_member_id("given")
    assert member.state is S.PREPARED and member.identity == Identity("given", -1)


# What is given up


@pytest.mark.parametrize(
    ("protocol", "given"),
    [(RebalanceProtocol.EAGER, (A, B, C)), (RebalanceProtocol.COOPERATIVE, (C,))],
)
def test_before_a_round_an_eager_member_gives_up_all_and_a_cooperative_one_what_it_is_not_subscribed_to(
    protocol: RebalanceProtocol, given: Any
) -> None:
    assert at(S.STABLE, protocol).prepare((A, B, C), frozenset({"t"})) == GivenUp(given, is_lost=False)


@pytest.mark.parametrize("protocol", RebalanceProtocol)
def test_without_a_generation_everything_is_lost(protocol: RebalanceProtocol) -> None:
    member = at(S.STABLE, protocol)
    member.dropped(forget=False)
    assert member.prepare((A, B, C), frozenset({"t"})) == GivenUp((A, B, C), is_lost=True)


def test_after_a_round_what_was_revoked_needs_another_one() -> None:
    member = at(S.ASSIGNED)
    change = member.change((A, B), (B, C))
    assert change == AssignmentChange(revoked=(A,), added=(C,))
    member.taken(change)
    assert member.needs_round and member.rejoin_reason == "partitions were revoked"
    member = at(S.ASSIGNED)
    member.taken(member.change((A,), (A, B)))
    assert not member.needs_round


def test_a_list_of_strategies_is_cooperative_only_if_all_of_them_are() -> None:
    eager, cooperative = assignor_named("range"), assignor_named("cooperative-sticky")
    assert common_protocol([cooperative]) is RebalanceProtocol.COOPERATIVE
    assert common_protocol([eager, cooperative]) is RebalanceProtocol.EAGER
    assert common_protocol([eager]) is RebalanceProtocol.EAGER


# Time


def test_a_member_is_sure_for_a_session_after_it_sent_what_was_answered() -> None:
    member = at(S.STABLE)  # SyncGroup left at 100
    assert member.may_hand_out(109.9) and not member.must_ask(109.9)
    assert not member.may_hand_out(110.0) and member.must_ask(110.0)
    member.heard(ME, 105.0)
    assert member.may_hand_out(114.9) and not member.may_hand_out(115.0)
    member.heard(ME, 101.0)  # an answer that was on its way for long
    assert member.may_hand_out(114.9)
    member.heard(Identity("me", 2), 200.0)  # of an earlier generation
    assert not member.may_hand_out(115.0)


def test_a_rebalance_that_others_wait_for_ends_what_heartbeats_say() -> None:
    member = at(S.STABLE)
    for moment in range(100, 500):
        member.heard(ME, float(moment), rebalancing=moment > 100)
    assert member.may_hand_out(399.9)
    assert not member.may_hand_out(400.0)  # the coordinator may have gone on without it
    assert not member.must_ask(400.0)


def test_polls_are_overdue_after_the_interval_and_only_for_a_member() -> None:
    member = at(S.STABLE)
    member.polled(100.0)
    assert not member.is_poll_overdue(399.9)
    assert member.is_poll_overdue(400.0)
    member.dropped(forget=True)
    assert not member.is_poll_overdue(400.0)
