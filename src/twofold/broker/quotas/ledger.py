"""What clients have taken of their quotas: the limits of the image, and the sums by budget.

1. `enforced` is false while there is nothing to enforce. Then a request pays for one look at it, and no more.
2. What a budget has taken survives a change of its limit: a new limit binds at once, with what was taken before.
3. Budgets are remembered up to MAX_BUDGETS of each kind; then those that were not used for longest are forgotten. A
   client that invents names has a budget for each of them anyway.
4. No wait is longer than the int32 that tells it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from twofold.broker.quotas.bucket import TokenBucket
from twofold.broker.quotas.limits import Budget, Limit, Limits, QuotaKind, connection_rates_of, limits_of
from twofold.broker.quotas.samples import SampledRate, Windows
from twofold.controller.quota_records import QuotaOwner

MAX_BUDGETS = 10_000
LONGEST_WAIT_MS = 2**31 - 1

T = TypeVar("T")


class Throttles:
    """How often clients had to wait because of a quota, and for how long."""

    __slots__ = ("count", "total_ms")

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0


class QuotaLedger:
    """The quotas of one broker. Its time is a clock that only goes ahead."""

    __slots__ = (
        "_buckets", "_connection_rates", "_controller_windows", "_limits", "_new_id_rate", "_new_ids", "_rates",
        "_windows", "enforced", "now_s", "throttles",
    )  # fmt: skip

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self._limits: Mapping[QuotaKind, Limits] = {kind: Limits({}) for kind in QuotaKind}
        self._connection_rates: Mapping[str | None, float] = {}
        self._windows = self._controller_windows = Windows()
        self._new_id_rate = 0.0
        self._rates: dict[QuotaKind, dict[Budget, SampledRate]] = {kind: {} for kind in QuotaKind}
        self._buckets: dict[Budget, TokenBucket] = {}
        self._new_ids: dict[str, TokenBucket] = {}
        self.throttles: dict[str, Throttles] = {}
        self.enforced = False

    def configure(self, windows: Windows, controller_windows: Windows, new_id_rate: float) -> None:
        """What settings say; `new_id_rate` is how many new transactional ids per second a principal may have, 0 any."""
        self._windows, self._controller_windows = windows, controller_windows
        self._new_id_rate = new_id_rate
        self._look()

    def limit(self, quotas: Iterable[tuple[QuotaOwner, Mapping[str, float]]]) -> None:
        """The quotas that hold from now on."""
        quotas = list(quotas)
        self._limits = limits_of(quotas)
        self._connection_rates = connection_rates_of(quotas)
        self._look()

    def connection_rate(self, host: str) -> float | None:
        """How many connections per second an address, as Java writes it, may open; None where it is not limited."""
        rates = self._connection_rates
        return rates.get(host, rates.get(None)) if rates else None

    def now_ms(self) -> int:
        return int(self.now_s() * 1000)

    # -- rates

    def take(self, kind: QuotaKind, user: str, client_id: str, value: float) -> int:
        """Count what a client has taken; how many ms it has to wait for it."""
        limit = self._limits[kind].find(user, client_id)
        if limit is None:
            return 0
        now_ms, windows = self.now_ms(), self._windows
        rate = self._rate(kind, limit.budget)
        rate.record(value, now_ms, windows)
        return min(rate.wait_ms(limit.bound, now_ms, windows), LONGEST_WAIT_MS)

    def take_time(self, user: str, client_id: str, seconds: float) -> int:
        """As `take`, for the time of the loop in percent; never longer than a sample."""
        return min(self.take(QuotaKind.REQUEST, user, client_id, seconds * 100), self._windows.window_ms)

    def give_back(self, kind: QuotaKind, user: str, client_id: str, value: float) -> None:
        limit = self._limits[kind].find(user, client_id)
        if limit is not None:
            self._rate(kind, limit.budget).record(-value, self.now_ms(), self._windows)

    def has_taken(self, kind: QuotaKind, user: str, client_id: str) -> bool:
        """Whether anything that the client took still counts."""
        limit = self._limits[kind].find(user, client_id)
        return limit is not None and self._rate(kind, limit.budget).total(self.now_ms(), self._windows) > 0

    def burst(self, kind: QuotaKind, user: str, client_id: str) -> float | None:
        """What a client that was silent may take at once; None where it is not limited."""
        limit = self._limits[kind].find(user, client_id)
        return None if limit is None else limit.bound * self._windows.burst_s

    # -- buckets

    def mutation_limit(self, user: str, client_id: str) -> Limit | None:
        return self._limits[QuotaKind.CONTROLLER_MUTATION].find(user, client_id)

    def mutation_wait_ms(self, limit: Limit) -> int:
        """0 where tokens are left, or not more than all are taken."""
        bucket = _used(self._buckets, limit.budget, TokenBucket)
        wait_ms = bucket.wait_ms(limit.bound, self._mutation_burst(limit), self.now_ms())
        return min(wait_ms, LONGEST_WAIT_MS)

    def take_mutations(self, limit: Limit, count: int) -> None:
        bucket = _used(self._buckets, limit.budget, TokenBucket)
        bucket.take(count, limit.bound, self._mutation_burst(limit), self.now_ms())

    def take_new_id(self, principal: str) -> int:
        """Count a new transactional id; how many ms the principal has to wait for it."""
        rate = self._new_id_rate
        if rate <= 0:
            return 0
        windows, now_ms = self._windows, self.now_ms()
        burst = max(1.0, rate * windows.samples * windows.window_ms / 1000)
        bucket = _used(self._new_ids, principal, TokenBucket)
        bucket.take(1, rate, burst, now_ms)
        return min(bucket.wait_ms(rate, burst, now_ms), LONGEST_WAIT_MS)

    # -- the rest

    def throttled(self, quota: str, wait_ms: int) -> None:
        """A client has to wait because of a quota; for metrics."""
        found = self.throttles.setdefault(quota, Throttles())
        found.count += 1
        found.total_ms += wait_ms

    def _mutation_burst(self, limit: Limit) -> float:
        windows = self._controller_windows
        return limit.bound * windows.samples * windows.window_ms / 1000

    def _rate(self, kind: QuotaKind, budget: Budget) -> SampledRate:
        return _used(self._rates[kind], budget, SampledRate)

    def _look(self) -> None:
        self.enforced = self._new_id_rate > 0 or any(self._limits.values())


K = TypeVar("K")


def _used(table: dict[K, T], key: K, make: Callable[[], T]) -> T:
    """The entry of a key, which is now the one that was used last."""
    found = table.pop(key, None)
    if found is None:
        found = make()
        if len(table) >= MAX_BUDGETS:
            del table[next(iter(table))]
    table[key] = found
    return found
