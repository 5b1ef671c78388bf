"""What the committed metadata log says, worked out by somebody who does not know how a controller applies transactions.

The records of a transaction are laid aside when they are committed. They count, all at once, when its End is, and not
at all after its Abort. Whatever a controller, a standby or a reader shows must be one of the images that this gives.

Checked at every commit:

1. One transaction at a time, and End or Abort only inside of one.
2. Inside a transaction are the records of its own request and no others.
3. No id of a producer is given away twice.

Checked of every image that anybody publishes (`Reader`):

4. Its offset lies inside no transaction, it is committed, and it never goes back.
5. It is the image of the log at this offset.
6. The delta, applied to the image before, gives it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sim.broker.watch import Violation, require
from twofold.controller.delta import ImageDelta
from twofold.controller.image import MetadataImage
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    BrokerRegistrationChange,
    Config,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
    Partition,
    PartitionChange,
    ProducerIds,
    RegisterBroker,
    RemoveTopic,
    Topic,
)
from twofold.controller.replay import ControllerState, MetadataMachine
from twofold.machine.maps import Map

Entry = tuple[int, MetadataRecord]
Fact = tuple[Any, ...]

FAILOVER = "Controller failover"

# What a transaction of this name may hold.
_OWN: dict[str | None, tuple[type, ...]] = {
    "Bootstrap records": (FeatureLevel, Config),
    "CreateTopics": (Topic, Config, Partition),
    "CreatePartitions": (Partition,),
    "DeleteTopics": (RemoveTopic,),
    "IncrementalAlterConfigs": (Config,),
    "BrokerRegistration": (PartitionChange, RegisterBroker),
    "BrokerHeartbeat": (PartitionChange, BrokerRegistrationChange),
}


class Transaction(NamedTuple):
    name: str | None
    start_offset: int
    end_offset: int
    reason: str | None = None
    """Why it was aborted; None where it was not."""


class Truth:
    def __init__(self) -> None:
        self.end = 0
        """The offset after the last that is committed."""
        self.images: list[MetadataImage] = [MetadataImage()]
        """All that may ever be seen, in order."""
        self.values: dict[int, MetadataRecord] = {}
        """Every committed record by its offset."""
        self.facts: set[Fact] = set()
        """What was ever true for everybody."""
        self.transactions: list[Transaction] = []
        self.opened: tuple[int, str | None] | None = None
        self.on_image: Callable[[MetadataImage, MetadataImage], None] = lambda old, new: None
        self._offsets = [-1]
        self._aside: list[Entry] = []
        self._since: list[Entry] = []
        self._machine = MetadataMachine()

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    def index_at(self, offset: int) -> int:
        """Which of the images stands for everything up to this offset."""
        return bisect_right(self._offsets, offset) - 1

    def transaction_around(self, offset: int) -> int | None:
        """The start of the transaction that an image at this offset would lie inside of."""
        if self.opened is not None and self.opened[0] <= offset:
            return self.opened[0]
        found = (one.start_offset for one in reversed(self.transactions) if one.start_offset <= offset < one.end_offset)
        return next(found, None)

    def commit(self, entries: Sequence[Entry], end: int) -> None:
        """A batch whose last offset is `end` - 1; one without entries is a change of the leader."""
        require(end > self.end, f"offsets below {self.end} are committed, and {end - 1} is committed after them")
        for offset, record in entries:
            self.values[offset] = record
            self._take(offset, record)
        self.end = end
        if self.opened is None:
            self._show()

    def _take(self, offset: int, record: MetadataRecord) -> None:
        if isinstance(record, BeginTransaction):
            require(self.opened is None, f"Begin at {offset} inside the transaction begun at {self.opened}")
            self._show()
            self.opened = offset, record.name
        elif isinstance(record, EndTransaction | AbortTransaction):
            if self.opened is None:
                raise Violation(f"{record} at offset {offset} ends no transaction")
            start, name = self.opened
            reason = (record.reason or "") if isinstance(record, AbortTransaction) else None
            self.transactions.append(Transaction(name, start, offset, reason))
            if isinstance(record, EndTransaction):
                self._check_foreign(name)
                self._since += self._aside
            self._aside, self.opened = [], None
            self._show(offset)
        elif self.opened is not None:
            self._aside.append((offset, record))
            self._check_own(offset, record)
        else:
            self._since.append((offset, record))

    def _check_own(self, offset: int, record: MetadataRecord) -> None:
        assert self.opened is not None
        start, name = self.opened
        require(
            isinstance(record, _OWN.get(name, (object,))),
            f"foreign record inside a transaction: {type(record).__name__} at {offset} in {name}, begun at {start}",
        )

    def _check_foreign(self, name: str | None) -> None:
        """The topics of one CreateTopics are named after it."""
        topics = [record.name for _, record in self._aside if isinstance(record, Topic)]
        requests = {name.partition("-")[0] for name in topics}
        require(len(requests) <= 1, f"foreign records inside a transaction: {name} creates {topics}")

    def _show(self, offset: int | None = None) -> None:
        if not self._since and offset is None:
            return
        old = self.image
        entries, self._since = self._since, []
        image = self._machine.apply_all(ControllerState(old), entries).image if entries else old
        image = replace(image, offset=entries[-1][0] if offset is None else offset)
        for at, record in entries:
            self._note(at, record, old)
        self.images.append(image)
        self._offsets.append(image.offset)
        for name, topic in image.topics.items():
            if topic is not old.topics.get(name):
                self.facts.add(("size", name, len(topic.partitions)))
        self.on_image(old, image)

    def _note(self, offset: int, record: MetadataRecord, before: MetadataImage) -> None:
        facts = self.facts
        if isinstance(record, Topic):
            facts |= {("topic", record.name), ("topic", record.name, record.topic_id)}
        elif isinstance(record, Partition):
            facts.add(("partition", record.topic_id, record.partition_id))
        elif isinstance(record, RemoveTopic):
            facts.add(("removed", record.topic_id))
        elif isinstance(record, Config):
            facts.add(("config", record.resource_name, record.name, record.value))
        elif isinstance(record, RegisterBroker):
            facts |= {("broker", record.broker_id), ("broker", record.broker_id, record.broker_epoch)}
        elif isinstance(record, ProducerIds):
            require(
                record.next_producer_id > before.next_producer_id,
                f"producer ids up to {before.next_producer_id} are given away, and up to {record.next_producer_id} at "
                f"offset {offset}",
            )
            facts.add(("ids", record.next_producer_id))


class Reader:
    """Somebody who is told of images. What is wrong with one is kept, for those who publish do not want to hear it."""

    def __init__(self, truth: Truth, who: str, violations: list[Violation]) -> None:
        self.image = MetadataImage()
        self.published = 0
        self._truth = truth
        self._who = who
        self._violations = violations

    def __call__(self, delta: ImageDelta, image: MetadataImage) -> None:
        try:
            self._check(delta, image)
        except Violation as violation:
            self._violations.append(violation)
        self.image = image
        self.published += 1

    def _check(self, delta: ImageDelta, image: MetadataImage) -> None:
        check_image(self._truth, image, f"{self._who} publishes")
        require(
            image.offset >= self.image.offset,
            f"{self._who} publishes offset {image.offset} after {self.image.offset}",
        )
        applied = delta.apply(self.image)
        require(applied == image, f"{self._who}: the delta at {image.offset} {difference(applied, image)}")


def check_image(truth: Truth, image: MetadataImage, who: str) -> None:
    """An image that somebody can see is one of those that may be seen."""
    offset = image.offset
    require(offset < truth.end, f"{who} offset {offset}, and only what is below {truth.end} is committed")
    start = truth.transaction_around(offset)
    require(start is None, f"{who} offset {offset}, which lies inside the transaction begun at {start}")
    expected = truth.images[truth.index_at(offset)]
    require(same(image, expected), f"{who} an image at {offset} that {difference(expected, image)}")


def same(one: MetadataImage, other: MetadataImage) -> bool:
    return difference(one, other) == ""


def difference(expected: MetadataImage, found: MetadataImage) -> str:
    """But for the offset, and for where brokers registered, which a snapshot does not know."""
    names = [
        name
        for name in ("topics", "topic_names", "collidable", "configs", "features", "kept", "next_producer_id")
        if getattr(expected, name) != getattr(found, name)
    ]
    if expected.brokers != found.brokers and _timeless(expected) != _timeless(found):
        names.append("brokers")
    texts = [f"has {name} {_shown(getattr(found, name))}, not {_shown(getattr(expected, name))}" for name in names]
    return "; ".join(texts)


def _timeless(image: MetadataImage) -> dict[int, Any]:
    return {broker_id: replace(broker, registered_at=0) for broker_id, broker in image.brokers.items()}


def _shown(value: object) -> str:
    if isinstance(value, Map):
        rows = sorted((f"{key}: {len(getattr(item, 'partitions', ()))}p" for key, item in value.items()), key=str)
        return "{" + ", ".join(rows) + "}"
    return str(value)


def flat(entries: Iterable[Entry]) -> list[str]:
    """The kinds of the records, for a trace."""
    return [type(record).__name__ for _, record in entries]
