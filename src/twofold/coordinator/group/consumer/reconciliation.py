"""One step of one member towards its target, taken at each of its heartbeats (KIP-848).

1. A partition is given to a member when no other member holds it, and a member holds it until it says that it has given
   it up: what it owns, as it says, no longer meets what it has to give up.
2. A member that has something to give up keeps its epoch until it has. A newer target is looked at afterwards.
3. A topic that a member does not want any more, or that is gone, counts as not in its target.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias
from uuid import UUID

from twofold.coordinator.group.consumer.records import Current, Epochs, Held, Partitions
from twofold.coordinator.group.consumer.state import STABLE, UNRELEASED, UNREVOKED
from twofold.wire.errors import FencedMemberEpoch

Owned: TypeAlias = Mapping[UUID, Collection[int]]


class Aim(NamedTuple):
    """What a step has to know of the group."""

    target_epoch: int
    target: Partitions
    wanted: Collection[UUID]  # the topics of the member's subscription that exist
    has_changed: bool  # whether the subscription did, in this request
    owned: Owned | None  # what the member says that it owns; None where it does not say
    is_held_by_another: Callable[[UUID, int], bool]


def step(current: Current, aim: Aim) -> Current:
    if current.state == STABLE:
        if current.epoch != aim.target_epoch:
            return _next(current, aim, aim.target_epoch)
        return _shed(current, aim) if aim.has_changed else current
    if current.state == UNREVOKED:
        if _owns(aim.owned, current.pending):
            return _shed(current, aim) if aim.has_changed else current
    elif current.state != UNRELEASED and (aim.owned is None or any(aim.owned.values())):
        raise FencedMemberEpoch(f"the member is in the unknown state {current.state}: it must give up all and rejoin")
    return _next(current, aim, aim.target_epoch)


def _next(current: Current, aim: Aim, epoch: int) -> Current:
    kept: dict[UUID, Epochs] = {}
    revoked: dict[UUID, Epochs] = {}
    free: list[tuple[UUID, list[int]]] = []
    is_whole = True
    for topic in {**aim.target, **current.assigned}:
        target = aim.target.get(topic, frozenset()) if topic in aim.wanted else frozenset()
        assigned = current.assigned.get(topic, {})
        keep = {index: since for index, since in assigned.items() if index in target}
        if keep:
            kept[topic] = keep
        if len(keep) < len(assigned):
            revoked[topic] = {index: since for index, since in assigned.items() if index not in target}
        missing = sorted(target.difference(keep))
        available = [index for index in missing if not aim.is_held_by_another(topic, index)]
        is_whole &= len(available) == len(missing)
        if available:
            free.append((topic, available))
    if revoked and _owns(aim.owned, revoked):
        return Current(current.epoch, current.epoch, UNREVOKED, kept, revoked)
    for topic, partitions in free:
        kept[topic] = {**kept.get(topic, {}), **dict.fromkeys(partitions, epoch)}
    return Current(epoch, current.epoch, STABLE if is_whole else UNRELEASED, kept)


def _shed(current: Current, aim: Aim) -> Current:
    """The subscription became smaller, and there is no newer target."""
    dropped = {topic: held for topic, held in current.assigned.items() if topic not in aim.wanted}
    if not dropped:
        # A member that wants nothing at all has taken a step all the same: the epoch before is the current one then.
        wants_nothing = not aim.wanted and not current.pending
        return current._replace(previous_epoch=current.epoch) if wants_nothing else current
    kept = {topic: held for topic, held in current.assigned.items() if topic in aim.wanted}
    pending: dict[UUID, Epochs] = dict(current.pending)
    for topic, held in dropped.items():
        pending[topic] = {**pending.get(topic, {}), **held}
    if _owns(aim.owned, pending):
        return Current(current.epoch, current.epoch, UNREVOKED, kept, pending)
    return current._replace(previous_epoch=current.epoch, assigned=kept)


def _owns(owned: Owned | None, held: Held) -> bool:
    """Whether a member may still own some of this; if it does not say, it may."""
    if owned is None:
        return True
    return any(index in held.get(topic, ()) for topic, partitions in owned.items() for index in partitions)
