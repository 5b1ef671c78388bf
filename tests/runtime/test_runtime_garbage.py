"""What a full collection leaves is not looked at again, until there is twice as much."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from twofold.runtime.garbage import SparingCollections


class Node:
    """In a cycle with itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collections() -> Iterator[SparingCollections]:
    gc.collect()
    gc.freeze()
    sparing = SparingCollections()
    gc.callbacks.append(sparing)
    gc.disable()  # only the collections of the test
    try:
        yield sparing
    finally:
        gc.callbacks.remove(sparing)
        gc.unfreeze()
        gc.enable()
        gc.collect()


def test_what_stays_is_looked_at_once(collections: SparingCollections) -> None:
    kept = [Node() for _ in range(100)]
    assert any(one is kept[0] for one in gc.get_objects())
    gc.collect()
    assert not any(one is kept[0] for one in gc.get_objects())


def test_garbage_that_was_never_kept_goes_with_the_next_collection(collections: SparingCollections) -> None:
    found = weakref.ref(Node())
    gc.collect()
    assert found() is None


def test_younger_generations_freeze_nothing(collections: SparingCollections) -> None:
    frozen = gc.get_freeze_count()
    kept = [Node() for _ in range(100)]
    gc.collect(0)
    gc.collect(1)
    assert gc.get_freeze_count() <= frozen  # what was frozen before may go at any time
    assert any(one is kept[0] for one in gc.get_objects())


def test_a_cycle_that_was_frozen_goes_once_everything_has_doubled(collections: SparingCollections) -> None:
    node = Node()
    gc.collect()
    found = weakref.ref(node)
    del node
    gc.collect()
    assert found() is not None, "it is frozen"
    kept = [Node() for _ in range(gc.get_freeze_count() + 100_000)]  # some of what was frozen may have gone meanwhile
    gc.collect()
    assert collections.looks_at_all
    gc.collect()
    assert found() is None
    assert not collections.looks_at_all
    assert not any(one is kept[0] for one in gc.get_objects()), "what stays is frozen again"
