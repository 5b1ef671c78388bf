"""What a run of a query knows of the topics that it reads. No Spark needed."""

from twofold.spark import offsets as o
from twofold.spark.source import TopicWatch
from twofold.types import TopicPartition

END = {"in": {"0": 40}}
RANGES = [o.Range(TopicPartition("in", 0), 0, 40)]


def test_a_topic_is_known_to_be_the_right_one_after_a_batch_that_this_run_has_planned() -> None:
    watch = TopicWatch()
    watch.note({"in": "first"})
    assert not watch.is_replayed(END)
    assert watch.unsure(RANGES) == {"in"}
    watch.plan(END, RANGES, is_replay=False)
    watch.commit(END)
    assert watch.unsure(RANGES) == set()


def test_a_batch_that_comes_again_makes_nothing_sure_however_often_its_tasks_are_asked_for() -> None:
    """As Spark may do where a query uses its stream twice (`df.union(df)`)."""
    watch = TopicWatch()
    for _ in range(2):
        is_replay = watch.is_replayed(END)
        watch.note({"in": "second"})
        assert is_replay
        watch.plan(END, RANGES, is_replay=is_replay)
    watch.commit(END)
    assert watch.unsure(RANGES) == {"in"}
    assert not watch.is_replayed({"in": {"0": 50}})
