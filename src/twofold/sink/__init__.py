"""The exactly-once sink's protocol: many transactions that become one decision (docs/spark-protocol.md).

A batch is written by any number of tasks, each in a transaction of its own, and is committed by one record: the
decision, in a journal that only the newest driver can write. What a crash leaves behind is completed when it was
decided and aborted when it was not.

Nothing here knows Spark: `spark.sink` is one user, `twofold pipeline` another, and the simulator a third.
"""
