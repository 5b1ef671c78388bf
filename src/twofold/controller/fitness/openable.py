"""Whether a node may serve what its metadata says: asked once, when a directory is opened, before anything is written.

The directory may come from Apache Kafka. What is kept without effect is named in the log; what cannot be is refused:

1. features above the levels that this software knows: their records may mean something else;
2. access control entries without an authorizer: serving without it would allow every client what they forbid; and an
   authorizer that allows no principal anything, because nothing but a stopped folder could change that;
3. other brokers, and partitions that are not, or not only, in this directory: others have newer records, or there are
   none here;
4. topics with remote storage: their older records are where nothing here can read them.
"""

from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from twofold.config.authorization import CLASS_NAME, SUPER_USERS, AuthorizerSettings
from twofold.config.definition import ConfigError
from twofold.config.keys import refusal_while_running
from twofold.config.keys.missing import STANDARD_AUTHORIZER, MissingPart
from twofold.controller.features import KEPT_FEATURES, SUPPORTED_FEATURES
from twofold.controller.image import BROKER_RESOURCE, METADATA_VERSION, TOPIC_RESOURCE, MetadataImage, PartitionState
from twofold.controller.kept_records import TOKEN
from twofold.log.recovery.checkpoints import encode_uuid

REMOTE_STORAGE = "remote.storage.enable"
RESERVED_DIRECTORIES = 100  # ids below it name no directory: unassigned, lost, migrating

_NO_EFFECT = {
    TOKEN: "delegation tokens: no client can log in by them here",
}


def first_problem(
    image: MetadataImage, *, node_id: int, directory_id: UUID, authorizer: AuthorizerSettings | None = None
) -> str | None:
    """What keeps this node from serving the image: what was found, and what to do."""
    return next(_problems(image, node_id, directory_id, authorizer), None)


def _problems(
    image: MetadataImage, node_id: int, directory_id: UUID, authorizer: AuthorizerSettings | None
) -> Iterator[str]:
    yield from _features(image)
    yield from _authorization(image, authorizer)
    yield from _placement(image, node_id, directory_id)
    for resource, configs in sorted(image.configs.items()):
        if resource.type == TOPIC_RESOURCE and configs.get(REMOTE_STORAGE, "false").lower() == "true":
            yield (
                f"topic {resource.name} has {REMOTE_STORAGE}=true, and Twofold cannot read remote storage: in Apache "
                f"Kafka, set it to false with remote.log.delete.on.disable=true, or remove the topic"
            )


def _features(image: MetadataImage) -> Iterator[str]:
    ranges = {feature.name: (feature.min_version, feature.max_version) for feature in SUPPORTED_FEATURES}
    ranges |= {name: (0, level) for name, level in KEPT_FEATURES.items()}
    for name, level in sorted(image.features.items()):
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high:
            known = f"from {low} to {high}" if high else "at no level"
            advice = (
                "upgrade it with kafka-features.sh upgrade first"
                if name == METADATA_VERSION and level < low
                else "downgrade it with kafka-features.sh downgrade first, or use a newer Twofold"
            )
            yield f"the feature {name} is finalized at {level}, and Twofold knows it {known}: {advice}"


def _authorization(image: MetadataImage, authorizer: AuthorizerSettings | None) -> Iterator[str]:
    if authorizer is None:
        if image.acls:
            yield (
                f"it holds {len(image.acls)} access control entries, and no authorizer is set that obeys them: set "
                f"{CLASS_NAME}={STANDARD_AUTHORIZER}, or remove the entries with `twofold acl remove --data`"
            )
    elif not (authorizer.super_users or authorizer.allow_everyone or image.acls):
        yield (
            f"{CLASS_NAME} is set, and no principal could do anything: there is neither a super user nor an access "
            f"control entry. Set {SUPER_USERS}=User:NAME, or add an entry with `twofold acl add --data`"
        )


def _placement(image: MetadataImage, node_id: int, directory_id: UUID) -> Iterator[str]:
    for broker_id, broker in sorted(image.brokers.items()):
        if broker_id != node_id and not broker.fenced:
            yield (
                f"broker {broker_id} is registered and was not stopped, and Twofold runs node {node_id} alone: stop it "
                "while Apache Kafka's controller runs, or take it out with kafka-cluster.sh unregister"
            )
            return
    for topic in image.topics_in_order():
        fine: PartitionState | None = None  # neighbours mostly share their state
        for index, partition in topic.in_order():
            if partition is fine:
                continue
            if partition.replicas != (node_id,):
                replicas = ", ".join(map(str, partition.replicas))
                yield (
                    f"partition {topic.name}-{index} has the replicas {replicas}, and Twofold runs node {node_id} "
                    f"alone: move all partitions to node {node_id} with kafka-reassign-partitions.sh first"
                )
                return
            elsewhere = [
                one for one in partition.directories if one.int >= RESERVED_DIRECTORIES and one != directory_id
            ]
            if elsewhere:
                yield (
                    f"partition {topic.name}-{index} is in the log directory {encode_uuid(elsewhere[0])}, this one is "
                    f"{encode_uuid(directory_id)}, and Twofold uses one: move all partitions into one of log.dirs with "
                    "kafka-reassign-partitions.sh first"
                )
                return
            fine = partition


def without_effect(image: MetadataImage) -> list[str]:
    """What is kept and changes nothing, for the log."""
    found = Counter(kind for kind, _ in image.kept if kind in _NO_EFFECT)
    kept = [f"{count} {_NO_EFFECT[kind]}" for kind, count in sorted(found.items())]
    for resource, configs in sorted(image.configs.items()):
        for name, text in sorted(configs.items()) if resource.type == BROKER_RESOURCE else ():
            missing = _relied_on(name, text)
            if missing is not None:
                owner = f"broker {resource.name}" if resource.name else "all brokers"
                kept.append(f"the setting {name} of {owner}: Twofold has no {missing.what} yet")
    return kept


def _relied_on(name: str, text: str) -> MissingPart | None:
    try:
        return refusal_while_running(name, text)
    except ConfigError:
        return None  # of a version that knew more
