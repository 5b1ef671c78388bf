"""A look at the followers of every partition that this broker leads, twice in each replica.lag.time.max.ms.

A follower that is gone does nothing that could be noticed: only the time that passes shows it. A look costs a few
comparisons for each partition; the event loop turns in between.
"""

from collections.abc import Callable

from twofold.broker.partitions.replicas import ReplicaManager
from twofold.runtime.api import Timers

AT_ONCE = 200


class FollowerWatch:
    def __init__(self, replicas: ReplicaManager, timers: Timers, lag_ms: Callable[[], int]) -> None:
        """`lag_ms` is asked after each look: replica.lag.time.max.ms may change."""
        self._replicas = replicas
        self._timers = timers
        self._lag_ms = lag_ms

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._timers.sleep(max(1, self._lag_ms()) / 2000)
            await self.look()

    async def look(self) -> None:
        for number, partition in enumerate(list(self._replicas.partitions()), 1):
            partition.look_at_followers()
            if number % AT_ONCE == 0:
                await self._timers.sleep(0)
