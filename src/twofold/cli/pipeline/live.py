"""How a pipeline comes along: what the journal and the brokers tell of every sink, and what its process adds.

1. The journal has where each decided batch ends, and when it was decided. How far the sink is behind and how fast it
   goes follow from that, wherever its process is, and whether it lives or not.
2. A rate is of the last seconds up to now. That of a pipeline which was killed or paused falls to 0 by itself.
3. What a process tells counts only if it answers now, and if Spark has told it something lately.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from twofold.cli.pipeline.report import Json, age
from twofold.connections.waiting import Deadline
from twofold.pipeline.live import LiveProcess, ask
from twofold.sink.behind import Behind, behind, offsets_of_lines
from twofold.sink.decided import DecidedEntry
from twofold.sink.inspection import FoundJournal, Inspector
from twofold.wire.errors import KafkaError

Told: TypeAlias = Sequence[tuple[LiveProcess, list[dict[str, Any]] | None]]
"""What each process tells now; None for one that does not answer."""

RATE_MS = 30_000
SILENT_S = 60.0
"""Spark says every ten seconds that a query is idle. Where it has said nothing for longer, the query is at a long
batch, or its JVM does not run."""


@dataclass(frozen=True, slots=True)
class JournalProgress:
    """By the journal and the brokers alone."""

    behind: Behind | None
    offsets_per_s: float | None
    decided_age_ms: int | None


@dataclass(frozen=True, slots=True)
class ProcessAnswer:
    """`query` is what the process tells of a sink's query; None if it does not answer, or has not started it."""

    process: LiveProcess
    answers: bool
    query: Mapping[str, Any] | None = None

    @property
    def is_silent(self) -> bool:
        return self.query is not None and float(self.query.get("progress_age_s") or 0) > SILENT_S

    @property
    def is_live(self) -> bool:
        """What it tells is of now."""
        return self.query is not None and not self.is_silent


# Looking


async def progress_of(found: FoundJournal, inspector: Inspector, now_ms: int, deadline: Deadline) -> JournalProgress:
    decided = [entry for entry in found.decided if entry.at_ms]
    if not decided:
        return JournalProgress(None, None, None)
    last = decided[-1]
    read = offsets_of_lines(last.ends)
    distance = None
    if read:
        try:
            distance = behind(read, await inspector.ends(read, deadline))
        except KafkaError:  # the input is of other brokers, or its topic is gone
            distance = None
    return JournalProgress(distance, rate(decided, now_ms), max(0, now_ms - last.at_ms))


def rate(decided: Sequence[DecidedEntry], now_ms: int) -> float | None:
    """Offsets per second that were decided in the last RATE_MS, up to now; None where the journal does not tell."""
    known = [entry for entry in decided if entry.name == decided[-1].name and entry.ends]
    lately = [entry for entry in known if entry.at_ms > now_ms - RATE_MS]
    if not lately:
        return 0.0 if known else None
    first = known[known.index(lately[0]) - 1] if known.index(lately[0]) else lately[0]
    start, end = offsets_of_lines(first.ends), offsets_of_lines(lately[-1].ends)
    count = sum(max(0, offset - start.get(tp, 0)) for tp, offset in end.items())
    since_ms = max(first.at_ms, now_ms - RATE_MS)
    return count * 1000 / max(1000, now_ms - since_ms)


def ask_processes(processes: Sequence[LiveProcess]) -> Told:
    return [(process, ask(process)) for process in processes]


def answer_of(found: FoundJournal, told: Told) -> ProcessAnswer | None:
    """The process that has the sink's query; None where none is known on this machine."""
    register = found.register
    if register is None:
        return None
    query_id = register.decided[-1].name if register.decided else ""
    silent = None
    for process, queries in reversed(told):
        for query in queries or ():
            if query_id in (query.get("id"), "") and register.query_name in (query.get("name"), ""):
                return ProcessAnswer(process, answers=True, query=query)
        if f"{register.query_name}.".startswith(f"{process.pipeline}.") and silent is None:
            silent = ProcessAnswer(process, answers=queries is not None)
    return silent


# Telling


def print_progress(progress: JournalProgress, answer: ProcessAnswer | None) -> None:
    if (distance := progress.behind) is not None:
        average = f"average {distance.average:,.0f}, most {distance.most:,}"
        print(f"behind       {distance.total:,} offsets ({average})")
    if progress.offsets_per_s is not None:
        print(f"rate         {progress.offsets_per_s:,.0f} offsets/s in the last {RATE_MS // 1000} s")
    if answer is not None:
        for line in _process_lines(answer):
            print(line)


def _process_lines(answer: ProcessAnswer) -> list[str]:
    process, query = answer.process, answer.query
    where = process.address if process.pid is None else f"{process.pid} at {process.address}"
    if process.is_gone:
        return [f"process      {process.pid} was killed: start the pipeline again"]
    if not answer.answers:
        return [f"process      {where} does not answer: it is paused, or too busy"]
    if query is None:
        return [f"process      {where}; it does not run the query"]
    error = f": {query['error']}" if query.get("error") else ""
    lines = [f"process      {where}, {query.get('state')}{error}"]
    if answer.is_silent:
        silent = age(int(float(query["progress_age_s"]) * 1000))
        return [*lines, f"             Spark has said nothing for {silent}: a long batch, or its JVM stands still"]
    lines.append(
        f"read         {_number(query, 'rows_read_per_s')} rows/s\n"
        f"written      {_number(query, 'rows_written_per_s')} rows/s, {_bytes(query)}/s"
    )
    if query.get("last_commit_s") is not None:
        lines.append(f"commit       {float(query['last_commit_s']) * 1000:,.0f} ms, the last one")
    return lines


def _number(query: Mapping[str, Any], name: str) -> str:
    return f"{float(query.get(name) or 0):,.0f}"


def _bytes(query: Mapping[str, Any]) -> str:
    size = float(query.get("bytes_written_per_s") or 0)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def progress_json(progress: JournalProgress, answer: ProcessAnswer | None) -> Json:
    distance = progress.behind
    return {
        "behind": None if distance is None else {**_numbers(distance), "offsetsBehindLatest": distance.total},
        "offsets_per_s": None if progress.offsets_per_s is None else round(progress.offsets_per_s, 1),
        "rate_window_ms": RATE_MS,
        "last_decided_age_ms": progress.decided_age_ms,
        "process": None if answer is None else _process_json(answer),
    }


def _numbers(distance: Behind) -> Json:
    return {
        "avgOffsetsBehindLatest": distance.average,
        "maxOffsetsBehindLatest": distance.most,
        "minOffsetsBehindLatest": distance.least,
    }


def _process_json(answer: ProcessAnswer) -> Json:
    process = answer.process
    return {
        "pid": process.pid,
        "address": process.address,
        "is_gone": process.is_gone,
        "answers": answer.answers,
        "live": answer.is_live,
        "query": dict(answer.query) if answer.query is not None and answer.is_live else None,
    }
