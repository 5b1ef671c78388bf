"""What must hold at the end of topics that do not keep everything: trimmed, compacted, deleted and made again.

1. Retention takes whole beginnings: from the first record that is left on, all are there, as they were appended.
2. The cleaner takes what has a newer record with its key: the newest committed record of every key is there.
3. Neither changes what it leaves, nor moves it to another offset.
4. A topic that was made again under its name holds what was written since, by transactions that are over; each of their
   records there has the fate of its transaction.
"""

from collections.abc import Iterable, Mapping

from sim.broker.watch import require
from sim.transactions.check import Logs, not_mixed, nothing_is_open
from sim.transactions.history import TABLE, History, Outcome, Write, decode_value
from sim.transactions.log import Fate, LogTruth
from twofold.records.batch import iter_headers, iter_records


def check_trimmed(truth: LogTruth, batches: Iterable[bytes]) -> int:
    """Compare the files with what was appended; how many records are gone."""
    found: dict[int, bytes] = {}
    for batch in batches:
        for position, header in iter_headers(batch):
            if not header.is_control:
                found.update((record.offset, record.value or b"") for record in iter_records(batch, position))
    tp = truth.topic_partition
    for offset, value in found.items():
        entry = truth.entries.get(offset)
        require(
            entry is not None and entry.value == value,
            f"{tp}@{offset} holds {value!r}, and {entry and entry.value!r} was appended there",
        )
    gone = [offset for offset in truth.entries if offset not in found]
    if tp.topic == TABLE:
        _newest_are_left(truth, found)
    else:
        late = [offset for offset in gone if offset > min(found, default=truth.end)]
        require(not late, f"{tp}: {late[:5]} are gone, and older ones are there")
    return len(gone)


def _newest_are_left(truth: LogTruth, found: Mapping[int, bytes]) -> None:
    tp = truth.topic_partition
    newest: dict[bytes | None, int] = {}
    for entry in truth.committed():
        key = Write(tp, entry.value).key
        newest[key] = max(entry.offset, newest.get(key, -1))
    lost = {key: offset for key, offset in newest.items() if offset not in found}
    require(not lost, f"{tp}: the newest records of some keys are gone: {lost}")


def check_deleted(history: History, logs: Logs, written: Mapping[str, list[bytes]]) -> None:
    nothing_is_open(logs)
    not_mixed(history, logs)
    known = history.by_label()
    seen: set[bytes] = set()
    for tp, log in logs.items():
        for entry in log.entries.values():
            label = decode_value(entry.value).label
            where = f"{tp}@{entry.offset}"
            require(entry.value in written.get(label, ()), f"{where}: nobody wrote {entry.value!r}")
            require(entry.value not in seen, f"{where}: {entry.value!r} is there twice")
            seen.add(entry.value)
            outcome = known[label].outcome
            if outcome is not Outcome.UNKNOWN:
                is_committed = entry.block.fate is Fate.COMMITTED
                require(
                    is_committed == (outcome is Outcome.COMMITTED),
                    f"torn: {entry.value!r} at {where} is {entry.block.fate.value}, and {label} is {outcome.value}",
                )
