"""IncrementalAlterConfigs and AlterConfigs for topics, brokers and groups as operations on the image.

Rules, in the order in which the first to fail decides for a resource: the resource twice (42); a key twice (42); a null
value other than with DELETE (42); a resource type that has no configurations here (42); an operation that does not
exist (-1); APPEND or SUBTRACT on what is not a list (40); the name of the resource (17, 42); the values (40 for a
topic or a group, 42 for a broker, or 40 for one that would be believed without effect); whether the resource exists (3,
42; a group need not). One bad resource does not stop the others, and nothing of a bad resource is applied. AlterConfigs
is the older form: what it names is set, what it does not name is deleted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from twofold.config.definition import ConfigError, ConfigKey, ConfigType, text_of
from twofold.config.group import DEFINITIONS as GROUP_CONFIGS
from twofold.config.group import validate_group_configs
from twofold.config.keys import REFUSED_NAMES, refusal_while_running
from twofold.config.names import check_topic_name
from twofold.config.settings import DEFINITIONS as SETTINGS
from twofold.config.settings import Settings
from twofold.config.topic import DEFINITIONS as TOPIC_CONFIGS
from twofold.config.topic import broker_value, validate_topic_configs
from twofold.controller.activation import MIN_INSYNC_REPLICAS
from twofold.controller.context import Context, error_row
from twofold.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from twofold.controller.image import (
    BROKER_RESOURCE,
    CLUSTER_DEFAULT,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigOwner,
    MetadataImage,
)
from twofold.controller.operation import Operation
from twofold.controller.records import ClearElr, Config
from twofold.wire.errors import (
    NONE,
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from twofold.wire.messages import alter_configs as alter_messages
from twofold.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from twofold.wire.values import AlterOperation

# What each broker has its own of: it makes no sense for all of them at once.
PER_BROKER = frozenset({"listeners", "advertised.listeners", "cordoned.log.dirs"})


_OPERATIONS = frozenset(AlterOperation)
_TABLES: Mapping[int, Mapping[str, ConfigKey]] = {
    TOPIC_RESOURCE: TOPIC_CONFIGS, BROKER_RESOURCE: SETTINGS, GROUP_RESOURCE: GROUP_CONFIGS,
}  # fmt: skip

R = TypeVar("R", AlterConfigsResource, alter_messages.AlterConfigsResource)
Changes: TypeAlias = Mapping[str, str | None]
Row: TypeAlias = tuple[ConfigOwner, int, str | None]


def incremental_alter_configs(
    image: MetadataImage, request: IncrementalAlterConfigsRequest, context: Context
) -> Operation[IncrementalAlterConfigsResponse]:
    settings = context.settings_at(image)

    def changes(resource: AlterConfigsResource, before: Mapping[str, str]) -> Changes:
        return _changes(resource, before, settings)

    rows = yield from _decide(image, request.resources, changes, settings, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=tuple(
            AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=target.type, resource_name=target.name
            )
            for target, code, message in rows
        )
    )


def alter_configs(
    image: MetadataImage, request: alter_messages.AlterConfigsRequest, context: Context
) -> Operation[alter_messages.AlterConfigsResponse]:
    settings = context.settings_at(image)
    rows = yield from _decide(image, request.resources, _replacing, settings, validate_only=request.validate_only)
    return alter_messages.AlterConfigsResponse(
        responses=tuple(
            alter_messages.AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=target.type, resource_name=target.name
            )
            for target, code, message in rows
        )
    )


def _decide(
    image: MetadataImage,
    resources: Sequence[R],
    changes: Callable[[R, Mapping[str, str]], Changes],
    settings: Settings,
    *,
    validate_only: bool,
) -> Operation[list[Row]]:
    """Every resource on its own: what is to be said about it, and the records of those that nothing is wrong with."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    rows: list[Row] = []
    written: list[Config] = []
    for resource in resources:
        target = ConfigOwner(resource.resource_type, resource.resource_name)
        code, message = NONE, None
        try:
            if counts[target] > 1:
                raise InvalidRequest("a resource is named more than once")
            records = _alter(image, target, resource, changes, settings)
        except KafkaError as error:
            code, message = error_row(error)
        else:
            if not validate_only:
                yield from records
                written += (record for record in records if record.name == MIN_INSYNC_REPLICAS)
        rows.append((target, code, message))
        yield None
    yield from _forget_eligible(image, written)
    return rows


def _forget_eligible(image: MetadataImage, changed: Sequence[Config]) -> Iterator[ClearElr]:
    """An eligible leader had all that could be committed while min.insync.replicas was what it was."""
    if image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) == 0:
        return
    for record in changed:
        yield ClearElr(record.resource_name if record.resource_type == TOPIC_RESOURCE else "")


def _alter(
    image: MetadataImage,
    target: ConfigOwner,
    resource: R,
    changes_of: Callable[[R, Mapping[str, str]], Changes],
    settings: Settings,
) -> list[Config]:
    before: Mapping[str, str] = image.configs.get(target, {})
    changes = changes_of(resource, before)
    merged = {**before, **changes}
    configs = {name: value for name, value in merged.items() if value is not None}
    if target.type == GROUP_RESOURCE:
        _check_group(target.name, configs, settings)
    else:
        _CHECKS[target.type](image, target.name, configs, changes)
    return [
        Config(target.type, target.name, name, value) for name, value in changes.items() if value != before.get(name)
    ]


def _check_type(resource_type: int) -> None:
    if resource_type not in _CHECKS and resource_type != GROUP_RESOURCE:
        raise InvalidRequest(f"Resource type {resource_type} has no configurations here")


def _check_names(names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidRequest(f"named more than once: {', '.join(twice)}")


def _replacing(resource: alter_messages.AlterConfigsResource, before: Mapping[str, str]) -> Changes:
    """What is named gets its value, what is not goes."""
    _check_names(config.name for config in resource.configs)
    without = [config.name for config in resource.configs if config.value is None]
    if without:
        raise InvalidRequest(f"a value is needed for: {', '.join(without)}")
    _check_type(resource.resource_type)
    return {**dict.fromkeys(before), **{config.name: config.value for config in resource.configs}}


def _changes(resource: AlterConfigsResource, before: Mapping[str, str], settings: Settings) -> Changes:
    _check_names(config.name for config in resource.configs)
    without = [c.name for c in resource.configs if c.value is None and c.config_operation != AlterOperation.DELETE]
    if without:
        raise InvalidRequest(f"SET needs a value for: {', '.join(without)}")
    _check_type(resource.resource_type)
    if any(config.config_operation not in _OPERATIONS for config in resource.configs):
        raise UnknownServerError()
    target = ConfigOwner(resource.resource_type, resource.resource_name)
    return {config.name: _new_value(target, config, before, settings) for config in resource.configs}


def _new_value(
    target: ConfigOwner, config: AlterableConfig, before: Mapping[str, str], settings: Settings
) -> str | None:
    if config.config_operation == AlterOperation.DELETE:
        return None
    assert config.value is not None
    if config.config_operation == AlterOperation.SET:
        return config.value
    key = _TABLES[target.type].get(config.name)
    if key is None or key.type is not ConfigType.LIST:
        operation = AlterOperation(config.config_operation).name
        raise InvalidConfig(f"{config.name} is no list, so {operation} does not apply: use SET or DELETE")
    items = _items(before.get(config.name, _inherited(target, config.name, settings)))
    given = _items(config.value)
    if config.config_operation == AlterOperation.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _inherited(target: ConfigOwner, name: str, settings: Settings) -> str:
    """What holds for the resource as long as it has no value of its own."""
    if target.type == TOPIC_RESOURCE:
        key = TOPIC_CONFIGS[name]
        value = broker_value(key, settings)
        return text_of(key.default if value is None else value) or ""
    return text_of(settings[name]) or ""


def _check_topic(
    image: MetadataImage, name: str, configs: Mapping[str, str], changes: Mapping[str, str | None]
) -> None:
    if not name:
        raise InvalidRequest("a topic has to be named")
    check_topic_name(name)
    validate_topic_configs(configs)
    if image.topic(name) is None:
        raise UnknownTopicOrPartition(f"there is no topic '{name}'")


def _check_broker(
    image: MetadataImage, name: str, configs: Mapping[str, str], changes: Mapping[str, str | None]
) -> None:
    if name != CLUSTER_DEFAULT:
        if not name.isascii() or not name.isdecimal():
            raise InvalidRequest(f"a broker is named by its number, not by {name!r}")
        if image.broker(int(name)) is None:
            raise InvalidRequest(f"no broker {name} is registered")
    given = {key: text for key, text in changes.items() if text is not None}
    _check_believed(given)
    fixed = [key for key in given if key in REFUSED_NAMES or (key in SETTINGS and not SETTINGS[key].dynamic)]
    if fixed:
        raise InvalidRequest(f"only a restart changes {fixed}: set them in server.properties")
    if name == CLUSTER_DEFAULT and (own := sorted(PER_BROKER & given.keys())):
        raise InvalidRequest(f"{own} differ from broker to broker: name one")
    if "listeners" in given:
        raise InvalidConfig("listeners: a running broker opens no other listener: set it in server.properties")
    for key, text in given.items():
        if key in SETTINGS:
            try:
                SETTINGS[key].parse(text)
            except ConfigError as error:
                raise InvalidRequest(f"{key}={text} {error.allowed}") from None


def _check_believed(given: Mapping[str, str]) -> None:
    """Refuse what would be relied on and has no effect, as the start does."""
    for key, text in given.items():
        try:
            missing = refusal_while_running(key, text)
        except ConfigError:
            continue  # said with the other bad values
        if missing is not None:
            raise InvalidConfig(f"{key}: {missing}")


def _check_group(name: str, configs: Mapping[str, str], settings: Settings) -> None:
    if not name:
        raise InvalidRequest("a group has to be named")
    try:
        validate_group_configs(configs, settings)
    except ConfigError as error:
        raise InvalidConfig(str(error)) from None


_Check = Callable[[MetadataImage, str, Mapping[str, str], Mapping[str, str | None]], None]
_CHECKS: dict[int, _Check] = {TOPIC_RESOURCE: _check_topic, BROKER_RESOURCE: _check_broker}
