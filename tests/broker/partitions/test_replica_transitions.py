"""What a broker does with its replicas when the metadata changes: in a simulated cluster of three."""

from typing import Any

from kits.cluster.sim_cluster import SimCluster, clustered, content
from kits.log.partition import data_batch
from twofold.log.recovery.checkpoints import HIGH_WATERMARKS, read_offsets
from twofold.types import TopicPartition


def names(cluster: SimCluster, node_id: int) -> list[str]:
    """The directories of partitions on a broker's disk."""
    disk = cluster.sim.disk(f"b{node_id}")
    return [name for name in disk.list("/data") if name.startswith("t-")]


@clustered()
async def test_replicas_are_there_from_the_image_on_and_single_ones_from_their_first_use(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2])
    await cluster.create("single", [2])
    assert [cluster.partition(node_id, "t", 0) is not None for node_id in (1, 2, 3)] == [True, True, False]
    assert cluster.partition(2, "single", 0) is None
    assert await cluster.produce("single", 0, data_batch()) == 0
    assert cluster.partition(2, "single", 0) is not None


@clustered()
async def test_what_is_acknowledged_is_on_all_replicas(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3], min_insync_replicas=3)
    for at in range(20):
        assert await cluster.produce("t", 0, data_batch(3, pid=4, seq=3 * at)) == 0
        ends = [log.log_end_offset for node_id in (1, 2, 3) if (log := cluster.log(node_id, "t", 0)) is not None]
        assert ends == [3 * at + 3] * 3
    await cluster.until_same("t", 0)


@clustered()
async def test_a_deleted_topic_goes_from_all_replicas_and_is_not_fetched_any_more(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3])
    assert await cluster.produce("t", 0, data_batch()) == 0
    await cluster.delete("t")
    await cluster.until_seen()
    for node_id in (1, 2, 3):
        assert cluster.partition(node_id, "t", 0) is None
        assert len(_fetchers(cluster, node_id)) == 0
        assert all(name.endswith("-delete") for name in names(cluster, node_id))


@clustered()
async def test_a_topic_that_was_made_anew_between_two_images_begins_empty(cluster: SimCluster) -> None:
    """Broker 3 sees the deletion and the creation of the same name at once."""
    await cluster.create("t", [1, 2, 3])
    assert await cluster.produce("t", 0, data_batch(7)) == 0
    await cluster.until_same("t", 0)
    cut = cluster.sim.network.partition("c1", "b3")
    await cluster.delete("t")
    await cluster.create_unseen("t", [1, 2, 3])
    cut.heal()
    await cluster.until_seen()
    assert await cluster.produce("t", 0, data_batch(2)) == 0
    await cluster.until_same("t", 0)
    assert cluster.log(3, "t", 0).log_end_offset == 2  # type: ignore[union-attr]


@clustered()
async def test_a_partition_that_was_moved_away_goes_with_its_log(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2])
    assert await cluster.produce("t", 0, data_batch(5)) == 0
    await cluster.reassign("t", 0, [1, 3])
    await cluster.until(lambda: cluster.state("t", 0).replicas == (1, 3))
    await cluster.until_seen()
    assert cluster.partition(2, "t", 0) is None
    assert cluster.log(2, "t", 0) is None
    assert len(_fetchers(cluster, 2)) == 0
    assert all(name.endswith("-delete") for name in names(cluster, 2))
    assert await cluster.produce("t", 0, data_batch(5)) == 0
    await cluster.until_same("t", 0)


@clustered()
async def test_a_partition_that_was_moved_while_the_broker_was_down_is_set_aside(cluster: SimCluster) -> None:
    """Its records may be the last that there are: metadata seen for the first time lets nothing be deleted."""
    await cluster.create("t", [1, 2])
    assert await cluster.produce("t", 0, data_batch(5)) == 0
    await cluster.until_same("t", 0)
    cluster.members[2].kill()
    await cluster.reassign("t", 0, [1, 3])
    await cluster.until(lambda: cluster.state("t", 0).replicas == (1, 3))
    await cluster.sleep(4)  # its session
    await cluster.members[2].start()
    (name,) = names(cluster, 2)
    assert name.endswith("-stray")


@clustered()
async def test_a_leader_that_was_killed_comes_back_as_a_follower_with_what_it_had(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3])
    for at in range(5):
        assert await cluster.produce("t", 0, data_batch(3, pid=4, seq=3 * at)) == 0
    cluster.members[1].kill()
    await cluster.until(lambda: cluster.state("t", 0).leader in (2, 3))
    await cluster.until_seen_by(2, 3)
    assert await cluster.produce("t", 0, data_batch(3, pid=4, seq=15)) == 0
    await cluster.members[1].start()
    await cluster.until_same("t", 0)
    assert cluster.log(1, "t", 0).log_end_offset == 18  # type: ignore[union-attr]


@clustered()
async def test_a_leader_that_was_paused_past_its_session_cuts_what_no_other_replica_has(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3])
    assert await cluster.produce("t", 0, data_batch(3)) == 0
    await cluster.until_same("t", 0)
    paused = cluster.members[1]
    for other in ("b2", "b3"):
        cluster.sim.pause(other)
    assert await cluster.produce("t", 0, data_batch(2, value=b"lost"), acks=1) == 0
    cluster.sim.pause("b1")
    for other in ("b2", "b3"):
        cluster.sim.resume(other)
    await cluster.until(lambda: cluster.state("t", 0).leader in (2, 3))
    await cluster.until_seen_by(2, 3)
    assert await cluster.produce("t", 0, data_batch(1, value=b"kept")) == 0
    cluster.sim.resume("b1")
    await cluster.until_same("t", 0)
    bytes_of_1 = content(paused.broker.logs.get(TopicPartition("t", 0)))  # type: ignore[arg-type]
    assert b"kept" in bytes_of_1
    assert b"lost" not in bytes_of_1


@clustered()
async def test_the_high_watermark_of_a_follower_survives_a_kill(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2])
    assert await cluster.produce("t", 0, data_batch(5)) == 0
    await cluster.until_same("t", 0)
    await cluster.sleep(6)
    name = TopicPartition("t", 0)
    assert read_offsets(cluster.sim.disk("b2"), f"/data/{HIGH_WATERMARKS}") == {name: 5}
    cluster.members[2].kill()
    cluster.sim.pause("b1")
    await cluster.sleep(4)
    starting = cluster.sim.runtime("watch").spawn(cluster.members[2].start(), name="start")
    await cluster.until(lambda: cluster.partition(2, "t", 0) is not None and _is_new(cluster))
    assert cluster.log(2, "t", 0).high_watermark == 5  # type: ignore[union-attr]
    cluster.sim.resume("b1")
    await starting
    await cluster.until_same("t", 0)


def _is_new(cluster: SimCluster) -> bool:
    return cluster.members[2].broker.runtime is cluster.sim.runtime("b2")


@clustered()
async def test_a_broker_that_leaves_hands_its_partitions_over_and_comes_back_clean(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3], [2, 3, 1])
    for index in (0, 1):
        assert await cluster.produce("t", index, data_batch(3)) == 0
    await cluster.members[1].stop()
    assert cluster.state("t", 0).leader in (2, 3)
    for index in (0, 1):
        await cluster.until_seen_by(2, 3)
        assert await cluster.produce("t", index, data_batch(3)) == 0
    cluster.sim.crash("b1", power_cut=False)
    await cluster.members[1].start()
    for index in (0, 1):
        await cluster.until_same("t", index)


def _fetchers(cluster: SimCluster, node_id: int) -> Any:
    return cluster.members[node_id].broker.replicas.fetchers
