"""The access control entries of an image, and the indexes that a check needs.

1. An `AclSet` is a value, as the image is: a change shares what it does not touch.
2. Finding the entries for a principal on a resource costs the same with 10 and with 100,000 entries: entries are found
   by type, pattern, name and principal; prefixes by the lengths that are in use.
3. Two sets are equal when they hold the same entries. The indexes are a function of the entries.
4. The host of an entry is compared in the spelling that Java gives to addresses, as the host of a client is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from twofold.controller.security.records import AccessControlEntry
from twofold.machine.maps import Map, MapMutation
from twofold.security.acl_codes import ANY_NAME, PatternType


class AclPattern(NamedTuple):
    """Which resources entries are about."""

    resource_type: int
    pattern_type: int
    name: str


class AclSubject(NamedTuple):
    """Which principal entries are about, and which resources."""

    pattern: AclPattern
    principal: str


@dataclass(frozen=True, slots=True, eq=False)
class AclSet:
    """All entries, and where to find them."""

    entries: Map[UUID, AccessControlEntry] = field(default_factory=Map)
    by_subject: Map[AclSubject, tuple[AccessControlEntry, ...]] = field(default_factory=Map)
    by_principal: Map[tuple[int, str], Map[UUID, AccessControlEntry]] = field(default_factory=Map)
    patterns: Map[AclPattern, int] = field(default_factory=Map)  # how many entries each has
    # By resource type: the lengths of prefixes in use, and how many entries have each.
    prefix_lengths: Map[int, Mapping[int, int]] = field(default_factory=Map)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AclSet) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[AccessControlEntry]:
        return iter(self.entries.values())

    def mutate(self) -> "AclSetMutation":
        return AclSetMutation(self)

    def patterns_of(self, resource_type: int, name: str) -> Iterator[AclPattern]:
        """The patterns in use that a resource may belong to."""
        yield AclPattern(resource_type, PatternType.LITERAL, name)
        if name != ANY_NAME:
            yield AclPattern(resource_type, PatternType.LITERAL, ANY_NAME)
        for length in self.prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                yield AclPattern(resource_type, PatternType.PREFIXED, name[:length])


class AclSetMutation:
    """Changes to an `AclSet`, which stays as it is; `finish()` gives the changed one."""

    __slots__ = ("_by_principal", "_by_subject", "_entries", "_lengths", "_patterns", "_principals")

    def __init__(self, base: AclSet) -> None:
        self._entries: MapMutation[UUID, AccessControlEntry] = base.entries.mutate()
        self._by_subject: MapMutation[AclSubject, tuple[AccessControlEntry, ...]] = base.by_subject.mutate()
        self._by_principal: MapMutation[tuple[int, str], Map[UUID, AccessControlEntry]] = base.by_principal.mutate()
        self._principals: dict[tuple[int, str], MapMutation[UUID, AccessControlEntry]] = {}
        self._patterns: MapMutation[AclPattern, int] = base.patterns.mutate()
        self._lengths: MapMutation[int, Mapping[int, int]] = base.prefix_lengths.mutate()

    def add(self, entry: AccessControlEntry) -> None:
        """Add an entry; one with the same id is replaced."""
        self.discard(entry.id)
        self._entries[entry.id] = entry
        pattern, subject = _places(entry)
        self._by_subject[subject] = (*self._by_subject.get(subject, ()), entry)
        self._of_principal(entry)[entry.id] = entry
        self._patterns[pattern] = self._patterns.get(pattern, 0) + 1
        if pattern.pattern_type == PatternType.PREFIXED:
            self._count_length(pattern, 1)

    def discard(self, entry_id: UUID) -> None:
        entry: AccessControlEntry | None = self._entries.pop(entry_id, None)
        if entry is None:
            return
        pattern, subject = _places(entry)
        left = tuple(one for one in self._by_subject[subject] if one.id != entry_id)
        if left:
            self._by_subject[subject] = left
        else:
            del self._by_subject[subject]
        del self._of_principal(entry)[entry_id]
        count = self._patterns[pattern] - 1
        if count:
            self._patterns[pattern] = count
        else:
            del self._patterns[pattern]
        if pattern.pattern_type == PatternType.PREFIXED:
            self._count_length(pattern, -1)

    def _of_principal(self, entry: AccessControlEntry) -> "MapMutation[UUID, AccessControlEntry]":
        key = entry.resource_type, entry.principal
        found = self._principals.get(key)
        if found is None:
            found = self._principals[key] = self._by_principal.get(key, Map()).mutate()
        return found

    def _count_length(self, pattern: AclPattern, change: int) -> None:
        counts = dict(self._lengths.get(pattern.resource_type, {}))
        length = len(pattern.name)
        counts[length] = counts.get(length, 0) + change
        if not counts[length]:
            del counts[length]
        if counts:
            self._lengths[pattern.resource_type] = counts
        else:
            self._lengths.pop(pattern.resource_type, None)

    def finish(self) -> AclSet:
        for key, changed in self._principals.items():
            entries = changed.finish()
            if entries:
                self._by_principal[key] = entries
            else:
                self._by_principal.pop(key, None)
        return AclSet(
            self._entries.finish(), self._by_subject.finish(), self._by_principal.finish(), self._patterns.finish(),
            self._lengths.finish(),
        )  # fmt: skip


def _places(entry: AccessControlEntry) -> tuple[AclPattern, AclSubject]:
    pattern = AclPattern(entry.resource_type, entry.pattern_type, entry.resource_name)
    return pattern, AclSubject(pattern, entry.principal)
