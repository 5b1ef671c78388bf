"""Three workers of one transactional id that take over from each other, and are killed and paused at random."""

import random
import signal
import time
from collections import Counter

from kits.dualwrite.store import Process, Store

WORKERS = 3
ORDERS_EACH = 30
SLEEPERS = 5
"""So many are paused at a time; then one wakes up, or is killed in its sleep."""


class Storm:
    """A seed draws what the workers do to themselves, step by step; when they meet is up to the machine."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._dice = random.Random(seed)
        self._awake: list[Process] = []
        self._asleep: list[Process] = []
        self.ends = Counter[str]()

    def rage(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # Not at once: one that takes over has time to sell something before the next one does.
            if len(self._awake) < WORKERS and self._dice.random() < 0.05:
                seed = self._dice.randrange(1 << 30)
                self._awake.append(self._store.start(seed=seed, orders=ORDERS_EACH))
            self._look()
            if self._awake and self._dice.random() < 0.01:  # at any moment, not only between two steps
                self._dice.choice(self._awake).kill()
            if len(self._asleep) > SLEEPERS or (self._asleep and self._dice.random() < 0.05):
                self._rouse(self._asleep.pop(self._dice.randrange(len(self._asleep))))
            time.sleep(0.01)

    def calm(self) -> None:
        """All wake up, as often as they fall asleep, until all have ended."""
        while self._awake or self._asleep:
            for process in self._asleep:
                self.ends["woken"] += 1
                process.wake_up()
            self._awake += self._asleep
            self._asleep = []
            self._look()
            time.sleep(0.01)

    def _look(self) -> None:
        awake, self._awake = self._awake, []
        for process in awake:
            if process.code is not None:
                self._end(process)
            elif process.is_stopped:
                self.ends["paused"] += 1
                self._asleep.append(process)
            else:
                self._awake.append(process)

    def _rouse(self, process: Process) -> None:
        if self._dice.random() < 0.2:
            process.kill()
            self._end(process)
        else:
            self.ends["woken"] += 1
            process.wake_up()
            self._awake.append(process)

    def _end(self, process: Process) -> None:
        code = process.wait()
        assert code in (0, 3, -signal.SIGKILL), process.lines
        self.ends["killed" if code < 0 else "finished" if code == 0 else process.last_words] += 1
        self._store.forget(process)
