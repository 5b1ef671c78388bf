"""KIP-939 as requests to a broker: who may vow, what is kept, who may end it, and that time never does."""

from typing import Any

import pytest

from kits.node.admin_world import Deny
from kits.node.sim_node import COORDINATORS
from kits.node.two_phase_node import NONE, YEAR_MS, Given, TwoPhaseNode, exact, two_phase
from kits.node.txn_node import Pair, held_markers
from twofold.broker.network.authorizer import Operation
from twofold.config.internal_topics import CONSUMER_OFFSETS, coordinator_partition
from twofold.coordinator.transaction.records import NEVER_MS, TransactionMetadata
from twofold.coordinator.transaction.states import State
from twofold.runtime.sim import Simulation
from twofold.types import ProducerEpoch, ProducerId, TopicPartition

HOUR_S = 3_600
VERBS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


def ended(commit: bool) -> str:
    return "CompleteCommit" if commit else "CompleteAbort"


def bumped(pair: Pair, by: int = 1) -> Pair:
    return pair[0], pair[1] + by


# InitProducerId: what is wrong with the request, in its order


@two_phase(transaction_two_phase_commit_enable="false")
async def test_where_it_is_switched_off_no_producer_may_vow(node: TwoPhaseNode) -> None:
    assert await node.vow() == 53
    assert await node.keep() == 53, "not to recover either"
    assert await node.vow(timeout=0) == 53, "before anybody looks at the timeout"
    assert await node.vow(pair=(5, -1)) == 42, "half an identity is a mistake whatever is switched on"
    assert await node.vow(pair=(-1, 5)) == 42
    assert await node.vow("") == 42, "and so is an empty id"
    assert await node.state() == 105, "nothing of it was written"
    given = await node.keep(two_phase=False)
    assert given == Given((given.pair[0], 0), NONE), "keeping alone is nobody's privilege"


@two_phase()
async def test_the_operation_two_phase_commit_is_needed_beside_write(node: TwoPhaseNode) -> None:
    node.broker.core.authorizer = Deny((Operation.TWO_PHASE_COMMIT, "x"))
    assert await node.vow() == 53
    assert await node.vow("y") != 53, "it is granted for each id"
    assert (await node.vow(two_phase=False)).pair[1] == 0
    assert isinstance(await node.keep(two_phase=False), Given)
    node.broker.core.authorizer = Deny((Operation.WRITE, "x"))
    assert await node.vow() == 53
    assert await node.keep(two_phase=False) == 53


@two_phase()
async def test_the_checks_of_a_request_that_keeps_come_in_order(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    assert await node.keep(two_phase=False, timeout=0, pair=pair) == 50, "the timeout first"
    assert await node.keep(two_phase=False, timeout=900_001) == 50
    assert await node.keep(pair=pair) == 42, "who keeps gets an identity and names none"
    assert await node.keep() == Given(bumped(pair), pair), "and nothing has happened meanwhile"
    await node.end(bumped(pair), version=5)
    await node.set_transaction_version(1)
    assert await node.keep(pair=pair) == 42, "before the version of the cluster"
    assert await node.keep() == 35
    assert await node.keep("unknown") == 35, "also of an id that nobody knows"


@pytest.mark.parametrize("timeout", [-5, 0, 1, 900_001, NEVER_MS])
@two_phase()
async def test_with_two_phase_commit_the_timeout_of_the_request_does_not_matter(
    node: TwoPhaseNode, timeout: int
) -> None:
    assert isinstance(await node.vow(timeout=timeout), Given)
    assert node.entry().timeout_ms == NEVER_MS
    assert (await node.describe())["transaction_timeout"] == NEVER_MS


@two_phase(transaction_max_timeout_ms=NEVER_MS - 1, transactional_id_expiration_ms=NEVER_MS)
async def test_no_producer_becomes_two_phase_by_asking_for_its_timeout(node: TwoPhaseNode) -> None:
    assert await node.vow(two_phase=False, timeout=NEVER_MS) == 50
    assert isinstance(await node.vow(two_phase=False, timeout=NEVER_MS - 1), Given)


@two_phase()
async def test_version_5_knows_no_two_phase_commit_and_version_7_answers_as_6(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    given = await node.vow7("x", 60_000, 0, two_phase=True, keep=True)
    assert given == Given(bumped(pair), pair)
    assert await node.vow7("x", 60_000, 1000, two_phase=True, keep=True) == 42, "no heartbeats beside it"
    answer = await node.ask("InitProducerId", 5, transactional_id="y", transaction_timeout=60_000)
    assert answer["error_code"] == 0 and "ongoing_txn_producer_id" not in answer
    assert node.entry("y").timeout_ms == 60_000


# Two identities


@two_phase()
async def test_with_nothing_open_keeping_is_a_plain_init(node: TwoPhaseNode) -> None:
    first = await node.keep()
    assert first == Given((first.pair[0], 0), NONE), "a new id"
    second = await node.keep()
    assert second == Given(bumped(first.pair), NONE), "an unused one"
    assert await node.produce(second.pair, version=12) == 0
    assert await node.end(second.pair, version=5) == bumped(second.pair)
    await node.settled()
    assert await node.keep() == Given(bumped(second.pair, 2), NONE), "one whose transaction is over"


@VERBS
@two_phase()
async def test_a_prepared_transaction_is_found_kept_and_ended(node: TwoPhaseNode, commit: bool) -> None:
    pair = await node.prepared(offset=7)
    given = await node.keep()
    assert given == Given(bumped(pair), pair)
    row = await node.describe()
    assert (row["producer_id"], row["producer_epoch"]) == pair, "who asks is told the pair of the transaction"
    assert (row["transaction_state"], row["transaction_timeout"]) == ("Ongoing", NEVER_MS)
    assert await node.offset() == "error 88"
    assert await node.read() == []
    after = await node.end(given.pair, commit, version=5)
    assert after == bumped(given.pair), "the client's pair goes on, not the transaction's"
    assert await node.settled() == ended(commit)
    assert await node.producer_epoch() == pair[1] + 1, "the markers have the pair of the transaction"
    assert await node.read() == ([0] if commit else [])
    assert await node.offset() == (7 if commit else -1)
    assert await node.produce(after, version=12) == 0, "and the next transaction begins"


@two_phase()
async def test_every_recovery_fences_the_one_before_and_leaves_the_transaction_alone(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    before = node.entry()
    for number in range(1, 6):
        await node.sleep(1)
        assert await node.keep() == Given(bumped(pair, number), pair)
        assert node.identities() == (pair, bumped(pair, number))
        assert await node.end(bumped(pair, number - 1), version=5) == 90
    entry = node.entry()
    assert (entry.partitions, entry.start_ms) == (before.partitions, before.start_ms)
    assert entry.last_update_ms > before.last_update_ms
    assert await node.end(bumped(pair, 5), version=5) == bumped(pair, 6)
    assert await node.settled() == "CompleteCommit"


def an_entry(epoch: int, **more: Any) -> TransactionMetadata:
    partitions = frozenset({TopicPartition("t", 0)})
    fields: dict[str, Any] = {"last_update_ms": 1_000, "start_ms": 1_000, "client_version": 2, **more}
    return TransactionMetadata(ProducerId(4000), ProducerEpoch(epoch), NEVER_MS, State.ONGOING, partitions, **fields)


@VERBS
@exact()
async def test_recoveries_over_the_epoch_limit_get_other_producer_ids(node: TwoPhaseNode, commit: bool) -> None:
    node.write_raw("x", an_entry(32_766))
    await node.kill()
    pair = (4000, 32_766)
    first = await node.keep()
    assert first.ongoing == pair and first.pair[0] != 4000 and first.pair[1] == 0
    assert await node.keep() == Given(bumped(first.pair), pair)
    node.write_raw("x", an_entry(32_766, next_producer_id=first.pair[0], next_producer_epoch=32_765))
    await node.kill()
    last = await node.keep()
    assert last == Given((first.pair[0], 32_766), pair)
    third = await node.keep()
    assert third.ongoing == pair and third.pair[0] not in (4000, first.pair[0]) and third.pair[1] == 0
    assert await node.end(last.pair, commit, version=5) == 90, "of the incarnation before"
    assert await node.end(third.pair, commit, version=5) == bumped(third.pair)
    assert await node.settled() == ended(commit)
    assert await node.end(third.pair, commit, version=5) == bumped(third.pair), "asked again, told again"
    assert await node.producer_epoch() == 32_767


@exact()
async def test_what_is_being_ended_is_not_kept(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    given = await node.keep()
    with held_markers(node) as held:
        assert await node.end(given.pair, version=5) == bumped(given.pair)
        await node.sleep(0.05)
        assert await node.state() == "PrepareCommit"
        assert await node.keep() == 51
        assert await node.end(given.pair, version=5) == 51
        assert await node.end(pair, version=5) in (51, 90)
        for send in held:
            send()
    await node.settled()
    assert await node.keep() == Given(bumped(given.pair, 2), NONE), "and then there is nothing to keep"


# Who may do what with a kept transaction


@VERBS
@pytest.mark.parametrize("version", range(6))
@exact()
async def test_only_the_recovering_producer_may_end_it_and_only_with_version_5(
    node: TwoPhaseNode, version: int, commit: bool
) -> None:
    pair = await node.prepared()
    given = await node.keep()
    fenced = 47 if version < 2 else 90
    assert await node.end(pair, commit, version=version) == fenced, "who wrote it is a zombie now"
    assert await node.end(bumped(pair, 2), commit, version=version) == fenced, "nobody has this one yet"
    assert await node.end((pair[0] + 1, 0), commit, version=version) == (fenced if version < 5 else 49)
    assert await node.state() == "Ongoing"
    if version < 5:
        assert await node.end(given.pair, commit, version=version) == fenced, "the old protocol has one pair only"
        assert await node.state() == "Ongoing"
    else:
        assert await node.end(given.pair, commit, version=version) == bumped(given.pair)
        assert await node.settled() == ended(commit)


@VERBS
@exact()
async def test_a_late_end_of_the_old_instance_ends_neither_this_transaction_nor_the_next(
    node: TwoPhaseNode, commit: bool
) -> None:
    pair = await node.prepared()
    given = await node.keep()
    assert await node.end(pair, commit, version=5) == 90
    after = await node.end(given.pair, not commit, version=5)
    await node.settled()
    assert await node.end(pair, commit, version=5) == 90
    assert await node.produce(after, version=12) == 0
    for late in (pair, given.pair):
        assert await node.end(late, commit, version=5) == 90
        assert await node.end(late, not commit, version=5) == 90
        assert await node.end(late, version=3) == 90
    assert await node.state() == "Ongoing", "the next transaction is open still"
    assert await node.end(after, version=5) == bumped(after)


@exact()
async def test_no_producer_adds_to_a_kept_transaction(node: TwoPhaseNode) -> None:
    await node.ready()
    pair = (await node.vow()).pair
    assert await node.produce(pair, 0, version=12) == 0
    given = await node.keep()
    group = {"transactional_id": "x", "group_id": "g"}

    async def add_offsets(who: Pair) -> Any:
        answer = await node.ask("AddOffsetsToTxn", 4, producer_id=who[0], producer_epoch=who[1], **group)
        return answer["error_code"]

    # The recovered client may only finish.
    assert await node.add(given.pair, 0) == [48]
    assert await node.add(given.pair, 1) == [48]
    assert await add_offsets(given.pair) == 48
    assert await node.produce(given.pair, 1, version=12) == 48
    assert await node.commit_offset(given.pair, 1) == 48
    # The old one may repeat what it did and do nothing new.
    assert await node.add(pair, 0) == [0]
    assert await node.add(pair, 0, 1) == [90, 90]
    assert await add_offsets(pair) == 90
    assert await node.produce(pair, 1, version=12) == 47
    assert await node.commit_offset(pair, 1) in (47, 90)
    assert await node.produce(pair, 0, version=12) == 0, "a repetition of its first batch"
    assert node.end_offset() == 1
    # And nobody else does anything.
    assert await node.add(bumped(pair, 2), 0) == [90]
    assert await node.add((pair[0] + 1, 0), 0) == [49]
    assert node.entry().partitions == {TopicPartition("t", 0)}


@exact()
async def test_leaders_that_verify_are_told_the_same(node: TwoPhaseNode) -> None:
    pair = (await node.vow()).pair
    assert await node.produce(pair, 0, version=12) == 0
    given = await node.keep()

    async def verify(who: Pair, *partitions: int) -> list[int]:
        body = {"transactional_id": "x", "producer_id": who[0], "producer_epoch": who[1], "verify_only": True}
        rows = [{**body, "topics": [{"name": "t", "partitions": list(partitions)}]}]
        answer = await node.ask("AddPartitionsToTxn", 4, transactions=rows)
        (topic,) = answer["results_by_transaction"][0]["topic_results"]
        return [row["partition_error_code"] for row in topic["results_by_partition"]]

    assert await verify(pair, 0, 1) == [0, 90]
    assert await verify(given.pair, 0, 1) == [48, 48]
    assert await verify(bumped(pair, 2), 0) == [90]
    assert await verify((pair[0] + 1, 0), 0) == [49]


# Forced termination


@pytest.mark.parametrize("kept", [True, False])
@exact()
async def test_an_init_that_does_not_keep_ends_it_by_force(node: TwoPhaseNode, kept: bool) -> None:
    pair = await node.prepared(offset=7)
    holder = (await node.keep()).pair if kept else pair
    assert await node.vow(two_phase=False) == 51, "WRITE is enough, as for any other id"
    assert await node.settled() == "CompleteAbort"
    assert await node.end(holder, True, version=5) == 90, "the client that commits is told that it was aborted"
    assert await node.end(pair, True, version=3) == 90
    assert await node.read() == [] and await node.read(committed=False) == [0]
    assert await node.offset() == -1
    admin = await node.vow(two_phase=False)
    assert admin == Given(bumped(holder, 2), NONE)
    assert node.entry().timeout_ms == 60_000, "the id is no two-phase one any more"
    for late in (pair, holder):
        assert await node.end(late, True, version=5) == 90
        assert await node.end(late, False, version=5) == 90
        assert await node.produce(late, sequence=1, version=12) == 47


@exact()
async def test_the_old_instance_cannot_end_by_force_what_was_kept(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    given = await node.keep()
    assert await node.vow(pair=pair) == 90
    assert await node.vow(pair=bumped(given.pair)) == 90
    assert await node.state() == "Ongoing"
    assert await node.vow(pair=given.pair) == 51, "who recovered it may"
    assert await node.settled() == "CompleteAbort"


@exact()
async def test_a_zombie_cannot_end_by_force_what_the_next_instance_has_prepared(node: TwoPhaseNode) -> None:
    """It names the epoch that it had, as a client does that wants to go on after an error."""
    old = (await node.vow()).pair
    pair = await node.prepared()
    assert pair == bumped(old)
    assert await node.vow(pair=old) == 90
    assert await node.vow(pair=bumped(pair)) == 90
    assert await node.state() == "Ongoing"
    assert await node.vow(pair=pair) == 51, "its own producer may"
    assert await node.settled() == "CompleteAbort"


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("partition", [0, 1, "offsets"])
@exact()
async def test_a_commit_of_what_was_aborted_by_hand_is_refused_and_the_rest_can_be_aborted(
    node: TwoPhaseNode, partition: int | str, kept: bool
) -> None:
    """Abort by offset (KIP-664): the readers of that partition go on, and the coordinator still has the transaction."""
    pair = await node.prepared(offset=7)
    rows = [{"name": "t", "partition_indexes": [partition]}]
    if partition == "offsets":
        rows = [{"name": CONSUMER_OFFSETS, "partition_indexes": [coordinator_partition("g", COORDINATORS)]}]
    marker = {"producer_id": pair[0], "producer_epoch": pair[1], "transaction_result": False, "topics": rows}
    await node.ask("WriteTxnMarkers", 1, markers=[{**marker, "coordinator_epoch": 0}])
    if partition != "offsets":
        assert isinstance(partition, int)
        assert node.stable_offset(partition) == 2 and node.stable_offset(1 - partition) == 0
    assert await node.state() == "Ongoing"
    holder = (await node.keep()).pair if kept else pair
    for _ in range(2):
        assert await node.end(holder, True, version=5) == 120, "the client is told"
        assert await node.state() == "Ongoing"
        await node.kill()
    assert await node.end(holder, False, version=5) == bumped(holder)
    assert await node.settled() == "CompleteAbort"
    assert await node.read(0) == await node.read(1) == []
    assert await node.offset() == -1


@exact()
async def test_what_was_aborted_by_hand_is_not_begun_again_in_that_partition(node: TwoPhaseNode) -> None:
    """Otherwise a commit would show what was written after the administrator's marker, and hide what was before it."""
    pair = (await node.vow()).pair
    for partition in (0, 1):
        assert await node.produce(pair, partition, version=12) == 0
    rows = [{"name": "t", "partition_indexes": [0]}]
    marker = {"producer_id": pair[0], "producer_epoch": pair[1], "transaction_result": False, "topics": rows}
    await node.ask("WriteTxnMarkers", 1, markers=[{**marker, "coordinator_epoch": 0}])
    assert await node.produce(pair, 0, version=12, sequence=1) == 120
    await node.kill()
    assert await node.produce(pair, 0, version=12, sequence=1) == 120
    assert await node.produce(pair, 1, version=12, sequence=1) == 0, "there it goes on"
    assert await node.end(pair, False, version=5) == bumped(pair)
    assert await node.settled() == "CompleteAbort"
    assert await node.produce(bumped(pair), 0, version=12) == 0, "the next transaction is another"


@exact()
async def test_partitions_without_records_are_no_reason_to_refuse_a_commit(node: TwoPhaseNode) -> None:
    pair = (await node.vow()).pair
    for _ in range(3):
        assert await node.add(pair, 1) == [0]
        assert await node.produce(pair, 0, version=12) == 0
        await node.kill()
        pair = await node.end(pair, True, version=5)
        assert isinstance(pair, tuple)
        assert await node.settled() == "CompleteCommit"


# Time


@VERBS
@pytest.mark.parametrize("kept", [True, False])
@exact(
    log_retention_ms=-1,
    transaction_max_timeout_ms=60_000,
    transactional_id_expiration_ms=60_001,
    producer_id_expiration_ms=60_000,
    transaction_remove_expired_transaction_cleanup_interval_ms=1000,
    producer_id_expiration_check_interval_ms=1000,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=1000,
)
async def test_a_prepared_transaction_survives_years_restarts_and_every_sweep(
    node: TwoPhaseNode, kept: bool, commit: bool
) -> None:
    pair = await node.prepared(offset=7)
    holder = (await node.keep()).pair if kept else pair
    for years in (1, 20, -3, 60):
        node.jump(years * YEAR_MS)
        await node.sleep(5)
        assert await node.state() == "Ongoing"
        await node.kill()
        await node.sleep(5)
        await node.cut_power()
        await node.sleep(5)
        assert await node.state() == "Ongoing"
    assert node.broker.transactions.counts.timed_out == 0
    assert [node.stable_offset(0), node.stable_offset(1)] == [0, 0]
    if not kept:
        given = await node.keep()
        assert given == Given(bumped(pair), pair)
        holder = given.pair
    assert await node.end(holder, commit, version=5) == bumped(holder)
    assert await node.settled() == ended(commit)
    assert await node.read() == await node.read(1) == ([0] if commit else [])
    node.jump(YEAR_MS)
    await node.sleep(3700)  # for an hour nothing is deleted because of a clock that jumped
    assert await node.state() == 105, "an id expires once nothing of it is open"


@exact(log_retention_check_interval_ms=1000, log_retention_ms=60_000)
async def test_retention_does_not_take_what_is_not_decided(node: TwoPhaseNode) -> None:
    other = (await node.vow("y")).pair
    assert await node.produce(other, name="y", version=12) == 0
    assert await node.end(other, name="y", version=5) == bumped(other)
    assert await node.settled("y") == "CompleteCommit"
    node.log("t", 0).roll()
    pair = await node.prepared()
    node.log("t", 0).roll()
    node.jump(YEAR_MS)
    await node.sleep(3700)  # for an hour nothing is deleted because of a clock that jumped
    assert node.log("t", 0).log_start_offset == 2, "what was decided goes"
    assert await node.read(committed=False, offset=2) == [2]
    given = await node.keep()
    assert await node.end(given.pair, version=5) == bumped(given.pair)
    assert await node.settled() == "CompleteCommit"
    assert await node.read(offset=2) == [2]
    assert pair == given.ongoing


@exact(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000)
async def test_a_kept_transaction_without_the_vow_has_its_timeout_still(node: TwoPhaseNode) -> None:
    pair = (await node.vow(two_phase=False, timeout=30_000)).pair
    assert await node.produce(pair, version=12) == 0
    await node.sleep(20)
    given = await node.keep(two_phase=False, timeout=60_000)
    assert given == Given(bumped(pair), pair)
    assert node.entry().timeout_ms == 30_000, "the time that it had from its beginning"
    await node.sleep(8)
    assert await node.state() == "Ongoing"
    await node.sleep(5)
    assert await node.settled() == "CompleteAbort"
    assert await node.end(given.pair, version=5) == 90
    assert await node.keep(two_phase=False) == Given(bumped(given.pair, 2), NONE)


@two_phase()
async def test_the_vow_belongs_to_the_id_until_its_next_init(node: TwoPhaseNode) -> None:
    pair = (await node.vow()).pair
    for _ in range(3):
        assert await node.produce(pair, version=12) == 0
        assert node.entry().timeout_ms == NEVER_MS
        pair = await node.end(pair, version=5)
        await node.settled()
    assert node.entry().timeout_ms == NEVER_MS
    await node.vow(two_phase=False)
    assert node.entry().timeout_ms == 60_000


# Switches that change under a prepared transaction


def test_switching_it_off_later_leaves_what_is_prepared_and_admits_no_other() -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            node = TwoPhaseNode(sim, transaction_two_phase_commit_enable="true")
            await node.start()
            await node.create_topic()
            pair = await node.prepared()
            node.settings["transaction.two.phase.commit.enable"] = "false"
            await node.kill()
            node.jump(YEAR_MS)
            await node.sleep(100)
            assert await node.state() == "Ongoing"
            assert await node.vow() == await node.keep() == 53, "to recover it somebody must switch it on"
            assert await node.end(pair, version=5) == bumped(pair), "who holds it may end it all the same"
            assert await node.settled() == "CompleteCommit"
            await node.broker.stop()

        sim.run(main(), timeout_s=86_400)


@exact()
async def test_the_transactions_of_a_two_phase_id_are_listed_like_others(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    await node.keep()
    node.jump(YEAR_MS)
    answer = await node.ask("ListTransactions", 1, duration_filter=YEAR_MS // 2)
    (row,) = answer["transaction_states"]
    assert (row["transactional_id"], row["producer_id"], row["transaction_state"]) == ("x", pair[0], "Ongoing")
    partition = coordinator_partition("g", COORDINATORS)
    assert TopicPartition(CONSUMER_OFFSETS, partition) not in node.entry().partitions
