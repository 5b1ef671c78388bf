"""What the journal says: one register, whose newest value is all that counts. Pure.

1. Every record is the whole register, because compaction keeps only the newest of a key: which driver owns the query,
   what was decided last under which name, and the decision that is not done yet with all its transactions.
2. A decision is taken back (`revoked`) only where nothing of it was committed.
3. A decision of many transactions has some of them in records of their own (`parts`), before the register and in the
   same transaction of the journal; each says to which decision it belongs.
4. A name that leaves the register gets a record of its own (`twofold.sink.remembered`), in the same transaction: no
   name is forgotten.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from twofold.client.parts import ProducerIdentity
from twofold.sink.decided import DecidedEntry, Input, Purpose
from twofold.wire.errors import KafkaError

VERSION = 2
READ_VERSIONS = (1, 2)
"""Version 1 had neither digests nor names of their own nor places; its builds refuse version 2 by its number."""
KEPT_NAMES = 32
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


class JournalKind(StrEnum):
    """Why a record was written; for people and for the sake of a log that can be read."""

    OWNER = "owner"
    COMMIT = "commit"
    DONE = "done"
    REVOKE = "revoke"
    ABORT = "abort"
    NOTE = "note"
    """What was decided before is written down better: a digest that it lacked, or names in records of their own."""
    MOVED = "moved"
    """The journal goes on under another prefix."""


@dataclass(frozen=True, slots=True)
class Participant:
    """A task's transaction: its records have the `ongoing` identity, and `client` is the one that may end it."""

    transactional_id: str
    ongoing: ProducerIdentity
    client: ProducerIdentity
    partition: int
    v2: bool = True


@dataclass(frozen=True, slots=True)
class BatchDecision:
    query_id: str
    run_id: str
    batch_id: int
    mode: Mode
    participants: tuple[Participant, ...]

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id} with {len(self.participants)} transactions"


@dataclass(frozen=True, slots=True)
class Register:
    """`decided` has the last decided batch of each name, newest name last. `round` counts how often a batch was given
    up: tasks of an earlier round are left behind."""

    owner: str = ""
    round: int = 0
    decided: tuple[DecidedEntry, ...] = ()
    pending: BatchDecision | None = None
    kind: JournalKind = JournalKind.OWNER
    at_ms: int = 0
    where: str = ""
    """The owner's checkpoint, for people."""
    query_name: str = ""
    """Spark's queryName, for people: `twofold pipeline run` gives `<pipeline>.<sink>`."""
    adopted: tuple[str, ...] = ()
    """Prefixes whose journals were taken over: what is open under them is ours to end, as long as they say so."""
    moved_to: str = ""
    """The prefix that has taken this journal over."""
    leaving: tuple[DecidedEntry, ...] = field(default=(), compare=False)
    """Names that this record is the first to lack: they are written beside it."""

    @property
    def is_forgotten(self) -> bool:
        """Nothing is known: as if there had never been a record."""
        return self == Register()

    def entry(self, name: str) -> DecidedEntry | None:
        return next((entry for entry in self.decided if entry.name == name), None)

    def decided_batch(self, name: str) -> int:
        """-1 where no batch of that name was decided, as far as the register knows."""
        entry = self.entry(name)
        return -1 if entry is None else entry.batch_id

    def owned_by(self, owner: str, now_ms: int, where: str = "", query_name: str = "") -> "Register":
        """An operator who recovers the sink has no name for it: the query's own stays."""
        name = query_name or self.query_name
        changes = {"owner": owner, "where": where, "query_name": name, "moved_to": "", "leaving": self.leaving}
        return self._next(JournalKind.OWNER, now_ms, **changes)

    def deciding(
        self, decision: BatchDecision, now_ms: int, purpose: Purpose = Purpose.QUERY, read: Input | None = None
    ) -> "Register":
        assert self.pending is None, "one decision at a time"
        decided = self._advanced(decision.query_id, decision.batch_id, now_ms, purpose, read)
        return self._with(decided, JournalKind.COMMIT, now_ms, pending=decision)

    def done(self, now_ms: int) -> "Register":
        return self._next(JournalKind.DONE, now_ms, pending=None)

    def revoked(self, now_ms: int) -> "Register":
        """The batch before is the last one again."""
        assert self.pending is not None
        entry = self.entry(self.pending.query_id) or DecidedEntry(self.pending.query_id, self.pending.batch_id)
        return self._with(entry.without_last(), JournalKind.REVOKE, now_ms, pending=None)

    def given_up(self, now_ms: int) -> "Register":
        """Tasks that still write for the batch that was to come next need not go on."""
        assert self.pending is None
        return self._next(JournalKind.ABORT, now_ms, round=self.round + 1)

    def finished(
        self, name: str, batch_id: int, now_ms: int, purpose: Purpose = Purpose.QUERY, read: Input | None = None
    ) -> "Register":
        """A batch that had nothing to decide about: it is known all the same, and so are its offsets."""
        assert self.pending is None
        return self._with(self._advanced(name, batch_id, now_ms, purpose, read), JournalKind.DONE, now_ms)

    def noting(self, entry: DecidedEntry, now_ms: int) -> "Register":
        return self._with(entry, JournalKind.NOTE, now_ms)

    def recalling(self, entry: DecidedEntry | None) -> "Register":
        """With a name that had left the register, as it was then. Nothing is written for that."""
        if entry is None or self.entry(entry.name) is not None:
            return self
        return replace(self, decided=(*self.decided, entry))

    def remembering(self, names: tuple[DecidedEntry, ...], now_ms: int) -> "Register":
        """Those names get records of their own."""
        return self._next(JournalKind.NOTE, now_ms, leaving=names)

    def without(self, names: frozenset[str], now_ms: int) -> "Register":
        """Pruned: the names are kept elsewhere, and shorter."""
        decided = tuple(entry for entry in self.decided if entry.name not in names)
        return self._next(JournalKind.NOTE, now_ms, decided=decided)

    def adopting(self, prefix: str, old: "Register", now_ms: int) -> "Register":
        """What another journal knew is known here."""
        fresh = tuple(entry for entry in old.decided if self.entry(entry.name) is None)
        adopted = (*self.adopted, prefix)
        kept = (*fresh, *self.decided)
        leaving = (*self.leaving, *kept[:-KEPT_NAMES])
        return self._next(JournalKind.NOTE, now_ms, adopted=adopted, decided=kept[-KEPT_NAMES:], leaving=leaving)

    def moved(self, owner: str, prefix: str, where: str, now_ms: int) -> "Register":
        assert self.pending is None
        return self._next(JournalKind.MOVED, now_ms, owner=owner, where=where, moved_to=prefix)

    def _advanced(self, name: str, batch_id: int, now_ms: int, purpose: Purpose, read: Input | None) -> DecidedEntry:
        before = self.entry(name) or DecidedEntry(name, batch_id - 1)
        return replace(before, purpose=purpose).advanced(batch_id, now_ms, read)

    def _with(self, entry: DecidedEntry, kind: JournalKind, now_ms: int, **changes: Any) -> "Register":
        others = [other for other in self.decided if other.name != entry.name]
        kept = (*others, entry)
        leaving = tuple(one for one in kept[:-KEPT_NAMES] if one.is_remembered)
        return self._next(kind, now_ms, decided=kept[-KEPT_NAMES:], leaving=leaving, **changes)

    def _next(self, kind: JournalKind, now_ms: int, **changes: Any) -> "Register":
        return replace(self, **({"leaving": ()} | changes), kind=kind, at_ms=now_ms)


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
        "decided": [entry.row() for entry in register.decided],
        "topics": {entry.name: entry.topic_rows() for entry in register.decided if entry.topics},
        "where": register.where,
        "queryName": register.query_name,
        "adopted": list(register.adopted),
        "movedTo": register.moved_to,
    }
    records: list[tuple[str, dict[str, Any]]] = [
        (name_key(prefix, entry.name), {"v": VERSION, "name": entry.row(), "topics": entry.topic_rows()})
        for entry in register.leaving
    ]
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


def name_key(prefix: str, name: str) -> str:
    """Of a name that has left the register. No prefix has an '@' in it."""
    return f"{prefix}@{name}"


def check_version(body: Mapping[str, Any]) -> int:
    version = body["v"]
    if version not in READ_VERSIONS:
        raise ValueError(f"its version is {version}, and this build reads {VERSION}")
    return int(version)


class Reader:
    """Takes the journal's records in their order and knows the register that they add up to."""

    def __init__(self, prefix: str) -> None:
        self.register: Register | None = None
        self.damage: JournalDamaged | None = None
        """Why there is none. An old record may lack what compaction has removed, as long as a newer one follows."""
        self.version: int | None = None
        self._prefix = prefix
        self._parts: dict[int, dict[str, Any]] = {}

    def take(self, key: bytes | None, value: bytes | None, offset: int, *, complete: bool = True) -> None:
        """Parts may be missing, and there is no register then: that is damage, unless reading began somewhere in the
        middle (not `complete`)."""
        name = (key or b"").decode("utf-8", "replace")
        if value is None:
            if name == self._prefix:  # forgotten: nothing that was decided before counts
                self.register, self.version, self.damage = Register(), VERSION, None
            return
        if name != self._prefix and not name.startswith(f"{self._prefix}#"):
            return
        try:
            body = json.loads(value)
            version = check_version(body)
            if "part" in body:
                self._parts[body["part"]] = body
                return
            self.version = version
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
        topics = body.get("topics", {})  # the version before wrote none
        entries = map(DecidedEntry.of, body["decided"])
        decided = tuple(entry.with_topics(topics.get(entry.name, ())) for entry in entries)
        pending = None
        if "tx" in body:
            rows = [row for index in range(body["parts"]) for row in self._parts[index]["tx"]]
            participants = tuple(map(_participant, [*rows, *body["tx"]]))
            pending = BatchDecision(body["queryId"], body["runId"], body["batchId"], Mode(body["mode"]), participants)
        register = Register(body["owner"], body["round"], decided, pending, JournalKind(body["t"]), body["at"])
        if body["v"] == 1:
            return register
        adopted = tuple(map(str, body["adopted"]))
        # Records from before queries had their names in the journal have none.
        name = str(body.get("queryName", ""))
        return replace(register, where=body["where"], query_name=name, adopted=adopted, moved_to=body["movedTo"])


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
    return Participant(
        name, ProducerIdentity(producer_id, epoch), ProducerIdentity(client_id, client_epoch), partition, version >= 2
    )
