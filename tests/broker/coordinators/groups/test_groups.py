"""Groups and committed offsets over real sockets, in every version, read by a codec of the tests' own."""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from oracle.driver import Connection
from oracle.wire import fit
from twofold.embedded import Broker

SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
PATIENCE_S = 20.0


class Server:
    """A broker with one topic `t` of three partitions; group names are not used twice."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.bootstrap_servers.split(":")
        self.address = (host, int(port))
        self.broker = broker
        self.topic_id: UUID | None = None
        self._groups = 0

    def connect(self) -> Connection:
        return Connection(*self.address, timeout_s=PATIENCE_S)

    def group(self) -> str:
        self._groups += 1
        return f"group-{self._groups}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0, "group.max.size": 3}) as broker:
        server = Server(broker)
        with server.connect() as connection:
            row = {"name": "t", "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}
            answer = connection.ask("CreateTopics", 7, topics=[row], timeout=5000)
            server.topic_id = answer["topics"][0]["topic_id"]
            wait_for_coordinator(connection)
        yield server


@pytest.fixture
def wire(server: Server) -> Iterator[Connection]:
    with server.connect() as connection:
        yield connection


def wait_for_coordinator(connection: Connection, key: str = "g", *, key_type: int = 0) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while connection.ask("FindCoordinator", 1, key=key, key_type=key_type)["error_code"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ask(connection: Connection, api: str, version: int, **body: Any) -> dict[str, Any]:
    """With the fields that the version has."""
    return connection.ask(api, version, **fit(api, version, body))


def join(connection: Connection, version: int, group: str, member_id: str = "", **more: Any) -> dict[str, Any]:
    body = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        **more,
    }
    return ask(connection, "JoinGroup", version, **body)


def join_twice(connection: Connection, version: int, group: str) -> dict[str, Any]:
    answer = join(connection, version, group)
    if version >= 4:
        assert answer["error_code"] == 79
        answer = join(connection, version, group, answer["member_id"])
    assert answer["error_code"] == 0
    return answer


def sync(connection: Connection, version: int, group: str, joined: dict[str, Any], **shares: bytes) -> dict[str, Any]:
    return ask(
        connection,
        "SyncGroup",
        version,
        group_id=group,
        generation_id=joined["generation_id"],
        member_id=joined["member_id"],
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member, "assignment": share} for member, share in shares.items()],
    )


def stable(connection: Connection, group: str) -> dict[str, Any]:
    joined = join_twice(connection, 5, group)
    answer = sync(connection, 3, group, joined, **{joined["member_id"]: b"mine"})
    assert answer["error_code"] == 0
    return joined


def heartbeat(connection: Connection, group: str, joined: dict[str, Any], version: int = 4) -> int:
    answer = ask(
        connection,
        "Heartbeat",
        version,
        group_id=group,
        generation_id=joined["generation_id"],
        member_id=joined["member_id"],
    )
    return int(answer["error_code"])


def commit(connection: Connection, server: Server, version: int, group: str, offset: int, **more: Any) -> int:
    row = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": 2, "committed_metadata": "m"}
    topic = {"name": "t", "topic_id": server.topic_id, "partitions": [row]}
    body = {"group_id": group, "member_id": "", "generation_id_or_member_epoch": -1, "topics": [topic], **more}
    answer = ask(connection, "OffsetCommit", version, **body)
    (topic_row,) = answer["topics"]
    assert topic_row.get("name", "t") == "t"
    assert topic_row.get("topic_id", server.topic_id) == server.topic_id
    return int(topic_row["partitions"][0]["error_code"])


def fetch(connection: Connection, server: Server, version: int, group: str, **more: Any) -> dict[str, Any]:
    """The row of partition 0."""
    topics = [{"name": "t", "topic_id": server.topic_id, "partition_indexes": [0]}]
    if version >= 8:
        groups = [{"group_id": group, "topics": topics}]
        answer = ask(connection, "OffsetFetch", version, groups=groups, **more)["groups"][0]
    else:
        answer = ask(connection, "OffsetFetch", version, group_id=group, topics=topics, **more)
    assert answer.get("error_code", 0) == 0, answer
    row: dict[str, Any] = answer["topics"][0]["partitions"][0]
    return row


# Membership


@pytest.mark.parametrize("version", range(10))
def test_join_group_in_every_version(server: Server, wire: Connection, version: int) -> None:
    group = server.group()
    answer = join_twice(wire, version, group)
    member_id = answer["member_id"]
    assert member_id.startswith("differential-")
    assert (answer["generation_id"], answer["leader"], answer["protocol_name"]) == (1, member_id, "range")
    assert [(row["member_id"], row["metadata"]) for row in answer["members"]] == [(member_id, SUBSCRIPTION)]
    if version >= 7:
        assert answer["protocol_type"] == "consumer"
    if version >= 9:
        assert answer["skip_assignment"] is False


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_has_the_form_of_its_version(server: Server, wire: Connection, version: int) -> None:
    answer = join(wire, version, server.group(), "stranger")
    assert (answer["error_code"], answer["generation_id"], answer["member_id"]) == (25, -1, "stranger")
    assert answer["protocol_name"] == ("" if version < 7 else None)
    assert answer["leader"] == ""


@pytest.mark.parametrize("version", range(6))
def test_sync_group_in_every_version(server: Server, wire: Connection, version: int) -> None:
    group = server.group()
    joined = join_twice(wire, 4, group)
    answer = sync(wire, version, group, joined, **{joined["member_id"]: b"all of it"})
    assert (answer["error_code"], answer["assignment"]) == (0, b"all of it")
    if version >= 5:
        assert (answer["protocol_type"], answer["protocol_name"]) == ("consumer", "range")
    refused = sync(wire, version, group, joined | {"generation_id": 9})
    assert (refused["error_code"], refused["assignment"]) == (22, b"")


def test_sync_group_5_needs_the_protocol(server: Server, wire: Connection) -> None:
    group = server.group()
    joined = stable(wire, group)
    body = {"group_id": group, "generation_id": 1, "member_id": joined["member_id"], "assignments": []}
    assert wire.ask("SyncGroup", 5, **body)["error_code"] == 23
    assert wire.ask("SyncGroup", 4, **body)["error_code"] == 0


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_in_every_version(server: Server, wire: Connection, version: int) -> None:
    group = server.group()
    joined = stable(wire, group)
    assert heartbeat(wire, group, joined, version) == 0
    assert heartbeat(wire, group, joined | {"generation_id": 2}, version) == 22
    assert heartbeat(wire, group, joined | {"member_id": "x"}, version) == 25
    assert heartbeat(wire, "", joined, version) == 24


@pytest.mark.parametrize("version", range(6))
def test_leave_group_in_every_version(server: Server, wire: Connection, version: int) -> None:
    group = server.group()
    joined = stable(wire, group)

    def leave(member_id: str) -> int:
        answer = ask(
            wire, "LeaveGroup", version, group_id=group, member_id=member_id, members=[{"member_id": member_id}]
        )
        if version < 3:
            return int(answer["error_code"])
        assert answer["error_code"] == 0
        return int(answer["members"][0]["error_code"])

    assert leave("stranger") == 25
    assert leave(joined["member_id"]) == 0
    assert leave(joined["member_id"]) == 25
    assert ask(wire, "LeaveGroup", version, group_id="", member_id="x", members=[])["error_code"] == 24


def test_a_join_that_waits_does_not_hold_up_other_connections(server: Server, wire: Connection) -> None:
    group = server.group()
    first = stable(wire, group)
    with server.connect() as other, server.connect() as third:
        pending = join(other, 5, group)
        other.send("JoinGroup", 5, join_body(group, pending["member_id"]))
        deadline = time.monotonic() + PATIENCE_S
        while heartbeat(wire, group, first) != 27:
            assert time.monotonic() < deadline
        assert other.receive_or_silence(0.1) == "no answer"
        assert ask(third, "ListGroups", 4)["error_code"] == 0
        assert commit(third, server, 8, server.group(), 5) == 0
        again = join(wire, 5, group, first["member_id"])
        assert (again["generation_id"], len(again["members"])) == (2, 2)
        assert other.receive() is not None


def join_body(group: str, member_id: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }


def test_the_answers_of_one_connection_keep_the_order_of_its_requests(server: Server, wire: Connection) -> None:
    group = server.group()
    first = stable(wire, group)
    with server.connect() as other:
        pending = join(other, 5, group)
        other.send("JoinGroup", 5, join_body(group, pending["member_id"]))
        other.send("ListGroups", 4, {"states_filter": []})
        assert other.receive_or_silence(0.1) == "no answer"
        join(wire, 5, group, first["member_id"])
        sizes = [len(other.receive() or b"") for _ in range(2)]
        assert all(sizes)


def test_group_max_size_is_a_setting(server: Server, wire: Connection) -> None:
    group = server.group()
    first = stable(wire, group)
    newcomers = [server.connect() for _ in range(3)]
    try:
        for connection in newcomers:
            connection.send("JoinGroup", 3, join_body(group, ""))
        deadline = time.monotonic() + PATIENCE_S
        while len(ask(wire, "DescribeGroups", 4, groups=[group])["groups"][0]["members"]) < 4:
            assert time.monotonic() < deadline
        assert join(wire, 5, group, first["member_id"])["error_code"] == 81
        assert all(connection.receive() for connection in newcomers)
    finally:
        for connection in newcomers:
            connection.close()


# Offsets


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_commit_in_every_version(server: Server, wire: Connection, version: int) -> None:
    group = server.group()
    assert commit(wire, server, version, group, 40 + version) == 0
    row = fetch(wire, server, 9, group)
    assert (row["committed_offset"], row["metadata"], row["error_code"]) == (40 + version, "m", 0)
    assert row["committed_leader_epoch"] == (2 if version >= 6 else -1)
    assert commit(wire, server, version, server.group(), 1, generation_id_or_member_epoch=3) == (
        22 if version < 9 else 69
    )


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch_in_every_version(server: Server, wire: Connection, version: int) -> None:
    group = server.group()
    row = fetch(wire, server, version, group)
    assert (row["committed_offset"], row["metadata"], row["error_code"]) == (-1, "", 0)
    commit(wire, server, 9, group, 17)
    row = fetch(wire, server, version, group)
    assert (row["committed_offset"], row["metadata"], row["error_code"]) == (17, "m", 0)
    if version >= 5:
        assert row["committed_leader_epoch"] == 2
    if version >= 7:
        assert fetch(wire, server, version, group, require_stable=True)["committed_offset"] == 17


@pytest.mark.parametrize("version", range(2, 11))
@pytest.mark.parametrize("stable", [False, True])
def test_all_offsets_of_a_group(server: Server, wire: Connection, version: int, stable: bool) -> None:
    group = server.group()
    commit(wire, server, 9, group, 17)
    body: dict[str, Any] = {"require_stable": stable}
    if version >= 8:
        (answer,) = ask(wire, "OffsetFetch", version, groups=[{"group_id": group, "topics": None}], **body)["groups"]
    else:
        answer = ask(wire, "OffsetFetch", version, group_id=group, topics=None, **body)
    (topic,) = answer["topics"]
    assert topic.get("name", "t") == "t"
    assert topic.get("topic_id", server.topic_id) == server.topic_id
    assert [(row["partition_index"], row["committed_offset"]) for row in topic["partitions"]] == [(0, 17)]


def test_many_groups_are_answered_in_order(server: Server, wire: Connection) -> None:
    names = [server.group() for _ in range(5)]
    for number, name in enumerate(names):
        commit(wire, server, 8, name, number)
    topics = [{"name": "t", "partition_indexes": [0]}]
    groups = [{"group_id": name, "topics": topics} for name in (*names, "unknown", "")]
    rows = ask(wire, "OffsetFetch", 8, groups=groups)["groups"]
    assert [row["group_id"] for row in rows] == [*names, "unknown", ""]
    offsets = [row["topics"][0]["partitions"][0]["committed_offset"] for row in rows]
    assert offsets == [0, 1, 2, 3, 4, -1, -1]


def test_unknown_topics_and_partitions_of_commits_and_fetches(server: Server, wire: Connection) -> None:
    group = server.group()
    row = {"committed_offset": 1, "committed_metadata": None}
    topics = [
        {"name": "t", "partitions": [{"partition_index": index, **row} for index in (2, 3)]},
        {"name": "nope", "partitions": [{"partition_index": 0, **row}]},
        {"name": "not a name", "partitions": [{"partition_index": 0, **row}]},
    ]
    answer = wire.ask("OffsetCommit", 8, group_id=group, member_id="", topics=topics)
    codes = [[row["error_code"] for row in topic["partitions"]] for topic in answer["topics"]]
    assert codes == [[0, 3], [3], [3]]
    unknown = [{"topic_id": uuid4(), "partitions": [{"partition_index": 0, **row}]}]
    answer = wire.ask("OffsetCommit", 10, group_id=group, member_id="", topics=unknown)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 100
    asked = [
        {"topic_id": uuid4(), "partition_indexes": [0]},
        {"topic_id": server.topic_id, "partition_indexes": [2, 7]},
    ]
    (found,) = wire.ask("OffsetFetch", 10, groups=[{"group_id": group, "topics": asked}])["groups"]
    rows = [[(row["error_code"], row["committed_offset"]) for row in topic["partitions"]] for topic in found["topics"]]
    assert rows == [[(100, -1)], [(0, 1), (0, -1)]]
    assert wire.ask("OffsetCommit", 8, group_id=group, member_id="", topics=[])["topics"] == []


def test_offset_delete(server: Server, wire: Connection) -> None:
    group = server.group()
    commit(wire, server, 8, group, 5)
    rows = [{"name": "t", "partitions": [{"partition_index": 0}, {"partition_index": 9}]}]
    answer = wire.ask("OffsetDelete", 0, group_id=group, topics=rows)
    assert answer["error_code"] == 0
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [0, 3]
    assert fetch(wire, server, 8, group)["committed_offset"] == -1
    (row,) = wire.ask("OffsetDelete", 0, group_id=group, topics=[*rows, *rows])["topics"]
    assert [part["partition_index"] for part in row["partitions"]] == [0, 9, 0, 9], "a topic has one row"
    for name, code in (("unknown", 69), ("", 24)):
        answer = wire.ask("OffsetDelete", 0, group_id=name, topics=rows)
        assert (answer["error_code"], answer["topics"]) == (code, [])


# Groups


@pytest.mark.parametrize("version", range(6))
def test_list_groups_in_every_version(server: Server, wire: Connection, version: int) -> None:
    simple, living = server.group(), server.group()
    commit(wire, server, 8, simple, 5)
    stable(wire, living)
    rows = {row["group_id"]: row for row in ask(wire, "ListGroups", version)["groups"]}
    assert (rows[simple]["protocol_type"], rows[living]["protocol_type"]) == ("", "consumer")
    if version >= 4:
        assert (rows[simple]["group_state"], rows[living]["group_state"]) == ("Empty", "Stable")
        found = {row["group_id"] for row in ask(wire, "ListGroups", version, states_filter=[" STABLE "])["groups"]}
        assert living in found
        assert simple not in found
    if version >= 5:
        assert rows[simple]["group_type"] == "classic"
        assert ask(wire, "ListGroups", version, types_filter=["consumer"])["groups"] == []


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_in_every_version(server: Server, wire: Connection, version: int) -> None:
    group = server.group()
    joined = stable(wire, group)
    answer = ask(wire, "DescribeGroups", version, groups=[group, "unknown"], include_authorized_operations=True)
    found, unknown = answer["groups"]
    assert (found["group_state"], found["protocol_type"], found["protocol_data"]) == ("Stable", "consumer", "range")
    (row,) = found["members"]
    assert (row["member_id"], row["client_id"], row["client_host"]) == (
        joined["member_id"],
        "differential",
        "/127.0.0.1",
    )
    assert (row["member_metadata"], row["member_assignment"]) == (SUBSCRIPTION, b"mine")
    assert (unknown["error_code"], unknown["group_state"]) == (69 if version >= 6 else 0, "Dead")
    if version >= 3:
        assert found["authorized_operations"] == 3400


@pytest.mark.parametrize("version", range(3))
def test_delete_groups_in_every_version(server: Server, wire: Connection, version: int) -> None:
    empty, living = server.group(), server.group()
    commit(wire, server, 8, empty, 5)
    stable(wire, living)
    answer = ask(wire, "DeleteGroups", version, groups_names=[empty, living, "unknown", empty])
    codes = {row["group_id"]: row["error_code"] for row in answer["results"]}
    assert codes == {empty: 0, living: 68, "unknown": 69}
    assert len(answer["results"]) == 3
    assert empty not in {row["group_id"] for row in ask(wire, "ListGroups", 4)["groups"]}
    assert fetch(wire, server, 8, empty)["committed_offset"] == -1


# Transactions


@pytest.mark.parametrize("version", range(6))
def test_txn_offset_commit_in_every_version(server: Server, wire: Connection, version: int) -> None:
    group = server.group()
    commit(wire, server, 8, group, 1)
    name = f"txn-{version}"
    wait_for_coordinator(wire, name, key_type=1)
    producer = wire.ask("InitProducerId", 1, transactional_id=name, transaction_timeout=60_000)
    assert producer["error_code"] == 0
    mine = {"transactional_id": name, "producer_id": producer["producer_id"], "producer_epoch": 0}
    row = {"partition_index": 0, "committed_offset": 99, "committed_leader_epoch": 1, "committed_metadata": "txn"}
    unknown = {"partition_index": 8, "committed_offset": 99, "committed_metadata": "txn"}
    body = {
        **mine,
        "group_id": group,
        "topics": [{"name": "t", "partitions": [row, unknown]}],
    }
    answer = ask(wire, "TxnOffsetCommit", version, **body)
    if version < 5:
        not_added = 120 if version == 4 else 48
        assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [not_added, 3]
        assert ask(wire, "AddOffsetsToTxn", 2, group_id=group, **mine)["error_code"] == 0
        answer = ask(wire, "TxnOffsetCommit", version, **body)
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [0, 3]
    assert fetch(wire, server, 6, group)["committed_offset"] == 1
    unstable = fetch(wire, server, 7, group, require_stable=True)
    assert (unstable["error_code"], unstable["committed_offset"], unstable["metadata"]) == (88, -1, "")
    for wrong, code in (({"transactional_id": ""}, 42), ({"group_id": ""}, 24)):
        answer = ask(wire, "TxnOffsetCommit", version, **body | wrong)
        assert answer["topics"][0]["partitions"][0]["error_code"] == code
    if version >= 3:
        answer = ask(wire, "TxnOffsetCommit", version, **body | {"member_id": "x", "generation_id": 3})
        assert answer["topics"][0]["partitions"][0]["error_code"] == 25
