"""A broker's standing with the controller: registered, alive, leaving.

1. A broker registers with a new incarnation id at each start and may lead once a heartbeat has shown that it has seen
   its own registration.
2. A heartbeat that fails is told in the log and the next one follows at its time.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from twofold.config.listeners import ListenerAddress
from twofold.controller.image import MetadataImage
from twofold.runtime.api import Runtime
from twofold.security.protocols import SecurityProtocol
from twofold.wire.errors import NONE, KafkaError, error_for
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)

CATCH_UP_S = 0.02

log = logging.getLogger(__name__)


class ControllerPort(Protocol):
    """What of the controller is needed here; later it may be another node."""

    def register_broker(self, request: BrokerRegistrationRequest) -> Awaitable[BrokerRegistrationResponse]: ...

    def heartbeat(self, request: BrokerHeartbeatRequest) -> Awaitable[BrokerHeartbeatResponse]: ...


class Lifecycle:
    def __init__(
        self,
        runtime: Runtime,
        controller: ControllerPort,
        image: Callable[[], MetadataImage],
        *,
        node_id: int,
        heartbeat_interval_ms: int,
    ) -> None:
        self.broker_epoch = -1
        self.is_fenced = True
        self._runtime = runtime
        self._controller = controller
        self._image = image
        self._node_id = node_id
        self._interval_s = heartbeat_interval_ms / 1000

    async def register(
        self,
        *,
        cluster_id: str,
        directory_id: UUID,
        listeners: Sequence[ListenerAddress],
        protocols: Mapping[str, SecurityProtocol],
        features: Sequence[Feature],
        rack: str | None,
    ) -> None:
        incarnation_id = UUID(int=self._runtime.random.getrandbits(128), version=4)
        response = await self._controller.register_broker(
            BrokerRegistrationRequest(
                broker_id=self._node_id,
                cluster_id=cluster_id,
                incarnation_id=incarnation_id,
                listeners=[
                    Listener(name=at.name, host=at.host, port=at.port, security_protocol=protocols[at.name].code)
                    for at in listeners
                ],
                features=features,
                rack=rack,
                log_dirs=[directory_id],
            )
        )
        if response.error_code != NONE:
            raise error_for(response.error_code)(f"broker {self._node_id} cannot be registered")
        self.broker_epoch = response.broker_epoch
        await self._become_active()
        log.info("broker %d is registered with epoch %d", self._node_id, self.broker_epoch)

    async def _become_active(self) -> None:
        """Beat until the controller lets this broker lead: it wants to hear that we have seen our registration."""
        while (await self.beat()).is_fenced:
            await self._runtime.timers.sleep(CATCH_UP_S)

    async def beat(self, *, want_shut_down: bool = False) -> BrokerHeartbeatResponse:
        response = await self._controller.heartbeat(
            BrokerHeartbeatRequest(
                broker_id=self._node_id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=self._image().offset,
                want_fence=False,
                want_shut_down=want_shut_down,
            )
        )
        if response.error_code != NONE:
            raise error_for(response.error_code)(f"heartbeat of broker {self._node_id}")
        self.is_fenced = response.is_fenced
        return response

    async def run(self) -> None:
        """Heartbeats until cancelled."""
        while True:
            await self._runtime.timers.sleep(self._interval_s)
            try:
                await self.beat()
            except KafkaError as error:
                log.warning("heartbeat failed: %s", error)
