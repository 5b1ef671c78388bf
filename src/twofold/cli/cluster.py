"""`twofold cluster`: describe, brokers, log-dirs, features, features set; `quorum` is a module of its own."""

from typing import Annotated

from twofold.cli import declare
from twofold.cli.admin import connected
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
    complain,
    confirm,
    parse_pairs,
    print_json,
    print_table,
    run_command,
    say_empty,
)
from twofold.cli.quorum import quorum_app
from twofold.cli.topic.errors import report
from twofold.client import (
    ClusterDescription,
    Feature,
    FeaturesDescription,
    FeatureUpdate,
    LogDirDescription,
    Node,
    TopicPartition,
    UpgradeType,
)

cluster_app = declare.App(
    help="Show the cluster, its controllers, disks and features, and change their levels.", no_args_is_help=True
)
features_app = declare.App(help="List the features of the cluster; `set` changes their levels.")
cluster_app.add_app(quorum_app, name="quorum", epilog=EXIT_CODES)
cluster_app.add_app(features_app, name="features", epilog=EXIT_CODES)

MAX_LEVEL = 2**15 - 1


@cluster_app.command("describe", epilog=EXIT_CODES)
def describe(
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the cluster's id, its controller and its brokers."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            cluster = await admin.describe_cluster()
        if output is OutputFormat.JSON:
            print_json(_cluster_json(cluster))
        else:
            _print_cluster(cluster)
        return OK

    run_command(main, bootstrap_server)


@cluster_app.command("brokers", epilog=EXIT_CODES)
def brokers(
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the brokers, fenced ones too: those that are registered, and that no client is sent to."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            cluster = await admin.describe_cluster(include_fenced=True)
        if output is OutputFormat.JSON:
            print_json(_brokers_json(cluster))
        else:
            rows = [
                (node.node_id, node.host, node.port, node.rack, "fenced" if node.node_id in cluster.fenced else "alive")
                for node in _in_order(cluster)
            ]
            print_table(["BROKER", "HOST", "PORT", "RACK", "STATE"], rows, right=["BROKER", "PORT"])
        return OK

    run_command(main, bootstrap_server)


def _brokers_json(cluster: ClusterDescription) -> list[dict[str, object]]:
    return [
        {
            "broker_id": node.node_id,
            "host": node.host,
            "port": node.port,
            "rack": node.rack,
            "fenced": node.node_id in cluster.fenced,
        }
        for node in _in_order(cluster)
    ]


@cluster_app.command("log-dirs", epilog=EXIT_CODES)
def log_dirs(
    broker: Annotated[list[int] | None, declare.Option("--broker", help="Default: all; repeatable.")] = None,
    topic: Annotated[list[str] | None, declare.Option("--topic", help="Default: all; repeatable.")] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the data directories of brokers: how much room there is, and what takes it."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            partitions = None
            if topic:
                found = (await admin.describe_topics(topic)).get()
                partitions = [TopicPartition(name, index) for name, row in found.items() for index in row.partitions]
            results = await admin.describe_log_dirs(partitions, brokers=broker)
        if output is OutputFormat.JSON:
            print_json([_directory_json(node, row) for node, rows in results.values.items() for row in rows])
        else:
            for node, rows in results.values.items():
                for row in rows:
                    _print_directory(node, row)
        return report(results.errors, "ask broker", bootstrap_server)

    run_command(main, bootstrap_server)


def _directory_json(node: int, row: LogDirDescription) -> dict[str, object]:
    return {
        "broker_id": node,
        "path": row.path,
        "error": None if row.error is None else row.error.name,
        "total_bytes": row.total_bytes,
        "usable_bytes": row.usable_bytes,
        "replicas": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "size_bytes": replica.size_bytes,
                "offset_lag": replica.offset_lag,
            }
            for tp, replica in sorted(row.replicas.items())
        ],
    }


def _print_directory(node: int, row: LogDirDescription) -> None:
    print(f"broker      {node}")
    print(f"directory   {row.path}{'' if row.error is None else f' ({row.error.name})'}")
    print(f"free        {row.usable_bytes} of {row.total_bytes} bytes")
    rows = [(*tp, replica.size_bytes, replica.offset_lag) for tp, replica in sorted(row.replicas.items())]
    if rows:
        print_table(["TOPIC", "PARTITION", "BYTES", "LAG"], rows, right=["PARTITION", "BYTES", "LAG"])
    else:
        say_empty("no partition")


@features_app.callback(invoke_without_command=True)
def list_features(
    context: declare.Context,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the features: the levels that the broker supports and the one that holds in the cluster."""
    if context.invoked_subcommand is not None:
        _refuse_early_options(context)
        return

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            found = await admin.describe_features()
        if output is OutputFormat.JSON:
            print_json(_features_json(found))
        else:
            _print_features(found)
        return OK

    run_command(main, bootstrap_server)


@features_app.command("set", epilog=EXIT_CODES)
def set_features(
    levels: Annotated[
        list[str], declare.Argument(metavar="FEATURE=LEVEL...", help="The level to have; 0 switches a feature off.")
    ],
    downgrade: Annotated[bool, declare.Option("--downgrade", help="To go to a lower level.")] = False,
    unsafe: Annotated[
        bool, declare.Option("--unsafe", help="With --downgrade: give up what the lower level cannot hold.")
    ] = False,
    dry_run: Annotated[bool, declare.Option("--dry-run", help="Let the cluster check it, and change nothing.")] = False,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Change the levels of features, all of them or none; clients notice while they run."""

    async def main() -> int:
        if unsafe and not downgrade:
            raise CliError("--unsafe says how to go down: add --downgrade", USAGE)
        wanted = {name: _level(name, text) for name, text in parse_pairs(levels, "feature").items()}
        async with connected(bootstrap_server, timeout) as admin:
            found = (await admin.describe_features()).features
            before = {name: _finalized(found.get(name)) for name in wanted}
            _check_direction(before, wanted, downgrade)
            changes = {name: (before[name], level) for name, level in wanted.items() if level != before[name]}
            if changes and not dry_run and not yes:
                lost = " and lose what the lower level cannot hold" if unsafe else ""
                confirm(f"Set {_steps(changes)} at {bootstrap_server}{lost}?", "nothing was changed")
            kind = _kind(downgrade, unsafe)
            updates = {name: FeatureUpdate(level, kind) for name, level in wanted.items()}
            await admin.update_features(updates, validate_only=dry_run)
        if output is OutputFormat.JSON:
            rows = [{"name": name, "from": one, "to": two} for name, (one, two) in changes.items()]
            print_json({"dry_run": dry_run, "changed": rows})
        elif not changes:
            print(f"nothing to change: {', '.join(f'{name} is at {level}' for name, level in wanted.items())}")
        else:
            print(f"{'would set' if dry_run else 'set'} {_steps(changes)}")
        return OK

    run_command(main, bootstrap_server, destructive=True)


def _kind(downgrade: bool, unsafe: bool) -> UpgradeType:
    if not downgrade:
        return UpgradeType.UPGRADE
    return UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE


def _refuse_early_options(context: declare.Context) -> None:
    """Options before `set` would be lost without a word, the server to change among them."""
    given = [
        name
        for name in ("bootstrap_server", "output", "timeout")
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
    if given:
        command = context.invoked_subcommand
        raise declare.Exit(complain(f"options belong behind {command}: twofold cluster features {command} ...", USAGE))


def _level(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_LEVEL:
        raise CliError(f"{name}={text}: a level is a number from 0 to {MAX_LEVEL}", USAGE)
    return int(text)


def _finalized(feature: Feature | None) -> int:
    return 0 if feature is None else feature.finalized


def _check_direction(before: dict[str, int], wanted: dict[str, int], downgrade: bool) -> None:
    for name, level in wanted.items():
        if level < before[name] and not downgrade:
            raise CliError(f"{name} is at {before[name]}: to go down to {level}, add --downgrade")
        if level > before[name] and downgrade:
            raise CliError(f"{name} is at {before[name]}: {level} is no downgrade; leave --downgrade out")


def _steps(changes: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} from {one} to {two}" for name, (one, two) in changes.items())


def _print_cluster(cluster: ClusterDescription) -> None:
    print(f"cluster     {cluster.cluster_id}")
    print(f"controller  {cluster.controller_id if cluster.controller_id >= 0 else 'none'}")
    print(f"brokers     {len(cluster.brokers)}")
    rows = [(node.node_id, node.host, node.port, node.rack) for node in _in_order(cluster)]
    print_table(["BROKER", "HOST", "PORT", "RACK"], rows, right=["BROKER", "PORT"])


def _in_order(cluster: ClusterDescription) -> list[Node]:
    return sorted(cluster.brokers, key=lambda node: node.node_id)


def _cluster_json(cluster: ClusterDescription) -> dict[str, object]:
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [
            {"broker_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in _in_order(cluster)
        ],
    }


def _print_features(found: FeaturesDescription) -> None:
    print(f"epoch       {found.epoch}")
    rows = [
        (feature.name, f"{feature.min_version}-{feature.max_version}", feature.finalized or "off")
        for feature in found.features.values()
    ]
    print_table(["FEATURE", "SUPPORTED", "FINALIZED"], rows, right=["SUPPORTED", "FINALIZED"])


def _features_json(found: FeaturesDescription) -> dict[str, object]:
    return {
        "epoch": found.epoch,
        "features": [
            {
                "name": feature.name,
                "supported": {"min": feature.min_version, "max": feature.max_version},
                "finalized": feature.finalized,
            }
            for feature in found.features.values()
        ],
    }
