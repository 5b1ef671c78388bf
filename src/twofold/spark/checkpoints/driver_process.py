"""The driver's JVM, as its Python processes see it: which process it is, and what it was started with."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from twofold.spark.checkpoints.driver_jvm import command_line_of, command_of, stat_of

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


def driver_pid() -> int:
    """The JVM above this process, as far as the system tells."""
    pid = os.getppid()
    while command_of(pid) not in ("", "java"):
        pid = int(stat_of(pid)[1])
    return pid


def with_checkpoint_of_session(options: Mapping[str, str]) -> dict[str, str]:
    """Options of a stream with the place of its checkpoint, where the session and the query's name say it: Spark tells
    a Python sink the options of its writer alone. What Spark was started with is found here. A task sees
    whether it is the place that Spark has."""
    given = {name.lower(): value for name, value in options.items()}
    name = given.get("queryname", "").strip()
    if "checkpointlocation" in given or not name:
        return given
    root = _conf_at_start().get(CHECKPOINTS, "").rstrip("/")
    return given | ({"checkpointlocation": f"{root}/{name}"} if root else {})


def _conf_at_start() -> dict[str, str]:
    """What comes after the program on the command line is the program's own."""
    line = command_line_of(driver_pid())
    found: dict[str, str] = {}
    for path in line.properties_files:
        found |= dict(_properties(Path(path)))
    return found | line.conf


def _properties(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if name and not name.startswith("#"):
            yield name, value.strip()
