"""The comparison itself: it finds what differs, and a decided difference must be exact."""

import pytest

from oracle.batches import batch, describe, idempotent
from oracle.compare import Case, Comparison, Differs, Probe, Server, changes, compare, differences, flat
from oracle.wire import WireError, decode_response, encode_request, fit


def case(**differs: Differs) -> Case:
    return Case("name", "group", lambda probe: None, differs)


def answer(code: int) -> dict[str, object]:
    return {"topics": [{"name": "t", "error_code": code}]}


def test_equal_answers_agree() -> None:
    assert differences(case(), {"a": answer(0)}, {"a": answer(0)}) == []


def test_a_difference_names_its_path_and_both_values() -> None:
    (line,) = differences(case(), {"a": answer(3)}, {"a": answer(17)})
    assert "topics[0].error_code" in line
    assert "3" in line and "17" in line


def test_an_error_may_be_explained_but_not_a_success() -> None:
    bare: dict[str, object] = {"rows": [{"error_code": 87, "error_message": None}]}
    told: dict[str, object] = {"rows": [{"error_code": 87, "error_message": "<text>"}]}
    assert differences(case(), {"a": bare}, {"a": told}) == []
    assert differences(case(), {"a": told}, {"a": bare})
    fine: dict[str, object] = {"rows": [{"error_code": 0, "error_message": None}]}
    odd: dict[str, object] = {"rows": [{"error_code": 0, "error_message": "<text>"}]}
    assert differences(case(), {"a": fine}, {"a": odd})


def test_a_closed_connection_differs_from_an_answer() -> None:
    assert differences(case(), {"a": "closed"}, {"a": answer(0)})
    assert differences(case(), {"a": "closed"}, {"a": "no answer"})


def test_a_question_that_only_one_side_answered_is_a_difference() -> None:
    assert differences(case(), {"a": answer(0), "b": answer(0)}, {"a": answer(0)})


def test_a_decided_difference_must_be_exact() -> None:
    decided = case(a=Differs("why", {"topics[0].error_code": 87}))
    assert differences(decided, {"a": answer(-1)}, {"a": answer(87)}) == []
    assert differences(decided, {"a": answer(-1)}, {"a": answer(2)})
    assert differences(decided, {"a": answer(-1)}, {"a": answer(-1)})


def test_a_decided_difference_that_is_none_any_more_is_reported() -> None:
    decided = case(a=Differs("why", {"topics[0].error_code": 87}))
    assert differences(decided, {"a": answer(87)}, {"a": answer(87)})
    assert differences(decided, {"b": answer(0)}, {"b": answer(0)})


def test_a_decided_difference_may_replace_silence_by_an_answer() -> None:
    decided = case(a=Differs("why", answer(87)))
    assert differences(decided, {"a": "no answer"}, {"a": answer(87)}) == []


def test_a_decided_difference_may_leave_a_row_out() -> None:
    decided = case(a=Differs("why", {"topics": []}))
    assert differences(decided, {"a": answer(0)}, {"a": {"topics": []}}) == []


class Scripted:
    """A server whose answers to the first and the second attempt are known."""

    host, port = "127.0.0.1", 1

    def __init__(self, name: str, *codes: int) -> None:
        self.name, self.codes = name, codes
        self.asked = 0


def told(_: Case, server: Server, attempt: int) -> dict[str, object]:
    assert isinstance(server, Scripted)
    assert attempt == server.asked
    server.asked += 1
    return {"a": answer(server.codes[attempt])}


def outcome(oracle: Scripted, twofold: Scripted) -> Comparison:
    return compare(case(), oracle, twofold, told)


def test_servers_that_agree_are_asked_once() -> None:
    oracle, twofold = Scripted("oracle", 3), Scripted("twofold", 3)
    assert outcome(oracle, twofold) == ([], [])
    assert (oracle.asked, twofold.asked) == (1, 1)


def test_a_difference_from_a_steady_oracle_stands() -> None:
    twofold = Scripted("twofold", 17, 3)
    wrong, wavering = outcome(Scripted("oracle", 3, 3), twofold)
    assert wrong and not wavering
    assert twofold.asked == 1, "a second answer cannot make up for the first"


def test_an_oracle_that_contradicts_itself_is_reported_and_excuses_twofold() -> None:
    wrong, wavering = outcome(Scripted("oracle", 17, 3), Scripted("twofold", 3, 3))
    assert not wrong
    assert len(wavering) == 1


def test_a_twofold_that_contradicts_itself_is_wrong_even_if_it_agrees_in_the_end() -> None:
    wrong, wavering = outcome(Scripted("oracle", 17, 3), Scripted("twofold", 5, 3))
    assert wrong and wavering
    assert "contradicts itself" in wrong[0]


def test_twofold_must_agree_with_the_second_answer_of_a_wavering_oracle() -> None:
    wrong, _ = outcome(Scripted("oracle", 17, 3), Scripted("twofold", 5, 5))
    assert wrong


def test_changes_name_both_values() -> None:
    assert changes({"a": answer(3)}, {"a": answer(3)}) == []
    (line,) = changes({"a": answer(3)}, {"a": answer(17)})
    assert "3" in line and "17" in line
    assert changes({"a": answer(3)}, {})


def test_names_of_two_attempts_are_the_same_in_normal_form() -> None:
    class Nowhere:
        name, host, port = "nowhere", "127.0.0.1", 1

    one, two = (Probe(Nowhere(), case(), attempt) for attempt in (0, 1))
    assert one.name("t") != two.name("t")
    assert len(one.name("t")) == len(two.name("t")), "lengths show in the bytes of records and of members"
    for probe in (one, two):
        row = {"topic": probe.name("t"), "metadata": probe.name("t").encode()}
        assert probe.normalise(row) == {"topic": "group-name.t", "metadata": b"group-name.t"}


def test_partitions_that_depend_on_a_hash_show_as_names() -> None:
    class Nowhere:
        name, host, port = "nowhere", "127.0.0.1", 1

    probe = Probe(Nowhere(), case())
    probe.mask_partition("__consumer_offsets", 7, "<partition of group>")
    rows = [{"topic": "__consumer_offsets", "partitions": [7, 8]}, {"topic": "other", "partitions": [7]}]
    assert [row["partitions"] for row in probe.normalise(rows)] == [[7], [8, "<partition of group>"]]
    row = {"name": "__consumer_offsets", "partitions": [{"partition_index": 7, "error_code": 0}]}
    assert probe.normalise(row)["partitions"][0]["partition_index"] == "<partition of group>"


def test_normal_form_masks_what_depends_on_the_run() -> None:
    class Nowhere:
        name, host, port = "nowhere", "127.0.0.1", 1

    probe = Probe(Nowhere(), case())
    row = {"throttle_time": 5, "host": "a", "port": 9, "error_message": "because", "partition_index": 1}
    assert probe.normalise(row) == {
        "host": "<host>",
        "port": "<port>",
        "error_message": "<text>",
        "partition_index": 1,
    }
    assert probe.normalise({"host": "", "port": -1, "error_message": None}) == {
        "host": "",
        "port": -1,
        "error_message": None,
    }


def test_rows_are_compared_in_any_order() -> None:
    class Nowhere:
        name, host, port = "nowhere", "127.0.0.1", 1

    one = Probe(Nowhere(), case()).normalise({"topics": [{"name": "b"}, {"name": "a"}]})
    two = Probe(Nowhere(), case()).normalise({"topics": [{"name": "a"}, {"name": "b"}]})
    assert one == two


def test_an_answer_with_bytes_left_over_is_an_error() -> None:
    whole = bytes.fromhex("00000007") + b"\0\0" + b"\0\0\0\0"
    assert decode_response("ApiVersions", 0, whole) == (7, {"error_code": 0, "api_keys": []})
    with pytest.raises(WireError, match="1 bytes left"):
        decode_response("ApiVersions", 0, whole + b"\0")


def test_a_field_that_the_version_does_not_have_is_an_error_of_the_test() -> None:
    with pytest.raises(WireError, match="topic_id"):
        encode_request("Metadata", 9, {"topics": [{"name": "t", "topic_id": None}]})
    assert fit("Metadata", 9, {"topics": [{"name": "t", "topic_id": None}]}) == {"topics": [{"name": "t"}]}


def test_batches_are_described_with_their_checksum() -> None:
    good, bad, whole = batch(2), idempotent(7, 3, crc=1), batch(1)
    rows = describe(good + bad + whole[:-1])
    assert rows is not None
    assert [row.get("crc") for row in rows] == ["good", "bad", None]
    assert rows[1]["producer_id"] == 7
    assert rows[2] == {"partial": True}


def test_flat_names_every_leaf() -> None:
    assert flat({"a": [{"b": 1}, {"b": []}], "c": {}}) == {"a[0].b": 1, "a[1].b": [], "c": {}}
