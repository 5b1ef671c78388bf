"""The project that `twofold pipeline init` writes: small, commented, and running as it is."""

import json
from pathlib import Path

from twofold.pipeline.config import PipelineConfigError

NAMED = 5
TRANSFORM = '''"""Orders in, totals out: README.md says how to run it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

ORDER = "customer string, amount double"


def configure(spark):
    """Called once with the session, before anything is read. Leave it out if you have nothing to set."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def transform(orders: DataFrame) -> DataFrame:
    """A frame with the columns of a topic in: key and value (bytes), topic, partition, offset, timestamp. One with a
    column `value` out, text or bytes; `key`, `headers`, `topic` and `partition` may be there too.

    Several sources: transform(orders, customers), by the names in pipeline.toml. Several sinks: return a dict such as
    {"totals": ..., "rejected": ...}.
    """
    # JSON by Spark's own functions. A plain value would be f.col("value").cast("string").
    parsed = orders.select(f.from_json(f.col("value").cast("string"), ORDER).alias("order")).select("order.*")
    valid = parsed.where("customer is not null and amount > 0")
    total = f.struct("customer", f.expr("round(amount * 1.2, 2) as with_tax"))
    return valid.select(f.col("customer").alias("key"), f.to_json(total).alias("value"))


if __name__ == "__main__":  # spark-submit transform.py --config pipeline.toml
    from twofold.cli.pipeline.run import main

    main(__file__)
'''
CONFIG = """# twofold pipeline run transform.py --config pipeline.toml

[pipeline]
name = {name}
# What was read and written so far. Keep it as long as the pipeline lives: a restart goes on from here.
checkpoint = "checkpoint"
# How often a batch is made, or "available-now" to stop when everything is read.
trigger = "1 second"
bootstrap-server = "127.0.0.1:9092"
# master = "spark://host:7077"    # a cluster; default: all cores of this machine
# metrics = "9465"                # for Prometheus, at http://127.0.0.1:9465/metrics

# Options of a source are those of spark.readStream.format("twofold"). The name is that of the argument of transform().
[sources.orders]
subscribe = "orders"
startingOffsets = "earliest"

# Options of a sink are those of writeStream.format("twofold"); exactly once is the default.
[sinks.totals]
topic = "totals"

# Settings of Spark.
[spark]
"spark.driver.memory" = "1g"
# "spark.submit.pyFiles" = "helpers.py"    # on a cluster: what transform.py imports beside itself
"""
README = """# {name}

A broker, a topic, two orders, and a run that ends when everything is read:

    twofold serve -o transaction.two.phase.commit.enable=true -o transaction.heartbeat.enable=true &
    twofold topic create orders
    echo '{{"customer": "ann", "amount": 10}}' | twofold produce orders
    echo '{{"customer": "bob", "amount": 5}}' | twofold produce orders
    twofold pipeline run transform.py --config pipeline.toml --trigger available-now
    twofold consume totals --from-beginning --exit --isolation read_committed

Without `--trigger` it runs until Ctrl-C. Kill it as you like and start it again: every order is in `totals` once.
`transform.py` is what happens to the rows, `pipeline.toml` is where they come from and go to. On a cluster:

    spark-submit --master spark://host:7077 transform.py --config pipeline.toml

`kill %1` stops the broker.
"""


def write_project(directory: Path) -> list[Path]:
    """The files that were written. Nothing that is there is touched; what is hidden (.git) does not count."""
    name = directory.resolve().name or "pipeline"
    files = {
        "transform.py": TRANSFORM,
        "pipeline.toml": CONFIG.format(name=json.dumps(name, ensure_ascii=False)),
        "README.md": README.format(name=name),
    }
    try:
        if directory.exists():
            _check_empty(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (directory / file).write_text(text)
    except OSError as error:
        raise PipelineConfigError(f"{directory} cannot be written: {error.strerror}") from None
    return [directory / file for file in files]


def _check_empty(directory: Path) -> None:
    if not directory.is_dir():
        raise PipelineConfigError(f"{directory} is a file: name a directory that is empty, or not there yet")
    taken = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    if taken:
        more = " and more" if len(taken) > NAMED else ""
        raise PipelineConfigError(
            f"{directory} is not empty (it has {', '.join(taken[:NAMED])}{more}): name another directory, nothing was "
            "written"
        )
