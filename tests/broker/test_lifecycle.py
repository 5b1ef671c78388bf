"""Registration and heartbeats, against a controller that the test plays."""

import asyncio
import dataclasses
import uuid

import pytest

from kits.node.sockets import on_loop, until
from twofold.broker.lifecycle import Lifecycle
from twofold.config.listeners import ListenerAddress
from twofold.controller.image import MetadataImage
from twofold.runtime.real import real_runtime
from twofold.security.protocols import SecurityProtocol
from twofold.wire.errors import DuplicateBrokerRegistration, StaleBrokerEpoch
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import BrokerRegistrationResponse


class Controller:
    def __init__(self, *, error_code=0, fenced_beats=0):
        self.error_code = error_code
        self.fenced_beats = fenced_beats
        self.failing = False
        self.registrations = []
        self.beats = []

    async def register_broker(self, request):
        self.registrations.append(request)
        return BrokerRegistrationResponse(error_code=self.error_code, broker_epoch=42)

    async def heartbeat(self, request):
        self.beats.append(request)
        if self.failing:
            return BrokerHeartbeatResponse(error_code=StaleBrokerEpoch.code, should_shut_down=False)
        fenced = len(self.beats) <= self.fenced_beats
        return BrokerHeartbeatResponse(error_code=0, is_caught_up=not fenced, is_fenced=fenced, should_shut_down=False)


class QuickTimers:
    """Nobody really waits; what was asked for is kept."""

    def __init__(self):
        self.slept = []

    def call_later(self, delay_s, callback):
        raise AssertionError("not used here")

    async def sleep(self, delay_s):
        self.slept.append(delay_s)
        await asyncio.sleep(0)


def lifecycle(controller, timers=None):
    runtime = dataclasses.replace(real_runtime(), timers=timers or QuickTimers())
    image = MetadataImage(offset=17)
    return Lifecycle(runtime, controller, lambda: image, node_id=3, heartbeat_interval_ms=2000)


async def register(subject):
    await subject.register(
        cluster_id="cluster",
        directory_id=uuid.UUID(int=5),
        listeners=[ListenerAddress("PLAINTEXT", "host", 9)],
        protocols={"PLAINTEXT": SecurityProtocol.PLAINTEXT},
        features=(),
        rack="r",
    )


@on_loop
async def test_a_broker_registers_and_beats_until_it_may_lead():
    controller = Controller(fenced_beats=3)
    subject = lifecycle(controller)
    await register(subject)
    (request,) = controller.registrations
    assert (request.broker_id, request.cluster_id, request.rack) == (3, "cluster", "r")
    assert [(at.name, at.host, at.port) for at in request.listeners] == [("PLAINTEXT", "host", 9)]
    assert list(request.log_dirs) == [uuid.UUID(int=5)]
    assert len(controller.beats) == 4
    assert {(b.broker_id, b.broker_epoch, b.current_metadata_offset) for b in controller.beats} == {(3, 42, 17)}
    assert not subject.is_fenced


@on_loop
async def test_every_start_is_another_incarnation():
    controller = Controller()
    for _ in range(3):
        await register(lifecycle(controller))
    assert len({request.incarnation_id for request in controller.registrations}) == 3


@on_loop
async def test_a_refused_registration_is_an_error():
    with pytest.raises(DuplicateBrokerRegistration):
        await register(lifecycle(Controller(error_code=DuplicateBrokerRegistration.code)))


def test_heartbeats_go_on_after_one_failed(caplog):
    @on_loop
    async def scenario():
        controller, timers = Controller(), QuickTimers()
        subject = lifecycle(controller, timers)
        await register(subject)
        controller.failing = True
        running = asyncio.ensure_future(subject.run())
        await until(lambda: len(controller.beats) >= 3)
        controller.failing = False
        await until(lambda: len(controller.beats) >= 6)
        running.cancel()
        assert set(timers.slept) == {2.0}
        assert "STALE_BROKER_EPOCH" in caplog.text

    scenario()
