"""Leaders with real followers, a controller and a network that fails, in a simulated cluster of three brokers."""

from typing import Any

from kits.cluster.controller_node import HANG_UP
from kits.cluster.sim_cluster import SimCluster, clustered
from kits.log.partition import data_batch

LAG_MS = 2000


async def write(cluster: SimCluster, *numbers: int, expected: int = 0, acks: int = -1) -> None:
    for number in numbers:
        code = await cluster.produce("t", 0, data_batch(pid=4, seq=number), acks=acks)
        assert code == expected, (number, code)


def isr(cluster: SimCluster) -> set[int]:
    return set(cluster.state("t", 0).isr)


def check_isr(cluster: SimCluster) -> None:
    """Each member of the controller's ISR has what the leader has told to be committed."""
    state = cluster.state("t", 0)
    leader = cluster.log(state.leader, "t", 0)
    assert leader is not None
    for member in state.isr:
        log = cluster.log(member, "t", 0)
        assert log is not None and log.log_end_offset >= leader.high_watermark, (state, member)


@clustered(replica_lag_time_max_ms=LAG_MS)
async def test_a_follower_that_cannot_reach_its_leader_leaves_and_comes_back(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3], min_insync_replicas=2)
    await write(cluster, 0)
    cut = cluster.sim.network.partition("b1", "b3")
    before = cluster.sim.now_s
    await write(cluster, 1)
    assert LAG_MS / 2000 < cluster.sim.now_s - before < 2 * LAG_MS / 1000, "it is waited for, and not for ever"
    assert isr(cluster) == {1, 2}
    check_isr(cluster)
    await write(cluster, 2, 3)
    cut.heal()
    await cluster.until(lambda: isr(cluster) == {1, 2, 3})
    await cluster.until_same("t", 0)


@clustered(replica_lag_time_max_ms=LAG_MS)
async def test_without_a_controller_nothing_is_acknowledged_that_the_isr_does_not_have(cluster: SimCluster) -> None:
    """The leader may want a follower to leave: as long as nobody has said so, the follower may be elected."""
    await cluster.create("t", [1, 2, 3])
    await write(cluster, 0)
    cuts = [cluster.sim.network.partition("b1", other) for other in ("c1", "b2", "b3")]
    leader = cluster.partition(1, "t", 0)
    assert leader is not None
    rows = [{"name": "t", "partition_data": [{"index": 0, "records": data_batch(pid=4, seq=1)}]}]
    answer = cluster.members[1].send("Produce", 9, transactional_id=None, acks=-1, timeout=60_000, topic_data=rows)
    await cluster.until(lambda: cluster.state("t", 0).leader != 1)
    await cluster.sleep(5 * LAG_MS / 1000)
    assert (leader.is_leader, leader.log.high_watermark, answer.is_answered()) == (True, 1, False)
    await cluster.until_seen_by(2, 3)
    await write(cluster, 1)
    for cut in cuts:
        cut.heal()
    told = await answer()
    assert told["responses"][0]["partition_responses"][0]["error_code"] == 6
    await cluster.until_same("t", 0)
    assert leader.log.log_end_offset == 2


@clustered(replica_lag_time_max_ms=LAG_MS)
async def test_too_few_replicas_are_a_refusal_until_they_are_back(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3], min_insync_replicas=2)
    await write(cluster, 0)
    for other in (2, 3):
        cluster.members[other].kill()
    await cluster.until(lambda: isr(cluster) == {1})
    await cluster.until_seen_by(1)
    await write(cluster, 1, expected=19)
    await write(cluster, 1, acks=1)
    log = cluster.log(1, "t", 0)
    assert log is not None
    assert (log.log_end_offset, log.high_watermark) == (2, 1), "it is written, and not committed"
    await cluster.members[2].start()
    await cluster.until(lambda: isr(cluster) == {1, 2} and log.high_watermark == 2)
    await write(cluster, 2)
    await cluster.members[3].start()
    await cluster.until_same("t", 0)


@clustered(replica_lag_time_max_ms=LAG_MS)
async def test_answers_of_the_controller_that_get_lost_cost_nothing_but_time(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3])
    await write(cluster, 0)
    node = cluster.controller
    lost = 0

    async def decide_and_hang_up(request: Any) -> object:
        nonlocal lost
        lost += 1
        await node.usual("AlterPartition", 3, request)
        return HANG_UP

    for round_ in range(3):
        node.script("AlterPartition", decide_and_hang_up)
        cut = cluster.sim.network.partition("b1", "b3")
        await write(cluster, 2 * round_ + 1)
        assert isr(cluster) == {1, 2}
        check_isr(cluster)
        node.script("AlterPartition", decide_and_hang_up)
        cut.heal()
        await cluster.until(lambda: isr(cluster) == {1, 2, 3})
        check_isr(cluster)
        await write(cluster, 2 * round_ + 2)
        check_isr(cluster)
    assert lost == 6
    await cluster.until_same("t", 0)


@clustered()
async def test_a_preferred_election_moves_the_leader_and_loses_nothing(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3], min_insync_replicas=2)
    await write(cluster, 0, 1)
    cluster.members[1].kill()
    await cluster.until(lambda: cluster.state("t", 0).leader in (2, 3))
    await cluster.until_seen_by(2, 3)
    await write(cluster, 2, 3)
    await cluster.members[1].start()
    await cluster.until(lambda: isr(cluster) == {1, 2, 3})
    await cluster.until_seen()
    rows = [{"topic": "t", "partitions": [0]}]
    answer = await cluster.any().ask("ElectLeaders", 2, election_type=0, topic_partitions=rows, timeout=5000)
    assert answer["error_code"] == 0, answer
    await cluster.until_seen()
    assert cluster.state("t", 0).leader == 1
    await write(cluster, 4, 5)
    await cluster.until_same("t", 0)
    epoch = cluster.state("t", 0).leader_epoch
    partition = {"partition": 0, "current_leader_epoch": epoch, "leader_epoch": epoch - 1}
    told = await cluster.members[1].ask(
        "OffsetForLeaderEpoch", 4, replica_id=-1, topics=[{"topic": "t", "partitions": [partition]}]
    )
    (row,) = told["topics"][0]["partitions"]
    assert (row["error_code"], row["leader_epoch"], row["end_offset"]) == (0, epoch - 1, 4)


@clustered()
async def test_deleted_records_are_gone_from_all_replicas(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3])
    await write(cluster, *range(5))
    before = cluster.sim.now_s
    rows = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}]
    told = await cluster.members[1].ask("DeleteRecords", 2, topics=rows, timeout_ms=30_000)
    (row,) = told["topics"][0]["partitions"]
    assert (row["error_code"], row["low_watermark"]) == (0, 3)
    assert cluster.sim.now_s - before < 0.4, "followers that wait for records hear of it at once"
    starts = [log.log_start_offset for node_id in (1, 2, 3) if (log := cluster.log(node_id, "t", 0)) is not None]
    assert starts == [3, 3, 3]
    await cluster.until_same("t", 0)


@clustered(broker_session_timeout_ms=9000)
async def test_a_replica_that_is_added_joins_by_catching_up(cluster: SimCluster) -> None:
    await cluster.create("t", [1])
    await write(cluster, *range(5))
    await cluster.reassign("t", 0, [2, 3])
    await cluster.until(lambda: cluster.state("t", 0).replicas == (2, 3))
    await cluster.until_seen()
    await write(cluster, 5)
    await cluster.until_same("t", 0)
    assert cluster.partition(1, "t", 0) is None
