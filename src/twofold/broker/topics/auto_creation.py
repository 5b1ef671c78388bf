"""Topics that are created because a client asked for them.

1. No request has to wait: its client is told to come back, and finds the topic then. A handler that would rather wait
   a moment than send the client away awaits `created`.
2. A name is asked of the controller once at a time, however many clients want it.
3. A plain topic gets `num.partitions` and `default.replication.factor`; an internal one what its own settings say.
4. A failure is logged, and the next client that asks tries again. The same happens to names beyond `MAX_IN_FLIGHT`.
"""

import asyncio
import logging
from collections.abc import Iterable

from twofold.broker.core import BrokerCore
from twofold.config.internal_topics import internal_topic, is_internal
from twofold.controller.image import BrokerRegistration
from twofold.wire.errors import NONE, KafkaError, TopicAlreadyExists, error_for
from twofold.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

MAX_IN_FLIGHT = 1000
PATIENCE_S = 0.5

log = logging.getLogger(__name__)


class AutoTopics:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._in_flight: dict[str, asyncio.Task[None]] = {}

    def create(self, names: Iterable[str]) -> None:
        """Begin to create those that are not on their way already."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._in_flight]
        del wanted[MAX_IN_FLIGHT - len(self._in_flight) :]
        if wanted:
            creation = self._core.runtime.spawn(self._create(wanted), name="create topics on demand")
            self._in_flight.update(dict.fromkeys(wanted, creation))

    async def created(self, name: str) -> None:
        """Create it; return when that is done, or has failed, or takes longer than a moment."""
        self.create([name])
        creation = self._in_flight.get(name)
        if creation is not None:
            await asyncio.wait([creation], timeout=PATIENCE_S)

    async def _create(self, names: list[str]) -> None:
        request = CreateTopicsRequest(
            topics=[self._topic(name) for name in names],
            timeout_ms=self._core.settings.int("request.timeout.ms"),
        )
        try:
            if not all(map(is_internal, names)):  # a transaction is ended with the help of an internal one
                self._core.logs.reserve.check()
            response = await self._core.controller.create_topics(request)
        except KafkaError as error:
            log.warning("topics %s cannot be created on demand: %s", ", ".join(names), error)
        else:
            for result in response.topics:
                if result.error_code == NONE:
                    log.info("created topic %s on demand", result.name)
                elif result.error_code != TopicAlreadyExists.code:
                    reason = error_for(result.error_code)(result.error_message or "")
                    log.warning("topic %s cannot be created on demand: %s", result.name, reason)
        finally:
            for name in names:
                self._in_flight.pop(name, None)

    def _topic(self, name: str) -> CreatableTopic:
        settings = self._core.settings
        if is_internal(name):
            topic = internal_topic(name, settings, sum(map(_takes_partitions, self._core.image.active_brokers())))
            return CreatableTopic(
                name=name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                assignments=(),
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
            )
        return CreatableTopic(
            name=name,
            num_partitions=settings.int("num.partitions"),
            replication_factor=settings.int("default.replication.factor"),
            assignments=(),
            configs=(),
        )


def _takes_partitions(broker: BrokerRegistration) -> bool:
    """Whether one of its directories is not cordoned."""
    return not broker.cordoned_log_dirs or not set(broker.log_dirs) <= set(broker.cordoned_log_dirs)
