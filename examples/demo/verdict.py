"""The verdict: what a stock client read against what the generator sent, row by row."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orders import PRODUCTS, Sent
from transform import LATE_S, WINDOW_S

Rows = Counter[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row that is not what it should be counts twice: the right one is lost, the wrong one is too many."""

    expected: int
    read: int
    lost: int
    doubled: int

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.doubled == 0


def of_enriched(sent: Iterable[Sent], values: Iterable[bytes]) -> Verdict:
    expected = Counter((s.order.order_id, s.order.customer, PRODUCTS[s.order.product][0], _amount(s)) for s in sent)
    found = _rows(values)
    return _compare(expected, expected, found)


def of_revenue(sent: Sequence[Sent], values: Iterable[bytes]) -> Verdict:
    """Windows that are closed have to be there; those that are not may be missing, but not be wrong."""
    sums: Counter[tuple[int, str]] = Counter()
    for s in sent:
        sums[s.at_ms // 1000 // WINDOW_S * WINDOW_S, PRODUCTS[s.order.product][0]] += _amount(s)
    closed_until_s = max(s.at_ms for s in sent) / 1000 - LATE_S
    windows = Counter((start_s, name, amount) for (start_s, name), amount in sums.items())
    closed = Counter(window for window in windows if window[0] + WINDOW_S <= closed_until_s)
    return _compare(closed, windows, _rows(values))


def _compare(required: Rows, allowed: Rows, found: Rows) -> Verdict:
    return Verdict(
        expected=required.total(),
        read=found.total(),
        lost=(required - found).total(),
        doubled=(found - allowed).total(),
    )


def _amount(sent: Sent) -> int:
    return PRODUCTS[sent.order.product][1] * sent.order.quantity


def _rows(values: Iterable[bytes]) -> Rows:
    return Counter(tuple(json.loads(value).values()) for value in values)
