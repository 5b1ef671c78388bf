"""The project that `twofold pipeline init` writes: small, commented, and running as it is."""

from pathlib import Path

from twofold.pipeline.config import ConfigError

TRANSFORM = '''"""Orders in, totals out. `twofold pipeline run transform.py --config pipeline.toml` runs it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

ORDER = "customer string, amount double"


def configure(spark):
    """Called once with the session, before anything is read. Leave it out if you have nothing to set."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def transform(orders: DataFrame) -> DataFrame:
    """A frame with the columns of a topic (key, value, topic, partition, offset, timestamp) in; one with at least a
    column `value` out. `key`, `headers` and `partition` may be there too."""
    parsed = orders.select("key", f.from_json(f.col("value").cast("string"), ORDER).alias("order"))
    return parsed.where("order.amount > 0").select(
        f.col("order.customer").alias("key"),
        f.to_json(f.struct("order.customer", f.expr("round(order.amount * 1.2, 2)").alias("with_tax"))).alias("value"),
    )


if __name__ == "__main__":  # for spark-submit
    from twofold.cli.pipeline_run import main

    main(__file__)
'''
CONFIG = """# twofold pipeline run transform.py --config pipeline.toml

[pipeline]
name = "{name}"
# What was read and written so far. Keep it as long as the pipeline lives: a restart goes on from here.
checkpoint = "checkpoint"
# How often a batch is made, or "available-now" to stop when everything is read.
trigger = "1 second"
bootstrap-server = "127.0.0.1:9092"
# master = "spark://host:7077"    # default: this machine

# Options of a source are those of spark.readStream.format("twofold").
[sources.orders]
subscribe = "orders"
startingOffsets = "earliest"

# Options of a sink are those of writeStream.format("twofold"); exactly once is the default.
[sinks.totals]
topic = "totals"

# Settings of Spark.
[spark]
"spark.driver.memory" = "1g"
"""
README = """# {name}

    twofold serve -o transaction.two.phase.commit.enable=true -o transaction.heartbeat.enable=true &
    twofold topic create orders
    echo '{{"customer": "ann", "amount": 10}}' | twofold produce orders
    twofold pipeline run transform.py --config pipeline.toml --trigger available-now
    twofold consume totals --from-beginning --exit --isolation read_committed

`transform.py` is what happens to the rows, `pipeline.toml` is where they come from and go to.
"""


def write_project(directory: Path) -> list[Path]:
    """The files that were written. Nothing that is there is touched."""
    name = directory.resolve().name
    files = {
        "transform.py": TRANSFORM,
        "pipeline.toml": CONFIG.format(name=name),
        "README.md": README.format(name=name),
    }
    taken = [file for file in files if (directory / file).exists()]
    if taken:
        raise ConfigError(f"{directory / taken[0]} is there already: choose another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (directory / file).write_text(text)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}") from None
    return [directory / file for file in files]
