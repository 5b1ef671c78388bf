"""What the controller's tests share: a world on a simulated disk, brokers, and requests in one line."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from kits.metadata.operations import perform
from twofold.config.settings import Settings
from twofold.controller import brokers, configs, topics
from twofold.controller.context import Answer, Context
from twofold.controller.features import SUPPORTED_FEATURES, initial_levels
from twofold.controller.image import MetadataImage
from twofold.controller.operation import Operation
from twofold.controller.records import (
    BrokerRegistrationChange,
    EndPoint,
    FeatureRange,
    MetadataRecord,
    RegisterBroker,
)
from twofold.controller.replay import ControllerState, MetadataMachine
from twofold.quorum.controller import Controller
from twofold.runtime.api import Runtime
from twofold.runtime.sim import SimDisk
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from twofold.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

T = TypeVar("T")
CLUSTER_ID = "AMfjnEcPR1OcURHLX8pQFQ"
LOG_DIR = "/data"
DIRECTORY_ID = UUID(int=0xD1 << 64)


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class LoopTimers:
    """The timers of the running loop."""

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)


def disk_runtime(disk: SimDisk, *, seed: int = 1) -> Runtime:
    """The running loop with this disk; what blocks runs in the next turn of the loop."""
    loop = asyncio.get_running_loop()

    async def blocking(function: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(0)
        return function(*args)

    def spawn(coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return loop.create_task(coroutine, name=name)

    nothing: Any = None
    return Runtime(ManualClock(), LoopTimers(), disk, nothing, Random(f"{seed} {disk.crashes}"), spawn, blocking)


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.make_dirs(LOG_DIR)
    disk.sync_dir("/")
    return disk


def new_controller(disk: SimDisk, **settings: str) -> Controller:
    texts = {name.replace("_", "."): text for name, text in settings.items()}
    return Controller(
        disk_runtime(disk),
        Settings.from_mapping(texts),
        log_dir=LOG_DIR,
        cluster_id=CLUSTER_ID,
        directory_id=DIRECTORY_ID,
    )


async def register(controller: Controller, *, broker_id: int = 1, incarnation: int = 1) -> int:
    """Register a broker and unfence it; its epoch."""
    response = await controller.register_broker(registration(broker_id=broker_id, incarnation=incarnation))
    assert response.error_code == 0
    beat = await controller.heartbeat(beat_of(broker_id, response.broker_epoch, controller.image.offset))
    assert beat.error_code == 0 and not beat.is_fenced
    return response.broker_epoch


def registration(**changes: Any) -> BrokerRegistrationRequest:
    broker_id = changes.pop("broker_id", 1)
    fields: dict[str, Any] = {
        "cluster_id": CLUSTER_ID,
        "incarnation_id": UUID(int=changes.pop("incarnation", 1)),
        "listeners": (Listener(name="PLAINTEXT", host="localhost", port=9092, security_protocol=0),),
        "features": tuple(
            Feature(name=f.name, min_supported_version=f.min_version, max_supported_version=f.max_version)
            for f in SUPPORTED_FEATURES
        ),
        "rack": None,
        "log_dirs": (UUID(int=broker_id << 64),),
    }
    return BrokerRegistrationRequest(broker_id=broker_id, **(fields | changes))


def beat_of(
    broker_id: int, epoch: int, offset: int, *, want_fence: bool = False, want_shut_down: bool = False
) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=epoch,
        current_metadata_offset=offset,
        want_fence=want_fence,
        want_shut_down=want_shut_down,
    )


def topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: dict[int, Iterable[int]] | list[tuple[int, list[int]]] | None = None,
    **configs: str | None,
) -> CreatableTopic:
    rows = assignments.items() if isinstance(assignments, dict) else assignments or ()
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=tuple(CreatableReplicaAssignment(partition_index=i, broker_ids=tuple(b)) for i, b in rows),
        configs=tuple(CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()),
    )


def create(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=topics, validate_only=validate_only)


# -- images without a log


def performed(handler: Callable[..., Operation[T]]) -> Callable[..., Answer[T]]:
    """The handler as a function that decides everything at once."""
    return lambda *arguments: perform(handler(*arguments))


create_topics = performed(topics.create_topics)
create_partitions = performed(topics.create_partitions)
delete_topics = performed(topics.delete_topics)
incremental_alter_configs = performed(configs.incremental_alter_configs)
alter_configs = performed(configs.alter_configs)
register_broker = performed(brokers.register_broker)
heartbeat = performed(brokers.heartbeat)
allocate_producer_ids = performed(brokers.allocate_producer_ids)


def fold(records: Iterable[MetadataRecord], state: ControllerState | None = None) -> ControllerState:
    state = state or ControllerState()
    return MetadataMachine().apply_all(state, enumerate(records, state.image.offset + 1))


def broker_records(broker_id: int, *, fenced: bool = False, rack: str | None = None) -> list[MetadataRecord]:
    features = tuple(FeatureRange(f.name, f.min_version, f.max_version) for f in SUPPORTED_FEATURES)
    end_points = (EndPoint("PLAINTEXT", f"host{broker_id}", 9092, 0),)
    log_dirs = (UUID(int=broker_id << 64),)
    records: list[MetadataRecord] = [
        RegisterBroker(broker_id, UUID(int=1), 100 + broker_id, end_points, features, rack, log_dirs=log_dirs)
    ]
    if not fenced:
        records.append(BrokerRegistrationChange(broker_id, 100 + broker_id, fenced=-1))
    return records


def image_with(*broker_ids: int, fenced: Iterable[int] = ()) -> MetadataImage:
    """A bootstrapped cluster of these brokers."""
    records: list[MetadataRecord] = [*initial_levels()]
    for broker_id in broker_ids:
        records += broker_records(broker_id, fenced=broker_id in tuple(fenced))
    return fold(records).image


def context(image: MetadataImage | None = None, *, seed: int = 1, **settings: str) -> Context:
    texts = {name.replace("_", "."): text for name, text in settings.items()}
    return Context(1, CLUSTER_ID, Settings.from_mapping(texts), Random(seed), 0 if image is None else image.offset + 1)


def after(image: MetadataImage, records: Iterable[MetadataRecord]) -> MetadataImage:
    return fold(records, ControllerState(image)).image


async def shut_down(controller: Controller, broker_id: int, epoch: int) -> BrokerHeartbeatResponse:
    return await controller.heartbeat(beat_of(broker_id, epoch, controller.image.offset, want_shut_down=True))


def run(story: Awaitable[T]) -> T:
    async def main() -> T:
        return await asyncio.wait_for(story, 60)

    return asyncio.run(main())
