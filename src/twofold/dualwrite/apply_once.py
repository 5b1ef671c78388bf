"""`ApplyOnce`: records of the log are applied to a database, each once. The other direction of `DualWrite`.

    with ApplyOnce(engine, bootstrap_servers="127.0.0.1:9092", group_id="billing", topics=["orders"]) as worker:
        worker.run(lambda db, records: db.execute(insert(bills), [bill_of(record) for record in records]))

The database decides how far a partition is applied, in a row of its own (`twofold_applied`):

    group_id, topic, partition   the row's key
    generation, owner            of the member that applies the partition: the group's generation in which it got it,
                                 and a token of this process
    next_offset                  every record before it is applied
    topic_id                     of the topic that the offset counts in

1. A member that gets a partition claims its row under the row's lock, and reads there from which offset to go on. A
   claim replaces one of an earlier generation. One that is not earlier is replaced only if the coordinator confirms,
   while the row is locked, that this member is in the group: the group was forgotten and counts anew, or a static
   member was started again.
2. Rows of the application and the new offset are one transaction, which changes the row only where generation, owner
   and offset are those of the claim. A member that was paused, and wakes up after its partition went to another one,
   changes nothing: the row has another generation.
3. A claim waits for a transaction that has the row locked. What that one commits is not applied again: its offset is
   read after the wait.
4. A transaction that the database has ended while the application wrote, because of an error that the application
   has passed over, does not count: the row is read once more before COMMIT.
5. After any error the row is read again before anything is applied: a COMMIT without an answer may have been done.
6. The offset counts only in the topic that it was made in. A topic that was deleted and made anew, or the topic of that
   name in another cluster, stops the member (`OtherTopic`), unless on_new_topic="begin" says that its records are new.
7. The group's committed offsets follow, for tools that show lag. They decide nothing.

`apply` gets records of one partition in their order, and must write to `db` only: what it does elsewhere happens again
after a crash.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from types import TracebackType
from typing import Any, Literal

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from twofold.client.consumer.blocking import Consumer
from twofold.client.consumer.consumer import ConsumerRecord
from twofold.client.consumer.group.listener import Partitions, RebalanceListener
from twofold.dualwrite.applied_rows import DEFAULT_TABLE, AppliedRows, PartitionClaim
from twofold.dualwrite.database import is_transient
from twofold.dualwrite.errors import OtherTopic, Unsuitable
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

POLL_MS = 1_000
Apply = Callable[[Connection, list[ConsumerRecord]], object]

log = logging.getLogger(__name__)


class NotOurs(Exception):
    """The row belongs to another member."""


def needs_confirmation(found: PartitionClaim, generation: int, owner: str) -> bool:
    """Whether a claim in this generation may replace the row only with the coordinator's word."""
    return found.owner != owner and found.generation >= generation


class ApplyOnce:
    """A member of the group. `options` are those of `twofold.Consumer`; offsets are not committed automatically, and
    only committed records are read, unless they say otherwise."""

    def __init__(
        self,
        engine: Engine,
        *,
        bootstrap_servers: str,
        group_id: str,
        topics: Iterable[str],
        table: str = DEFAULT_TABLE,
        on_new_topic: Literal["stop", "begin"] = "stop",
        **options: Any,
    ) -> None:
        if on_new_topic not in ("stop", "begin"):
            raise ValueError(f"on_new_topic={on_new_topic!r} is neither 'stop' nor 'begin'")
        if options.get("enable_auto_commit"):
            raise ValueError("enable_auto_commit=True does not go with ApplyOnce: the database has the offsets")
        self.engine = engine
        self.group_id = group_id
        self._rows = AppliedRows(engine, table, group_id)
        self._owner = uuid.uuid4().hex
        self._on_new_topic = on_new_topic
        self._claims: dict[TopicPartition, PartitionClaim] = {}
        self._stopped = threading.Event()
        settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", **options}
        self._rows.create()
        self.consumer = Consumer(
            bootstrap_servers=bootstrap_servers, group_id=group_id, **{**settings, "enable_auto_commit": False}
        )
        self.consumer.subscribe(topics, listener=_Claiming(self))

    def __enter__(self) -> "ApplyOnce":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._stopped.set()
        self.consumer.close()

    def stop(self) -> None:
        """`run` returns when it has applied what it works on. Any thread, and a signal handler, may call it."""
        self._stopped.set()

    def run(self, apply: Apply) -> None:
        """Apply records until `stop` is called. An error of `apply` or of the database comes out; what was not
        committed is applied by the next call, or by another member."""
        while not self._stopped.is_set():
            self.step(apply)

    def step(self, apply: Apply, timeout_ms: float = POLL_MS) -> int:
        """Poll once, and apply what came: one transaction per partition. Returns how many records were applied."""
        self.claim_missing()
        records = self.consumer.poll(timeout_ms)
        count = 0
        try:
            for partition, batch in groupby(records, key=lambda record: TopicPartition(record.topic, record.partition)):
                count += self._apply(apply, partition, list(batch))
        except BaseException:
            self._go_back(records)
            raise
        if count:
            applied = {tp: claim.next_offset for tp, claim in self._claims.items()}
            self.consumer.commit_async({tp: offset for tp, offset in applied.items() if offset > 0})
        return count

    def _apply(self, apply: Apply, partition: TopicPartition, records: list[ConsumerRecord]) -> int:
        claim = self._claims.get(partition)
        if claim is None:
            return 0
        if partition not in self.consumer.assignment or self._topic_id(partition) not in (claim.topic_id, None):
            self._drop(partition)  # the topic was made anew: the next claim says what becomes of that
            return 0
        following = records[-1].offset + 1
        applying = False
        try:
            with self._rows.transaction() as db:
                if not self._rows.move(db, partition, claim, following):
                    raise NotOurs("the row has another generation, owner or offset")
                applying = True
                with _kept_open(db):
                    apply(db, records)
                    self._rows.check_moved(db, partition, following)
        except (DBAPIError, NotOurs) as error:
            if applying or not (isinstance(error, NotOurs) or is_transient(error)):
                raise
            # Another member has the row, or has it locked. What it commits is read before the next attempt.
            log.info("records of %s are not applied here now: %s", partition, error)
            self._drop(partition)
            return 0
        self._claims[partition] = claim._replace(next_offset=following)
        return len(records)

    def _go_back(self, records: list[ConsumerRecord]) -> None:
        """After an error: what was polled is read again, from where the row says."""
        for partition in {TopicPartition(record.topic, record.partition) for record in records}:
            self._drop(partition)

    def _drop(self, partition: TopicPartition) -> None:
        self._claims.pop(partition, None)
        if partition in self.consumer.assignment:
            self.consumer.pause(partition)

    # Claims

    def on_assigned(self, partitions: Partitions) -> None:
        for partition in partitions:
            self._claims.pop(partition, None)
        self.claim_missing()

    def on_revoked(self, partitions: Partitions) -> None:
        for partition in partitions:
            self._claims.pop(partition, None)

    def claim_missing(self) -> None:
        """Of what is assigned. A partition that cannot be claimed now is not read, and is claimed later."""
        for partition in self.consumer.assignment:
            if partition in self._claims:
                continue
            try:
                self._claims[partition] = claim = self._claim(partition)
            except (DBAPIError, KafkaError, NotOurs) as error:
                log.warning("%s of group %r is not claimed yet: %s", partition, self.group_id, error)
                self.consumer.pause(partition)
                continue
            self.consumer.seek(partition, claim.next_offset)
            self.consumer.resume(partition)

    def _claim(self, partition: TopicPartition) -> PartitionClaim:
        generation = self.consumer.group_metadata().generation_id
        if generation < 0:
            raise NotOurs("the group is being joined")
        if not self._rows.is_there(partition):
            self._rows.insert(partition, self.consumer.position(partition))
        topic_id = self._topic_id(partition)
        with self._rows.transaction() as db:
            found = self._rows.lock(db, partition)
            if found.topic_id and topic_id and found.topic_id != topic_id:
                found = self._in_new_topic(partition, found, topic_id)
            if needs_confirmation(found, generation, self._owner):
                # Refused by the coordinator if another member, or a later generation, has the partition.
                self.consumer.commit({partition: found.next_offset})
            claim = PartitionClaim(generation, self._owner, found.next_offset, topic_id or found.topic_id)
            return self._rows.own(db, partition, claim)

    def _topic_id(self, partition: TopicPartition) -> str | None:
        """None with a broker that has none."""
        found = self.consumer.topic_id(partition)
        return None if found is None else str(found)

    def _in_new_topic(self, partition: TopicPartition, found: PartitionClaim, topic_id: str) -> PartitionClaim:
        """The row's offset counts in another topic."""
        if self._on_new_topic == "stop" and found.next_offset > 0:
            raise OtherTopic(
                f"{partition} of group {self.group_id!r} is applied up to offset {found.next_offset} of topic id "
                f"{found.topic_id}, and the cluster's topic has the id {topic_id}: it was made anew, or this is "
                "another cluster. If none of its records is applied yet, use on_new_topic='begin'. If it is a copy, "
                f"set next_offset and topic_id of its row in {self._rows.table.fullname} to where it goes on"
            )
        log.warning("%s of group %r begins anew: its topic has another id", partition, self.group_id)
        return found._replace(next_offset=self.consumer.beginning_offsets([partition])[partition])


class _Claiming(RebalanceListener):
    def __init__(self, worker: ApplyOnce) -> None:
        self._worker = worker

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        self._worker.on_assigned(partitions)

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        self._worker.on_revoked(partitions)


@contextmanager
def _kept_open(connection: Connection) -> Iterator[None]:
    """A COMMIT in between would store the offset of records that are not applied yet."""

    def refuse(_: Connection) -> None:
        raise Unsuitable("commit() in a function of ApplyOnce: rows and offset are committed when it has returned")

    event.listen(connection, "commit", refuse)
    try:
        yield
    finally:
        event.remove(connection, "commit", refuse)
