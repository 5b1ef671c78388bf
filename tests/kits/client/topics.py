"""Topics on a running server."""

import uuid

from twofold.client import Admin, NewTopic, OffsetSpec, TopicPartition


async def create_topic(admin: Admin, partitions: int = 1, **configs: str) -> str:
    """A new topic, when the server serves each of its partitions: Apache Kafka names a leader in its metadata a moment
    before that leader takes requests, and a request in that moment is refused or tried again."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    (await admin.create_topics([NewTopic(name=name, num_partitions=partitions, configs=dotted)])).get()
    await admin.list_offsets({TopicPartition(name, index): OffsetSpec.EARLIEST for index in range(partitions)})
    return name
