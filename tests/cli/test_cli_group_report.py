"""What `twofold group` makes of words, files and descriptions, before and after it asks a broker."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.cli.common import FAILED, OK, USAGE, CliError
from twofold.cli.group.report import GroupReport, OffsetRow, _membership_problems, names_of, ranges
from twofold.cli.group.reset import Target, _report, _scope, choose_target, duration_ms, parse_offsets
from twofold.client import GroupDescription, MemberDescription, Node, TopicPartition
from twofold.wire.errors import TopicAuthorizationFailed, UnknownMemberId

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def refused(message: str) -> Any:
    return pytest.raises(CliError, match=re.escape(message))


@pytest.mark.parametrize(
    "text",
    [
        "t,0,5\nt,1,6\nu,0,7\n",
        "topic,partition,offset\n t , 0 , 5 \n\nt,1,6\nu,0,7",
        "g,t,0,5\ng,t,1,6\nother,t,0,1\ng,u,0,7\n",
        '"t",0,5\n"t",1,6\n"u",0,7\n',
        '[{"topic": "t", "partition": 0, "offset": 5}, {"topic": "t", "partition": 1, "offset": "6"},'
        ' {"topic": "u", "partition": 0, "offset": 7}]',
        ' {"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 5, "lag": 1},'
        ' {"topic": "t", "partition": 1, "offset": 6}, {"topic": "u", "partition": 0, "offset": 7},'
        ' {"topic": "u", "partition": 1, "offset": null}]}',
    ],
    ids=["csv", "header and spaces", "with groups", "quotes", "json list", "json as printed"],
)
def test_offsets_are_read_from_files_of_both_kinds(text: str) -> None:
    assert parse_offsets(text, "f", "g") == {T0: 5, T1: 6, U0: 7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--from-file f has no offsets for group g"),
        ("other,t,0,1\n", "--from-file f has no offsets for group g"),
        ("t,0,5\nt;1;6\n", "f, line 2: 't;1;6' is not topic,partition,offset"),
        ("t,0,end\n", "f, line 1: '0' and 'end' are not a partition and an offset"),
        ("t,0,-1\n", "f, line 1: neither partition 0 nor offset -1 may be negative"),
        ("t,0,1\nt,0,2\n", "f, line 2: t-0 has offset 1 already, not 2"),
        ("[1]", 'f, entry 1: an object with "topic", "partition" and "offset" is needed'),
        ('[{"topic": "t", "partition": 0, "offset": 1.5}]', "f, entry 1: 0 and 1.5 are not"),
        ('[{"topic": "t", "partition": true, "offset": 1}]', "f, entry 1: True and 1 are not"),
        ("{}", "f: neither a list nor an object with a list"),
        ("[", "--from-file f is no JSON"),
    ],
)
def test_files_that_make_no_sense_are_refused_with_the_line(text: str, message: str) -> None:
    with refused(message) as failure:
        parse_offsets(text, "f", "g")
    assert failure.value.code == USAGE


@given(st.dictionaries(st.tuples(st.sampled_from(["t", "u.v", "w-x"]), st.integers(0, 99)), st.integers(0), min_size=1))
def test_what_is_printed_as_json_can_be_read_back(offsets: dict[tuple[str, int], int]) -> None:
    rows = [{"topic": topic, "partition": index, "offset": value} for (topic, index), value in offsets.items()]
    assert parse_offsets(json.dumps({"offsets": rows}), "f", "g") == offsets


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT1H30M", 5_400_000), ("P7D", 604_800_000), ("P1W", 604_800_000), ("pt0.5s", 500), ("P1DT1S", 86_401_000)],
)
def test_durations_are_those_of_iso_8601(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "1h", "P1H", "PT1D", "-PT1H"])
def test_other_durations_are_refused(text: str) -> None:
    with refused(f"--by-duration {text!r} is not a duration like PT1H30M or P7D"):
        duration_ms(text)


def target(**options: Any) -> Target:
    absent = dict.fromkeys(("to_datetime", "by_duration", "shift_by", "to_offset", "from_file"))
    return choose_target("g", **{"to_earliest": False, "to_latest": False, **absent, **options})


def test_exactly_one_target_is_given() -> None:
    assert target(shift_by=0) == Target("shift", 0)
    assert target(to_offset=0) == Target("offset", 0)
    assert target(to_datetime="2026-07-01T12:00:00Z") == Target("timestamp", 1_782_907_200_000)
    with refused("where to? Give --to-earliest, "):
        target()
    with refused("--to-latest and --shift-by exclude each other"):
        target(to_latest=True, shift_by=3)
    with refused("--to-datetime soon is neither"):
        target(to_datetime="soon")
    with refused("cannot read --from-file /nowhere/at/all: No such file or directory"):
        target(from_file="/nowhere/at/all")


def test_topics_and_their_partitions_are_told_apart() -> None:
    latest = Target("latest")
    assert _scope(["t"], False, latest) == {"t": None}
    assert _scope(["t:0,2", "u", "t:3"], False, latest) == {"t": [0, 2, 3], "u": None}
    assert _scope(["t:0", "t"], False, latest) == {"t": None} == _scope(["t", "t:0"], False, latest)
    assert _scope([], True, latest) is None
    for text in ("", ":1", "t:", "t:a", "t:1,"):
        with refused(f"--topic {text!r} is not of the form"):
            _scope([text], False, latest)
    with refused("which partitions?: give --topic TOPIC[:0,1] or --all-topics"):
        _scope([], False, latest)
    with refused("--topic and --all-topics exclude each other"):
        _scope(["t"], True, latest)
    with refused("leave out --topic and --all-topics"):
        _scope(["t"], False, Target("file"))


def test_partitions_are_shown_in_runs() -> None:
    partitions = [TopicPartition("t", index) for index in (7, 0, 1, 2, 10)] + [U0]
    assert ranges(partitions) == "t:0-2,7,10 u:0"
    assert ranges([]) == ""


def test_partitions_that_fail_for_one_reason_are_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    joined, secret = UnknownMemberId("group 'g' has members"), TopicAuthorizationFailed("u")
    assert _report({T0: joined, U0: secret, T1: joined}) == FAILED
    assert capsys.readouterr().err.splitlines() == [
        "twofold: cannot reset t:0-1: UNKNOWN_MEMBER_ID: group 'g' has members",
        "twofold: cannot reset u:0: TOPIC_AUTHORIZATION_FAILED: u",
    ]
    assert _report({}) == OK


# Why a group does not get on


def member(name: str, *assignment: TopicPartition, to: tuple[TopicPartition, ...] | None = None) -> MemberDescription:
    return MemberDescription(f"{name}-uuid", None, name, "/10.0.0.1", assignment, to)


def reasons(state: str, *members: MemberDescription, lag: int | None = None) -> str:
    group = GroupDescription("g", state, "classic", "consumer", "", Node(1, "h", 1), members)
    row = OffsetRow(T0, lag=lag, stable_lag=lag)
    return "; ".join(problem.text for problem in _membership_problems(GroupReport(group, (row,))))


def test_a_stable_group_and_one_that_has_read_everything_have_no_problem() -> None:
    assert reasons("Stable", member("a", T0), lag=5) == ""
    assert reasons("Empty", lag=0) == "" == reasons("Empty")


def test_an_empty_group_with_lag_lacks_members() -> None:
    assert reasons("Empty", lag=5) == "no members: 5 records wait for one"


def test_a_rebalance_names_the_members_that_it_waits_for() -> None:
    text = reasons("PreparingRebalance", member("old", T0), member("new"))
    assert text.startswith("rebalancing: ") and "old at 10.0.0.1" in text and "new" not in text
    assert "group.initial.rebalance.delay.ms" in reasons("PreparingRebalance", member("new"))
    assert "one of a at 10.0.0.1, b at 10.0.0.1" in reasons("CompletingRebalance", member("a"), member("b"))


def test_a_reconciliation_names_the_members_that_have_not_moved() -> None:
    text = reasons("Reconciling", member("done", T0, to=(T0,)), member("slow", T0, T1, to=(T1,)))
    assert "slow at 10.0.0.1" in text and "done" not in text
    assert reasons("Assigning", member("a")).startswith("rebalancing: the coordinator")


def test_many_members_are_counted_not_listed() -> None:
    assert names_of([member(f"m{number}") for number in range(9)]).endswith("m4 at 10.0.0.1 and 4 more")
