"""How a record changes the metadata: the `apply` of the controller's machine.

1. Begin remembers the image before it, End forgets it, Abort goes back to it. The open transaction is part of the
   state, so it is reverted, replayed and committed together with everything else.
2. While a transaction is open the state is not stable: only the next handler sees it.
3. An image holds what its metadata.version can carry and nothing else, whatever a record says beyond it: so it is the
   same before and after it was read back.
4. A record that contradicts the state (a partition of no topic, an End without Begin) stops the machine: it means that
   the log is damaged or that a handler is wrong, and every later image would be, too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

from twofold.config.names import collision_key
from twofold.controller.delta import condensed
from twofold.controller.image import (
    METADATA_VERSION,
    TOPIC_RESOURCE,
    BrokerRegistration,
    ConfigOwner,
    MetadataImage,
    PartitionState,
    ScramKey,
    TopicImage,
)
from twofold.controller.kept_records import KEPT, kept_key, takes_away
from twofold.controller.levels import NEWEST
from twofold.controller.lowering import lowered
from twofold.controller.quota_records import ClientQuota
from twofold.controller.records import (
    LEADER_UNCHANGED,
    STATE_UNCHANGED,
    AbortTransaction,
    BeginTransaction,
    BrokerRegistrationChange,
    ClearElr,
    Config,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
    NoOp,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
    RemoveTopic,
    Topic,
    UnregisterBroker,
    fitted,
)
from twofold.controller.security.acls import AclSetMutation
from twofold.controller.security.records import (
    AccessControlEntry,
    RemoveAccessControlEntry,
    RemoveUserScramCredential,
    UserScramCredential,
)
from twofold.machine.maps import Map, MapMutation
from twofold.machine.runtime import Machine
from twofold.wire.errors import KafkaError, NotController, PolicyViolation, RecordListTooLarge

V = TypeVar("V")


class InconsistentRecord(Exception):
    """A metadata record contradicts those before it."""


@dataclass(frozen=True, slots=True)
class OpenMetadataTransaction:
    """A metadata transaction that has begun, and what an Abort goes back to."""

    start_offset: int
    name: str | None
    before: MetadataImage


@dataclass(frozen=True, slots=True)
class ControllerState:
    """The state of the machine: `image` includes what an open transaction has written so far."""

    image: MetadataImage = field(default_factory=MetadataImage)
    transaction: OpenMetadataTransaction | None = None


class MetadataMachine(Machine[ControllerState, MetadataRecord]):
    """The controller as a machine; its handlers are in the modules beside this one."""

    busy: type[KafkaError] = NotController  # brokers and clients ask again, and may find a controller that is not

    def initial(self) -> ControllerState:
        return ControllerState()

    def apply_all(self, state: ControllerState, entries: Iterable[tuple[int, MetadataRecord]]) -> ControllerState:
        draft = _Draft(state.image)
        transaction = state.transaction
        for offset, record in entries:
            if type(record) in _TRANSACTIONAL:
                state = _step_transaction(ControllerState(draft.freeze(), transaction), record, offset)
                draft, transaction = _Draft(state.image), state.transaction
            else:
                if draft.level < NEWEST:
                    record = fitted(record, draft.level)
                try:
                    _APPLY[type(record)](draft, record, offset)
                except InconsistentRecord as error:
                    raise InconsistentRecord(f"metadata record at offset {offset}: {error}: {record}") from None
            draft.offset = offset
        return ControllerState(draft.freeze(), transaction)

    def condensed(self, records: Sequence[MetadataRecord]) -> Sequence[Any]:
        return condensed(records)

    def is_stable(self, state: ControllerState) -> bool:
        return state.transaction is None

    def map_error(self, error: Exception) -> KafkaError:
        if isinstance(error, RecordListTooLarge):
            return PolicyViolation(error.message)
        return super().map_error(error)


_TRANSACTIONAL = (BeginTransaction, EndTransaction, AbortTransaction)


def _step_transaction(state: ControllerState, record: MetadataRecord, offset: int) -> ControllerState:
    opened = state.transaction
    if isinstance(record, BeginTransaction):
        if opened is not None:
            raise InconsistentRecord(
                f"metadata record at offset {offset}: Begin inside the transaction begun at {opened.start_offset}"
            )
        return ControllerState(state.image, OpenMetadataTransaction(offset, record.name, state.image))
    if opened is None:
        raise InconsistentRecord(f"metadata record at offset {offset}: {type(record).__name__} without Begin")
    return ControllerState(opened.before if isinstance(record, AbortTransaction) else state.image)


class _Draft:
    """An image that is being changed. Maps are opened for mutation when first touched, once per batch."""

    __slots__ = (
        "_acls", "_base", "_latest", "_open", "_partitions", "_state", "changed", "level", "next_producer_id", "offset",
    )  # fmt: skip

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self.level = base.features.get(METADATA_VERSION, NEWEST)
        self._open: dict[str, MapMutation[Any, Any]] = {}
        self._acls: AclSetMutation | None = None
        self._partitions: dict[UUID, MapMutation[int, PartitionState]] = {}
        self._latest: tuple[UUID, MapMutation[int, PartitionState]] | None = None
        self._state: PartitionState | None = None  # the one set last
        self.changed: tuple[PartitionState, tuple[Any, ...], PartitionState] | None = None  # by the latest change
        self.next_producer_id = base.next_producer_id
        self.offset = base.offset

    def table(self, name: str) -> MapMutation[Any, Any]:
        """One of the image's maps, to change."""
        opened = self._open.get(name)
        if opened is None:
            opened = self._open[name] = getattr(self._base, name).mutate()
        return opened

    def acls(self) -> AclSetMutation:
        """The access control entries, to change."""
        if self._acls is None:
            self._acls = self._base.acls.mutate()
        return self._acls

    def partitions(self, topic_id: UUID) -> MapMutation[int, PartitionState]:
        if self._latest is not None and self._latest[0] is topic_id:
            return self._latest[1]
        opened = self._partitions.get(topic_id)
        if opened is None:
            name = self.topic_name(topic_id)
            opened = self._partitions[topic_id] = self.table("topics")[name].partitions.mutate()
        self._latest = (topic_id, opened)
        return opened

    def set_partition(self, topic_id: UUID, index: int, state: PartitionState) -> None:
        """Neighbours are mostly alike: 100,000 partitions on one broker share one state."""
        if state == self._state:
            state = self._state
        self._state = state
        self.partitions(topic_id)[index] = state

    def topic_name(self, topic_id: UUID) -> str:
        name: str | None = self.table("topic_names").get(topic_id)
        if name is None:
            raise InconsistentRecord(f"no topic has the id {topic_id}")
        return name

    def forget_partitions(self, topic_id: UUID) -> None:
        self._partitions.pop(topic_id, None)
        self._latest = None

    def set_level(self, level: int) -> None:
        """Another metadata.version holds; what a lower one cannot carry is gone."""
        if level < self.level:
            self._base = lowered(self.freeze(), level)
        self.level = level

    def freeze(self) -> MetadataImage:
        for topic_id, partitions in self._partitions.items():
            name = self.topic_name(topic_id)
            topics = self.table("topics")
            topics[name] = TopicImage(name, topic_id, partitions.finish())
        self._partitions.clear()
        self._latest = None
        tables: dict[str, Any] = {name: opened.finish() for name, opened in self._open.items()}
        self._open.clear()
        if self._acls is not None:
            tables["acls"] = self._acls.finish()
            self._acls = None
        self._base = replace(self._base, next_producer_id=self.next_producer_id, offset=self.offset, **tables)
        return self._base


def _register_broker(draft: _Draft, record: RegisterBroker, offset: int) -> None:
    draft.table("brokers")[record.broker_id] = BrokerRegistration(
        broker_id=record.broker_id,
        epoch=record.broker_epoch,
        incarnation_id=record.incarnation_id,
        end_points=record.end_points,
        features=record.features,
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        log_dirs=record.log_dirs,
        cordoned_log_dirs=record.cordoned_log_dirs,
        registered_at=offset,
    )


def _registration(draft: _Draft, broker_id: int, epoch: int) -> BrokerRegistration:
    broker: BrokerRegistration | None = draft.table("brokers").get(broker_id)
    if broker is None:
        raise InconsistentRecord(f"broker {broker_id} is not registered")
    if broker.epoch != epoch:
        raise InconsistentRecord(f"broker {broker_id} is registered with epoch {broker.epoch}, not {epoch}")
    return broker


def _unregister_broker(draft: _Draft, record: UnregisterBroker, offset: int) -> None:
    _registration(draft, record.broker_id, record.broker_epoch)
    del draft.table("brokers")[record.broker_id]


def _change_registration(draft: _Draft, record: BrokerRegistrationChange, offset: int) -> None:
    broker = _registration(draft, record.broker_id, record.broker_epoch)
    draft.table("brokers")[record.broker_id] = replace(
        broker,
        fenced=record.fenced > 0 if record.fenced else broker.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown > 0 or broker.in_controlled_shutdown,
        log_dirs=record.log_dirs or broker.log_dirs,
        cordoned_log_dirs=(broker.cordoned_log_dirs if record.cordoned_log_dirs is None else record.cordoned_log_dirs),
    )


def _add_topic(draft: _Draft, record: Topic, offset: int) -> None:
    topics = draft.table("topics")
    if record.name in topics:
        raise InconsistentRecord(f"topic {record.name} exists with the id {topics[record.name].topic_id}")
    names = draft.table("topic_names")
    if record.topic_id in names:
        raise InconsistentRecord(f"the id {record.topic_id} is that of topic {names[record.topic_id]}")
    topics[record.name] = TopicImage(record.name, record.topic_id)
    names[record.topic_id] = record.name
    if "." in record.name or "_" in record.name:
        collidable = draft.table("collidable")
        key = collision_key(record.name)
        collidable[key] = collidable.get(key, frozenset()) | {record.name}


def _remove_topic(draft: _Draft, record: RemoveTopic, offset: int) -> None:
    name = draft.topic_name(record.topic_id)
    draft.forget_partitions(record.topic_id)
    del draft.table("topics")[name]
    del draft.table("topic_names")[record.topic_id]
    draft.table("configs").pop(ConfigOwner(TOPIC_RESOURCE, name), None)
    collidable = draft.table("collidable")
    key = collision_key(name)
    others = collidable.get(key, frozenset()) - {name}
    if others:
        collidable[key] = others
    else:
        collidable.pop(key, None)


def _add_partition(draft: _Draft, record: Partition, offset: int) -> None:
    state = PartitionState(
        record.replicas,
        record.isr,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        record.directories,
        record.removing_replicas,
        record.adding_replicas,
        record.leader_recovery_state,
        record.eligible_leader_replicas or (),
        record.last_known_elr or (),
    )
    draft.set_partition(record.topic_id, record.partition_id, state)


def _change_partition(draft: _Draft, record: PartitionChange, offset: int) -> None:
    partitions = draft.partitions(record.topic_id)
    old = partitions.get(record.partition_id)
    if old is None:
        raise InconsistentRecord(f"topic {draft.topic_name(record.topic_id)} has no partition {record.partition_id}")
    latest = draft.changed  # what changes one partition mostly changes its neighbours as well
    if latest is not None and old is latest[0] and record[2:] == latest[1]:
        partitions[record.partition_id] = latest[2]
        return
    changed = changed_partition(old, record)
    draft.set_partition(record.topic_id, record.partition_id, changed)
    draft.changed = old, record[2:], changed


def changed_partition(old: PartitionState, record: PartitionChange) -> PartitionState:
    """What the record makes of a partition."""
    elected = record.leader != LEADER_UNCHANGED
    return PartitionState(
        replicas=_given(record.replicas, old.replicas),
        isr=_given(record.isr, old.isr),
        leader=record.leader if elected else old.leader,
        leader_epoch=old.leader_epoch + elected,
        partition_epoch=old.partition_epoch + 1,
        directories=_given(record.directories, old.directories),
        removing_replicas=_given(record.removing_replicas, old.removing_replicas),
        adding_replicas=_given(record.adding_replicas, old.adding_replicas),
        leader_recovery_state=(
            old.leader_recovery_state
            if record.leader_recovery_state == STATE_UNCHANGED
            else record.leader_recovery_state
        ),
        eligible_leader_replicas=_given(record.eligible_leader_replicas, old.eligible_leader_replicas),
        last_known_elr=_given(record.last_known_elr, old.last_known_elr),
    )


def _given(value: V | None, otherwise: V) -> V:
    return otherwise if value is None else value


def _set_config(draft: _Draft, record: Config, offset: int) -> None:
    configs = draft.table("configs")
    resource = ConfigOwner(record.resource_type, record.resource_name)
    values: Map[str, str] = configs.get(resource, Map())
    if record.value is not None:
        values = values.set(record.name, record.value)
    elif record.name in values:
        values = values.delete(record.name)
    if values:
        configs[resource] = values
    else:
        configs.pop(resource, None)


def _set_feature(draft: _Draft, record: FeatureLevel, offset: int) -> None:
    if record.name == METADATA_VERSION:
        draft.set_level(record.feature_level or NEWEST)
    if record.feature_level:
        draft.table("features")[record.name] = record.feature_level
    else:
        draft.table("features").pop(record.name, None)


def _set_producer_ids(draft: _Draft, record: ProducerIds, offset: int) -> None:
    if record.next_producer_id <= draft.next_producer_id:
        raise InconsistentRecord(
            f"producer ids below {draft.next_producer_id} are given away, and blocks never overlap"
        )
    draft.next_producer_id = record.next_producer_id


def _clear_elr(draft: _Draft, record: ClearElr, offset: int) -> None:
    topics = draft.freeze().topics  # what is open for change cannot be walked through
    if record.topic_name and record.topic_name not in topics:
        raise InconsistentRecord(f"there is no topic {record.topic_name}")
    for topic in [topics[record.topic_name]] if record.topic_name else topics.values():
        for index, old in topic.partitions.items():
            if old.eligible_leader_replicas or old.last_known_elr:
                draft.partitions(topic.topic_id)[index] = old._replace(
                    eligible_leader_replicas=(), last_known_elr=(), partition_epoch=old.partition_epoch + 1
                )


def _add_acl(draft: _Draft, record: AccessControlEntry, offset: int) -> None:
    draft.acls().add(record)


def _remove_acl(draft: _Draft, record: RemoveAccessControlEntry, offset: int) -> None:
    draft.acls().discard(record.id)


def _set_credential(draft: _Draft, record: UserScramCredential, offset: int) -> None:
    draft.table("scram")[ScramKey(record.name, record.mechanism)] = record


def _remove_credential(draft: _Draft, record: RemoveUserScramCredential, offset: int) -> None:
    draft.table("scram").pop(ScramKey(record.name, record.mechanism), None)


def _set_quota(draft: _Draft, record: ClientQuota, offset: int) -> None:
    owner, table = frozenset(record.entity), draft.table("quotas")
    values: Map[str, float] = table.get(owner, Map())
    if not record.remove:
        values = values.set(record.key, record.value)
    elif record.key in values:
        values = values.delete(record.key)
    if values:
        table[owner] = values
    else:
        table.pop(owner, None)


def _keep(draft: _Draft, record: Any, offset: int) -> None:
    if takes_away(record):
        draft.table("kept").pop(kept_key(record), None)
    else:
        draft.table("kept")[kept_key(record)] = record


def _nothing(draft: _Draft, record: NoOp, offset: int) -> None:
    """A NoOp only moves the offset."""


_APPLY: dict[type, Callable[[_Draft, Any, int], None]] = {
    RegisterBroker: _register_broker,
    UnregisterBroker: _unregister_broker,
    BrokerRegistrationChange: _change_registration,
    Topic: _add_topic,
    RemoveTopic: _remove_topic,
    Partition: _add_partition,
    PartitionChange: _change_partition,
    Config: _set_config,
    FeatureLevel: _set_feature,
    ProducerIds: _set_producer_ids,
    NoOp: _nothing,
    ClearElr: _clear_elr,
    AccessControlEntry: _add_acl,
    RemoveAccessControlEntry: _remove_acl,
    UserScramCredential: _set_credential,
    RemoveUserScramCredential: _remove_credential,
    ClientQuota: _set_quota,
    **dict.fromkeys((cls for _, cls, _ in KEPT), _keep),
}
