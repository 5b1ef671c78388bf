"""Where `twofold txn` is told to look: partitions and brokers that exist, or a message that names those that do."""

from twofold.cli.common import USAGE, CliError
from twofold.client import Admin, TopicPartition
from twofold.client.admin.hanging import choose_partitions

KNOWN_IDS = "`twofold txn list` shows those that are known"


async def chosen_partitions(
    admin: Admin, topic: str | None, partition: int | None, broker_id: int | None
) -> list[TopicPartition]:
    if partition is not None:
        if topic is None:
            raise CliError(f"--partition {partition} is of no topic: add --topic", USAGE)
        await check_partition(admin, TopicPartition(topic, partition))
    await check_broker(admin, broker_id)
    return await choose_partitions(admin, topic=topic, partition=partition, broker_id=broker_id)


async def check_partition(admin: Admin, tp: TopicPartition) -> None:
    found = (await admin.describe_topics([tp.topic])).get()[tp.topic]
    if tp.partition not in found.partitions:
        raise CliError(
            f"topic {tp.topic} has no partition {tp.partition}, it has 0 to {len(found.partitions) - 1}", USAGE
        )


async def check_broker(admin: Admin, broker_id: int | None) -> None:
    if broker_id is None:
        return
    await admin.cluster.refresh(admin.cluster.deadline())
    known = sorted(admin.cluster.cache.nodes)
    if broker_id not in known:
        raise CliError(f"there is no broker {broker_id}: the cluster has {', '.join(map(str, known))}", USAGE)
