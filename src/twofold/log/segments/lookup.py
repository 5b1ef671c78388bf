"""Finding records by time. Control batches are skipped; only the batch that holds the answer is unpacked."""

from twofold.log.api import TimestampOffset
from twofold.log.segments.segment import Segment
from twofold.records.batch import Header, iter_records
from twofold.types import NO_TIMESTAMP


def find_timestamp(segments: list[Segment], timestamp: int, log_start_offset: int) -> TimestampOffset | None:
    """The first record with this timestamp or a later one."""
    for segment in segments:
        if segment.max_timestamp[0] < timestamp:
            continue
        start = max(segment.time_index.lookup(timestamp), log_start_offset)
        for position, header in segment.headers(segment.position_of(start)):
            if header.max_timestamp < timestamp or header.is_control or header.last_offset < log_start_offset:
                continue
            found = _first_record(segment, position, header, timestamp, log_start_offset)
            if found is not None:
                return found
    return None


def _first_record(
    segment: Segment, position: int, header: Header, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    batch = segment.read(position, position + header.size)
    for record in iter_records(batch):
        if record.timestamp >= timestamp and record.offset >= log_start_offset:
            return TimestampOffset(record.offset, record.timestamp, header.leader_epoch)
    return None


def find_max_timestamp(segments: list[Segment]) -> TimestampOffset | None:
    """The first record that has the greatest timestamp of all."""
    newest = max(segments, key=lambda segment: segment.max_timestamp[0], default=None)
    if newest is None:
        return None
    timestamp, last_offset = newest.max_timestamp
    if timestamp == NO_TIMESTAMP:
        return _first_of_all(segments)
    for position, header in newest.headers(newest.position_of(last_offset)):
        if header.max_timestamp == timestamp and not header.is_control and header.count:
            return _first_record(newest, position, header, timestamp, 0)
    return _by_walking(segments)


def _first_of_all(segments: list[Segment]) -> TimestampOffset | None:
    """The first record of all, where no record has a timestamp."""
    for segment in segments:
        for position, header in segment.headers():
            if not header.is_control and header.count:
                return _first_record(segment, position, header, NO_TIMESTAMP, 0)
    return None


def _by_walking(segments: list[Segment]) -> TimestampOffset | None:
    """For time indexes of a broker that counts control batches: there the greatest time is not that of a record."""
    best: tuple[int, Segment, int, Header] | None = None
    for segment in segments:
        for position, header in segment.headers():
            if not header.is_control and header.count and (best is None or header.max_timestamp > best[0]):
                best = (header.max_timestamp, segment, position, header)
    if best is None:
        return None
    timestamp, segment, position, header = best
    return _first_record(segment, position, header, timestamp, 0)
