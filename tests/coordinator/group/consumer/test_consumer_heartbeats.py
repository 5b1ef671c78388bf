"""Heartbeats of the consumer protocol, where two of them look alike and are not. Apache Kafka's answers are compared in
`interop/cases/consumer_heartbeats.py`."""

import pytest

from kits.coordinator.consumers import WALL, ConsumerWorld, Topics
from twofold.coordinator.group.consumer.records import Resolved
from twofold.coordinator.group.context import Client
from twofold.wire.errors import FencedMemberEpoch, InvalidSessionTimeout
from twofold.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol


def test_a_step_to_no_topics_at_all_makes_the_current_epoch_the_one_before():
    world = ConsumerWorld(Topics(t=1))
    world.beat("a", 0, owned={}, topics=[], rebalance=60_000)
    world.join("b")
    assert world.beat("a", 1).member_epoch == 2
    assert world.beat("a", 1, owned={}).error_code == 0, "the answer may have been lost"
    world.beat("a", 2, pattern="none.*")
    with pytest.raises(FencedMemberEpoch):
        world.beat("a", 1, owned={})


def wants_resolution(world: ConsumerWorld, pattern: str | None) -> bool:
    """Whether a heartbeat of the member asks for its pattern to be resolved."""
    epoch = world.group.members["a"].epoch
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="a", member_epoch=epoch, subscribed_topic_regex=pattern, topic_partitions=None
    )
    decision = world.groups.heartbeat(world.state, None, request, Client(1, "client", "/10.0.0.1"), world.now)
    world.write(decision)
    world.groups.resolution_ended("g")
    return decision.resolution is not None


def test_a_pattern_in_the_place_of_one_that_was_resolved_just_now_is_resolved_by_the_next_heartbeat():
    world = ConsumerWorld(Topics(t=1))
    world.beat("a", 0, owned={}, topics=[], pattern="t.*", rebalance=60_000)
    world.groups.resolution_ended("g")
    world.resolve(**{"t.*": ["t"]})
    assert world.group.patterns["t.*"] == Resolved(("t",), world.topics.topics_version, WALL)
    assert not wants_resolution(world, "u.*")
    assert wants_resolution(world, None)


def test_a_classic_member_with_a_bad_session_timeout_keeps_its_id():
    world = ConsumerWorld(Topics(t=1))
    world.join("a")
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=1,
        member_id="old",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    answer = world.groups.join(world.group, request, Client(9, "client", "/10.0.0.1"), world.now).answer
    assert (answer.error_code, answer.member_id) == (InvalidSessionTimeout.code, "old")
