"""ApiVersions, DescribeCluster, FindCoordinator, InitProducerId and DescribeProducers."""

import asyncio
from typing import Any

import pytest

from kits.node.admin_world import OTHER_LISTENER, Deny, World, scenario, settle
from oracle.wire import fit
from twofold.broker.api.api_versions import unsupported_version_response
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation
from twofold.broker.network.dispatch import served_apis
from twofold.config.internal_topics import coordinator_partition
from twofold.controller.records import FeatureLevel, PartitionChange
from twofold.log.api import OpenTransaction, ProducerRow
from twofold.types import ProducerEpoch, ProducerId, TopicPartition

CLIENT = {"client_software_name": "test", "client_software_version": "1.0"}
GROUP, TRANSACTION, SHARE = 0, 1, 2


async def api_versions(world: World, version: int, **fields: str) -> dict[str, Any]:
    return await world.ask("ApiVersions", version, **fit("ApiVersions", version, CLIENT | fields))


@pytest.mark.parametrize("version", range(5))
@scenario
async def test_served_apis_are_told_with_their_ranges(version: int) -> None:
    answer = await api_versions(World(), version)
    assert answer["error_code"] == 0
    told = {row["api_key"]: (row["min_version"], row["max_version"]) for row in answer["api_keys"]}
    assert told == {api.key: (api.advertised_min, api.max_version) for api in served_apis()}
    assert told[18] == (0, 4)
    assert told[19] == (2, 7)
    assert 71 not in told, "telemetry is not served"


@pytest.mark.parametrize(
    ("name", "version", "allowed"),
    [
        ("apache-kafka-java", "4.3.1", True),
        ("a", "b", True),
        ("lib.rd-kafka", "2.6.0-rc1", True),
        ("", "1.0", False),
        ("name", "", False),
        ("-name", "1.0", False),
        ("name-", "1.0", False),
        ("name", ".1", False),
        ("name", "1.", False),
        ("na me", "1.0", False),
        ("name", "1_0", False),
        ("naïve", "1.0", False),
        ("name", "1.0\n", False),
        ("٣", "1", False),
    ],
)
@pytest.mark.parametrize("api_version", [3, 4])
@scenario
async def test_the_clients_software_is_checked(api_version: int, name: str, version: str, allowed: bool) -> None:
    world = World()
    answer = await api_versions(world, api_version, client_software_name=name, client_software_version=version)
    assert answer["error_code"] == (0 if allowed else 42)
    assert bool(answer["api_keys"]) is allowed
    assert world.peer.software_name == (name if allowed else "")


@scenario
async def test_features_that_begin_at_level_0_are_for_version_4() -> None:
    world = World()
    supported = {
        version: {
            row["name"]: (row["min_version"], row["max_version"])
            for row in (await api_versions(world, version))["supported_features"]
        }
        for version in (3, 4)
    }
    assert supported == {
        3: {"metadata.version": (7, 30)},
        4: {"metadata.version": (7, 30), "transaction.version": (0, 2)},
    }


@pytest.mark.parametrize("version", [3, 4])
@scenario
async def test_finalized_features_are_told_with_an_epoch_unless_at_level_0(version: int) -> None:
    world = World()
    world.apply(FeatureLevel("group.version", 0))
    answer = await api_versions(world, version)
    assert answer["finalized_features_epoch"] == world.image.offset >= 0
    levels = {row["name"]: (row["min_version_level"], row["max_version_level"]) for row in answer["finalized_features"]}
    assert levels == {"metadata.version": (30, 30), "transaction.version": (2, 2)}


def test_an_unknown_version_is_told_the_range_of_this_api_only():
    answer = unsupported_version_response()
    assert answer.error_code == 35
    assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [(18, 0, 4)]


# DescribeCluster


@pytest.mark.parametrize("version", range(3))
@scenario
async def test_the_cluster_is_described(version: int) -> None:
    world = World()
    world.register(2, fenced=True, rack="r")
    world.register(3, listener=OTHER_LISTENER)
    answer = await world.ask("DescribeCluster", version)
    assert (answer["error_code"], answer["error_message"]) == (0, None)
    assert (answer["cluster_id"], answer["controller_id"]) == ("a-cluster", 1)
    assert answer["cluster_authorized_operations"] == -(2**31)
    assert [(row["broker_id"], row["host"], row["port"]) for row in answer["brokers"]] == [(1, "host-1", 9001)]


@scenario
async def test_fenced_brokers_are_told_on_request() -> None:
    world = World()
    world.register(2, fenced=True)
    answer = await world.ask("DescribeCluster", 2, include_fenced_brokers=True)
    assert [(row["broker_id"], row["is_fenced"]) for row in answer["brokers"]] == [(1, False), (2, True)]


@pytest.mark.parametrize(("kind", "code"), [(0, 115), (1, 0), (2, 114), (3, 115), (-1, 115)])
@pytest.mark.parametrize("version", [1, 2])
@scenario
async def test_only_brokers_are_described_here(version: int, kind: int, code: int) -> None:
    answer = await World().ask("DescribeCluster", version, endpoint_type=kind)
    assert (answer["error_code"], answer["endpoint_type"]) == (code, 1)
    if code:
        assert (answer["cluster_id"], answer["controller_id"], answer["brokers"]) == ("", -1, [])


@scenario
async def test_the_clusters_operations_are_told_to_principals_that_may_describe_it() -> None:
    asked = {"include_cluster_authorized_operations": True}
    assert (await World().ask("DescribeCluster", 0, **asked))["cluster_authorized_operations"] == 8096
    world = World(authorizer=Deny((Operation.DESCRIBE, CLUSTER_NAME)))
    assert (await world.ask("DescribeCluster", 0, **asked))["cluster_authorized_operations"] == 0


# FindCoordinator


async def find(world: World, version: int, kind: int, *keys: str) -> list[dict[str, Any]]:
    fields = {"key_type": kind, "coordinator_keys": list(keys), "key": keys[0] if keys else ""}
    answer = await world.ask("FindCoordinator", version, **fit("FindCoordinator", version, fields))
    found: list[dict[str, Any]] = answer.get("coordinators", [answer])
    return found


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION])
@pytest.mark.parametrize("version", range(7))
@scenario
async def test_a_missing_internal_topic_is_created_and_leads_to_its_leader(version: int, kind: int) -> None:
    if version == 0 and kind == TRANSACTION:
        return  # version 0 knows groups only
    world = World({"auto.create.topics.enable": "false"})
    (row,) = await find(world, version, kind, "key")
    assert (row["error_code"], row["node_id"], row["host"], row["port"]) == (0, 1, "host-1", 9001)
    name = "__consumer_offsets" if kind == GROUP else "__transaction_state"
    topic = world.image.topic(name)
    assert topic is not None and len(topic.partitions) == 50
    (row,) = await find(world, version, kind, "key")
    assert (row["error_code"], row["node_id"], row["host"], row["port"]) == (0, 1, "host-1", 9001)
    if version >= 1:
        assert row["error_message"] == ("NONE" if version < 4 else "")


@scenario
async def test_the_transaction_topic_has_its_own_configuration() -> None:
    world = World({"transaction.state.log.num.partitions": "5", "transaction.state.log.segment.bytes": "2000000"})
    await find(world, 4, TRANSACTION, "id")
    await settle()
    topic = world.image.topic("__transaction_state")
    assert topic is not None and len(topic.partitions) == 5
    assert dict(world.image.topic_configs("__transaction_state")) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "2000000",
        "unclean.leader.election.enable": "false",
    }


@scenario
async def test_an_explicit_replication_factor_is_obeyed_and_waits_for_its_brokers() -> None:
    world = World({"offsets.topic.replication.factor": "2"})
    await find(world, 4, GROUP, "g")
    await settle()
    assert world.image.topic("__consumer_offsets") is None
    world.register(2)
    await find(world, 4, GROUP, "g")
    await settle()
    topic = world.image.topic("__consumer_offsets")
    assert topic is not None and all(len(state.replicas) == 2 for state in topic.partitions.values())


@scenario
async def test_the_hash_of_the_key_chooses_the_partition_whose_leader_coordinates() -> None:
    world = World()
    world.register(2)
    await find(world, 4, GROUP, "g")
    await settle()
    topic_id = world.topic_id("__consumer_offsets")
    mine = coordinator_partition("group", 50)
    world.apply(PartitionChange(mine, topic_id, leader=2, isr=(2,), replicas=(2,)))
    world.apply(PartitionChange(coordinator_partition("my-txn-id", 50), topic_id, leader=1, isr=(1,), replicas=(1,)))
    rows = await find(world, 4, GROUP, "group", "my-txn-id", "group", "")
    assert [row["key"] for row in rows] == ["group", "my-txn-id", "group", ""]
    assert [row["node_id"] for row in rows][:3] == [2, 1, 2]
    world.register(2, fenced=True)
    (row,) = await find(world, 4, GROUP, "group")
    assert (row["error_code"], row["node_id"]) == (15, -1)
    world.register(2, listener=OTHER_LISTENER)
    (row,) = await find(world, 4, GROUP, "group")
    assert row["error_code"] == 15
    world.apply(PartitionChange(mine, topic_id, leader=-1, isr=(2,)))
    (row,) = await find(world, 4, GROUP, "group")
    assert row["error_code"] == 15


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("kind", [SHARE, 3, 99, -1])
@scenario
async def test_key_types_that_are_not_served(version: int, kind: int) -> None:
    rows = await find(World(), version, kind, "a", "b")
    assert len(rows) == (2 if version >= 4 else 1)
    for row in rows:
        assert (row["error_code"], row["node_id"], row["host"], row["port"]) == (42, -1, "", -1)
        assert bool(row["error_message"]) is (kind != SHARE or version < 4)


@scenario
async def test_no_keys_no_rows() -> None:
    assert await find(World(), 4, GROUP) == []
    assert await find(World(), 4, 99) == []


@scenario
async def test_finding_needs_permission() -> None:
    world = World(authorizer=Deny((Operation.DESCRIBE, "no")))
    rows = await find(world, 4, GROUP, "no", "yes")
    assert [row["error_code"] for row in rows] == [30, 0]
    assert [row["error_code"] for row in await find(world, 4, TRANSACTION, "no")] == [53]
    assert [row["error_code"] for row in await find(world, 1, TRANSACTION, "no")] == [53]


# InitProducerId


async def init(world: World, version: int, transactional_id: str | None = None, **fields: int) -> tuple[int, int, int]:
    body = {"transactional_id": transactional_id, "transaction_timeout": 60000, **fields}
    answer = await world.ask("InitProducerId", version, **fit("InitProducerId", version, body))
    return answer["error_code"], answer["producer_id"], answer["producer_epoch"]


@pytest.mark.parametrize("version", range(6))
@scenario
async def test_producer_ids_come_from_the_block_with_epoch_0(version: int) -> None:
    world = World()
    assert [await init(world, version) for _ in range(3)] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    assert world.time.waiting == 0


@scenario
async def test_without_a_block_a_client_waits_a_moment_and_is_then_told_to_come_back() -> None:
    world = World()
    world.controller.gate = asyncio.Event()
    asked = [asyncio.create_task(init(world, 4)) for _ in range(3)]
    await settle()
    assert not any(task.done() for task in asked)
    world.time.advance(0.5)
    await settle()
    assert [task.result() for task in asked] == [(14, -1, -1)] * 3
    asked = [asyncio.create_task(init(world, 4)) for _ in range(2)]
    await settle()
    world.controller.gate.set()
    await settle()
    assert [task.result() for task in asked] == [(0, 0, 0), (0, 1, 0)]


@pytest.mark.parametrize(("producer_id", "epoch", "code"), [(-1, 0, 42), (5, -1, 42), (5, 0, 0), (-5, -5, 0)])
@pytest.mark.parametrize("version", range(3, 6))
@scenario
async def test_producer_id_and_epoch_come_in_pairs(version: int, producer_id: int, epoch: int, code: int) -> None:
    world = World()
    world.producer_ids.prefetch()
    await settle()
    found = await init(world, version, producer_id=producer_id, producer_epoch=epoch)
    assert found == ((42, -1, -1) if code else (0, 0, 0))


@scenario
async def test_producer_ids_need_permission() -> None:
    world = World(authorizer=Deny((Operation.IDEMPOTENT_WRITE, CLUSTER_NAME)))
    world.producer_ids.prefetch()
    await settle()
    assert (await init(world, 4))[0] == 0, "WRITE on any topic is enough"
    world.authorizer = Deny((Operation.IDEMPOTENT_WRITE, CLUSTER_NAME), (Operation.WRITE, "any"))
    assert await init(world, 4) == (31, -1, -1)
    world.authorizer = Deny((Operation.WRITE, "id"))
    assert await init(world, 4, "id") == (53, -1, -1)


# DescribeProducers


class KnownProducers:
    def __init__(self, *rows: ProducerRow) -> None:
        self.rows = list(rows)

    def producers(self) -> list[ProducerRow]:
        return self.rows

    def open_transactions(self) -> list[OpenTransaction]:
        return [OpenTransaction(100, ProducerId(8), ProducerEpoch(0), since_ms=1500, is_exact=False)]


async def producers(world: World, *topics: tuple[str, list[int]]) -> list[Any]:
    rows = [{"name": name, "partition_indexes": indexes} for name, indexes in topics]
    answer = await world.ask("DescribeProducers", 0, topics=rows)
    return [
        (topic["name"], row["partition_index"], row["error_code"], row["active_producers"])
        for topic in answer["topics"]
        for row in topic["partitions"]
    ]


@scenario
async def test_producers_of_a_partition_are_told_and_an_untouched_one_has_none() -> None:
    world = World()
    await world.create("t", 2)
    world.logs[TopicPartition("t", 0)] = KnownProducers(
        ProducerRow(ProducerId(7), ProducerEpoch(1), 9, 1600, -1, -1),
        ProducerRow(ProducerId(8), ProducerEpoch(0), -1, -1, 3, 100),
    )
    found = await producers(world, ("t", [0, 1]))
    fields = (
        "producer_id",
        "producer_epoch",
        "last_sequence",
        "last_timestamp",
        "coordinator_epoch",
        "current_txn_start_offset",
        "current_txn_start_time_ms",
        "current_txn_start_time_is_bound",
    )
    rows = ((7, 1, 9, 1600, -1, -1, -1, False), (8, 0, -1, -1, 3, 100, 1500, True))
    assert found == [
        (
            "t",
            0,
            0,
            [dict(zip(fields, row, strict=True)) for row in rows],
        ),
        ("t", 1, 0, []),
    ]


@scenario
async def test_partitions_that_are_not_here() -> None:
    world = World(authorizer=Deny((Operation.READ, "secret")))
    await world.create("t")
    await world.create("secret")
    world.register(2)
    topic_id = world.topic_id("t")
    found = await producers(world, ("none", [0, 1]), ("t", [0, 0, 5, -1]), ("a b", [0]), ("secret", [0]), ("t", []))
    assert [(name, index, code) for name, index, code, _ in found] == [
        ("none", 0, 3),
        ("none", 1, 3),
        ("t", 0, 0),
        ("t", 0, 0),
        ("t", 5, 3),
        ("t", -1, 3),
        ("a b", 0, 17),
        ("secret", 0, 29),
    ]
    world.apply(PartitionChange(0, topic_id, leader=2, isr=(2,), replicas=(2,)))
    assert [code for _, _, code, _ in await producers(world, ("t", [0]))] == [6]
