"""What a member makes of each error of JoinGroup, SyncGroup and Heartbeat, and of a coordinator that goes away."""

from collections.abc import Callable
from typing import Any

import pytest

from kits.client.groups import COOPERATIVE, EAGER, PARTITIONS_OF_T, SESSION_MS, App, GroupWorld, play
from kits.client.transactions import act_then_hang_up, hang_up, refuse
from twofold.client.consumer.assignors import range as range_module
from twofold.client.errors import InstanceFenced
from twofold.connections.errors import UnsupportedByBroker
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupAuthorizationFailed,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    KafkaError,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)

PASSING = (CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "FindCoordinator"])
@pytest.mark.parametrize("step", [*(refuse(error) for error in PASSING), hang_up, act_then_hang_up])
def test_a_round_goes_on_after_what_passes(api: str, step: Any) -> None:
    async def story(world: GroupWorld) -> None:
        world.script(api, step, step)
        app = world.app("a").start()
        await world.settle()
        assert app.errors == []

    play(story)


@pytest.mark.parametrize("step", [*(refuse(error) for error in PASSING), hang_up])
def test_heartbeats_go_on_after_what_passes(step: Any) -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a").start()
        await world.settle()
        world.script("Heartbeat", *[step] * 5)
        await world.sleep(SESSION_MS / 1000 * 3)
        assert (app.errors, len(app.events)) == ([], 1)
        assert app.is_settled

    play(story)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InconsistentGroupProtocol, "share none of the strategies range, cooperative-sticky"),
        (GroupMaxSizeReached, r"group\.max\.size"),
        (InvalidSessionTimeout, "session_timeout_ms=10000 is not between"),
        (GroupAuthorizationFailed, "needs READ"),
    ],
)
def test_a_group_that_does_not_take_the_member_says_why_and_is_tried_again(error: type[KafkaError], words: str) -> None:
    async def story(world: GroupWorld) -> None:
        world.script("JoinGroup", refuse(error))
        app = world.app("a").start()
        await world.settle()
        (raised,) = app.errors
        assert isinstance(raised, error)
        with pytest.raises(error, match=words):
            raise raised

    play(story)


def test_groups_that_share_no_strategy_are_told_by_the_broker() -> None:
    async def story(world: GroupWorld) -> None:
        world.app("a", partition_assignment_strategy=EAGER).start()
        await world.settle()
        stranger = world.app("b", partition_assignment_strategy=COOPERATIVE).start()
        await world.until(lambda: stranger.errors)
        assert isinstance(stranger.errors[0], InconsistentGroupProtocol)
        await stranger.stop()

    play(story)


def test_a_group_that_is_full_is_told_by_the_broker() -> None:
    async def story(world: GroupWorld) -> None:
        world.app("a").start()
        await world.settle()
        stranger = world.app("b").start()
        await world.until(lambda: stranger.errors)
        assert isinstance(stranger.errors[0], GroupMaxSizeReached)
        await stranger.stop()

    play(story, group_max_size=1)


def test_a_session_that_the_broker_does_not_allow_is_told() -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a", session_timeout_ms=1_000, heartbeat_interval_ms=300).start()
        await world.until(lambda: app.errors)
        assert "group.min.session.timeout.ms" in str(app.errors[0])
        await app.stop()

    play(story)


Lost = tuple[str, type[KafkaError], bool]
LOSING: list[Lost] = [
    ("SyncGroup", UnknownMemberId, True),
    ("SyncGroup", IllegalGeneration, True),
    ("SyncGroup", RebalanceInProgress, True),
    ("JoinGroup", UnknownMemberId, True),
    ("JoinGroup", RebalanceInProgress, False),
    ("Heartbeat", UnknownMemberId, True),
    ("Heartbeat", IllegalGeneration, True),
    ("Heartbeat", RebalanceInProgress, False),
]


@pytest.mark.parametrize(("api", "error", "is_lost"), LOSING)
@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_what_a_member_still_has_when_its_generation_is_over_is_lost(
    api: str, error: type[KafkaError], is_lost: bool, strategy: str
) -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a", partition_assignment_strategy=strategy).start()
        await world.settle()
        world.script(api, refuse(error))
        heard = len(app.events)
        if api != "Heartbeat":
            app.consumer.enforce_rebalance()
        await world.until(lambda: len(app.events) > heard)
        await world.settle()
        assert app.errors == []
        assert app.told("assigned")[0] == PARTITIONS_OF_T
        # An eager member has given up everything before JoinGroup left.
        loses = is_lost and (strategy == COOPERATIVE or api == "Heartbeat")
        assert app.told("lost") == ([PARTITIONS_OF_T] if loses else [])

    play(story)


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat"])
def test_a_fenced_instance_is_fatal_and_its_partitions_are_lost(api: str) -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a", group_instance_id="one", partition_assignment_strategy=COOPERATIVE).start()
        await world.settle()
        world.script(api, refuse(FencedInstanceId))
        if api != "Heartbeat":
            app.consumer.enforce_rebalance()
        await world.until(lambda: len(app.errors) >= 3)
        assert all(isinstance(error, InstanceFenced) for error in app.errors)
        assert app.told("lost") == [PARTITIONS_OF_T]
        beats = world.count("Heartbeat")
        await world.sleep(10)
        assert world.count("Heartbeat") == beats
        await app.stop()
        assert world.count("LeaveGroup") == 0

    play(story)


def test_a_heartbeat_that_is_not_allowed_is_told_to_the_application() -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a").start()
        await world.settle()
        world.script("Heartbeat", refuse(GroupAuthorizationFailed))
        await world.until(lambda: app.errors)
        assert isinstance(app.errors[0], GroupAuthorizationFailed)

    play(story)


def test_an_assignor_that_fails_is_told_to_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise LookupError("a bug in an assignor")

    async def story(world: GroupWorld) -> None:
        usual: Callable[..., Any] = range_module.RangeAssignor.assign
        monkeypatch.setattr(range_module.RangeAssignor, "assign", fail)
        app = world.app("a", partition_assignment_strategy=EAGER).start()
        await world.until(lambda: app.errors)
        assert isinstance(app.errors[0], LookupError)
        monkeypatch.setattr(range_module.RangeAssignor, "assign", usual)
        await world.settle()

    play(story)


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_a_group_outlives_its_broker(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        apps = [world.app(node, "sync", partition_assignment_strategy=strategy).start() for node in ("a", "b")]
        await world.settle()
        await world.write()
        await world.until_read()
        await world.world.restart()
        await world.write()
        await world.until_read()
        await world.settle()
        assert not any(app.told("lost") for app in apps)

    play(story)


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_a_broker_that_dies_in_a_round_ends_it_and_the_next_one_succeeds(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        apps: list[App] = [world.app("a", partition_assignment_strategy=strategy).start()]
        await world.settle()
        slow = world.app("b", partition_assignment_strategy=strategy).start()
        await world.settle()
        await world.stop_polling(slow)
        apps += [slow, world.app("c", partition_assignment_strategy=strategy).start()]
        await world.until(lambda: apps[0].membership.is_in_round)
        await world.world.restart()
        slow.hold = False
        await world.settle()

    play(story)


def test_static_members_need_a_broker_that_knows_them() -> None:
    async def story(world: GroupWorld) -> None:
        from twofold.connections.connection import Connection

        app = world.app("a", group_instance_id="one").start()
        usual = Connection.supports
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Connection,
                "supports",
                lambda self, key, version=0: (key, version) != (KEYS["JoinGroup"], 5) and usual(self, key, version),
            )
            await world.until(lambda: app.errors)
        assert isinstance(app.errors[0], UnsupportedByBroker)
        assert "group_instance_id needs JoinGroup 5" in str(app.errors[0])

    play(story)


def test_records_are_held_back_while_the_coordinator_is_silent_for_longer_than_a_session() -> None:
    """Whether the member still is one cannot be known. When the coordinator answers, reading goes on."""

    async def story(world: GroupWorld) -> None:
        app = world.app("a", max_poll_records=1)
        app.pace_s = 0.5
        app.start()
        await world.settle()
        await world.write(20)
        await world.until(lambda: len(app.seen) > 5)
        world.script("Heartbeat", *[act_then_hang_up] * 200)
        await world.sleep(SESSION_MS / 1000 + 2)
        before, polls = len(app.seen), app.polls
        assert before < 50  # and what follows was fetched long ago
        await world.until(lambda: app.polls >= polls + 3)
        assert len(app.seen) == before
        await world.until(lambda: len(app.seen) == 60)
        assert len(app.events) == 1

    play(story)
