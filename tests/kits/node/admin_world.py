"""A broker's metadata side in one process: real dispatch and handlers, the controller's rules, no disk, no clock.

Requests and answers go through the codec of `oracle.wire`, which shares nothing with the code under test.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

from kits.metadata.operations import perform
from oracle.wire import decode_response, encode_request
from twofold.broker.coordinators.transactions.producer_ids import ProducerIdBlocks
from twofold.broker.network.authorizer import AclResourceType, AllowAll, Operation
from twofold.broker.network.context import Frame, Later, Peer, RequestContext
from twofold.broker.network.dispatch import Dispatcher
from twofold.broker.topics.auto_creation import AutoTopics
from twofold.broker.topics.rows import TopicRowCache
from twofold.config.settings import Settings
from twofold.controller import configs, topics
from twofold.controller.context import Context
from twofold.controller.image import MetadataImage
from twofold.controller.records import EndPoint, FeatureLevel, FeatureRange, MetadataRecord, RegisterBroker
from twofold.controller.replay import MetadataMachine
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsResponse

LISTENER = "PLAINTEXT"
OTHER_LISTENER = "INTERNAL"


class ManualTime:
    """Clock and timers that move only when told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "ManualTimer":
        entry = (self.now + delay_s, callback)
        self._timers.append(entry)
        return ManualTimer(lambda: self._timers.remove(entry) if entry in self._timers else None)

    async def sleep(self, delay_s: float) -> None:
        done = asyncio.get_running_loop().create_future()
        self.call_later(delay_s, lambda: done.set_result(None))
        await done

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [entry for entry in self._timers if entry[0] <= self.now]
        for entry in due:
            self._timers.remove(entry)
            entry[1]()

    @property
    def waiting(self) -> int:
        return len(self._timers)


class ManualTimer:
    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel


class Deny:
    """Everything is allowed but these (operation, resource name) pairs."""

    def __init__(self, *denied: tuple[Operation, str]) -> None:
        self.denied = set(denied)
        self.asked: list[tuple[Operation, AclResourceType, str]] = []

    def authorize(
        self,
        context: RequestContext,
        operation: Operation,
        resource_type: AclResourceType,
        resource_name: str,
        *,
        quiet: bool = False,
    ) -> bool:
        self.asked.append((operation, resource_type, resource_name))
        return (operation, resource_name) not in self.denied

    def authorize_any(self, context: RequestContext, operation: Operation, resource_type: AclResourceType) -> bool:
        return not any(denied == operation for denied, _ in self.denied)


class PureController:
    """The controller's handlers, applied at once; `gate` holds answers back."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.gate: asyncio.Event | None = None
        self.requests: list[Any] = []
        self.next_producer_id = 0

    async def create_topics(self, request: Any, permits: Any = None) -> Any:
        return await self._run(topics.create_topics, request)

    async def delete_topics(self, request: Any, guard: Any, permits: Any = None) -> Any:
        return await self._run(topics.delete_topics, request)

    async def create_partitions(self, request: Any, permits: Any = None) -> Any:
        return await self._run(topics.create_partitions, request)

    async def incremental_alter_configs(self, request: Any) -> Any:
        return await self._run(configs.incremental_alter_configs, request)

    async def alter_configs(self, request: Any) -> Any:
        return await self._run(configs.alter_configs, request)

    async def _run(self, handler: Callable[..., Any], request: Any) -> Any:
        self.requests.append(request)
        if self.gate is not None:
            await self.gate.wait()
        world = self._world
        context = Context(world.node_id, world.cluster_id, world.settings, world.runtime.random, world.image.offset + 1)
        result = perform(handler(world.image, request, context))
        world.apply(*result.records)
        return result.response

    async def allocate(self) -> AllocateProducerIdsResponse:
        if self.gate is not None:
            await self.gate.wait()
        start, self.next_producer_id = self.next_producer_id, self.next_producer_id + 1000
        return AllocateProducerIdsResponse(error_code=0, producer_id_start=start, producer_id_len=1000)


class KnownLogs(dict[TopicPartition, Any]):
    """Logs on a disk that is not full."""

    reserve = SimpleNamespace(check=lambda: None)


class World:
    """Shaped like `Services`, as far as these APIs look."""

    def __init__(self, settings: Mapping[str, str] = {}, authorizer: Any = None) -> None:
        unused: Any = None
        self.time = ManualTime()
        self.runtime = Runtime(
            clock=self.time,
            timers=self.time,
            disk=unused,
            network=unused,
            random=Random(1),
            spawn=lambda coroutine, *, name: asyncio.get_running_loop().create_task(coroutine, name=name),
            blocking=unused,
        )
        self.settings = Settings.from_mapping({"node.id": "1", **settings})
        self.authorizer = authorizer or AllowAll()
        self.node_id, self.is_member = 1, False
        self.cluster_id = "a-cluster"
        self.controller = PureController(self)
        self.producer_ids = ProducerIdBlocks(self.controller.allocate, self.runtime)
        self.auto_topics = AutoTopics(self)  # type: ignore[arg-type]
        self.core, self.transactions, self.is_member = self, unused, False
        self.topic_rows = TopicRowCache()
        self.logs = KnownLogs()
        self._machine = MetadataMachine()
        self._state = self._machine.initial()
        self.dispatcher = Dispatcher(self, self.runtime.spawn, self.runtime.clock.monotonic)  # type: ignore[arg-type]
        self.peer = Peer("10.0.0.1", 4711, LISTENER)
        self.apply(FeatureLevel("metadata.version", 30), FeatureLevel("transaction.version", 2))
        self.register(1)

    @property
    def image(self) -> MetadataImage:
        return self._state.image

    def apply(self, *records: MetadataRecord) -> None:
        first = self.image.offset + 1
        self._state = self._machine.apply_all(self._state, enumerate(records, first))
        self.settings = self.settings.with_dynamic(
            broker=self.image.broker_configs(self.node_id), cluster=self.image.broker_configs()
        )

    def register(
        self, broker_id: int, *, fenced: bool = False, listener: str = LISTENER, rack: str | None = None
    ) -> None:
        features = (FeatureRange("metadata.version", 7, 30), FeatureRange("transaction.version", 0, 2))
        end_points = (EndPoint(listener, f"host-{broker_id}", 9000 + broker_id, 0),)
        self.apply(RegisterBroker(broker_id, uuid4(), 5 + broker_id, end_points, features, rack, fenced))

    def topic_id(self, name: str) -> UUID:
        topic = self.image.topic(name)
        assert topic is not None
        return topic.topic_id

    async def ask(self, api: str, version: int, **body: Any) -> dict[str, Any]:
        """Send one request through dispatch and decode its answer."""
        frame = encode_request(api, version, body, correlation_id=77)
        result = self.dispatcher.dispatch(self.peer, frame[4:])
        found = await result.answer if isinstance(result, Later) else result
        assert isinstance(found, Frame)
        payload = b"".join(bytes(part) for part in found.parts)[4:]
        correlation_id, answer = decode_response(api, version, payload)
        assert correlation_id == 77
        return answer

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        row = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
        answer = await self.ask("CreateTopics", 5, topics=[row], timeout=1000)
        assert answer["topics"][0]["error_code"] == 0, answer


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(10):
        await asyncio.sleep(0)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on a fresh loop, under its own name and parameters."""
    import functools

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        asyncio.run(main())

    return wrapper
