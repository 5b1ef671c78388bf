"""Members of the new protocol (KIP-848), very many over a few raw connections.

They join, heartbeat when it is time, give up what they have to and say so at once, as clients do. They read nothing.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from bench.wire import Client
from twofold.wire import codec
from twofold.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions

HEARTBEAT, VERSION = 68, 1
LANES = 8
JOIN, LEAVE = 0, -1
REBALANCE_TIMEOUT_MS = 300_000
PATIENCE_S = 180.0
LOOK_EVERY_S = 0.02
# A coordinator that is on its way; a member that was removed joins again.
BUSY, REMOVED = (14, 15, 16), (25, 110)

Owned: TypeAlias = dict[UUID, list[int]]


@dataclass(slots=True)
class Member:
    group: str
    id: str
    topic: str
    epoch: int = JOIN
    owned: Owned = field(default_factory=dict)
    must_tell: bool = False  # what it owns has changed

    @property
    def share(self) -> int:
        return sum(map(len, self.owned.values()))

    def request(self) -> ConsumerGroupHeartbeatRequest:
        place: dict[str, Any] = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch}
        if self.epoch == JOIN:
            return ConsumerGroupHeartbeatRequest(
                **place,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                subscribed_topic_names=[self.topic],
                topic_partitions=[],
            )
        owned = None
        if self.must_tell and self.epoch > 0:
            owned = [TopicPartitions(topic_id=topic, partitions=rows) for topic, rows in self.owned.items()]
        return ConsumerGroupHeartbeatRequest(**place, topic_partitions=owned)

    def take(self, answer: Any) -> bool:
        """Whether it has something to say at once."""
        code = answer.error_code
        if code in BUSY:
            return True
        if code in REMOVED:
            self.epoch, self.owned, self.must_tell = JOIN, {}, False
            return True
        if code:
            raise RuntimeError(f"member {self.id} of {self.group}: error {code}, {answer.error_message}")
        self.epoch = answer.member_epoch
        self.must_tell = False
        if answer.assignment is not None:
            wanted = {row.topic_id: list(row.partitions) for row in answer.assignment.topic_partitions}
            self.must_tell = wanted != self.owned
            self.owned = wanted
        return self.must_tell


class Lanes:
    """A few connections, each with one request on its way at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._clients = [Client(host, port) for _ in range(LANES)]

    def exchange(self, requests: Sequence[bytes]) -> list[Any]:
        """At most as many as there are lanes, all at once."""
        used = self._clients[: len(requests)]
        for client, request in zip(used, requests, strict=True):
            client.connection.send_raw(request)
        return [client.receive(HEARTBEAT, VERSION) for client in used]

    def repeat(self, requests: Sequence[bytes]) -> None:
        """As they come; their answers are known."""
        for start in range(0, len(requests), LANES):
            some = requests[start : start + LANES]
            for client, request in zip(self._clients, some, strict=False):
                client.connection.send_raw(request)
            for client, _ in zip(self._clients, some, strict=False):
                client.payload()

    def close(self) -> None:
        for client in self._clients:
            client.close()


def encoded(member: Member) -> bytes:
    return bytes(codec.encode_request(member.request(), HEARTBEAT, VERSION, 1, "bench"))


class Crowd:
    """Members that heartbeat every `interval_s`, in turn."""

    def __init__(self, lanes: Lanes, interval_s: float) -> None:
        self.members: dict[str, Member] = {}
        self.heartbeats = 0
        self._lanes = lanes
        self._interval_s = interval_s
        self._due: deque[tuple[float, Member]] = deque()
        self._urgent: deque[Member] = deque()

    def add(self, members: Iterable[Member]) -> None:
        for member in members:
            self.members[member.id] = member
            self._urgent.append(member)

    def leave(self, members: Iterable[Member]) -> None:
        for member in members:
            del self.members[member.id]
            member.epoch = LEAVE
            self._urgent.append(member)

    def run_until_even(self, partitions: int) -> float:
        """Until every partition has one member and no member has two more than another; how long it took."""
        started = time.monotonic()
        looked = started
        while True:
            self._turn()
            now = time.monotonic()
            if now - looked > LOOK_EVERY_S:
                looked = now
                if self.is_even(partitions):
                    return now - started
                if now - started > PATIENCE_S:
                    shares = sorted(member.share for member in self.members.values())
                    raise RuntimeError(f"not even after {PATIENCE_S} s: {sum(shares)} of {partitions}, {shares[:3]}...")

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._turn()

    def is_even(self, partitions: int) -> bool:
        members = self.members.values()
        if self._urgent or len({member.epoch for member in members}) > 1:
            return False
        shares = [member.share for member in members]
        if sum(shares) != partitions or max(shares) - min(shares) > 1:
            return False
        owned = {(topic, row) for one in members for topic, rows in one.owned.items() for row in rows}
        return len(owned) == partitions

    def _turn(self) -> None:
        now = time.monotonic()
        some: list[Member] = []
        while self._urgent and len(some) < LANES:
            some.append(self._urgent.popleft())
        while self._due and self._due[0][0] <= now and len(some) < LANES:
            _, member = self._due.popleft()
            if member.id in self.members:
                some.append(member)
        if not some:
            time.sleep(0.001)
            return
        self.heartbeats += len(some)
        answers = self._lanes.exchange([encoded(member) for member in some])
        for member, answer in zip(some, answers, strict=True):
            if member.epoch == LEAVE:
                continue
            if member.take(answer):
                self._urgent.append(member)
            else:
                self._due.append((now + self._interval_s, member))
