"""`twofold profile`: add, list, show, use, remove."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from twofold.cli import declare
from twofold.cli.common import (
    EXIT_CODES,
    USAGE,
    CliError,
    Format,
    OutputFormat,
    complain,
    print_json,
    print_table,
    say_empty,
)
from twofold.cli.profile.chosen import PROFILE_VARIABLE
from twofold.cli.profile.store import (
    CONFIG,
    NOTE,
    SERVER,
    Profile,
    Profiles,
    change_profiles,
    check_name,
    check_server,
    profiles_path,
    read_profiles,
)

profile_app = declare.App(
    help="Give clusters names: their addresses, and which of them commands ask.", no_args_is_help=True
)

Name = Annotated[str, declare.Argument(metavar="NAME", help="The name of the profile.")]


@profile_app.command("add", epilog=EXIT_CODES)
def add(
    name: Name,
    server: Annotated[
        str,
        declare.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT[,...]",
            help="Brokers to ask first, or where to read them: env:NAME or file:PATH.",
        ),
    ],
    command_config: Annotated[
        Path | None,
        declare.Option("--command-config", metavar="FILE", help="Settings of the client, as security.protocol."),
    ] = None,
    note: Annotated[str, declare.Option("--note", metavar="TEXT", help="What it is for.")] = "",
    use: Annotated[bool, declare.Option("--use", help="Use it from now on.")] = False,
    replace: Annotated[bool, declare.Option("--replace", help="Replace the profile of this name.")] = False,
) -> None:
    """Add a profile. Nothing is asked of the cluster."""

    def change(profiles: Profiles) -> Profiles:
        if name in profiles.by_name and not replace:
            known = profiles.by_name[name].bootstrap_server
            raise CliError(f"profile {name} is there already, for {known}; --replace changes it", USAGE)
        file = "" if command_config is None else str(command_config.expanduser().resolve())
        added = profiles.with_profile(Profile(name, server, note, file))
        return Profiles(name, added.by_name) if use else added

    def main() -> None:
        check_name(name)
        check_server(server)
        if command_config is not None and not command_config.expanduser().is_file():
            raise CliError(f"--command-config {command_config} is no file", USAGE)
        if any(ord(letter) < 32 for letter in note):
            raise CliError("--note is one line of text", USAGE)
        changed = change_profiles(change)
        print(f"added {name} ({server}) to {profiles_path()}{', in use' if changed.current == name else ''}")

    _run(main)


@profile_app.command("list", epilog=EXIT_CODES)
def list_profiles(output: Format = OutputFormat.TABLE) -> None:
    """List profiles."""

    def main() -> None:
        profiles = read_profiles()
        names = sorted(profiles.by_name)
        if output is OutputFormat.JSON:
            print_json([_json(profiles, name) for name in names])
        elif names:
            rows = [
                ("*" if name == profiles.current else "", name, profile.bootstrap_server, profile.note)
                for name in names
                for profile in (profiles.by_name[name],)
            ]
            print_table(["", "PROFILE", "BOOTSTRAP SERVER", "NOTE"], rows)
        else:
            say_empty(f"no profile in {profiles_path()}; `twofold profile add NAME -b HOST:PORT` makes one")

    _run(main)


@profile_app.command("show", epilog=EXIT_CODES)
def show(
    name: Annotated[str | None, declare.Argument(metavar="[NAME]", help="Default: the one in use.")] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Show a profile, and the address that a command would ask now."""

    def main() -> None:
        profiles = read_profiles()
        chosen = name or os.environ.get(PROFILE_VARIABLE) or profiles.current
        if chosen is None:
            raise CliError(f"no profile is in use: `twofold profile use NAME`, or set {PROFILE_VARIABLE}", USAGE)
        profile = profiles.get(chosen)
        if output is OutputFormat.JSON:
            print_json(_json(profiles, chosen) | {"resolved": profile.resolved()})
            return
        print(f"profile           {chosen}{' (in use)' if chosen == profiles.current else ''}")
        print(f"{SERVER}  {profile.bootstrap_server}")
        if profile.is_reference:
            print(f"now               {profile.resolved()}")
        if profile.command_config:
            print(f"{CONFIG}    {profile.command_config}")
        if profile.note:
            print(f"{NOTE}              {profile.note}")
        print(f"file              {profiles_path()}")

    _run(main)


@profile_app.command("use", epilog=EXIT_CODES)
def use(
    name: Annotated[str | None, declare.Argument(metavar="[NAME]", help="The name of the profile.")] = None,
    none: Annotated[bool, declare.Option("--none", help="Use none.")] = False,
) -> None:
    """Choose the profile that commands use where nothing else is said."""

    def change(profiles: Profiles) -> Profiles:
        return Profiles(None if name is None else profiles.get(name).name, profiles.by_name)

    def main() -> None:
        if (name is None) != none:
            raise CliError("say which: a name, or --none", USAGE)
        changed = change_profiles(change)
        if name is None:
            print("no profile is in use")
        else:
            print(f"{name} is in use ({changed.by_name[name].bootstrap_server})")

    _run(main)


@profile_app.command("remove", epilog=EXIT_CODES)
def remove(name: Name) -> None:
    """Remove a profile. Nothing happens to the cluster."""

    def main() -> None:
        was_used: list[str] = []

        def change(profiles: Profiles) -> Profiles:
            if profiles.get(name).name == profiles.current:
                was_used.append(name)
            return profiles.without(name)

        change_profiles(change)
        print(f"removed {name}{', and no profile is in use now' if was_used else ''}")

    _run(main)


def _json(profiles: Profiles, name: str) -> dict[str, object]:
    profile = profiles.by_name[name]
    return {
        "name": name,
        "bootstrap_server": profile.bootstrap_server,
        "command_config": profile.command_config or None,
        "note": profile.note,
        "in_use": name == profiles.current,
    }


def _run(main: Callable[[], None]) -> None:
    try:
        main()
    except CliError as error:
        raise declare.Exit(complain(str(error), error.code)) from None
