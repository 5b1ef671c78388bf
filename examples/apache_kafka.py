"""The same pipeline against Apache Kafka: exactly once, while its driver is killed with -9.

    python examples/apache_kafka.py 127.0.0.1:9092

Nothing is installed on the brokers. A broker without two-phase commit (KIP-939) gets the resume path: each task's
transaction has the longest timeout that the broker allows, and a driver that comes back ends it with the identity that
the journal has. The example makes topics of its own, with names that no other program has, and deletes them at the end.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from shared import conclude, create, delete, read, send, session

ORDERS = 3000
PATIENCE_S = 180


def with_tax(orders: DataFrame) -> DataFrame:
    parsed = orders.select("key", f.from_json(f.col("value").cast("string"), "order INT, cents BIGINT").alias("o"))
    total = f.struct("o.order", (f.col("o.cents") * 6 / 5).cast("bigint").alias("total"))
    return parsed.select("key", f.to_json(total).alias("value"))


def work(servers: str, name: str, checkpoint: str) -> None:
    """The driver: reads what there is, in batches of 200, and ends."""
    spark = session("against Apache Kafka")
    where = {"kafka.bootstrap.servers": servers}
    orders = spark.readStream.format("twofold").options(**where, subscribe=f"{name}-orders", startingOffsets="earliest")
    writer = with_tax(orders.option("maxOffsetsPerTrigger", "200").load()).writeStream.format("twofold")
    query = writer.options(
        **where, topic=f"{name}-totals", transactionalIdPrefix=name, checkpointLocation=checkpoint
    ).trigger(availableNow=True)
    query.start().awaitTermination()
    spark.stop()


class Driver:
    """`work` in a process and a group of its own, to be killed with all that it has started."""

    def __init__(self, servers: str, name: str, directory: Path) -> None:
        self.log = directory / "driver.log"
        command = [sys.executable, __file__, servers, "--work", name, str(directory / "checkpoint")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def words(self) -> str:
        return self.log.read_text(errors="replace")


def run(servers: str, name: str, directory: Path, wanted_kills: int) -> int:
    """How many times it was killed while it worked, then to its end."""
    kills = 0
    for number in range(wanted_kills):
        seen = len(read(servers, f"{name}-totals"))
        driver = Driver(servers, name, directory)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while driver.process.poll() is None and len(read(servers, f"{name}-totals")) <= seen:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no row came within {PATIENCE_S} s: {driver.words()[-2000:]}")
                time.sleep(0.1)
            time.sleep(0.3 * (number + 1))
            kills += driver.process.poll() is None
        finally:
            driver.kill()
        print(f"driver killed with -9, {len(read(servers, f'{name}-totals'))} of {ORDERS} rows visible")
    driver = Driver(servers, name, directory)
    try:
        if driver.process.wait(PATIENCE_S) != 0:
            raise RuntimeError(f"the pipeline failed: {driver.words()[-2000:]}")
    finally:
        driver.kill()
    way = "the resume path" if "takes the resume path" in driver.words() else "two-phase commit"
    print(f"the sink took {way}")
    return kills


def main(servers: str, wanted_kills: int) -> int:
    name = f"twofold-example-{uuid.uuid4().hex[:8]}"
    create(servers, f"{name}-orders", f"{name}-totals")
    try:
        rows = [(f"customer-{n % 7}", json.dumps({"order": n, "cents": 100 + n})) for n in range(ORDERS)]
        send(servers, f"{name}-orders", rows)
        with tempfile.TemporaryDirectory(prefix=name) as directory:
            kills = run(servers, name, Path(directory), wanted_kills)
        found = [json.loads(row.value) for row in read(servers, f"{name}-totals")]
    finally:
        delete(servers, f"{name}-orders", f"{name}-totals", f"{name}.decisions")
    counts = Counter(row["order"] for row in found)
    return conclude(
        {
            f"the driver was killed while it worked, {kills} of {wanted_kills} times": kills == wanted_kills,
            f"nothing lost: {len(counts)} of {ORDERS} orders": set(counts) == set(range(ORDERS)),
            f"nothing doubled: {len(found) - len(counts)} rows too many": len(found) == len(counts),
            "every total is right": all(row["total"] == (100 + row["order"]) * 6 // 5 for row in found),
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", metavar="HOST:PORT", help="where Apache Kafka is")
    parser.add_argument("--kills", type=int, default=2, help="how often the driver is killed (default 2)")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.work:
        work(wanted.servers, *wanted.work)
    else:
        sys.exit(main(wanted.servers, wanted.kills))
