"""The administrator's client: topics, configs, offsets, producers.

Its other calls are parts of the same class: `admin.groups`, `admin.security`, `admin.transactions`, `admin.repair`,
`admin.replicas` for where partitions are, and `admin.storage` for what lies on disks.

Calls that name several topics (or partitions, or resources) return `Results`: what succeeded and what failed, each by
its name. `results.get()` raises the first failure.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from twofold.client.admin.groups import GroupCalls
from twofold.client.admin.model import (
    CONFIG_SOURCES,
    AlterOperation,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    Feature,
    FeaturesDescription,
    FeatureUpdate,
    NewTopic,
    ProducerDescription,
    ResourceType,
    Results,
    UpgradeType,
)
from twofold.client.admin.quorum import QuorumDescription, quorum_of, quorum_request
from twofold.client.admin.quotas import QuotaCalls
from twofold.client.admin.repair import TransactionRepairCalls
from twofold.client.admin.replicas import ReplicaCalls
from twofold.client.admin.security import SecurityCalls
from twofold.client.admin.storage import StorageCalls
from twofold.client.admin.transactions import TransactionAdminCalls
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import Coordinators
from twofold.client.cluster.metadata import Node, TopicMetadata, group_by_topic, topic_error, topic_metadata
from twofold.client.config import ISOLATION_LEVELS, ClientConfig, ClientOptions, from_dotted, from_keywords
from twofold.client.consumer.offsets import ListedOffset, list_offsets
from twofold.connections.connection import SOFTWARE_NAME, Connection
from twofold.connections.waiting import Deadline
from twofold.runtime.api import Runtime
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition
from twofold.version import VERSION
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    KafkaError,
    NotController,
    NotLeaderOrFollower,
    UnsupportedVersion,
    error_for,
    raise_for,
)
from twofold.wire.messages import alter_configs
from twofold.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from twofold.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from twofold.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from twofold.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from twofold.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from twofold.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from twofold.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from twofold.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

__all__ = [
    "Admin",
    "AlterOperation",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "CreatedTopic",
    "Feature",
    "FeatureUpdate",
    "FeaturesDescription",
    "NewTopic",
    "ProducerDescription",
    "ResourceType",
    "Results",
    "UpgradeType",
]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
# Answers about one thing that mean the question went to the wrong broker.
_WRONG_BROKER = (NotController, NotLeaderOrFollower)


class Admin(
    GroupCalls, QuotaCalls, ReplicaCalls, SecurityCalls, StorageCalls, TransactionAdminCalls, TransactionRepairCalls
):
    """`async with Admin(bootstrap_servers=...) as admin`; must be made while its loop runs."""

    def __init__(self, *, runtime: Runtime | None = None, **options: Unpack[ClientOptions]) -> None:
        self._start(from_keywords(ClientConfig, options), runtime)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, runtime: Runtime | None = None) -> "Admin":
        """With Kafka's own names: `{"bootstrap.servers": "..."}`."""
        return cls.of(from_dotted(ClientConfig, config), runtime=runtime)

    @classmethod
    def of(cls, config: ClientConfig, *, runtime: Runtime | None = None) -> "Admin":
        """With settings that were checked before."""
        admin = cls.__new__(cls)
        admin._start(config, runtime)
        return admin

    @classmethod
    def on(cls, cluster: Cluster, coordinators: Coordinators | None = None) -> "Admin":
        """With the connections of another client, whose they stay: nothing is to be closed here. What is
        asked about transactions needs those to coordinators, too."""
        admin = cls.__new__(cls)
        admin.config, admin._cluster, admin._found_coordinators = cluster.config, cluster, coordinators
        return admin

    def _start(self, config: ClientConfig, runtime: Runtime | None) -> None:
        self.config = config
        self._cluster = Cluster(runtime or real_runtime(), config)

    async def __aenter__(self) -> "Admin":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def cluster(self) -> Cluster:
        """The cluster that it asks, for code that builds on it."""
        return self._cluster

    async def close(self) -> None:
        if self._found_coordinators is not None:
            self._found_coordinators.close()
        await self._cluster.close()

    # Topics

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Results[str, CreatedTopic]:
        rows = [_creatable(topic) for topic in topics]

        async def attempt(deadline: Deadline) -> Results[str, CreatedTopic]:
            request = CreateTopicsRequest(topics=rows, timeout_ms=deadline.remaining_ms(), validate_only=validate_only)
            response: CreateTopicsResponse = await self._ask_controller(request, "CreateTopics", deadline)
            return _collect((row.name, row, _created) for row in response.topics)

        return await self._retry("CreateTopics", attempt)

    async def delete_topics(self, names: Iterable[str]) -> Results[str, None]:
        wanted = list(dict.fromkeys(names))
        states = [DeleteTopicState(name=name, topic_id=None) for name in wanted]

        async def attempt(deadline: Deadline) -> Results[str, None]:
            request = DeleteTopicsRequest(topic_names=wanted, topics=states, timeout_ms=deadline.remaining_ms())
            response: DeleteTopicsResponse = await self._ask_controller(request, "DeleteTopics", deadline)
            return _collect((row.name or "", row, _nothing) for row in response.responses)

        return await self._retry("DeleteTopics", attempt)

    async def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
    ) -> Results[str, None]:
        """Grow topics to a total count; `assignments` are the replicas of each new partition."""
        rows = [_growing(name, total, (assignments or {}).get(name)) for name, total in totals.items()]

        async def attempt(deadline: Deadline) -> Results[str, None]:
            request = CreatePartitionsRequest(
                topics=rows, timeout_ms=deadline.remaining_ms(), validate_only=validate_only
            )
            response: CreatePartitionsResponse = await self._ask_controller(request, "CreatePartitions", deadline)
            return _collect((row.name, row, _nothing) for row in response.results)

        return await self._retry("CreatePartitions", attempt)

    async def list_topics(self, *, include_internal: bool = False) -> dict[str, TopicMetadata]:
        found = await self._topics(None)
        return {name: topic for name, topic in sorted(found.values.items()) if include_internal or not topic.internal}

    async def describe_topics(self, names: Iterable[str]) -> Results[str, TopicMetadata]:
        """A topic that does not exist is an error at once, and is not created."""
        return await self._topics(list(dict.fromkeys(names)))

    async def _topics(self, names: list[str] | None) -> Results[str, TopicMetadata]:
        async def attempt(deadline: Deadline) -> Results[str, TopicMetadata]:
            connection = await self._cluster.any_connection(deadline)
            response = await self._cluster.fetch_metadata(connection, names, deadline)
            return _collect((row.name or "", row, topic_metadata) for row in response.topics)

        return await self._retry("Metadata", attempt)

    # Configs

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Sequence[str] | None = None,
        include_documentation: bool = False,
    ) -> Results[ConfigResource, tuple[ConfigEntry, ...]]:
        wanted = list(resources)

        async def attempt(deadline: Deadline) -> Results[ConfigResource, tuple[ConfigEntry, ...]]:
            rows: list[DescribeConfigsResult] = []
            for node_id, group in _by_broker(wanted).items():
                request = DescribeConfigsRequest(
                    resources=[
                        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=names)
                        for kind, name in group
                    ],
                    include_documentation=include_documentation,
                )
                response: DescribeConfigsResponse = await self._ask(node_id, request, "DescribeConfigs", deadline)
                rows += response.results
            return _collect((_resource(row.resource_type, row.resource_name), row, _entries) for row in rows)

        return await self._retry("DescribeConfigs", attempt)

    async def incremental_alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> Results[ConfigResource, None]:
        async def attempt(deadline: Deadline) -> Results[ConfigResource, None]:
            rows: list[AlterConfigsResourceResponse] = []
            for node_id, group in _by_broker(changes).items():
                request = IncrementalAlterConfigsRequest(
                    resources=[_alterable(resource, changes[resource]) for resource in group],
                    validate_only=validate_only,
                )
                response: IncrementalAlterConfigsResponse = await self._ask(
                    node_id, request, "IncrementalAlterConfigs", deadline
                )
                rows += response.responses
            return _collect((_resource(row.resource_type, row.resource_name), row, _nothing) for row in rows)

        return await self._retry("IncrementalAlterConfigs", attempt)

    async def alter_configs(
        self, configs: Mapping[ConfigResource, Mapping[str, str]], *, validate_only: bool = False
    ) -> Results[ConfigResource, None]:
        """Replace all that a resource has of its own: what is not named here goes back to its default."""

        async def attempt(deadline: Deadline) -> Results[ConfigResource, None]:
            rows: list[alter_configs.AlterConfigsResourceResponse] = []
            for node_id, group in _by_broker(configs).items():
                request = alter_configs.AlterConfigsRequest(
                    resources=[_replaced(resource, configs[resource]) for resource in group],
                    validate_only=validate_only,
                )
                response: alter_configs.AlterConfigsResponse = await self._ask(
                    node_id, request, "AlterConfigs", deadline
                )
                rows += response.responses
            return _collect((_resource(row.resource_type, row.resource_name), row, _nothing) for row in rows)

        return await self._retry("AlterConfigs", attempt)

    # Cluster, offsets, producers

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Fenced brokers are told by Apache Kafka 4.0 and newer, and by Twofold."""

        async def attempt(deadline: Deadline) -> ClusterDescription:
            request = DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=include_fenced
            )
            response: DescribeClusterResponse = await self._ask(None, request, "DescribeCluster", deadline)
            raise_for(response.error_code, response.error_message)
            brokers = tuple(Node(row.broker_id, row.host, row.port, row.rack) for row in response.brokers)
            fenced = frozenset(row.broker_id for row in response.brokers if row.is_fenced)
            return ClusterDescription(response.cluster_id, response.controller_id, brokers, fenced)

        return await self._retry("DescribeCluster", attempt)

    async def describe_quorum(self) -> QuorumDescription:
        """The controllers, and how far every node follows their metadata."""

        async def attempt(deadline: Deadline) -> QuorumDescription:
            return quorum_of(await self._ask(None, quorum_request(), "DescribeQuorum", deadline))

        return await self._retry("DescribeQuorum", attempt)

    async def describe_features(self) -> FeaturesDescription:
        """What one broker supports and what the cluster has finalized."""

        async def attempt(deadline: Deadline) -> FeaturesDescription:
            request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=VERSION)
            response: ApiVersionsResponse = await self._ask(None, request, "ApiVersions", deadline)
            raise_for(response.error_code, "ApiVersions was refused")
            return _features(response)

        return await self._retry("ApiVersions", attempt)

    async def update_features(self, updates: Mapping[str, FeatureUpdate], *, validate_only: bool = False) -> None:
        """All of them or, where the cluster refuses one, none: InvalidUpdateVersion says which and why."""
        rows = [
            FeatureUpdateKey(
                feature=name,
                max_version_level=update.level,
                allow_downgrade=update.upgrade_type is not UpgradeType.UPGRADE,
                upgrade_type=update.upgrade_type,
            )
            for name, update in updates.items()
        ]

        async def attempt(deadline: Deadline) -> None:
            request = UpdateFeaturesRequest(
                feature_updates=rows, timeout_ms=deadline.remaining_ms(), validate_only=validate_only
            )
            connection = await self._controller_connection(deadline)
            if validate_only and connection.version(KEYS["UpdateFeatures"]) == 0:
                raise UnsupportedVersion(f"{connection.label} would make the change instead of only checking it")
            response: UpdateFeaturesResponse = await self._cluster.ask(connection, request, "UpdateFeatures", deadline)
            raise_for(response.error_code, response.error_message)
            for row in response.results:
                raise_for(row.error_code, row.error_message)

        await self._retry("UpdateFeatures", attempt)

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, ListedOffset]:
        """The offset for each partition's timestamp or `OffsetSpec`."""
        isolation = ISOLATION_LEVELS[isolation_level]
        return await list_offsets(self._cluster, wanted, isolation, self._cluster.deadline())

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker_id: int | None = None
    ) -> Results[TopicPartition, tuple[ProducerDescription, ...]]:
        """The producers that a partition's leader (or another replica: `broker_id`) remembers."""
        wanted = list(dict.fromkeys(partitions))

        async def attempt(deadline: Deadline) -> Results[TopicPartition, tuple[ProducerDescription, ...]]:
            by_node: dict[int, list[TopicPartition]] = {}
            for tp in wanted:
                node_id = broker_id if broker_id is not None else (await self._cluster.leader(tp, deadline)).leader
                by_node.setdefault(node_id, []).append(tp)
            rows: list[tuple[TopicPartition, PartitionResponse]] = []
            for node_id, group in by_node.items():
                topics = [TopicRequest(name=name, partition_indexes=ids) for name, ids in group_by_topic(group).items()]
                request = DescribeProducersRequest(topics=topics)
                response: DescribeProducersResponse = await self._ask(node_id, request, "DescribeProducers", deadline)
                for topic in response.topics:
                    rows += [(TopicPartition(topic.name, row.partition_index), row) for row in topic.partitions]
            return _collect((tp, row, _producers) for tp, row in rows)

        return await self._retry("DescribeProducers", attempt)

    # How

    async def bootstrap(self, patience_ms: float = 2_000) -> None:
        """Fail early when no bootstrap server answers; every other call tries for `default_api_timeout_ms`."""
        await self._cluster.bootstrap(patience_ms)

    async def _retry(self, what: str, attempt: Callable[[Deadline], Awaitable[T]]) -> T:
        deadline = self._cluster.deadline()
        return await self._cluster.retry(what, lambda: attempt(deadline), deadline)

    async def _ask(self, node_id: int | None, request: Any, api: str, deadline: Deadline) -> Any:
        if node_id is not None and self._cluster.node(node_id) is None:
            await self._cluster.refresh(deadline)
        return await self._cluster.request(node_id, request, api, deadline)

    async def _ask_controller(self, request: Any, api: str, deadline: Deadline) -> Any:
        return await self._cluster.ask(await self._controller_connection(deadline), request, api, deadline)

    async def _controller_connection(self, deadline: Deadline) -> Connection:
        """A broker passes on what is the controller's, so any will do where metadata names none."""
        if not self._cluster.cache.nodes:
            await self._cluster.refresh(deadline)
        controller = self._cluster.node(self._cluster.cache.controller_id)
        if controller is None:
            return await self._cluster.any_connection(deadline)
        return await self._cluster.connection(controller.node_id, deadline)


def _collect(rows: Iterable[tuple[K, Any, Callable[[Any], V]]]) -> Results[K, V]:
    """Values and errors of an answer. An answer of the wrong broker is raised, so that the right one is asked."""
    values: dict[K, V] = {}
    errors: dict[K, KafkaError] = {}
    for key, row, convert in rows:
        if row.error_code:
            error = _error(key, row.error_code, getattr(row, "error_message", None))
            if isinstance(error, _WRONG_BROKER):
                raise error
            errors[key] = error
        else:
            values[key] = convert(row)
    return Results(values, errors)


def _error(key: object, code: int, message: str | None) -> KafkaError:
    if message:
        return error_for(code)(message)
    return topic_error(key, code) if isinstance(key, str) else error_for(code)(str(key))


def _nothing(_: object) -> None:
    return None


def _features(response: ApiVersionsResponse) -> FeaturesDescription:
    supported = {row.name: (row.min_version, row.max_version) for row in response.supported_features}
    finalized = {row.name: row.max_version_level for row in response.finalized_features}
    features = {
        name: Feature(name, *supported.get(name, (0, 0)), finalized.get(name, 0))
        for name in sorted(supported.keys() | finalized.keys())
    }
    return FeaturesDescription(response.finalized_features_epoch, features)


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignments else topic.num_partitions,
        replication_factor=-1 if topic.assignments else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(ids))
            for index, ids in topic.assignments.items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _created(row: CreatableTopicResult) -> CreatedTopic:
    return CreatedTopic(row.name, row.topic_id, row.num_partitions, row.replication_factor)


def _growing(name: str, total: int, replicas: Sequence[Sequence[int]] | None) -> CreatePartitionsTopic:
    chosen = None if replicas is None else [CreatePartitionsAssignment(broker_ids=list(ids)) for ids in replicas]
    return CreatePartitionsTopic(name=name, count=total, assignments=chosen)


def _by_broker(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """A broker answers for its own settings; any answers for the rest (None)."""
    groups: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        own = resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name.isdecimal()
        groups.setdefault(int(resource.name) if own else None, []).append(resource)
    return groups


def _resource(kind: int, name: str) -> ConfigResource:
    return ConfigResource(ResourceType(kind), name)


def _entries(row: DescribeConfigsResult) -> tuple[ConfigEntry, ...]:
    return tuple(
        ConfigEntry(
            entry.name,
            entry.value,
            CONFIG_SOURCES.get(entry.config_source, "UNKNOWN"),
            entry.read_only,
            entry.is_sensitive,
            entry.documentation,
        )
        for entry in row.configs
    )


def _alterable(resource: ConfigResource, changes: Sequence[ConfigChange]) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=resource.type,
        resource_name=resource.name,
        configs=[
            AlterableConfig(name=change.name, config_operation=change.operation, value=change.value)
            for change in changes
        ],
    )


def _replaced(resource: ConfigResource, configs: Mapping[str, str]) -> alter_configs.AlterConfigsResource:
    return alter_configs.AlterConfigsResource(
        resource_type=resource.type,
        resource_name=resource.name,
        configs=[alter_configs.AlterableConfig(name=name, value=value) for name, value in configs.items()],
    )


def _producers(row: PartitionResponse) -> tuple[ProducerDescription, ...]:
    return tuple(
        ProducerDescription(
            state.producer_id,
            state.producer_epoch,
            state.last_sequence,
            state.last_timestamp,
            state.coordinator_epoch,
            state.current_txn_start_offset,
            state.current_txn_start_time_ms,
            state.current_txn_start_time_is_bound,
        )
        for state in row.active_producers
    )
