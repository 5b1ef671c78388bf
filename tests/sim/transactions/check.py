"""What must hold of a whole run: what clients were told and saw, against what the logs say at the end.

One function for each way in which transactions are known to go wrong (names as in the literature):

    nothing_is_open      stuck: a transaction that nobody ends holds the readers back for ever
    not_mixed            zombie produce: records of a transaction that is over join the next one
    all_or_nothing       lost write, torn transaction, commit of what was aborted
    at_most_once         duplicate
    in_order             non-monotonic send
    acknowledged_stays   an offset that was told holds something else, aborted data is hidden
    readers_see_committed  aborted read (G1a), intermediate read (G1b), pre-committed read, skipped or repeated poll
    offsets_follow       offsets visible although aborted, or not although committed
    copied_once          a copier that reads, writes and commits offsets in one transaction does so exactly once

Two that are no violations: writes of two transactions may interleave in a partition (G0), and a reader may see one
partition of a transaction before another. Circular flow of information (G1c) is in `sim_txn_cycles`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sim.broker.watch import require
from sim.transactions.history import History, Outcome, Reading, Txn, at, decode_value
from sim.transactions.log import Entry, Fate, LogTruth
from twofold.types import TopicPartition

Logs = Mapping[TopicPartition, LogTruth]
Found = Mapping[str, list[tuple[TopicPartition, Entry]]]


def check_logs(history: History, logs: Logs) -> None:
    """All but the readers and the copiers."""
    nothing_is_open(logs)
    not_mixed(history, logs)
    all_or_nothing(history, logs)
    at_most_once(logs)
    in_order(logs)
    acknowledged_stays(history, logs)


def by_label(logs: Logs) -> Found:
    found: dict[str, list[tuple[TopicPartition, Entry]]] = defaultdict(list)
    for tp, log in logs.items():
        for entry in log.entries.values():
            found[decode_value(entry.value).label].append((tp, entry))
    return found


def nothing_is_open(logs: Logs) -> None:
    for tp, log in logs.items():
        for block in log.open_blocks:
            owner = decode_value(log.entries[block.first_offset].value).label
            require(False, f"{tp}: the transaction {owner} from offset {block.first_offset} on is still open")


def not_mixed(history: History, logs: Logs) -> None:
    known = history.by_label()
    for tp, log in logs.items():
        for block in log.blocks:
            labels = list(dict.fromkeys(decode_value(log.entries[offset].value).label for offset in block.offsets))
            where = f"{tp}@{block.first_offset}"
            require(len(labels) == 1 or block.fate is Fate.PLAIN, f"{where}: one transaction with records of {labels}")
            require(len(block.epochs) == 1, f"{where}: one transaction with the epochs {block.epochs}")
            txn = known.get(labels[0])
            require(txn is not None, f"{where}: nobody knows the transaction {labels[0]}")
            assert txn is not None
            identity = (block.producer_id, block.epochs[0])
            require(
                identity == txn.identity or block.fate is Fate.PLAIN,
                f"{where}: {txn.label} was {txn.identity} and wrote as {identity}",
            )


def all_or_nothing(history: History, logs: Logs) -> None:
    found = by_label(logs)
    for txn in history.txns:
        entries = found.get(txn.label, [])
        fates = {entry.block.fate for _, entry in entries}
        committed = {entry.value for _, entry in entries if entry.block.fate is Fate.COMMITTED}
        missing = [write for write in txn.writes if write.value not in committed]
        if txn.outcome is Outcome.COMMITTED:
            require(not missing, f"lost: {txn.label} was committed and {show(missing, txn)} is not there")
        if txn.outcome is Outcome.ABORTED:
            require(not committed, f"{txn.label} was not committed, and {sorted(committed)} is")
        require(not (committed and missing), f"torn: of {txn.label} {sorted(committed)} is committed, not {missing}")
        require(
            not committed or fates == {Fate.COMMITTED},
            f"torn: {txn.label} ended as {sorted(fate.value for fate in fates)}",
        )


def show(missing: Sequence[object], txn: Txn) -> str:
    return f"{len(missing)} of {len(txn.writes)} records"


def at_most_once(logs: Logs) -> None:
    seen: dict[bytes, str] = {}
    for tp, log in logs.items():
        for entry in log.entries.values():
            here = at(tp, entry.offset)
            other = seen.setdefault(entry.value, here)
            require(other == here, f"duplicate: {entry.value!r} is at {other} and at {here}")


def in_order(logs: Logs) -> None:
    """An instance makes one transaction after the other, and its records in their order."""
    for tp, log in logs.items():
        last: dict[str, tuple[int, int]] = {}
        for entry in log.entries.values():
            value = decode_value(entry.value)
            instance, _, number = value.label.rpartition(".")
            mine = (int(number), value.number)
            before = last.get(instance, (-1, -1))
            require(mine > before, f"{tp}: {instance} wrote {mine} at {entry.offset}, after {before}")
            last[instance] = mine


def acknowledged_stays(history: History, logs: Logs) -> None:
    """Whatever became of the transaction: readers of uncommitted data find what was acknowledged where it was told."""
    for txn in history.txns:
        for write in txn.writes:
            if write.offset is None or write.offset < 0:
                continue
            entry = logs[write.topic_partition].entries.get(write.offset)
            require(
                entry is not None and entry.value == write.value,
                f"{write.value!r} was acknowledged at {at(write.topic_partition, write.offset)}, where {entry} is",
            )


# Readers


def readers_see_committed(history: History, logs: Logs) -> None:
    known = history.by_label()
    for reading in history.readings:
        _polls_are_monotone(reading)
        if reading.committed:
            _sees_only_committed(reading, logs, known)
        _skips_nothing(reading, logs)


def _polls_are_monotone(reading: Reading) -> None:
    last: dict[TopicPartition, int] = {}
    for row in reading.polled:
        before = last.get(row.topic_partition, -1)
        require(row.offset > before, f"{reading.name}: {at(row.topic_partition, row.offset)} was polled after {before}")
        last[row.topic_partition] = row.offset


def _sees_only_committed(reading: Reading, logs: Logs, known: Mapping[str, Txn]) -> None:
    for row in reading.polled:
        where = at(row.topic_partition, row.offset)
        require(
            row.offset < row.last_stable_offset,
            f"{reading.name} got {where} with a last stable offset of {row.last_stable_offset}",
        )
        txn = known.get(decode_value(row.value).label)
        require(txn is not None, f"{reading.name} read {row.value!r} at {where}, which nobody wrote")
        assert txn is not None
        require(txn.outcome is not Outcome.ABORTED, f"aborted read: {reading.name} saw {row.value!r} at {where}")
        assert txn.commit_sent_s is not None
        require(
            txn.commit_sent_s <= row.time_s,
            f"pre-committed read: {reading.name} saw {row.value!r} at {where} before its commit was asked for",
        )
        entry = logs[row.topic_partition].entries.get(row.offset)
        if entry is None or entry.block.marker is None:
            continue  # said elsewhere: what it read is not there, or is open
        require(entry.block.fate is Fate.COMMITTED, f"aborted read: {reading.name} saw {row.value!r} at {where}")
        # Not the last stable offset: that may lie between the record and the marker, where another transaction begins.
        require(
            entry.block.marker.offset < row.high_watermark,
            f"intermediate read: {reading.name} saw {where} with a high watermark of {row.high_watermark}, and the "
            f"transaction ends at {entry.block.marker.offset}",
        )


def _skips_nothing(reading: Reading, logs: Logs) -> None:
    """Everything of its isolation level below its position, and no more."""
    seen: dict[TopicPartition, list[tuple[int, bytes]]] = defaultdict(list)
    for row in reading.polled:
        seen[row.topic_partition].append((row.offset, row.value))
    for tp, position in reading.positions.items():
        log = logs[tp]
        entries: Iterator[Entry] = log.committed() if reading.committed else iter(log.entries.values())
        expected = [(entry.offset, entry.value) for entry in entries if entry.offset < position]
        if seen[tp] != expected:
            strange = sorted(set(seen[tp]) ^ set(expected))
            require(False, f"{reading.name} read {len(seen[tp])} of {len(expected)} records of {tp}: {strange[:3]}")


def reached_the_end(reading: Reading, logs: Logs) -> None:
    for tp, log in logs.items():
        position = reading.positions.get(tp, 0)
        require(position == log.end, f"{reading.name} stopped at {position} of {tp}, which ends at {log.end}")


# Offsets


def offsets_follow(history: History, logs: Logs) -> None:
    """Offsets that were committed in a transaction are seen if and only if it was.

    Within a group the numbers grow from one transaction to the next, whoever makes it.
    """
    written: dict[tuple[str, TopicPartition, int], list[Txn]] = defaultdict(list)
    for txn in history.txns:
        for tp, offset in txn.offsets.items():
            written[txn.group, tp, offset].append(txn)
    _offsets_are_of_committed(history, written)
    _offsets_do_not_go_back(history, written)
    _last_offsets(history, logs, written)


Written = Mapping[tuple[str, TopicPartition, int], list[Txn]]


def _offsets_are_of_committed(history: History, written: Written) -> None:
    for row in history.offset_reads:
        if row.offset < 0:
            continue
        txns = written.get((row.group, row.topic_partition, row.offset), [])
        labels = [txn.label for txn in txns]
        require(txns, f"{row}: nobody committed that")
        sent = [txn.commit_sent_s for txn in txns if txn.outcome is not Outcome.ABORTED]
        require(sent, f"aborted read: {row} is of {labels}")
        require(
            any(time_s is not None and time_s <= row.told_s for time_s in sent),
            f"pre-committed read: {row} is of {labels}",
        )


def _offsets_do_not_go_back(history: History, written: Written) -> None:
    """Who asks for stable offsets sees every transaction that was committed before."""
    ends: dict[tuple[str, TopicPartition], list[tuple[float, int]]] = defaultdict(list)
    for (group, tp, offset), txns in written.items():
        for txn in txns:
            if txn.told is Outcome.COMMITTED and txn.ended_s is not None:
                ends[group, tp].append((txn.ended_s, offset))
    for row in history.offset_reads:
        ends[row.group, row.topic_partition].append((row.told_s, row.offset))
    for row in history.offset_reads:
        known = ends[row.group, row.topic_partition]
        if not row.stable:
            known = [(row.told_s, row.offset)]
        least = max((offset for time_s, offset in known if time_s < row.asked_s), default=-1)
        require(row.offset >= least, f"lost: {row}, and {least} was committed before")


def _last_offsets(history: History, logs: Logs, written: Written) -> None:
    """In the end the group has the offsets of the last transaction that is committed, by its records if it has any."""
    committed = {label for label, entries in by_label(logs).items() if entries[0][1].block.fate is Fate.COMMITTED}
    expected: dict[tuple[str, TopicPartition], int] = {}
    open_to_doubt: dict[tuple[str, TopicPartition], set[int]] = defaultdict(set)
    for (group, tp, offset), txns in written.items():
        for txn in txns:
            if txn.label in committed or txn.outcome is Outcome.COMMITTED:
                expected[group, tp] = max(offset, expected.get((group, tp), -1))
            elif not txn.writes and txn.outcome is Outcome.UNKNOWN:
                open_to_doubt[group, tp].add(offset)
    final = {(row.group, row.topic_partition): row.offset for row in history.offset_reads}
    for key, offset in final.items():
        least = expected.get(key, -1)
        fits = offset == least or (offset > least and offset in open_to_doubt[key])
        require(fits, f"torn: the group has {offset} for {key}, the records say {least}")


# Copiers


def copied_once(logs: Logs, inputs: Mapping[str, str], max_hops: int) -> None:
    """`inputs`: topic -> the topic that its records are copied to, while they have made fewer than `max_hops` hops."""
    copies: dict[str, list[str]] = defaultdict(list)
    for tp, log in logs.items():
        for entry in log.committed():
            value = decode_value(entry.value)
            if value.source:
                copies[value.source].append(at(tp, entry.offset))
    originals: set[str] = set()
    for tp, log in logs.items():
        target = inputs.get(tp.topic)
        for entry in log.committed():
            here = at(tp, entry.offset)
            originals.add(here)
            expected = 1 if target is not None and decode_value(entry.value).hops < max_hops else 0
            found = copies.get(here, [])
            require(len(found) == expected, f"{here} was copied {len(found)} times, not {expected}: {found}")
            require(all(where.startswith(f"{target}-") for where in found), f"{here} was copied to {found}")
    strange = [source for source in copies if source not in originals]
    require(not strange, f"copies of what is not committed: {strange}")
