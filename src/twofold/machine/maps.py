"""`Map`: a mapping that never changes, and shares what it can with the maps made from it.

The state of a machine is a value: the optimistic state, the committed one and the one that a reader still holds are
three maps that differ in a few entries. A map spreads its entries over buckets, which are dicts. A change copies one
bucket and the list of buckets, and shares all other buckets. `mutate()` makes many changes and copies each bucket once.

1. Nothing changes a bucket that a map holds. A mutation keeps its changes apart until it is finished.
2. There are about as many buckets as entries in each, so a change to a map of n entries costs a copy of some sqrt(n).
3. The order of the entries is no promise: it depends on how the map was made.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import chain
from typing import Any, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

SMALL = 64  # a dict of so many entries is copied faster than anything cleverer

# number of buckets -> how many entries they hold before there are to be more of them
_MOST = {count: count * max(SMALL, count) for count in (1 << power for power in range(32))}
_MISSING: Any = object()
_REMOVED: Any = object()
_changed: Any = dict.get
_new = object.__new__


def _spread(entries: dict[K, V]) -> list[dict[K, V]]:
    length = len(entries)
    if length <= SMALL:
        return [entries]
    count = 1
    while _MOST[count] < length * 4:
        count *= 2
    buckets: list[dict[K, V]] = [{} for _ in range(count)]
    mask = count - 1
    for number, (key, value) in zip(map(hash, entries), entries.items(), strict=True):
        buckets[number & mask][key] = value
    return buckets


class Map(Mapping[K, V]):
    __slots__ = ("_buckets", "_length", "_mask")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        known = dict(entries)
        self._length = len(known)
        self._buckets = _spread(known)
        self._mask = len(self._buckets) - 1

    def __getitem__(self, key: K) -> V:
        return self._buckets[hash(key) & self._mask][key]

    def __contains__(self, key: object) -> bool:
        return key in self._buckets[hash(key) & self._mask]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: Any = None) -> Any:
        return self._buckets[hash(key) & self._mask].get(key, default)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._buckets)

    def keys(self) -> KeysView[K]:
        return KeysView(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def set(self, key: K, value: V) -> "Map[K, V]":
        index = hash(key) & self._mask
        before = self._buckets[index]
        bucket = before.copy()
        bucket[key] = value
        return self._with(index, bucket, self._length + len(bucket) - len(before))

    def delete(self, key: K) -> "Map[K, V]":
        """Raises KeyError where there is no such key."""
        index = hash(key) & self._mask
        bucket = self._buckets[index].copy()
        del bucket[key]
        return self._with(index, bucket, self._length - 1)

    def _with(self, index: int, bucket: dict[K, V], length: int) -> "Map[K, V]":
        buckets = self._buckets.copy()
        buckets[index] = bucket
        return _made(buckets, length)

    def update(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> "Map[K, V]":
        draft = self.mutate()
        for key, value in dict(entries).items():
            draft[key] = value
        return draft.finish()

    def mutate(self) -> "MapMutation[K, V]":
        return MapMutation(self)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Map):
            if self._length != other._length:
                return False
            if self._mask == other._mask:
                return self._buckets == other._buckets
        return isinstance(other, Mapping) and dict(self.items()) == dict(other.items())

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        return f"Map({dict(self.items())!r})"


class _Values(ValuesView[V]):
    __slots__ = ()
    _mapping: Map[Any, V]

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(map(dict.values, self._mapping._buckets))


class _Items(ItemsView[K, V]):
    __slots__ = ()
    _mapping: Map[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(map(dict.items, self._mapping._buckets))


def _made(buckets: list[dict[K, V]], length: int) -> Map[K, V]:
    count = len(buckets)
    # A map that grows is spread anew each time it has become about four times as large.
    if length > _MOST[count] or (count > 1 and length * SMALL < _MOST[count]):
        buckets = _spread(buckets[0] if count == 1 else dict(chain.from_iterable(map(dict.items, buckets))))
        count = len(buckets)
    made: Map[K, V] = _new(Map)
    made._buckets = buckets
    made._mask = count - 1
    made._length = length
    return made


class MapMutation(dict[K, V]):
    """Changes to a map, which stays as it is: what has changed, over the map. `finish()` gives the changed one.

    It is a dict for the sake of `draft[key] = value`, which a load of many records does for each of them. What a dict
    could say of all entries it does not say: it has the changes only.
    """

    __slots__ = ("_base", "_removes")
    keys = values = items = None  # type: ignore[assignment]

    def __init__(self, base: Map[K, V]) -> None:
        self._base = base
        self._removes = False

    def __getitem__(self, key: K) -> V:
        value = _changed(self, key, _MISSING)
        if value is _MISSING:
            return self._base[key]
        if value is _REMOVED:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def get(self, key: K, default: Any = None, /) -> Any:
        value = _changed(self, key, _MISSING)
        if value is _MISSING:
            return self._base.get(key, default)
        return default if value is _REMOVED else value

    def __contains__(self, key: object) -> bool:
        value = _changed(self, key, _MISSING)
        return key in self._base if value is _MISSING else value is not _REMOVED

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    def pop(self, key: K, default: Any = _MISSING, /) -> Any:
        value = self.get(key, _MISSING)
        if value is not _MISSING:
            self[key] = _REMOVED
            self._removes = True
            return value
        if default is _MISSING:
            raise KeyError(key)
        return default

    def __len__(self) -> int:
        return len(self.finish())

    def __bool__(self) -> bool:
        return len(self) > 0

    def finish(self) -> Map[K, V]:
        """The map with the changes. What is changed here afterwards is not in it."""
        base = self._base
        if not dict.__len__(self):
            return base
        if base._mask == 0:
            bucket = self._applied(base._buckets[0], self)
            return _made([bucket], len(bucket))
        buckets, length = base._buckets.copy(), base._length
        for index, changes in self._by_bucket(base._mask).items():
            before = buckets[index]
            bucket = buckets[index] = self._applied(before, changes)
            length += len(bucket) - len(before)
        return _made(buckets, length)

    def _by_bucket(self, mask: int) -> dict[int, dict[K, V]]:
        found: dict[int, dict[K, V]] = {}
        for (key, value), number in zip(dict.items(self), map(hash, dict.keys(self)), strict=True):
            changes = found.get(number & mask)
            if changes is None:
                changes = found[number & mask] = {}
            changes[key] = value
        return found

    def _applied(self, bucket: dict[K, V], changes: dict[K, V]) -> dict[K, V]:
        bucket = bucket.copy()
        dict.update(bucket, changes)
        if self._removes:
            return {key: value for key, value in bucket.items() if value is not _REMOVED}
        return bucket
