"""All commands of `twofold pipeline` under one app."""

from twofold.cli.common import EXIT_CODES
from twofold.cli.pipeline.commands import pipeline_app
from twofold.cli.pipeline.prune import prune_writes
from twofold.cli.pipeline.run import init_project, run_pipeline

__all__ = ["pipeline_app"]

pipeline_app.command("prune", epilog=EXIT_CODES)(prune_writes)
pipeline_app.command("run", epilog=EXIT_CODES)(run_pipeline)
pipeline_app.command("init", epilog=EXIT_CODES)(init_project)
