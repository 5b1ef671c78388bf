"""`twofold topic`: create, list, describe, alter, delete, delete-records; `replicas` has the verbs about replicas."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from twofold.cli import declare
from twofold.cli.admin import connected, print_deleted
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    EXIT_CODES,
    OK,
    USAGE,
    BootstrapServer,
    CliError,
    Format,
    OutputFormat,
    Timeout,
    Yes,
    confirm,
    parse_pairs,
    plural,
    print_json,
    print_table,
    run_command,
    say_empty,
)
from twofold.cli.topic.errors import report
from twofold.cli.topic.replicas import elect_leaders, reassign, reassignments
from twofold.client import (
    ALL_RECORDS,
    Admin,
    AlterOperation,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    ListedOffset,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
    TopicPartition,
)
from twofold.types import TopicId
from twofold.wire.errors import KafkaError, TopicAlreadyExists, UnknownTopicOrPartition

topic_app = declare.App(
    help="Create, list, describe, alter and delete topics, delete their records, and move their replicas.",
    no_args_is_help=True,
)
topic_app.command("reassign", epilog=EXIT_CODES)(reassign)
topic_app.command("reassignments", epilog=EXIT_CODES)(reassignments)
topic_app.command("elect-leaders", epilog=EXIT_CODES)(elect_leaders)

NO_TOPIC = "no topic at {}; `twofold topic create NAME` makes one"
ALL_IN_SYNC = "every replica is in sync"

Topics = Annotated[list[str], declare.Argument(metavar="TOPIC...", help="Names of topics.")]
Config = Annotated[
    list[str] | None, declare.Option("--config", metavar="KEY=VALUE", help="A topic setting; repeatable.")
]


@topic_app.command("create", epilog=EXIT_CODES)
def create(
    topics: Topics,
    partitions: Annotated[
        int | None, declare.Option("--partitions", "-p", min=1, help="Default: the broker's.")
    ] = None,
    replication_factor: Annotated[
        int | None, declare.Option("--replication-factor", "-r", min=1, help="Default: the broker's.")
    ] = None,
    config: Config = None,
    if_not_exists: Annotated[bool, declare.Option("--if-not-exists", help="Succeed when the topic is there.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Create topics."""

    async def main() -> int:
        configs = parse_pairs(config or (), "--config")
        async with connected(bootstrap_server, timeout) as admin:
            results = await admin.create_topics(
                NewTopic(
                    name=name,
                    num_partitions=partitions or -1,
                    replication_factor=replication_factor or -1,
                    configs=configs,
                )
                for name in dict.fromkeys(topics)
            )
        created = list(results.values.values())
        if output is OutputFormat.JSON:
            print_json([_created_json(topic) for topic in created])
        else:
            for topic in created:
                print(f"created {topic.name}{_shape(topic)}")
        ignored = (TopicAlreadyExists,) if if_not_exists else ()
        return report(results.errors, "create", bootstrap_server, ignored)

    run_command(main, bootstrap_server)


@topic_app.command("list", epilog=EXIT_CODES)
def list_topics(
    internal: Annotated[bool, declare.Option("--internal", help="Internal topics too.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List topics."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            topics = list((await admin.list_topics(include_internal=internal)).values())
        if output is OutputFormat.JSON:
            print_json([_listed_json(topic) for topic in topics])
        elif topics:
            rows = [(topic.name, len(topic.partitions), _replication_factor(topic)) for topic in topics]
            print_table(["TOPIC", "PARTITIONS", "REPLICAS"], rows, right=["PARTITIONS", "REPLICAS"])
        else:
            say_empty(NO_TOPIC.format(bootstrap_server))
        return OK

    run_command(main, bootstrap_server)


@topic_app.command("describe", epilog=EXIT_CODES)
def describe(
    topics: Annotated[list[str] | None, declare.Argument(metavar="[TOPIC...]", help="Default: all.")] = None,
    all_configs: Annotated[
        bool, declare.Option("--all-configs", help="Also the settings that were never changed.")
    ] = False,
    under_replicated: Annotated[
        bool, declare.Option("--under-replicated", help="Only partitions with a replica that is not in sync.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show partitions, leaders, offsets and settings of topics."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            errors: Mapping[str, KafkaError] = {}
            if topics:
                results = await admin.describe_topics(topics)
                found, errors = list(results.values.values()), results.errors
            else:
                found = list((await admin.list_topics(include_internal=under_replicated)).values())
            if under_replicated:
                found = [partial for topic in found if (partial := _under_replicated(topic)).partitions]
            configs = await _configs(admin, found, all_configs)
            starts, ends = await _offsets(admin, found)
        if output is OutputFormat.JSON:
            print_json([_described_json(topic, configs[topic.name], starts, ends) for topic in found])
        else:
            if not found and not errors:
                say_empty(ALL_IN_SYNC if under_replicated else NO_TOPIC.format(bootstrap_server))
            for index, topic in enumerate(found):
                if index:
                    print()
                _print_described(topic, configs[topic.name], starts, ends)
        return report(errors, "describe", bootstrap_server)

    run_command(main, bootstrap_server)


@topic_app.command("alter", epilog=EXIT_CODES)
def alter(
    topic: Annotated[str, declare.Argument(metavar="TOPIC", help="The topic.")],
    config: Config = None,
    delete_config: Annotated[
        list[str] | None, declare.Option("--delete-config", metavar="KEY", help="Back to the default; repeatable.")
    ] = None,
    partitions: Annotated[
        int | None, declare.Option("--partitions", "-p", min=1, help="The new total; never less than now.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change settings and the number of partitions."""

    async def main() -> int:
        changes = [ConfigChange(name, value) for name, value in parse_pairs(config or (), "--config").items()]
        changes += [ConfigChange(name, None, AlterOperation.DELETE) for name in delete_config or ()]
        if not changes and partitions is None:
            raise CliError("nothing to alter: give --config, --delete-config or --partitions", USAGE)
        errors: dict[str, KafkaError] = {}
        async with connected(bootstrap_server, timeout) as admin:
            resource = ConfigResource(ResourceType.TOPIC, topic)
            if changes:
                altered = await admin.incremental_alter_configs({resource: changes})
                if resource in altered.errors:
                    errors[topic] = altered.errors[resource]
            if partitions is not None and not errors:
                errors |= (await admin.create_partitions({topic: partitions})).errors
        if not errors:
            done = [f"{change.name}={change.value}" for change in changes if change.operation is AlterOperation.SET]
            done += [f"{change.name} back to its default" for change in changes if change.value is None]
            done += [] if partitions is None else [plural(partitions, "partition")]
            if output is OutputFormat.JSON:
                print_json({"topic": topic, "changed": done})
            else:
                print(f"altered {topic}: {', '.join(done)}")
        return report(errors, "alter", bootstrap_server)

    run_command(main, bootstrap_server)


@topic_app.command("delete", epilog=EXIT_CODES)
def delete(
    topics: Topics,
    yes: Yes = False,
    if_exists: Annotated[bool, declare.Option("--if-exists", help="Succeed when there is no such topic.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete topics and everything in them."""

    async def main() -> int:
        if not yes:
            confirm(f"Delete {', '.join(topics)} at {bootstrap_server} with all records?", "nothing was deleted")
        async with connected(bootstrap_server, timeout) as admin:
            results = await admin.delete_topics(topics)
        print_deleted(results.values, output)
        ignored = (UnknownTopicOrPartition,) if if_exists else ()
        return report(results.errors, "delete", bootstrap_server, ignored)

    run_command(main, bootstrap_server, destructive=True)


@topic_app.command("delete-records", epilog=EXIT_CODES)
def delete_records(
    topic: Annotated[str, declare.Argument(metavar="TOPIC", help="The topic.")],
    before: Annotated[
        list[str] | None,
        declare.Option("--before", metavar="PARTITION=OFFSET", help="`end` for all that is there now; repeatable."),
    ] = None,
    everything: Annotated[bool, declare.Option("--all", help="All records of all partitions.")] = False,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete the oldest records of partitions, for good; the topic and newer records stay."""

    async def main() -> int:
        if bool(before) == everything:
            raise CliError("what to delete: give --before PARTITION=OFFSET, or --all", USAGE)
        wanted = {
            _place(topic, name): _bound(name, text) for name, text in parse_pairs(before or (), "--before").items()
        }
        async with connected(bootstrap_server, timeout) as admin:
            if everything:
                (found,) = (await admin.describe_topics([topic])).get().values()
                wanted = {TopicPartition(topic, index): ALL_RECORDS for index in found.partitions}
            if not yes:
                what = "all records" if everything else f"records before {', '.join(before or ())}"
                confirm(f"Delete {what} of {topic} at {bootstrap_server}?", "nothing was deleted")
            results = await admin.delete_records(wanted)
        starts = {tp.partition: start for tp, start in sorted(results.values.items())}
        if output is OutputFormat.JSON:
            rows = [{"partition": index, "start_offset": start} for index, start in starts.items()]
            print_json({"topic": topic, "partitions": rows})
        elif starts:
            print_table(["PARTITION", "START"], list(starts.items()), right=["PARTITION", "START"])
        return report(results.errors, "delete records of", bootstrap_server)

    run_command(main, bootstrap_server, destructive=True)


def _place(topic: str, text: str) -> TopicPartition:
    if not text.isdecimal():
        raise CliError(f"--before {text}=...: a partition is a number", USAGE)
    return TopicPartition(topic, int(text))


def _bound(partition: str, text: str) -> int:
    if text == "end":
        return ALL_RECORDS
    if not text.isdecimal():
        raise CliError(f"--before {partition}={text}: an offset is a number, or `end`", USAGE)
    return int(text)


async def _configs(admin: Admin, topics: list[TopicMetadata], everything: bool) -> dict[str, list[ConfigEntry]]:
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics]
    found = (await admin.describe_configs(resources)).values
    return {
        resource.name: [
            entry for entry in found.get(resource, ()) if everything or entry.source == "DYNAMIC_TOPIC_CONFIG"
        ]
        for resource in resources
    }


Offsets = dict[TopicPartition, ListedOffset]


async def _offsets(admin: Admin, topics: list[TopicMetadata]) -> tuple[Offsets, Offsets]:
    # Without a leader no broker can tell the partition's offsets.
    partitions = [TopicPartition(topic.name, index) for topic in topics for index in topic.with_leader]
    if not partitions:
        return {}, {}
    starts = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return starts, ends


def _under_replicated(topic: TopicMetadata) -> TopicMetadata:
    """The topic with only those of its partitions that have a replica which is not in sync."""
    return replace(topic, partitions={index: row for index, row in topic.partitions.items() if not row.is_in_sync})


def _health(topic: TopicMetadata) -> str:
    rows = topic.partitions.values()
    behind = sum(not row.is_in_sync for row in rows)
    leaderless = sum(row.leader < 0 for row in rows)
    offline = sum(bool(row.offline) for row in rows)
    found = [
        f"{plural(count, 'partition')} {what}"
        for count, what in (
            (leaderless, "without a leader"),
            (behind, "with a replica that is not in sync"),
            (offline, "with a replica that is offline"),
        )
        if count
    ]
    return "; ".join(found) or "every replica is in sync"


def _print_described(topic: TopicMetadata, configs: list[ConfigEntry], starts: Offsets, ends: Offsets) -> None:
    settings = " ".join(f"{entry.name}={entry.value}" for entry in configs) or "-"
    print(f"topic       {topic.name}{' (internal)' if topic.internal else ''}")
    print(f"id          {format_id(topic.topic_id)}")
    print(f"partitions  {len(topic.partitions)}")
    print(f"replicas    {_replication_factor(topic)}")
    print(f"settings    {settings}")
    print(f"health      {_health(topic)}")
    columns = ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END"]
    rows = []
    for row in topic.partitions.values():
        tp = TopicPartition(topic.name, row.partition)
        leader = "none" if row.leader < 0 else row.leader
        replicas, isr = (",".join(map(str, ids)) for ids in (row.replicas, row.isr))
        rows.append(
            (row.partition, leader, row.leader_epoch, replicas, isr, _offset(starts.get(tp)), _offset(ends.get(tp)))
        )
    print_table(columns, rows, right=["PARTITION", "LEADER", "EPOCH", "START", "END"])


def _offset(listed: ListedOffset | None) -> int | None:
    return None if listed is None else listed.offset


def _replication_factor(topic: TopicMetadata) -> int:
    return max((len(row.replicas) for row in topic.partitions.values()), default=0)


def format_id(topic_id: TopicId | None) -> str | None:
    """As Kafka's own tools print it."""
    return None if topic_id is None else urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def _shape(topic: CreatedTopic) -> str:
    if topic.num_partitions < 0:
        return ""
    return f" ({plural(topic.num_partitions, 'partition')}, replication factor {topic.replication_factor})"


def _created_json(topic: CreatedTopic) -> dict[str, object]:
    return {
        "name": topic.name,
        "topic_id": format_id(topic.topic_id),
        "partitions": topic.num_partitions,
        "replication_factor": topic.replication_factor,
    }


def _listed_json(topic: TopicMetadata) -> dict[str, object]:
    return {
        "name": topic.name,
        "topic_id": format_id(topic.topic_id),
        "internal": topic.internal,
        "partitions": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
    }


def _described_json(
    topic: TopicMetadata, configs: list[ConfigEntry], starts: Offsets, ends: Offsets
) -> dict[str, object]:
    partitions = []
    for row in topic.partitions.values():
        tp = TopicPartition(topic.name, row.partition)
        partitions.append(
            {
                "partition": row.partition,
                "leader": row.leader,
                "leader_epoch": row.leader_epoch,
                "replicas": row.replicas,
                "isr": row.isr,
                "offline": row.offline,
                "start_offset": _offset(starts.get(tp)),
                "end_offset": _offset(ends.get(tp)),
            }
        )
    settings = {entry.name: {"value": entry.value, "source": entry.source} for entry in configs}
    return {
        "name": topic.name,
        "topic_id": format_id(topic.topic_id),
        "internal": topic.internal,
        "configs": settings,
        "partitions": partitions,
    }
