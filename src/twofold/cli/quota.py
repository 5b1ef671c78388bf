"""`twofold quota`: set, list, remove."""

from collections.abc import Mapping
from typing import Annotated

from twofold.cli import declare
from twofold.cli.admin import complain_of_all, connected
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
    parse_pairs,
    print_json,
    print_table,
    run_command,
    say_empty,
)
from twofold.client import QuotaTarget

quota_app = declare.App(
    help="Set, list and remove quotas: what users, client ids and addresses may take.", no_args_is_help=True
)

User = Annotated[str | None, declare.Option("--user", help="The user, as in its principal User:NAME.")]
ClientId = Annotated[str | None, declare.Option("--client-id", help="The client.id of the clients.")]
Ip = Annotated[str | None, declare.Option("--ip", help="An IP address; for connection_creation_rate only.")]
UserDefaults = Annotated[bool, declare.Option("--user-defaults", help="Every user without a quota of its own.")]
ClientDefaults = Annotated[
    bool, declare.Option("--client-defaults", help="Every client id without a quota of its own.")
]
IpDefaults = Annotated[bool, declare.Option("--ip-defaults", help="Every address without a quota of its own.")]


@quota_app.command("set", epilog=EXIT_CODES)
def set_quotas(
    limits: Annotated[
        list[str],
        declare.Argument(
            metavar="KEY=VALUE...",
            help="producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate, or for an "
            "address connection_creation_rate; each per second.",
        ),
    ],
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Set quotas of a user, a client id, a user and a client id, or an address."""
    target = _chosen(user, user_defaults, client_id, client_defaults, ip, ip_defaults)
    values = {key: _number(key, text) for key, text in parse_pairs(limits, "quota").items()}
    _alter(target, values, bootstrap_server, timeout)


@quota_app.command("remove", epilog=EXIT_CODES)
def remove(
    keys: Annotated[
        list[str] | None, declare.Argument(metavar="[KEY...]", help="Default: all that the owner has.")
    ] = None,
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Remove quotas: no limit holds any more, or that of a default."""
    target = _chosen(user, user_defaults, client_id, client_defaults, ip, ip_defaults)
    _alter(target, dict.fromkeys(keys) if keys else None, bootstrap_server, timeout)


@quota_app.command("list", epilog=EXIT_CODES)
def list_quotas(
    user: User = None,
    user_defaults: UserDefaults = False,
    client_id: ClientId = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the quotas, all of them or those that name a user, a client id or an address."""
    target = _target(user, user_defaults, client_id, client_defaults, ip, ip_defaults)

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            found = await admin.describe_quotas(target)
        if output is OutputFormat.JSON:
            print_json([{**owner.parts(), "quotas": dict(values)} for owner, values in found.items()])
        elif found:
            rows = [(str(owner), key, f"{value:g}") for owner, values in found.items() for key, value in values.items()]
            print_table(["OWNER", "QUOTA", "PER SECOND"], rows, right=["PER SECOND"])
        else:
            say_empty("no quota; `twofold quota set KEY=VALUE --user NAME` makes one")
        return OK

    run_command(main, bootstrap_server)


def _alter(
    target: QuotaTarget, values: Mapping[str, float | None] | None, bootstrap_server: str, timeout: float
) -> None:
    """Without values, all that the owner has is removed."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            changes = values
            if changes is None:
                found = await admin.describe_quotas(target, strict=True)
                changes = dict.fromkeys(found.get(target, {}))
            results = await admin.alter_quotas({target: changes})
        for key, value in changes.items() if target in results.values else ():
            print(f"{target}: {key} removed" if value is None else f"{target}: {key}={value:g}")
        if not changes and target in results.values:
            say_empty(f"{target} has no quota")
        return complain_of_all(results.errors, "change the quotas of", lambda _, error: str(error))

    run_command(main, bootstrap_server)


def _chosen(
    user: str | None,
    user_defaults: bool,
    client_id: str | None,
    client_defaults: bool,
    ip: str | None,
    ip_defaults: bool,
) -> QuotaTarget:
    target = _target(user, user_defaults, client_id, client_defaults, ip, ip_defaults)
    if not target.parts():
        raise CliError("whose quota? Give --user, --client-id, both, --ip, or one of their defaults", USAGE)
    return target


def _target(
    user: str | None,
    user_defaults: bool,
    client_id: str | None,
    client_defaults: bool,
    ip: str | None,
    ip_defaults: bool,
) -> QuotaTarget:
    return QuotaTarget(
        _part("--user", user, "--user-defaults", user_defaults),
        _part("--client-id", client_id, "--client-defaults", client_defaults),
        _part("--ip", ip, "--ip-defaults", ip_defaults),
    )


def _part(option: str, name: str | None, default_option: str, is_default: bool) -> str | None:
    if name is not None and is_default:
        raise CliError(f"{option} {name} and {default_option} are two owners: set one after the other", USAGE)
    if name == "":
        raise CliError(f"{option} has an empty name; {default_option} is for all without a quota of their own", USAGE)
    if is_default:
        return None
    return "" if name is None else name


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CliError(f"{key}={text} is no number", USAGE) from None
