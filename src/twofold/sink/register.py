"""What the journal says: one register, whose newest value is all that counts. Pure.

1. Every record is the whole register, for compaction keeps only the newest of a key: who owns the query, which batch of
   which query was decided last, and the decision that is not done yet with all its transactions.
2. A decision is taken back (`revoked`) only where nothing of it was committed.
3. A decision of many transactions has some of them in records of their own (`parts`), before the register and in the
   same transaction of the journal; each says to which decision it belongs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from twofold.client.sequences import Identity
from twofold.wire.errors import KafkaError

VERSION = 1
KEPT_QUERIES = 32
PARTICIPANTS_PER_RECORD = 4_000
"""Some 100 bytes each: far below the megabyte that a broker takes by default."""


class JournalDamaged(KafkaError):
    """A record that no sink of ours wrote."""

    name = "JOURNAL_DAMAGED"

    def __str__(self) -> str:
        return self.message


class Mode(StrEnum):
    TWO_PHASE = "2pc"
    RESUME = "resume"


class Kind(StrEnum):
    """Why a record was written; for people and for the sake of a log that can be read."""

    OWNER = "owner"
    COMMIT = "commit"
    DONE = "done"
    REVOKE = "revoke"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Participant:
    """A task's transaction: its records have the `ongoing` identity, and `client` is the one that may end it."""

    transactional_id: str
    ongoing: Identity
    client: Identity
    partition: int
    v2: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    query_id: str
    run_id: str
    batch_id: int
    mode: Mode
    participants: tuple[Participant, ...]

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id} with {len(self.participants)} transactions"


@dataclass(frozen=True, slots=True)
class Register:
    """`decided` has the last decided batch of each query, newest query last. `round` counts how often a batch was given
    up: tasks of an earlier round are left behind."""

    owner: str = ""
    round: int = 0
    decided: tuple[tuple[str, int], ...] = ()
    pending: Decision | None = None
    kind: Kind = Kind.OWNER
    at_ms: int = 0

    def decided_batch(self, query_id: str) -> int:
        """-1 where no batch of the query was decided."""
        return dict(self.decided).get(query_id, -1)

    def owned_by(self, owner: str, now_ms: int) -> "Register":
        return replace(self, owner=owner, kind=Kind.OWNER, at_ms=now_ms)

    def deciding(self, decision: Decision, now_ms: int) -> "Register":
        assert self.pending is None, "one decision at a time"
        decided = _with(self.decided, decision.query_id, decision.batch_id)
        return replace(self, decided=decided, pending=decision, kind=Kind.COMMIT, at_ms=now_ms)

    def done(self, now_ms: int) -> "Register":
        return replace(self, pending=None, kind=Kind.DONE, at_ms=now_ms)

    def revoked(self, now_ms: int) -> "Register":
        """The batch before is the last one again."""
        assert self.pending is not None
        decided = _with(self.decided, self.pending.query_id, self.pending.batch_id - 1)
        return replace(self, decided=decided, pending=None, kind=Kind.REVOKE, at_ms=now_ms)

    def given_up(self, now_ms: int) -> "Register":
        """Whoever still writes for the batch that was to come next need not go on."""
        assert self.pending is None
        return replace(self, round=self.round + 1, kind=Kind.ABORT, at_ms=now_ms)

    def finished(self, query_id: str, batch_id: int, now_ms: int) -> "Register":
        """A batch that had nothing to decide about, whose offsets are to be known all the same."""
        assert self.pending is None
        return replace(self, decided=_with(self.decided, query_id, batch_id), kind=Kind.DONE, at_ms=now_ms)


def _with(decided: tuple[tuple[str, int], ...], query_id: str, batch_id: int) -> tuple[tuple[str, int], ...]:
    others = [entry for entry in decided if entry[0] != query_id]
    return (*others, (query_id, batch_id))[-KEPT_QUERIES:]


# Records


def encode(prefix: str, register: Register) -> list[tuple[bytes, bytes]]:
    """Keys and values, in the order in which they are written."""
    pending = register.pending
    value: dict[str, Any] = {
        "v": VERSION,
        "t": register.kind.value,
        "at": register.at_ms,
        "owner": register.owner,
        "round": register.round,
        "decided": [list(entry) for entry in register.decided],
    }
    records = []
    if pending is not None:
        rows = [_row(participant) for participant in pending.participants]
        parts = [
            rows[start : start + PARTICIPANTS_PER_RECORD] for start in range(0, len(rows), PARTICIPANTS_PER_RECORD)
        ]
        of = {"queryId": pending.query_id, "runId": pending.run_id, "batchId": pending.batch_id}
        last = parts.pop() if parts else []
        for index, part in enumerate(parts):
            records.append((f"{prefix}#{index}", {"v": VERSION, "part": index, **of, "tx": part}))
        value |= {**of, "mode": pending.mode.value, "parts": len(parts), "tx": last}
    records.append((prefix, value))
    return [(key.encode(), json.dumps(body, separators=(",", ":")).encode()) for key, body in records]


class Reader:
    """Takes the journal's records in their order and knows the register that they add up to."""

    def __init__(self, prefix: str) -> None:
        self.register: Register | None = None
        self.damage: JournalDamaged | None = None
        """Why there is none. An old record may lack what compaction has removed, as long as a newer one follows."""
        self._prefix = prefix
        self._parts: dict[int, dict[str, Any]] = {}

    def take(self, key: bytes | None, value: bytes | None, offset: int, *, complete: bool = True) -> None:
        """Parts may be missing, and there is no register then: that is damage, unless reading began somewhere in the
        middle (not `complete`)."""
        name = (key or b"").decode("utf-8", "replace")
        if value is None or not (name == self._prefix or name.startswith(f"{self._prefix}#")):
            return
        try:
            body = json.loads(value)
            if body["v"] != VERSION:
                raise ValueError(f"its version is {body['v']}, and this build reads {VERSION}")
            if "part" in body:
                self._parts[body["part"]] = body
                return
            missing = self._missing(body)
            self.register = None if missing is not None else self._decoded(body)
            self.damage = None
            if missing is not None and complete:
                self.damage = JournalDamaged(
                    f"the decision at offset {offset} cannot be read: part {missing} is missing"
                )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise JournalDamaged(f"the decision at offset {offset} cannot be read: {error}") from error

    def _missing(self, body: Mapping[str, Any]) -> int | None:
        of = ("queryId", "runId", "batchId")
        for index in range(body.get("parts", 0)):
            part = self._parts.get(index, {})
            if any(part.get(name) != body[name] for name in of):
                return index
        return None

    def _decoded(self, body: Mapping[str, Any]) -> Register:
        decided = tuple((str(query), int(batch)) for query, batch in body["decided"])
        pending = None
        if "tx" in body:
            rows = [row for index in range(body["parts"]) for row in self._parts[index]["tx"]]
            participants = tuple(map(_participant, [*rows, *body["tx"]]))
            pending = Decision(body["queryId"], body["runId"], body["batchId"], Mode(body["mode"]), participants)
        return Register(body["owner"], body["round"], decided, pending, Kind(body["t"]), body["at"])


def _row(participant: Participant) -> list[Any]:
    return [
        participant.transactional_id,
        *participant.ongoing,
        *participant.client,
        participant.partition,
        2 if participant.v2 else 1,
    ]


def _participant(row: list[Any]) -> Participant:
    name, producer_id, epoch, client_id, client_epoch, partition, version = row
    return Participant(name, Identity(producer_id, epoch), Identity(client_id, client_epoch), partition, version >= 2)
