"""What clients and brokers ask of a controller, and what they must be able to count on when they are answered.

1. Whoever is told that something was done finds it in what is committed and visible to all, at that moment already.
2. Whoever is told that something is there, or is not, is told what is or was so in an image that others see.
3. Whoever hears of an error of the whole request hears of one after which to try again.
4. A step from one image to the next has all of a request or nothing of it: topics, partitions, deletions and
   configurations that were asked for together, and who leads the partitions of a broker that comes or goes.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from sim.broker.watch import require
from sim.metadata.log import CLUSTER_ID
from sim.metadata.truth import Truth
from twofold.controller.features import SUPPORTED_FEATURES
from twofold.controller.image import TOPIC_RESOURCE, ConfigOwner, MetadataImage
from twofold.quorum.quorum_controller import QuorumController
from twofold.wire.errors import KafkaError
from twofold.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from twofold.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from twofold.wire.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from twofold.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from twofold.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from twofold.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

NONE, UNKNOWN_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_FACTOR = 0, 3, 36, 37, 38
STALE_EPOCH, DUPLICATE_BROKER, NOT_REGISTERED = 77, 101, 102
TRY_AGAIN = (41, 56)
"""No controller, and a disk that failed."""
CONFIG = "retention.ms"


class Ask(NamedTuple):
    """A request, how it is made, and what may be said in answer to it."""

    text: str
    call: Callable[[QuorumController], Awaitable[Any]]
    judge: Callable[[Any, "Moment"], None]


class Moment(NamedTuple):
    """Where the committed log was when the one who answers last showed something before it was asked, and where now."""

    truth: Truth
    first: int
    """Which of the images."""

    def ever(self, *fact: object) -> bool:
        return fact in self.truth.facts

    def was_without(self, name: str) -> bool:
        return any(name not in image.topics for image in self.truth.images[self.first :])


@dataclass
class Shelf:
    """All that was ever asked for, and what was told of it."""

    truth: Truth
    topics: dict[str, int] = field(default_factory=dict)
    """Name to the number of partitions that it begins with. They are named after their request."""
    deletions: list[frozenset[str]] = field(default_factory=list)
    growths: list[dict[str, int]] = field(default_factory=list)
    settings: dict[str, frozenset[str]] = field(default_factory=dict)
    """A value, which is used once, to the topics that get it."""
    confirmed: set[str] = field(default_factory=set)
    """Topics that somebody was told of."""
    blocks: dict[int, str] = field(default_factory=dict)
    """Starts of blocks of producer ids, and who has them."""
    registered: dict[int, int] = field(default_factory=dict)
    """Broker to the newest epoch that it was told."""
    numbers: int = 0

    def __post_init__(self) -> None:
        self.truth.on_image = self.check_step

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    # -- requests

    def create(self, sizes: Sequence[int], *, configs: int = 0) -> Ask:
        request = self.number()
        names = {f"r{request}-{at}": size for at, size in enumerate(sizes)}
        self.topics |= names
        pairs = (("retention.ms", "600000"), ("cleanup.policy", "compact"), ("segment.ms", "600000"))[:configs]
        rows = tuple(
            CreatableTopic(
                name=name,
                num_partitions=size,
                replication_factor=1,
                assignments=(),
                configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in pairs),
            )
            for name, size in names.items()
        )

        def judge(response: Any, moment: Moment) -> None:
            for row in response.topics:
                if row.error_code == NONE:
                    self.confirmed.add(row.name)
                    require(moment.ever("topic", row.name, row.topic_id), f"{row.name} was created, and is not there")
                    missing = [
                        index for index in range(names[row.name]) if not moment.ever("partition", row.topic_id, index)
                    ]
                    require(not missing, f"{row.name} was created, and its partitions {missing} are not there")
                else:
                    require(row.error_code in (TOPIC_EXISTS, INVALID_FACTOR), f"create {row.name}: {row.error_message}")
                    require(
                        row.error_code != TOPIC_EXISTS or moment.ever("topic", row.name),
                        f"{row.name} was said to exist, and nobody has ever seen it",
                    )

        return Ask(
            f"create {names}", lambda controller: controller.create_topics(CreateTopicsRequest(topics=rows)), judge
        )

    def grow(self, counts: dict[str, int]) -> Ask:
        self.growths.append(counts)
        rows = tuple(CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in counts.items())
        request = CreatePartitionsRequest(topics=rows, timeout_ms=1000, validate_only=False)

        def judge(response: Any, moment: Moment) -> None:
            for row in response.results:
                count, code = counts[row.name], row.error_code
                if code == NONE:
                    require(
                        moment.ever("size", row.name, count), f"{row.name} was grown to {count}, and nobody sees it"
                    )
                elif code == INVALID_PARTITIONS:
                    sizes = [size for size in range(count, count + 100) if moment.ever("size", row.name, size)]
                    require(sizes, f"{row.name} was said to have {count} partitions, and nobody has ever seen them")
                elif code == UNKNOWN_TOPIC:
                    require(moment.was_without(row.name), f"grow: {row.name} was said not to exist, and does")
                else:
                    require(code == INVALID_FACTOR, f"grow {row.name}: {row.error_code} {row.error_message}")

        return Ask(f"grow {counts}", lambda controller: controller.create_partitions(request), judge)

    def delete(self, names: Sequence[str]) -> Ask:
        self.deletions.append(frozenset(names))
        rows = tuple(DeleteTopicState(name=name, topic_id=None) for name in names)
        request = DeleteTopicsRequest(topics=rows, timeout_ms=1000)

        def judge(response: Any, moment: Moment) -> None:
            for row in response.responses:
                if row.error_code == NONE:
                    require(moment.ever("removed", row.topic_id), f"{row.name} was deleted, and is still there")
                else:
                    require(row.error_code == UNKNOWN_TOPIC, f"delete {row.name}: {row.error_message}")
                    require(moment.was_without(row.name), f"delete: {row.name} was said not to exist, and does")

        return Ask(f"delete {list(names)}", lambda controller: controller.delete_topics(request), judge)

    def alter(self, names: Sequence[str]) -> Ask:
        value = str(1_000_000 + self.number())
        self.settings[value] = frozenset(names)
        change = (AlterableConfig(name=CONFIG, config_operation=0, value=value),)
        rows = tuple(AlterConfigsResource(resource_type=2, resource_name=name, configs=change) for name in names)
        request = IncrementalAlterConfigsRequest(resources=rows, validate_only=False)

        def judge(response: Any, moment: Moment) -> None:
            for row in response.responses:
                name = row.resource_name
                if row.error_code == NONE:
                    require(moment.ever("config", name, CONFIG, value), f"{name} got {CONFIG}={value}, and has it not")
                else:
                    require(row.error_code == UNKNOWN_TOPIC, f"alter {name}: {row.error_message}")
                    require(moment.was_without(name), f"alter: {name} was said not to exist, and does")

        return Ask(
            f"alter {list(names)} to {value}", lambda controller: controller.incremental_alter_configs(request), judge
        )

    def register(self, broker_id: int, incarnation: int) -> Ask:
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=UUID(int=incarnation),
            listeners=(Listener(name="PLAINTEXT", host="localhost", port=9092, security_protocol=0),),
            features=tuple(
                Feature(name=f.name, min_supported_version=f.min_version, max_supported_version=f.max_version)
                for f in SUPPORTED_FEATURES
            ),
            rack=None,
            log_dirs=(UUID(int=broker_id << 64),),
        )

        def judge(response: Any, moment: Moment) -> None:
            if response.error_code == NONE:
                self.registered[broker_id] = response.broker_epoch
                require(
                    moment.ever("broker", broker_id, response.broker_epoch),
                    f"broker {broker_id} was registered with epoch {response.broker_epoch}, and is not",
                )
            else:
                codes = (*TRY_AGAIN, DUPLICATE_BROKER)
                require(response.error_code in codes, f"register {broker_id}: {response}")

        return Ask(
            f"register {broker_id} as {incarnation}", lambda controller: controller.register_broker(request), judge
        )

    def beat(self, broker_id: int, epoch: int, offset: int, *, leaves: bool = False) -> Ask:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=epoch,
            current_metadata_offset=offset,
            want_fence=False,
            want_shut_down=leaves,
        )

        def judge(response: Any, moment: Moment) -> None:
            codes = (NONE, *TRY_AGAIN, STALE_EPOCH, NOT_REGISTERED)
            require(response.error_code in codes, f"heartbeat of {broker_id}: {response}")

        return Ask(f"heartbeat {broker_id}/{epoch}", lambda controller: controller.heartbeat(request), judge)

    def ids(self, broker_id: int, epoch: int, who: str) -> Ask:
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)

        def judge(response: Any, moment: Moment) -> None:
            if response.error_code != NONE:
                codes = (*TRY_AGAIN, STALE_EPOCH, NOT_REGISTERED)
                require(response.error_code in codes, f"producer ids of {broker_id}: {response}")
                return
            start = response.producer_id_start
            require(
                moment.ever("ids", start + response.producer_id_len), f"the producer ids from {start} are not given"
            )
            require(start not in self.blocks, f"{who} and {self.blocks.get(start)} have the producer ids from {start}")
            self.blocks[start] = who

        return Ask(f"producer ids for {broker_id}", lambda controller: controller.allocate_producer_ids(request), judge)

    # -- whole or not at all

    def check_step(self, old: MetadataImage, new: MetadataImage) -> None:
        """From one image that may be seen to the next."""
        came = {name for name, topic in new.topics.items() if name not in old.topics}
        if came:
            self._check_created(came, old, new)
        gone = {name for name in old.topics if name not in new.topics}
        if gone:
            wanted = [names & set(old.topics) for names in self.deletions]
            require(gone in wanted, f"deleted were {sorted(gone)}, and nobody asked for just that")
        grown = {
            name: len(new.topics[name].partitions)
            for name, topic in old.topics.items()
            if name in new.topics and len(new.topics[name].partitions) != len(topic.partitions)
        }
        if grown:
            asked = [
                {name: count for name, count in counts.items() if name in old.topics and count > _size(old, name)}
                for counts in self.growths
            ]
            require(grown in asked, f"{grown} is the number of partitions now, and nobody asked for just that")
        self._check_altered(old, new)
        _check_leaders(new)

    def _check_created(self, came: set[str], old: MetadataImage, new: MetadataImage) -> None:
        requests = {name.partition("-")[0] for name in came}
        together = {name for name in self.topics if name.partition("-")[0] in requests and name not in old.topics}
        require(came == together, f"created were {sorted(came)}, asked for were {sorted(together)}")
        sizes = {name: _size(new, name) for name in came}
        wanted = {name: self.topics[name] for name in came}
        require(sizes == wanted, f"created with partitions {sizes}, asked for were {wanted}")

    def _check_altered(self, old: MetadataImage, new: MetadataImage) -> None:
        if new.configs is old.configs:
            return
        values = {
            value
            for resource, configs in new.configs.items()
            if configs is not old.configs.get(resource) and (value := configs.get(CONFIG)) in self.settings
        }
        for value in values:
            having = {name for name in self.settings[value] if _config(new, name) == value}
            if having != {name for name in self.settings[value] if _config(old, name) == value}:
                wanted = {name for name in self.settings[value] if name in old.topics}
                require(having == wanted, f"{sorted(having)} have {CONFIG}={value}, asked for were {sorted(wanted)}")

    def check_last(self, image: MetadataImage) -> None:
        """Who was told of a topic still finds it, unless somebody wanted it deleted."""
        unwanted = {name for names in self.deletions for name in names}
        missing = [name for name in sorted(self.confirmed - unwanted) if name not in image.topics]
        require(not missing, f"{missing} were created, nobody deleted them, and they are gone")


def _size(image: MetadataImage, name: str) -> int:
    return len(image.topics[name].partitions)


def _config(image: MetadataImage, name: str) -> str | None:
    configs = image.configs.get(ConfigOwner(TOPIC_RESOURCE, name))
    return None if configs is None else configs.get(CONFIG)


def _check_leaders(image: MetadataImage) -> None:
    """Who is fenced leads nothing, and nothing waits for a leader that is there."""
    active = {broker_id for broker_id, broker in image.brokers.items() if broker.is_active}
    for topic in image.topics.values():
        for index, partition in topic.partitions.items():
            if partition.has_leader:
                require(
                    partition.leader in active, f"{topic.name}-{index} is led by {partition.leader}, which is fenced"
                )
            else:
                require(
                    not active & set(partition.isr),
                    f"{topic.name}-{index} has no leader, although of {partition.isr} some are there",
                )


def check_error(ask: Ask, error: KafkaError) -> None:
    require(error.retriable, f"{ask.text}: {type(error).__name__} is not to be tried again after: {error.message}")


def random_ask(shelf: Shelf, random: Random, largest: int) -> Ask:
    """Something an administrator may want, now."""
    names = list(shelf.topics)
    kind = random.choices(("create", "grow", "delete", "alter"), (5, 2, 2, 3))[0]
    if kind == "create" or not names:
        sizes = [random.randint(1, largest) for _ in range(random.choice((1, 1, 2, 4)))]
        return shelf.create(sizes, configs=random.choice((0, 0, 2)))
    recent = names[-12:] if random.random() < 0.8 else names
    some = random.sample(recent, min(len(recent), random.choice((1, 2, 5))))
    if kind == "grow":
        image = shelf.truth.image
        return shelf.grow(
            {
                name: (_size(image, name) if name in image.topics else shelf.topics[name]) + random.randint(1, largest)
                for name in some[:2]
            }
        )
    return shelf.delete(some) if kind == "delete" else shelf.alter(some)
