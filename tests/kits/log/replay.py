"""The slow and simple truth about a log: derive everything from its batches in one pass, and compare."""

from itertools import pairwise

from twofold.log.indexes.txn_index import AbortedEntry
from twofold.log.log import PartitionLog
from twofold.log.producers.replay import replay_batch
from twofold.log.producers.snapshots import decode_snapshot
from twofold.log.producers.table import ProducerTable
from twofold.log.segments.segment import Segment
from twofold.records.batch import Header, crc_is_valid, iter_headers, read_header
from twofold.runtime.files import read_file
from twofold.types import NO_TIMESTAMP


def stored_batches(log: PartitionLog) -> list[bytes]:
    """Every batch in the files, checked; nothing else may be in them."""
    log.ensure_open()
    found: list[bytes] = []
    for segment in log._segments.all:
        data = read_file(log._context.environment.disk, segment.log_path)
        end = 0
        for position, header in iter_headers(data):
            assert crc_is_valid(data, position, header)
            assert header.base_offset >= segment.base_offset
            end = position + header.size
            found.append(data[position:end])
        assert end == len(data) == segment.size, "a torn batch was left"
    return found


class Truth:
    """What follows from a history of batches that starts with the first one ever appended."""

    def __init__(self, history: list[bytes]) -> None:
        self.table = ProducerTable()
        self.epochs: list[tuple[int, int]] = []
        self.aborted: list[AbortedEntry] = []
        for batch in history:
            header = read_header(batch)
            if not self.epochs or header.leader_epoch > self.epochs[-1][0]:
                self.epochs.append((header.leader_epoch, header.base_offset))
            if header.producer_id >= 0 and (entry := replay_batch(self.table, header, batch, 0)) is not None:
                self.aborted.append(entry)


def assert_derived_state_is_a_replay(log: PartitionLog, history: list[bytes]) -> None:
    """`history` ends where the log ends; the log may start later than it."""
    truth = Truth(history)
    log.advance_high_watermark(log.log_end_offset)
    for segment in log._segments.all:
        assert_indexes(log, segment)
    assert_aborted(log, truth.aborted)
    assert_producers(log, truth.table)
    assert_snapshots(log, history)
    assert_epochs(log, truth.epochs)


def assert_indexes(log: PartitionLog, segment: Segment) -> None:
    """Every entry is true, and there are as many as the interval asks for."""
    by_position = assert_entries(log, segment)
    biggest = max((header.size for header in by_position.values()), default=0)
    edges = [0, *segment.offset_index._positions, segment.size]
    assert all(b - a <= log.config.index_interval_bytes + 2 * biggest for a, b in pairwise(edges))


def assert_entries(log: PartitionLog, segment: Segment) -> dict[int, Header]:
    """Every entry is true, however few there are; returns the batches."""
    data = read_file(log._context.environment.disk, segment.log_path)
    by_position = dict(iter_headers(data))
    for relative, position in zip(segment.offset_index._offsets, segment.offset_index._positions, strict=True):
        assert by_position[position].last_offset == segment.base_offset + relative
    assert_times(segment, list(by_position.values()))
    return by_position


def assert_times(segment: Segment, batches: list[Header]) -> None:
    data = [header for header in batches if not header.is_control and header.count]
    times = segment.time_index
    for timestamp, relative in zip(times._timestamps, times._offsets, strict=True):
        upto = [header for header in data if header.last_offset <= segment.base_offset + relative]
        assert upto[-1].last_offset == segment.base_offset + relative
        assert upto[-1].max_timestamp == timestamp
        assert all(header.max_timestamp < timestamp for header in upto[:-1])
    assert segment.max_timestamp[0] == max((header.max_timestamp for header in data), default=-1)


def assert_aborted(log: PartitionLog, aborted: list[AbortedEntry]) -> None:
    found = {segment.base_offset: list(segment.txn_index.entries()) for segment in log._segments.all}
    start = log._segments.bases[0] if log._segments.bases else log.log_end_offset
    assert [entry for entries in found.values() for entry in entries] == [
        entry for entry in aborted if entry.last_offset >= start
    ]
    assert log._aborted.bases == [base for base, entries in found.items() if entries]


def assert_producers(log: PartitionLog, table: ProducerTable) -> None:
    """The same entries; but of a window that went through a snapshot only the newest batch is left."""
    found = log._producers.table.entries
    assert found.keys() == table.entries.keys()
    for pid, entry in table.entries.items():
        window = found[pid].window
        assert entry.window[len(entry.window) - len(window) :] == window
        assert bool(window) == bool(entry.window)
        assert found[pid].appended_ms != NO_TIMESTAMP, "nobody would know when to forget it"
        assert found[pid]._replace(window=(), appended_ms=NO_TIMESTAMP) == entry._replace(window=())
    unstable = min(
        (entry.txn_first_offset for entry in table.entries.values() if entry.txn_first_offset >= 0), default=-1
    )
    opened = [one[:3] for one in log._producers.table.open_transactions()]
    assert opened == [one[:3] for one in table.open_transactions()]
    assert all(one.since_ms != NO_TIMESTAMP for one in log._producers.table.open_transactions())
    end = log.log_end_offset
    assert log.last_stable_offset == (end if unstable < 0 else max(unstable, log.log_start_offset))


def assert_snapshots(log: PartitionLog, history: list[bytes]) -> None:
    """Each snapshot that is left can be read, and says what the batches before it say."""
    for offset in log._producers.snapshots.offsets():
        found = decode_snapshot(read_file(log._context.environment.disk, log._producers.snapshots.path(offset)))
        table = Truth([batch for batch in history if read_header(batch).base_offset < offset]).table
        assert found == [entry._replace(window=entry.window[-1:]) for entry in table.entries.values()]


def assert_epochs(log: PartitionLog, epochs: list[tuple[int, int]]) -> None:
    """Epochs that hold records of the log, the first of them cut at the log start."""
    start, end = log.log_start_offset, log.log_end_offset
    ends = [begin for _, begin in epochs[1:]] + [end] * bool(epochs)
    held = [(epoch, max(begin, start)) for (epoch, begin), after in zip(epochs, ends, strict=True) if after > start]
    found = [entry for entry in log._epochs.entries() if entry[1] < end]
    # The checkpoint may lag behind the log start: it is cut again when the start moves.
    found = [
        (epoch, max(begin, start)) for (epoch, begin), (_, after) in pairwise([*found, (-1, end)]) if after > start
    ]
    assert found == held
