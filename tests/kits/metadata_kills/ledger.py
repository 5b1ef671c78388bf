"""What everybody may see of metadata that is changed while the broker is killed: states as a whole, one after another.

1. Changes come one at a time, so the metadata goes through states that are numbered. An answer is right if it is that
   of one state in all that it shows: a topic with some of its partitions or configurations, or some of the topics of
   one batch, is that of none.
2. The state is one between two: the newest that anybody knew of when the question was sent (a change that was
   acknowledged, or seen by anybody), and the newest that was asked for when the answer came. So what was acknowledged
   or seen once is there for ever, kills or not.
3. Clients are told only of errors that they may try again after, or that the change has happened already.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

PREFIX = "watched-"  # of the names of all topics that are judged


class Topic(NamedTuple):
    partitions: int
    configs: tuple[tuple[str, str], ...] = ()


State = Mapping[str, Topic]  # a topic that is not in it does not exist


@dataclass(frozen=True, slots=True)
class Change:
    """A step from one state to the next, asked for by one request."""

    kind: str  # create, grow, delete or configs
    topics: Mapping[str, Topic | None]  # as they are after it; None: gone

    def applied(self, state: State) -> State:
        merged = {**state, **self.topics}
        return {name: topic for name, topic in merged.items() if topic is not None}


@dataclass(slots=True)
class Ledger:
    """The states, what is known of them, and every answer that was that of none."""

    states: list[State] = field(default_factory=lambda: [{}])
    known: int = 0  # the newest state that was acknowledged or seen
    wrong: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)  # by who asked
    during: Counter[str] = field(default_factory=Counter)  # those among them while a change was under way
    errors: Counter[str] = field(default_factory=Counter)  # those that may be tried again after
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def newest(self) -> State:
        """What is asked for last, whether it has happened or not."""
        return self.states[-1]

    def begin(self, change: Change) -> None:
        with self._lock:
            assert self.known == len(self.states) - 1, "changes come one at a time"
            self.states.append(change.applied(self.states[-1]))

    def acknowledge(self) -> None:
        with self._lock:
            self.known = len(self.states) - 1

    def answered(self, who: str, since: int, is_of: Callable[[State], bool], shown: str) -> None:
        """An answer to a question that was sent when `since` was known."""
        with self._lock:
            newest = len(self.states) - 1
            self.answers[who] += 1
            self.during[who] += self.known < newest
            right = [number for number in range(since, newest + 1) if is_of(self.states[number])]
            if right:
                self.known = max(self.known, right[0])
            elif len(self.wrong) < 20:
                lost = any(is_of(state) for state in self.states[:since])
                what = "a state that had been left" if lost else "no state"
                self.wrong.append(f"{who} saw {what} (known {since}, asked for {newest}): {shown}")

    def trouble(self, who: str, error: str) -> None:
        with self._lock:
            self.errors[f"{who}: {error}"] += 1

    def fail(self, text: str) -> None:
        with self._lock:
            self.wrong.append(text)

    def check(self) -> None:
        assert not self.wrong, "\n".join(self.wrong)


def counts(state: State, names: Iterable[str] | None = None) -> dict[str, int]:
    """How many partitions each topic has, as metadata shows it."""
    chosen = state if names is None else [name for name in names if name in state]
    return {name: state[name].partitions for name in chosen}


def differences(seen: Mapping[str, object], state: Mapping[str, object]) -> str:
    """Some words on what an answer has that a state has not."""
    missing = sorted(state.keys() - seen.keys())
    extra = sorted(seen.keys() - state.keys())
    other = [
        f"{name}: {seen[name]}, not {state[name]}" for name in seen.keys() & state.keys() if seen[name] != state[name]
    ]
    return (
        f"missing {len(missing)} {missing[:3]}, too many {len(extra)} {extra[:3]}, different {len(other)} {other[:3]}"
    )


# -- the log of metadata, as `twofold log dump` prints it


class Transactions(NamedTuple):
    """What a metadata log holds of transactions."""

    ended: Counter[str]
    aborted: Counter[str]
    open: str | None
    last_offset: int


def read_transactions(rows: Iterable[Mapping[str, object]], open_name: str | None = None) -> Transactions:
    """AssertionError where they are not one after another. `open_name`: one that was open before the first row."""
    ended: Counter[str] = Counter()
    aborted: Counter[str] = Counter()
    last_offset = -1
    for row in rows:
        assert row["what"] != "damage", row
        if row["what"] != "record":
            continue
        value, offset = row["value"], row["offset"]
        assert isinstance(value, dict)
        assert isinstance(offset, int)
        last_offset = offset
        kind = value["type"]
        if kind == "BeginTransaction":
            assert open_name is None, f"{value} at {last_offset} inside {open_name}"
            open_name = str(value["name"])
        elif kind == "EndTransaction":
            assert open_name is not None, f"End at {last_offset} without Begin"
            ended[open_name] += 1
            open_name = None
        elif kind == "AbortTransaction":
            assert open_name is not None, f"Abort at {last_offset} without Begin"
            aborted[open_name] += 1
            open_name = None
    return Transactions(ended, aborted, open_name, last_offset)
