"""What was taken in the last seconds, in samples, and how long to wait until the rate is within a bound again.

The sums are Apache Kafka's (`Rate` over a `SampledStat`), so that both servers throttle alike:

1. A sample begins with what is recorded first in it, and is complete after the window of one sample.
2. A sample counts until nothing of it is younger than all windows together.
3. The rate is the sum by the time that the samples cover, at least all windows but one: a client that was silent may
   take ten seconds' worth at once.
4. The wait is what brings the rate down to the bound if nothing more is taken.
"""

import math
from typing import NamedTuple


class Windows(NamedTuple):
    """How many samples are kept, and how long one is."""

    samples: int = 11
    window_ms: int = 1000

    @property
    def burst_s(self) -> float:
        """Over how many seconds at least a rate is taken."""
        return max(1, self.samples - 1) * self.window_ms / 1000


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.start_ms = now_ms
        self.last_ms = now_ms
        self.value = 0.0


class SampledRate:
    """A value per second."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[_Sample] = []  # the oldest first

    def record(self, value: float, now_ms: int, windows: Windows) -> None:
        samples = self._samples
        expire_ms = windows.samples * windows.window_ms
        while samples and now_ms - samples[0].last_ms >= expire_ms:
            del samples[0]
        if not samples or now_ms - samples[-1].start_ms >= windows.window_ms:
            samples.append(_Sample(now_ms))
        latest = samples[-1]
        latest.value += value
        latest.last_ms = now_ms

    def total(self, now_ms: int, windows: Windows) -> float:
        expire_ms = windows.samples * windows.window_ms
        return sum(sample.value for sample in self._samples if now_ms - sample.last_ms < expire_ms)

    def wait_ms(self, bound: float, now_ms: int, windows: Windows) -> int:
        """How long the client has to wait; 0 where the rate is within the bound."""
        covered_ms = self._covered_ms(now_ms, windows)
        rate = self.total(now_ms, windows) / (covered_ms / 1000)
        if rate <= bound:
            return 0
        return math.floor((rate - bound) / bound * covered_ms + 0.5)

    def is_silent(self, now_ms: int, windows: Windows) -> bool:
        """Whether nothing counts any more."""
        return not self._samples or now_ms - self._samples[-1].last_ms >= windows.samples * windows.window_ms

    def _covered_ms(self, now_ms: int, windows: Windows) -> int:
        expire_ms = windows.samples * windows.window_ms
        oldest = min((one.start_ms for one in self._samples if now_ms - one.last_ms < expire_ms), default=now_ms)
        covered_ms = now_ms - oldest
        missing = windows.samples - 1 - covered_ms // windows.window_ms
        return max(1, covered_ms + max(0, missing) * windows.window_ms)
