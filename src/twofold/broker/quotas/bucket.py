"""A bucket of tokens: what may be taken at once, and how fast it fills up again.

The sums are Apache Kafka's (`TokenBucket`): the bucket holds the burst, and may be overdrawn. Its owner refuses to take
more while it is below zero; the wait is until it is at zero again.
"""

import math


class TokenBucket:
    """Tokens, as of when they were last counted."""

    __slots__ = ("_counted_ms", "_tokens")

    def __init__(self) -> None:
        self._tokens = math.inf  # full, whatever the burst is
        self._counted_ms = 0

    def tokens(self, rate: float, burst: float, now_ms: int) -> float:
        self._tokens = min(burst, self._tokens + rate * max(0, now_ms - self._counted_ms) / 1000)
        self._counted_ms = now_ms
        return self._tokens

    def take(self, count: float, rate: float, burst: float, now_ms: int) -> None:
        self._tokens = min(burst, self.tokens(rate, burst, now_ms) - count)

    def wait_ms(self, rate: float, burst: float, now_ms: int) -> int:
        """Until nothing is overdrawn; 0 where nothing is."""
        tokens = self.tokens(rate, burst, now_ms)
        return math.floor(-tokens / rate * 1000 + 0.5) if tokens < 0 else 0
