"""What a sink raises. Every message says what to do."""

from collections.abc import Sequence

from twofold.sink.register import Register
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


def two_phase_is_gone(prefix: str, prepared: Sequence[str]) -> str:
    """What to do about prepared transactions on brokers that would not prepare them now."""
    shown = ", ".join(map(repr, prepared[:3])) + (f" and {len(prepared) - 3} more" if len(prepared) > 3 else "")
    return (
        f"{len(prepared)} transactions under transactionalIdPrefix={prefix!r} are prepared ({shown}), and the brokers "
        "have no two-phase commit any more: no clock ends these transactions, and every reader with read_committed "
        "waits at their first records. Nothing is lost. Start the brokers with "
        "transaction.two.phase.commit.enable=true again, and then this query (or `twofold pipeline recover --prefix "
        f"{prefix}`): what was decided is completed, the rest is aborted and written again. If two-phase commit is to "
        "stay off, do that once first, and stop the query before the brokers are started without it"
    )


def superseded(register: Register, prefix: str, here: str) -> Stale:
    """For a driver that has lost the query, or the job: `register` names the one that has it; `here` is the loser's
    checkpoint."""
    driver = f"driver {register.owner}" if register.owner else "an operator, or a write that is over,"
    there = f" with the checkpoint {register.where}" if register.where else ""
    at = f", at {register.at_ms} ms since 1970" if register.at_ms else ""
    mine = f". This driver has the checkpoint {here}" if here else ""
    where = f", where it goes on under the prefix {register.moved_to!r}" if register.moved_to else ""
    return Stale(
        f"{driver}{there} has taken over what is written under transactionalIdPrefix={prefix!r}{at}{where}{mine}. "
        "Another query or job with the same id or prefix runs, perhaps from a copy of the checkpoint, or `twofold "
        "pipeline recover` was run. Stop the other one and start this one again if this is the one to go on; a copy "
        "that is to run beside the original needs a new checkpoint, and a batch job a transactionalIdPrefix of its own"
    )
