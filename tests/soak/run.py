"""All of it at once: loads, kills, samples; then all finish, the broker is killed once more, and everything is checked.

1. kill -9 comes every `kill_every_s` (a little earlier or later, by the seed) and the broker is started again at once.
2. The last tenth of the time goes without kills: there memory is looked at within one life.
3. Whoever notices something wrong on the way ends the run at once: the folder is as it was then.
4. When all clients are gone the process must have what a fresh one has: as many sockets and tasks, and no deleted file
   that is still open.
"""

import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kits.copying import copies as txn_copies
from kits.processes.server import TwofoldServer
from oracle.processes import free_port
from soak.company import Admin, Copies, Group, OurReader, Reader
from soak.loads import Compacted, Load, Numbered, Ours, Plain, Retained, Wide
from soak.watch import Sample, Watch, at_age, growth, slope

TICK_S = 0.1
SETTLE_S = 20.0
SETTINGS = {
    **txn_copies.SETTINGS,
    "log.initial.task.delay.ms": "1000",
    "log.cleaner.backoff.ms": "2000",
    "log.retention.check.interval.ms": "3000",
    "log.segment.delete.delay.ms": "1000",
}
MEMORY_GROWTH = 1.25
MEMORY_SLACK = 10e6
TASK_SLACK = 2
SOCKET_SLACK = 1  # who asks for the metrics has a connection, or has just had one


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    seed: int = 1
    kill_every_s: float = 20.0
    scale: float = 1.0  # of all rates
    only: tuple[str, ...] = ()  # loads by name; all of them where none is named

    @property
    def steady_s(self) -> float:
        return max(3.0, self.seconds / 10)


@dataclass(slots=True)
class Result:
    plan: Plan
    samples: list[Sample] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    restarts_s: list[float] = field(default_factory=list)
    checks: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    idle: dict[str, dict[str, float]] = field(default_factory=dict)
    folder: str = ""


T = TypeVar("T")
Progress = Callable[[float, "Soak"], None]


class Soak:
    def __init__(self, directory: Path, plan: Plan, progress: Progress = lambda done, soak: None) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._directory, self._plan, self._progress = directory, plan, progress
        self._chance = random.Random(plan.seed)
        settings = {**SETTINGS, "metrics.listener": f"127.0.0.1:{free_port()}"}
        self.server = TwofoldServer(directory / "server", settings)
        self.loads: list[Load] = []
        self.watch = Watch(self.server, self.acknowledged)
        self.result = Result(plan, folder=str(directory))
        self.phase = "starting"

    def acknowledged(self) -> int:
        return sum(load.done for load in self.loads if isinstance(load, Numbered))

    def run(self) -> Result:
        try:
            self.server.start()
            self.watch.born()
            self._make_loads()
            self.watch.start()
            for load in self.loads:
                load.start()
            self._under_fire()
            if not self.result.failures:
                self._reckon()
        finally:
            self.watch.stop()
            for load in self.loads:
                if isinstance(load, Group | Copies):
                    load.close()
            self.server.kill()
            self.result.samples, self.result.kills = self.watch.samples, self.watch.kills
        return self.result

    def _make_loads(self) -> None:
        server, plan = self.server, self._plan
        rate, change_s = plan.scale, max(15.0, plan.kill_every_s * 2.3)
        wide = Wide(server, "wide", 150 * rate)
        loads: list[Load] = [
            Numbered(server, "idempotent", 200 * rate),
            Ours(server, "ours", 200 * rate),
            Plain(server, "plain", 100 * rate),
            wide,
            Compacted(server, "compacted", 200 * rate),
            Retained(server, "retained", 200 * rate),
            Reader(wide, "reader in a session"),
            OurReader(wide, "our reader"),
            Group(server, self._directory, change_s),
            Copies(server, self._directory, plan.seconds, 50 * rate, change_s),
            Admin(server, plan.seed),
        ]
        self.loads = [load for load in loads if not plan.only or load.name in plan.only]

    # --- while it goes on ---

    def _under_fire(self) -> None:
        started = time.monotonic()
        plan = self._plan
        next_kill = started + self._next_life_s()
        self.phase = "under fire"
        while (gone := time.monotonic() - started) < plan.seconds:
            self._progress(gone, self)
            for load in self.loads:
                load.tick()
            if time.monotonic() >= next_kill and gone < plan.seconds - plan.steady_s:
                self._kill()
                next_kill = time.monotonic() + self._next_life_s()
            elif self.phase == "under fire" and gone >= plan.seconds - plan.steady_s:
                self.phase = "steady"
            self.result.failures += [complaint for load in self.loads if (complaint := load.complaint())]
            if not self.server.running and not self.result.failures:
                self.result.failures.append(f"the broker ended by itself:\n{self.server.log_text()[-3000:]}")
            if self.result.failures:
                return
            time.sleep(TICK_S)

    def _next_life_s(self) -> float:
        return self._plan.kill_every_s * self._chance.uniform(0.85, 1.15)

    def _kill(self) -> None:
        self.watch.dies()
        self.server.kill()
        started = time.monotonic()
        try:
            self.server.start()
        except Exception as error:  # with the end of its log
            self.result.failures.append(f"the broker did not start again after kill {len(self.watch.kills)}: {error}")
            return
        self.result.restarts_s.append(time.monotonic() - started)
        self.watch.born()

    # --- then ---

    def _reckon(self) -> None:
        self.phase = "finishing"
        for load in self.loads:
            self._progress(self._plan.seconds, self)
            self._attempt(load.name, load.finish)
        self._judge_memory()
        used = self._settled()
        self._kill()
        fresh = self._settled()
        self._judge_idle(used, fresh)
        self.phase = "checking"
        for load in self.loads:
            self._progress(self._plan.seconds, self)
            told = self._attempt(load.name, load.check)
            if told is not None:
                self.result.checks[load.name] = told

    def _attempt(self, name: str, what: Callable[[], T]) -> T | None:
        try:
            return what()
        except Exception as error:
            self.result.failures.append(f"{name}: {str(error) or repr(error)}")
            return None

    def _settled(self) -> Sample | None:
        """The process without clients: when it has closed what they left."""
        deadline = time.monotonic() + SETTLE_S
        last: Sample | None = None
        quiet = 0
        while time.monotonic() < deadline and quiet < 3:
            time.sleep(0.5)
            sample = self.watch.sample()
            if sample is not None and last is not None:
                same = (sample.sockets, sample.tasks, sample.deleted) == (last.sockets, last.tasks, last.deleted)
                quiet = quiet + 1 if same and not sample.deleted else 0
            last = sample
        return last

    # --- judging the process ---

    def _judge_memory(self) -> None:
        samples = self.watch.samples
        age_s = 0.7 * self._plan.kill_every_s
        lives = at_age(samples[:], age_s)
        if len(lives) < 3:
            return
        first, last = growth([sample.rss_bytes for sample in lives])
        trend = slope([(sample.time_s / 3600, sample.rss_bytes) for sample in lives])
        steady = [s for s in samples if s.life == samples[-1].life and s.age_s > age_s]
        within = slope([(sample.time_s / 60, sample.rss_bytes) for sample in steady])
        self.result.memory = {
            "age_s": age_s,
            "lives": len(lives),
            "first_third_bytes": first,
            "last_third_bytes": last,
            "trend_bytes_an_hour": trend,
            "last_life_bytes_a_minute": within,
            "files_first_third": growth([sample.files for sample in lives])[0],
            "files_last_third": growth([sample.files for sample in lives])[1],
        }
        if last > first * MEMORY_GROWTH + MEMORY_SLACK:
            self.result.failures.append(
                f"memory grows: {first / 1e6:.0f} MB in the first lives and {last / 1e6:.0f} MB in the last, at the "
                f"age of {age_s:.0f} s"
            )

    def _judge_idle(self, used: Sample | None, fresh: Sample | None) -> None:
        if used is None or fresh is None:
            self.result.failures.append("the broker does not say what it holds when nobody is there")
            return
        self.result.idle = {"after the load": used.row(), "fresh": fresh.row()}
        for what, left, limit in (
            ("sockets", used.sockets, fresh.sockets + SOCKET_SLACK),
            ("deleted files", used.deleted, fresh.deleted),
            ("tasks", used.tasks, fresh.tasks + TASK_SLACK),
        ):
            if left > limit:
                self.result.failures.append(
                    f"{what} are leaked: {left} without clients, where a fresh broker has {limit}"
                )
