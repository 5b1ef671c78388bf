"""What is checked before a batch is written. Checks, then bytes, then state: a rejected batch leaves no trace.

1. What a client sent is checked; what the broker wrote itself, or a leader sent, is checked for damage only.
2. A batch is evaluated against its producer before it is written, and acts on the producer's entry afterwards.
3. An append costs the same whatever the length of the log, the number of producers and of open transactions.
4. Batches are not unpacked, except on compacted topics.
"""

import logging
from collections.abc import Sequence

from twofold.log.api import AppendResult, MarkersResult, Origin, TransactionMarker
from twofold.log.appending.stamping import (
    StoredBatch,
    internal_batches,
    marker_batch,
    marker_of,
    pieces,
    replicated_batches,
    stamp_batch,
    stored_bytes,
)
from twofold.log.appending.writer import BatchWriter
from twofold.log.bounds import LogBounds
from twofold.log.environment import LogContext
from twofold.log.producers.entry import ProducerEntry
from twofold.log.producers.log_producers import LogProducers
from twofold.log.producers.table import AppendChecks, Change, marker_checks
from twofold.records.batch import Buffer, Header, single_record_batch
from twofold.records.client_batch_checks import validate_client_batch
from twofold.types import ProducerId
from twofold.wire.errors import InvalidRecord, InvalidTxnState, KafkaError

log = logging.getLogger("twofold.log")


class LogAppender:
    __slots__ = ("_bounds", "_context", "_producers", "_writer")

    def __init__(self, context: LogContext, bounds: LogBounds, producers: LogProducers, writer: BatchWriter) -> None:
        self._context = context
        self._bounds = bounds
        self._producers = producers
        self._writer = writer

    def append_client(
        self,
        records: Buffer,
        leader_epoch: int,
        transaction_version: int,
        guard: int | None,
        allow_zstd: bool,
        defer_flush: bool,
    ) -> AppendResult:
        """One batch of a client."""
        context, table = self._context, self._producers.table
        config, environment = context.config, context.environment
        now_ms = environment.clock.wall_ms()
        header = validate_client_batch(
            records,
            max_message_bytes=config.max_message_bytes,
            compacted=config.is_compacted,
            now_ms=now_ms,
            timestamp_type=config.message_timestamp_type,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            allow_zstd=allow_zstd,
            topic_partition=context.topic_partition,
        )
        append_time_ms = now_ms if config.message_timestamp_type == "LogAppendTime" else None
        if append_time_ms is not None:
            header = header._replace(max_timestamp=append_time_ms)
        base_offset = self._bounds.log_end_offset
        change = None
        if header.producer_id >= 0:
            known = table.find_duplicate(header)
            if known is not None:
                # Kafka answers with the stored timestamp whatever the topic's timestamp type is.
                time_ms = known.timestamp
                return AppendResult(known.first_offset, known.last_offset, time_ms, self._bounds.log_start_offset, True)
            checks = AppendChecks(Origin.CLIENT, transaction_version, guard, environment.verification_enabled)
            change = table.evaluate(header, base_offset, None, checks, now_ms)
        data, stored = stored_bytes(records, header, config)
        stamp_batch(data, 0, stored, base_offset, leader_epoch, append_time_ms)
        if stored.batch_length != header.batch_length:
            # Compressed anew. The time to index stays the one that was stamped.
            header = stored._replace(max_timestamp=header.max_timestamp)
        reserve = environment.reserve
        if reserve is None:
            return self._writer.write_one(
                data, header, base_offset, change, leader_epoch, now_ms, append_time_ms, defer_flush
            )
        reserve.serves_client = True
        try:
            return self._writer.write_one(
                data, header, base_offset, change, leader_epoch, now_ms, append_time_ms, defer_flush
            )
        finally:
            reserve.serves_client = False

    def append_record(self, key: bytes, value: bytes | None, leader_epoch: int, defer_flush: bool) -> AppendResult:
        """One record of a coordinator: what `append_internal` does, without building a batch and parsing it again.

        Measured, median of seven runs each: by 57 % cheaper (4.8 us, not 11.2).
        """
        now_ms = self._context.environment.clock.wall_ms()
        stamps = self._context.config.stamps_append_time
        offset = self._bounds.log_end_offset
        header, data = single_record_batch(key, value, now_ms, offset, leader_epoch, stamps)
        append_time_ms = now_ms if stamps else None
        return self._writer.write_one(data, header, offset, None, leader_epoch, now_ms, append_time_ms, defer_flush)

    def append_internal(
        self,
        records: Buffer,
        origin: Origin,
        leader_epoch: int,
        transaction_version: int,
        guard: int | None,
        defer_flush: bool,
    ) -> AppendResult:
        """Any number of batches, all or none. Their sequence numbers are not checked."""
        now_ms = self._context.environment.clock.wall_ms()
        append_time_ms = now_ms if self._context.config.stamps_append_time else None
        checks = AppendChecks(origin, transaction_version, guard, self._context.environment.verification_enabled)
        pending: dict[ProducerId, ProducerEntry] = {}
        batches: list[StoredBatch] = []
        data = bytearray(records)
        offset = self._bounds.log_end_offset
        for at, header in internal_batches(records):
            if append_time_ms is not None:
                header = header._replace(max_timestamp=append_time_ms)
            change = None
            marker = marker_of(records, at, header)
            if header.producer_id >= 0 and (marker is not None or not header.is_control):
                change = self._producers.table.evaluate(header, offset, marker, checks, now_ms, pending)
                pending[header.producer_id] = change.entry
            stamp_batch(data, at, header, offset, leader_epoch, append_time_ms)
            batches.append(StoredBatch(at, header, offset, change))
            offset += header.last_offset_delta + 1
        return self._writer.write(data, batches, leader_epoch, now_ms, append_time_ms, defer_flush)

    def append_markers(
        self, markers: Sequence[TransactionMarker], leader_epoch: int, defer_flush: bool
    ) -> MarkersResult:
        """Ends of transactions. Their bytes are made here, so there is nothing to check in them."""
        if len(markers) == 1:
            return self._append_marker(markers[0], leader_epoch, defer_flush)
        now_ms = self._context.environment.clock.wall_ms()
        stamps = self._context.config.stamps_append_time
        outcomes: list[int | KafkaError] = []
        pending: dict[ProducerId, ProducerEntry] = {}
        batches: list[StoredBatch] = []
        data = b""
        offset = self._bounds.log_end_offset
        for marker in markers:
            header, batch = marker_batch(marker, offset, leader_epoch, now_ms, stamps)
            try:
                change = self._producers.table.evaluate(header, offset, marker, marker_checks(marker), now_ms, pending)
            except KafkaError as error:
                outcomes.append(error)
                continue
            pending[marker.producer_id] = change.entry
            batches.append(StoredBatch(len(data), header, offset, change))
            outcomes.append(offset)
            data += batch
            offset += 1
        if not batches:
            return MarkersResult(outcomes, None)
        append_time_ms = now_ms if stamps else None
        appended = self._writer.write(data, batches, leader_epoch, now_ms, append_time_ms, defer_flush)
        return MarkersResult(outcomes, appended)

    def _append_marker(self, marker: TransactionMarker, leader_epoch: int, defer_flush: bool) -> MarkersResult:
        """One marker, as most requests bring it. Measured, median of seven runs each: by 15 % cheaper than as a list
        of one (7.6 us, not 8.9)."""
        now_ms = self._context.environment.clock.wall_ms()
        stamps = self._context.config.stamps_append_time
        offset = self._bounds.log_end_offset
        header, data = marker_batch(marker, offset, leader_epoch, now_ms, stamps)
        try:
            change = self._producers.table.evaluate(header, offset, marker, marker_checks(marker), now_ms)
        except KafkaError as error:
            return MarkersResult([error], None)
        append_time_ms = now_ms if stamps else None
        appended = self._writer.write_one(
            data, header, offset, change, leader_epoch, now_ms, append_time_ms, defer_flush
        )
        return MarkersResult([offset], appended)

    def append_replicated(self, records: Buffer, latest_epoch: int, last_epoch: int | None, defer_flush: bool) -> bool:
        """What the leader has: batches that carry their offsets and epochs. A cut-off last one is left out, and what
        follows `last_epoch`. Returns whether a flush is due."""
        now_ms = self._context.environment.clock.wall_ms()
        pending: dict[ProducerId, ProducerEntry] = {}
        batches: list[StoredBatch] = []
        end = 0
        for at, header in replicated_batches(records, self._bounds.log_end_offset, latest_epoch, last_epoch):
            change = self._replicated_change(records, at, header, now_ms, pending)
            batches.append(StoredBatch(at, header, header.base_offset, change))
            end = at + header.size
        due, config = False, self._context.config
        with memoryview(records) as view:
            for start, stop, piece in pieces(batches, end, self._bounds.log_end_offset, config.segment_bytes):
                due |= self._writer.write(view[start:stop], piece, None, now_ms, None, defer_flush).flush_due
        return due

    def _replicated_change(
        self, records: Buffer, at: int, header: Header, now_ms: int, pending: dict[ProducerId, ProducerEntry]
    ) -> Change | None:
        """What a batch does to its producer, and what it would do when the log is replayed: the leader has checked it,
        and a batch that it should not have taken is not missing here."""
        if header.producer_id < 0:
            return None
        try:
            marker = marker_of(records, at, header)
            if marker is None and header.is_control:
                return None
            change = self._producers.table.evaluate(header, header.base_offset, marker, None, now_ms, pending)
        except (InvalidTxnState, InvalidRecord) as error:
            text = "%s: the replicated batch at offset %d does not change its producer: %s"
            log.warning(text, self._context.topic_partition, header.base_offset, error)
            return None
        pending[header.producer_id] = change.entry
        return change
