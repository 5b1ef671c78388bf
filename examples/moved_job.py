"""A job of Spark's own Kafka connector, moved by one word: its checkpoint stays, and from then on every row is once.

    python examples/moved_job.py
    python examples/moved_job.py --connector spark-sql-kafka.jar,kafka-clients.jar,...

`moved/before.py` and `moved/after.py` differ in that word. With the jars of Spark's own connector the job begins as the
first, goes on as the second, and goes back and forth once more, all with one checkpoint; without them it begins as the
second. Twice the driver dies after its rows are visible and before Spark has noted the batch. It needs what
`pip install '.[spark,demo]'` in a checkout brings, and a JDK.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from moved import after, before
from shared import TWO_PHASE_COMMIT, conclude, create, forget_last_commit, read, send, session
from twofold.embedded import Broker

ORDERS = 250


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connector", help="the jars of Spark's own connector, with commas between")
    jars = parser.parse_args().connector
    if jars:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    spark = session("moved by one word")
    with (
        tempfile.TemporaryDirectory(prefix="twofold-example-") as directory,
        Broker(settings=TWO_PHASE_COMMIT) as broker,
    ):
        servers, checkpoint = broker.bootstrap_servers, Path(directory) / "checkpoint"
        create(servers, "orders", "totals")
        sent: list[str] = []
        for form in [before, after, before, after] if jars else [after, after]:
            more = range(len(sent), len(sent) + ORDERS)
            send(servers, "orders", ((f"customer-{number % 7}", json.dumps({"amount": number})) for number in more))
            sent += [f"{number * 1.2:.2f}" for number in more]
            form.run(spark, servers, str(checkpoint))
            if form is after:
                batch = forget_last_commit(checkpoint)
                form.run(spark, servers, str(checkpoint))
                print(f"as {form.FORMAT!r}; batch {batch} was run again, because Spark had not noted that it was done")
            else:
                print(f"as {form.FORMAT!r}")
        spark.stop()
        found = Counter(f"{json.loads(row.value)['total']:.2f}" for row in read(servers, "totals"))
    return conclude(
        {
            f"nothing lost: {len(found)} of {len(sent)} totals are there": set(found) == set(sent),
            f"nothing doubled: {sum(found.values()) - len(found)} rows too many": found == Counter(sent),
        }
    )


if __name__ == "__main__":
    sys.exit(main())
