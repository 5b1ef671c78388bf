"""`twofold acl`: add, list and remove access control entries."""

from collections.abc import Sequence
from typing import Annotated, Any

from twofold.cli import declare
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    EXIT_CODES,
    FAILED,
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
    plural,
    print_json,
    print_table,
    run_command,
    say_empty,
)
from twofold.cli.security import Security, StoppedData, security
from twofold.client.admin.security import AclBinding, AclFilter
from twofold.security.acl_codes import CLUSTER_NAME, AclResourceType, Operation, PatternType, Permission

acl_app = declare.App(
    help="Add, list and remove access control entries: what each principal may do.", no_args_is_help=True
)

Resource = tuple[AclResourceType, str]

Topic = Annotated[
    list[str] | None, declare.Option("--topic", metavar="NAME", help="A topic, or * for all; repeatable.")
]
GroupName = Annotated[
    list[str] | None, declare.Option("--group", metavar="NAME", help="A consumer group, or *; repeatable.")
]
TransactionalId = Annotated[
    list[str] | None, declare.Option("--transactional-id", metavar="ID", help="A transactional id, or *; repeatable.")
]
Cluster = Annotated[bool, declare.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, declare.Option("--prefixed", help="The names are prefixes.")]
Host = Annotated[str | None, declare.Option("--host", metavar="ADDRESS", help="Clients of this address only.")]
SomePrincipal = Annotated[
    str | None, declare.Option("--principal", metavar="User:NAME", help="Entries of this principal only.")
]
SomeOperation = Annotated[str | None, declare.Option("--operation", metavar="NAME", help="This operation only.")]


@acl_app.command("add", epilog=EXIT_CODES)
def add(
    principal: Annotated[str, declare.Argument(metavar="User:NAME", help="A principal; User:* is every one.")],
    operations: Annotated[list[str], declare.Argument(metavar="OPERATION...", help="READ, WRITE, DESCRIBE, ALL, ...")],
    topic: Topic = None,
    group: GroupName = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    deny: Annotated[bool, declare.Option("--deny", help="Deny instead of allow; a denial always wins.")] = False,
    host: Host = None,
    data: StoppedData = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Allow or deny a principal operations on resources."""

    async def main() -> int:
        resources = _resources(topic, group, transactional_id, cluster)
        if not resources:
            raise CliError("name what the entry is about: --topic, --group, --transactional-id or --cluster", USAGE)
        pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
        permission = Permission.DENY if deny else Permission.ALLOW
        wanted = [
            AclBinding(kind, name, principal, _operation(text), permission, pattern, host or "*")
            for kind, name in resources
            for text in operations
        ]
        async with security(bootstrap_server, timeout, data) as asked:
            results = await asked.create_acls(wanted)
        made = [binding for binding in wanted if binding in results.values]
        _print(made, output, "added")
        return _complain_of(results.errors, "add")

    run_command(main, bootstrap_server)


@acl_app.command("list", epilog=EXIT_CODES)
def list_acls(
    principal: SomePrincipal = None,
    topic: Topic = None,
    group: GroupName = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    operation: SomeOperation = None,
    data: StoppedData = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List entries; with a resource all that apply to it, those of prefixes and of * too."""

    async def main() -> int:
        filters = _filters(_resources(topic, group, transactional_id, cluster), principal, operation, None)
        async with security(bootstrap_server, timeout, data) as asked:
            found = await _found(asked, filters)
        if not found and output is OutputFormat.TABLE:
            say_empty("no access control entries; `twofold acl add` makes one")
        else:
            _print(found, output)
        return OK

    run_command(main, bootstrap_server)


@acl_app.command("remove", epilog=EXIT_CODES)
def remove(
    principal: SomePrincipal = None,
    topic: Topic = None,
    group: GroupName = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    operation: SomeOperation = None,
    host: Host = None,
    everything: Annotated[bool, declare.Option("--all", help="All entries, of every principal and resource.")] = False,
    yes: Yes = False,
    data: StoppedData = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Remove entries; those that are named exactly, not all that apply to a resource."""

    async def main() -> int:
        resources = _resources(topic, group, transactional_id, cluster)
        if everything == bool(resources or principal or operation or host):
            raise CliError("name the entries by principal, resource, operation or host, or all of them by --all", USAGE)
        pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL if resources else PatternType.ANY
        filters = _filters(resources, principal, operation, host, pattern)
        async with security(bootstrap_server, timeout, data) as asked:
            shown = await _found(asked, filters)
            if not shown:
                raise CliError("no such access control entry", FAILED)
            if not yes:
                _print(shown, OutputFormat.TABLE)
                confirm(f"Remove {_entries(len(shown))}?", "nothing was removed")
            # What was shown is what goes, and nothing that came meanwhile.
            results = await asked.delete_acls(_exactly(binding) for binding in shown)
        gone = [binding for bindings in results.values.values() for binding in bindings]
        _print(gone, output, "removed")
        return _complain_of(results.errors, "remove")

    run_command(main, bootstrap_server, destructive=data is None)


def _resources(
    topics: Sequence[str] | None, groups: Sequence[str] | None, ids: Sequence[str] | None, cluster: bool
) -> list[Resource]:
    return [
        *((AclResourceType.TOPIC, name) for name in topics or ()),
        *((AclResourceType.GROUP, name) for name in groups or ()),
        *((AclResourceType.TRANSACTIONAL_ID, name) for name in ids or ()),
        *([(AclResourceType.CLUSTER, CLUSTER_NAME)] if cluster else []),
    ]


async def _found(asked: Security, filters: Sequence[AclFilter]) -> list[AclBinding]:
    """What the filters match, each entry once."""
    found: dict[AclBinding, None] = {}
    for one in filters:
        found |= dict.fromkeys(await asked.describe_acls(one))
    return list(found)


def _operation(text: str) -> Operation:
    name = text.upper().replace("-", "_")
    known = {one.name: one for one in Operation if one not in (Operation.UNKNOWN, Operation.ANY)}
    if name not in known:
        raise CliError(f"{text!r} is no operation: {', '.join(known)}", USAGE)
    return known[name]


def _filters(
    resources: Sequence[Resource],
    principal: str | None,
    operation: str | None,
    host: str | None,
    pattern: PatternType = PatternType.MATCH,
) -> list[AclFilter]:
    """One per resource; one for all where none is named."""
    wanted = Operation.ANY if operation is None else _operation(operation)
    if not resources:
        return [AclFilter(principal=principal, operation=wanted, host=host)]
    return [AclFilter(kind, name, principal, wanted, pattern_type=pattern, host=host) for kind, name in resources]


def _exactly(one: AclBinding) -> AclFilter:
    return AclFilter(
        one.resource_type, one.resource_name, one.principal, one.operation, one.permission, one.pattern_type, one.host
    )


def _print(bindings: Sequence[AclBinding], output: OutputFormat, done: str = "") -> None:
    if output is OutputFormat.JSON:
        print_json([_json(binding) for binding in bindings])
    elif done:
        for binding in bindings:
            print(f"{done}: {_words(binding)}")
    else:
        columns = ["PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST"]
        print_table(columns, [tuple(_json(binding).values()) for binding in bindings])


def _json(binding: AclBinding) -> dict[str, Any]:
    return {
        "principal": binding.principal,
        "permission": binding.permission.name,
        "operation": binding.operation.name,
        "resource_type": binding.resource_type.name,
        "resource_name": binding.resource_name,
        "pattern_type": binding.pattern_type.name,
        "host": binding.host,
    }


def _words(binding: AclBinding) -> str:
    verb = "may" if binding.permission is Permission.ALLOW else "may not"
    kind = binding.resource_type.name.lower().replace("_", " ")
    prefixed = " prefix" if binding.pattern_type is PatternType.PREFIXED else ""
    where = "" if binding.host == "*" else f" from {binding.host}"
    return f"{binding.principal} {verb} {binding.operation.name} {kind}{prefixed} {binding.resource_name}{where}"


def _entries(count: int) -> str:
    return plural(count, "entry").replace("entrys", "entries")


def _complain_of(errors: Any, verb: str) -> int:
    code = OK
    for what, error in errors.items():
        code = complain(f"cannot {verb} {what.principal} on {what.resource_name}: {error}", FAILED)
    return code
