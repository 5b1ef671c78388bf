"""Topics and open two-phase transactions: what is prepared is not deleted, and what is gone is not called committed."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.coordinators.transactions.test_two_phase_commit import bumped
from kits.node import markers as marker_kit
from kits.node.two_phase_node import Given, TwoPhaseNode, exact, two_phase
from kits.node.txn_node import Pair
from twofold.broker.topics.deletion import TopicDeletion
from twofold.config.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from twofold.records.batch import BatchBuilder
from twofold.wire.errors import PolicyViolation

POLICY_VIOLATION, UNKNOWN_TOPIC, ABORTABLE, MESSAGE_TOO_LARGE = 44, 3, 120, 10
Answers = list[tuple[int, str | None]]


def ask_to_delete(node: TwoPhaseNode, *topics: str) -> Callable[[], Awaitable[Answers]]:
    """Ask now; what is returned waits for (error code, message) of each, in order."""
    rows = [{"name": topic, "topic_id": None} for topic in topics]
    receive = node.send("DeleteTopics", 6, topics=rows, timeout=600_000)

    async def answers() -> Answers:
        by_name = {row["name"]: row for row in (await receive())["responses"]}
        return [(by_name[topic]["error_code"], by_name[topic]["error_message"]) for topic in topics]

    return answers


async def delete(node: TwoPhaseNode, topic: str = "t") -> tuple[int, str | None]:
    (answer,) = await ask_to_delete(node, topic)()
    return answer


def send(node: TwoPhaseNode, pair: Pair, topic: str, *, name: str = "x", size: int = 1) -> Any:
    """A first batch to partition 0 of a topic; what is returned waits for the error code."""
    builder = BatchBuilder(producer_id=pair[0], producer_epoch=pair[1], base_sequence=0, transactional=True)
    builder.add(b"k", b"v" * size, node.broker.runtime.clock.wall_ms())
    data = [{"name": topic, "partition_data": [{"index": 0, "records": builder.build()}]}]
    receive = node.send("Produce", 12, transactional_id=name, acks=-1, timeout=30_000, topic_data=data)

    async def code() -> int:
        return int((await receive())["responses"][0]["partition_responses"][0]["error_code"])

    return code


async def until(node: TwoPhaseNode, is_so: Callable[[], bool]) -> None:
    """Turn by turn: no time passes."""
    for _ in range(100):
        if is_so():
            return
        await node.sleep(0)
    raise AssertionError("never so")


async def lose_topic(node: TwoPhaseNode) -> None:
    """What DeleteTopics refuses, done all the same: as a tool or another version does it."""
    await marker_kit.delete(node, "t")


# DeleteTopics


@pytest.mark.parametrize("commit", [True, False])
@two_phase()
async def test_a_topic_with_records_of_an_open_two_phase_transaction_is_not_deleted(
    node: TwoPhaseNode, commit: bool
) -> None:
    pair = await node.prepared()
    code, message = await delete(node)
    assert code == POLICY_VIOLATION
    assert message is not None and "'x'" in message and "`twofold txn describe x`" in message
    topic_id = node.broker.image.topics["t"].topic_id
    by_id = await node.ask("DeleteTopics", 6, topics=[{"name": None, "topic_id": topic_id}], timeout=1000)
    assert by_id["responses"][0]["error_code"] == POLICY_VIOLATION
    by_name = await node.ask("DeleteTopics", 1, topic_names=["t"], timeout=1000)
    assert by_name["responses"][0]["error_code"] == POLICY_VIOLATION
    await node.kill()
    assert (await delete(node))[0] == POLICY_VIOLATION, "also after a restart"
    assert await node.end(pair, commit, version=5) == bumped(pair)
    assert await node.settled() == ("CompleteCommit" if commit else "CompleteAbort")
    assert (await delete(node))[0] == 0
    assert node.broker.transactions.being_deleted == {}


@two_phase()
async def test_one_topic_that_stays_keeps_no_other_from_being_deleted(node: TwoPhaseNode) -> None:
    for topic in ("u", "v"):
        await node.create_topic(topic)
    await node.prepared()
    assert [code for code, _ in await ask_to_delete(node, "u", "t", "v")()] == [0, POLICY_VIOLATION, 0]


@two_phase()
async def test_other_open_transactions_let_their_topics_go_as_in_kafka(node: TwoPhaseNode) -> None:
    pair = (await node.vow(two_phase=False)).pair
    assert await node.produce(pair, version=12) == 0
    assert (await delete(node))[0] == 0
    assert await node.end(pair, version=5) == bumped(pair)
    assert await node.settled() == "CompleteCommit"


@two_phase()
async def test_the_offsets_and_the_transaction_log_stay_with_what_is_prepared(node: TwoPhaseNode) -> None:
    pair = await node.prepared(offset=7)
    for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        code, message = await delete(node, topic)
        assert code == POLICY_VIOLATION and message is not None and "'x'" in message
    await node.kill()
    given = await node.keep()
    assert given.ongoing == pair
    assert await node.end(given.pair, version=5) == bumped(given.pair)
    assert await node.settled() == "CompleteCommit"
    assert await node.offset() == 7


@two_phase()
async def test_a_deletion_that_stood_in_line_is_checked_when_it_is_written(node: TwoPhaseNode) -> None:
    """A large topic is being created. Before it is the turn of the deletion, somebody prepares."""
    pair = (await node.vow()).pair
    large = {"name": "large", "num_partitions": 5000, "replication_factor": 1, "assignments": [], "configs": []}
    created = node.send("CreateTopics", 5, topics=[large], timeout=600_000)
    await until(node, lambda: node.broker.controller._writer.is_busy)
    answers = ask_to_delete(node, "t")
    await until(node, lambda: len(node.broker.controller._writer._line) == 1)
    assert node.broker.transactions.being_deleted == {}, "nobody is kept waiting by what is only looked at"
    written = send(node, pair, "t")
    assert node.broker.controller._writer.is_busy, "else the test shows nothing"
    assert (await created())["topics"][0]["error_code"] == 0
    assert (await answers())[0][0] == POLICY_VIOLATION
    assert await written() == 0
    assert await node.end(pair, version=5) == bumped(pair)
    assert await node.settled() == "CompleteCommit"


@two_phase()
async def test_nothing_is_added_to_a_topic_while_it_is_being_deleted(node: TwoPhaseNode) -> None:
    """The deletion is written and not yet committed: the image that others see still has the topic."""
    await node.create_topic("u")
    pair = (await node.vow()).pair
    answers = ask_to_delete(node, "t")
    await until(node, lambda: node.broker.transactions.is_being_deleted("t"))
    assert node.broker.image.topic("t") is not None, "else the test shows nothing"
    late, other = send(node, pair, "t"), send(node, pair, "u")
    assert (await late(), await other()) == (UNKNOWN_TOPIC, 0)
    assert (await answers())[0][0] == 0
    assert await node.end(pair, version=5) == bumped(pair)
    assert await node.settled() == "CompleteCommit"


@exact()
async def test_a_deletion_in_pieces_and_a_producer_agree_about_every_topic(node: TwoPhaseNode) -> None:
    """Hundreds of topics in a metadata transaction, and a two-phase producer that writes to some of them meanwhile."""
    topics = [f"d{number:04}" for number in range(1400)]
    rows = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in topics
    ]
    await node.ask("CreateTopics", 5, topics=rows, timeout=600_000)
    pairs = {name: (await node.vow(f"id-{name}")).pair for name in (topics[0], topics[700], topics[-1])}
    answers = ask_to_delete(node, *topics)
    written: dict[str, int] = {}
    while node.broker.controller._writer.is_busy or not written:
        await node.sleep(0)
        for name, pair in pairs.items():
            if name not in written and (len(written) < 2 or name != topics[0]):
                written[name] = await send(node, pair, name, name=f"id-{name}")()
    codes = dict(zip(topics, [code for code, _ in await answers()], strict=True))
    assert set(written.values()) <= {0, UNKNOWN_TOPIC}
    for name, code in written.items():
        assert codes[name] == (POLICY_VIOLATION if code == 0 else 0), name
    assert sum(code == 0 for code in codes.values()) >= len(topics) - len(pairs)
    assert node.broker.transactions.being_deleted == {}


@two_phase()
async def test_while_the_transaction_log_is_not_loaded_a_topic_with_an_open_transaction_stays(
    node: TwoPhaseNode,
) -> None:
    await node.create_topic("u")
    await node.prepared()
    transactions, shard = node.broker.transactions, node.shard()
    transactions._resign(shard.index)
    transactions._lead(shard.index, shard.epoch)
    assert not node.shard().is_active, "it is being loaded"
    guard = TopicDeletion(node.broker.core, node.broker.transactions)
    with pytest.raises(PolicyViolation, match="is not loaded"):
        guard.hold("t")
    guard.hold("u")
    guard.release()
    await node.loaded()
    with pytest.raises(PolicyViolation, match="'x'"):
        guard.hold("t")


# What is gone all the same


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("recreated", [False, True])
@two_phase()
async def test_a_commit_whose_records_are_gone_names_them_instead_of_success(
    node: TwoPhaseNode, restarted: bool, recreated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await node.create_topic("u")
    pair = await node.prepared()
    assert await send(node, pair, "u")() == 0
    await lose_topic(node)
    if recreated:
        await node.create_topic("t")
    holder = pair
    if restarted:
        await node.kill()
        holder = (await node.keep()).pair
    with caplog.at_level(logging.ERROR):
        assert await node.end(holder, version=5) == ABORTABLE
    assert "what it wrote to t-0, t-1 is gone" in caplog.text and "'x'" in caplog.text
    assert await node.state() == "Ongoing", "nothing is decided by it"
    assert await node.end(holder, commit=False, version=5) == bumped(holder)
    assert await node.settled() == "CompleteAbort"


@two_phase()
async def test_a_partition_that_was_added_and_took_nothing_is_no_loss(node: TwoPhaseNode) -> None:
    await node.create_topic("small", max_message_bytes=200)
    pair = await node.prepared()
    assert await send(node, pair, "small", size=5000)() == MESSAGE_TOO_LARGE
    assert ("small", 0) in node.entry().partitions
    assert await node.end(pair, version=5) == bumped(pair)
    assert await node.settled() == "CompleteCommit"


@two_phase()
async def test_partitions_that_an_older_client_added_and_never_wrote_to_are_no_loss(node: TwoPhaseNode) -> None:
    pair = (await node.vow()).pair
    assert await node.add(pair, 0, 1) == [0, 0]
    await node.kill()
    assert await node.end(pair) == 0
    assert await node.settled() == "CompleteCommit"


@two_phase()
async def test_no_vow_is_taken_for_records_that_are_gone(node: TwoPhaseNode) -> None:
    """A producer that has promised nothing yet can still be refused."""
    pair = (await node.vow(two_phase=False)).pair
    for partition in (0, 1):
        assert await node.produce(pair, partition, version=12) == 0
    rows = [{"name": "t", "partitions": [{"partition_index": 1, "offset": -1}]}]
    answer = await node.ask("DeleteRecords", 2, topics=rows, timeout=1000)
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0, "of other open transactions records are deleted"
    assert await node.keep() == ABORTABLE
    assert node.entry().timeout_ms == 60_000
    assert await node.keep(two_phase=False) == Given(bumped(pair), pair), "without a vow it is Kafka's business"


@two_phase()
async def test_a_healthy_prepared_transaction_commits_after_everything_that_may_happen_to_it(
    node: TwoPhaseNode,
) -> None:
    pair = await node.prepared(offset=7)
    node.log("t", 0).roll()
    await node.cut_power()
    await node.kill()
    holder = (await node.keep()).pair
    assert await node.end(holder, version=5) == bumped(holder)
    assert await node.settled() == "CompleteCommit"
    assert (await node.read(), await node.read(1), await node.offset()) == ([0], [0], 7)
    assert pair != holder
