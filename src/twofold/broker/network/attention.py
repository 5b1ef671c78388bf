"""The clock by which clients are found silent: it counts the time in which this broker could listen.

A broker that is stopped (SIGSTOP), whose machine sleeps or whose event loop is late hears no client, and must not
end any for the silence of that time. Whatever ends a client for silence is therefore measured on this clock:
heartbeats and timeouts of transactions, sessions and rebalances of groups, idle connections.

1. The clock moves only while the event loop turns. A task turns it every PERIOD_S. Where the next turn does not come in
   time, by more than SLACK_S, the clock stands still until that turn comes: a reader that wakes before the turn finds
   the time that it was when the broker still listened.
2. A late turn counts for nothing, however late it is, if the turn after it comes in time. If that one is late as well,
   the first counts as one PERIOD_S then, when all that had arrived meanwhile was read. So no client is judged on waking
   before it is heard, what was heard after a pause has its whole time, and a loop that is late at every turn still ends
   the dead.
3. The clock never goes back, and the wall clock has no effect on it. Where the monotonic clock stood still as well (a
   suspended virtual machine), only the wall clock shows for how long; that is told, and nothing has to be granted.
4. It begins anew with the process: a restart gives every heartbeat and session a new start. How long a transaction has
   been open is then told by the wall clock, as in Kafka.
"""

import logging

from twofold.runtime.api import Clock, Timers

PERIOD_S = 0.2
SLACK_S = 0.05
TOLD_S = 1.0  # shorter stretches are counted and not written to the log

log = logging.getLogger(__name__)


class AttentionClock:
    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self.deaf_s = 0.0
        """For how long the broker could not listen, in all."""
        self._turned_at = clock.monotonic()
        self._wall_ms = clock.wall_ms()
        self._time = 0.0  # at the last turn
        self._latest = 0.0  # that a reader was told
        self._owed = 0.0  # of a late turn, to be counted at the next if that is late, too

    def monotonic(self) -> float:
        """Seconds in which the broker could listen, from an arbitrary start; never goes back."""
        ahead = self._clock.monotonic() - self._turned_at
        if ahead <= PERIOD_S + SLACK_S:
            self._latest = self._time + ahead
        return self._latest

    @property
    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    async def run(self) -> None:
        """Turn the clock, until cancelled."""
        self.begin()
        while True:
            await self._timers.sleep(PERIOD_S)
            self.turn()

    def begin(self) -> None:
        """Clients are listened to from now on."""
        self._turned_at, self._wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        self._time = self._latest

    def turn(self) -> None:
        """The event loop came round."""
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        passed = now - self._turned_at
        self._look_for_sleep((wall_ms - self._wall_ms) / 1000 - passed)
        if passed <= PERIOD_S + SLACK_S:
            self._time += passed
            self._owed = 0.0
        else:
            seen = self._latest - self._time  # of this stretch: the loop ran at least so long
            counted = max(PERIOD_S, seen)
            self._time = self._latest + self._owed
            self._owed = counted - seen
            self._grant(passed - counted)
        self._latest = self._time
        self._turned_at, self._wall_ms = now, wall_ms

    def _grant(self, deaf_s: float) -> None:
        self.deaf_s += deaf_s
        if deaf_s >= TOLD_S:
            log.warning(
                "the broker could not listen for %.1f s (paused, or its event loop was late): this time is granted to "
                "every heartbeat, transaction timeout and group session", deaf_s,
            )  # fmt: skip

    def _look_for_sleep(self, ahead_s: float) -> None:
        """The wall clock went that much further than the monotonic one."""
        if ahead_s >= TOLD_S:
            self.deaf_s += ahead_s
            log.warning(
                "the wall clock went ahead by %.1f s (the machine was suspended, or its clock was set): this time is "
                "granted to every heartbeat, transaction timeout and group session", ahead_s,
            )  # fmt: skip
