"""Spark's words about a failure, in one message for people. Pure.

An error of a Python process comes as a page of two languages' traces; only the error itself, and the line of the user's
file that it comes from, are for people.
"""

import re
from pathlib import Path

from twofold.pipeline.config import PipelineFailed

_TRACE = "Traceback (most recent call last)"
_RAISED = re.compile(r"^((?:\w+\.)*\w+)(?:: (.*))?$")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)')
# What is raised before the tasks of a batch is raised while the writer is pickled for them.
_PICKLED = re.compile(r"^_pickle\.PicklingError: Could not serialize object: (?=\w+: )")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+;?\s*$")
# Their names say nothing that the messages do not.
_OURS = ("twofold.", "pyspark.")
OTHER_CHECKPOINT = (
    "the checkpoint is of another query: {found}. Name another directory with --checkpoint to begin anew, or go back "
    "to the sources and the transform() that it belongs to"
)
TAKEN_OVER = re.compile(r"has taken over what is written under|\[CONCURRENT_STREAM_LOG_UPDATE\]")
_KNOWN = (
    (re.compile(r"There are \[\d+\] sources in the checkpoint.*?requested by the query"), OTHER_CHECKPOINT),
    (re.compile(r"\[(?:STREAMING_STATEFUL_OPERATOR|STATE_STORE)_[A-Z_.]+\].*"), OTHER_CHECKPOINT),
    (
        re.compile(r"\[CONCURRENT_STREAM_LOG_UPDATE\].*|Cannot start query with id .*"),
        "another process runs this pipeline with the same checkpoint: stop one of them, or give each its own with "
        "--checkpoint ({found})",
    ),
    (
        re.compile(r"Python worker failed to connect back"),
        "Spark could not start its Python processes in time: the machine has too much to do; start it again ({found})",
    ),
    (
        re.compile(r"\[JAVA_GATEWAY_EXITED\][^\n]*"),
        "the JVM did not start: look at the master, its memory (spark.driver.memory) and JAVA_HOME; what it said is in "
        "the log ({found})",
    ),
    (
        re.compile(
            r"Answer from Java side is empty|Error while (?:sending|receiving)\b.*|.*connect to the Java server.*|"
            r"\A\[Errno \d+\] (?:Connection refused|Broken pipe|Connection reset by peer)\Z"
        ),
        "the JVM has ended, killed or out of memory (spark.driver.memory); start it again ({found})",
    ),
    (
        re.compile(r"topic '[^']+' does not exist"),
        "{found}: create it with `twofold topic create`, or name another; `twofold topic list` shows those that there "
        "are",
    ),
)


def failure(text: str, file: Path, whose: str = "") -> PipelineFailed:
    return PipelineFailed(whose + explain(text, file), is_taken_over=TAKEN_OVER.search(text) is not None)


def explain(text: str, file: Path | None = None) -> str:
    """`file` is the user's, whose line is named."""
    for pattern, message in _KNOWN:
        if match := pattern.search(text):
            return message.format(found=_plain(match.group(0)))
    found = _raised(text, file)
    return found or next((_plain(line) for line in text.splitlines() if line.strip()), "no message")


def _raised(text: str, file: Path | None) -> str | None:
    """The error at the end of the last Python trace."""
    found, place, in_trace = None, "", False
    for line in text.splitlines():
        if _TRACE in line:
            in_trace, place = True, ""
        elif in_trace and (frame := _FRAME.match(line)):
            if file is not None and Path(frame.group(1)).parent == file.parent:
                place = f" ({Path(frame.group(1)).name}:{frame.group(2)})"
        elif in_trace and line.strip() and not line[0].isspace():
            in_trace = False
            found = _without_name(line.strip()) + place
    return found


def _without_name(line: str) -> str:
    pickled = _PICKLED.match(line)
    if pickled is not None:
        return _plain(line[pickled.end() :].partition(": ")[2])
    match = _RAISED.match(line)
    if match is None:
        return _plain(line)
    name, said = match.groups()
    if said and name.startswith(_OURS):
        return _plain(said)
    return f"{name.rpartition('.')[2]}: {_plain(said)}" if said else name


def _plain(text: str) -> str:
    return _SQL_STATE.sub("", text.strip())
