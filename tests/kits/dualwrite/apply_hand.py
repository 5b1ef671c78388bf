"""A process that applies records with ApplyOnce, and kills or stops itself where a test wants it.

It says every step in a line: "received" when it has records and no transaction yet, "moved" in the application's code
before its first row, "written" after its last one, "committing" before the COMMIT of a batch, "committed" after it.
"""

import json
import os
import signal
import socket
import sys
from collections import Counter
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, create_engine, event, text

from kits.processes.warm import Warm, leave
from twofold.client.consumer.blocking import Consumer
from twofold.client.consumer.consumer import ConsumerRecord
from twofold.dualwrite.apply_once import ApplyOnce

PRELOADED = ("psycopg", "pymysql", "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.mysql.pymysql")
STEPS = ("received", "moved", "written", "committing", "committed")
HOLDING_THE_ROW = ("moved", "written", "committing")
SESSION_MS = 1_000


@dataclass(frozen=True)
class ApplyJob:
    url: str
    address: str
    topic: str
    records: int
    """It ends when the table has so many rows."""
    step: str = ""
    times: int = 1
    how: str = ""
    max_poll_records: int = 2

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))


class ApplyHand:
    def __init__(self, job: ApplyJob) -> None:
        self._job = job
        self._seen = Counter[str]()
        self._engine = create_engine(job.url)
        self._in_batch = False
        event.listen(self._engine, "commit", self._commits)

    def work(self) -> int:
        job = self._job
        with ApplyOnce(
            self._engine,
            bootstrap_servers=job.address,
            group_id=job.topic,
            topics=[job.topic],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=SESSION_MS // 5,
            max_poll_records=job.max_poll_records,
        ) as worker:
            self._watch(worker.consumer)
            while self._count() < job.records:
                if worker.step(self._apply, timeout_ms=200):
                    self._in_batch = False
                    self._reached("committed")
        return 0

    def _commits(self, _: Connection) -> None:
        if self._in_batch:
            self._reached("committing")

    def _watch(self, consumer: Consumer) -> None:
        poll = consumer.poll

        def watched(timeout_ms: float) -> list[ConsumerRecord]:
            records = poll(timeout_ms)
            if records:
                self._reached("received")
            return records

        consumer.poll = watched  # type: ignore[assignment, method-assign]

    def _apply(self, db: Connection, records: list[ConsumerRecord]) -> None:
        self._in_batch = True
        self._reached("moved")
        for record in records:
            # No key: a record that is applied twice is there twice.
            db.execute(text("INSERT INTO bills VALUES (:value)"), {"value": (record.value or b"").decode()})
        self._reached("written")

    def _count(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM bills")).scalar_one())

    def _reached(self, step: str) -> None:
        self._seen[step] += 1
        print(step, flush=True)
        if self._job.step == step and self._seen[step] == self._job.times:
            os.kill(os.getpid(), signal.Signals[self._job.how])


if __name__ == "__main__":
    for module in PRELOADED:
        __import__(module)
    arguments = Warm(socket.socket(fileno=int(sys.argv[1]))).serve()
    if arguments is None:
        leave(0)
    leave(ApplyHand(ApplyJob(**json.loads(arguments[0]))).work())
