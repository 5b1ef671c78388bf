"""What members take for their own, and what the coordinator may have heard of it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from twofold.types import TopicPartition

JOINS = 0
DOUBT_S = 20.0
"""A request that nobody answered was served by then, or never will be: no connection lasts that long without a word."""


@dataclass(frozen=True)
class Doubt:
    """A request without an answer (yet): the coordinator may read it at any time until then."""

    epoch: int
    owned: frozenset[TopicPartition]
    until_s: float


@dataclass(frozen=True)
class Belief:
    """What a member takes for its own at this moment."""

    name: str
    member_id: str
    is_classic: bool
    epoch: int
    owned: frozenset[TopicPartition]
    doubts: tuple[Doubt, ...] = ()

    def is_excused(self, tp: TopicPartition, now_s: float, least_epoch: int) -> bool:
        """A request of before, which was under way for longer, may say that it does not own this."""
        return any(
            tp not in doubt.owned and now_s < doubt.until_s and (doubt.epoch == JOINS or doubt.epoch >= least_epoch)
            for doubt in self.doubts
        )


class Doubts:
    """The requests of one process that say what it owns and have no answer."""

    def __init__(self) -> None:
        self.open: list[Doubt] = []

    @contextmanager
    def said(self, epoch: int, owned: Iterable[TopicPartition], now_s: float) -> Iterator[None]:
        """The doubt stays where the body raises: then there was no answer."""
        self.open = [doubt for doubt in self.open if doubt.until_s > now_s]
        doubt = Doubt(epoch, frozenset(owned), now_s + DOUBT_S)
        self.open.append(doubt)
        yield
        if doubt in self.open:
            self.open.remove(doubt)
