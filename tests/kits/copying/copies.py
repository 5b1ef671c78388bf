"""Copying with transactions under test: instances as processes, what they wrote down, and what must hold.

A record of the output is a number of the input and the attempt (one transaction of one instance) that wrote it. At
read_committed

1. every number is there exactly once, and those of one source in order in each partition;
2. all of an attempt is there that was committed as its client was told, nothing of one that its program meant to abort
   or never tried to commit, all or nothing of the others;

and at read_uncommitted all is there that was ever acknowledged. In the end nothing holds readers back.
"""

import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Protocol

from confluent_kafka import Producer

from kits.clients.transactional import REMEMBER, SESSION_MS, Confluent, Row
from kits.copying.copier import OUTPUT_PARTITIONS
from kits.groups.groups import create_topic
from kits.wire.look import await_nothing_open
from oracle.driver import Connection, WireClosed
from oracle.processes import spawn, stop, tail

SOURCES = 4
TIMEOUT_MS = 4000
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
    "group.max.size": "100",
    "group.min.session.timeout.ms": "1000",
    "log.retention.ms": "-1",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
}
NEW = "-new"
INPUT = "numbers"
SLOWLY_S = 0.2
HERE = Path(__file__).parent


class Server(Protocol):
    host: str
    port: int

    @property
    def bootstrap_servers(self) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


class Feed(threading.Thread):
    """Writes the numbers, evenly over the given time, whatever happens to the server."""

    def __init__(self, server: Server, count: int, seconds: float, *, wait_at: float = 1.0) -> None:
        """`wait_at`: the part of the numbers after which they come slowly until it is told to go on."""
        super().__init__(daemon=True)
        self._wait_at = int(count * wait_at)
        self.go_on = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": server.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 300,
                "log_level": 0,
                **REMEMBER,
            }
        )
        self._count, self._seconds = count, seconds
        self.failures: list[str] = []

    def run(self) -> None:
        started = time.monotonic()
        for number in range(self._count):
            if number >= self._wait_at:
                self.go_on.wait(SLOWLY_S)
            due = started + self._seconds * number / self._count
            while time.monotonic() < due:
                self._producer.poll(0.01)
            while True:
                try:
                    self._producer.produce(INPUT, str(number), partition=number % SOURCES, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        left = self._producer.flush(60)
        if left:
            self.failures.append(f"{left} numbers are not written")

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self.failures.append(str(error))


class Instance:
    """One process of a copy. Its journal stays when it is gone."""

    def __init__(self, directory: Path, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.journal = directory / f"{name}.jsonl"
        self.output = directory / f"{name}.log"
        self.superseded = directory / f"{name}.superseded"
        self.journal.touch()
        files = {"name": name, "journal": str(self.journal), "superseded": str(self.superseded)}
        program = [sys.executable, str(HERE / "copier.py"), json.dumps({**options, **files})]
        self._process = spawn(program, output=self.output)

    def events(self) -> list[dict[str, Any]]:
        whole, _, _ = self.journal.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.split("\n")] if whole else []

    def has(self, event: str) -> bool:
        return any(row["event"] == event for row in self.events())

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def why_it_ended(self) -> str:
        return f"{self.name} ended with {self._process.poll()}: {self.events()[-3:]}\n{tail(self.output)}"

    def leave(self) -> None:
        code = stop(self._process, how=SIGTERM, patience_s=40)
        assert code == 0, self.why_it_ended()

    def crash(self) -> None:
        stop(self._process, how=SIGKILL)


class Copy:
    """One client copies the input to a topic of its own; one instance at a time works, the one started last."""

    def __init__(
        self,
        server: Server,
        directory: Path,
        client: str,
        count: int,
        *,
        command: Sequence[str] = (),
        timeout_ms: int = TIMEOUT_MS,
        abort_rate: float = 0.15,
        stalls: Iterable[int] = (),
        pause_s: float = 0.0,
    ) -> None:
        """A client whose name ends with `NEW` reads as a member of the new protocol."""
        self.server, self.client, self.count = server, client, count
        self.output = f"copied-{client}"
        self.group = f"copy-{client}"
        self.instances: list[Instance] = []
        self.crashed: set[str] = set()
        self._directory = directory
        self._options = {
            "client": client.removesuffix(NEW),
            "protocol": "consumer" if client.endswith(NEW) else "classic",
            "command": list(command),
            "address": server.bootstrap_servers,
            "id": f"copier-{client}",
            "timeout_ms": timeout_ms,
            "group": self.group,
            "input": INPUT,
            "output": self.output,
            "sources": SOURCES,
            "abort_rate": abort_rate,
            "pause_s": pause_s,
        }
        self._stalls = list(stalls)
        create_topic(server, self.output, OUTPUT_PARTITIONS)

    def start(self) -> Instance:
        name = f"{self.client}-{len(self.instances) + 1}"
        stalls = [] if self.instances else self._stalls
        self.instances.append(Instance(self._directory, name, {**self._options, "stalls": stalls}))
        return self.instances[-1]

    def take_over(self) -> None:
        """A second instance with the same transactional id; the first must find out by itself."""
        self.instances[-1].superseded.touch()
        self.start()

    def replace(self) -> None:
        """The instance is killed, in whatever transaction it is, and another starts."""
        self.instances[-1].crash()
        self.crashed.add(self.instances[-1].name)
        self.start()

    def check_running(self) -> None:
        for instance in self.instances:
            known = instance.name in self.crashed or instance.has("fenced")
            assert instance.running or known, instance.why_it_ended()

    @property
    def is_settled(self) -> bool:
        """The instance that was started last works, and those before it have ended."""
        *before, last = self.instances
        return last.has("committed") and not any(instance.running for instance in before)

    def finished(self) -> bool:
        """Whether all of the input is committed as read."""
        rows = [{"name": INPUT, "partition_indexes": list(range(SOURCES))}]
        try:
            with Connection(self.server.host, self.server.port) as connection:
                answer = connection.ask("OffsetFetch", 7, group_id=self.group, topics=rows, require_stable=True)
        except (OSError, WireClosed):
            return False
        parts = [part for topic in answer["topics"] for part in topic["partitions"]]
        committed: int = sum(max(part["committed_offset"], 0) for part in parts)
        return committed == self.count

    def end(self) -> None:
        for instance in self.instances:
            if instance.running:
                instance.leave()

    def crash(self) -> None:
        for instance in self.instances:
            instance.crash()

    # What must hold

    def check(self) -> dict[str, int]:
        """Rules 1 and 2; returns how often what happened."""
        reader = Confluent(self.server.bootstrap_servers)
        # Readers get to the end, at the latest when timeouts have passed.
        await_nothing_open(self.server, self.output, OUTPUT_PARTITIONS, TIMEOUT_MS / 1000 + 10)
        committed = parse(reader.read(self.output, OUTPUT_PARTITIONS, committed=True))
        everything = parse(reader.read(self.output, OUTPUT_PARTITIONS, committed=False))
        events = [event for instance in self.instances for event in instance.events()]
        check_exactly_once([(row.partition, number) for row, number, _ in committed], self.count)
        seen: dict[str, set[int]] = defaultdict(set)
        for _, number, attempt in committed:
            seen[attempt].add(number)
        check_attempts(events, seen)
        check_acknowledged(events, {(number, attempt) for _, number, attempt in everything})
        return dict(Counter(event["event"] for event in events))


def parse(rows: Iterable[Row]) -> list[tuple[Row, int, str]]:
    parsed = []
    for row in rows:
        number, _, attempt = row.value.partition(" ")
        parsed.append((row, int(number), attempt))
    return parsed


def check_exactly_once(rows: Sequence[tuple[int, int]], count: int) -> None:
    """Rows (partition of the output, number) in the order of their offsets."""
    times = Counter(number for _, number in rows)
    twice = sorted(number for number, many in times.items() if many > 1)
    missing = sorted(set(range(count)) - times.keys())
    assert not twice, f"{len(twice)} numbers are there more than once: {twice[:10]}"
    assert not missing, f"{len(missing)} numbers are missing: {missing[:10]}"
    assert len(rows) == count, f"{len(rows)} records, {count} numbers: some were never asked for"
    last: dict[tuple[int, int], int] = {}
    for partition, number in rows:
        where = (partition, number % SOURCES)
        assert last.get(where, -1) < number, f"{number} comes after {last[where]} in partition {partition}"
        last[where] = number


def check_attempts(events: Sequence[dict[str, Any]], seen: dict[str, set[int]]) -> None:
    """What the instances were told against what is read."""
    sent = {event["attempt"]: set(event["numbers"]) for event in events if event["event"] == "sent"}
    told: dict[str, set[str]] = defaultdict(set)
    for event in events:
        if "attempt" in event:
            told[event["attempt"]].add(event["event"])
    for attempt, numbers in sent.items():
        found = seen.get(attempt, set())
        if "committed" in told[attempt]:
            assert found == numbers, f"{attempt} was committed, and {sorted(numbers - found)[:10]} of it are not read"
        elif "aborting" in told[attempt] or "committing" not in told[attempt]:
            assert not found, f"{attempt} was not committed, and {sorted(found)[:10]} of it are read"
        else:
            assert found in (set(), numbers), f"{attempt} is torn: {sorted(found)[:10]} of {sorted(numbers)[:10]}"
    unknown = seen.keys() - sent.keys()
    assert not unknown, f"{sorted(unknown)[:10]} are read and were never acknowledged as sent"


def check_acknowledged(events: Sequence[dict[str, Any]], everything: set[tuple[int, str]]) -> None:
    """What is acknowledged is there for readers that want all of it."""
    for event in events:
        if event["event"] == "sent":
            lost = [number for number in event["numbers"] if (number, event["attempt"]) not in everything]
            assert not lost, f"{event['attempt']}: {lost[:10]} were acknowledged and are not in the log"
