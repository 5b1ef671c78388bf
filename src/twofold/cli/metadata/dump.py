"""The records of a metadata log as rows, each with the transaction that it belongs to.

1. The log is read twice: first for its transactions, so that the first record of one can say how it ended.
2. A transaction is committed, aborted, or open: then none of it is in force. Where the log begins inside of one,
   everything before its End belongs to it.
3. A record that contradicts those before it (Begin inside a transaction, End without one) is told as damage.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import get_args

from twofold.cli.common import USAGE, CliError
from twofold.cli.log import decoders as log_decoders
from twofold.cli.log.batches import DumpedBatch
from twofold.cli.log.decoders import OTHER_METADATA, UndecodedRecord, control_row
from twofold.cli.log.dump import records_of
from twofold.cli.log.values import Row, text_line, value_text
from twofold.cli.metadata.files import FileProblem, Located, Part
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    MetadataRecord,
    UnsupportedRecord,
    decode,
)
from twofold.machine.schema import MalformedRecord
from twofold.records.batch import Record
from twofold.records.control import ControlType
from twofold.wire.errors import InvalidRecord

MOST_BYTES = 200  # of a value that cannot be decoded
_TYPES = (
    *(cls.__name__ for cls in get_args(MetadataRecord)),
    *OTHER_METADATA.values(),
    *(kind.name for kind in ControlType if kind > ControlType.COMMIT),
)
_TRANSACTIONAL = frozenset({b"\x01\x17", b"\x01\x18", b"\x01\x19"})  # the first bytes of Begin, End and Abort
_ENDS = ("BeginTransaction", "EndTransaction", "AbortTransaction")


class MetadataFate(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class MetadataTransaction:
    """From Begin to End or Abort, and how many records are between them."""

    begin: int | None  # None: before the first record of the log
    end: int | None  # None while it is open
    outcome: MetadataFate
    records: int
    name: str | None = None
    reason: str | None = None

    def row(self) -> Row:
        names = {"name": self.name, "reason": self.reason}
        return {
            "what": "transaction", "state": self.outcome.value, "begin": self.begin, "end": self.end,
            "records": self.records, **names,
        }  # fmt: skip

    def says(self) -> str:
        """What becomes of it."""
        if self.outcome is MetadataFate.OPEN:
            return f"OPEN, {_count(self.records)} so far, not in force"
        reason = "" if self.reason is None else f" ({value_text(self.reason)})"
        return f"{self.outcome} at {self.end}{reason}, {_count(self.records)}"


def _count(records: int) -> str:
    return f"{records} record{'' if records == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class MetadataFilter:
    """Which records to show."""

    from_offset: int = 0
    to_offset: int | None = None
    types: frozenset[str] = frozenset()

    def has(self, offset: int) -> bool:
        return self.from_offset <= offset and (self.to_offset is None or offset <= self.to_offset)

    def touches(self, transaction: MetadataTransaction) -> bool:
        begin = -1 if transaction.begin is None else transaction.begin
        ends_before = transaction.end is not None and transaction.end < self.from_offset
        return not ends_before and (self.to_offset is None or begin <= self.to_offset)


def record_types(names: list[str]) -> frozenset[str]:
    """Types as users and Apache Kafka write them: Topic, topic, TOPIC_RECORD."""
    known = {_plain_type(name): name for name in _TYPES}
    for name in names:
        if _plain_type(name) not in known:
            raise CliError(f"--type {name}: there is no such type; known are {', '.join(sorted(_TYPES))}", USAGE)
    return frozenset(known[_plain_type(name)] for name in names)


def _plain_type(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").removesuffix("record")


class MetadataTransactions:
    """The transactions of a part, in the order in which they begin; the first reading."""

    def __init__(self, part: Part, advance: Callable[[int], None] = lambda _: None) -> None:
        self.found: list[MetadataTransaction] = []
        self.problems: list[FileProblem] = []
        self.faults: dict[int, str] = {}  # by offset: how a record contradicts those before it
        self._part = part
        self._open: MetadataTransaction | None = None
        self._since = 0  # records since Begin, or since the first one
        self._read(advance)

    def _read(self, advance: Callable[[int], None]) -> None:
        for found in self._part.read(advance=advance):
            if isinstance(found, FileProblem):
                self.problems.append(found)
            elif not found.batch.header.is_control:
                self._scan(found)
        if self._open is not None:
            self.found.append(replace(self._open, records=self._since))

    def _scan(self, located: Located) -> None:
        try:
            for record in records_of(located.batch):
                if (record.value or b"")[:2] in _TRANSACTIONAL:
                    wrong = self._step(decode(record.value or b""), record.offset)
                    self._since = 0
                    if wrong is not None:
                        self.faults[record.offset] = f"the record at offset {record.offset}: {wrong}"
                        self.problems.append(located.problem(self.faults[record.offset]))
                else:
                    self._since += 1
        except (InvalidRecord, MalformedRecord, UnsupportedRecord) as error:
            self.problems.append(located.problem(f"the batch at offset {located.batch.header.base_offset}: {error}"))

    def _step(self, record: MetadataRecord | None, offset: int) -> str | None:
        """Take Begin, End or Abort; what is wrong about it."""
        opened = self._open
        if self._part.is_snapshot:
            return f"{type(record).__name__} inside a snapshot"
        if isinstance(record, BeginTransaction):
            self._open = MetadataTransaction(offset, None, MetadataFate.OPEN, 0, record.name)
            if opened is None:
                return None
            self.found.append(replace(opened, records=self._since))
            return f"Begin inside the transaction begun at {opened.begin}"
        if opened is None:
            if self.found or self._part.begins_at == 0:
                return f"{type(record).__name__} without Begin"
            opened = MetadataTransaction(None, None, MetadataFate.OPEN, 0)
        reason = record.reason if isinstance(record, AbortTransaction) else None
        outcome = MetadataFate.COMMITTED if isinstance(record, EndTransaction) else MetadataFate.ABORTED
        self.found.append(replace(opened, end=offset, outcome=outcome, records=self._since, reason=reason))
        self._open = None
        return None


def problem_row(problem: FileProblem) -> Row:
    what = "torn end" if problem.is_torn_end else "damage"
    return {"what": what, "path": str(problem.path), "position": problem.position, "reason": problem.reason}


def file_rows(part: Part) -> Iterator[Row]:
    kind = "snapshot" if part.is_snapshot else "log"
    for opened in part.files:
        yield {"what": "file", "path": str(opened.path), "kind": f"metadata {kind}", "size": opened.size}


def transaction_rows(transactions: MetadataTransactions, wanted: MetadataFilter) -> Iterator[Row]:
    yield from (one.row() for one in transactions.found if wanted.touches(one))
    yield from map(problem_row, transactions.problems)


def record_rows(
    part: Part,
    transactions: MetadataTransactions,
    wanted: MetadataFilter,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[Row]:
    """The second reading. After the last record of a transaction follows a row about all of it."""
    belongs = _Belonging(transactions.found)
    for found in part.read(from_offset=wanted.from_offset, advance=advance):
        if isinstance(found, FileProblem):
            yield problem_row(found)
            continue
        if wanted.to_offset is not None and found.batch.header.base_offset > wanted.to_offset:
            break
        for row in _batch_rows(found, transactions.faults):
            if row["what"] != "record":
                yield row
            elif wanted.has(row["offset"]):
                transaction = None if row["control"] else belongs.of(row["offset"])
                yield from _marked(row, transaction, wanted)
    if not wanted.types:
        yield from (one.row() for one in transactions.found if one.end is None and wanted.touches(one))


def _marked(row: Row, transaction: MetadataTransaction | None, wanted: MetadataFilter) -> Iterator[Row]:
    if not wanted.types or row["type"] in wanted.types:
        names: Row = {"transaction": None, "state": None}
        if transaction is not None:
            names = {"transaction": transaction.begin, "state": transaction.outcome.value}
        value = row.pop("value")
        yield row | names | {"value": value}
    if transaction is not None and transaction.end == row["offset"] and not wanted.types:
        yield transaction.row()


class _Belonging:
    """Which transaction an offset is in; to be asked with growing offsets."""

    def __init__(self, transactions: list[MetadataTransaction]) -> None:
        self._left = iter(transactions)
        self._next = next(self._left, None)

    def of(self, offset: int) -> MetadataTransaction | None:
        while self._next is not None and self._next.end is not None and self._next.end < offset:
            self._next = next(self._left, None)
        found = self._next
        return found if found is not None and (found.begin is None or found.begin <= offset) else None


def _batch_rows(located: Located, faults: Mapping[int, str]) -> Iterator[Row]:
    batch = located.batch
    try:
        for record in records_of(batch):
            try:
                row = _record(batch, record)
            except UndecodedRecord as error:
                yield problem_row(located.problem(f"the record at offset {record.offset}: {error}"))
                continue
            yield row
            if record.offset in faults:
                yield problem_row(located.problem(faults[record.offset]))
    except InvalidRecord as error:
        yield problem_row(located.problem(f"the batch at offset {batch.header.base_offset}: {error}"))


def _record(batch: DumpedBatch, record: Record) -> Row:
    is_control = batch.header.is_control
    value = control_row(record, MOST_BYTES) if is_control else log_decoders.metadata(record, MOST_BYTES)[1]
    return {
        "what": "record", "offset": record.offset, "epoch": batch.header.leader_epoch, "timestamp": record.timestamp,
        "control": is_control, "type": value.pop("type"), "value": value,
    }  # fmt: skip


# -- for people

HEADING = f"{'OFFSET':>8} {'EPOCH':>6}   {'TYPE':<24} WHAT IT SAYS"
_MARKS = {"committed": "|", "aborted": "x", "open": "?"}


class Lines:
    """Rows as lines; beside each record is a mark that tells what became of its transaction."""

    def __init__(self, transactions: MetadataTransactions) -> None:
        self._begun = {one.begin: one for one in transactions.found}

    def line(self, row: Row) -> str | None:
        """None for a row that adds nothing to the lines before it."""
        if row["what"] == "record":
            mark, says = self._mark(row), value_text(row["value"])
            if row["type"] == "BeginTransaction" and row["offset"] in self._begun:
                says = f"{says} -> {self._begun[row['offset']].says()}"
            return f"{row['offset']:>8} {row['epoch']:>6} {mark} {row['type']:<24} {says}".rstrip()
        if row["what"] == "transaction":
            if row["state"] != MetadataFate.OPEN.value:
                return None
            name = "" if row["name"] is None else f" {value_text(row['name'])}"
            return f"OPEN: the transaction{name} begun at {row['begin']}, {_count(row['records'])} so far, not in force"
        return text_line(row)

    def _mark(self, row: Row) -> str:
        if row["state"] is None:
            return " "
        if row["type"] in _ENDS:
            return "/" if row["type"] == _ENDS[0] else "\\"
        return _MARKS[row["state"]]
