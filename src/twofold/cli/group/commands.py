"""`twofold group`: list, describe, offsets, reset-offsets, delete."""

from collections.abc import Iterable, Mapping
from typing import Annotated

from twofold.cli import declare
from twofold.cli.admin import complain_of_all, connected, print_deleted
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
    plural,
    print_json,
    print_table,
    run_command,
    say_empty,
)
from twofold.cli.group.report import GroupProblem, GroupReport, OffsetRow, names_of, ranges, report_groups
from twofold.cli.group.reset import reset_offsets
from twofold.client import GroupDescription, GroupListing, MemberDescription, TopicPartition
from twofold.client.cluster.metadata import group_by_topic
from twofold.wire.errors import GroupIdNotFound, KafkaError, NonEmptyGroup

group_app = declare.App(help="List, describe and delete consumer groups, and set their offsets.", no_args_is_help=True)

STATES = ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead")
TYPES = ("classic", "consumer", "share", "streams")

Groups = Annotated[list[str], declare.Argument(metavar="GROUP...", help="Names of groups.")]
Exact = Annotated[
    bool,
    declare.Option("--exact", help="Read the log to count records: without it, lag counts markers and holes too."),
]


@group_app.command("list", epilog=EXIT_CODES)
def list_groups(
    state: Annotated[
        list[str] | None,
        declare.Option("--state", help=f"Only groups in this state; repeatable. One of {', '.join(STATES)}."),
    ] = None,
    type_: Annotated[
        list[str] | None,
        declare.Option("--type", help=f"Only groups of this type; repeatable. One of {', '.join(TYPES)}."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List groups."""

    async def main() -> int:
        states = [_known(word, STATES, "--state") for word in state or ()]
        types = [_known(word, TYPES, "--type") for word in type_ or ()]
        async with connected(bootstrap_server, timeout) as admin:
            groups = list((await admin.list_groups(states=states, types=types)).values())
        if output is OutputFormat.JSON:
            print_json([_listed_json(group) for group in groups])
        elif groups:
            rows = [(row.group_id, row.state, row.type, row.protocol_type, row.coordinator) for row in groups]
            print_table(["GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR"], rows, right=["COORDINATOR"])
        else:
            say_empty(f"no group at {bootstrap_server}{' that matches' if states or types else ''}")
        return OK

    run_command(main, bootstrap_server)


@group_app.command("describe", epilog=EXIT_CODES)
def describe(
    groups: Annotated[list[str] | None, declare.Argument(metavar="[GROUP...]", help="Default: all.")] = None,
    exact: Exact = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show state, members, offsets and lag of groups, and why one does not get on."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            names = groups or [
                name for name, row in (await admin.list_groups()).items() if row.type in ("", "classic", "consumer")
            ]
            results = await report_groups(admin, names, exact=exact)
        found = list(results.values.values())
        if output is OutputFormat.JSON:
            print_json([_described_json(row) for row in found])
        else:
            if not found and not results.errors:
                say_empty(f"no group at {bootstrap_server}")
            for index, row in enumerate(found):
                if index:
                    print()
                _print_described(row)
        # A group that is deleted after the listing is left out without a word: the user asked for all that exist.
        return report(results.errors, "describe", bootstrap_server, () if groups else (GroupIdNotFound,))

    run_command(main, bootstrap_server)


@group_app.command("offsets", epilog=EXIT_CODES)
def offsets(
    group: Annotated[str, declare.Argument(metavar="GROUP", help="The group.")],
    exact: Exact = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a group's offsets and lag; as JSON, what `reset-offsets --from-file` takes back."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            results = await report_groups(admin, [group], exact=exact, problems=False)
        for row in results.values.values():
            if output is OutputFormat.JSON:
                print_json({"group": group, "offsets": [_offset_json(entry) for entry in row.rows]})
            elif row.rows:
                _print_offsets(row.rows)
            else:
                say_empty(f"group {group} has no offsets")
        return report(results.errors, "describe", bootstrap_server)

    run_command(main, bootstrap_server)


group_app.command("reset-offsets", epilog=EXIT_CODES)(reset_offsets)


@group_app.command("delete", epilog=EXIT_CODES)
def delete(
    groups: Groups,
    yes: Yes = False,
    if_exists: Annotated[bool, declare.Option("--if-exists", help="Succeed when there is no such group.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups that have no members, with all their offsets."""

    async def main() -> int:
        if not yes:
            confirm(f"Delete {', '.join(groups)} at {bootstrap_server} with all offsets?", "nothing was deleted")
        async with connected(bootstrap_server, timeout) as admin:
            results = await admin.delete_groups(groups)
            busy = [name for name, error in results.errors.items() if isinstance(error, NonEmptyGroup)]
            members = {name: row.members for name, row in (await admin.describe_groups(busy)).values.items()}
        print_deleted(results.values, output)
        ignored = (GroupIdNotFound,) if if_exists else ()
        return report(results.errors, "delete", bootstrap_server, ignored, members)

    run_command(main, bootstrap_server, destructive=True)


def report(
    errors: Mapping[str, KafkaError],
    verb: str,
    bootstrap_server: str,
    ignored: tuple[type[KafkaError], ...] = (),
    members: Mapping[str, tuple[MemberDescription, ...]] = {},
) -> int:
    """Say what failed; returns the exit code."""

    def reason(group: str, error: KafkaError) -> str:
        return _reason(error, bootstrap_server, members.get(group, ()))

    return complain_of_all(errors, verb, reason, ignored)


def _reason(error: KafkaError, bootstrap_server: str, members: tuple[MemberDescription, ...]) -> str:
    if isinstance(error, GroupIdNotFound):
        return f"no such group at {bootstrap_server}; `twofold group list` shows those that exist"
    if isinstance(error, NonEmptyGroup) and members:
        return f"it has members, stop them first: {names_of(members)}"
    return str(error)


def _known(word: str, words: tuple[str, ...], option: str) -> str:
    for known in words:
        if word.lower() == known.lower():
            return known
    raise CliError(f"{option} {word!r} is none of: {', '.join(words)}", USAGE)


def _print_described(row: GroupReport) -> None:
    group = row.group
    print(f"group        {group.group_id}")
    print(f"state        {group.state}")
    print(f"type         {group.type}")
    print(f"protocol     {', '.join(filter(None, (group.protocol_type, group.protocol))) or '-'}")
    if group.group_epoch is not None:
        print(f"epoch        {group.group_epoch}, the target is of {group.target_epoch}")
    print(f"coordinator  {group.coordinator}")
    print(f"members      {len(group.members)}")
    print(f"lag          {_lag(row)}")
    for problem in row.problems:
        print(f"stuck        {problem.text}")
    if group.members:
        print()
        _print_members(group)
    if row.rows:
        print()
        _print_offsets(row.rows)


def _print_members(group: GroupDescription) -> None:
    cells: list[tuple[object, ...]] = []
    columns = ["MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS"]
    is_consumer = group.group_epoch is not None
    for member in group.members:
        row = (member.member_id, member.group_instance_id, member.client_id, _host(member), _assigned(member))
        target = ranges(member.target_assignment or ())
        cells.append((*row, target, member.epoch, member.type) if is_consumer else row)
    print_table([*columns, "TARGET", "EPOCH", "TYPE"] if is_consumer else columns, cells)


def _lag(row: GroupReport) -> str:
    unknown = sum(entry.lag is None for entry in row.rows)
    rest = f"not known of {plural(unknown, 'partition')}"
    if row.lag is None or row.stable_lag is None:
        return rest if unknown else "-"
    text = f"{row.lag} to the end of the log, {row.stable_lag} to the last stable offset"
    return f"{text}, {rest}" if unknown else text


def _host(member: MemberDescription) -> str:
    return member.client_host.removeprefix("/")


def _assigned(member: MemberDescription) -> str:
    return "?" if member.assignment is None else ranges(member.assignment)


def _print_offsets(rows: Iterable[OffsetRow]) -> None:
    columns = ["TOPIC", "PARTITION", "COMMITTED", "END", "LSO", "LAG", "LSO-LAG", "MEMBER"]
    cells = [
        (
            row.tp.topic,
            row.tp.partition,
            *("-" if value is None else value for value in (_committed(row), row.end, row.stable)),
            *("-" if value is None else value for value in (row.lag, row.stable_lag)),
            row.member,
        )
        for row in rows
    ]
    print_table(columns, cells, right=columns[1:-1])


def _committed(row: OffsetRow) -> int | None:
    return None if row.committed is None else row.committed.offset


def _listed_json(group: GroupListing) -> dict[str, object]:
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "coordinator": group.coordinator,
    }


def _described_json(row: GroupReport) -> dict[str, object]:
    group, node = row.group, row.group.coordinator
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "group_epoch": group.group_epoch,
        "target_epoch": group.target_epoch,
        "coordinator": {"broker_id": node.node_id, "host": node.host, "port": node.port},
        "lag": row.lag,
        "stable_lag": row.stable_lag,
        "stuck": [_problem_json(problem) for problem in row.problems],
        "members": [_member_json(member) for member in group.members],
        "offsets": [_offset_json(entry) for entry in row.rows],
    }


def _problem_json(problem: GroupProblem) -> dict[str, object]:
    tp, producer = problem.tp, problem.producer
    return {
        "reason": problem.kind,
        "text": problem.text,
        **({} if tp is None else {"topic": tp.topic, "partition": tp.partition}),
        **(
            {} if producer is None else {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        ),
    }


def _member_json(member: MemberDescription) -> dict[str, object]:
    def assigned(partitions: tuple[TopicPartition, ...] | None) -> dict[str, list[int]] | None:
        return None if partitions is None else group_by_topic(partitions)

    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": _host(member),
        "assignment": assigned(member.assignment),
        "target_assignment": assigned(member.target_assignment),
        "epoch": member.epoch,
        "type": member.type,
    }


def _offset_json(row: OffsetRow) -> dict[str, object]:
    return {
        "topic": row.tp.topic,
        "partition": row.tp.partition,
        "offset": _committed(row),
        "metadata": None if row.committed is None else row.committed.metadata,
        "start_offset": row.start,
        "end_offset": row.end,
        "last_stable_offset": row.stable,
        "lag": row.lag,
        "stable_lag": row.stable_lag,
        "member_id": None if row.member is None else row.member.member_id,
    }
