"""Connections that are not read for a while, because their clients have to wait (quotas).

1. What was read already waits as well: a muted connection handles nothing and reads nothing.
2. It is neither idle nor without progress: the broker makes it wait, so the broker does not close it for that.
3. Another wait makes it longer, never shorter. A server that stops waits for none.
"""

from collections.abc import Callable

from twofold.broker.network.context import Peer
from twofold.runtime.api import Runtime, TimerHandle


class Mutes:
    """The muted connections of a server."""

    __slots__ = ("by_quota", "runtime")

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.by_quota: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self.by_quota.values())

    def begin(self, peer: Peer, end: Callable[[], None]) -> "Mute":
        """The wait that the peer's request has brought about; `end` is called once, when it is over."""
        mute = Mute(self, peer.mute_quota, end)
        mute.extend(peer)
        return mute


class Mute:
    """The wait of one connection, from its begin to its end."""

    __slots__ = ("_end", "_mutes", "_quota", "_timer", "until_s")

    def __init__(self, mutes: Mutes, quota: str, end: Callable[[], None]) -> None:
        self._mutes = mutes
        self._quota = quota
        self._end = end
        self._timer: TimerHandle | None = None
        self.until_s = 0.0
        mutes.by_quota[quota] = mutes.by_quota.get(quota, 0) + 1

    def extend(self, peer: Peer) -> None:
        """From now on at least as long as the peer's request asks for."""
        ms, peer.mute_ms = peer.mute_ms, 0
        runtime = self._mutes.runtime
        until_s = runtime.clock.monotonic() + ms / 1000
        if until_s > self.until_s:
            if self._timer is not None:
                self._timer.cancel()
            self.until_s = until_s
            self._timer = runtime.timers.call_later(ms / 1000, self._end)

    def over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._mutes.by_quota[self._quota] -= 1
