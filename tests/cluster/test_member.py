"""A broker that joins a cluster whose controller is another node."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest

from kits.cluster.controller_node import CLUSTER_ID, HANG_UP, ControllerNode, StandbyNode
from kits.cluster.member_node import MemberNode
from kits.metadata.controller import create, topic
from twofold.broker.broker import Broker
from twofold.cluster.errors import CannotJoin
from twofold.config.settings import Settings
from twofold.controller.features import initial_levels
from twofold.controller.image import TOPIC_RESOURCE
from twofold.controller.operation import Operation
from twofold.controller.records import (
    BeginTransaction,
    Config,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
    Partition,
    Topic,
    UnregisterBroker,
)
from twofold.log.manager import DataDirectoryError
from twofold.runtime.sim import Simulation
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    DuplicateBrokerRegistration,
    KafkaError,
    NotController,
    UnsupportedVersion,
)
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import BrokerRegistrationResponse

Story = Callable[[Simulation, ControllerNode, MemberNode], Awaitable[None]]


def play(
    story: Story, *, seed: int = 1, bootstrap: list[MetadataRecord] | None = None, **settings: object
) -> Simulation:
    with Simulation(seed) as sim:

        async def main() -> None:
            node = await ControllerNode(sim.runtime("c1"), host="c1", bootstrap=bootstrap).start()
            await story(sim, node, MemberNode(sim, "b7", 7, node.address, **settings))

        sim.run(main(), timeout_s=600)
    return sim


async def made(node: ControllerNode, *topics: Any) -> None:
    response = await node.controller.create_topics(create(*topics))
    assert [row.error_code for row in response.topics] == [0] * len(topics), response


# --- joining


def test_a_member_registers_and_is_unfenced() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        began_s = sim.now_s
        await member.start()
        assert sim.now_s - began_s < 1.0
        registration = node.controller.image.broker(7)
        assert registration is not None and not registration.fenced
        assert [(at.name, at.host, at.port) for at in registration.end_points] == [("PLAINTEXT", "b7", 9092)]
        features = {row.name: (row.min_supported_version, row.max_supported_version) for row in registration.features}
        assert features["twofold.version"] == (0, 1)
        assert features["metadata.version"] == (7, 30)
        assert "share.version" not in features
        assert member.broker.cluster_id == CLUSTER_ID

    play(story)


def test_the_controller_knows_that_the_directory_is_cordoned_before_it_unfences_the_member() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        beats = node.seen("BrokerHeartbeat")
        (registration,) = node.seen("BrokerRegistration")
        assert beats[0].want_fence
        assert all(list(beat.cordoned_log_dirs) == list(registration.log_dirs) for beat in beats)
        offsets = [beat.current_metadata_offset for beat in beats if not beat.want_fence]
        assert min(offsets) >= node.controller.image.broker(7).registered_at  # type: ignore[union-attr]

    play(story)


def test_an_empty_directory_becomes_one_of_the_cluster_and_stays_one() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        directory = member.broker._directory_id
        await member.stop()
        await member.start()
        assert member.broker._directory_id == directory
        assert member.broker.cluster_id == CLUSTER_ID

    play(story)


def test_a_member_finds_the_active_controller_by_one_that_stands_by() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        standby = await StandbyNode(sim.runtime("c2"), node.active, host="c2").start()
        member.settings["controller.quorum.bootstrap.servers"] = standby.address
        await member.start()
        assert not node.controller.image.broker(7).fenced  # type: ignore[union-attr]

    play(story)


def test_a_member_that_starts_before_the_controllers_waits_for_them() -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            member = MemberNode(sim, "b7", 7, "c1:9093")
            starting = sim.runtime("b7").spawn(member.start(), name="early start")
            await sim.runtime("watch").timers.sleep(10)
            node = await ControllerNode(sim.runtime("c1"), host="c1").start()
            await starting
            assert not node.controller.image.broker(7).fenced  # type: ignore[union-attr]

        sim.run(main(), timeout_s=600)


# --- bad input


async def refusal(member: MemberNode) -> str:
    with pytest.raises((CannotJoin, KafkaError, DataDirectoryError, ValueError)) as refused:
        await member.start()
    return str(refused.value)


def test_no_controllers_are_named_with_their_setting() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        member.settings["controller.quorum.bootstrap.servers"] = "c8:9093,c9:9093"
        said = await refusal(member)
        assert said.startswith("no controller answers at c8:9093, c9:9093: ")
        assert "controller.quorum.bootstrap.servers" in said
        assert not member.broker.runtime.disk.exists("/data/meta.properties")  # nothing was made

    play(story)


def test_a_broker_that_is_taken_for_a_controller_is_named_with_the_controllers() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        other = MemberNode(sim, "b8", 8, "b7:9092")
        said = await refusal(other)
        assert said.startswith("b7:9092 is a broker and no controller: name its controllers, c1:9093")

    play(story)


def test_a_directory_of_another_cluster_is_refused_and_left_as_it_is() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        disk = sim.runtime("b7").disk
        disk.make_dirs("/data")
        text = b"version=1\nnode.id=7\ncluster.id=AAAAAAAAAAAAAAAAAAAAAQ\ndirectory.id=AAAAAAAAAAAAAAAAAAAACA\n"
        disk.open("/data/meta.properties", create=True).write(0, text)
        said = await refusal(member)
        assert "belongs to the cluster AAAAAAAAAAAAAAAAAAAAAQ" in said and CLUSTER_ID in said
        assert "name controllers of that cluster" in said
        assert disk.open("/data/meta.properties").read(0, 1000) == text

    play(story)


def test_a_directory_that_was_a_cluster_of_its_own_is_refused_with_the_way_out() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        alone = Broker(
            sim.runtime("b7"), Settings.from_mapping({"node.id": "7", "listeners": "PLAINTEXT://b7:9092"}), "/data"
        )
        await sim.runtime("b7").spawn(alone.start(), name="alone")
        await sim.runtime("b7").spawn(alone.stop(), name="stop")
        said = await refusal(member)
        assert "it was a cluster of its own" in said and "docs/guide/cluster.md" in said

    play(story)


def test_features_that_twofold_does_not_serve_are_named_with_the_command_that_lowers_them() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        said = await refusal(member)
        assert "share.version at 1, streams.version at 1" in said
        assert "downgrade --feature share.version=0 --feature streams.version=0`" in said
        assert not node.seen("BrokerRegistration")

    levels: list[MetadataRecord] = [
        *initial_levels(),
        FeatureLevel("share.version", 1),
        FeatureLevel("streams.version", 1),
    ]
    play(story, bootstrap=levels)


def test_a_cluster_too_old_to_keep_a_broker_free_of_partitions_is_named_with_the_command() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        said = await refusal(member)
        assert "metadata.version is 29 (4.2-IV1)" in said
        assert "upgrade --feature metadata.version=30" in said

    play(story, bootstrap=[FeatureLevel("metadata.version", 29)])


def test_a_node_id_in_use_is_named_and_tried_until_the_time_is_over() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        other = MemberNode(sim, "b8", 7, node.address)
        said = await refusal(other)
        assert "another broker with this node.id is alive" in said and "set node.id to a number that no broker" in said
        assert node.controller.image.broker(7).end_points[0].host == "b7"  # type: ignore[union-attr]

    play(story)


def test_a_registration_that_is_refused_for_its_features_says_more_than_the_code() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        node.script("BrokerRegistration", lambda _: BrokerRegistrationResponse(error_code=UnsupportedVersion.code))
        assert "the cluster has features that Twofold does not have" in await refusal(member)

    play(story)


# --- living


def test_a_member_that_was_killed_waits_for_the_end_of_its_session_and_comes_back() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        first = node.controller.image.broker(7)
        began_s = sim.now_s
        await member.restart()
        second = node.controller.image.broker(7)
        assert first is not None and second is not None
        assert second.epoch > first.epoch and second.incarnation_id != first.incarnation_id
        assert 7 < sim.now_s - began_s < 13
        assert node.seen("BrokerRegistration")[-1].previous_broker_epoch == -1  # it was not stopped cleanly

    play(story)


def test_a_member_that_leaves_is_let_go_first_and_tells_its_epoch_at_the_next_start() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        epoch = node.controller.image.broker(7).epoch  # type: ignore[union-attr]
        await member.stop()
        assert node.seen("BrokerHeartbeat")[-1].want_shut_down
        assert not node.controller.image.broker(7).is_active  # type: ignore[union-attr]
        await member.start()
        assert node.seen("BrokerRegistration")[-1].previous_broker_epoch == epoch

    play(story)


def test_a_member_that_no_controller_lets_go_stops_all_the_same() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        await node.stop()
        began_s = sim.now_s
        await member.stop()
        assert 5 < sim.now_s - began_s < 20

    play(story)


def test_a_member_that_the_controller_has_forgotten_registers_again_as_the_same() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        first = node.controller.image.broker(7)
        assert first is not None
        await node.controller.perform(lambda image, context: _unregister(7, first.epoch), "Unregister")
        await member.until(lambda: (found := node.controller.image.broker(7)) is not None and not found.fenced)
        second = node.controller.image.broker(7)
        assert second is not None and second.incarnation_id == first.incarnation_id
        assert second.epoch > first.epoch
        assert not member.failures

    play(story)


def _unregister(broker_id: int, epoch: int) -> Operation[None]:
    yield UnregisterBroker(broker_id, epoch)


def test_a_member_whose_id_was_given_away_gives_up() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        stale = BrokerHeartbeatResponse(error_code=77, should_shut_down=False)
        taken = BrokerRegistrationResponse(error_code=DuplicateBrokerRegistration.code)
        node.script("BrokerHeartbeat", lambda _: stale)
        node.script("BrokerRegistration", lambda _: taken)
        await member.until(lambda: member.failures)
        assert "set node.id to a number that no broker has" in str(member.failures[0])

    play(story)


def test_a_controller_that_starts_anew_is_followed_and_beaten_to() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        await node.stop()
        await sim.runtime("watch").timers.sleep(3)
        again = await ControllerNode(sim.runtime("c1"), host="c1").start()
        assert again.controller.leader_epoch > 1
        await made(again, topic("later", -1, -1, {0: [7]}))
        await member.until(lambda: member.broker.image.topic("later") is not None, 5)
        await member.until(lambda: again.seen("BrokerHeartbeat"), 5)
        assert not member.failures

    play(story)


def test_a_controller_that_hangs_up_or_leads_no_more_is_asked_again() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        def no_controller(_: Any) -> Any:
            raise NotController("the tests")

        for api in ("BrokerRegistration", "BrokerHeartbeat", "Fetch"):
            node.script(api, lambda _: HANG_UP)
        node.script("BrokerRegistration", no_controller)
        node.script("BrokerHeartbeat", no_controller)
        await member.start()
        assert not node.controller.image.broker(7).fenced  # type: ignore[union-attr]

    play(story)


# --- the metadata


def test_a_member_begins_with_the_snapshot_and_goes_on_with_the_log() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await node.controller.perform(lambda image, context: _topic("in-snapshot", (9,)), "CreateTopics")
        await node.controller.snapshots.write_now()
        await node.controller.perform(lambda image, context: _topic("after", (9,)), "CreateTopics")
        await member.start()
        assert node.seen("FetchSnapshot")
        assert {"in-snapshot", "after"} <= set(member.broker.image.topics)
        await made(node, topic("live", -1, -1, {0: [7]}))
        await member.until(lambda: member.broker.image.topic("live") is not None, 1)
        assert member.broker.image.topics == node.controller.image.topics

    play(story)


def test_the_image_does_not_move_inside_a_metadata_transaction() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        seen: list[int] = []
        member.broker.core.controller.subscribe(lambda delta, image: seen.append(len(image.topics)))
        await made(node, *(topic(f"t{index}", -1, -1, {row: [7] for row in range(3000)}) for index in range(4)))
        await member.until(lambda: len(member.broker.image.topics) == 4, 5)
        assert set(seen) == {0, 4}

    play(story)


def test_a_record_that_cannot_be_read_ends_the_member_with_a_reason_and_a_farewell() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        node.controller.metadata_log.append([b"\x01\x7f\x00unknown"], node.controller.leader_epoch)
        await member.until(lambda: member.failures)
        said = str(member.failures[0])
        assert "type 127" in said and "Use a newer one" in said
        await member.stop()
        assert any(beat.want_shut_down for beat in node.seen("BrokerHeartbeat"))

    play(story)


# --- clients


def test_a_topic_that_was_created_through_a_member_can_be_seen_there_at_once() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        rows = [
            {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": [
                {"partition_index": 0, "broker_ids": [7]}]}
        ]  # fmt: skip
        answer = await member.ask("CreateTopics", 7, topics=rows, timeout=1000)
        assert answer["topics"][0]["error_code"] == 0, answer
        assert member.broker.image.topic("t") is not None
        (envelope,) = node.seen("Envelope")
        assert envelope.request_principal == b"\0\0\x05User\x0aANONYMOUS\0\0"
        assert envelope.client_host_address == bytes((10, 0, 0, 1))

    play(story)


def test_what_the_controller_refuses_is_told_in_its_own_words() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        answer = await member.ask("DeleteTopics", 6, topics=[{"name": "nothing", "topic_id": None}], timeout=1000)
        assert answer["responses"][0]["error_code"] == 3

    play(story)


def test_a_request_that_no_controller_answers_is_an_error_of_its_api() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        await node.stop()
        answer = await member.ask("CreateTopics", 7, topics=[{"name": "t"}], timeout=1000)
        assert answer["topics"][0]["error_code"] == NotController.code, answer

    play(story, request_timeout_ms=2000)


def test_producer_ids_are_those_of_the_controllers_blocks() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        found = [
            (await member.ask("InitProducerId", 1, transactional_id=None, transaction_timeout=60000))["producer_id"]
            for _ in range(3)
        ]
        assert found == [0, 1, 2]
        assert node.controller.image.next_producer_id == 1000
        assert {request.broker_id for request in node.seen("AllocateProducerIds")} == {7}

    play(story)


def test_metadata_of_a_member_names_the_whole_cluster() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        other = await MemberNode(sim, "b8", 8, node.address).start()
        await member.until(lambda: len(member.broker.image.active_brokers()) == 2, 1)
        for asked in (member, other):
            found = await asked.ask("DescribeCluster", 1, endpoint_type=1)
            assert found["cluster_id"] == CLUSTER_ID
            assert sorted((row["broker_id"], row["host"]) for row in found["brokers"]) == [(7, "b7"), (8, "b8")]

    play(story)


# --- what it cannot do


def test_a_transaction_with_a_partition_of_another_broker_is_refused_before_it_begins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its markers would not reach the other broker, and readers there would wait for ever."""

    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        await MemberNode(sim, "b8", 8, node.address).start()
        await made(node, topic("t", -1, -1, {0: [7], 1: [8]}), topic("__transaction_state", -1, -1, {0: [7]}))
        await member.until(lambda: member.broker.image.topic("__transaction_state") is not None, 1)
        await sim.runtime("watch").timers.sleep(1)
        found = await member.ask(
            "InitProducerId", 4, transactional_id="x", transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        assert found["error_code"] == 0
        whose = {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": found["producer_id"],
            "v3_and_below_producer_epoch": found["producer_epoch"],
        }
        for index, code in ((1, 48), (0, 0)):
            rows = [{"name": "t", "partitions": [index]}]
            added = await member.ask("AddPartitionsToTxn", 3, v3_and_below_topics=rows, **whose)
            (row,) = added["results_by_topic_v3_and_below"][0]["results_by_partition"]
            assert row["partition_error_code"] == code
        assert "t-1 is led by broker 8, and the coordinator of 'x' is broker 7" in caplog.text

    play(story)


def test_a_member_serves_no_heartbeats_of_transactions() -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        served = {row["api_key"]: row["max_version"] for row in (await member.ask("ApiVersions", 2))["api_keys"]}
        assert KEYS["TxnHeartbeat"] not in served and served[KEYS["InitProducerId"]] == 6

    play(story)


def test_a_topic_in_remote_storage_fences_the_member_until_it_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def story(sim: Simulation, node: ControllerNode, member: MemberNode) -> None:
        await member.start()
        await node.controller.perform(lambda image, context: _topic("remote", (7,), remote=True), "CreateTopics")
        await member.until(lambda: node.controller.image.broker(7).fenced, 5)  # type: ignore[union-attr]
        assert "topic remote has remote.storage.enable=true" in caplog.text
        await member.ask("DeleteTopics", 6, topics=[{"name": "remote", "topic_id": None}], timeout=1000)
        await member.until(lambda: not node.controller.image.broker(7).fenced, 5)  # type: ignore[union-attr]

    with caplog.at_level(logging.ERROR):
        play(story)


def _topic(name: str, replicas: tuple[int, ...], *, remote: bool = False) -> Operation[None]:
    topic_id = uuid5(NAMESPACE_DNS, name)
    yield BeginTransaction(name)
    yield Topic(name, topic_id)
    yield Partition(0, topic_id, replicas, replicas, replicas[0])
    if remote:
        yield Config(TOPIC_RESOURCE, name, "remote.storage.enable", "true")
    yield EndTransaction()
