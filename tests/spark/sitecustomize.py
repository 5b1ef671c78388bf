"""Python imports this at the start of every process that has this directory in PYTHONPATH: see `steps_hook`.

Spark's daemons import here what their workers need, once and before they fork: each worker would take a second for it.
"""

import contextlib
import os
import sys

if "TWOFOLD_STEP_DIR" in os.environ:
    from steps_hook import observe_sinks

    observe_sinks()
if "pyspark.daemon" in sys.orig_argv:
    with contextlib.suppress(ImportError):  # executors to which a job brings it
        import twofold.spark.fetch
        import twofold.spark.sink
        import twofold.spark.source  # noqa: F401
