"""The driver's JVM, as its Python processes see it: which process it is, and what it was started with."""

import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from twofold.spark.checkpoints.driver_jvm import command_of, stat_of

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
DEFAULTS = "spark-defaults.conf"


def driver_pid() -> int:
    """The JVM above this process, as far as the system tells."""
    pid = os.getppid()
    while command_of(pid) not in ("", "java"):
        pid = int(stat_of(pid)[1])
    return pid


def with_checkpoint_of_session(options: Mapping[str, str]) -> dict[str, str]:
    """Options of a stream with the place of its checkpoint, where the session and the query's name say it: Spark tells
    a Python sink the options of its writer alone. What was set when the session was made is found here. A task sees
    whether it is the place that Spark has."""
    given = {name.lower(): value for name, value in options.items()}
    name = given.get("queryname", "").strip()
    if "checkpointlocation" in given or not name:
        return given
    root = _conf_at_start().get(CHECKPOINTS, "").rstrip("/")
    return given | ({"checkpointlocation": f"{root}/{name}"} if root else {})


def _conf_at_start() -> dict[str, str]:
    found = dict(_defaults())
    arguments = _arguments(driver_pid())
    for flag, value in pairwise(arguments):
        if flag in ("--conf", "-c"):
            name, _, text = value.partition("=")
            found[name] = text
    return found


def _defaults() -> Iterator[tuple[str, str]]:
    home = os.environ.get("SPARK_HOME", "")
    directory = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    try:
        lines = (Path(directory) / DEFAULTS).read_text().splitlines() if directory else []
    except OSError:
        return
    for line in lines:
        name, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if name and not name.startswith("#"):
            yield name, value.strip()


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
