"""What identifies a prepared transaction: the producer id and the epoch under which its records were written (KIP-939).

It goes into the other system's own transaction as text, and comes back from there when a process has to decide what
becomes of the transaction in the log.
"""

from dataclasses import dataclass
from enum import Enum

from twofold.client.producer.sequences import ProducerIdentity
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

_MAX_PRODUCER_ID = 2**63 - 1
_MAX_EPOCH = 2**15 - 1


@dataclass(frozen=True, slots=True, init=False)
class PreparedTxnState:
    """`PreparedTxnState(str(state)) == state`; `PreparedTxnState()` is the state of nothing, whose text is empty."""

    producer_id: int
    epoch: int

    def __init__(self, text: str | bytes = "") -> None:
        if not isinstance(text, str | bytes):
            raise TypeError(
                f"{text!r} is a {type(text).__name__}: a prepared transaction's state is text or bytes, empty where "
                "none is prepared"
            )
        producer_id, epoch = _parse(text) if text else (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        object.__setattr__(self, "producer_id", producer_id)
        object.__setattr__(self, "epoch", epoch)

    @classmethod
    def of(cls, producer_id: int, epoch: int) -> "PreparedTxnState":
        """-1 for both is the state of nothing."""
        if (producer_id, epoch) == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH):
            return cls()
        return cls(f"{producer_id}:{epoch}")

    @classmethod
    def parse(cls, stored: "PreparedTxnState | str | bytes") -> "PreparedTxnState":
        """As it comes back from where it was kept."""
        return stored if isinstance(stored, PreparedTxnState) else cls(stored)

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)

    def __bool__(self) -> bool:
        """Whether a transaction was prepared."""
        return self.producer_id != NO_PRODUCER_ID

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}" if self else ""

    def __repr__(self) -> str:
        return f"PreparedTxnState({str(self)!r})"


class TransactionOutcome(Enum):
    """What `complete_transaction` found, or did."""

    COMMITTED = "committed"
    """The transaction that the state names is committed: by this call, or by an earlier one."""
    ABORTED = "aborted"
    """Another transaction was prepared than the state names, and this call has aborted it."""
    NOTHING = "nothing"
    """No transaction was left open, and the state is empty: there was nothing to complete."""
    UNKNOWN = "unknown"
    """No transaction was left open, and the coordinator does not know any more what became of the one that the state
    names: it remembers the last two-phase transaction of an id, and Apache Kafka remembers none."""


def _parse(given: str | bytes) -> tuple[int, int]:
    # What is no ASCII is no number either, and is refused below.
    text = given if isinstance(given, str) else given.decode("ascii", "replace")
    producer_id, separator, epoch = text.partition(":")
    if separator and _is_number(producer_id) and _is_number(epoch):
        numbers = int(producer_id), int(epoch)
        if numbers[0] <= _MAX_PRODUCER_ID and numbers[1] <= _MAX_EPOCH:
            return numbers
    raise ValueError(
        f"{given!r} is not a prepared transaction's state: PRODUCER_ID:EPOCH, or nothing where none is prepared"
    )


def _is_number(text: str) -> bool:
    # isdecimal alone takes digits of every script, which no broker ever wrote.
    return text.isascii() and text.isdecimal()
