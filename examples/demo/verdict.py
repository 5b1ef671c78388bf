"""The verdict: what a stock client read against what the generator sent, row by row."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from names import LATE_S, WINDOW_S
from orders import PRODUCTS, Sent
from watch import Row

Rows = Counter[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row that is not what it should be counts twice: the right one is lost, the wrong one is too many."""

    expected: int
    read: int
    lost: int
    doubled: int
    disordered: int | None = None
    """Rows that come after a later one of their key, or in another partition; None where Spark promises no order."""

    @property
    def good(self) -> bool:
        return not (self.lost or self.doubled or self.disordered)


def of_enriched(sent: Iterable[Sent], rows: Sequence[Row]) -> Verdict:
    expected = Counter(
        (s.order.customer, s.order.order_id, s.order.customer, PRODUCTS[s.order.product][0], _amount(s)) for s in sent
    )
    return _compare(expected, expected, rows, _disordered(rows))


def of_revenue(sent: Sequence[Sent], rows: Sequence[Row]) -> Verdict:
    """Windows that are closed have to be there; those that are not may be missing, but not be wrong."""
    sums: Counter[tuple[int, str]] = Counter()
    for s in sent:
        sums[s.at_ms // 1000 // WINDOW_S * WINDOW_S, PRODUCTS[s.order.product][0]] += _amount(s)
    closed_until_s = max((s.at_ms for s in sent), default=0) / 1000 - LATE_S
    windows = Counter((name, start_s, name, amount) for (start_s, name), amount in sums.items())
    closed = Counter(window for window in windows if window[1] + WINDOW_S <= closed_until_s)
    return _compare(closed, windows, rows)


def _compare(required: Rows, allowed: Rows, rows: Sequence[Row], disordered: int | None = None) -> Verdict:
    found = Counter((row.key, *json.loads(row.value).values()) for row in rows)
    return Verdict(
        expected=required.total(),
        read=found.total(),
        lost=(required - found).total(),
        doubled=(found - allowed).total(),
        disordered=disordered,
    )


def _disordered(rows: Iterable[Row]) -> int:
    """Orders of a customer are to be in one partition, in the order in which they were sent."""
    newest: dict[str, tuple[int, int]] = {}
    count = 0
    for row in rows:
        order_id = json.loads(row.value)["order_id"]
        partition, last = newest.setdefault(row.key, (row.partition, -1))
        count += row.partition != partition or order_id < last
        newest[row.key] = partition, max(order_id, last)
    return count


def _amount(sent: Sent) -> int:
    return PRODUCTS[sent.order.product][1] * sent.order.quantity
