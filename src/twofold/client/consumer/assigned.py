"""One assigned partition: where it stands, and its fetched bytes as records."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from twofold.client.config import ConsumerConfig, Deserializer
from twofold.client.consumer.offsets import OffsetSpec
from twofold.client.errors import DeserializationFailed
from twofold.records.batch import (
    HEADER_SIZE,
    Header,
    RecordHeader,
    crc_is_valid,
    parse_framed,
    records_section,
)
from twofold.records.compression import Codec
from twofold.records.filtering import visible_batches
from twofold.types import TopicPartition
from twofold.wire.errors import CorruptMessage, KafkaError, RecordListTooLarge
from twofold.wire.messages.fetch import PartitionData

MAX_UNREAD_ANSWERS = 2
NO_EPOCH = -1
NO_BROKER = -1


class ConsumerRecord(NamedTuple):
    """Key and value are bytes or None, or what the deserializers made of the bytes."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: tuple[RecordHeader, ...]
    leader_epoch: int


class Answer:
    """Fetched bytes of one partition, read record by record. `ready` has records that were read already and are to be
    handed out before others."""

    __slots__ = ("_damage", "_records", "next_epoch", "next_offset", "ready")

    def __init__(self, tp: TopicPartition, start: int, data: PartitionData, config: ConsumerConfig) -> None:
        records = bytes(data.records or b"")
        aborted = None
        if config.isolation:
            aborted = [(entry.first_offset, entry.producer_id) for entry in data.aborted_transactions or ()]
        self.next_offset = start
        self.next_epoch = -1
        self.ready: deque[ConsumerRecord] = deque()
        self._damage: KafkaError | None = None
        batches = list(visible_batches(records, aborted))
        if batches:
            self.next_offset = max(start, batches[-1][1].next_offset)
            self.next_epoch = batches[-1][1].leader_epoch
        elif records:
            raise RecordListTooLarge(
                f"the batch at offset {start} of {tp} is larger than max_partition_fetch_bytes: raise it"
            )
        self._records = _records(tp, start, records, batches, config.check_crcs)
        if config.key_deserializer is not None or config.value_deserializer is not None:
            self._records = _deserialized(self._records, config.key_deserializer, config.value_deserializer)

    def take(self, count: int) -> tuple[list[ConsumerRecord], bool]:
        """Up to `count` records, and whether that was all. Damage is raised after the records before it were taken."""
        ready = self.ready
        taken = [ready.popleft() for _ in range(min(count, len(ready)))]
        if self._damage is not None:
            if not taken:
                raise self._damage
            return taken, False
        try:
            taken.extend(islice(self._records, count - len(taken)))  # keeps what came before an error
        except KafkaError as error:
            self._damage = error
            if not taken:
                raise
            return taken, False
        return taken, len(taken) < count

    def fill(self, count: int) -> None:
        """Have up to `count` records ready, unless some are."""
        if not self.ready:
            records, _ = self.take(count)
            self.ready.extend(records)


def _records(
    tp: TopicPartition, start: int, buf: bytes, batches: list[tuple[int, Header, bool]], check_crcs: bool
) -> Iterator[ConsumerRecord]:
    for position, header, visible in batches:
        if not visible or header.last_offset < start:
            continue
        if check_crcs and not crc_is_valid(buf, position, header):
            raise CorruptMessage(f"the batch at offset {header.base_offset} of {tp} does not match its CRC")
        found = _parsed(tp, buf, position, header)
        if header.base_offset >= start:
            yield from found
        else:
            yield from (record for record in found if record.offset >= start)


def _parsed(tp: TopicPartition, buf: bytes, position: int, header: Header) -> Iterator[ConsumerRecord]:
    after = (header.leader_epoch,)
    if header.codec == Codec.NONE:  # where it lies, without a copy
        end = position + header.size
        return parse_framed(header, buf, ConsumerRecord, tp, after, position + HEADER_SIZE, end)
    return parse_framed(header, records_section(buf, position, header), ConsumerRecord, tp, after)


def _deserialized(
    records: Iterator[ConsumerRecord], key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
) -> Iterator[ConsumerRecord]:
    for record in records:
        topic, partition, offset, timestamp, key, value, headers, epoch = record
        part = "key"
        try:
            if key_deserializer is not None and key is not None:
                key = key_deserializer(key)
            part = "value"
            if value_deserializer is not None and value is not None:
                value = value_deserializer(value)
        except Exception as error:
            tp = TopicPartition(topic, partition)
            raise DeserializationFailed(
                f"the {part} of the record at offset {offset} of {tp} is refused by {part}_deserializer: "
                f"{type(error).__name__}: {error}. seek({tp!r}, {offset + 1}) passes over it",
                tp,
                offset,
            ) from error
        yield ConsumerRecord(topic, partition, offset, timestamp, key, value, headers, epoch)


class Assigned:
    """What is known of one assigned partition."""

    __slots__ = (
        "answers",
        "epoch",
        "failures",
        "fetch_offset",
        "fetching",
        "finding",
        "from_commit",
        "generation",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "not_before",
        "paused",
        "position",
        "preferred",
        "preferred_until",
        "reset",
        "tp",
    )

    def __init__(self, tp: TopicPartition, reset: OffsetSpec | None, *, from_commit: bool = False) -> None:
        self.tp = tp
        self.position: int | None = None  # the next offset for the application; None until one is found
        self.epoch = NO_EPOCH  # the leader epoch of the record before the position
        self.leader_epoch = NO_EPOCH  # of the leader whose log is known to have that record
        self.from_commit = from_commit  # whether the group's offset is looked for before `reset` counts
        self.reset = reset
        self.finding = False  # the position is looked for, or compared with the log of a new leader
        self.fetch_offset = -1  # the next offset to ask for
        self.fetching = False
        self.generation = 0
        self.answers: deque[Answer] = deque()
        self.paused = False
        self.failures = 0
        self.not_before = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.preferred = NO_BROKER  # the replica that the leader wants to be asked instead (KIP-392)
        self.preferred_until = 0.0

    def seek(self, offset: int, epoch: int = NO_EPOCH, *, leader_epoch: int = NO_EPOCH) -> None:
        self.forget()
        self.position = self.fetch_offset = offset
        self.epoch = epoch
        self.leader_epoch = leader_epoch
        self.from_commit = False

    def seek_by(self, reset: OffsetSpec) -> None:
        self.forget()
        self.reset = reset
        self.from_commit = False

    def reread(self) -> None:
        """Ask anew for what was not handed out."""
        assert self.position is not None
        self.seek(self.position, self.epoch, leader_epoch=self.leader_epoch)

    def forget(self) -> None:
        """Nothing that was fetched or is on its way counts any more."""
        self.generation += 1
        self.answers.clear()
        self.position = None
        self.epoch = self.leader_epoch = NO_EPOCH
        self.fetching = False
        self.finding = False

    def advance(self, offset: int, epoch: int) -> None:
        """The application has everything below the offset."""
        self.position = offset
        if epoch != NO_EPOCH:
            self.epoch = epoch

    def is_idle(self, now: float) -> bool:
        """Nothing is under way, and something may be."""
        return not (self.position is None or self.paused or self.fetching or self.finding or now < self.not_before)

    def must_compare(self, leader_epoch: int) -> bool:
        """Whether this leader's log may lack what was read from another one (KIP-320)."""
        return self.epoch != NO_EPOCH and leader_epoch > self.leader_epoch

    def leader_of_choice(self, leader: int, now: float, known: Iterable[int]) -> int:
        """The broker to fetch from."""
        if self.preferred != NO_BROKER and now < self.preferred_until and self.preferred in known:
            return self.preferred
        return leader


def check_assignment(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Without repetitions, in order; ValueError names a partition that cannot be."""
    checked = [TopicPartition(*tp) for tp in dict.fromkeys(partitions)]
    for tp in checked:
        if tp.partition < 0:
            raise ValueError(f"{tp} has a negative partition")
    return checked
