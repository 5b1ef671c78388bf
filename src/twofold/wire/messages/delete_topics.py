"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 20."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class DeleteTopicState(Message):
    __slots__ = ("name", "topic_id")
    name: str | None
    topic_id: UUID | None

    def __init__(self, *, name: str | None = None, topic_id: UUID | None) -> None:
        self.name = name
        self.topic_id = topic_id


class DeleteTopicsRequest(Message):
    """API key 20, versions 1-6."""

    __slots__ = ("topic_names", "timeout_ms", "topics")
    topic_names: Sequence[str]
    timeout_ms: int
    topics: Sequence[DeleteTopicState]

    def __init__(
        self, *, topic_names: Sequence[str] = (), timeout_ms: int, topics: Sequence[DeleteTopicState] = ()
    ) -> None:
        self.topic_names = topic_names
        self.timeout_ms = timeout_ms
        self.topics = topics


class DeletableTopicResult(Message):
    __slots__ = ("name", "error_code", "error_message", "topic_id")
    name: str | None
    error_code: int
    error_message: str | None
    topic_id: UUID | None

    def __init__(
        self, *, name: str | None, error_code: int, error_message: str | None = None, topic_id: UUID | None = None
    ) -> None:
        self.name = name
        self.error_code = error_code
        self.error_message = error_message
        self.topic_id = topic_id


class DeleteTopicsResponse(Message):
    """API key 20, versions 1-6."""

    __slots__ = ("throttle_time_ms", "responses")
    throttle_time_ms: int
    responses: Sequence[DeletableTopicResult]

    def __init__(self, *, throttle_time_ms: int = 0, responses: Sequence[DeletableTopicResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = responses
