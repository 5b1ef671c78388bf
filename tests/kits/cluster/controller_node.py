"""A node that is only a controller, over the real or a simulated network: what members of a cluster join in tests.

It leads a metadata quorum of one over the files of its directory; a node that starts there again leads the next epoch.
`StandbyNode` is a controller that does not lead: it tells where the active one is.

    node = await ControllerNode(sim.runtime("c1"), host="c1").start()
    broker settings: controller.quorum.bootstrap.servers = node.address

For stories: `node.requests` lists what was asked, `node.script(api, step)` answers the next request of an API otherwise
(a response, None for the usual answer, SILENCE or HANG_UP), `node.controller` is the controller itself, and
`await node.controller.snapshots.write_now()` makes a snapshot.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any
from uuid import UUID

from kits.cluster.metadata_fetch import METADATA_TOPIC, ActiveController, MetadataFetches
from twofold.config.settings import Settings
from twofold.controller.records import MetadataRecord
from twofold.controller.records import encode as encode_record
from twofold.metadata_log.snapshots import BOOTSTRAP_FILE, encode_snapshot, write_snapshot
from twofold.quorum.controller import Controller
from twofold.quorum.upkeep import Upkeep, UpkeepOptions
from twofold.runtime.api import Runtime
from twofold.wire import codec, errors
from twofold.wire.apis import APIS, KEYS
from twofold.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey
from twofold.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from twofold.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionDataResult,
    ReplicaState,
    TopicDataResult,
)
from twofold.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

CLUSTER_ID = "AMfjnEcPR1OcURHLX8pQFQ"
PORT = 9093
NODE_ID = 3000
CONTROLLERS = 2  # the endpoint type of DescribeCluster
SILENCE = object()  # do not answer
HANG_UP = object()  # end the connection
Script = Callable[[Any], Any]

# Methods of the controller that take the request and give the response, by API.
ASKED = {
    "BrokerRegistration": "register_broker",
    "BrokerHeartbeat": "heartbeat",
    "AllocateProducerIds": "allocate_producer_ids",
    "AlterPartition": "alter_partition",
    "AssignReplicasToDirs": "assign_replicas_to_dirs",
}
FORWARDABLE = {
    "CreateTopics": "create_topics",
    "DeleteTopics": "delete_topics",
    "CreatePartitions": "create_partitions",
    "AlterConfigs": "alter_configs",
    "IncrementalAlterConfigs": "incremental_alter_configs",
    "CreateAcls": "create_acls",
    "DeleteAcls": "delete_acls",
    "AlterClientQuotas": "alter_client_quotas",
    "AlterUserScramCredentials": "alter_user_scram_credentials",
    "UpdateFeatures": "update_features",
    "UnregisterBroker": "unregister_broker",
    "ElectLeaders": "elect_leaders",
    "AlterPartitionReassignments": "alter_partition_reassignments",
    "ListPartitionReassignments": "list_partition_reassignments",
    "DescribeQuorum": "",
}
SERVED = (*ASKED, *FORWARDABLE, "ApiVersions", "DescribeCluster", "Fetch", "FetchSnapshot", "Envelope")


class _Server:
    """Framing, ApiVersions and scripts; a subclass answers the rest."""

    def __init__(self, runtime: Runtime, *, node_id: int, host: str, port: int, cluster_id: str) -> None:
        self.runtime = runtime
        self.node_id = node_id
        self.host = host
        self.port = port
        self.cluster_id = cluster_id
        self.requests: list[tuple[str, int, Any]] = []
        self.scripts: dict[str, deque[Script]] = {}
        self.delay_s = 0.0
        self._listener: Any = None
        self._sessions: set[_Session] = set()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def script(self, api: str, *steps: Script) -> None:
        self.scripts.setdefault(api, deque()).extend(steps)

    def seen(self, api: str) -> list[Any]:
        return [request for name, _, request in self.requests if name == api]

    async def listen(self) -> None:
        self._listener = await self.runtime.network.listen(lambda: _Session(self), self.host, self.port)
        self.port = self._listener.port

    def hang_up(self) -> None:
        """End every connection, and accept no more."""
        if self._listener is not None:
            self._listener.close()
        for session in list(self._sessions):
            session.close()

    def begin(self, session: "_Session") -> None:
        self._sessions.add(session)

    def end(self, session: "_Session") -> None:
        self._sessions.discard(session)

    async def answer(self, api: str, version: int, request: Any) -> Any:
        self.requests.append((api, version, request))
        steps = self.scripts.get(api)
        if steps:
            scripted = steps.popleft()(request)
            if inspect.isawaitable(scripted):
                scripted = await scripted
            if scripted is not None:
                return scripted
        if self.delay_s:
            await self.runtime.timers.sleep(self.delay_s)
        return await self.usual(api, version, request)

    async def usual(self, api: str, version: int, request: Any) -> Any:
        raise NotImplementedError

    def describe_cluster(self, request: DescribeClusterRequest) -> DescribeClusterResponse:
        code = errors.NONE if request.endpoint_type == CONTROLLERS else errors.MismatchedEndpointType.code
        return DescribeClusterResponse(
            error_code=code, cluster_id=self.cluster_id, endpoint_type=CONTROLLERS, controller_id=self.node_id,
            brokers=(),
        )  # fmt: skip

    def api_versions(self, _: ApiVersionsRequest) -> ApiVersionsResponse:
        served = sorted((APIS[KEYS[name]] for name in SERVED), key=lambda api: api.key)
        rows = [ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in served]
        return ApiVersionsResponse(error_code=errors.NONE, api_keys=rows)


class ControllerNode(_Server):
    def __init__(
        self,
        runtime: Runtime,
        *,
        host: str,
        port: int = PORT,
        node_id: int = NODE_ID,
        cluster_id: str = CLUSTER_ID,
        directory: str = "/controller",
        bootstrap: list[MetadataRecord] | None = None,
        upkeep: UpkeepOptions | None = None,
        **settings: object,
    ) -> None:
        """`bootstrap`: the first records of an empty log, where they are not the levels of a new cluster."""
        super().__init__(runtime, node_id=node_id, host=host, port=port, cluster_id=cluster_id)
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.settings = Settings.from_mapping({"node.id": str(node_id), **texts})
        disk = runtime.disk
        if not disk.is_dir(directory):
            disk.make_dirs(directory)
            if bootstrap is not None:
                values = [encode_record(record) for record in bootstrap]
                batches = encode_snapshot(values, epoch=1, last_contained_timestamp_ms=0, timestamp_ms=0)
                write_snapshot(disk, f"{directory}/{BOOTSTRAP_FILE}", batches)
            disk.sync_dir(directory.rpartition("/")[0] or "/")
        self.controller = Controller(
            runtime,
            self.settings,
            log_dir=directory,
            cluster_id=cluster_id,
            directory_id=UUID(int=node_id << 64),
        )
        self.fetches = MetadataFetches(runtime, cluster_id, self.active, self.controller.metadata_log)
        self.upkeep = Upkeep(runtime, self.controller, upkeep or UpkeepOptions(session_timeout_s=self._session_s()))

    def active(self) -> ActiveController:
        return ActiveController(self.node_id, self.controller.leader_epoch, self.host, self.port)

    async def start(self) -> "ControllerNode":
        await self.controller.start()
        self.upkeep.start()
        await self.listen()
        return self

    async def stop(self) -> None:
        self.hang_up()
        self.upkeep.stop()
        await self.controller.stop()

    def _session_s(self) -> float:
        return self.settings.int("broker.session.timeout.ms") / 1000

    async def usual(self, api: str, version: int, request: Any) -> Any:
        if api == "ApiVersions":
            return self._with_features(self.api_versions(request))
        if api == "DescribeCluster":
            return self.describe_cluster(request)
        if api == "Fetch":
            return await self.fetches.fetch(request, version)
        if api == "FetchSnapshot":
            return self.fetches.fetch_snapshot(request, version)
        if api == "Envelope":
            return await self._unwrapped(request)
        if api in ASKED:
            return await getattr(self.controller, ASKED[api])(request)
        return await self._administer(api, version, request)

    def _with_features(self, response: ApiVersionsResponse) -> ApiVersionsResponse:
        image = self.controller.image
        response.finalized_features_epoch = max(0, image.offset)
        response.finalized_features = [
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in sorted(image.features.items())
        ]
        return response

    async def _administer(self, api: str, version: int, request: Any) -> Any:
        if api == "DescribeQuorum":
            return self._describe_quorum(request)
        try:
            return await getattr(self.controller, FORWARDABLE[api])(request)
        except errors.NotController:
            raise
        except errors.KafkaError as error:
            return import_module(f"twofold.broker.api.{APIS[KEYS[api]].module}").error_response(request, error, version)

    async def _unwrapped(self, envelope: EnvelopeRequest) -> EnvelopeResponse:
        """The answer to the request inside, as it is to be handed on."""
        if envelope.request_principal is None or not envelope.client_host_address:
            return EnvelopeResponse(error_code=errors.PrincipalDeserializationFailure.code)
        header = codec.decode_request_header(envelope.request_data)
        api = APIS.get(header.api_key)
        if api is None or api.name not in FORWARDABLE:
            return EnvelopeResponse(error_code=errors.InvalidRequest.code)
        request = codec.decode_request(header.api_key, header.version, envelope.request_data, header.body_offset)
        try:
            response = await self.answer(api.name, header.version, request)
        except errors.NotController:
            return EnvelopeResponse(error_code=errors.NotController.code)
        data = codec.encode_response(response, header.api_key, header.version, header.correlation_id)
        return EnvelopeResponse(error_code=errors.NONE, response_data=bytes(data[4:]))

    def _describe_quorum(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        quorum, now_ms = self.controller.describe_quorum(), self.runtime.clock.wall_ms()
        voter = ReplicaState(
            replica_id=self.node_id,
            log_end_offset=quorum.end_offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
            replica_directory_id=quorum.voter.directory_id,
        )
        observers = [
            ReplicaState(replica_id=replica_id, log_end_offset=offset)
            for replica_id, offset in sorted(self.fetches.fetched_to.items())
        ]
        row = PartitionDataResult(
            partition_index=0,
            error_code=errors.NONE,
            leader_id=self.node_id,
            leader_epoch=quorum.epoch,
            high_watermark=quorum.high_watermark,
            current_voters=[voter],
            observers=observers,
        )
        listener = Listener(name="CONTROLLER", host=self.host, port=self.port)
        return DescribeQuorumResponse(
            error_code=errors.NONE,
            topics=[TopicDataResult(topic_name=METADATA_TOPIC, partitions=[row])],
            nodes=[Node(node_id=self.node_id, listeners=[listener])],
        )


class StandbyNode(_Server):
    """A controller that does not lead. `active` says which one does."""

    def __init__(
        self, runtime: Runtime, active: Callable[[], ActiveController], *, host: str, node_id: int = NODE_ID + 1,
        port: int = PORT, cluster_id: str = CLUSTER_ID,
    ) -> None:  # fmt: skip
        super().__init__(runtime, node_id=node_id, host=host, port=port, cluster_id=cluster_id)
        self.fetches = MetadataFetches(runtime, cluster_id, active, None)

    async def start(self) -> "StandbyNode":
        await self.listen()
        return self

    async def usual(self, api: str, version: int, request: Any) -> Any:
        if api == "ApiVersions":
            return self.api_versions(request)
        if api == "DescribeCluster":
            return self.describe_cluster(request)
        if api == "Fetch":
            return await self.fetches.fetch(request, version)
        if api == "FetchSnapshot":
            return self.fetches.fetch_snapshot(request, version)
        raise errors.NotController(f"controller {self.node_id} does not lead")


class _Session(asyncio.Protocol):
    """One request at a time: one that waits keeps those behind it waiting, as in Apache Kafka."""

    def __init__(self, node: _Server) -> None:
        self._node = node
        self._buffer = bytearray()
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._node.begin(self)
        self._task = self._node.runtime.spawn(self._serve(), name="controller node session")

    def connection_lost(self, exc: Exception | None) -> None:
        self._node.end(self)
        self._task.cancel()

    def close(self) -> None:
        self._transport.close()
        self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                return
            self._queue.put_nowait(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]

    async def _serve(self) -> None:
        while True:
            frame = await self._queue.get()
            header = codec.decode_request_header(frame)
            api = APIS.get(header.api_key)
            if api is None or api.name not in SERVED:
                self.close()
                return
            if api.name == "ApiVersions" and not api.serves(header.version):
                row = ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
                refused = ApiVersionsResponse(error_code=errors.UnsupportedVersion.code, api_keys=[row])
                self._transport.write(codec.encode_response(refused, api.key, 0, header.correlation_id))
                continue
            if not await self._answer(frame, header, api.name):
                return

    async def _answer(self, frame: bytes, header: codec.RequestHeader, api: str) -> bool:
        key, version = header.api_key, header.version
        request = codec.decode_request(key, version, frame, header.body_offset)
        try:
            response = await self._node.answer(api, version, request)
        except errors.KafkaError as error:
            response = refusal(api, request, error, version)
        if response is HANG_UP:
            self.close()
            return False
        if response is not SILENCE:
            self._transport.write(codec.encode_response(response, key, version, header.correlation_id))
        return True


def refusal(api: str, request: Any, error: errors.KafkaError, version: int) -> Any:
    """The answer of a controller that refuses the whole request."""
    module = APIS[KEYS[api]].module
    if api in FORWARDABLE and api != "UnregisterBroker":
        return import_module(f"twofold.broker.api.{module}").error_response(request, error, version)
    messages = import_module(f"twofold.wire.messages.{module}")
    fields: dict[str, Any] = {"error_code": error.code}
    more: dict[str, dict[str, Any]] = {
        "AllocateProducerIds": {"producer_id_start": -1, "producer_id_len": 0},
        "AlterPartition": {"topics": ()},
        "AssignReplicasToDirs": {"directories": ()},
        "UnregisterBroker": {"error_message": error.message},
        "BrokerHeartbeat": {"should_shut_down": False},
    }
    return getattr(messages, f"{api}Response")(**fields, **more.get(api, {}))
