"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 65."""

from collections.abc import Sequence

from twofold.wire.message import Message


class DescribeTransactionsRequest(Message):
    """API key 65, versions 0-0."""

    __slots__ = ("transactional_ids", "outcomes")
    transactional_ids: Sequence[str]
    outcomes: bool

    def __init__(self, *, transactional_ids: Sequence[str] = (), outcomes: bool = False) -> None:
        self.transactional_ids = transactional_ids
        self.outcomes = outcomes


class TopicData(Message):
    __slots__ = ("topic", "partitions")
    topic: str
    partitions: Sequence[int]

    def __init__(self, *, topic: str, partitions: Sequence[int] = ()) -> None:
        self.topic = topic
        self.partitions = partitions


class TransactionState(Message):
    __slots__ = (
        "error_code",
        "transactional_id",
        "transaction_state",
        "transaction_timeout_ms",
        "transaction_start_time_ms",
        "producer_id",
        "producer_epoch",
        "topics",
        "last_two_phase_producer_id",
        "last_two_phase_epoch",
        "last_two_phase_ending",
        "decided_producer_id",
        "decided_epoch",
        "decided_outcome",
    )
    error_code: int
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: int
    transaction_start_time_ms: int
    producer_id: int
    producer_epoch: int
    topics: Sequence[TopicData]
    last_two_phase_producer_id: int
    last_two_phase_epoch: int
    last_two_phase_ending: int
    decided_producer_id: int
    decided_epoch: int
    decided_outcome: int

    def __init__(
        self,
        *,
        error_code: int,
        transactional_id: str,
        transaction_state: str,
        transaction_timeout_ms: int,
        transaction_start_time_ms: int,
        producer_id: int,
        producer_epoch: int,
        topics: Sequence[TopicData],
        last_two_phase_producer_id: int = -1,
        last_two_phase_epoch: int = -1,
        last_two_phase_ending: int = 0,
        decided_producer_id: int = -1,
        decided_epoch: int = -1,
        decided_outcome: int = 0,
    ) -> None:
        self.error_code = error_code
        self.transactional_id = transactional_id
        self.transaction_state = transaction_state
        self.transaction_timeout_ms = transaction_timeout_ms
        self.transaction_start_time_ms = transaction_start_time_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.topics = topics
        self.last_two_phase_producer_id = last_two_phase_producer_id
        self.last_two_phase_epoch = last_two_phase_epoch
        self.last_two_phase_ending = last_two_phase_ending
        self.decided_producer_id = decided_producer_id
        self.decided_epoch = decided_epoch
        self.decided_outcome = decided_outcome


class DescribeTransactionsResponse(Message):
    """API key 65, versions 0-0."""

    __slots__ = ("throttle_time_ms", "transaction_states")
    throttle_time_ms: int
    transaction_states: Sequence[TransactionState]

    def __init__(self, *, throttle_time_ms: int = 0, transaction_states: Sequence[TransactionState]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.transaction_states = transaction_states
