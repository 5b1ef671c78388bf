"""Nearly all heartbeats take a short way; what they decide is what the long way decides."""

from dataclasses import replace
from typing import Any

import pytest

from kits.coordinator.consumer_story import walk
from kits.coordinator.consumers import ConsumerWorld, Topics
from twofold.coordinator.group.consumer import groups
from twofold.coordinator.group.consumer.groups import ConsumerGroups, GroupDecision
from twofold.coordinator.group.consumer.heartbeat import only_goes_on

SEEDS = 40


class BothWays:
    """Takes the long way as well wherever the short one is taken, and compares."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        self._short, self._heartbeat = only_goes_on, ConsumerGroups.heartbeat
        self._may_be_short = True
        monkeypatch.setattr(groups, "only_goes_on", lambda *args: self._may_be_short and self._short(*args))
        monkeypatch.setattr(ConsumerGroups, "heartbeat", lambda *args: self.compare(*args))

    def compare(self, *args: Any) -> GroupDecision[Any]:
        found = self._heartbeat(*args)
        self._may_be_short = False
        try:
            long = self._heartbeat(*args)
        finally:
            self._may_be_short = True
        if self._is_short(*args):
            self.taken += 1
            assert not long.records
        assert replace(found, records=list(found.records)) == long
        return found

    def _is_short(self, owner: ConsumerGroups, state: Any, classic: Any, request: Any, client: Any, now: Any) -> bool:
        group = state.consumers.get(request.group_id)
        return group is not None and not owner._must_check(request.group_id) and self._short(group, request, client)


def test_the_short_way_decides_what_the_long_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = BothWays(monkeypatch)
    for seed in range(SEEDS):
        walk(seed)
    assert ways.taken > SEEDS


@pytest.mark.parametrize(
    "changed",
    [{"rebalance": 1000}, {"topics": ["t", "u"]}, {"pattern": "u"}, {"assignor": "range"}, {"owned": {"t": [0, 1]}}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_heartbeat_that_says_something_goes_the_long_way(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    world = ConsumerWorld(Topics(t=2, u=1))
    epoch = world.join("a").member_epoch
    ways = BothWays(monkeypatch)
    assert world.beat("a", epoch).member_epoch == epoch
    assert ways.taken == 1
    world.beat("a", epoch, **changed)
    assert ways.taken == 1


def test_a_static_member_that_names_its_instance_goes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ConsumerWorld(Topics(t=2))
    epoch = world.join("a", instance="i").member_epoch
    ways = BothWays(monkeypatch)
    world.beat("a", epoch, instance="i")
    assert ways.taken == 1


def test_a_member_with_a_pattern_goes_the_long_way_which_looks_whether_topics_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ConsumerWorld(Topics(t=2))
    world.beat("a", 0, owned={}, pattern="t", rebalance=1000)
    world.resolve(t=["t"])
    epoch = world.beat("a", world.group.members["a"].epoch).member_epoch
    ways = BothWays(monkeypatch)
    assert world.beat("a", epoch).member_epoch == epoch == world.group.epoch
    assert ways.taken == 0
