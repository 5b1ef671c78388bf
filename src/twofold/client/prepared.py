"""What identifies a prepared transaction: the producer id and the epoch under which its records were written (KIP-939).

It goes into the other system's own transaction as text, and comes back from there when somebody has to decide what
becomes of the transaction in the log.
"""

from dataclasses import dataclass

from twofold.client.sequences import Identity
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

_MAX_PRODUCER_ID = 2**63 - 1
_MAX_EPOCH = 2**15 - 1


@dataclass(frozen=True, slots=True, init=False)
class PreparedTxnState:
    """`PreparedTxnState(str(state)) == state`; `PreparedTxnState()` is the state of nothing, whose text is empty."""

    producer_id: int
    epoch: int

    def __init__(self, text: str = "") -> None:
        producer_id, epoch = _parse(text) if text else (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        object.__setattr__(self, "producer_id", producer_id)
        object.__setattr__(self, "epoch", epoch)

    @classmethod
    def of(cls, producer_id: int, epoch: int) -> "PreparedTxnState":
        """-1 for both is the state of nothing."""
        if (producer_id, epoch) == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH):
            return cls()
        return cls(f"{producer_id}:{epoch}")

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.epoch)

    def __bool__(self) -> bool:
        """Whether a transaction was prepared."""
        return self.producer_id != NO_PRODUCER_ID

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}" if self else ""

    def __repr__(self) -> str:
        return f"PreparedTxnState({str(self)!r})"


def _parse(text: str) -> tuple[int, int]:
    producer_id, separator, epoch = text.partition(":")
    if separator and _is_number(producer_id) and _is_number(epoch):
        numbers = int(producer_id), int(epoch)
        if numbers[0] <= _MAX_PRODUCER_ID and numbers[1] <= _MAX_EPOCH:
            return numbers
    raise ValueError(
        f"{text!r} is not a prepared transaction's state: PRODUCER_ID:EPOCH, or nothing where none is prepared"
    )


def _is_number(text: str) -> bool:
    # isdecimal alone takes digits of every script, which no broker ever wrote.
    return text.isascii() and text.isdecimal()
