"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 27."""

from collections.abc import Sequence

from twofold.wire.message import Message


class WritableTxnMarkerTopic(Message):
    __slots__ = ("name", "partition_indexes", "txn_start_offsets", "repair")
    name: str
    partition_indexes: Sequence[int]
    txn_start_offsets: Sequence[int] | None
    repair: bool

    def __init__(
        self,
        *,
        name: str,
        partition_indexes: Sequence[int] = (),
        txn_start_offsets: Sequence[int] | None = None,
        repair: bool = False,
    ) -> None:
        self.name = name
        self.partition_indexes = partition_indexes
        self.txn_start_offsets = txn_start_offsets
        self.repair = repair


class WritableTxnMarker(Message):
    __slots__ = (
        "producer_id",
        "producer_epoch",
        "transaction_result",
        "topics",
        "coordinator_epoch",
        "transaction_version",
    )
    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: Sequence[WritableTxnMarkerTopic]
    coordinator_epoch: int
    transaction_version: int

    def __init__(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_result: bool,
        topics: Sequence[WritableTxnMarkerTopic],
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.transaction_result = transaction_result
        self.topics = topics
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version


class WriteTxnMarkersRequest(Message):
    """API key 27, versions 1-2."""

    __slots__ = ("markers",)
    markers: Sequence[WritableTxnMarker]

    def __init__(self, *, markers: Sequence[WritableTxnMarker]) -> None:
        self.markers = markers


class WritableTxnMarkerPartitionResult(Message):
    __slots__ = ("partition_index", "error_code", "start_offset_checked")
    partition_index: int
    error_code: int
    start_offset_checked: bool

    def __init__(self, *, partition_index: int, error_code: int, start_offset_checked: bool = False) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.start_offset_checked = start_offset_checked


class WritableTxnMarkerTopicResult(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[WritableTxnMarkerPartitionResult]

    def __init__(self, *, name: str, partitions: Sequence[WritableTxnMarkerPartitionResult]) -> None:
        self.name = name
        self.partitions = partitions


class WritableTxnMarkerResult(Message):
    __slots__ = ("producer_id", "topics")
    producer_id: int
    topics: Sequence[WritableTxnMarkerTopicResult]

    def __init__(self, *, producer_id: int, topics: Sequence[WritableTxnMarkerTopicResult]) -> None:
        self.producer_id = producer_id
        self.topics = topics


class WriteTxnMarkersResponse(Message):
    """API key 27, versions 1-2."""

    __slots__ = ("markers",)
    markers: Sequence[WritableTxnMarkerResult]

    def __init__(self, *, markers: Sequence[WritableTxnMarkerResult]) -> None:
        self.markers = markers
