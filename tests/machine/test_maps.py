"""Maps that never change: against plain dicts, and that no map sees what is done to another."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.machine.maps import _MOST, SMALL, Map, MapMutation

Step = tuple[str, int, int]

KEYS = st.one_of(st.integers(0, 40), st.integers(0, 40).map(lambda number: number * 4096))  # one bucket takes many
STEPS = st.lists(st.tuples(st.sampled_from(["set", "delete", "mutate"]), KEYS, st.integers()), max_size=150)


@given(STEPS)
def test_a_map_does_what_a_dict_does_and_no_map_before_it_changes(steps: list[Step]) -> None:
    known: dict[int, int] = {}
    made: Map[int, int] = Map()
    seen: list[tuple[Map[int, int], dict[int, int]]] = []
    for word, key, value in steps:
        seen.append((made, dict(known)))
        if word == "set":
            known[key] = value
            made = made.set(key, value)
        elif word == "delete":
            if known.pop(key, None) is None and key not in made:
                with pytest.raises(KeyError):
                    made.delete(key)
            else:
                made = made.delete(key)
        else:
            draft = made.mutate()
            for number in range(value % 90):
                draft[key + number] = known[key + number] = value
            assert draft.pop(key + 1, None) == known.pop(key + 1, None)
            assert len(draft) == len(known) and (key in draft) == (key in known)
            made = draft.finish()
    for then, wanted in [*seen, (made, known)]:
        assert dict(then.items()) == wanted == dict(zip(then, then.values(), strict=True))
        assert len(then) == len(wanted) and then == Map(wanted) == wanted and hash(then) == hash(Map(wanted))
        assert all(then[key] == value and then.get(key) == value for key, value in wanted.items())
        assert -1 not in then and then.get(-1, "nothing") == "nothing"


def test_a_large_map_shares_all_but_one_bucket_with_the_map_it_was_made_from() -> None:
    before = Map({number: number for number in range(100_000)})
    after = before.set(17, -1).delete(18)
    shared = sum(one is two for one, two in zip(before._buckets, after._buckets, strict=True))
    assert shared == len(before._buckets) - 2
    assert (before[17], before[18], after[17], 18 in after, len(after)) == (17, 18, -1, False, 99_999)


def test_buckets_grow_and_shrink_with_the_map_so_that_a_change_copies_little() -> None:
    made: Map[int, int] = Map()
    for size in (1, SMALL, SMALL + 1, 5_000, 40_000, 2_000, 3, 0):
        draft = made.mutate()
        for number in range(size):
            draft[number] = number
        for number in range(size, len(made)):
            del draft[number]
        made = draft.finish()
        count = len(made._buckets)
        assert len(made) == size and size <= _MOST[count]
        assert max(map(len, made._buckets)) <= max(SMALL, 4 * count), f"{size} entries in {count} buckets"
        assert count == 1 or size * SMALL >= _MOST[count], f"{count} buckets for {size} entries"


def test_a_mutation_that_changes_nothing_gives_the_map_itself() -> None:
    made = Map({"a": 1})
    assert made.mutate().finish() is made and made.update({}) is made


def test_what_is_changed_after_the_end_of_a_mutation_is_not_in_the_map() -> None:
    draft: MapMutation[str, int] = Map({"a": 1}).mutate()
    draft["b"] = 2
    made = draft.finish()
    draft["b"] = 3
    del draft["a"]
    assert made == {"a": 1, "b": 2} and draft.finish() == {"b": 3}


def test_a_mutation_knows_what_was_removed_and_set_again() -> None:
    draft: MapMutation[str, int] = Map({"a": 1, "b": 2}).mutate()
    del draft["a"]
    assert "a" not in draft and draft.get("a") is None and draft.pop("a", 7) == 7 and len(draft) == 1
    for use in (lambda: draft["a"], lambda: draft.pop("a"), lambda: draft.__delitem__("a")):
        with pytest.raises(KeyError):
            use()
    draft["a"] = 3
    assert (draft["a"], draft["b"]) == (3, 2) and draft.pop("b") == 2 and draft.finish() == {"a": 3}
    with pytest.raises(TypeError):
        draft.items()  # type: ignore[misc]


def test_the_same_entries_in_another_order_are_the_same_map() -> None:
    entries = [(str(number), number) for number in range(500)]
    one = Map(entries)
    random.Random(1).shuffle(entries)
    two: Map[str, int] = Map()
    for key, value in entries:
        two = two.set(key, value)
    assert one == two and hash(one) == hash(two) and one != two.delete("7") and one != two.set("7", 8)
