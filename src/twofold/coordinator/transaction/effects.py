"""What a decision asks for besides its record and its reply: lines of the log, counters, what the shard remembers.

1. Effects are data. A decision that returns them has done nothing yet.
2. The shard acts on them when the record of the decision is committed. If the append fails, or the record is reverted
   because the shard has lost its leadership, the shard drops them: the log announces nothing that never happened.
3. The effects of a decision without a record are due at once.
"""

from typing import NamedTuple, Protocol, TypeAlias

from twofold.coordinator.transaction.heartbeats import AbortCause
from twofold.coordinator.transaction.records import TransactionMetadata


class Asker(Protocol):
    """The client behind a request, as an operator wants to see it."""

    @property
    def principal(self) -> str: ...

    @property
    def client_host(self) -> str: ...

    @property
    def client_id(self) -> str | None: ...


def is_of_another(entry: TransactionMetadata, asker: Asker) -> bool:
    """Whether another principal is known to have opened the transaction."""
    return bool(entry.opened_by) and entry.opened_by != asker.principal


class Audit(NamedTuple):
    """Write to the log which client has ended a two-phase transaction, or the transaction of another client."""

    asker: Asker
    request: str
    outcome: str
    transactional_id: str
    entry: TransactionMetadata  # as it was while it was open


class ReportAbort(NamedTuple):
    """Write to the log that the coordinator has aborted a transaction on its own."""

    cause: AbortCause
    transactional_id: str
    entry: TransactionMetadata  # as it was while it was open


class CountAbort(NamedTuple):
    """Count an abort that its client did not ask for."""

    cause: AbortCause


class CountRemovedIds(NamedTuple):
    """Count transactional ids that have expired."""

    number: int


class RememberCause(NamedTuple):
    """Remember what ended the last transaction of an id with heartbeats: a late heartbeat is answered by it."""

    transactional_id: str
    cause: AbortCause


class NoteSignOfLife(NamedTuple):
    """The client of an id with heartbeats was heard."""

    transactional_id: str


Effect: TypeAlias = Audit | ReportAbort | CountAbort | CountRemovedIds | RememberCause | NoteSignOfLife
Effects: TypeAlias = tuple[Effect, ...]
