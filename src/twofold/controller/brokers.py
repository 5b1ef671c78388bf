"""BrokerRegistration, BrokerHeartbeat, UnregisterBroker and AllocateProducerIds as operations on the image.

1. A broker's epoch is the offset at which its registration begins to be written, so it only ever grows.
2. A broker registers fenced and is unfenced by a heartbeat that has seen its own registration.
3. A broker that wants to stop gives what it leads to others first, and may stop when all of them know (`standing.py`).
4. A broker that comes back without saying that it stopped in order has lost what it was eligible to lead.
5. A request with an epoch that is not the broker's, or of a broker that is not there: STALE_BROKER_EPOCH (77).
6. Producer ids are given away in blocks, and no id is ever in two of them.
"""

from collections.abc import Callable
from enum import Enum

from twofold.controller.context import Context
from twofold.controller.features import KEPT_FEATURES, metadata_version
from twofold.controller.image import METADATA_VERSION, BrokerRegistration, MetadataImage
from twofold.controller.levels import CORDONED_LOG_DIRECTORIES, LOG_DIRECTORIES
from twofold.controller.operation import Operation
from twofold.controller.records import (
    BrokerRegistrationChange,
    EndPoint,
    FeatureRange,
    ProducerIds,
    RegisterBroker,
    UnregisterBroker,
)
from twofold.controller.replicas.rules import ClusterRules
from twofold.controller.replicas.updates import (
    Changes,
    lead_again,
    leave_directory,
    leave_partitions,
    lose_partitions,
)
from twofold.controller.standing import UNHEARD, ShutdownProgress
from twofold.machine.schema import ZERO_UUID
from twofold.wire.errors import (
    NONE,
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRegistration,
    StaleBrokerEpoch,
    UnknownServerError,
    UnsupportedVersion,
)
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from twofold.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from twofold.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

PRODUCER_ID_BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1

IsAlive = Callable[[int], bool]


def register_broker(
    image: MetadataImage, request: BrokerRegistrationRequest, context: Context, is_alive: IsAlive
) -> Operation[BrokerRegistrationResponse]:
    """`is_alive` tells whether a broker's session has not run out; it is not part of the log."""
    if request.cluster_id != context.cluster_id:
        raise InconsistentClusterId(
            f"broker {request.broker_id} belongs to the cluster {request.cluster_id}, this is {context.cluster_id}"
        )
    if request.is_migrating_zk_broker:
        raise BrokerIdNotRegistered(f"broker {request.broker_id} comes from ZooKeeper: there is no migration here")
    known = image.broker(request.broker_id)
    same = known is not None and known.incarnation_id == request.incarnation_id
    if known is not None and not same and is_alive(request.broker_id):
        raise DuplicateBrokerRegistration(
            f"broker {request.broker_id} is alive as incarnation {known.incarnation_id}; is its node.id used twice?"
        )
    _check_features(image, request)
    _check_directories(image, request)
    if known is not None and not same:
        yield from _clean_up(image, context, known, request.previous_broker_epoch)
    epoch = known.epoch if known is not None and same else context.next_offset
    yield _registration(request, known if same else None, epoch)
    return BrokerRegistrationResponse(error_code=NONE, broker_epoch=epoch)


def _clean_up(image: MetadataImage, context: Context, known: BrokerRegistration, previous_epoch: int) -> Changes:
    """What the former incarnation led or was in sync with, it does no longer."""
    if ClusterRules(image, context).keeps_eligible_leaders and previous_epoch != known.epoch:
        yield from lose_partitions(image, context, known.broker_id)
    elif not known.fenced:
        yield from leave_partitions(image, context, known.broker_id)


def _registration(request: BrokerRegistrationRequest, amended: BrokerRegistration | None, epoch: int) -> RegisterBroker:
    return RegisterBroker(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id or ZERO_UUID,
        broker_epoch=epoch,
        end_points=tuple(EndPoint(x.name, x.host, x.port, x.security_protocol) for x in request.listeners),
        features=tuple(
            FeatureRange(x.name, x.min_supported_version, x.max_supported_version) for x in request.features
        ),
        rack=request.rack,
        fenced=True if amended is None else amended.fenced,
        in_controlled_shutdown=False if amended is None else amended.in_controlled_shutdown,
        log_dirs=tuple(directory for directory in request.log_dirs if directory is not None),
    )


def _check_features(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    supported = {feature.name: feature for feature in request.features}
    if METADATA_VERSION not in supported:
        raise InvalidRegistration(f"broker {request.broker_id} does not say which {METADATA_VERSION} it supports")
    for name, level in image.features.items():
        found = supported.get(name)
        if found is None and level <= KEPT_FEATURES.get(name, 0):
            continue
        low, high = (found.min_supported_version, found.max_supported_version) if found else (0, 0)
        if not low <= level <= high:
            raise UnsupportedVersion(
                f"broker {request.broker_id} supports {name} from {low} to {high}, the cluster is at {level}"
            )


def _check_directories(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    directories = list(request.log_dirs)
    if not directories or None in directories or len(set(directories)) != len(directories):
        raise InvalidRegistration(f"broker {request.broker_id} has no log dirs, or one twice, or one without id")
    for broker_id, broker in image.brokers.items():
        shared = set(broker.log_dirs) & set(directories) if broker_id != request.broker_id else set()
        if shared:
            raise InvalidRegistration(
                f"broker {request.broker_id} has the log dirs {sorted(map(str, shared))} of broker {broker_id}: "
                "was the directory copied?"
            )


def heartbeat(
    image: MetadataImage, request: BrokerHeartbeatRequest, context: Context, standing: ShutdownProgress = UNHEARD
) -> Operation[BrokerHeartbeatResponse]:
    broker = checked_broker(image, request.broker_id, request.broker_epoch)
    now, then = _step(image, broker, request, standing)
    if now is not then:
        if then is ControlState.UNFENCED:
            yield BrokerRegistrationChange(broker.broker_id, broker.epoch, fenced=-1)
            yield from lead_again(image, context, broker.broker_id)
        elif then is ControlState.CONTROLLED_SHUTDOWN:
            if not broker.in_controlled_shutdown:
                yield BrokerRegistrationChange(broker.broker_id, broker.epoch, in_controlled_shutdown=1)
            yield from leave_partitions(image, context, broker.broker_id)
        elif not broker.fenced:
            yield from fence(image, context, broker)
    yield from _note_directories(image, context, broker, request)
    return BrokerHeartbeatResponse(
        error_code=NONE,
        is_caught_up=request.current_metadata_offset >= broker.registered_at,
        is_fenced=then in (ControlState.FENCED, ControlState.SHUT_DOWN),
        should_shut_down=then is ControlState.SHUT_DOWN,
    )


def fence(image: MetadataImage, context: Context, broker: BrokerRegistration) -> Changes:
    """It leads nothing and is in no ISR from now on, but where it is the last."""
    yield from leave_partitions(image, context, broker.broker_id)
    yield BrokerRegistrationChange(broker.broker_id, broker.epoch, fenced=1)


class ControlState(Enum):
    """Of a broker, as its heartbeats move it."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "in controlled shutdown"
    SHUT_DOWN = "shut down"


def _step(
    image: MetadataImage, broker: BrokerRegistration, request: BrokerHeartbeatRequest, standing: ShutdownProgress
) -> tuple[ControlState, ControlState]:
    """The state of a broker, and the next."""
    if broker.fenced:
        if request.want_shut_down:
            return ControlState.FENCED, ControlState.SHUT_DOWN
        ready = not request.want_fence and request.current_metadata_offset >= broker.registered_at
        return ControlState.FENCED, ControlState.UNFENCED if ready else ControlState.FENCED
    if standing.shutdown_offset is not None:
        done = standing.shutdown_offset <= standing.lowest_active_offset and not _leads(image, broker.broker_id)
        return (
            ControlState.CONTROLLED_SHUTDOWN,
            ControlState.SHUT_DOWN if done else ControlState.CONTROLLED_SHUTDOWN,
        )
    if request.want_fence:
        return (
            ControlState.UNFENCED,
            ControlState.SHUT_DOWN if request.want_shut_down else ControlState.FENCED,
        )
    if request.want_shut_down:
        # Without another active broker there is none that could take over or would have to hear of it.
        alone = not any(other.broker_id != broker.broker_id for other in image.active_brokers())
        if alone or not _leads(image, broker.broker_id):
            return ControlState.UNFENCED, ControlState.SHUT_DOWN
        return ControlState.UNFENCED, ControlState.CONTROLLED_SHUTDOWN
    return ControlState.UNFENCED, ControlState.UNFENCED


def _leads(image: MetadataImage, broker_id: int) -> bool:
    return any(
        partition.leader == broker_id for topic in image.topics.values() for partition in topic.partitions.values()
    )


def _note_directories(
    image: MetadataImage, context: Context, broker: BrokerRegistration, request: BrokerHeartbeatRequest
) -> Changes:
    """What the broker says of its directories: those that failed lead nothing, cordoned ones get nothing new."""
    level = metadata_version(image)
    gone = [directory for directory in broker.log_dirs if directory in request.offline_log_dirs]
    if gone and level >= LOG_DIRECTORIES:
        for directory in gone:
            yield from leave_directory(image, context, broker.broker_id, directory)
        left = tuple(directory for directory in broker.log_dirs if directory not in gone)
        yield BrokerRegistrationChange(broker.broker_id, broker.epoch, log_dirs=left)
    if request.cordoned_log_dirs is not None and level >= CORDONED_LOG_DIRECTORIES:
        cordoned = tuple(directory for directory in request.cordoned_log_dirs if directory is not None)
        if set(cordoned) != set(broker.cordoned_log_dirs):
            yield BrokerRegistrationChange(broker.broker_id, broker.epoch, cordoned_log_dirs=cordoned)


def fence_stale(image: MetadataImage, context: Context, broker_id: int, epoch: int) -> Operation[bool]:
    """Fence a broker that was not heard of, if it is still the one of this epoch."""
    broker = image.broker(broker_id)
    if broker is None or broker.epoch != epoch or broker.fenced:
        return False
    yield from fence(image, context, broker)
    return True


def unregister_broker(
    image: MetadataImage, request: UnregisterBrokerRequest, context: Context
) -> Operation[UnregisterBrokerResponse]:
    broker = image.broker(request.broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"broker {request.broker_id} is not registered")
    yield from leave_partitions(image, context, broker.broker_id)
    yield UnregisterBroker(broker.broker_id, broker.epoch)
    return UnregisterBrokerResponse(error_code=NONE, error_message=None)


def checked_broker(image: MetadataImage, broker_id: int, epoch: int) -> BrokerRegistration:
    broker = image.broker(broker_id)
    if broker is None:
        raise StaleBrokerEpoch(f"broker {broker_id} is not registered")
    if broker.epoch != epoch:
        raise StaleBrokerEpoch(f"broker {broker_id} is registered with epoch {broker.epoch}, not {epoch}")
    return broker


def allocate_producer_ids(
    image: MetadataImage, request: AllocateProducerIdsRequest, context: Context
) -> Operation[AllocateProducerIdsResponse]:
    checked_broker(image, request.broker_id, request.broker_epoch)
    start = image.next_producer_id
    if start > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        raise UnknownServerError(f"all producer ids below {start} are given away, there are no more")
    yield ProducerIds(request.broker_id, request.broker_epoch, start + PRODUCER_ID_BLOCK_SIZE)
    return AllocateProducerIdsResponse(error_code=NONE, producer_id_start=start, producer_id_len=PRODUCER_ID_BLOCK_SIZE)
