"""`twofold config`: check the settings of a start before it, and show what holds, here or in a running broker."""

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

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
    complain,
    plural,
    print_json,
    print_table,
    run_command,
    say_empty,
)
from twofold.cli.sources import StartOptions, UsageError, collect_sources

if TYPE_CHECKING:
    from twofold.config.examine import Examined
    from twofold.config.settings import Settings, Source

config_app = declare.App(help="Check the settings of a broker before it starts, and show them.", no_args_is_help=True)

HIDDEN = "***"
BY_DEFAULT = "default"

ConfigFile = Annotated[
    str | None,
    declare.Option("--config", metavar="FILE", help="A server.properties file, as `twofold serve` takes it."),
]
Setting = Annotated[
    list[str] | None, declare.Option("--option", "-o", metavar="KEY=VALUE", help="One setting; repeatable.")
]
Listen = Annotated[str | None, declare.Option("--listen", metavar="HOST:PORT", help="As `twofold serve` takes it.")]
Advertise = Annotated[
    str | None, declare.Option("--advertise", metavar="HOST[:PORT]", help="As `twofold serve` takes it.")
]
Data = Annotated[str | None, declare.Option("--data", metavar="DIR", help="As `twofold serve` takes it.")]


@config_app.command("check", epilog=EXIT_CODES)
def check(
    file: Annotated[str | None, declare.Argument(metavar="[FILE]", help="A server.properties file.")] = None,
    config: ConfigFile = None,
    option: Setting = None,
    listen: Listen = None,
    advertise: Advertise = None,
    data: Data = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Say everything that is wrong with the settings of a start. Starts nothing and writes nothing."""

    def main() -> int:
        if file is not None and config is not None:
            raise CliError(f"{file} and --config {config} are two files: give one", USAGE)
        options = StartOptions(listen, advertise, data, None, file or config, option or ())
        return report(examined(options), output)

    _run(main)


@config_app.command("show", epilog=EXIT_CODES)
def show(
    names: Annotated[
        list[str] | None, declare.Argument(metavar="[KEY...]", help="Default: those that are set.")
    ] = None,
    everything: Annotated[bool, declare.Option("--all", help="Also those that have their default.")] = False,
    broker: Annotated[
        int | None,
        declare.Option("--broker", metavar="ID", help="What this running broker has, instead of a start here."),
    ] = None,
    config: ConfigFile = None,
    option: Setting = None,
    listen: Listen = None,
    advertise: Advertise = None,
    data: Data = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show settings, each with its value and where that comes from."""
    wanted = set(names or ())
    if broker is not None:
        _show_running(broker, wanted, everything, bootstrap_server, output, timeout)
        return

    def main() -> int:
        options = StartOptions(listen, advertise, data, None, config, option or ())
        sources = _sources(options)
        found = _examine(sources)
        if found.settings is None:
            return report(found, output)
        rows = _start_rows(found.settings, wanted, everything)
        _print_rows(rows, wanted, output)
        for finding in found.problems:
            complain(f"{finding.setting}{_from(finding.source)}: {finding.text}", FAILED)
        return FAILED if found.problems else OK

    _run(main)


# A start


def examined(options: StartOptions) -> "Examined":
    return _examine(_sources(options))


def _sources(options: StartOptions) -> "list[Source]":
    try:
        return collect_sources(options)
    except UsageError as error:
        raise CliError(str(error), USAGE) from None


def _examine(sources: "list[Source]") -> "Examined":
    from twofold.config.examine import examine

    return examine(sources, hostname=socket.gethostname())


def report(found: "Examined", output: OutputFormat) -> int:
    """Print the findings; returns the exit code."""
    code = FAILED if found.problems else OK
    if output is OutputFormat.JSON:
        rows = [finding._asdict() | {"level": finding.level.value} for finding in found.findings]
        print_json({"ok": code == OK, "findings": rows})
        return code
    for finding in found.findings:
        print(f"{finding.level.value:<8} {finding.setting}{_from(finding.source)}: {finding.text}")
    warnings = len(found.findings) - len(found.problems)
    count = 0 if found.settings is None else len(found.settings.explicit())
    end = f"{plural(count, 'setting')} would hold" if code == OK else "a broker would not start"
    print(f"{plural(len(found.problems), 'problem')}, {plural(warnings, 'warning')}: {end}")
    return code


def _from(source: str) -> str:
    return f" (from {source})" if source else ""


Row = tuple[str, str | None, str]


def _start_rows(settings: "Settings", wanted: set[str], everything: bool) -> list[Row]:
    from twofold.config.definition import text_of
    from twofold.config.keys import DEFINITIONS

    rows: list[Row] = []
    for name in sorted(DEFINITIONS):
        key, given = DEFINITIONS[name], settings.given.get(name)
        is_shown = name in wanted if wanted else everything or given is not None
        if not is_shown or (key.internal and given is None and not wanted):
            continue
        value = settings[name]
        text = HIDDEN if key.is_sensitive and value is not None else (None if value is None else text_of(value))
        rows.append((name, text, BY_DEFAULT if given is None else given.source))
    return rows


# A running broker


def _show_running(
    broker: int, wanted: set[str], everything: bool, bootstrap_server: str, output: OutputFormat, timeout: float
) -> None:
    async def main() -> int:
        from twofold.cli.admin import connected
        from twofold.client import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.BROKER, str(broker))
        async with connected(bootstrap_server, timeout) as admin:
            known = sorted(node.node_id for node in (await admin.describe_cluster()).brokers)
            if broker not in known:
                raise CliError(f"there is no broker {broker}: the cluster has {', '.join(map(str, known))}", USAGE)
            found = (await admin.describe_configs([resource])).get()[resource]
        rows: list[Row] = [
            (entry.name, HIDDEN if entry.sensitive else entry.value, SOURCES.get(entry.source, entry.source))
            for entry in sorted(found, key=lambda entry: entry.name)
            if (entry.name in wanted if wanted else everything or not entry.is_default)
        ]
        _print_rows(rows, wanted, output)
        return OK

    run_command(main, bootstrap_server)


SOURCES = {
    "DYNAMIC_BROKER_CONFIG": "changed while running, this broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "changed while running, all brokers",
    "STATIC_BROKER_CONFIG": "the start",
    "DEFAULT_CONFIG": BY_DEFAULT,
}


def _print_rows(rows: Sequence[Row], wanted: set[str], output: OutputFormat) -> None:
    from twofold.config.settings import why_ignored

    for name in sorted(wanted - {row[0] for row in rows}):
        raise CliError(f"{name}: {why_ignored(name)}", USAGE)
    if output is OutputFormat.JSON:
        print_json([{"name": name, "value": value, "source": source} for name, value, source in rows])
    elif rows:
        print_table(
            ["SETTING", "VALUE", "SOURCE"],
            [(name, "-" if value is None else value, source) for name, value, source in rows],
        )
    else:
        say_empty("no setting is set: all have their defaults, which --all shows")


def _run(main: Callable[[], int]) -> None:
    from twofold.logging import configure_logging

    configure_logging(level="critical")  # what would be logged is said
    try:
        code = main()
    except CliError as error:
        code = complain(str(error), error.code)
    raise declare.Exit(code)
