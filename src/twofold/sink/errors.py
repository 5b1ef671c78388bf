"""What a sink raises. Every message says what to do."""

from twofold.wire.errors import KafkaError


class SinkError(KafkaError):
    name = "SINK_ERROR"

    def __str__(self) -> str:
        return self.message


class TaskFailed(SinkError):
    """A task's transaction is lost; the batch can be written again."""


class Stale(SinkError):
    """The process that asks was left behind: the batch is decided, or another driver has the query."""


class VoteFailed(SinkError):
    """A transaction of the batch is not there any more: nothing was decided, and the batch can be written again."""


class Revoked(SinkError):
    """A decision was taken back, since all of its transactions had timed out: the batch can be written again."""


class DecidedDataLost(SinkError):
    """A part of a decided batch was aborted from outside the query, and another part is committed."""


class Unsupported(SinkError):
    """The brokers cannot do what the options ask for."""


class OtherInput(SinkError):
    """A batch comes with the number of one that was decided, and with other input: to skip it would lose rows."""


class WriteIdRefused(SinkError):
    """A writeId that was pruned, or one more than are remembered."""
