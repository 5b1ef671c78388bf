"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 24."""

from collections.abc import Sequence

from twofold.wire.message import Message


class AddPartitionsToTxnTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[int]

    def __init__(self, *, name: str, partitions: Sequence[int] = ()) -> None:
        self.name = name
        self.partitions = partitions


class AddPartitionsToTxnTransaction(Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "verify_only", "topics")
    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool
    topics: Sequence[AddPartitionsToTxnTopic]

    def __init__(
        self,
        *,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        verify_only: bool = False,
        topics: Sequence[AddPartitionsToTxnTopic],
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.verify_only = verify_only
        self.topics = topics


class AddPartitionsToTxnRequest(Message):
    """API key 24, versions 0-5."""

    __slots__ = (
        "v3_and_below_transactional_id",
        "v3_and_below_producer_id",
        "v3_and_below_producer_epoch",
        "v3_and_below_topics",
        "transactions",
    )
    v3_and_below_transactional_id: str
    v3_and_below_producer_id: int
    v3_and_below_producer_epoch: int
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic]
    transactions: Sequence[AddPartitionsToTxnTransaction]

    def __init__(
        self,
        *,
        v3_and_below_transactional_id: str = "",
        v3_and_below_producer_id: int = 0,
        v3_and_below_producer_epoch: int = 0,
        v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = (),
        transactions: Sequence[AddPartitionsToTxnTransaction] = (),
    ) -> None:
        self.v3_and_below_transactional_id = v3_and_below_transactional_id
        self.v3_and_below_producer_id = v3_and_below_producer_id
        self.v3_and_below_producer_epoch = v3_and_below_producer_epoch
        self.v3_and_below_topics = v3_and_below_topics
        self.transactions = transactions


class AddPartitionsToTxnPartitionResult(Message):
    __slots__ = ("partition_index", "partition_error_code")
    partition_index: int
    partition_error_code: int

    def __init__(self, *, partition_index: int, partition_error_code: int) -> None:
        self.partition_index = partition_index
        self.partition_error_code = partition_error_code


class AddPartitionsToTxnTopicResult(Message):
    __slots__ = ("name", "results_by_partition")
    name: str
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult]

    def __init__(self, *, name: str, results_by_partition: Sequence[AddPartitionsToTxnPartitionResult]) -> None:
        self.name = name
        self.results_by_partition = results_by_partition


class AddPartitionsToTxnResult(Message):
    __slots__ = ("transactional_id", "topic_results", "two_phase")
    transactional_id: str
    topic_results: Sequence[AddPartitionsToTxnTopicResult]
    two_phase: bool

    def __init__(
        self, *, transactional_id: str, topic_results: Sequence[AddPartitionsToTxnTopicResult], two_phase: bool = False
    ) -> None:
        self.transactional_id = transactional_id
        self.topic_results = topic_results
        self.two_phase = two_phase


class AddPartitionsToTxnResponse(Message):
    """API key 24, versions 0-5."""

    __slots__ = ("throttle_time_ms", "results_by_topic_v3_and_below", "error_code", "results_by_transaction")
    throttle_time_ms: int
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult]
    error_code: int
    results_by_transaction: Sequence[AddPartitionsToTxnResult]

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = (),
        error_code: int = 0,
        results_by_transaction: Sequence[AddPartitionsToTxnResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results_by_topic_v3_and_below = results_by_topic_v3_and_below
        self.error_code = error_code
        self.results_by_transaction = results_by_transaction
