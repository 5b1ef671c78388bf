"""Whether the wall clock can be believed when something is about to be deleted because of its age.

1. A wall clock that went an hour further ahead than the monotonic one has jumped: it was wrong before, or it is now, or
   the machine slept. Nothing is deleted by age for an hour after that, so that an operator can set the clock right.
2. A clock that comes back in time ends the doubt; one that stays is believed after the hour.
3. A clock that jumps back deletes nothing: all is younger than before.
"""

import logging

from twofold.runtime.api import Clock

log = logging.getLogger("twofold.log")

JUMP_MS = 3_600_000
DOUBT_S = 3600.0


class ClockWatch:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._believed = self._drift()
        self._doubtful_since: float | None = None

    def _drift(self) -> float:
        return self._clock.wall_ms() - self._clock.monotonic() * 1000

    def is_doubtful(self) -> bool:
        """Looks at both clocks. Call it now and then in any case: a jump counts from the moment that it is seen."""
        drift, now = self._drift(), self._clock.monotonic()
        jump_ms = drift - self._believed
        if jump_ms < JUMP_MS:
            if jump_ms < -JUMP_MS:
                log.error("the clock went back by %d s; records stay longer than retention.ms", -jump_ms // 1000)
            if self._doubtful_since is not None or jump_ms < -JUMP_MS:
                self._believed = drift
                self._doubtful_since = None
            return False
        if self._doubtful_since is None:
            self._doubtful_since = now
            log.critical(
                "the clock went ahead by %d s: if it is wrong, set it right. In %d s the broker deletes what is too "
                "old by this clock",
                jump_ms // 1000, DOUBT_S,
            )  # fmt: skip
        elif now - self._doubtful_since >= DOUBT_S:
            log.warning("the clock has stayed %d s ahead for an hour and is believed", jump_ms // 1000)
            self._believed = drift
            self._doubtful_since = None
        return self._doubtful_since is not None
