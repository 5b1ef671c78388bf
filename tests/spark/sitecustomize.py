"""Python imports this at the start of every process that has this directory in PYTHONPATH: see `steps_hook`."""

import os

if "TWOFOLD_STEP_DIR" in os.environ:
    from steps_hook import observe_sinks

    observe_sinks()
