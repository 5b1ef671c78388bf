"""Sessions, controlled shutdown, and what becomes of partitions when brokers go and come."""

from typing import Any

from kits.metadata.controller import after, beat_of, context, heartbeat, register_broker, registration
from kits.metadata.operations import perform
from kits.metadata.partitions import cluster, epoch_of, state
from twofold.controller.brokers import fence_stale, unregister_broker
from twofold.controller.image import MetadataImage
from twofold.controller.records import BrokerRegistrationChange
from twofold.controller.standing import UNHEARD, Sessions, ShutdownProgress
from twofold.wire.messages.unregister_broker import UnregisterBrokerRequest


def beat(
    image: MetadataImage, broker: int, standing: ShutdownProgress = UNHEARD, **wishes: bool
) -> tuple[Any, MetadataImage]:
    result = heartbeat(image, beat_of(broker, epoch_of(broker), image.offset, **wishes), context(image), standing)
    return result.response, after(image, result.records)


class Brokers:
    """Heartbeats with the controller's memory of them."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.sessions = Sessions(9.0)
        self.now = 0.0

    def beat(self, broker: int, *, offset: int | None = None, **wishes: bool) -> Any:
        seen = self.image.offset if offset is None else offset
        standing = self.sessions.standing(self.image, broker)
        asked = beat_of(broker, self.image.brokers[broker].epoch, seen, **wishes)
        result = heartbeat(self.image, asked, context(self.image), standing)
        self.image = after(self.image, result.records)
        self.sessions.touch(self.image, broker, seen, self.now)
        return result.response


def test_a_leader_that_wants_to_stop_gives_its_partitions_away_first():
    brokers = Brokers(cluster({}, {"leader": 2}))
    for broker in (1, 2, 3):
        brokers.beat(broker)
    before = brokers.image.offset
    answer = brokers.beat(1, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (False, False)
    assert brokers.image.brokers[1].in_controlled_shutdown and not brokers.image.brokers[1].fenced
    assert (state(brokers.image).leader, state(brokers.image).isr) == (2, (2, 3))
    assert state(brokers.image, 1).isr == (2, 3)

    assert not brokers.beat(1, want_shut_down=True).should_shut_down, "others have not seen it"
    brokers.beat(2)
    brokers.beat(3, offset=before)
    assert not brokers.beat(1, want_shut_down=True).should_shut_down, "broker 3 has not seen it"
    brokers.beat(3)
    answer = brokers.beat(1, want_shut_down=True)
    assert (answer.is_fenced, answer.should_shut_down) == (True, True)
    assert brokers.image.brokers[1].fenced


def test_a_broker_that_leads_nothing_stops_at_once():
    answer, image = beat(cluster(), 3, want_shut_down=True)
    assert answer.should_shut_down and image.brokers[3].fenced and state(image).isr == (1, 2)


def test_a_fenced_broker_stops_at_once():
    answer, _ = beat(cluster(fenced=(3,)), 3, want_shut_down=True)
    assert answer.should_shut_down and answer.is_fenced


def test_a_broker_in_controlled_shutdown_leads_nothing_new():
    image = after(cluster({"isr": (1, 2)}), [BrokerRegistrationChange(2, 102, in_controlled_shutdown=1)])
    _, image = beat(image, 1, want_fence=True)
    assert (state(image).leader, state(image).isr) == (-1, (2,))


def test_a_session_begins_with_the_first_heartbeat_and_ends_after_the_last():
    brokers = Brokers(cluster())
    assert not brokers.sessions.is_alive(1, 0.0)
    brokers.beat(1)
    assert brokers.sessions.is_alive(1, 8.9) and not brokers.sessions.is_alive(1, 9.0)
    assert brokers.sessions.expired(brokers.image, 8.9) is None
    brokers.now = 5.0
    brokers.beat(2)
    brokers.beat(3)
    assert brokers.sessions.expired(brokers.image, 9.0) == (1, 101)
    assert brokers.sessions.expired(brokers.image, 20.0) == (1, 101), "the longest silent first"


def test_a_stale_broker_is_fenced_unless_it_registered_anew():
    image = cluster()
    fenced = after(image, perform(fence_stale(image, context(image), 1, 101)).records)
    assert fenced.brokers[1].fenced and (state(fenced).leader, state(fenced).isr) == (2, (2, 3))
    assert perform(fence_stale(fenced, context(fenced), 1, 101)).records == []
    assert perform(fence_stale(image, context(image), 1, 100)).records == []


def test_a_broker_that_a_new_leader_watches_has_a_session_from_then_on():
    sessions, image = Sessions(9.0), cluster(fenced=(3,))
    sessions.watch(image, 100.0)
    assert [sessions.is_alive(broker, 108.0) for broker in (1, 2, 3)] == [True, True, False]
    assert sessions.expired(image, 109.0) == (1, 101)


def test_the_session_of_a_former_registration_is_not_that_of_the_next():
    brokers = Brokers(cluster())
    brokers.beat(1)
    result = register_broker(brokers.image, registration(incarnation=2), context(brokers.image), lambda _: False)
    brokers.image = after(brokers.image, result.records)
    brokers.now = 9.0
    assert brokers.sessions.expired(brokers.image, 9.0) is None, "the new one is fenced"


def test_the_last_in_sync_waits_as_an_eligible_leader_and_leads_again():
    image = cluster({"isr": (1,)}, eligible=True)
    _, image = beat(image, 1, want_fence=True)
    found = state(image)
    assert (found.leader, found.isr, found.eligible_leader_replicas, found.last_known_elr) == (-1, (), (1,), (1,))
    _, image = beat(image, 1)
    found = state(image)
    assert (found.leader, found.isr, found.leader_epoch, found.leader_recovery_state) == (1, (1,), 2, 0)
    assert (found.eligible_leader_replicas, found.last_known_elr) == ((), ())


def came_back(image: MetadataImage, previous_epoch: int) -> MetadataImage:
    request = registration(incarnation=2, previous_broker_epoch=previous_epoch)
    return after(image, register_broker(image, request, context(image), lambda _: False).records)


def test_a_broker_that_did_not_stop_in_order_is_no_eligible_leader():
    image = cluster({"isr": (1,)}, eligible=True)
    orderly = state(came_back(image, 101))
    assert (orderly.leader, orderly.eligible_leader_replicas) == (-1, (1,))
    lost = state(came_back(image, -1))
    assert (lost.leader, lost.isr, lost.eligible_leader_replicas, lost.last_known_elr) == (-1, (), (), (1,))


def test_a_broker_that_is_unregistered_is_in_no_isr():
    image = cluster()
    result = perform(unregister_broker(image, UnregisterBrokerRequest(broker_id=1), context(image)))
    image = after(image, result.records)
    assert image.broker(1) is None and (state(image).leader, state(image).isr) == (2, (2, 3))
