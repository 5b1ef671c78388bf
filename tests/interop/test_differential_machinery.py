"""The comparison itself: it finds what differs, and a decided difference must be exact."""

import socket
from collections.abc import Callable

import pytest

from oracle.batches import batch, describe, idempotent
from oracle.compare import Case, Differs, Probe, compare, differences, flat
from oracle.driver import Connection
from oracle.queues import tells_queues, unread_by_netlink, unread_by_proc
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


def test_each_server_is_asked_once_and_what_differs_counts() -> None:
    """A difference that shows now and then is one: no second question makes up for the first."""
    asked: list[str] = []

    def ask(probe: Probe) -> None:
        asked.append(probe.server.name)
        probe.record("a", answer(3 if probe.server.name == "oracle" else 17))

    (line,) = compare(Case("name", "group", ask), Scripted("oracle"), Scripted("twofold"))
    assert "3" in line and "17" in line
    assert sorted(asked) == ["oracle", "twofold"]


class Scripted:
    """A server that a case asks without a connection."""

    host, port = "127.0.0.1", 1

    def __init__(self, name: str) -> None:
        self.name = name


def test_what_was_sent_is_read_once_the_server_has_taken_it() -> None:
    """The barrier between two connections: it waits for a server that is slow to read."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Connection("127.0.0.1", listener.getsockname()[1]) as connection,
        listener.accept()[0] as accepted,
    ):
        connection.send_raw(b"x" * 100)
        with pytest.raises(AssertionError, match="has not read"):
            connection.await_read(patience_s=0.05)
        assert len(accepted.recv(1000)) == 100
        connection.await_read(patience_s=10)


@pytest.mark.parametrize("server", ["127.0.0.1", "::"])
@pytest.mark.parametrize("unread", [unread_by_netlink, unread_by_proc])
def test_the_kernel_tells_of_bytes_that_no_process_has_read(unread: Callable[..., bool], server: str) -> None:
    """Of a server that listens on both families, too, as Apache Kafka does."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    if unread is unread_by_netlink and not tells_queues():
        pytest.skip("this kernel has no sock_diag; /proc is read instead")
    with (
        socket.create_server((server, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as connection,
        listener.accept()[0] as accepted,
    ):
        ends = connection.getsockname(), connection.getpeername()
        assert not unread(*ends)
        connection.send(b"x")
        assert unread(*ends)
        assert accepted.recv(1) == b"x"
        assert not unread(*ends)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.sendall(bytes(50_000_000))
        assert unread(*ends)


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
