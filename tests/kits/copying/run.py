"""Several clients copy at the same time while the broker is killed and instances are replaced."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kits.copying.copies import INPUT, SOURCES, Copy, Feed, Server
from kits.groups.groups import create_topic

TAKE_OVER, REPLACE = "take over", "replace"
WAIT_AT = 0.9
"""The last numbers come slowly until all changes have happened: an instance that was replaced has something to do."""


@dataclass(frozen=True)
class Plan:
    """How much is copied, how long it takes to write it, and what happens meanwhile."""

    count: int
    seconds: float
    kill_every_s: float | None
    take_overs: int
    crashes: int = 0
    stalls: Sequence[int] = ()
    patience_s: float = 120.0


class Verdict(NamedTuple):
    """What became of one client's copy."""

    happened: dict[str, int]
    errors: set[str]
    failure: BaseException | None


def run_copies(
    server: Server, directory: Path, clients: Mapping[str, Sequence[str]], plan: Plan
) -> tuple[dict[str, Verdict], int]:
    """All clients (with the commands of those that need one); also returns how often the broker was killed."""
    create_topic(server, INPUT, SOURCES)
    copies = [
        Copy(server, directory, client, plan.count, command=command, stalls=plan.stalls)
        for client, command in clients.items()
    ]
    try:
        run = Run(server, copies, plan)
        run.go()
        return {copy.client: run.judge(copy) for copy in copies}, run.kills
    finally:
        for copy in copies:
            copy.crash()


class Run:
    def __init__(self, server: Server, copies: Sequence[Copy], plan: Plan) -> None:
        self._server, self._copies, self._plan = server, copies, plan
        self._chance = random.Random(plan.count)
        self._feed = Feed(server, plan.count, plan.seconds, wait_at=WAIT_AT)
        self._failures: dict[str, BaseException] = {}
        self._changes: dict[str, list[tuple[float, str]]] = {}
        self.kills = 0

    def go(self) -> None:
        for copy in self._copies:
            copy.start()
        self._await_start()
        started = time.monotonic()
        self._end_s = started + self._plan.seconds + self._plan.patience_s
        self._next_kill_s = started + (self._plan.kill_every_s or 0)
        self._plan_changes(started)
        self._feed.start()
        while self._feed.is_alive() or self._working:
            assert time.monotonic() < self._end_s, self._why_unfinished()
            self._kill_when_due()
            for copy in self._working:
                self._change_when_due(copy)
                self._check(copy)
            if all(self._all_changed(copy) for copy in self._copies):
                self._feed.go_on.set()
            time.sleep(0.1)
        assert not self._feed.failures, self._feed.failures[:3]

    @property
    def _working(self) -> list[Copy]:
        return [copy for copy in self._copies if copy.client not in self._failures and not copy.finished()]

    def _await_start(self) -> None:
        deadline = time.monotonic() + self._plan.patience_s
        while not all(copy.instances[0].has("open") for copy in self._copies):
            assert time.monotonic() < deadline, "not all clients have started"
            for copy in self._copies:
                copy.check_running()
            time.sleep(0.05)

    def _plan_changes(self, started: float) -> None:
        changes = [TAKE_OVER] * self._plan.take_overs + [REPLACE] * self._plan.crashes
        every_s = self._plan.seconds / (len(changes) + 1)
        for copy in self._copies:
            self._chance.shuffle(changes)
            self._changes[copy.client] = [(started + every_s * (at + 1), change) for at, change in enumerate(changes)]

    def _kill_when_due(self) -> None:
        if self._plan.kill_every_s is None or time.monotonic() < self._next_kill_s:
            return
        if time.monotonic() > self._end_s - self._plan.patience_s / 2:
            return  # let them finish
        self._server.kill()
        self._server.start()
        self.kills += 1
        self._next_kill_s = time.monotonic() + self._plan.kill_every_s * self._chance.uniform(0.7, 1.3)

    def _change_when_due(self, copy: Copy) -> None:
        """One after the other: an instance is replaced when it has done some work."""
        rest = self._changes[copy.client]
        if rest and time.monotonic() > rest[0][0] and copy.is_settled:
            _, change = rest.pop(0)
            if change == TAKE_OVER:
                copy.take_over()
            else:
                copy.replace()

    def _all_changed(self, copy: Copy) -> bool:
        return copy.client in self._failures or (not self._changes[copy.client] and copy.instances[-1].has("open"))

    def _why_unfinished(self) -> str:
        lines = [
            f"after {self.kills} kills; {'input is left to be written' if self._feed.is_alive() else 'no input left'}"
        ]
        for copy in self._working:
            for instance in copy.instances:
                state = "running" if instance.running else "ended"
                lines.append(f"{instance.name} {state}: {[str(event)[:150] for event in instance.events()[-3:]]}")
        return "\n".join(lines)

    def _check(self, copy: Copy) -> None:
        try:
            copy.check_running()
        except AssertionError as error:
            self._failures[copy.client] = error

    def judge(self, copy: Copy) -> Verdict:
        failure, happened = self._failures.get(copy.client), {}
        if failure is None:
            try:
                copy.end()
                happened = copy.check()
            except AssertionError as error:
                failure = error
        events = [event for instance in copy.instances for event in instance.events()]
        return Verdict(happened, {event["error"] for event in events if event["event"] == "fenced"}, failure)
