"""From zero to exactly once with Spark, cell by cell.

    python examples/zero_to_exactly_once.py

runs it from top to bottom; an editor that knows `# %%` runs it cell by cell. It needs what `pip install
'.[spark,demo]'` in a checkout brings, and a JDK. The broker is its own, in this process, and is gone at the end.
"""

# %% A broker
# Two-phase commit is what lets the sink survive anything: a prepared transaction stays until it is decided about.
# Heartbeats end what a dead task has left open within seconds.
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from twofold.embedded import Broker

broker = Broker(settings={"transaction.two.phase.commit.enable": "true", "transaction.heartbeat.enable": "true"})
servers = broker.start().bootstrap_servers
print(f"a broker at {servers}")

# %% A thousand orders, sent by a stock client
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402


def send_orders() -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    topics = [NewTopic(name, num_partitions=2) for name in ("orders", "totals", "totals-plain")]
    for created in admin.create_topics(topics).values():
        created.result()
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(1000):
        order = {"order": number, "cents": 100 + number}
        producer.produce("orders", key=f"customer-{number % 7}", value=json.dumps(order))
    producer.flush()


send_orders()

# %% Spark
# Nothing has to be registered: Spark finds format("twofold") in the installed package.
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that has Twofold, for Spark's workers too
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
spark = (
    SparkSession.builder.master("local[2]")
    .appName("from zero to exactly once")
    .config("spark.python.unix.domain.socket.enabled", "true")  # 40 ms less for every task
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
directory = tempfile.TemporaryDirectory(prefix="twofold-example-")


# %% The pipeline: orders in, totals with tax out
# It is plain Spark. Nothing in it knows about transactions.
def with_tax(orders: DataFrame) -> DataFrame:
    parsed = orders.select("key", f.from_json(f.col("value").cast("string"), "order INT, cents BIGINT").alias("o"))
    total = f.struct("o.order", (f.col("o.cents") * 6 / 5).cast("bigint").alias("total"))
    return parsed.select("key", f.to_json(total).alias("value"))


def run(topic: str, **options: str) -> Path:
    """Reads what there is, in batches of 300, and ends. The checkpoint remembers how far it came."""
    checkpoint = Path(directory.name) / topic
    orders = spark.readStream.format("twofold").options(
        **{"kafka.bootstrap.servers": servers, "maxOffsetsPerTrigger": "300"},
        subscribe="orders",
        startingOffsets="earliest",
    )
    query = (
        with_tax(orders.load())
        .writeStream.format("twofold")
        .options(**{"kafka.bootstrap.servers": servers}, topic=topic, checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return checkpoint


checkpoint = run("totals")


# %% What a stock client sees
def read(topic: str) -> list[dict[str, int]]:
    settings = {"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in (0, 1)])
    rows, at_end = [], 0
    while at_end < 2:
        message = consumer.poll(30)
        assert message is not None, f"{topic} was not read to its end within 30 s"
        if message.error() is None:
            rows.append(json.loads(message.value()))
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            at_end += 1
    consumer.close()
    return rows


expected = [{"order": number, "total": (100 + number) * 6 // 5} for number in range(1000)]
first = read("totals")
print(f"{len(first)} rows after the first run")


# %% The crash that hurts
# A driver that is killed after the rows of a batch are visible, and before Spark has noted in its checkpoint that the
# batch is done, leaves everything but that note, a file in `commits/`. Spark then runs the batch again. So, no note:
def crash(checkpoint: Path) -> None:
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    print(f"batch {last.name} is not noted as done")


crash(checkpoint)
run("totals")
again = read("totals")
print(f"{len(again)} rows after the batch was run again")

# %% The same without transactions
crash(run("totals-plain", exactlyOnce="off"))
run("totals-plain", exactlyOnce="off")
plain = read("totals-plain")
print(f"{len(plain)} rows with exactlyOnce=off")

# %% What was proven
spark.stop()
broker.stop()
directory.cleanup()


def in_order(rows: list[dict[str, int]]) -> list[dict[str, int]]:
    return sorted(rows, key=lambda row: row["order"])


times = Counter(row["order"] for row in plain)
proven = {
    "every order is in totals once, with the right total": in_order(first) == expected,
    "after a batch was run again, too": in_order(again) == expected,
    "without transactions the rows of that batch are there twice": set(times.values()) == {1, 2},
}
for claim, holds in proven.items():
    print("proven " if holds else "FALSE  ", claim)
sys.exit(0 if all(proven.values()) else 1)
