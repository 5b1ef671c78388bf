"""`twofold group reset-offsets`: where a group goes on reading, shown first and changed on `--execute`.

1. Nothing is changed without `--execute`, and nothing in a group that has members: they would not notice, and commit
   their own positions over it.
2. A new offset always lies within the log: one before its start or after its end is moved there, and the table says so.
3. Every partition must exist before any is changed.
"""

import csv
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from twofold.cli import declare
from twofold.cli.admin import connected
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    FAILED,
    OK,
    USAGE,
    BootstrapServer,
    CliError,
    Format,
    OutputFormat,
    Timeout,
    complain,
    plural,
    print_json,
    print_table,
    run_command,
    timestamp_ms,
)
from twofold.cli.group.report import Ends, ends_of, names_of, ranges
from twofold.client import Admin, MemberDescription, OffsetAndMetadata, TopicPartition
from twofold.client.cluster.metadata import TopicMetadata
from twofold.wire.errors import GroupIdNotFound, KafkaError, UnknownTopicOrPartition

DURATION = re.compile(r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
DURATION_UNITS_S = (604_800, 86_400, 3_600, 60, 1)
TARGETS = "--to-earliest, --to-latest, --to-datetime, --by-duration, --shift-by, --to-offset or --from-file"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: what the user asked for, with the one value that it needs."""

    kind: str
    number: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def timestamp_ms(self) -> int | None:
        return self.number if self.kind == "timestamp" else None


@dataclass(frozen=True, slots=True)
class OffsetChange:
    tp: TopicPartition
    old: int | None
    new: int
    note: str = ""


def reset_offsets(
    group: Annotated[str, declare.Argument(metavar="GROUP", help="The group; it may be one that does not exist yet.")],
    topic: Annotated[
        list[str] | None,
        declare.Option("--topic", metavar="TOPIC[:0,1]", help="All or some partitions of a topic; repeatable."),
    ] = None,
    all_topics: Annotated[bool, declare.Option("--all-topics", help="All that the group has offsets for.")] = False,
    to_earliest: Annotated[bool, declare.Option("--to-earliest", help="To the start of the log.")] = False,
    to_latest: Annotated[bool, declare.Option("--to-latest", help="To the end of the log.")] = False,
    to_datetime: Annotated[
        str | None,
        declare.Option(
            "--to-datetime",
            metavar="TIME",
            help="To the first record that is not older, like 2026-07-01T12:00:00Z; without a zone it is local time.",
        ),
    ] = None,
    by_duration: Annotated[
        str | None, declare.Option("--by-duration", metavar="DURATION", help="So long before now, like PT1H30M or P7D.")
    ] = None,
    shift_by: Annotated[
        int | None,
        declare.Option("--shift-by", metavar="N", help="Move the committed offset by so many; -N moves it back."),
    ] = None,
    to_offset: Annotated[int | None, declare.Option("--to-offset", metavar="N", min=0, help="To this offset.")] = None,
    from_file: Annotated[
        str | None,
        declare.Option(
            "--from-file",
            metavar="FILE",
            help="Lines of topic,partition,offset, or JSON as `group offsets` and this command print it; - is stdin.",
        ),
    ] = None,
    execute: Annotated[bool, declare.Option("--execute", help="Set the offsets; without it, only show them.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set where a group without members goes on reading; a dry run unless told to --execute."""

    async def main() -> int:
        target = choose_target(group, to_earliest, to_latest, to_datetime, by_duration, shift_by, to_offset, from_file)
        scope = _scope(topic or (), all_topics, target)
        async with connected(bootstrap_server, timeout) as admin:
            members = await _members(admin, group)
            if members and execute:
                raise CliError(f"cannot reset offsets of {group}: {_busy(members)}")
            committed = (await admin.list_group_offsets([group])).get()[group].values
            partitions = await _partitions(admin, group, scope, committed, target, bootstrap_server)
            changes = await plan(admin, target, partitions, committed)
            errors = await _commit(admin, group, changes) if execute else {}
        _print(group, changes, errors, execute, output)
        if members:
            complain(f"--execute will be refused for {group}: {_busy(members)}", OK)
        return _report(errors)

    run_command(main, bootstrap_server, destructive=True)


# What is asked for


def choose_target(
    group: str,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    to_offset: int | None,
    from_file: str | None,
) -> Target:
    choices: dict[str, Callable[[], Target]] = {}
    if to_earliest:
        choices["--to-earliest"] = lambda: Target("earliest")
    if to_latest:
        choices["--to-latest"] = lambda: Target("latest")
    if to_datetime is not None:
        choices["--to-datetime"] = lambda: Target(
            "timestamp", timestamp_ms(to_datetime, f"--to-datetime {to_datetime}")
        )
    if by_duration is not None:
        choices["--by-duration"] = lambda: Target(
            "timestamp", max(0, int(time.time() * 1000) - duration_ms(by_duration))
        )
    if shift_by is not None:
        choices["--shift-by"] = lambda: Target("shift", shift_by)
    if to_offset is not None:
        choices["--to-offset"] = lambda: Target("offset", to_offset)
    if from_file is not None:
        choices["--from-file"] = lambda: Target("file", offsets=parse_offsets(_read(from_file), from_file, group))
    if not choices:
        raise CliError(f"where to? Give {TARGETS}", USAGE)
    if len(choices) > 1:
        raise CliError(f"{' and '.join(choices)} exclude each other: give one of them", USAGE)
    return next(iter(choices.values()))()


def duration_ms(text: str) -> int:
    match = DURATION.fullmatch(text.upper())
    if match is None or not any(match.groups()):
        raise CliError(f"--by-duration {text!r} is not a duration like PT1H30M or P7D", USAGE)
    seconds = sum(float(part or 0) * unit for part, unit in zip(match.groups(), DURATION_UNITS_S, strict=True))
    return int(seconds * 1000)


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot read --from-file {name}: {error.strerror}", USAGE) from None
    except UnicodeDecodeError:
        raise CliError(f"--from-file {name} is not text", USAGE) from None


def parse_offsets(text: str, name: str, group: str) -> dict[TopicPartition, int]:
    """CSV in the two forms of Kafka's own tool (the second names the group of each line), or JSON."""
    rows = _json_rows(text, name) if text.lstrip()[:1] in ("[", "{") else _csv_rows(text, name, group)
    offsets: dict[TopicPartition, int] = {}
    for where, topic, partition, offset in rows:
        try:
            # Through text, so that JSON's 1.5 and true are no numbers here.
            tp, value = TopicPartition(str(topic), int(str(partition))), int(str(offset))
        except ValueError:
            raise CliError(f"{where}: {partition!r} and {offset!r} are not a partition and an offset", USAGE) from None
        if tp.partition < 0 or value < 0:
            raise CliError(f"{where}: neither partition {tp.partition} nor offset {value} may be negative", USAGE)
        if offsets.setdefault(tp, value) != value:
            raise CliError(f"{where}: {tp} has offset {offsets[tp]} already, not {value}", USAGE)
    if not offsets:
        raise CliError(f"--from-file {name} has no offsets for group {group}", USAGE)
    return offsets


Row = tuple[str, Any, Any, Any]


def _csv_rows(text: str, name: str, group: str) -> Iterable[Row]:
    for number, cells in enumerate(csv.reader(text.splitlines()), 1):
        cells = [cell.strip() for cell in cells]
        if not any(cells) or cells == ["topic", "partition", "offset"]:
            continue
        if len(cells) == 4 and cells[0] != group:
            continue
        if len(cells) not in (3, 4):
            raise CliError(f"{name}, line {number}: {','.join(cells)!r} is not topic,partition,offset", USAGE)
        topic, partition, offset = cells[-3:]
        yield f"{name}, line {number}", topic, partition, offset


def _json_rows(text: str, name: str) -> Iterable[Row]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CliError(f"--from-file {name} is no JSON: {error}", USAGE) from None
    rows = value.get("offsets") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise CliError(f'--from-file {name}: neither a list nor an object with a list of "offsets"', USAGE)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not {"topic", "partition", "offset"} <= row.keys():
            raise CliError(f'{name}, entry {number}: an object with "topic", "partition" and "offset" is needed', USAGE)
        # A partition that is assigned and has nothing committed yet.
        if row["offset"] is not None:
            yield f"{name}, entry {number}", row["topic"], row["partition"], row["offset"]


Scope = dict[str, list[int] | None]


def _scope(topics: Iterable[str], all_topics: bool, target: Target) -> Scope | None:
    """The partitions named (None for all of a topic); None where the group's offsets or a file say which."""
    chosen: Scope = {}
    for text in topics:
        name, separator, indexes = text.partition(":")
        words = indexes.split(",")
        if not name or (separator and not all(word.strip().isdecimal() for word in words)):
            raise CliError(f"--topic {text!r} is not of the form TOPIC or TOPIC:0,1", USAGE)
        known = chosen.get(name, [])
        chosen[name] = None if not separator or known is None else [*known, *map(int, words)]
    if target.kind == "file":
        if chosen or all_topics:
            raise CliError("--from-file says which partitions: leave out --topic and --all-topics", USAGE)
        return None
    if bool(chosen) == all_topics:
        problem = "--topic and --all-topics exclude each other" if chosen else "which partitions?"
        raise CliError(f"{problem}: give --topic TOPIC[:0,1] or --all-topics", USAGE)
    return chosen or None


# What it comes to


async def _members(admin: Admin, group: str) -> tuple[MemberDescription, ...]:
    described = await admin.describe_groups([group])
    error = described.errors.get(group)
    if error is not None:
        if not isinstance(error, GroupIdNotFound):
            raise error
        return ()
    return described.values[group].members


def _busy(members: tuple[MemberDescription, ...]) -> str:
    return f"it has members, stop them first: {names_of(members)}"


async def _partitions(
    admin: Admin,
    group: str,
    scope: Scope | None,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    target: Target,
    server: str,
) -> list[TopicPartition]:
    wanted = list(target.offsets) if target.kind == "file" else list(committed)
    topics = await admin.describe_topics(scope or {tp.topic for tp in wanted})
    if scope is None and target.kind != "file":
        gone = {tp for tp in wanted if isinstance(topics.errors.get(tp.topic), UnknownTopicOrPartition)}
        if gone:
            complain(f"left out {ranges(gone)}: no such topic any more", OK)
        wanted = [tp for tp in wanted if tp not in gone]
        if not wanted:
            raise CliError(f"group {group} has no offsets at {server}: name topics with --topic", FAILED)
    for name, error in topics.errors.items():
        if any(tp.topic == name for tp in wanted) or scope is not None:
            if isinstance(error, UnknownTopicOrPartition):
                raise CliError(f"no topic {name} at {server}; `twofold topic list` shows those that exist")
            raise error
    if scope is not None:
        wanted = [
            TopicPartition(name, index)
            for name, indexes in scope.items()
            for index in (topics.values[name].partitions if indexes is None else indexes)
        ]
    for tp in wanted:
        _check_exists(tp, topics.values[tp.topic])
    return sorted(set(wanted))


def _check_exists(tp: TopicPartition, topic: TopicMetadata) -> None:
    if tp.partition not in topic.partitions:
        last = len(topic.partitions) - 1
        raise CliError(f"topic {tp.topic} has partitions 0 to {last}, there is no {tp.partition}", USAGE)
    if tp.partition not in topic.with_leader:
        raise CliError(f"{tp} has no leader, so its offsets are not known: try again when its broker is back")


async def plan(
    admin: Admin,
    target: Target,
    partitions: list[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
) -> list[OffsetChange]:
    ends = await ends_of(admin, partitions)
    found: Mapping[TopicPartition, int] = {}
    if target.timestamp_ms is not None:
        listed = await admin.list_offsets(dict.fromkeys(partitions, target.timestamp_ms))
        found = {tp: row.offset for tp, row in listed.items()}
    return [_change(target, tp, committed.get(tp), ends, found.get(tp, -1)) for tp in partitions]


def _change(
    target: Target, tp: TopicPartition, committed: OffsetAndMetadata | None, ends: Ends, by_time: int
) -> OffsetChange:
    start, end = ends.starts[tp].offset, ends.ends[tp].offset
    old = None if committed is None else committed.offset
    note = ""
    match target.kind:
        case "earliest":
            new = start
        case "latest":
            new = end
        case "timestamp":
            new = by_time if by_time >= 0 else end
            note = "" if by_time >= 0 else "no record is that late: to the end"
        case "shift":
            if old is None:
                raise CliError(f"cannot shift {tp}: nothing is committed there; --to-offset says where to", FAILED)
            new = old + target.number
        case "offset":
            new = target.number
        case _:
            new = target.offsets[tp]
    if new < start:
        return OffsetChange(tp, old, start, f"{new} is before the start of the log")
    if new > end:
        return OffsetChange(tp, old, end, f"{new} is after the end of the log")
    return OffsetChange(tp, old, new, note)


async def _commit(admin: Admin, group: str, changes: list[OffsetChange]) -> Mapping[TopicPartition, KafkaError]:
    return (await admin.alter_group_offsets(group, {change.tp: change.new for change in changes})).errors


# What is shown


def _print(
    group: str,
    changes: list[OffsetChange],
    errors: Mapping[TopicPartition, KafkaError],
    execute: bool,
    output: OutputFormat,
) -> None:
    if output is OutputFormat.JSON:
        rows = [_change_json(change, errors.get(change.tp)) for change in changes]
        print_json({"group": group, "executed": execute, "offsets": rows})
        return
    columns = ["TOPIC", "PARTITION", "OLD", "NEW", "CHANGE", "NOTE"]
    cells = [
        (
            change.tp.topic,
            change.tp.partition,
            "-" if change.old is None else change.old,
            change.new,
            "-" if change.old is None else f"{change.new - change.old:+d}",
            "not changed" if change.tp in errors else change.note,
        )
        for change in changes
    ]
    print_table(columns, cells, right=columns[1:-1])
    print()
    if execute:
        print(f"reset {plural(len(changes) - len(errors), 'offset')} of {group}")
    else:
        print(f"dry run: nothing was changed in {group}; --execute does it")


def _change_json(change: OffsetChange, error: KafkaError | None) -> dict[str, object]:
    return {
        "topic": change.tp.topic,
        "partition": change.tp.partition,
        "old_offset": change.old,
        "offset": change.new,
        "note": change.note or None,
        "error": None if error is None else str(error),
    }


def _report(errors: Mapping[TopicPartition, KafkaError]) -> int:
    by_reason: dict[str, list[TopicPartition]] = {}
    for tp, error in errors.items():
        by_reason.setdefault(str(error), []).append(tp)
    for reason, partitions in by_reason.items():
        complain(f"cannot reset {ranges(partitions)}: {reason}", FAILED)
    return FAILED if errors else OK
