"""How a follower of the metadata log comes by its images: a broker, a standby, a tool.

1. An image never lies inside a metadata transaction: before its Begin, after its End or Abort, nothing in between.
2. What one commit callback brings is one image, but for Begin: what came before it is published first, so that the
   transaction is a delta of its own.
3. After Abort nothing of the transaction is left, whatever follows in the same callback; its delta only moves the
   offset. (Apache Kafka forgets the aborted records only at the end of the callback.)
4. An image that ends inside a batch is marked: no snapshot may be taken of it. A batch and its bytes count for the
   first publication after its end.
5. A snapshot replaces everything, an open transaction too, and holds no transactions itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from twofold.controller.delta import ImageDelta, delta_between, whole_difference
from twofold.controller.image import MetadataImage
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    MetadataRecord,
)
from twofold.controller.replay import ControllerState, InconsistentRecord, MetadataMachine, OpenMetadataTransaction

Entry = tuple[int, MetadataRecord]


class CommittedBatch(NamedTuple):
    """A batch of the metadata log: its records with their offsets, where it ends, and how many bytes it has.

    A batch without entries (a change of the leader) moves the offset. Batches follow each other without gaps.
    """

    entries: Sequence[Entry]
    last_offset: int
    size: int = 0


class Publication(NamedTuple):
    """A new image, and what is different in it."""

    delta: ImageDelta
    image: MetadataImage
    is_batch_aligned: bool
    batches: int
    size: int


def segments(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Split the entries of one committed batch so that each piece ends where an image may be published.

    That is before each Begin, after each End or Abort, and at the end.
    """
    piece: list[Entry] = []
    for entry in entries:
        if piece and isinstance(entry[1], BeginTransaction):
            yield piece
            piece = []
        piece.append(entry)
        if isinstance(entry[1], (EndTransaction, AbortTransaction)):  # faster than a union
            yield piece
            piece = []
    if piece:
        yield piece


def refuse_transactions(entries: Iterable[Entry]) -> None:
    """InconsistentRecord if these, the records of a snapshot, have transactions among them."""
    for offset, record in entries:
        if isinstance(record, BeginTransaction | EndTransaction | AbortTransaction):
            raise InconsistentRecord(
                f"the snapshot at offset {offset} holds {type(record).__name__}: it must not know transactions"
            )


class MetadataLoader:
    """Batches and snapshots in, publications out. After an InconsistentRecord it is of no further use but its image."""

    def __init__(self) -> None:
        self.image = MetadataImage()  # the last one that may be seen: never inside a transaction
        self._machine = MetadataMachine()
        self._state = ControllerState(self.image)
        self._records: list[MetadataRecord] = []  # since `image`, without those of aborted transactions
        self._end = self.image.offset  # of the last whole batch
        self._batches = 0  # since the last publication
        self._size = 0

    @property
    def transaction(self) -> OpenMetadataTransaction | None:
        """The one that is open: none of it is in `image`."""
        return self._state.transaction

    @property
    def transaction_records(self) -> int:
        """How many records the open transaction has so far; its Begin is none of them."""
        return 0 if self.transaction is None else len(self._records) - 1

    def load_snapshot(self, records: Iterable[MetadataRecord], last_offset: int) -> Publication:
        """Begin anew with what all records up to and including `last_offset` come to."""
        entries = [(last_offset, record) for record in records]
        refuse_transactions(entries)
        image = replace(self._machine.apply_all(ControllerState(), entries).image, offset=last_offset)
        delta = whole_difference(self.image, image)
        self.image, self._state, self._end = image, ControllerState(image), last_offset
        self._records, self._batches, self._size = [], 0, 0
        return Publication(delta, image, True, 0, 0)

    def load(self, batches: Iterable[CommittedBatch]) -> list[Publication]:
        """What one commit callback brings; the images that may be seen from now on, oldest first."""
        published: list[Publication] = []
        for batch in batches:
            for piece in segments(batch.entries):
                offset, first = piece[0]
                if isinstance(first, BeginTransaction) and self.transaction is None and self.image.offset < offset - 1:
                    published.append(self._publish(offset - 1))
                self._apply(piece)
            self._end = batch.last_offset
            self._batches += 1
            self._size += batch.size
        if self._batches and self.transaction is None:
            published.append(self._publish(self._end))
        return published

    def _apply(self, piece: list[Entry]) -> None:
        self._state = self._machine.apply_all(self._state, piece)
        if isinstance(piece[-1][1], AbortTransaction):
            self._records.clear()
        else:
            self._records += (record for _, record in piece)

    def _publish(self, offset: int) -> Publication:
        image = replace(self._state.image, offset=offset)
        delta = delta_between(self.image, image, self._records)
        publication = Publication(delta, image, offset == self._end, self._batches, self._size)
        self.image, self._state = image, ControllerState(image)
        self._records, self._batches, self._size = [], 0, 0
        return publication
