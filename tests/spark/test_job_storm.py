"""A job of three queries whose driver, workers and broker are killed and paused at random, again and again: what
read_committed shows in the end is the input, once and in order, three times.

A round is drawn from the seed, which is printed: TWOFOLD_STORM_SEED runs one again. There are ten rounds, with
TWOFOLD_LONG=1 a hundred, and with TWOFOLD_STORM_ROUNDS as many as it says. The first rounds have each way once, in an
order that starts two JVMs: the driver that was taken over from takes over when the other one is killed.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from connector import LONG
from host_kit import Host, Pipe, wait_for
from sink_kit import PATIENCE_S, SETTINGS, Broker, Reader

from kits.processes.server import TwofoldServer

ROUNDS = int(os.environ.get("TWOFOLD_STORM_ROUNDS", "100" if LONG else "10"))
ROWS = 30
SEED = int(os.environ.get("TWOFOLD_STORM_SEED", "21"))
SHAPES = ("plain", "plain", "shuffled")
LONGEST_PAUSE_S = 2.0
AT_WORK = 0.5
"""The share of the rounds that strike queries which have shown rows of the round. The others may strike a start."""
WORKER = "\0pyspark."
"""Of the command line of every Python process that Spark starts."""
PER_BATCH = 60
KEEPS_GOING = {"processingTime": "100 milliseconds"}

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300 + 180 * ROUNDS)]


@dataclass
class Job:
    """Three queries that read one topic. Of its two drivers one has them; the other is there to take over."""

    hosts: list[Host]
    pipes: list[Pipe]
    server: TwofoldServer
    readers: list[Reader]
    """Of what each query writes, from the beginning to the end of the test: the broker's restarts are theirs, too."""
    running: list[str] = field(default_factory=list)
    """Names of the queries at the first host."""

    @property
    def host(self) -> Host:
        return self.hosts[0]

    def send(self) -> None:
        self.pipes[0].send(ROWS)

    def start(self) -> None:
        """All queries at the first host."""
        for pipe in self.pipes:
            pipe.host = self.host
        self.running = [pipe.start(**KEEPS_GOING) for pipe in self.pipes]

    def start_what_has_ended(self) -> None:
        for index, (pipe, name) in enumerate(zip(self.pipes, self.running, strict=True)):
            if self.host.has_ended(name):
                self.host.ended(name)
                self.running[index] = pipe.start(**KEEPS_GOING)

    def take_over(self) -> None:
        """By the other driver, which has never seen what the first one did, or has lost it long ago."""
        self.hosts.reverse()
        self.start()

    def wait_until_seen(self, counts: list[int]) -> None:
        """Every query has shown more than that."""

        def goes_on() -> bool:
            self.start_what_has_ended()
            return all(seen > count for seen, count in zip(self.seen, counts, strict=True))

        wait_for(goes_on, "rows of all queries are seen", 2 * PATIENCE_S, lambda: self.host.text)

    @property
    def seen(self) -> list[int]:
        return [reader.count() for reader in self.readers]


def to_session(host: Host, number: signal.Signals, of: str = "") -> None:
    """The driver, its JVM and its Python workers, which have a process group of their own: those whose command line has
    `of` in it."""
    assert host._process is not None
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) == host._process.pid and of in (path / "cmdline").read_text():
                os.kill(int(path.name), number)
        except OSError:
            continue


# What happens in a round, while the queries are at work


def killed(job: Job, dice: random.Random) -> None:
    job.host.kill()
    job.take_over()


def paused(job: Job, dice: random.Random) -> None:
    """Shorter than anything notices, or longer than a heartbeat."""
    to_session(job.host, signal.SIGSTOP)
    time.sleep(LONGEST_PAUSE_S * dice.random())
    to_session(job.host, signal.SIGCONT)


def paused_and_taken_over(job: Job, dice: random.Random) -> None:
    """The one that wakes up finds that another driver has its queries, and each query ends with one of the two."""
    sleeper, before = job.host, job.running
    to_session(sleeper, signal.SIGSTOP)
    try:
        seen = job.seen
        job.take_over()
        job.send()
        job.wait_until_seen(seen)
    finally:
        to_session(sleeper, signal.SIGCONT)
    job.send()
    time.sleep(LONGEST_PAUSE_S * dice.random())
    for name in before:
        sleeper.ask(do="stop", name=name)
    for name in before:
        sleeper.ended(name)


def workers_killed(job: Job, dice: random.Random) -> None:
    """All Python processes of the driver but its own: sources, tasks, commits. The JVM goes on, or its queries fail."""
    to_session(job.host, signal.SIGKILL, of=WORKER)


def workers_paused(job: Job, dice: random.Random) -> None:
    to_session(job.host, signal.SIGSTOP, of=WORKER)
    time.sleep(LONGEST_PAUSE_S * dice.random())
    to_session(job.host, signal.SIGCONT, of=WORKER)


def broker_killed(job: Job, dice: random.Random) -> None:
    job.server.kill()
    time.sleep(dice.random() / 2)
    job.server.start()


def broker_paused(job: Job, dice: random.Random) -> None:
    os.kill(job.server.pid, signal.SIGSTOP)
    time.sleep(LONGEST_PAUSE_S * dice.random())
    os.kill(job.server.pid, signal.SIGCONT)


WAYS: list[Callable[[Job, random.Random], None]] = [
    paused,
    workers_killed,
    broker_killed,
    paused_and_taken_over,
    broker_paused,
    workers_paused,
    killed,
]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with TwofoldServer(tmp_path / "server", SETTINGS) as server:
        broker = Broker(server.bootstrap_servers)
        hosts = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            hosts.append(Host(tmp_path / name, master="local[2]"))
        interval = {"kafka.transaction.heartbeat.interval.ms": "500"}
        pipes = []
        for number, shape in enumerate(SHAPES):
            (tmp_path / str(number)).mkdir()
            directory = tmp_path / str(number)
            pipes.append(Pipe(hosts[0], broker, directory, PER_BATCH, shape=shape, write=interval, partitions=2))
        for pipe in pipes[1:]:
            pipe.source, pipe.sent = pipes[0].source, pipes[0].sent
        readers = [Reader(server.bootstrap_servers, pipe.target) for pipe in pipes]
        yield Job(hosts, pipes, server, readers)
        for reader in readers:
            reader.close()
        for host in hosts:
            host.kill()


def test_a_job_of_three_queries_that_is_killed_and_paused_at_random_shows_every_row_once(job: Job) -> None:
    dice = random.Random(SEED)
    job.send()
    job.start()
    job.wait_until_seen([0, 0, 0])
    done = []
    for number in range(ROUNDS):
        job.start_what_has_ended()
        seen = job.seen
        job.send()
        if dice.random() < AT_WORK:
            job.wait_until_seen(seen)
            job.send()  # the next batch is at work
        time.sleep(dice.random())
        way = WAYS[number % len(WAYS)] if number < len(WAYS) else dice.choice(WAYS)
        way(job, dice)
        done.append(way.__name__)
        print(f"seed {SEED}, round {number + 1}: {way.__name__}, {len(job.pipes[0].sent)} sent, {job.seen} seen")
    job.wait_until_seen([len(pipe.sent) - 1 for pipe in job.pipes])
    for host in job.hosts:
        host.kill()
    for pipe, reader in zip(job.pipes, job.readers, strict=True):
        pipe.check()
        assert reader.count() == len(pipe.sent)
    assert len(done) == ROUNDS and {way.__name__ for way in WAYS[:ROUNDS]} <= set(done)
