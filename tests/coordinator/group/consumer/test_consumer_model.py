"""Random members, topics, restarts and clocks: what must hold of a consumer group at any time, and when it is quiet.

Bugs that are planted in the machine are found by the same walks.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kits.coordinator.consumer_story import MEMBERS, NAMES, PAUSES_MS, SUBSCRIPTIONS, Broken, ConsumerStory, walk
from twofold.coordinator.group.consumer import draft, groups, reconciliation
from twofold.coordinator.group.consumer.records import Current
from twofold.coordinator.group.consumer.state import STABLE, UNREVOKED, ConsumerGroup

SEEDS = 60


class ConsumerGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.story = ConsumerStory()

    @property
    def clients(self) -> list[str]:
        return sorted(self.story.clients)

    @rule(
        name=st.sampled_from(MEMBERS),
        topics=st.sampled_from(SUBSCRIPTIONS),
        instance=st.sampled_from([None, None, "i"]),
    )
    def join(self, name: str, topics: tuple[str, ...], instance: str | None) -> None:
        self.story.join(name, topics, instance)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), full=st.booleans(), gives_up=st.booleans(), is_lost=st.booleans())
    def heartbeat(self, data: Any, full: bool, gives_up: bool, is_lost: bool) -> None:
        name = data.draw(st.sampled_from(self.clients))
        self.story.heartbeat(name, full=full, gives_up=gives_up, is_lost=is_lost)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), for_a_while=st.booleans())
    def leave(self, data: Any, for_a_while: bool) -> None:
        self.story.leave(data.draw(st.sampled_from(self.clients)), for_a_while=for_a_while)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, data: Any, topics: tuple[str, ...]) -> None:
        self.story.subscribe(data.draw(st.sampled_from(self.clients)), topics)

    @rule(ms=st.sampled_from(PAUSES_MS))
    def time(self, ms: int) -> None:
        self.story.world.advance(ms)

    @rule(hours=st.integers(-5, 5))
    def clock(self, hours: int) -> None:
        self.story.world.wall_ms += hours * 3_600_000

    @rule()
    def restart(self) -> None:
        self.story.restart()

    @rule(name=st.sampled_from(NAMES), by=st.integers(1, 3))
    def grow(self, name: str, by: int) -> None:
        self.story.grow(name, by)

    @rule(name=st.sampled_from(NAMES))
    def delete_or_create(self, name: str) -> None:
        self.story.delete_or_create(name)

    @invariant()
    def all_holds(self) -> None:
        self.story.check()

    def teardown(self) -> None:
        self.story.settle()


ConsumerGroupModel.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestConsumerGroups = pytest.mark.hypothesis(ConsumerGroupModel.TestCase)


def walks(seeds: int) -> None:
    for seed in range(seeds):
        walk(seed)


def test_random_walks_break_nothing() -> None:
    walks(SEEDS)


# --- planted bugs ---

_next, _step, _owns = reconciliation._next, reconciliation.step, reconciliation._owns


def takes_what_another_holds(current: Current, aim: Any, epoch: int) -> Current:
    return _next(current, aim._replace(is_held_by_another=lambda topic, index: False), epoch)


def gives_up_unasked(owned: Any, held: Any) -> bool:
    """A member that does not say what it owns counts as one that has given up."""
    return False if owned is None else _owns(owned, held)


def forgets_to_wait(current: Current, aim: Any) -> Current:
    """What is to be given up is not waited for."""
    if current.state == UNREVOKED:
        current = current._replace(state=STABLE, pending={})
    return _step(current, aim)


def never_compares_topics(self: Any, group_id: str) -> bool:
    return False


def keeps_the_time_of_the_clock(self: Any) -> bool:
    """A clock that was set back stops the group for as long."""
    group = self.group
    interval_ms = self.cluster.timings(group.group_id).assignment_interval_ms
    return group.target_epoch < group.epoch and self.now.wall_ms - group.target_timestamp_ms >= interval_ms


def forgets_holders(self: ConsumerGroup, before: Any, after: Any) -> Any:
    return self.holders


PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a partition is given while another member holds it": (reconciliation, "_next", takes_what_another_holds),
    "a revocation that is not acknowledged counts": (reconciliation, "_owns", gives_up_unasked),
    "a revocation is not waited for": (draft, "step", forgets_to_wait),
    "changed topics are not noticed": (groups.ConsumerGroups, "_must_check", never_compares_topics),
    "a clock that was set back stops the group": (draft.Draft, "is_target_due", keeps_the_time_of_the_clock),
    "holders are not kept": (ConsumerGroup, "_moved", forgets_holders),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_random_walks_find_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, planted = PLANTED[bug]
    monkeypatch.setattr(where, name, planted)
    with pytest.raises(Broken):
        walks(SEEDS * 5)
