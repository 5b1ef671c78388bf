"""The one table of API keys: name, module of its messages, versions served.

The ranges are those of Apache Kafka 4.3. `ApiVersions` answers from this table and dispatch refuses by it. An API is
served when its `broker/api/` module is in the tree; until then its row is here for the client's sake only.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    module: str
    min_version: int
    max_version: int
    # Produce 0-2 are advertised although refused: old librdkafka builds look for them before they compress.
    advertised_min: int
    # What our client speaks, which may be more than what our broker serves.
    spoken_max: int

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


def _api(
    key: int, name: str, module: str, first: int, last: int, advertised: int | None = None, spoken: int | None = None
) -> Api:
    advertised_min = first if advertised is None else advertised
    return Api(key, name, module, first, last, advertised_min, last if spoken is None else spoken)


_ALL = (
    _api(0, "Produce", "produce", 3, 13, advertised=0),
    _api(1, "Fetch", "fetch", 4, 18),
    _api(2, "ListOffsets", "list_offsets", 1, 11),
    _api(3, "Metadata", "metadata", 0, 13),
    _api(8, "OffsetCommit", "offset_commit", 2, 10),
    _api(9, "OffsetFetch", "offset_fetch", 1, 10),
    _api(10, "FindCoordinator", "find_coordinator", 0, 6),
    _api(11, "JoinGroup", "join_group", 0, 9),
    _api(12, "Heartbeat", "heartbeat", 0, 4),
    _api(13, "LeaveGroup", "leave_group", 0, 5),
    _api(14, "SyncGroup", "sync_group", 0, 5),
    _api(15, "DescribeGroups", "describe_groups", 0, 6),
    _api(16, "ListGroups", "list_groups", 0, 5),
    _api(17, "SaslHandshake", "sasl_handshake", 0, 1),
    _api(18, "ApiVersions", "api_versions", 0, 4),
    _api(19, "CreateTopics", "create_topics", 2, 7),
    _api(20, "DeleteTopics", "delete_topics", 1, 6),
    _api(21, "DeleteRecords", "delete_records", 0, 2),
    _api(22, "InitProducerId", "init_producer_id", 0, 7),
    _api(23, "OffsetForLeaderEpoch", "offset_for_leader_epoch", 2, 4),
    _api(24, "AddPartitionsToTxn", "add_partitions_to_txn", 0, 5),
    _api(25, "AddOffsetsToTxn", "add_offsets_to_txn", 0, 4),
    _api(26, "EndTxn", "end_txn", 0, 5),
    _api(27, "WriteTxnMarkers", "write_txn_markers", 1, 2),
    _api(28, "TxnOffsetCommit", "txn_offset_commit", 0, 5),
    _api(29, "DescribeAcls", "describe_acls", 1, 3),
    _api(30, "CreateAcls", "create_acls", 1, 3),
    _api(31, "DeleteAcls", "delete_acls", 1, 3),
    _api(32, "DescribeConfigs", "describe_configs", 1, 4),
    _api(33, "AlterConfigs", "alter_configs", 0, 2),
    _api(34, "AlterReplicaLogDirs", "alter_replica_log_dirs", 1, 2),
    _api(35, "DescribeLogDirs", "describe_log_dirs", 1, 5),
    _api(36, "SaslAuthenticate", "sasl_authenticate", 0, 2),
    _api(37, "CreatePartitions", "create_partitions", 0, 3),
    _api(42, "DeleteGroups", "delete_groups", 0, 2),
    _api(43, "ElectLeaders", "elect_leaders", 0, 2),
    _api(44, "IncrementalAlterConfigs", "incremental_alter_configs", 0, 1),
    _api(45, "AlterPartitionReassignments", "alter_partition_reassignments", 0, 1),
    _api(46, "ListPartitionReassignments", "list_partition_reassignments", 0, 0),
    _api(47, "OffsetDelete", "offset_delete", 0, 0),
    _api(48, "DescribeClientQuotas", "describe_client_quotas", 0, 1),
    _api(49, "AlterClientQuotas", "alter_client_quotas", 0, 1),
    _api(50, "DescribeUserScramCredentials", "describe_user_scram_credentials", 0, 0),
    _api(51, "AlterUserScramCredentials", "alter_user_scram_credentials", 0, 0),
    _api(55, "DescribeQuorum", "describe_quorum", 0, 2),
    _api(56, "AlterPartition", "alter_partition", 2, 3),
    _api(57, "UpdateFeatures", "update_features", 0, 2),
    _api(58, "Envelope", "envelope", 0, 0),
    _api(59, "FetchSnapshot", "fetch_snapshot", 0, 1),
    _api(60, "DescribeCluster", "describe_cluster", 0, 2),
    _api(61, "DescribeProducers", "describe_producers", 0, 0),
    _api(62, "BrokerRegistration", "broker_registration", 0, 4),
    _api(63, "BrokerHeartbeat", "broker_heartbeat", 0, 2),
    _api(64, "UnregisterBroker", "unregister_broker", 0, 0),
    _api(65, "DescribeTransactions", "describe_transactions", 0, 0),
    _api(66, "ListTransactions", "list_transactions", 0, 2),
    _api(67, "AllocateProducerIds", "allocate_producer_ids", 0, 0),
    _api(68, "ConsumerGroupHeartbeat", "consumer_group_heartbeat", 0, 1),
    _api(69, "ConsumerGroupDescribe", "consumer_group_describe", 0, 1),
    _api(73, "AssignReplicasToDirs", "assign_replicas_to_dirs", 0, 0),
    _api(74, "ListConfigResources", "list_config_resources", 0, 1),
    _api(75, "DescribeTopicPartitions", "describe_topic_partitions", 0, 0),
    # KIP-1309, a draft that says "to be decided": the first free key, and provisional.
    _api(95, "TxnHeartbeat", "txn_heartbeat", 0, 0),
)

APIS: dict[int, Api] = {api.key: api for api in _ALL}
KEYS: dict[str, int] = {api.name: api.key for api in _ALL}
