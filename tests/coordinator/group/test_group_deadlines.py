"""Deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from twofold.coordinator.group.deadlines import Deadlines


def test_what_is_due_comes_in_the_order_of_time_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("late", 30)
    deadlines.set("early", 10)
    deadlines.set("middle", 20)
    assert deadlines.next_at == 10
    assert [deadlines.pop_due(25) for _ in range(3)] == ["early", "middle", None]
    assert deadlines.pop_due(29) is None
    assert deadlines.pop_due(30) == "late"
    assert len(deadlines) == 0


def test_moving_a_deadline_away_does_not_touch_the_heap() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at in range(1000):
        deadlines.set("member", 1000 + at)
    assert len(deadlines._heap) == 1
    assert deadlines.pop_due(1998) is None
    assert deadlines.next_at == 1999


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 3), st.integers(0, 40)),
            st.tuples(st.just("cancel"), st.integers(0, 3), st.just(0)),
            st.tuples(st.just("pass"), st.just(0), st.integers(0, 20)),
        )
    )
)
def test_deadlines_behave_like_a_dictionary_of_times(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    now = 0
    for what, key, number in steps:
        if what == "set":
            deadlines.set(key, now + number)
            model[key] = now + number
        elif what == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            now += number
            due = set()
            while (key_due := deadlines.pop_due(now)) is not None:
                assert key_due not in due
                due.add(key_due)
            assert due == {key for key, at in model.items() if at <= now}
            model = {key: at for key, at in model.items() if at > now}
        assert len(deadlines) == len(model)
        if model:
            assert deadlines.next_at is not None and deadlines.next_at <= min(model.values())
