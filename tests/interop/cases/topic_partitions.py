"""DescribeTopicPartitions: order, pages, cursors."""

from typing import Any

from oracle.compare import Cases, Differs, Probe

CASES = Cases("DescribeTopicPartitions")
case = CASES.case


def describe(
    probe: Probe, label: str, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None, **options: Any
) -> Any:
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    body = {"topics": [{"name": name} for name in names], "response_partition_limit": limit, "cursor": at}
    return probe.ask(label, "DescribeTopicPartitions", 0, body, **options)


def shape(answer: dict[str, Any]) -> Any:
    """Names, errors and indexes, in the order in which they came."""
    rows = [(row["name"], row["error_code"], len(row["partitions"])) for row in answer["topics"]]
    return {"in order": " ".join(map(str, rows)), "next": answer["next_cursor"]}


def codes(answer: dict[str, Any]) -> Any:
    return [{"name": row["name"], "error_code": row["error_code"]} for row in answer["topics"]]


EMPTY_NAME = "an empty name is a name that cannot exist, and no reason to fail the others"
ONE = {"topics[0].error_code": 17, "topics[0].topic_authorized_operations": 3576}
ALL = {"[0].error_code": 17, "[1].error_code": 0, "[2].error_code": 0}


@case({"illegal 0": Differs(EMPTY_NAME, ONE), "an empty name among others": Differs(EMPTY_NAME, ALL)})
def topics_by_name(probe: Probe) -> None:
    one, two = probe.topic("one", partitions=3).name, probe.topic("two").name
    describe(probe, "one", one)
    describe(probe, "two", one, two)
    describe(probe, "the same twice", one, one)
    describe(probe, "with unknown ones", two, probe.name("none"), one)
    for index, name in enumerate(("", ".", "a b", "ü", "x" * 250)):
        describe(probe, f"illegal {index}", name)
    describe(probe, "illegal ones among others", one, "a b", two)
    describe(probe, "an empty name among others", one, "", two, keep=codes)
    describe(probe, "the metadata log", "__cluster_metadata")


NO_SHARE_GROUPS = Differs("there are no share groups, and so no topic for them", {"topics[0].is_internal": False})


@case({"share groups": NO_SHARE_GROUPS})
def internal_topics_that_are_not_there(probe: Probe) -> None:
    describe(probe, "share groups", "__share_group_state")


@case()
def the_order_is_that_of_the_names(probe: Probe) -> None:
    names = [probe.topic(name).name for name in ("b", "a", "B", "a.1", "a-1", "a1")]
    for label, asked in (("given", names), ("sorted", sorted(names)), ("turned", sorted(names, reverse=True))):
        describe(probe, label, *asked, keep=shape)


@case()
def pages(probe: Probe) -> None:
    names = [probe.topic(name, partitions=count).name for name, count in (("a", 2), ("b", 3), ("c", 1))]
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 7, 2**31 - 1):
        cursor = None
        for page in range(10):
            answer = describe(probe, f"limit {limit} page {page}", *names, limit=limit, cursor=cursor, keep=shape)
            if answer["next_cursor"] is None:
                break
            cursor = (answer["next_cursor"]["topic_name"], answer["next_cursor"]["partition_index"])
    describe(probe, "what is not there takes no room", *names, probe.name("aa"), probe.name("none"), limit=2)


@case()
def cursors(probe: Probe) -> None:
    a, b = probe.topic("a", partitions=2).name, probe.topic("b", partitions=2).name
    none = probe.name("none")
    for label, cursor in (
        ("the first", (a, 0)),
        ("in the first", (a, 1)),
        ("at the end of the first", (a, 2)),
        ("far behind the end", (a, 1000)),
        ("the second", (b, 0)),
        ("negative", (a, -1)),
        ("not among the topics", (none, 0)),
        ("no name", ("", 0)),
        ("not among the topics, and negative", (none, -1)),
    ):
        describe(probe, label, a, b, cursor=cursor)
    describe(probe, "an unknown topic that is asked for", a, none, cursor=(none, 5))


@case()
def all_topics(probe: Probe) -> None:
    """Those of other cases are left out; the cursor says where to begin."""
    mine = [probe.topic(name, partitions=2).name for name in ("x", "y")]

    def keep(answer: dict[str, Any]) -> Any:
        rows = [row for row in answer["topics"] if row["name"] in mine]
        first = answer["topics"][0]["name"] if answer["topics"] else None
        return {"topics": rows, "first": first, "is sorted": is_sorted(answer)}

    describe(probe, "from mine on", cursor=(mine[0], 1), limit=3, keep=keep)
    describe(probe, "between", cursor=(mine[0] + "-", 7), limit=2, keep=keep)
    describe(probe, "negative", cursor=(mine[0], -1), keep=keep)
    describe(probe, "behind all", cursor=("~", 0), keep=keep)
    answer = describe(probe, "all", keep=lambda answer: is_sorted(answer))
    names = [row["name"] for row in answer["topics"]]
    probe.record("mine are there", [name in names for name in mine])


def is_sorted(answer: dict[str, Any]) -> bool:
    names = [row["name"] for row in answer["topics"]]
    return names == sorted(names)
