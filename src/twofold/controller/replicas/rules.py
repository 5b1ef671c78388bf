"""What holds for the partitions of a topic while they are changed, taken from one image."""

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from twofold.controller.context import Context
from twofold.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION, metadata_version
from twofold.controller.image import BrokerRegistration, MetadataImage, PartitionState, TopicImage

MIGRATING_DIRECTORY = UUID(int=0)  # a replica that was somewhere before there were directories
UNASSIGNED_DIRECTORY = UUID(int=1)
LOST_DIRECTORY = UUID(int=2)

Accepts = Callable[[int], bool]


class TopicRules(NamedTuple):
    """What holds for every partition of a topic."""

    level: int  # metadata.version
    eligible_leaders: bool  # whether eligible leader replicas (KIP-966) are kept
    min_isr: int  # effective: no more than there are replicas
    allows_unclean: bool
    default_directory: Callable[[int], UUID]  # of a replica that is new on a broker


class ClusterRules:
    """Of all topics. Of one image; an operation makes its own."""

    def __init__(self, image: MetadataImage, context: Context) -> None:
        self._image = image
        self._settings = context.settings_at(image)
        self._level = metadata_version(image)
        self._eligible = image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0

    @property
    def keeps_eligible_leaders(self) -> bool:
        return self._eligible

    def of(self, topic: TopicImage) -> TopicRules:
        configs = self._image.topic_configs(topic.name)
        minimum = configs.get("min.insync.replicas")
        unclean = configs.get("unclean.leader.election.enable")
        wanted = self._settings.int("min.insync.replicas") if minimum is None else int(minimum)
        allowed = (
            self._settings.bool("unclean.leader.election.enable") if unclean is None else unclean.lower() == "true"
        )
        replicas = len(topic.partitions[0].replicas)
        return TopicRules(self._level, self._eligible, min(wanted, replicas), allowed, self._default_directory)

    def _default_directory(self, broker_id: int) -> UUID:
        return default_directory(self._image.broker(broker_id))

    def accepts(self, partition: PartitionState, *, without: int | None = None, also: int | None = None) -> Accepts:
        """Which brokers may lead a partition: those that are active and have the directory of their replica.

        `without` is leaving, and `also` is just being unfenced: both are not in the image yet.
        """
        directories = dict(zip(partition.replicas, partition.directories, strict=False))

        def accepted(broker_id: int) -> bool:
            broker = self._image.broker(broker_id)
            if broker is None or broker_id == without or not (broker.is_active or broker_id == also):
                return False
            return is_online(directories.get(broker_id, UNASSIGNED_DIRECTORY), broker)

        return accepted


def default_directory(broker: BrokerRegistration | None) -> UUID:
    """Where a new replica on a broker is, as far as the controller can say."""
    if broker is None:
        return UNASSIGNED_DIRECTORY
    if not broker.log_dirs:
        return MIGRATING_DIRECTORY
    return broker.log_dirs[0] if len(broker.log_dirs) == 1 else UNASSIGNED_DIRECTORY


def is_online(directory: UUID, broker: BrokerRegistration) -> bool:
    """Whether the broker can have a replica that is said to be in this directory."""
    if directory in (MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY):
        return True
    return directory != LOST_DIRECTORY and (not broker.log_dirs or directory in broker.log_dirs)
