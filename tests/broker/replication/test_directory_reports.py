"""A broker whose disk was replaced: what it may lead, and when the metadata know where its replicas are."""

from kits.cluster.sim_cluster import SimCluster, clustered
from kits.log.partition import data_batch
from twofold.broker.broker import Broker
from twofold.wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsResponse
from twofold.wire.messages.broker_registration import BrokerRegistrationResponse
from twofold.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

PREFERRED = 0
RETRIES = 2


def lose_disk(cluster: SimCluster, node_id: int) -> None:
    cluster.members[node_id].kill()
    disk = cluster.sim.disk(f"b{node_id}")
    disk.remove_tree("/data")
    disk.sync_dir("/")


async def lead_again(cluster: SimCluster) -> int:
    """The outcome of a preferred election of t-0."""
    rows = (TopicPartitions(topic="t", partitions=(0,)),)
    request = ElectLeadersRequest(topic_partitions=rows, timeout_ms=1000, election_type=PREFERRED)
    answer = await cluster.controller.controller.elect_leaders(request)
    return answer.replica_election_results[0].partition_result[0].error_code


@clustered()
async def test_a_replica_on_a_new_disk_may_lead_when_it_has_everything_again(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2, 3])
    assert await cluster.produce("t", 0, data_batch(5)) == 0
    before = cluster.state("t", 0).directories[0]
    lose_disk(cluster, 1)
    refused = AssignReplicasToDirsResponse(error_code=-1, directories=())
    cluster.controller.script("AssignReplicasToDirs", *[lambda request: refused] * RETRIES)
    await cluster.members[1].start()
    await cluster.until(lambda: cluster.state("t", 0).directories[0] != before)
    await cluster.until_same("t", 0)
    assert len(cluster.controller.seen("AssignReplicasToDirs")) == RETRIES + 1
    assert cluster.state("t", 0).directories[0] == cluster.members[1].broker._directory_id
    assert await lead_again(cluster) == 0
    await cluster.until(lambda: cluster.state("t", 0).leader == 1)
    await cluster.until_seen()
    assert await cluster.produce("t", 0, data_batch(5)) == 0


@clustered()
async def test_the_only_replica_in_sync_does_not_lead_with_an_empty_disk(cluster: SimCluster) -> None:
    await cluster.create("t", [1, 2])
    assert await cluster.produce("t", 0, data_batch(5)) == 0
    cluster.members[2].kill()
    await cluster.until(lambda: cluster.state("t", 0).isr == (1,))
    lose_disk(cluster, 1)
    await cluster.members[1].start()
    await cluster.sleep(5)
    assert cluster.state("t", 0).leader == -1, "the records are on no disk that is there: an operator decides"
    assert cluster.controller.seen("AssignReplicasToDirs") == []


@clustered()
async def test_metadata_that_hold_no_registration_of_ours_make_no_leader(cluster: SimCluster) -> None:
    """They may say that we lead what we led, with records that a power cut has taken since."""
    await cluster.create("t", [1, 2])
    assert await cluster.produce("t", 0, data_batch(5)) == 0
    cluster.sim.crash("b1")
    waits: list[bool] = []

    def refuse(request: object) -> BrokerRegistrationResponse:
        broker: Broker = cluster.members[1].broker
        waits.append(broker.replicas.find("t", 0) is None and broker.core.controller.image.topic("t") is not None)
        return BrokerRegistrationResponse(error_code=101)

    cluster.controller.script("BrokerRegistration", *[refuse] * RETRIES)
    await cluster.members[1].start()
    assert waits == [True] * RETRIES
    await cluster.until_same("t", 0)
