"""A broker's standing with the controller: registered, alive, fenced by its own will, leaving.

1. A broker registers with a new incarnation id at each start and may lead once a heartbeat has shown that it has seen
   its own registration. Until then a member says that it wants to stay fenced.
2. A heartbeat that fails is told in the log and the next one follows at its time.
3. Where the controllers are elsewhere (`ClusterTerms`), registration is tried again as long as it may succeed: they may
   be starting, and a broker that was killed has to wait until its session is over.
4. A controller that does not know our epoch has forgotten us, or has given our id away: we register again as the same
   incarnation. If another one lives under our id, this one gives up.
5. A broker that leaves says so and goes on beating until the controller has moved what it leads, or does not answer.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from twofold.broker.controller_port import LifecyclePort
from twofold.config.listeners import ListenerAddress
from twofold.connections.waiting import Deadline
from twofold.controller.image import MetadataImage
from twofold.runtime.api import Runtime
from twofold.security.protocols import SecurityProtocol
from twofold.wire.errors import (
    NONE,
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRegistration,
    KafkaError,
    StaleBrokerEpoch,
    UnsupportedVersion,
    error_for,
)
from twofold.wire.message import replace
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)

CATCH_UP_S = 0.02
LEAVING_S = 0.05
LEFT_WITHIN_S = 300.0  # as Apache Kafka
SILENT_FOR_S = 10.0  # how long a broker that leaves waits for any answer

_HOPELESS = (InconsistentClusterId, InvalidRegistration, UnsupportedVersion, BrokerIdNotRegistered)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterTerms:
    """What a broker whose controllers are elsewhere tells and bears, beyond one with its own."""

    registration_timeout_ms: int
    previous_broker_epoch: int = -1
    cordoned: Callable[[], Sequence[UUID]] = lambda: ()
    explained: Callable[[KafkaError], str] = str  # why it cannot be registered, and what to do


class Lifecycle:
    def __init__(
        self,
        runtime: Runtime,
        controller: LifecyclePort,
        image: Callable[[], MetadataImage],
        *,
        node_id: int,
        heartbeat_interval_ms: int,
        membership: ClusterTerms | None = None,
    ) -> None:
        self.broker_epoch = -1
        self.is_fenced = True
        self.wants_fence: str | None = None  # why this broker would rather not lead
        self.on_failure: Callable[[KafkaError], None] | None = None
        self._runtime = runtime
        self._controller = controller
        self._image = image
        self._node_id = node_id
        self._interval_s = heartbeat_interval_ms / 1000
        self._membership = membership
        self._registration: BrokerRegistrationRequest | None = None
        self._is_leaving = False

    async def register(
        self,
        *,
        cluster_id: str,
        directory_id: UUID,
        listeners: Sequence[ListenerAddress],
        protocols: Mapping[str, SecurityProtocol],
        features: Sequence[Feature],
        rack: str | None,
        caught_up: Callable[[], None] | None = None,
    ) -> None:
        """`caught_up` is called when the metadata hold the registration, before the broker is unfenced."""
        self._registration = BrokerRegistrationRequest(
            broker_id=self._node_id,
            cluster_id=cluster_id,
            incarnation_id=UUID(int=self._runtime.random.getrandbits(128), version=4),
            listeners=[
                Listener(name=at.name, host=at.host, port=at.port, security_protocol=protocols[at.name].code)
                for at in listeners
            ],
            features=features,
            rack=rack,
            log_dirs=[directory_id],
            previous_broker_epoch=-1 if self._membership is None else self._membership.previous_broker_epoch,
        )
        await (self._register_once() if self._membership is None else self._register_patiently(self._membership))
        if self._membership is not None:
            await self._catch_up(self._membership)
        if caught_up is not None:
            caught_up()
        await self._become_active()
        log.info("broker %d is registered with epoch %d", self._node_id, self.broker_epoch)

    async def _register_once(self) -> None:
        assert self._registration is not None
        response = await self._controller.register_broker(self._registration)
        self._take_registration(response)

    def _take_registration(self, response: BrokerRegistrationResponse) -> None:
        if response.error_code != NONE:
            raise error_for(response.error_code)(f"broker {self._node_id} cannot be registered")
        self.broker_epoch = response.broker_epoch

    async def _register_patiently(self, membership: ClusterTerms) -> None:
        deadline = Deadline(
            self._runtime.clock, membership.registration_timeout_ms, "initial.broker.registration.timeout.ms"
        )
        told = ""
        while True:
            try:
                return await self._register_once()
            except KafkaError as error:
                why = membership.explained(error)
                if isinstance(error, _HOPELESS) or self._interval_s >= deadline.remaining_s():
                    raise type(error)(why) from error
                if why != told:
                    log.warning("%s; it is tried again", why)
                    told = why
            await self._runtime.timers.sleep(self._interval_s)

    async def _catch_up(self, membership: ClusterTerms) -> None:
        """Fenced until we have seen our registration: then the controller knows all that it must not give us."""
        deadline = Deadline(
            self._runtime.clock, membership.registration_timeout_ms, "initial.broker.registration.timeout.ms"
        )
        while not (await self._beat_soon(deadline, want_fence=True)).is_caught_up:
            await self._pause(deadline, "to see its own registration in the metadata")

    async def _pause(self, deadline: Deadline, what: str) -> None:
        if deadline.expired:
            raise deadline.gave_up(f"broker {self._node_id}: {what}")
        await self._runtime.timers.sleep(CATCH_UP_S)

    async def _beat_soon(self, deadline: Deadline, *, want_fence: bool) -> BrokerHeartbeatResponse:
        """While starting, a controller that does not answer is asked again."""
        while True:
            try:
                return await self.beat(want_fence=want_fence)
            except KafkaError as error:
                if not error.retriable or deadline.expired:
                    raise
                log.warning("heartbeat failed: %s", error)
                await self._runtime.timers.sleep(CATCH_UP_S)

    async def _become_active(self) -> None:
        """Beat until the controller lets this broker lead: it wants to hear that we have seen our registration."""
        timeout_ms = 60_000 if self._membership is None else self._membership.registration_timeout_ms
        deadline = Deadline(self._runtime.clock, timeout_ms, "initial.broker.registration.timeout.ms")
        while True:
            beat = self.beat() if self._membership is None else self._beat_soon(deadline, want_fence=False)
            if not (await beat).is_fenced or self.wants_fence:
                return
            if self._membership is None:
                await self._runtime.timers.sleep(CATCH_UP_S)
            else:
                await self._pause(deadline, "to be unfenced")

    async def beat(self, *, want_fence: bool = False, want_shut_down: bool = False) -> BrokerHeartbeatResponse:
        membership = self._membership
        response = await self._controller.heartbeat(
            BrokerHeartbeatRequest(
                broker_id=self._node_id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=self._image().offset,
                want_fence=(want_fence or self.wants_fence is not None) and not want_shut_down,
                want_shut_down=want_shut_down,
                cordoned_log_dirs=None if membership is None else list(membership.cordoned()),
            )
        )
        if response.error_code != NONE:
            raise error_for(response.error_code)(f"heartbeat of broker {self._node_id}")
        if self.is_fenced != response.is_fenced and membership is not None:
            log.info("broker %d is %s", self._node_id, "fenced" if response.is_fenced else "unfenced")
        self.is_fenced = response.is_fenced
        return response

    async def run(self) -> None:
        """Heartbeats until cancelled."""
        while True:
            await self._runtime.timers.sleep(self._interval_s)
            if self._is_leaving:
                continue
            try:
                await self.beat()
            except (StaleBrokerEpoch, BrokerIdNotRegistered) as error:
                if self._membership is None:
                    log.warning("heartbeat failed: %s", error)
                else:
                    await self._register_again()
            except KafkaError as error:
                log.warning("heartbeat failed: %s", error)

    async def _register_again(self) -> None:
        """We were unregistered, or our id is another's."""
        assert self._registration is not None
        log.warning(
            "the controller does not know broker %d with epoch %d any more: it registers again",
            self._node_id, self.broker_epoch,
        )  # fmt: skip
        try:
            self._registration = replace(self._registration, previous_broker_epoch=self.broker_epoch)
            await self._register_once()
        except (DuplicateBrokerRegistration, *_HOPELESS) as error:
            assert self._membership is not None
            if self.on_failure is not None:
                self.on_failure(type(error)(self._membership.explained(error)))
        except KafkaError as error:
            log.warning("broker %d is not registered again yet: %s", self._node_id, error)

    async def fence(self, why: str | None) -> None:
        """Ask to be fenced, and say why; None: to lead again."""
        if why == self.wants_fence:
            return
        self.wants_fence = why
        if why is not None:
            log.error("broker %d asks to be fenced: %s", self._node_id, why)
        else:
            log.warning("broker %d asks to be unfenced", self._node_id)
        try:
            await self.beat()
        except KafkaError as error:
            log.warning("heartbeat failed: %s", error)  # the next one says the same

    async def leave(self) -> bool:
        """Have the controller move away what this broker leads. False where that took too long: it goes."""
        if self.broker_epoch < 0:
            return False
        self._is_leaving = True
        clock = self._runtime.clock
        began_s = answered_s = clock.monotonic()
        while clock.monotonic() - began_s < LEFT_WITHIN_S and clock.monotonic() - answered_s < SILENT_FOR_S:
            try:
                response = await self.beat(want_shut_down=True)
            except (StaleBrokerEpoch, BrokerIdNotRegistered):
                return True  # the controller has no such broker: there is nothing to move
            except KafkaError as error:
                log.warning("the controlled shutdown of broker %d waits: %s", self._node_id, error)
                await self._runtime.timers.sleep(self._interval_s)
                continue
            answered_s = clock.monotonic()
            if response.should_shut_down:
                log.info("broker %d may stop: it leads nothing any more", self._node_id)
                return True
            await self._runtime.timers.sleep(LEAVING_S)
        log.warning("broker %d stops without a controlled shutdown: no controller has agreed to it", self._node_id)
        return False
