"""Clients of one consumer group as their machines would run them, and what must hold of the group at any time.

A story takes steps (a client joins, beats, loses an answer; topics and clocks change; the coordinator starts anew) from
a random walk or from Hypothesis, and `check` says what is broken.
"""

import random
from collections import Counter
from contextlib import suppress
from typing import Any
from uuid import UUID

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
SUBSCRIPTIONS: tuple[tuple[str, ...], ...] = (("t",), ("u",), ("t", "u"))
PAUSES_MS = (1, 5_000, 30_000, SESSION + 1)


class Broken(AssertionError):
    """Something that must hold does not."""


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

    def begin_anew(self) -> None:
        self.epoch, self.owned, self.told = 0, {}, {}


class ConsumerStory:
    def __init__(self) -> None:
        self.topics = Topics(t=4, u=3)
        self.world = ConsumerWorld(self.topics)
        self.clients: dict[str, Client] = {}
        self._epochs = (0, 0)

    # --- what clients do ---

    def join(self, name: str, topics: tuple[str, ...], instance: str | None) -> None:
        is_taken = instance is not None and any(client.instance for client in self.clients.values())
        if name not in self.clients and not is_taken:
            self.clients[name] = Client(name, topics, instance)
            self.ask(self.clients[name], full=True)

    def heartbeat(self, name: str, *, full: bool, gives_up: bool, is_lost: bool) -> None:
        client = self.clients[name]
        if gives_up:
            client.acknowledge()
        before = (client.epoch, client.told)
        self.ask(client, full=full, says=full or gives_up)
        if is_lost and name in self.clients and client.epoch > 0 and before[0] > 0:
            client.epoch, client.told = before  # the answer did not arrive

    def leave(self, name: str, *, for_a_while: bool) -> None:
        client = self.clients.pop(name)
        epoch = -2 if for_a_while and client.instance else -1
        with suppress(UnknownMemberId, GroupIdNotFound, FencedInstanceId):
            self.world.beat(client.name, epoch, instance=client.instance)

    def subscribe(self, name: str, topics: tuple[str, ...]) -> None:
        self.clients[name].topics = topics
        self.ask(self.clients[name], full=True)

    def ask(self, client: Client, *, full: bool, says: bool = True) -> None:
        """`says`: what it owns."""
        names = {topic.topic_id: name for name, topic in self.topics.known.items()}
        client.owned = {topic: found for topic, found in client.owned.items() if topic in names}
        owned = {names[topic]: found for topic, found in client.owned.items()}
        more: dict[str, Any] = {"topics": client.topics, "rebalance": REBALANCE} if full else {}
        try:
            if client.epoch == 0:
                client.begin_anew()
                answer = self.world.join(client.name, *client.topics, instance=client.instance)
            else:
                answer = self.world.beat(client.name, client.epoch, owned=owned if says else None, **more)
        except (UnknownMemberId, FencedMemberEpoch, FencedInstanceId, UnreleasedInstanceId) as error:
            client.begin_anew()
            if isinstance(error, FencedInstanceId | UnreleasedInstanceId):
                del self.clients[client.name]
            return
        client.take(answer)

    # --- what happens to them ---

    def restart(self) -> None:
        before = self.world.state.consumers
        self.world = self.world.restart()
        if self.world.state.consumers != before:
            raise Broken("a replay of the log makes other groups than it made while it was written")

    def grow(self, name: str, by: int) -> None:
        if name in self.topics.known and self.topics.known[name].partitions < 8:
            self.topics.grow(name, self.topics.known[name].partitions + by)

    def delete_or_create(self, name: str) -> None:
        if name in self.topics.known:
            self.topics.delete(name)
        else:
            self.topics.create(name, 3)

    # --- what must hold ---

    def check(self) -> None:
        group = self.world.state.consumers.get("g")
        if group is None:
            return
        held = Counter(place for member in group.members.values() for place in member.holds())
        if any(count > 1 for count in held.values()):
            raise Broken("two members hold a partition")
        if set(held) != set(group.holders):
            raise Broken("the holders of partitions are not those that the members say")
        epochs = (group.epoch, group.target_epoch)
        if epochs < self._epochs or group.target_epoch > group.epoch:
            raise Broken(f"the epochs fall from {self._epochs} to {epochs}")
        self._epochs = epochs
        owners: dict[tuple[UUID, int], str] = {}
        for client in self.clients.values():
            member = group.members.get(client.name)
            if member is None or client.epoch != member.epoch:
                continue
            places = {(topic, index) for topic, found in client.owned.items() for index in found}
            if not places <= set(member.holds()):
                raise Broken(f"{client.name} was not fenced and works on what is no longer its own")
            for place in places:
                if owners.setdefault(place, client.name) != client.name:
                    raise Broken(f"{client.name} and {owners[place]} work on the same partition")

    def settle(self) -> None:
        """When all do what they are told, the group comes to rest."""
        self.world.advance(1)
        for _ in range(8):
            for client in list(self.clients.values()):
                client.acknowledge()
                self.ask(client, full=True)
        group = self.world.state.consumers.get("g")
        if group is None or any(name not in self.clients for name in group.members):
            return
        if group.state not in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY):
            raise Broken(f"a quiet group is {group.state.value}")
        for name, member in group.members.items():
            target = {topic: set(found) for topic, found in group.target(name).items() if found}
            if {topic: set(found) for topic, found in member.current.assigned.items()} != target:
                raise Broken(f"{name} has not what it is to have")
        wanted = {name for member in group.members.values() for name in member.subscription.topics}
        existing = {self.topics.known[name] for name in wanted if name in self.topics.known}
        if len(group.holders) != sum(topic.partitions for topic in existing):
            raise Broken("partitions stay unread")
        if group.members and group.is_homogeneous:
            loads = [len(list(member.holds())) for member in group.members.values()]
            if max(loads) - min(loads) > 1:
                raise Broken(f"members are loaded with {loads}")


def walk(seed: int, steps: int = 60) -> None:
    """A random story; raises `Broken`."""
    chance = random.Random(seed)
    story = ConsumerStory()
    for _ in range(steps):
        _step(story, chance)
        story.check()
    story.settle()
    story.check()


def _step(story: ConsumerStory, chance: random.Random) -> None:
    kind = chance.choice("jjhhhhhhhhlstcrgd")
    if kind == "j":
        story.join(chance.choice(MEMBERS), chance.choice(SUBSCRIPTIONS), chance.choice((None, None, "i")))
    elif kind in "hls" and story.clients:
        name = chance.choice(sorted(story.clients))
        if kind == "h":
            full, gives_up, is_lost = (chance.random() < share for share in (0.3, 0.7, 0.2))
            story.heartbeat(name, full=full, gives_up=gives_up, is_lost=is_lost)
        elif kind == "l":
            story.leave(name, for_a_while=chance.random() < 0.5)
        else:
            story.subscribe(name, chance.choice(SUBSCRIPTIONS))
    elif kind == "t":
        story.world.advance(chance.choice(PAUSES_MS))
    elif kind == "c":
        story.world.wall_ms += chance.randint(-5, 5) * 3_600_000
    elif kind == "r":
        story.restart()
    elif kind == "g":
        story.grow(chance.choice(NAMES), chance.randint(1, 3))
    elif kind == "d":
        story.delete_or_create(chance.choice(NAMES))
