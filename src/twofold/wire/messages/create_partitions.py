"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 37."""

from collections.abc import Sequence

from twofold.wire.message import Message


class CreatePartitionsAssignment(Message):
    __slots__ = ("broker_ids",)
    broker_ids: Sequence[int]

    def __init__(self, *, broker_ids: Sequence[int] = ()) -> None:
        self.broker_ids = broker_ids


class CreatePartitionsTopic(Message):
    __slots__ = ("name", "count", "assignments")
    name: str
    count: int
    assignments: Sequence[CreatePartitionsAssignment] | None

    def __init__(self, *, name: str, count: int, assignments: Sequence[CreatePartitionsAssignment] | None) -> None:
        self.name = name
        self.count = count
        self.assignments = assignments


class CreatePartitionsRequest(Message):
    """API key 37, versions 0-3."""

    __slots__ = ("topics", "timeout_ms", "validate_only")
    topics: Sequence[CreatePartitionsTopic]
    timeout_ms: int
    validate_only: bool

    def __init__(self, *, topics: Sequence[CreatePartitionsTopic], timeout_ms: int, validate_only: bool) -> None:
        self.topics = topics
        self.timeout_ms = timeout_ms
        self.validate_only = validate_only


class CreatePartitionsTopicResult(Message):
    __slots__ = ("name", "error_code", "error_message")
    name: str
    error_code: int
    error_message: str | None

    def __init__(self, *, name: str, error_code: int, error_message: str | None = None) -> None:
        self.name = name
        self.error_code = error_code
        self.error_message = error_message


class CreatePartitionsResponse(Message):
    """API key 37, versions 0-3."""

    __slots__ = ("throttle_time_ms", "results")
    throttle_time_ms: int
    results: Sequence[CreatePartitionsTopicResult]

    def __init__(self, *, throttle_time_ms: int = 0, results: Sequence[CreatePartitionsTopicResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results
