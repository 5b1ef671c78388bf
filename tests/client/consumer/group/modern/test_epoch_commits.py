"""A commit whose epoch is too old: sent again with the newer one, or refused."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from twofold.client.admin.group_model import OffsetAndMetadata
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.group.calls import Patience
from twofold.client.consumer.group.membership import Identity
from twofold.client.consumer.group.modern.retries import EpochCommits
from twofold.connections.waiting import Deadline
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition
from twofold.wire.errors import StaleMemberEpoch

HELD, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW = Identity("m", 4), Identity("m", 5)


class Group:
    """A coordinator at epoch 5, and a member at epoch 4 that hears of it in its next heartbeat."""

    def __init__(self, *, after_heartbeat: Callable[["Group"], None]) -> None:
        self.identity, self.life, self.is_member, self.answered = OLD, 0, True, 0
        self.assigned = {HELD}
        self.tried: list[Identity] = []
        self._after_heartbeat = after_heartbeat

    async def commit(
        self,
        identity: Identity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: Deadline,
        patience: object,
    ) -> None:
        self.tried.append(identity)
        if identity.generation < NEW.generation:
            raise StaleMemberEpoch("epoch 4 is behind epoch 5")

    def ask(self) -> None:
        asyncio.get_running_loop().call_later(0.01, self._beat)

    def _beat(self) -> None:
        self.answered += 1
        self._after_heartbeat(self)


def commit(group: Group, *partitions: TopicPartition, patience: Patience = Patience.FULL) -> None:
    async def run() -> None:
        runtime = real_runtime()
        config = ConsumerConfig(group_id="g", group_protocol="consumer", retry_backoff_ms=1)
        commits = EpochCommits(runtime, config, group, group, group, lambda: group.assigned)  # type: ignore[arg-type]
        offsets = {tp: OffsetAndMetadata(7) for tp in partitions}
        await commits.commit(OLD, offsets, Deadline(runtime.clock, 5_000, "timeout_ms"), patience)

    asyncio.run(run())


def moves_on(group: Group) -> None:
    group.identity = NEW


def test_a_commit_of_what_the_member_still_has_is_sent_with_the_newer_epoch() -> None:
    group = Group(after_heartbeat=moves_on)
    commit(group, HELD)
    assert group.tried == [OLD, NEW]


def test_a_commit_of_what_went_to_another_member_is_not() -> None:
    """The coordinator takes the current epoch for any partition: it would overwrite the other member's offset."""
    group = Group(after_heartbeat=moves_on)
    with pytest.raises(StaleMemberEpoch):
        commit(group, HELD, OTHER)
    assert group.tried == [OLD]


def test_a_commit_of_a_membership_that_is_over_is_not() -> None:
    def joins_anew(group: Group) -> None:
        group.identity, group.life = NEW, 1

    group = Group(after_heartbeat=joins_anew)
    with pytest.raises(StaleMemberEpoch):
        commit(group, HELD)
    assert group.tried == [OLD]


def test_a_heartbeat_that_brings_no_newer_epoch_ends_the_tries() -> None:
    group = Group(after_heartbeat=lambda group: None)
    with pytest.raises(StaleMemberEpoch):
        commit(group, HELD)
    assert group.tried == [OLD]


def test_a_commit_without_patience_is_tried_once() -> None:
    group = Group(after_heartbeat=moves_on)
    with pytest.raises(StaleMemberEpoch):
        commit(group, HELD, patience=Patience.NONE)
    assert (group.tried, group.answered) == ([OLD], 0)
