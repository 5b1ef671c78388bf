"""Topics on a running server."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

from twofold.client import Admin, NewTopic, OffsetSpec, TopicPartition

T = TypeVar("T")
PATIENCE_S = 30


async def create_topic(admin: Admin, partitions: int = 1, **configs: str) -> str:
    """A new topic, when the server serves each of its partitions: Apache Kafka names a leader in its metadata a moment
    before that leader takes requests, and a request in that moment is refused or tried again."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    (await admin.create_topics([NewTopic(name=name, num_partitions=partitions, configs=dotted)])).get()
    await admin.list_offsets({TopicPartition(name, index): OffsetSpec.EARLIEST for index in range(partitions)})
    return name


async def becomes(look: Callable[[], Awaitable[T]], wanted: T) -> None:
    """Wait until a look shows what is wanted: a broker of Apache Kafka tells what its controller has decided a moment
    after the controller has answered."""
    end = time.monotonic() + PATIENCE_S
    while (seen := await look()) != wanted:
        assert time.monotonic() < end, f"{seen} instead of {wanted}"
        await asyncio.sleep(0.02)
