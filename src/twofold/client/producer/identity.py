"""The producer id and epoch under which batches are numbered: asked of a broker, or brought by the transaction."""

import asyncio
from collections.abc import Callable

from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.producer.waking import Waking
from twofold.runtime.api import Runtime
from twofold.wire.errors import KafkaError, raise_for
from twofold.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


class IdentitySource:
    def __init__(
        self,
        runtime: Runtime,
        config: ProducerConfig,
        cluster: Cluster,
        waking: Waking,
        *,
        transactional: bool,
        on_failure: Callable[[KafkaError], None],
    ) -> None:
        self.current: ProducerIdentity | None = None
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._waking = waking
        self._transactional = transactional
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def may_number(self) -> bool:
        """Whether batches can be numbered, or need no number; without a producer id, one is on its way."""
        if self.current is not None or not self._config.idempotent:
            return True
        if self._transactional:
            return False  # the transaction brings one
        if self._task is None and not self._closed:
            self._task = self._runtime.spawn(self._fetch(), name="init producer id")
        return False

    def other_than(self, used: ProducerIdentity | None) -> ProducerIdentity | None:
        """The next epoch, if the current one is `used`; None while a producer id is on its way."""
        if self.current is not None and self.current == used:
            self.current = self.current.bumped()
        if self.current is None:
            self.may_number()
        return self.current

    def forget(self) -> None:
        """The broker does not know it: only a new producer id helps."""
        self.current = None

    def close(self) -> list["asyncio.Task[None]"]:
        """Fetch nothing any more. Returns what is under way, for the caller to end."""
        self._closed = True
        return [] if self._task is None else [self._task]

    async def _fetch(self) -> None:
        deadline = self._cluster.deadline(self._config.delivery_timeout_ms, "delivery_timeout_ms")
        try:
            self.current = await self._cluster.retry("InitProducerId", self._ask, deadline)
        except KafkaError as error:
            self._on_failure(error)
        finally:
            self._task = None
            self._waking.now()

    async def _ask(self) -> ProducerIdentity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        deadline = self._cluster.deadline()
        response: InitProducerIdResponse = await self._cluster.request(None, request, "InitProducerId", deadline)
        raise_for(response.error_code, "InitProducerId was refused")
        return ProducerIdentity(response.producer_id, response.producer_epoch)
