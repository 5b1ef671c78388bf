"""Random members, topics, restarts and clocks: what must hold of a consumer group at any time, and when it is quiet."""

from collections import Counter
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kits.coordinator.consumers import REBALANCE, SESSION, ConsumerWorld, Topics, assigned
from twofold.coordinator.group.consumer.state import ConsumerGroupState
from twofold.wire.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    UnknownMemberId,
    UnreleasedInstanceId,
)

NAMES = ("t", "u")
MEMBERS = tuple("abcdef")


class Client:
    """A member as its client sees it: what it was told, and what it still works on."""

    def __init__(self, name: str, topics: tuple[str, ...], instance: str | None) -> None:
        self.name, self.topics, self.instance = name, topics, instance
        self.epoch = 0
        self.told: dict[UUID, list[int]] = {}
        self.owned: dict[UUID, list[int]] = {}

    def take(self, answer: Any) -> None:
        self.epoch = answer.member_epoch
        given = assigned(answer)
        if given is not None:
            self.told = given

    def acknowledge(self) -> None:
        self.owned = {topic: list(found) for topic, found in self.told.items()}


class ConsumerGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics = Topics(t=4, u=3)
        self.world = ConsumerWorld(self.topics)
        self.clients: dict[str, Client] = {}
        self.epochs: list[tuple[int, int]] = []

    # --- what clients do ---

    def ask(self, client: Client, *, full: bool) -> None:
        names = {topic.topic_id: name for name, topic in self.topics.known.items()}
        client.owned = {topic: found for topic, found in client.owned.items() if topic in names}
        owned = {names[topic]: found for topic, found in client.owned.items()}
        try:
            if client.epoch == 0:
                client.owned, client.told = {}, {}
                answer = self.world.join(client.name, *client.topics, instance=client.instance)
            elif full:
                answer = self.world.beat(
                    client.name, client.epoch, owned=owned, topics=client.topics, rebalance=REBALANCE
                )
            else:
                answer = self.world.beat(client.name, client.epoch, owned=owned)
        except (UnknownMemberId, FencedMemberEpoch, FencedInstanceId, UnreleasedInstanceId) as error:
            client.epoch = 0
            client.owned, client.told = {}, {}
            if isinstance(error, FencedInstanceId | UnreleasedInstanceId):
                del self.clients[client.name]
            return
        client.take(answer)

    @rule(
        name=st.sampled_from(MEMBERS),
        topics=st.sampled_from([("t",), ("u",), ("t", "u")]),
        instance=st.sampled_from([None, None, "i"]),
    )
    def join(self, name: str, topics: tuple[str, ...], instance: str | None) -> None:
        if name not in self.clients and not (instance and any(one.instance for one in self.clients.values())):
            self.clients[name] = Client(name, topics, instance)
            self.ask(self.clients[name], full=True)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), full=st.booleans(), gives_up=st.booleans(), is_lost=st.booleans())
    def heartbeat(self, data: Any, full: bool, gives_up: bool, is_lost: bool) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        if gives_up:
            client.acknowledge()
        before = (client.epoch, client.told)
        self.ask(client, full=full)
        if is_lost and client.name in self.clients and client.epoch > 0 and before[0] > 0:
            client.epoch, client.told = before  # the answer did not arrive

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), for_a_while=st.booleans())
    def leave(self, data: Any, for_a_while: bool) -> None:
        client = self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))
        epoch = -2 if for_a_while and client.instance else -1
        with suppress(UnknownMemberId, GroupIdNotFound, FencedInstanceId):
            self.world.beat(client.name, epoch, instance=client.instance)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=st.sampled_from([("t",), ("u",), ("t", "u")]))
    def subscribe(self, data: Any, topics: tuple[str, ...]) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.topics = topics
        self.ask(client, full=True)

    # --- what happens to them ---

    @rule(ms=st.sampled_from([1, 5_000, 30_000, SESSION + 1]))
    def time(self, ms: int) -> None:
        self.world.advance(ms)

    @rule(hours=st.integers(-5, 5))
    def clock(self, hours: int) -> None:
        self.world.wall_ms += hours * 3_600_000

    @rule()
    def restart(self) -> None:
        before = self.world.state
        self.world = self.world.restart()
        assert self.world.state.consumers == before.consumers

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 3))
    def grow(self, name: str, partitions: int) -> None:
        if name in self.topics.known and self.topics.known[name].partitions < 8:
            self.topics.grow(name, self.topics.known[name].partitions + partitions)

    @rule(name=st.sampled_from(NAMES))
    def delete_or_create(self, name: str) -> None:
        if name in self.topics.known:
            self.topics.delete(name)
        else:
            self.topics.create(name, 3)

    # --- what must hold ---

    @invariant()
    def a_partition_has_one_holder(self) -> None:
        group = self.world.state.consumers.get("g")
        if group is None:
            return
        held = Counter(place for member in group.members.values() for place in member.holds())
        assert not [place for place, count in held.items() if count > 1]
        assert set(held) == set(group.holders)
        assert all(place in group.members[name].holds() for place, name in group.holders.items())

    @invariant()
    def epochs_do_not_fall(self) -> None:
        group = self.world.state.consumers.get("g")
        if group is not None:
            assert group.target_epoch <= group.epoch
            self.epochs.append((group.epoch, group.target_epoch))
            assert self.epochs[-2:] == sorted(self.epochs[-2:])

    @invariant()
    def what_clients_own_is_theirs(self) -> None:
        """A client that was not fenced may work on what it owns: nobody else has it."""
        group = self.world.state.consumers.get("g")
        for client in self.clients.values():
            member = None if group is None else group.members.get(client.name)
            if member is None or client.epoch != member.epoch:
                continue
            held = set(member.holds())
            assert all((topic, index) in held for topic, found in client.owned.items() for index in found)

    def teardown(self) -> None:
        """When all do what they are told, the group comes to rest."""
        self.world.advance(1)
        for _ in range(8):
            for client in list(self.clients.values()):
                client.acknowledge()
                self.ask(client, full=True)
        group = self.world.state.consumers.get("g")
        if group is None or any(name not in self.clients for name in group.members):
            return
        assert group.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY)
        for name, member in group.members.items():
            target = {topic: set(found) for topic, found in group.target(name).items() if found}
            assert {topic: set(found) for topic, found in member.current.assigned.items()} == target
        if group.members and group.is_homogeneous:
            loads = [len(list(member.holds())) for member in group.members.values()]
            assert max(loads) - min(loads) <= 1


pytestmark = pytest.mark.hypothesis
ConsumerGroupModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConsumerGroups = ConsumerGroupModel.TestCase
