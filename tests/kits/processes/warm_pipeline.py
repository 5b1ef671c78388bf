"""The warm interpreter of `kits.processes.warm` with PySpark and all that a pipeline imports before it starts a JVM."""

import os

# Its math library starts a thread for each core, and a fork is whole with one thread only.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from kits.processes.warm import serve

MODULES = (
    "pyspark.sql",
    "twofold.pipeline.checks",
    "twofold.pipeline.display",
    "twofold.pipeline.loading",
    "twofold.pipeline.running",
    "twofold.pipeline.session",
    "twofold.spark.checkpoints.checkpoint",
    "twofold.spark.datasource",
    "twofold.spark.metrics",
    "twofold.spark.options",
    "twofold.spark.sink",
    "twofold.spark.source",
)

if __name__ == "__main__":
    serve(*MODULES)
