"""The names of the topics of an assignment, which has their ids.

What a client works with is in its metadata already. A member that subscribes to a pattern gets topics that it has never
heard of, and asks for their names.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from twofold.client.cluster.cluster import Cluster
from twofold.connections.waiting import spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicId
from twofold.wire.errors import KafkaError
from twofold.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

log = logging.getLogger(__name__)


class TopicNames:
    """Of one member. The name of an id never changes."""

    def __init__(self, runtime: Runtime, cluster: Cluster, wake: Callable[[], None]) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._wake = wake
        self._names: dict[TopicId, str] = {}
        self._task: asyncio.Task[None] | None = None

    def resolve(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, str]:
        """Those that are known by now; the others are asked for, and others than these are forgotten."""
        found: dict[TopicId, str] = {}
        unknown: list[TopicId] = []
        for topic_id in set(topic_ids):
            name = self._names.get(topic_id) or self._cluster.cache.name_of(topic_id)
            if name is None:
                unknown.append(topic_id)
            else:
                found[topic_id] = name
        self._names = found
        if unknown and self._task is None:
            self._task = spawn_shared(self._runtime, self._look_up(unknown), name="look up topics by id")
        return dict(found)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _look_up(self, topic_ids: list[TopicId]) -> None:
        config = self._cluster.config
        learned = False
        try:
            deadline = self._cluster.deadline(config.request_timeout_ms, "request_timeout_ms")
            rows = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids]
            request = MetadataRequest(topics=rows, allow_auto_topic_creation=False)
            connection = await self._cluster.any_connection(deadline)
            response: MetadataResponse = await self._cluster.ask(connection, request, "Metadata", deadline)
            for row in response.topics:
                if not row.error_code and row.name is not None and row.topic_id is not None:
                    self._names[row.topic_id] = row.name
                    learned = True
        except KafkaError as error:
            log.debug("the names of topics %s were not told: %s", ", ".join(map(str, topic_ids)), error)
        finally:
            if not learned:
                await self._runtime.timers.sleep(config.retry_backoff_max_ms / 1000)
            self._task = None
            self._wake()
