"""CreateAcls, DescribeAcls and DeleteAcls: the rows one by one, filters, one transaction, and what a restart keeps."""

from typing import Any

import pytest

from kits.node.guarded_node import GuardedNode, guarded
from kits.node.txn_node import Node, simulated
from kits.security.rights import ACL_FILTER, NEW_ACL
from twofold.controller.security.records import AccessControlEntry, RemoveAccessControlEntry

TOPIC, GROUP, CLUSTER, TXN = 2, 3, 4, 5
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4


async def create(node: Node, *rows: dict[str, Any], version: int = 3) -> list[int]:
    asked = [{**NEW_ACL, "resource_name": "t", **row} for row in rows]
    answer = await node.ask("CreateAcls", version, creations=asked)
    return [row["error_code"] for row in answer["results"]]


async def described(node: Node, version: int = 3, **wanted: Any) -> set[tuple[str, int, str, int]]:
    answer = await node.ask("DescribeAcls", version, **{**ACL_FILTER, "principal_filter": None, **wanted})
    assert answer["error_code"] == 0, answer
    return {
        (resource["resource_name"], resource["pattern_type"], entry["principal"], entry["operation"])
        for resource in answer["resources"]
        for entry in resource["acls"]
    }


async def delete(node: Node, *filters: dict[str, Any]) -> list[tuple[int, list[str]]]:
    asked = [{**ACL_FILTER, "principal_filter": None, **wanted} for wanted in filters]
    answer = await node.ask("DeleteAcls", 3, filters=asked)
    return [
        (row["error_code"], sorted(entry["resource_name"] for entry in row["matching_acls"]))
        for row in answer["filter_results"]
    ]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({}, 0),
        ({"resource_type": 0}, 42),
        ({"resource_type": ANY}, 42),
        ({"resource_type": 8}, 42),
        ({"resource_type": 7}, 0),
        ({"resource_pattern_type": ANY}, 42),
        ({"resource_pattern_type": MATCH}, 42),
        ({"resource_pattern_type": 5}, 42),
        ({"operation": 0}, 42),
        ({"operation": ANY}, 42),
        ({"operation": 16}, 42),
        ({"operation": 15}, 0),
        ({"permission_type": ANY}, 42),
        ({"permission_type": 4}, 42),
        ({"resource_name": ""}, 42),
        ({"resource_type": CLUSTER}, 42),
        ({"resource_type": CLUSTER, "resource_name": "*"}, 42),
        ({"resource_type": CLUSTER, "resource_name": "kafka-cluster"}, 0),
        ({"principal": "alice"}, 42),
        ({"principal": ":"}, 0),
        ({"host": "no address"}, 0),
        ({"resource_name": "no/topic at all"}, 0),
    ],
)
@guarded
async def test_a_wrong_row_is_refused_and_the_others_are_done(node: GuardedNode, row: Any, code: int) -> None:
    assert await create(node, {"principal": "User:first"}, row, {"principal": "User:last"}) == [0, code, 0]
    assert len(node.broker.image.acls) == 2 + (code == 0)


@pytest.mark.parametrize("version", [1, 2, 3])
@guarded
async def test_an_entry_that_exists_is_a_success_and_not_made_twice(node: GuardedNode, version: int) -> None:
    assert await create(node, {}, {}, version=version) == [0, 0]
    assert await create(node, {}, version=version) == [0]
    assert await described(node, version) == {("t", LITERAL, "User:none", 3)}
    assert len(node.broker.image.acls) == 1


ROWS: list[dict[str, Any]] = [
    {"resource_name": "topic"},
    {"resource_name": "topic", "resource_pattern_type": PREFIXED},
    {"resource_name": "to", "resource_pattern_type": PREFIXED},
    {"resource_name": "*"},
    {"resource_name": "*", "resource_pattern_type": PREFIXED},
    {"resource_name": "other", "principal": "User:*", "operation": 4},
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, {("topic", 3), ("topic", 4), ("to", 4), ("*", 3), ("*", 4), ("other", 3)}),
        ({"resource_type_filter": GROUP}, set()),
        ({"resource_name_filter": "topic"}, {("topic", 3), ("topic", 4)}),
        ({"resource_name_filter": "topic", "pattern_type_filter": LITERAL}, {("topic", 3)}),
        ({"resource_name_filter": "topic", "pattern_type_filter": PREFIXED}, {("topic", 4)}),
        ({"pattern_type_filter": PREFIXED}, {("topic", 4), ("to", 4), ("*", 4)}),
        (
            {"resource_name_filter": "topic", "pattern_type_filter": MATCH},
            {("topic", 3), ("topic", 4), ("to", 4), ("*", 3)},
        ),
        ({"resource_name_filter": "*", "pattern_type_filter": MATCH}, {("*", 3), ("*", 4)}),
        ({"principal_filter": "User:*"}, {("other", 3)}),
        ({"principal_filter": "User:alice"}, set()),
        ({"operation": 4}, {("other", 3)}),
        ({"operation": 2}, set()),
        ({"permission_type": 2}, set()),
        ({"host_filter": "*"}, {("topic", 3), ("topic", 4), ("to", 4), ("*", 3), ("*", 4), ("other", 3)}),
        ({"host_filter": "10.0.0.1"}, set()),
    ],
)  # fmt: skip
@guarded
async def test_filters_describe_and_delete_the_same(node: GuardedNode, wanted: Any, found: Any) -> None:
    await create(node, *ROWS)
    assert {row[:2] for row in await described(node, **wanted)} == found
    assert await delete(node, wanted) == [(0, sorted(name for name, _ in found))]
    left = {("topic", 3), ("topic", 4), ("to", 4), ("*", 3), ("*", 4), ("other", 3)} - found
    assert {row[:2] for row in await described(node)} == left


@guarded
async def test_two_filters_may_match_one_entry_and_a_wrong_one_stops_none(node: GuardedNode) -> None:
    await create(node, {})
    assert await delete(node, {}, {"operation": 99}, {"resource_name_filter": "t"}) == [
        (0, ["t"]),
        (42, []),
        (0, ["t"]),
    ]
    assert not len(node.broker.image.acls)
    answer = await node.ask("DescribeAcls", 3, **{**ACL_FILTER, "resource_type_filter": 99})
    assert answer["error_code"] == 42


@guarded
async def test_entries_survive_a_restart_and_decide_at_once(node: GuardedNode) -> None:
    await create(node, {"principal": "User:alice", "operation": 8})
    body = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
    for _ in range(2):
        assert (await node.as_alice("Metadata", 9, **body))["topics"][0]["error_code"] == 0
        await node.restart()
    assert await delete(node, {}) == [(0, ["t"])]
    assert (await node.as_alice("Metadata", 9, **body))["topics"][0]["error_code"] == 29


@guarded
async def test_the_rows_of_a_request_are_one_metadata_transaction(node: GuardedNode) -> None:
    """More than one append holds: no image between the first and the last."""
    seen: list[int] = []
    node.broker.controller.subscribe(lambda delta, image: seen.append(len(image.acls)))
    assert set(await create(node, *({"resource_name": f"t-{number}"} for number in range(1500)))) == {0}
    assert set(seen) == {0, 1500}
    ((code, names),) = await delete(node, {})
    assert code == 0 and len(names) == 1500 and set(seen) == {0, 1500}


@simulated()
async def test_without_an_authorizer_the_apis_say_security_disabled(node: Node) -> None:
    assert await create(node, {}, {}) == [54, 54]
    assert await delete(node, {}) == [(54, [])]
    assert (await node.ask("DescribeAcls", 3, **ACL_FILTER))["error_code"] == 54


def test_records_of_entries_have_an_id_that_removes_them() -> None:
    assert AccessControlEntry._fields[0] == RemoveAccessControlEntry._fields[0] == "id"
