"""Batch writes from `foreachBatch`: each is started in one Python process of the driver and committed in another, and
queries of one program write side by side."""

from collections import Counter
from typing import Any

from sink_kit import Broker
from spark_kit import Kit

ROWS, PER_BATCH, PATIENCE_S = 30, 10, 120


def start(kit: Kit, name: str, source: str, target: str, **options: str) -> Any:
    servers = {"kafka.bootstrap.servers": kit.bootstrap_servers}
    reading = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": PER_BATCH}
    frame = kit.spark.readStream.format("twofold").options(**servers, **reading).load().select("key", "value")

    def write(batch: Any, number: int) -> None:
        chosen = {key: value.replace("{batch}", str(number)) for key, value in options.items()}
        batch.write.format("twofold").options(**servers, topic=target, **chosen).mode("append").save()

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(kit.directory / name))
    return writer.trigger(availableNow=True).start()


def test_queries_that_write_in_foreach_batch_do_not_fence_each_other(ours: Kit) -> None:
    source = ours.topic(2)
    ours.send(source, range(ROWS))
    named = {"transactionalIdPrefix": f"p-{source}", "writeId": "b-{batch}"}
    cases: dict[str, dict[str, str]] = {"one": {}, "other": {}, "named": named}
    targets = {name: ours.topic(2) for name in cases}
    queries = [start(ours, name, source, targets[name], **options) for name, options in cases.items()]
    for query in queries:
        assert query.awaitTermination(PATIENCE_S), query.status
    broker = Broker(ours.bootstrap_servers)
    for target in targets.values():
        assert Counter(int(value) for _, _, value in broker.read(target)) == Counter(range(ROWS))
    broker.wait_until_none_open()
