"""The transaction coordinator inside a broker, on simulated time: order of errors, waiting, time, loading, restarts."""

import logging
from collections.abc import Awaitable
from typing import Any

import pytest

from kits.node.sim_node import COORDINATORS
from kits.node.txn_node import Node, Pair, exact, hearing, held_markers, simulated
from twofold.broker.api import add_partitions_to_txn
from twofold.broker.coordinators.transactions import shard as transaction_shard
from twofold.broker.network.context import Peer, RequestContext
from twofold.config.internal_topics import TRANSACTION_STATE, coordinator_partition
from twofold.coordinator.transaction.records import TransactionMetadata, encode_key
from twofold.coordinator.transaction.states import State
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire import codec
from twofold.wire.errors import KafkaStorageError
from twofold.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

HOUR_S = 3_600


# The life of a transaction


@simulated()
async def test_a_transaction_is_added_written_committed_and_complete(node: Node) -> None:
    pair = await node.init()
    assert pair[1] == 0
    assert await node.state() == "Empty"
    assert await node.add(pair, 0, 1) == [0, 0]
    assert await node.produce(pair, 0) == 0
    assert await node.produce(pair, 1) == 0
    row = await node.describe()
    assert (row["transaction_state"], row["topics"]) == ("Ongoing", [{"topic": "t", "partitions": [0, 1]}])
    assert (node.stable_offset(0), node.end_offset(0)) == (0, 1)
    assert await node.end(pair) == 0
    await node.sleep(0.01)
    assert (await node.describe())["transaction_state"] == "CompleteCommit"
    assert (node.stable_offset(0), node.end_offset(0)) == (2, 2)
    assert await node.end(pair) == 0, "the answer was lost, the client asks again"
    assert await node.end(pair, commit=False) == 48


@simulated()
async def test_a_client_of_the_second_protocol_adds_by_producing_and_goes_on_with_a_higher_epoch(node: Node) -> None:
    pair = await node.init()
    assert await node.produce(pair, 0, version=12) == 0
    assert await node.produce(pair, 1, version=12) == 0
    assert (await node.describe())["topics"] == [{"topic": "t", "partitions": [0, 1]}]
    after = await node.end(pair, version=5)
    assert after == (pair[0], pair[1] + 1)
    assert await node.end(pair, version=5) == after, "the same answer to a retry"
    assert await node.produce(pair, 0, version=12) == 47, "the old epoch is fenced by the marker"
    assert await node.produce(after, 0, version=13) == 0


@exact()
async def test_the_first_batch_of_a_transaction_is_verified(node: Node) -> None:
    pair = await node.init()
    assert await node.produce(pair, 0, version=10) == 48
    assert await node.produce(pair, 0, version=11) == 120
    assert await node.produce((pair[0] + 1, 0), 0, version=11) == 49
    assert await node.produce((pair[0], 5), 0, version=11) == 47
    assert await node.produce(pair, 0, version=12) == 0
    assert await node.produce(pair, 0, sequence=1, version=10) == 0, "open in this partition, with the same epoch"
    assert await node.produce(pair, 0, sequence=1, version=10) == 0, "a duplicate"
    assert await node.produce(pair, 0, sequence=3, version=10) == 45


@exact()
async def test_a_coordinator_that_cannot_be_asked_makes_the_producer_try_again(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    node.broker.transactions._resign(node.shard().index)
    assert await node.produce(pair, 0, version=11) == 19
    assert await node.produce(pair, 0, version=12) == 19


@simulated(transaction_partition_verification_enable="false")
async def test_verification_can_be_switched_off_but_adding_cannot(node: Node) -> None:
    pair = await node.init()
    assert await node.produce(pair, 0, version=11) == 0
    assert await node.state() == "Empty"
    assert await node.produce(pair, 1, version=12) == 0
    assert (await node.describe())["topics"] == [{"topic": "t", "partitions": [1]}]


# AddPartitionsToTxn: which partitions


@simulated()
async def test_one_partition_that_cannot_be_added_stops_all(node: Node) -> None:
    pair = await node.init()
    assert await node.add(pair, 0, 7) == [55, 3]
    assert await node.add(pair, 0, topic="nowhere") == [3]
    assert await node.add(pair, 0, topic=TRANSACTION_STATE) == [29]
    assert await node.state() == "Empty"


@simulated()
async def test_brokers_ask_for_many_transactions_at_once(node: Node) -> None:
    one, other = await node.init("x"), await node.init("y")

    def transaction(name: str, pair: Pair, *partitions: int, verify: bool = False) -> dict[str, Any]:
        body = {"transactional_id": name, "producer_id": pair[0], "producer_epoch": pair[1], "verify_only": verify}
        return {**body, "topics": [{"name": "t", "partitions": list(partitions)}]}

    async def ask(*transactions: dict[str, Any]) -> list[list[int]]:
        answer = await node.ask("AddPartitionsToTxn", 5, transactions=list(transactions))
        assert answer["error_code"] == 0
        return [
            [row["partition_error_code"] for topic in result["topic_results"] for row in topic["results_by_partition"]]
            for result in answer["results_by_transaction"]
        ]

    assert await ask() == []
    asked = [transaction("x", one, 0), transaction("y", other, 0, verify=True), transaction("z", other, 1)]
    assert await ask(*asked) == [[0], [120], [49]]
    assert await ask(transaction("x", one, 0, 1, verify=True)) == [[0, 120]]
    assert await ask(transaction("x", (one[0], 9), 0)) == [[90]]


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (3, 90)])
@simulated()
async def test_old_clients_are_told_of_an_epoch_and_new_ones_that_they_are_fenced(
    node: Node, version: int, code: int
) -> None:
    pair = await node.init()
    assert await node.init(pair=pair) == (pair[0], 1)
    assert await node.add(pair, 0, version=version) == [code]
    assert await node.end(pair, version=version) == code
    body = {"transactional_id": "x", "producer_id": pair[0], "producer_epoch": pair[1], "group_id": "g"}
    while (await node.ask("FindCoordinator", 1, key="g", key_type=0))["error_code"]:
        await node.sleep(0.01)
    assert (await node.ask("AddOffsetsToTxn", version, **body))["error_code"] == code


# Waiting instead of sending clients away


@exact()
async def test_without_patience_what_is_under_way_is_concurrent(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    await node.produce(pair, 0)
    with held_markers(node) as held:
        assert await node.end(pair) == 0
        await node.sleep(0.01)
        assert await node.state() == "PrepareCommit"
        assert await node.add(pair, 1) == [51]
        assert await node.end(pair) == 51
        assert await node.init() == 51
        assert await node.produce(pair, 1, version=10) == 19
        assert await node.produce(pair, 1, version=12) == 51
        held[0]()
    assert await node.state() == "CompleteCommit"
    assert await node.add(pair, 1) == [0]


@simulated()
async def test_what_is_under_way_is_waited_for_and_the_answer_comes_with_its_end(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    with held_markers(node) as held:
        await node.end(pair)
        answer = node.send_add(pair, 1)
        await node.sleep(0.05)
        assert not answer.is_answered()
        held[0]()
    assert await answer() == [0]


@simulated()
async def test_patience_ends(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    with held_markers(node) as held:
        await node.end(pair)
        began = node.sim.now_s
        assert await node.add(pair, 1) == [51]
        assert 0.09 < node.sim.now_s - began < 0.2
        held[0]()


@exact()
async def test_init_of_an_open_transaction_aborts_it_and_says_concurrent(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    assert await node.init() == 51
    await node.sleep(0.01)
    assert await node.state() == "CompleteAbort"
    assert await node.init() == (pair[0], pair[1] + 2)


@simulated()
async def test_init_of_an_open_transaction_waits_for_the_abort(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    await node.produce(pair, 0)
    assert await node.init() == (pair[0], pair[1] + 2)
    assert node.stable_offset() == node.end_offset() == 2
    assert await node.produce(pair, 0, sequence=1) == 47, "the first instance is fenced"


# Time


@simulated(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000)
async def test_what_takes_longer_than_its_timeout_is_aborted_and_not_earlier(node: Node) -> None:
    pair = await node.init(timeout=10_000)
    await node.add(pair, 0)
    await node.produce(pair, 0)
    await node.sleep(10)
    assert await node.state() == "Ongoing"
    await node.sleep(1.1)
    assert await node.state() == "CompleteAbort"
    assert node.stable_offset() == 2
    assert await node.end(pair) == 90
    assert node.broker.transactions.counts.timed_out == 1


@simulated(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000)
async def test_adding_more_does_not_extend_a_transaction(node: Node) -> None:
    pair = await node.init(timeout=10_000)
    await node.add(pair, 0)
    await node.sleep(9)
    await node.add(pair, 1)
    await node.sleep(2.1)
    assert await node.state() == "CompleteAbort"


@simulated(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000)
async def test_the_timeout_goes_on_over_a_restart(node: Node) -> None:
    pair = await node.init(timeout=10_000)
    await node.add(pair, 0)
    await node.sleep(8)
    await node.restart()
    await node.sleep(1)
    assert await node.state() == "Ongoing"
    await node.sleep(2.2)
    assert await node.state() == "CompleteAbort"


@simulated(
    transactional_id_expiration_ms=HOUR_S * 1000, transaction_remove_expired_transaction_cleanup_interval_ms=60_000
)
async def test_unused_ids_are_forgotten_and_open_ones_are_not(node: Node) -> None:
    pair = await node.init("x")
    kept = await node.init("kept", timeout=900_000)
    await node.sleep(0.9 * HOUR_S)
    assert await node.add(kept, 0, name="kept") == [0]
    await node.sleep(0.1 * HOUR_S + 120)
    assert await node.state("x") == 105
    assert await node.state("kept") in ("Ongoing", "CompleteAbort")
    assert await node.add(pair, 0) == [49]
    assert await node.end(pair) == 49
    await node.restart()
    assert await node.state("x") == 105, "the tombstone is in the log"
    fresh = await node.init("x", pair=pair)
    assert fresh[1] == 0 and fresh[0] != pair[0]
    assert node.broker.transactions.shard("x").committed.entries["x"].producer_id == fresh[0]


@simulated(
    transactional_id_expiration_ms=HOUR_S * 1000,
    transaction_remove_expired_transaction_cleanup_interval_ms=60_000,
    transaction_state_log_num_partitions=1,
)
async def test_many_ids_expire_in_batches_and_none_is_lost_or_kept(node: Node) -> None:
    body = {"resource_type": 2, "resource_name": TRANSACTION_STATE}
    configs = [{"name": "max.message.bytes", "config_operation": 0, "value": "600"}]
    answer = await node.ask("IncrementalAlterConfigs", 1, resources=[{**body, "configs": configs}], validate_only=False)
    assert answer["responses"][0]["error_code"] == 0
    names = {f"id-{number:04}" for number in range(200)}
    for name in names:
        assert (await node.init(name))[1] == 0
    assert set(await node.list()) == names
    await node.sleep(HOUR_S + 120)
    assert await node.list() == {}
    await node.restart()
    assert await node.list() == {}


# Restarts, loading, resigning


@pytest.mark.parametrize("commit", [True, False])
@simulated()
async def test_what_was_decided_is_completed_after_a_kill(node: Node, commit: bool) -> None:
    pair = await node.init()
    await node.add(pair, 0, 1)
    await node.produce(pair, 0)
    with held_markers(node):
        assert await node.end(pair, commit) == 0
        await node.sleep(0.01)
        assert await node.state() == ("PrepareCommit" if commit else "PrepareAbort")
    await node.restart()
    await node.sleep(0.1)
    assert await node.state() == ("CompleteCommit" if commit else "CompleteAbort")
    assert node.stable_offset(0) == node.end_offset(0) == 2
    assert await node.end(pair, commit) == 0


@simulated()
async def test_an_open_transaction_goes_on_after_a_kill(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    await node.produce(pair, 0)
    await node.restart()
    assert await node.produce(pair, 0, sequence=1) == 0
    assert await node.add(pair, 1) == [0]
    assert await node.end(pair) == 0
    await node.sleep(0.01)
    assert node.stable_offset() == node.end_offset() == 3


@exact()
async def test_while_it_is_loaded_every_client_is_told_to_wait(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    node.lead_anew()
    asked = [
        node.send("InitProducerId", 4, transactional_id="x", transaction_timeout=1000),
        node.send("EndTxn", 3, transactional_id="x", producer_id=pair[0], producer_epoch=pair[1], committed=True),
        node.send("ListTransactions", 2),
    ]
    added, described = node.send_add(pair, 1), node.send("DescribeTransactions", 0, transactional_ids=["x"])
    assert [(await answer())["error_code"] for answer in asked] == [14, 14, 14]
    assert await added() == [14]
    assert (await described())["transaction_states"][0]["error_code"] == 14
    await node.sleep(0.1)
    assert await node.end(pair) == 0


@exact()
async def test_a_broker_that_does_not_lead_does_not_coordinate(node: Node) -> None:
    pair = await node.init()
    node.broker.transactions._resign(node.shard().index)
    assert await node.init() == 16
    assert await node.add(pair, 0) == [16]
    assert await node.end(pair) == 16
    assert await node.state() == 16


def entry(epoch: int, state: State = State.EMPTY, **more: Any) -> TransactionMetadata:
    start_ms = -1 if state is State.EMPTY else 1
    return TransactionMetadata(
        ProducerId(4000), ProducerEpoch(epoch), 60_000, state, last_update_ms=1, start_ms=start_ms, **more
    )


@exact()
async def test_a_log_in_which_an_epoch_falls_is_disabled_alone_and_named(node: Node) -> None:
    await node.init("x")
    other = next(
        f"o{n}"
        for n in range(99)
        if coordinator_partition(f"o{n}", COORDINATORS) != coordinator_partition("x", COORDINATORS)
    )
    await node.init(other)
    node.write_raw("bad", entry(5), entry(4))
    index = coordinator_partition("bad", COORDINATORS)
    with hearing(logging.getLogger("twofold.broker.coordinators.shard"), logging.ERROR) as heard:
        await node.restart()
        await node.sleep(0.1)
    assert await node.init("bad") == 16
    assert await node.state("bad") == 16
    assert node.broker.transactions.shards[index].is_corrupt
    assert [f"{TRANSACTION_STATE}-{index}" in text and "'bad'" in text for text in heard[:1]] == [True]
    assert (await node.init(other))[1] == 1, "the others serve"
    assert set(await node.list()) >= {other}


@exact()
async def test_bytes_that_are_no_transaction_disable_their_partition(node: Node) -> None:
    node.write_raw("bad", b"\x00\x01\x00")
    await node.restart()
    await node.sleep(0.1)
    assert await node.init("bad") == 16


@exact()
async def test_records_of_unknown_kinds_are_reported_and_passed_over(node: Node) -> None:
    pair = await node.init()
    node.write_raw("x", b"", key=b"\x00\x63what?")
    node.write_raw("x", b"\x00\x09later", key=encode_key("later"))
    with hearing(transaction_shard.log, logging.WARNING) as heard:
        await node.restart()
        await node.sleep(0.1)
    assert len(set(heard)) == 2
    assert await node.init(pair=pair) == (pair[0], pair[1] + 1)


@exact()
async def test_a_read_that_fails_while_loading_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = await node.init()
    partition_log = type(node.shard().partition.log)
    original = partition_log.read
    failing = True

    def read(self: Any, *args: Any, **more: Any) -> Any:
        if failing and self.topic_partition.topic == TRANSACTION_STATE:
            raise KafkaStorageError("the disk is away")
        return original(self, *args, **more)

    monkeypatch.setattr(partition_log, "read", read)
    node.lead_anew()
    await node.sleep(0.5)
    assert await node.init() == 14
    failing = False
    await node.sleep(1)
    assert await node.init(pair=pair) == (pair[0], pair[1] + 1)


@exact()
async def test_answers_of_a_leadership_that_ended_are_ignored(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0)
    await node.produce(pair, 0)
    with held_markers(node) as held:
        assert await node.end(pair) == 0
        await node.sleep(0.01)
        node.lead_anew()
        await node.sleep(0.1)
        old, new = held
        new()
        await node.sleep(0.01)
        assert await node.state() == "CompleteCommit"
        again = await node.init()
        await node.add(again, 1)
        old()
        await node.sleep(0.01)
    assert await node.state() == "Ongoing"


# Seen by people


@simulated()
async def test_every_transition_is_logged_at_debug_level(node: Node) -> None:
    with hearing(transaction_shard.log, logging.DEBUG) as heard:
        pair = await node.init()
        await node.add(pair, 0, 1)
        await node.end(pair, commit=False)
        await node.sleep(0.01)
    who = f"producer {pair[0]} epoch 0"
    texts = [text.split(": ", 1)[1] for text in heard]
    assert texts == [
        f"x: none -> Empty, {who}, partitions none",
        f"x: Empty -> Ongoing, {who}, partitions t-0, t-1",
        f"x: Ongoing -> PrepareAbort, {who}, partitions t-0, t-1",
        f"x: PrepareAbort -> CompleteAbort, {who}, partitions none",
    ]


@exact()
async def test_a_decided_transaction_is_described_with_the_partitions_that_lack_their_marker(node: Node) -> None:
    pair = await node.init()
    await node.add(pair, 0, 1)
    broker = node.broker
    state = broker.replicas.leader("t", 1)
    state.is_leader = False
    await node.end(pair)
    await node.sleep(0.01)
    row = await node.describe()
    assert (row["transaction_state"], row["topics"]) == ("PrepareCommit", [{"topic": "t", "partitions": [1]}])
    state.is_leader = True
    await node.sleep(2)
    assert await node.state() == "CompleteCommit"


@simulated()
async def test_transactions_are_listed_by_state_producer_duration_and_pattern(node: Node) -> None:
    pairs = {name: await node.init(name) for name in ("a-1", "a-2", "b-1")}
    await node.add(pairs["a-1"], 0, name="a-1")
    await node.sleep(5)
    everything = {"a-1": "Ongoing", "a-2": "Empty", "b-1": "Empty"}
    assert await node.list() == everything
    assert await node.list(state_filters=["Ongoing", "What"]) == {"a-1": "Ongoing"}
    assert await node.list(state_filters=["What"]) == {}
    assert await node.list(producer_id_filters=[pairs["b-1"][0]]) == {"b-1": "Empty"}
    assert await node.list(duration_filter=6000) == {"a-2": "Empty", "b-1": "Empty"}
    assert await node.list(duration_filter=4000) == everything
    assert await node.list(transactional_id_pattern="a-.") == {"a-1": "Ongoing", "a-2": "Empty"}
    assert await node.list(transactional_id_pattern="a") == {}
    assert await node.list(transactional_id_pattern="(") == 128
    answer = await node.ask("ListTransactions", 0, state_filters=["What"])
    assert answer["unknown_state_filters"] == ["What"]


@simulated(transaction_two_phase_commit_enable="true")
async def test_the_leader_that_asks_is_told_which_transactions_are_two_phase_ones(node: Node) -> None:
    pairs = {"plain": await node.init("plain")}
    body = {"transactional_id": "vowed", "transaction_timeout": 1000, "enable2_pc": True}
    answer = await node.ask("InitProducerId", 6, **body)
    pairs["vowed"] = (answer["producer_id"], answer["producer_epoch"])
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=pair[0],
                producer_epoch=pair[1],
                topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
            )
            for name, pair in pairs.items()
        ]
    )
    context = RequestContext(24, 5, 1, None, Peer("10.0.0.1", 1, "PLAINTEXT"))
    response = await resolved(add_partitions_to_txn.handle(node.broker.services, context, request))
    frame = bytes(codec.encode_response(response, 24, 5, 1))[4:]
    _, read = codec.decode_response(24, 5, frame)
    assert {row.transactional_id: row.two_phase for row in read.results_by_transaction} == {
        "plain": False,
        "vowed": True,
    }


async def resolved(answer: Any) -> Any:
    return await answer if isinstance(answer, Awaitable) else answer
