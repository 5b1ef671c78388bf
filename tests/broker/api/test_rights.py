"""Every API with and without the rights that it needs: the table of `kits.security.rights`, asked of a real broker.

A module in `broker/api` without a row fails. The client is one principal, the entries are changed by another.
"""

import pytest

from kits.node.guarded_node import ALICE, GuardedNode, guarded
from kits.security import rights
from kits.security.rights import AUTHORIZATION, NEEDS_NOTHING, ROWS, Right, codes
from twofold.broker.network.context import CloseConnection
from twofold.broker.network.dispatch import served_apis
from twofold.broker.network.standard_authorizer import StandardAuthorizer
from twofold.security.acl_codes import CLUSTER_NAME, AclResourceType, Operation, Permission
from twofold.wire.messages.create_acls import AclCreation, CreateAclsRequest


def test_every_api_has_a_row():
    rows = {row.api for row in ROWS} | NEEDS_NOTHING.keys()
    missing = {api.name for api in served_apis()} - rows
    assert not missing, f"name the rights of {missing} in tests/kits/security/rights.py"
    assert len({str(row) for row in ROWS}) == len(ROWS)


SERVED = {api.name for api in served_apis()}
ASKED = [row for row in ROWS if row.api in SERVED]


@guarded
async def test_without_any_right_every_api_refuses_as_its_row_says(node: GuardedNode) -> None:
    assert isinstance(node.broker.core.authorizer, StandardAuthorizer)
    await node.set_scene()
    await node.grant()
    wrong = {}
    for row in ASKED:
        answer = await node.answer(row)
        expected = set() if row.denied is None else {row.denied}
        if codes(answer) & AUTHORIZATION != expected or (row.seen and row.seen(answer)):
            wrong[str(row)] = answer
    assert not wrong


@guarded
async def test_with_its_rights_every_api_is_answered(node: GuardedNode) -> None:
    await node.set_scene()
    wrong = {}
    for row in ASKED:
        for granted in [[right] for right in row.rights] if row.alone else [list(row.rights)]:
            await node.fresh_transaction()
            await node.grant(*granted)
            answer = await node.answer(row)
            if codes(answer) & AUTHORIZATION or (row.seen and not row.seen(answer)):
                wrong[f"{row}: {granted}"] = answer
    assert not wrong


@guarded
async def test_each_right_of_several_is_needed(node: GuardedNode) -> None:
    await node.set_scene()
    wrong = {}
    for row in ASKED:
        for missing, code in row.rights.items() if len(row.rights) > 1 and not row.alone else ():
            await node.grant(*(right for right in row.rights if right != missing))
            answer = await node.answer(row)
            expected = set() if code is None else {code}
            if codes(answer) & AUTHORIZATION != expected or (row.seen and row.seen(answer)):
                wrong[f"{row} without {missing}"] = answer
    assert not wrong


@guarded
async def test_a_denial_closes_what_a_wildcard_allows(node: GuardedNode) -> None:
    """Each right of each row is denied beside ALL on everything."""
    await node.set_scene()
    everything = [
        Right(Operation.ALL, kind, CLUSTER_NAME if kind is AclResourceType.CLUSTER else "*")
        for kind in (rights.TOPIC, rights.GROUP, rights.TXN, rights.CLUSTER)
    ]
    wrong = {}
    for row in ASKED:
        if row.alone or "cluster's right" in row.label or row.api in ("ListGroups", "CreateTopics", "DeleteTopics"):
            continue  # something else allows it too
        for denied, code in row.rights.items():
            await node.grant(*everything)
            await deny(node, denied)
            answer = await node.answer(row)
            if code is not None and codes(answer) & AUTHORIZATION != {code}:
                wrong[f"{row}, {denied} denied"] = answer
    assert not wrong


async def deny(node: GuardedNode, right: Right) -> None:
    row = AclCreation(
        resource_type=right.kind, resource_name=right.name, principal=ALICE, host="*", operation=right.operation,
        permission_type=Permission.DENY,
    )  # fmt: skip
    await node.broker.controller.create_acls(CreateAclsRequest(creations=[row]))


@guarded
async def test_a_produce_without_an_answer_that_is_refused_ends_the_connection(node: GuardedNode) -> None:
    await node.grant()
    with pytest.raises(CloseConnection):
        await node.as_alice("Produce", 9, **{**rights.produce(node), "acks": 0})


@guarded
async def test_a_right_that_is_taken_away_stops_a_fetch_session_at_its_next_fetch(node: GuardedNode) -> None:
    await node.grant(Right(Operation.READ, rights.TOPIC, rights.T))
    opened = await node.as_alice("Fetch", 11, **{**rights.fetch(node), "session_epoch": 0})
    assert codes(opened) == {0} and opened["session_id"]
    await node.grant()
    rest = {"session_id": opened["session_id"], "session_epoch": 1, "topics": []}
    assert 29 in codes(await node.as_alice("Fetch", 11, **{**rights.fetch(node), **rest}))


@guarded
async def test_a_right_that_is_taken_away_while_a_fetch_waits_stops_the_next_one(node: GuardedNode) -> None:
    """What waits was allowed, and is answered, as Apache Kafka's DelayedFetch is. Scenario 66."""
    await node.grant(Right(Operation.READ, rights.TOPIC, rights.T))
    rest = {"fetch_offset": node.end_offset(), "partition_max_bytes": 1000, "current_leader_epoch": -1}
    topics = [{"topic": rights.T, "partitions": [{"partition": 0, **rest}]}]
    waiting = {**rights.fetch(node), "max_wait": 60_000, "min_bytes": 1, "topics": topics}
    asked = node.send_as_alice("Fetch", 11, **waiting)
    await node.sleep(1)
    assert not asked.is_answered()
    await node.grant()
    assert not asked.is_answered(), "a change of the entries wakes no fetch"
    pair = await node.init("writer")
    assert await node.produce(pair, name="writer", version=12) == 0
    answer = await asked()
    assert codes(answer) == {0} and any(
        part["records"] for topic in answer["responses"] for part in topic["partitions"]
    )
    assert 29 in codes(await node.as_alice("Fetch", 11, **waiting)), "and at once"


@guarded
async def test_a_forbidden_topic_and_a_missing_one_answer_alike(node: GuardedNode) -> None:
    await node.grant()
    for api, version, row in (
        ("Metadata", 9, lambda name: {"topics": [{"name": name}], "allow_auto_topic_creation": False}),
        ("ListOffsets", 1, lambda name: {
            "replica_id": -1, "topics": [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]}),
        ("DeleteTopics", 5, lambda name: {"topic_names": [name], "timeout": 1000}),
    ):  # fmt: skip
        there, missing = [
            repr(await node.as_alice(api, version, **row(name))).replace(repr(name), "NAME") for name in ("t", "u")
        ]
        assert there == missing, api


@guarded
async def test_a_group_that_only_wants_a_topic_is_not_described_without_the_right_to_it(node: GuardedNode) -> None:
    """No partition of it is assigned: its name is what the client may not see. Apache Kafka shows that."""
    await node.set_scene()
    body = rights.reader("wants", (rights.T, "missing"))
    assert rights.has_topics(await node.ask("ConsumerGroupHeartbeat", 1, **body), (rights.T,))
    described = rights.describe_group("wants")(node)
    group, seen = Right(Operation.DESCRIBE, rights.GROUP, "wants"), Right(Operation.DESCRIBE, rights.TOPIC, rights.T)
    missing = Right(Operation.DESCRIBE, rights.TOPIC, "missing")
    for granted, code, members in (([group, seen], 29, 0), ([group, missing], 29, 0), ([group, seen, missing], 0, 1)):
        await node.grant(*granted)
        answer = await node.as_alice("ConsumerGroupDescribe", 1, **described)
        assert (codes(answer), rights.members_shown(answer)) == ({code}, members), granted


@guarded
async def test_enable_2pc_needs_write_and_two_phase_commit(node: GuardedNode) -> None:
    """KIP-939: the endless transaction is for those who have its right, and the right alone is not enough."""
    await node.set_scene()
    write = Right(Operation.WRITE, rights.TXN, "init")
    two_phase = Right(Operation.TWO_PHASE_COMMIT, rights.TXN, "init")
    every = Right(Operation.ALL, rights.TXN, "init")
    plain, endless = rights.init()(node), rights.init(two_phase=True)(node)
    for granted, expected in (([write], 53), ([two_phase], 53), ([write, two_phase], 0), ([every], 0)):
        await node.grant(*granted)
        assert (await node.as_alice("InitProducerId", 6, **endless))["error_code"] == expected, granted
    await node.grant(every)
    await deny(node, two_phase)
    assert (await node.as_alice("InitProducerId", 6, **endless))["error_code"] == 53
    assert (await node.as_alice("InitProducerId", 6, **plain))["error_code"] == 0, "the plain use is left"


@guarded
async def test_masks_say_what_the_entries_allow(node: GuardedNode) -> None:
    await node.grant(Right(Operation.READ, rights.TOPIC, "t"), Right(Operation.DESCRIBE, rights.CLUSTER, CLUSTER_NAME))
    body = {
        "topics": [{"name": "t"}], "allow_auto_topic_creation": False, "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }  # fmt: skip
    answer = await node.as_alice("Metadata", 9, **body)
    assert (answer["topics"][0]["topic_authorized_operations"], answer["cluster_authorized_operations"]) == (264, 256)
    await node.grant()
    answer = await node.as_alice("Metadata", 9, **body)
    assert (answer["topics"][0]["topic_authorized_operations"], answer["cluster_authorized_operations"]) == (
        -(2**31),
        0,
    )
