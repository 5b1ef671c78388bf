"""The metadata quorum as an administrator sees it, a part of `twofold.client.admin.admin.Admin`."""

from typing import NamedTuple
from uuid import UUID

from twofold.connections.connection import Address
from twofold.wire.errors import raise_for
from twofold.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    ReplicaState,
    TopicData,
)

CLUSTER_METADATA = "__cluster_metadata"


class QuorumReplica(NamedTuple):
    """A node that has the metadata log, or follows it. Times are -1 where the leader does not tell."""

    node_id: int
    log_end_offset: int
    lag: int
    last_fetch_ms: int
    last_caught_up_ms: int
    directory_id: UUID | None = None
    address: Address | None = None
    """Of a voter, where the quorum tells it."""


class QuorumDescription(NamedTuple):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


def quorum_request() -> DescribeQuorumRequest:
    partitions = [PartitionData(partition_index=0)]
    return DescribeQuorumRequest(topics=[TopicData(topic_name=CLUSTER_METADATA, partitions=partitions)])


def quorum_of(response: DescribeQuorumResponse) -> QuorumDescription:
    raise_for(response.error_code, response.error_message)
    row = response.topics[0].partitions[0]
    raise_for(row.error_code, row.error_message)
    addresses = {
        node.node_id: Address(node.listeners[0].host, node.listeners[0].port)
        for node in response.nodes
        if node.listeners
    }
    replicas = (*row.current_voters, *row.observers)
    end = next((one.log_end_offset for one in replicas if one.replica_id == row.leader_id), row.high_watermark)

    def replica(state: ReplicaState) -> QuorumReplica:
        return QuorumReplica(
            state.replica_id,
            state.log_end_offset,
            max(0, end - state.log_end_offset),
            state.last_fetch_timestamp,
            state.last_caught_up_timestamp,
            state.replica_directory_id,
            addresses.get(state.replica_id),
        )

    return QuorumDescription(
        row.leader_id,
        row.leader_epoch,
        row.high_watermark,
        tuple(map(replica, row.current_voters)),
        tuple(map(replica, row.observers)),
    )
