"""The states of a transactional id, as data: what may follow what, and why.

The table is all there is: `diagram` and `table` draw the page of the docs from it, and nothing is written to the log
that it does not allow.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum


class State(IntEnum):
    """The numbers are those of the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2  # decided: committed, whatever happens
    PREPARE_ABORT = 3  # decided: aborted, whatever happens
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # a removed id; no answer shows it, and no record holds it
    # Kafka's name for the moment between the decision to fence and its record. That moment does not exist here; the
    # name does, because ListTransactions must know it.
    PREPARE_EPOCH_FENCE = 7

    # Every transition looks states up in tables, and an enum's own hash is a function in Python.
    __hash__ = int.__hash__

    @property
    def wire_name(self) -> str:
        """As clients and tools see it."""
        return _WIRE_NAMES[self]


_WIRE_NAMES = tuple("".join(word.capitalize() for word in state.name.split("_")) for state in State)


class Event(Enum):
    INIT = "InitProducerId"
    KEEP = "InitProducerId that keeps the prepared transaction"
    ADD = "a partition is added"
    COMMIT = "EndTxn(commit)"
    ABORT = "EndTxn(abort)"
    FENCE = "InitProducerId, timeout or missing heartbeats fence the producer"
    COMPLETE = "every marker is written"
    EXPIRE = "unused for transactional.id.expiration.ms"

    __hash__ = object.__hash__


TRANSITIONS: Mapping[tuple[State | None, Event], State] = {
    (None, Event.INIT): State.EMPTY,
    (State.EMPTY, Event.INIT): State.EMPTY,
    (State.COMPLETE_COMMIT, Event.INIT): State.EMPTY,
    (State.COMPLETE_ABORT, Event.INIT): State.EMPTY,
    (State.EMPTY, Event.ADD): State.ONGOING,
    (State.ONGOING, Event.ADD): State.ONGOING,
    (State.COMPLETE_COMMIT, Event.ADD): State.ONGOING,
    (State.COMPLETE_ABORT, Event.ADD): State.ONGOING,
    (State.ONGOING, Event.KEEP): State.ONGOING,
    (State.ONGOING, Event.COMMIT): State.PREPARE_COMMIT,
    (State.ONGOING, Event.ABORT): State.PREPARE_ABORT,
    (State.ONGOING, Event.FENCE): State.PREPARE_ABORT,
    # KIP-890: a client that does not know whether its first batch arrived aborts what may be nothing, and gets a new
    # epoch for it.
    (State.EMPTY, Event.ABORT): State.PREPARE_ABORT,
    (State.COMPLETE_COMMIT, Event.ABORT): State.PREPARE_ABORT,
    (State.COMPLETE_ABORT, Event.ABORT): State.PREPARE_ABORT,
    (State.PREPARE_COMMIT, Event.COMPLETE): State.COMPLETE_COMMIT,
    (State.PREPARE_ABORT, Event.COMPLETE): State.COMPLETE_ABORT,
    (State.EMPTY, Event.EXPIRE): State.DEAD,
    (State.COMPLETE_COMMIT, Event.EXPIRE): State.DEAD,
    (State.COMPLETE_ABORT, Event.EXPIRE): State.DEAD,
}

PREPARING = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
EXPIRABLE = frozenset(state for state, event in TRANSITIONS if state is not None and event is Event.EXPIRE)
RECORDED = frozenset(target for target in TRANSITIONS.values() if target is not State.DEAD)


class RefusedTransition(Exception):
    """An id was asked to do what its state does not allow: a mistake of ours, not of a client."""


class Targets(dict[State | None, State]):
    """Where one event leads from each state."""

    def __init__(self, event: Event) -> None:
        super().__init__({source: target for (source, found), target in TRANSITIONS.items() if found is event})
        self.event = event

    def __missing__(self, state: State | None) -> State:
        raise RefusedTransition(f"an id in state {_name(state)} cannot take: {self.event.value}")


TARGETS: Mapping[Event, Targets] = {event: Targets(event) for event in Event}


def next_state(state: State | None, event: Event) -> State:
    return TARGETS[event][state]


def _name(state: State | None) -> str:
    return "(none)" if state is None else state.wire_name


def diagram() -> str:
    """The table as a state diagram in mermaid's language."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (source, event), target in TRANSITIONS.items():
        left = "[*]" if source is None else source.wire_name
        right = "[*]" if target is State.DEAD else target.wire_name
        arrows.setdefault((left, right), []).append(event.value)
    lines = [f"    {left} --> {right}: {', or '.join(events)}" for (left, right), events in arrows.items()]
    return "\n".join(["stateDiagram-v2", *lines])


def table() -> str:
    """The table as a table in markdown: one row a state, one column an event."""
    rows = [
        "| state | " + " | ".join(event.value for event in Event) + " |",
        "|---|" + "---|" * len(Event),
    ]
    for source in (None, *sorted(RECORDED)):
        cells = [_cell(TRANSITIONS.get((source, event))) for event in Event]
        rows.append(f"| {_name(source)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(target: State | None) -> str:
    if target is None:
        return ""
    return "(removed)" if target is State.DEAD else target.wire_name
