"""Batch writes from `foreachBatch`: each is started in one Python process of the driver and committed in another, and
queries of one program write side by side."""

from collections import Counter
from typing import Any

from pyspark.errors import StreamingQueryException
from sink_kit import Broker
from spark_kit import Kit

ROWS, PER_BATCH, PATIENCE_S = 30, 10, 120
ATTEMPTS = 3


def start(kit: Kit, name: str, source: str, target: str, **options: str) -> Any:
    servers = {"kafka.bootstrap.servers": kit.bootstrap_servers}
    reading = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": PER_BATCH}
    frame = kit.spark.readStream.format("twofold").options(**servers, **reading).load().select("key", "value")

    def write(batch: Any, number: int) -> None:
        chosen = {key: value.replace("{batch}", str(number)) for key, value in options.items()}
        batch.write.format("twofold").options(**servers, topic=target, **chosen).mode("append").save()

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(kit.directory / name))
    return writer.trigger(availableNow=True).start()


def has_ended(query: Any) -> bool:
    """False where Spark was too slow to start a Python process, before the query did anything."""
    try:
        assert query.awaitTermination(PATIENCE_S), query.status
    except StreamingQueryException as error:
        if "Python worker failed to connect back" in str(error) and "INITIALIZING" in str(error):
            return False
        raise
    return True


def test_queries_that_write_in_foreach_batch_do_not_fence_each_other(ours: Kit) -> None:
    source = ours.topic(2)
    ours.send(source, range(ROWS))
    named = {"transactionalIdPrefix": f"p-{source}", "writeId": "b-{batch}"}
    cases: dict[str, dict[str, str]] = {"one": {}, "other": {}, "named": named}
    targets = {name: ours.topic(2) for name in cases}
    queries = {name: start(ours, name, source, targets[name], **options) for name, options in cases.items()}
    for name, query in queries.items():
        again = (start(ours, name, source, targets[name], **cases[name]) for _ in range(ATTEMPTS - 1))
        assert has_ended(query) or any(map(has_ended, again)), f"Spark was too slow to start {name}"
    broker = Broker(ours.bootstrap_servers)
    for target in targets.values():
        assert Counter(int(value) for _, _, value in broker.read(target)) == Counter(range(ROWS))
    broker.wait_until_none_open()
