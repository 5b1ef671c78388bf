"""`twofold user`: add, list and remove the users of SCRAM.

A password is read from a file, the environment or a prompt, and never from the command line, which others can see.
"""

import os
import sys
from enum import StrEnum
from typing import Annotated

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
    print_json,
    print_table,
    run_command,
    say_empty,
)
from twofold.cli.security import StoppedData, security
from twofold.client.admin.security import ScramPassword
from twofold.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism

user_app = declare.App(help="Add, list and remove the users of SCRAM.", no_args_is_help=True)

PASSWORD_VARIABLE = "TWOFOLD_USER_PASSWORD"


class Mechanism(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def code(self) -> ScramMechanism:
        return ScramMechanism.SHA_256 if self is Mechanism.SHA_256 else ScramMechanism.SHA_512


@user_app.command("add", epilog=EXIT_CODES)
def add(
    name: Annotated[str, declare.Argument(metavar="NAME", help="The user; the principal is User:NAME.")],
    mechanism: Annotated[Mechanism, declare.Option("--mechanism", help="How the user logs in.")] = Mechanism.SHA_512,
    iterations: Annotated[
        int,
        declare.Option("--iterations", min=MIN_ITERATIONS, max=MAX_ITERATIONS, help="More make guessing slower."),
    ] = MIN_ITERATIONS,
    password_file: Annotated[
        str | None,
        declare.Option("--password-file", metavar="FILE", help="Its first line is the password; - is standard input."),
    ] = None,
    data: StoppedData = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Add a user, or set the password of one. The next login needs it; what is connected stays so."""

    async def main() -> int:
        wanted = ScramPassword(name, _password(name, password_file), mechanism.code, iterations)
        async with security(bootstrap_server, timeout, data) as asked:
            (await asked.alter_users([wanted])).get()
        print(f"set the password of {name} for {mechanism}")
        return OK

    run_command(main, bootstrap_server)


@user_app.command("list", epilog=EXIT_CODES)
def list_users(
    data: StoppedData = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List users, their mechanisms and iterations; never anything of a password."""

    async def main() -> int:
        async with security(bootstrap_server, timeout, data) as asked:
            users = (await asked.describe_users()).get()
        rows = [
            {"user": user, "mechanism": mechanism.mechanism_name, "iterations": count}
            for user, mechanisms in sorted(users.items())
            for mechanism, count in sorted(mechanisms.items())
        ]
        if output is OutputFormat.JSON:
            print_json(rows)
        elif rows:
            print_table(
                ["USER", "MECHANISM", "ITERATIONS"], [tuple(row.values()) for row in rows], right=["ITERATIONS"]
            )
        else:
            say_empty("no user logs in with SCRAM; `twofold user add NAME` makes one")
        return OK

    run_command(main, bootstrap_server)


@user_app.command("remove", epilog=EXIT_CODES)
def remove(
    name: Annotated[str, declare.Argument(metavar="NAME", help="The user.")],
    mechanism: Annotated[Mechanism | None, declare.Option("--mechanism", help="Only this one of the user's.")] = None,
    yes: Yes = False,
    data: StoppedData = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Remove a user. No new login succeeds; what is connected stays so, and entries about the user stay."""

    async def main() -> int:
        async with security(bootstrap_server, timeout, data) as asked:
            found = (await asked.describe_users([name])).get()[name]
            gone = [code for code in found if mechanism is None or code is mechanism.code]
            if not gone:
                raise CliError(f"{name} has no credential for {mechanism}", FAILED)
            if not yes:
                shown = ", ".join(code.mechanism_name for code in gone)
                confirm(f"Remove {name} ({shown})?", "nothing was removed")
            code = OK
            for one in gone:  # a request may name a user once
                for error in (await asked.alter_users(removals=[(name, one)])).errors.values():
                    code = complain(f"cannot remove {name} ({one.mechanism_name}): {error}", FAILED)
                if code == OK:
                    print(f"removed {name} ({one.mechanism_name})")
        return code

    run_command(main, bootstrap_server, destructive=data is None)


def _password(name: str, path: str | None) -> str:
    if path is not None:
        password = _first_line(path)
    elif PASSWORD_VARIABLE in os.environ:
        password = os.environ[PASSWORD_VARIABLE]
    elif sys.stdin.isatty():
        password = _prompted(name)
    else:
        raise CliError(
            f"give the password with --password-file FILE (- is standard input) or {PASSWORD_VARIABLE}", USAGE
        )
    if not password:
        raise CliError("the password is empty", USAGE)
    return password


def _first_line(path: str) -> str:
    try:
        if path == "-":
            return sys.stdin.readline().rstrip("\r\n")
        with open(path, encoding="utf-8") as file:
            return file.readline().rstrip("\r\n")
    except OSError as error:
        raise CliError(f"cannot read --password-file {path}: {error.strerror}", USAGE) from None
    except UnicodeDecodeError:
        raise CliError(f"cannot read --password-file {path}: it is not UTF-8", USAGE) from None


def _prompted(name: str) -> str:
    from getpass import getpass

    password = getpass(f"Password of {name}: ")
    if getpass("Again: ") != password:
        raise CliError("the two differ; nothing was changed", USAGE)
    return password
