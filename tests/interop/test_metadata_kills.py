"""kill -9 of the broker, again and again, while metadata is changed by requests that take many batches of its log: the
seed's own test plan (KIP-868).

A topic of 20,000 partitions is created, another grows to 20,000, thousands of topics get a configuration, are deleted
and created again, each by one request of a stock client. The kill comes at a seeded place: just after the request was
sent, at any size that the log reaches on the way, or when the last byte is in it. Readers ask all the time
(`metadata_kills.py` has the rules), others produce, consume and send heartbeats. 4 kills in `make test`, 36 in `make
interop`.
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import pytest

from kits.metadata_kills.admins import ADMINS, Admin, Attempt
from kits.metadata_kills.ledger import PREFIX, Change, Ledger, Topic, Transactions, read_transactions
from kits.metadata_kills.readers import READERS
from kits.processes import commands
from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from oracle.processes import spawn, stop

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1800)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
SEEDS = (1, 2, 3) if LONG else (1,)
KINDS = ("create", "grow", "configs", "delete", "many")
ROUNDS = 12 if LONG else 3
PARTITIONS = 20_000
MANY = 5_000 if LONG else 1_000
BYTES = {
    "create": 75 * PARTITIONS,
    "grow": 75 * PARTITIONS,
    "configs": 43 * MANY,
    "delete": 28 * MANY,
    "many": 120 * MANY,
}
"""How much a change takes in the log, about."""
PATIENCE_S = 120
LONGEST_S = 2.0
"""How long a request of somebody else may take: others are ahead of it with very large answers, on a busy machine."""
SETTINGS = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}
MOMENTS: tuple[Callable[[random.Random], float], ...] = (
    lambda _: 0.0,  # sent
    *[lambda chance: chance.uniform(0.01, 0.99)] * 8,
    lambda _: 0.995,  # the last bytes
    lambda _: 2.0,  # never: the change has happened
)
"""How much of its bytes a change has written when the kill comes."""
KITS = Path(__file__).parent.parent / "kits" / "metadata_kills"
BYSTANDER, WATCH = KITS / "bystander.py", KITS / "watch.py"
RETRIABLE = (
    "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "WireClosed", "_TRANSPORT",
    "_TIMED_OUT", "_ALL_BROKERS_DOWN", "KafkaConnectionError", "NoBrokersAvailable", "NodeNotReadyError",
    "KafkaTimeoutError", "had happened", "errors {41}", "errors {7}",
)  # fmt: skip


class Story:
    """One broker and its metadata."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server = TwofoldServer(directory / "server", SETTINGS)
        self.copies = directory / "copies"
        self.report = directory / "bystander.json"
        self.output = directory / "bystander.log"
        self.ledger = Ledger()
        self.outages: list[tuple[float, float]] = []
        self.changing: list[tuple[float, float]] = []
        self.restarts: list[float] = []
        self.seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.found = Transactions(Counter(), Counter(), None, -1)
        self.open_at_kill: Counter[str] = Counter()
        self.tries = 0
        self._numbers = count()
        self._admins = cycle(ADMINS)

    @property
    def segments(self) -> list[Path]:
        """Of the metadata log; snapshots begin new ones."""
        return sorted((self.server.data / "__cluster_metadata-0").glob("*.log"))

    @property
    def size(self) -> int:
        return sum(segment.stat().st_size for segment in self.segments)

    def run(self, rounds: int) -> None:
        self.server.start()
        with Connection(self.server.host, self.server.port) as connection:
            rows = [{"name": "other", "num_partitions": 3, "replication_factor": 1}]
            rows += [{"name": "probed", "num_partitions": 1, "replication_factor": 1}]
            answer = connection.ask("CreateTopics", 5, topics=rows, timeout=10_000)
            assert [row["error_code"] for row in answer["topics"]] == [0, 0]
        self._do(self._change("many"))
        self._do(Change("create", {f"{PREFIX}grow-{index}": Topic(10) for index in range(rounds)}))
        readers = [reader(self.server, self.ledger, seed) for seed, reader in enumerate(READERS)]
        bystander = spawn(
            [sys.executable, str(BYSTANDER), self.server.bootstrap_servers, str(self.report)], output=self.output
        )
        try:
            for reader in readers:
                reader.start()
            for kind in islice(cycle(KINDS), rounds):
                self._round(kind)
            self._let_read()
            assert stop(bystander, how=15, patience_s=90) == 0, self.output.read_text()
        finally:
            stop(bystander)
            for reader in readers:
                reader.stop()
            for reader in readers:
                reader.join(60)
        self.ledger.check()

    # -- changes

    def _change(self, kind: str) -> Change:
        names = self.ledger.newest
        number = next(self._numbers)
        many = [f"{PREFIX}many-{index:04}" for index in range(MANY)]
        configs = (("max.message.bytes", str(2_000_000 + number)), ("retention.ms", "86400000"))
        if kind == "create":
            return Change("create", {f"{PREFIX}new-{number}": Topic(PARTITIONS, configs)})
        if kind == "grow":
            small = next(name for name, topic in names.items() if "-grow-" in name and topic.partitions == 10)
            return Change("grow", {small: Topic(PARTITIONS)})
        if kind == "configs":
            return Change("configs", {name: Topic(1, (("retention.ms", str(3_600_000 + number)),)) for name in many})
        if kind == "delete":  # and the large ones, or a restart would take longer every time
            return Change("delete", {name: None for name, topic in names.items() if topic.partitions != 10})
        return Change("create", {name: Topic(1, (("retention.ms", str(number)),)) for name in many})

    def _admin(self, kind: str) -> Admin:
        return next(admin for admin in self._admins if kind in admin.kinds)

    def _do(self, change: Change) -> None:
        self.ledger.begin(change)
        attempt = Attempt(self.server.bootstrap_servers, self.ledger, change, ADMINS[0])
        attempt.run()
        self.ledger.check()
        assert attempt.tries == 1

    def _round(self, kind: str) -> None:
        change = self._change(kind)
        part = self.chance.choice(MOMENTS)(self.chance)
        delay_s = self.chance.uniform(0.0, 0.3 if part == 0 else 0.003)
        attempt = Attempt(self.server.bootstrap_servers, self.ledger, change, self._admin(change.kind))
        log = str(self.server.data / "__cluster_metadata-0")
        moment = [str(self.server.pid), log, str(self.size + int(part * BYTES[kind])), str(delay_s)]
        watch = subprocess.Popen([sys.executable, str(WATCH), *moment], stdout=subprocess.PIPE, text=True)
        assert watch.stdout is not None
        try:
            assert watch.stdout.readline() == "ready\n"
            self.ledger.begin(change)
            began = time.monotonic()
            attempt.start()
            while attempt.is_alive() and watch.poll() is None:
                time.sleep(0.001)
            killed = float(watch.stdout.readline()) if watch.poll() == 0 else time.monotonic()
        finally:
            watch.kill()
            watch.wait()
        self.changing.append((began, killed))
        self._kill(kind, killed)
        attempt.join(PATIENCE_S)
        assert not attempt.is_alive(), f"{attempt.name} does not end"
        self.ledger.check()
        self.changing.append((self.outages[-1][1], time.monotonic()))
        self.seconds[kind].append(attempt.seconds)
        self.tries += attempt.tries
        self._let_read()

    def _kill(self, kind: str, began: float) -> None:
        self.server.kill()  # it is dead already, unless the change had happened before the moment came
        shutil.rmtree(self.copies, ignore_errors=True)
        self.copies.mkdir()
        for segment in self.segments:
            shutil.copy(segment, self.copies)
        reading = threading.Thread(target=self._read_log, args=(kind,))
        reading.start()
        started = time.monotonic()
        self.server.start()
        self.outages.append((began, time.monotonic()))
        self.restarts.append(self.outages[-1][1] - started)
        reading.join()

    def _read_log(self, kind: str) -> None:
        """What `twofold log dump` shows of the log since the last time."""
        offset = self.found.last_offset + 1
        options = ["--records", "--format", "json", "--as", "metadata", "--from-offset", str(offset)]
        done = commands.run("log", "dump", *options, *map(str, sorted(self.copies.iterdir())), timeout=300)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        if rows and is_cut_off(rows[-1]):
            rows.pop()
        elif done.returncode:
            self.ledger.fail(f"log dump: {done.stdout[-500:]}{done.stderr}")
            return
        try:
            found = read_transactions(rows, self.found.open)
        except AssertionError as error:
            self.ledger.fail(f"log dump from offset {offset}: {error}")
            return
        self.open_at_kill[f"{kind}: {found.open}"] += 1
        self.found = Transactions(
            self.found.ended + found.ended, self.found.aborted + found.aborted, found.open, found.last_offset
        )

    def _let_read(self) -> None:
        """Until everybody has had an answer to a question that was asked after the last change."""
        before = Counter(self.ledger.answers)
        deadline = time.monotonic() + PATIENCE_S
        names = [reader.__name__ for reader in READERS]
        if not any(topic.partitions > 2000 for topic in self.ledger.newest.values()):
            names = ["AllTopics", "NamedTopics", "Configs", "StockList"]
        while any(self.ledger.answers[name] < before[name] + 2 for name in names):
            self.ledger.check()
            assert time.monotonic() < deadline, f"{before}, then {self.ledger.answers}"
            time.sleep(0.02)

    # -- the reckoning

    def waits(self, windows: list[tuple[float, float]]) -> dict[str, list[float]]:
        """How long single requests of others took that were asked in these times and did not meet a dead broker."""
        found: dict[str, list[float]] = {}
        for api, began, ended in self.others["took"]:
            away = any(began < end and ended > start for start, end in self.outages)
            if not away and any(start <= began <= end for start, end in windows):
                found.setdefault(api, []).append(ended - began)
        return found

    @property
    def others(self) -> dict[str, Any]:
        """What the bystander tells."""
        return json.loads(self.report.read_text())

    def figures(self) -> Iterator[str]:
        ledger = self.ledger
        yield f"{len(self.outages)} kills, {self.tries} tries of {len(self.restarts)} changes"
        yield f"answers {dict(ledger.answers)}, while something changed {dict(ledger.during)}"
        yield f"errors {dict(ledger.errors)}"
        yield f"open at the kill {dict(self.open_at_kill)}"
        yield f"ended {dict(self.found.ended)}, aborted {dict(self.found.aborted)}"
        yield f"restarts {[round(one, 1) for one in self.restarts]} s, log {self.size} bytes"
        for kind, seconds in self.seconds.items():
            yield f"{kind}: {[round(one, 2) for one in seconds]} s, the try that was answered"
        yield from described("while it changed", self.waits(self.changing))
        yield from described("all the time", self.waits([(0, float("inf"))]))
        yield str({key: value for key, value in self.others.items() if key != "took"})


def is_cut_off(row: dict[str, object]) -> bool:
    """What a kill in the middle of a write leaves at the end of a log. No client was told that it is there."""
    return row["what"] == "damage" and str(row["reason"]).startswith("cut off:")


def described(when: str, waits: dict[str, list[float]]) -> Iterator[str]:
    for api, seconds in sorted(waits.items()):
        p99 = statistics.quantiles(seconds, n=100)[98] if len(seconds) > 1 else seconds[0]
        p50 = statistics.median(seconds)
        yield (
            f"{api} {when}: {len(seconds)} requests, p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.0f} ms, "
            f"longest {max(seconds) * 1000:.0f} ms"
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_what_one_request_changes_is_seen_whole_or_not_at_all_through_kills(tmp_path: Path, seed: int):
    story = Story(tmp_path, seed)
    try:
        story.run(ROUNDS)
    finally:
        story.server.kill()
    ledger, others, during = story.ledger, story.others, story.waits(story.changing)
    print("", f"seed {seed}", *story.figures(), sep="\n")

    strange = [error for error in ledger.errors if not error.endswith(RETRIABLE)]
    assert strange == [], "clients are told to try again, nothing else"
    assert len(story.outages) == ROUNDS
    assert sum(number for key, number in story.open_at_kill.items() if not key.endswith("None")) >= ROUNDS // 4
    for reader in READERS:
        assert ledger.during[reader.__name__] > 0, f"{reader.__name__} asked only when nothing changed"
    assert others["refused"] == []
    assert others["wrong"] == []
    assert others["sent"] == others["acknowledged"] == others["read"] > 0, "nothing is lost or doubled"
    assert all(max(seconds) < LONGEST_S for seconds in during.values()), "others do not wait for what changes"
