"""BrokerRegistration, BrokerHeartbeat and AllocateProducerIds as operations on the image.

1. A broker's epoch is the offset at which its registration begins to be written, so it only ever grows.
2. A broker registers fenced and is unfenced by a heartbeat that has seen its own registration.
3. Producer ids are given away in blocks, and no id is ever in two of them.
"""

from collections.abc import Callable, Iterator
from uuid import UUID

from twofold.controller.context import Context
from twofold.controller.features import KEPT_FEATURES
from twofold.controller.image import METADATA_VERSION, BrokerRegistration, MetadataImage, PartitionState
from twofold.controller.operation import Operation
from twofold.controller.records import (
    NO_LEADER,
    RECOVERED,
    BrokerRegistrationChange,
    EndPoint,
    FeatureRange,
    MetadataRecord,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
)
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
    if known is not None and not same and not known.fenced:
        # What the former incarnation led or was in sync with, it does no longer.
        yield from leave_partitions(image, known.broker_id)
    epoch = known.epoch if known is not None and same else context.next_offset
    yield _registration(request, known if same else None, epoch)
    return BrokerRegistrationResponse(error_code=NONE, broker_epoch=epoch)


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


Changes = Iterator[MetadataRecord | None]


def leave_partitions(image: MetadataImage, broker_id: int) -> Changes:
    """Take a broker out of the ISRs and give what it led to others; the last in sync stays so, without a leader."""
    for topic in image.topics_in_order():
        for index, partition in topic.in_order():
            if broker_id not in partition.isr:
                yield None
                continue
            isr = tuple(other for other in partition.isr if other != broker_id)
            if partition.leader != broker_id:
                yield PartitionChange(index, topic.topic_id, isr=isr)
                continue
            heir = _heir(image, partition.replicas, isr)
            yield PartitionChange(index, topic.topic_id, isr=isr if isr else None, leader=heir)


def _heir(image: MetadataImage, replicas: tuple[int, ...], isr: tuple[int, ...]) -> int:
    for candidate in replicas:
        broker = image.broker(candidate)
        if candidate in isr and broker is not None and broker.is_active:
            return candidate
    return NO_LEADER


def lead_again(image: MetadataImage, broker_id: int) -> Changes:
    """A broker is back: it leads what waited for it, being in sync with all that there is.

    With eligible leader replicas (KIP-966) the last one in sync leaves the ISR as well and waits beside it.
    """
    for topic in image.topics_in_order():
        for index, partition in topic.in_order():
            waits = partition.leader == NO_LEADER and (
                broker_id in partition.isr
                or broker_id in partition.eligible_leader_replicas
                or partition.replicas == (broker_id,)
            )
            yield _election(index, topic.topic_id, partition, broker_id) if waits else None


def _election(index: int, topic_id: UUID, partition: PartitionState, broker_id: int) -> PartitionChange:
    if broker_id in partition.isr:
        return PartitionChange(index, topic_id, leader=broker_id)
    eligible = tuple(other for other in partition.eligible_leader_replicas if other != broker_id)
    return PartitionChange(
        index,
        topic_id,
        isr=(*partition.isr, broker_id),
        leader=broker_id,
        leader_recovery_state=RECOVERED,
        eligible_leader_replicas=eligible,
        last_known_elr=(),
    )


def heartbeat(
    image: MetadataImage, request: BrokerHeartbeatRequest, context: Context
) -> Operation[BrokerHeartbeatResponse]:
    broker = _checked_broker(image, request.broker_id, request.broker_epoch)
    caught_up = request.current_metadata_offset >= broker.registered_at
    fenced = broker.fenced
    if fenced and caught_up and not request.want_fence and not request.want_shut_down:
        yield BrokerRegistrationChange(broker.broker_id, broker.epoch, fenced=-1)
        yield from lead_again(image, broker.broker_id)
        fenced = False
    elif not fenced and (request.want_fence or request.want_shut_down):
        # What it leads goes to others where there are any, so it may stop once this is committed.
        yield from leave_partitions(image, broker.broker_id)
        yield BrokerRegistrationChange(broker.broker_id, broker.epoch, fenced=1)
        fenced = True
    return BrokerHeartbeatResponse(
        error_code=NONE, is_caught_up=caught_up, is_fenced=fenced, should_shut_down=fenced and request.want_shut_down
    )


def _checked_broker(image: MetadataImage, broker_id: int, epoch: int) -> BrokerRegistration:
    broker = image.broker(broker_id)
    if broker is None:
        raise BrokerIdNotRegistered(f"broker {broker_id} is not registered")
    if broker.epoch != epoch:
        raise StaleBrokerEpoch(f"broker {broker_id} is registered with epoch {broker.epoch}, not {epoch}")
    return broker


def allocate_producer_ids(
    image: MetadataImage, request: AllocateProducerIdsRequest, context: Context
) -> Operation[AllocateProducerIdsResponse]:
    _checked_broker(image, request.broker_id, request.broker_epoch)
    start = image.next_producer_id
    if start > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK_SIZE:
        raise UnknownServerError(f"all producer ids below {start} are given away, there are no more")
    yield ProducerIds(request.broker_id, request.broker_epoch, start + PRODUCER_ID_BLOCK_SIZE)
    return AllocateProducerIdsResponse(error_code=NONE, producer_id_start=start, producer_id_len=PRODUCER_ID_BLOCK_SIZE)
