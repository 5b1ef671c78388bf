"""A connection that is not read for a while, because its client has to wait (quotas).

1. What was read already waits as well: a muted connection handles nothing and reads nothing.
2. It is neither idle nor without progress: the broker makes it wait, so the broker does not close it for that.
3. Another wait makes it longer, never shorter. A server that stops waits for none.
"""

from collections.abc import Callable

from twofold.runtime.api import Runtime, TimerHandle


class Mute:
    """The wait of one connection, from its begin to its end."""

    __slots__ = ("_end", "_runtime", "_timer", "until_s")

    def __init__(self, runtime: Runtime, ms: int, end: Callable[[], None]) -> None:
        """`end` is called once, when the wait is over."""
        self._runtime = runtime
        self._end = end
        self.until_s = 0.0
        self._timer: TimerHandle | None = None
        self.extend(ms)

    def extend(self, ms: int) -> None:
        """From now on at least so long."""
        until_s = self._runtime.clock.monotonic() + ms / 1000
        if until_s > self.until_s:
            self.cancel()
            self.until_s = until_s
            self._timer = self._runtime.timers.call_later(ms / 1000, self._end)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
