"""Python imports this at the start of every process that has this directory in PYTHONPATH: see `steps_hook`.

Spark's daemons import here what their workers need, once and before they fork: each worker would take half a second for
it. Nothing of it starts a thread (numpy and pyarrow do), because a daemon with threads must not fork.
"""

import contextlib
import os
import sys

if "TWOFOLD_STEP_DIR" in os.environ:
    from steps_hook import observe_sinks

    observe_sinks()
if "pyspark.daemon" in sys.orig_argv and "pyspark.sql.worker.lookup_data_sources" not in sys.orig_argv:
    with contextlib.suppress(ImportError):  # executors to which a job brings it
        import twofold.client.admin.admin
        import twofold.sink.driver
        import twofold.sink.inspection
        import twofold.spark.clients
        import twofold.spark.options  # noqa: F401
