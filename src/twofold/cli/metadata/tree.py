"""The image as a tree of folders and files, in the layout of Apache Kafka's metadata shell.

Nothing is made before it is looked at: naming a topic costs the same whether it has 10 or 100,000 partitions.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias
from uuid import UUID

from twofold.cli.log.decoders import without_secrets
from twofold.cli.log.values import plain
from twofold.cli.metadata.image import Loaded
from twofold.controller.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    METADATA_VERSION,
    TOPIC_RESOURCE,
    ConfigOwner,
    MetadataImage,
    TopicImage,
)
from twofold.controller.kept_records import TOKEN
from twofold.controller.levels import describe
from twofold.controller.quota_records import QuotaEntity, QuotaOwner
from twofold.log.recovery.checkpoints import decode_uuid, encode_uuid
from twofold.version import VERSION

MOST_BYTES = 200
_RESOURCES = {
    TOPIC_RESOURCE: "TOPIC",
    BROKER_RESOURCE: "BROKER",
    CLIENT_METRICS_RESOURCE: "CLIENT_METRICS",
    GROUP_RESOURCE: "GROUP",
}
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_ENTITIES = {"client-id": "clientId", "ip": "ip", "user": "user"}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_GLOB = re.compile(r"[*?\[{]")


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A value: a number, a text, or fields."""

    value: Any


@dataclass(frozen=True, slots=True)
class Folder:
    """Names in order, and what is behind each of them."""

    names: Callable[[], Iterable[str]]
    child: Callable[[str], "Node | None"]


Node: TypeAlias = TreeFile | Folder
Thunk: TypeAlias = Callable[[], Node]


def _fixed(children: Mapping[str, Thunk]) -> Folder:
    def child(name: str) -> Node | None:
        thunk = children.get(name)
        return None if thunk is None else thunk()

    return Folder(lambda: sorted(children), child)


def _values(values: Mapping[str, Any]) -> Folder:
    return Folder(lambda: sorted(values), lambda name: TreeFile(values[name]) if name in values else None)


def root(loaded: Loaded) -> Folder:
    return _fixed({"image": lambda: _image(loaded), "local": lambda: _local(loaded)})


def _image(loaded: Loaded) -> Folder:
    image = loaded.image
    kept = _Kept(image)
    return _fixed(
        {
            "acls": lambda: _fixed({"byId": lambda: _values(kept.acls)}),
            "clientQuotas": lambda: _folders(kept.quotas),
            "cluster": lambda: _fixed({"brokers": lambda: _brokers(image)}),
            "configs": lambda: _configs(image),
            "delegationToken": lambda: _values(kept.tokens),
            "features": lambda: _features(image),
            "producerIds": lambda: _values({"nextProducerId": image.next_producer_id}),
            "provenance": lambda: TreeFile(
                {"offset": image.offset, "epoch": loaded.epoch, "timestamp": loaded.timestamp_ms}
            ),
            "scram": lambda: _folders(kept.credentials),
            "topics": lambda: _fixed({"byId": lambda: _topics_by_id(image), "byName": lambda: _topics(image)}),
        }
    )


def _local(loaded: Loaded) -> Folder:
    children: dict[str, Any] = {"source": str(loaded.source), "version": VERSION}
    if loaded.snapshot is not None:
        children["snapshot"] = loaded.snapshot.file_name
    if loaded.transaction is not None:
        children["transaction"] = transaction_fields(loaded)
    if loaded.problem is not None:
        children["problem"] = str(loaded.problem)
    if loaded.torn_end is not None:
        children["tornEnd"] = str(loaded.torn_end)
    return _values(children)


def transaction_fields(loaded: Loaded) -> dict[str, Any] | None:
    """What is known of the open transaction."""
    opened = loaded.transaction
    if opened is None:
        return None
    return {
        "start_offset": opened.start_offset,
        "name": opened.name,
        "records": loaded.transaction_records,
        "state": "open: not shown in /image",
    }


def _folders(tables: Mapping[str, Mapping[str, Any]]) -> Folder:
    return Folder(lambda: sorted(tables), lambda name: _values(tables[name]) if name in tables else None)


def _topics(image: MetadataImage) -> Folder:
    def child(name: str) -> Node | None:
        topic = image.topic(name)
        return None if topic is None else _topic(topic)

    return Folder(lambda: sorted(image.topics), child)


def _topics_by_id(image: MetadataImage) -> Folder:
    def child(name: str) -> Node | None:
        topic_id = _uuid(name)
        topic = None if topic_id is None else image.topic_by_id(topic_id)
        return None if topic is None else _topic(topic)

    return Folder(lambda: sorted(map(encode_uuid, image.topic_names)), child)


def _uuid(name: str) -> UUID | None:
    try:
        found = decode_uuid(name)
    except ValueError:
        return None
    return found if encode_uuid(found) == name else None


def _topic(topic: TopicImage) -> Folder:
    about = {"id": encode_uuid(topic.topic_id), "name": topic.name}

    def names() -> Iterator[str]:
        yield from map(str, sorted(topic.partitions))
        yield from about

    def child(name: str) -> Node | None:
        if name in about:
            return TreeFile(about[name])
        partition = topic.partitions.get(int(name)) if _is_number(name) else None
        return None if partition is None else TreeFile(plain(partition, MOST_BYTES))

    return Folder(names, child)


def _is_number(name: str) -> bool:
    """Of a partition or a broker, as it is listed: without leading zeros."""
    return _NUMBER.fullmatch(name) is not None


def _brokers(image: MetadataImage) -> Folder:
    def child(name: str) -> Node | None:
        broker = image.broker(int(name)) if _is_number(name) else None
        if broker is None:
            return None
        names = (field.name for field in dataclasses.fields(broker))
        return TreeFile({field: plain(getattr(broker, field), MOST_BYTES) for field in names})

    return Folder(lambda: map(str, sorted(image.brokers)), child)


def _configs(image: MetadataImage) -> Folder:
    names = {_resource_name(resource): resource for resource in image.configs}

    def child(name: str) -> Node | None:
        resource = names.get(name)
        if resource is None:
            return None
        pairs = image.configs[resource].items()
        return _values({key: _config(resource, key, value) for key, value in pairs})

    return Folder(lambda: sorted(names), child)


def _resource_name(resource: ConfigOwner) -> str:
    kind = _RESOURCES.get(resource.type, f"TYPE_{resource.type}")
    return f"{kind}:{resource.name}" if resource.name else kind


def _config(resource: ConfigOwner, key: str, value: str) -> Any:
    return without_secrets({"resource_name": resource.name, "name": key, "value": value})["value"]


def _features(image: MetadataImage) -> Folder:
    levels: dict[str, Any] = {
        f"finalized_{name}": level for name, level in image.features.items() if name != METADATA_VERSION
    }
    if METADATA_VERSION in image.features:
        levels["metadataVersion"] = describe(image.features[METADATA_VERSION])
    return _values(levels)


class _Kept:
    """Entries, credentials, tokens and quotas in tables, made when they are looked at."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image

    def _of(self, kind: str) -> list[Any]:
        return [record for (found, _), record in self._image.kept.items() if found == kind]

    @cached_property
    def acls(self) -> Mapping[str, Any]:
        return {encode_uuid(record.id): plain(record, MOST_BYTES) for record in self._image.acls}

    @cached_property
    def tokens(self) -> Mapping[str, Any]:
        return {record.token_id: plain(record, MOST_BYTES) for record in self._of(TOKEN)}

    @cached_property
    def credentials(self) -> Mapping[str, Mapping[str, Any]]:
        tables: dict[str, dict[str, Any]] = {name: {} for name in _MECHANISMS.values()}
        for record in self._image.scram.values():
            mechanism = _MECHANISMS.get(record.mechanism, f"mechanism {record.mechanism}")
            tables.setdefault(mechanism, {})[record.name] = without_secrets(plain(record, MOST_BYTES))
        return tables

    @cached_property
    def quotas(self) -> Mapping[str, Mapping[str, Any]]:
        return {_quota_name(owner): dict(limits) for owner, limits in self._image.quotas.items()}


def _quota_name(owner: QuotaOwner) -> str:
    """As Apache Kafka's shell writes it: `clientId(loader)_user(alice)`; a default has no name."""
    return "_".join(map(_entity_name, sorted(owner)))


def _entity_name(entity: QuotaEntity) -> str:
    name = re.sub(r"([\\()])", r"\\\1", entity.entity_name or "")
    return f"{_ENTITIES.get(entity.entity_type, entity.entity_type)}({name})"


# -- finding


def find(top: Folder, path: str) -> list[tuple[str, Node]]:
    """What a path leads to, with `*`, `?`, `[...]` and `{a,b}` in it; its parts are separated by one slash."""
    found: list[tuple[str, Node]] = [("/", top)]
    for part in filter(None, path.split("/")):
        found = [step for at, node in found for step in _step(at, node, part)]
    return found


def _step(at: str, node: Node, part: str) -> Iterator[tuple[str, Node]]:
    if isinstance(node, TreeFile):
        return
    exact = node.child(part)
    if exact is not None:
        yield join(at, part), exact
    elif _GLOB.search(part):
        patterns = list(_alternatives(part))
        for name in node.names():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                child = node.child(name)
                if child is not None:
                    yield join(at, name), child


def _alternatives(part: str) -> Iterator[str]:
    match = re.search(r"\{([^{}]*)\}", part)
    if match is None:
        yield part
        return
    for choice in match[1].split(","):
        yield from _alternatives(part[: match.start()] + choice + part[match.end() :])


def join(at: str, name: str) -> str:
    return f"{at.rstrip('/')}/{name}"


def walk(path: str, node: Node) -> Iterator[str]:
    """The paths of a node and all below it."""
    yield path
    if isinstance(node, Folder):
        for name in node.names():
            child = node.child(name)
            if child is not None:
                yield from walk(join(path, name), child)


def as_values(node: Node) -> Any:
    """All below a node as one value."""
    if isinstance(node, TreeFile):
        return node.value
    children = ((name, node.child(name)) for name in node.names())
    return {name: as_values(child) for name, child in children if child is not None}
