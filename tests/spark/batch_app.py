"""A batch write without a name, by the parts that Spark calls, in a process that stands for its driver: the start and
the tasks, then commit. What kills it kills the driver."""

import os
import pickle
import sys

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from twofold.spark.checkpoints import driver_process
from twofold.spark.sink import BatchJobWriter, batch_writer

TASKS = 3


def main(servers: str, topic: str, first: int, last: int) -> None:
    driver_process.driver_pid = os.getpid
    options = {"kafka.bootstrap.servers": servers, "topic": topic}
    made = batch_writer(options, StructType([StructField("value", StringType())]), overwrite=False)
    writer: BatchJobWriter = pickle.loads(pickle.dumps(made))
    messages: list[WriterCommitMessage | None] = []
    for task in range(TASKS):
        rows = pa.RecordBatch.from_pylist([{"value": str(number)} for number in range(first, last)][task::TASKS])
        messages.append(writer.write(iter([rows])))
    writer.commit(messages)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
