"""A broker's process from outside: memory, open files, tasks; sampled while it lives, compared between its lives."""

import os
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kits.processes.server import TwofoldServer, memory_of

EVERY_S = 1.0
TASKS = "twofold_tasks "


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: float  # since the run began
    life: int
    age_s: float  # of the process
    rss_bytes: int
    sockets: int
    files: int
    deleted: int  # files that are gone and still open
    tasks: int  # of the event loop; -1 where it did not say
    acknowledged: int

    def row(self) -> dict[str, float]:
        return asdict(self)


def open_files(pid: int) -> tuple[int, int, int]:
    """Sockets, files, and files that were deleted."""
    sockets = files = deleted = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        sockets += target.startswith("socket:")
        files += target.startswith("/")
        deleted += target.endswith(" (deleted)")
    return sockets, files, deleted


def tasks_of(server: TwofoldServer) -> int:
    try:
        with urllib.request.urlopen(f"http://{server.settings['metrics.listener']}/metrics", timeout=5) as page:
            text = page.read().decode()
    except (OSError, urllib.error.URLError):
        return -1
    line = next((line for line in text.splitlines() if line.startswith(TASKS)), f"{TASKS}-1")
    return int(float(line.removeprefix(TASKS)))


class Watch(threading.Thread):
    """Samples once a second. The lives are told by whoever kills."""

    def __init__(self, server: TwofoldServer, acknowledged: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self._server, self._acknowledged = server, acknowledged
        self._began = time.monotonic()
        self._life = 0
        self._born: float | None = None
        self._stopping = threading.Event()
        self.samples: list[Sample] = []
        self.kills: list[float] = []

    def born(self) -> None:
        self._life += 1
        self._born = time.monotonic()

    def dies(self) -> None:
        self._born = None
        self.kills.append(time.monotonic() - self._began)

    def run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            try:
                self.sample()
            except (OSError, AssertionError):
                continue  # it has just been killed

    def sample(self) -> Sample | None:
        born, life = self._born, self._life
        if born is None:
            return None
        pid = self._server.pid
        tasks = tasks_of(self._server)
        sockets, files, deleted = open_files(pid)
        now = time.monotonic()
        sample = Sample(
            now - self._began, life, now - born, memory_of(pid), sockets, files, deleted, tasks, self._acknowledged()
        )
        if self._life != life or self._born is None or not sample.rss_bytes:
            return None  # killed meanwhile
        self.samples.append(sample)
        return sample

    def stop(self) -> None:
        self._stopping.set()
        self.join(10)


def at_age(samples: Sequence[Sample], age_s: float, tolerance_s: float = 1.5) -> list[Sample]:
    """One sample of each life, the one nearest to an age."""
    best: dict[int, Sample] = {}
    for sample in samples:
        distance = abs(sample.age_s - age_s)
        before = best.get(sample.life)
        if distance <= tolerance_s and (before is None or distance < abs(before.age_s - age_s)):
            best[sample.life] = sample
    return [best[life] for life in sorted(best)]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through the points; 0 where there are too few."""
    if len(points) < 3:
        return 0.0
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


def growth(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first and of the last third."""
    third = max(1, len(values) // 3)
    return statistics.median(values[:third]), statistics.median(values[-third:])
