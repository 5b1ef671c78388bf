"""A partition object that leads several replicas, without a broker around it."""

from uuid import UUID

import pytest

from kits.log.partition import data_batch
from kits.replication.led_partitions import LedPartitions
from twofold.controller.image import PartitionState
from twofold.replication.leader import FollowerFetch
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition
from twofold.wire.errors import NotEnoughReplicas, NotLeaderOrFollower, UnknownLeaderEpoch

BOTH = PartitionState((1, 2), (1, 2), 1, 5, 9)


@pytest.fixture
def world():
    with Simulation(1) as sim:

        async def make():
            return LedPartitions(sim)

        yield sim.run(make(), timeout_s=5)


def test_a_leader_whose_log_lost_records_leads_no_more_in_this_epoch(world):
    """A follower may have them: other records in their place would be hidden by the same epoch."""
    partition = world.partition(1)
    partition.become_leader(BOTH, 0)
    partition.append(data_batch(3), 1)
    partition.followed(2, FollowerFetch(2, 0, 20))
    lost = world.logs.get_or_create(TopicPartition("mended", 0), UUID(int=9), world.config)
    partition.take_log(lost)
    assert not partition.is_leader
    with pytest.raises(NotLeaderOrFollower):
        partition.append(data_batch(1), 1)
    partition.become_leader(BOTH._replace(isr=(1,), partition_epoch=10), 0)
    assert not partition.is_leader, "it is the same leader epoch"
    partition.become_leader(BOTH._replace(leader_epoch=6, partition_epoch=11), 0)
    assert partition.is_leader


def test_a_leader_whose_log_lost_nothing_goes_on(world):
    partition = world.partition(1)
    partition.become_leader(BOTH, 0)
    other = world.logs.get_or_create(TopicPartition("mended", 0), UUID(int=9), world.config)
    partition.take_log(other)
    assert partition.is_leader
    assert partition.leading is not None


def test_old_metadata_changes_nothing(world):
    partition = world.partition(1)
    partition.become_leader(BOTH, 0)
    partition.become_leader(BOTH._replace(isr=(1,), partition_epoch=8), 0)
    partition.become_leader(BOTH._replace(isr=(1,), leader_epoch=4, partition_epoch=20), 0)
    assert (partition.isr, partition.leader_epoch, partition.partition_epoch) == ((1, 2), 5, 9)


def test_the_high_watermark_of_a_partition_that_follows_is_not_moved_here(world):
    partition = world.partition(1)
    partition.become_leader(BOTH, 0)
    partition.append(data_batch(3), 1)
    partition.follow(BOTH._replace(leader=2, leader_epoch=6, partition_epoch=10))
    partition.maybe_advance_high_watermark()
    assert (partition.log.high_watermark, partition.leading) == (0, None)


def test_the_last_follower_that_is_moved_away_holds_nothing_back(world):
    partition = world.partition(1)
    partition.become_leader(BOTH, 0)
    partition.append(data_batch(3), -1)
    assert partition.log.high_watermark == 0
    partition.become_leader(PartitionState((1,), (1,), 1, 5, 10), 0)
    assert partition.log.high_watermark == 3
    partition.append(data_batch(2), -1)
    assert partition.log.high_watermark == 5, "with one replica it follows the log's end"


def test_min_insync_replicas_counts_what_the_controller_has_committed(world):
    partition = world.partition(1)
    partition.log.update_config(partition.log.config.__class__(min_insync_replicas=2))
    assert partition.isr == (1,)
    world.join(partition)
    assert partition.leading.isr.maximal == (1, 2)
    with pytest.raises(NotEnoughReplicas):
        partition.append(data_batch(1), -1)
    assert partition.has_enough_in_sync_replicas, "what was appended before is held back by 2 already"


@pytest.mark.parametrize(("epoch", "error"), [(-1, NotLeaderOrFollower), (4, UnknownLeaderEpoch)])
def test_only_replicas_are_followers(world, epoch, error):
    partition = world.partition(1)
    partition.check_follower(2, epoch)
    for other in (1, 3):
        with pytest.raises(error):
            partition.check_follower(other, epoch)
