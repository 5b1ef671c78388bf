"""`twofold doctor`: everything that may be in the way of a broker or a client, checked on this machine.

Nothing is changed: what is written is one file without a name in the data folder, to measure the disk.
"""

import errno
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from twofold.cli import declare
from twofold.cli.common import (
    COMMAND_CONFIG,
    FAILED,
    OK,
    Format,
    OutputFormat,
    Timeout,
    plural,
    print_json,
    run_command,
)
from twofold.cli.config.commands import Advertise, ConfigFile, Data, Listen, Setting, examined
from twofold.cli.doctor.findings import Finding, Grade, note, ok, problem, warning
from twofold.cli.sources import DEFAULT_LISTEN, StartOptions

if TYPE_CHECKING:
    from twofold.config.listeners import ListenerAddress
    from twofold.config.settings import Settings

TIMEOUT_S = 5.0
LOOPBACK = "127.0.0.1"
CHOSEN_AT_START = ":0"


def doctor(
    config: ConfigFile = None,
    option: Setting = None,
    listen: Listen = None,
    advertise: Advertise = None,
    data: Data = None,
    bootstrap_server: Annotated[
        str | None,
        declare.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT[,...]",
            envvar="TWOFOLD_BOOTSTRAP_SERVER",
            help="The cluster that a client would use. Default: what the settings listen on.",
            beside=COMMAND_CONFIG,
        ),
    ] = None,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Check settings, data folder, clock, limits, disk, ports and versions, and what a client sees. Changes nothing."""

    async def main() -> int:
        from twofold.cli.doctor.client import check_cluster

        options = StartOptions(listen, advertise, data, None, config, option or ())
        found: list[Finding] = []

        def tell(finding: Finding) -> None:
            found.append(finding)
            if output is OutputFormat.TABLE:
                _print(finding)

        settings = _check_settings(options, tell)
        listeners = [] if settings is None else _listeners(settings)
        if settings is not None:
            for finding in _check_here(settings, options):
                tell(finding)
        server = bootstrap_server or (_reached(listeners[0]) if listeners else DEFAULT_LISTEN)
        if server.endswith(CHOSEN_AT_START):
            tell(note("reachable", f"{server} has the port 0: a start chooses one", "-b names a broker that runs"))
        else:
            async for finding in check_cluster(server, timeout, is_expected=bootstrap_server is not None):
                tell(finding)
        async for finding in _check_ports(listeners, timeout):
            tell(finding)
        return _report(found, output)

    run_command(main, bootstrap_server or DEFAULT_LISTEN)


def _check_settings(options: StartOptions, tell: Callable[[Finding], None]) -> "Settings | None":
    from twofold.config.examine import Severity

    found = examined(options)
    for row in found.findings:
        make = problem if row.level is Severity.PROBLEM else warning
        source = f" (from {row.source})" if row.source else ""
        tell(make("settings", f"{row.setting}{source}: {row.text}"))
    if not found.problems and found.settings is not None:
        tell(ok("settings", f"{plural(len(found.settings.explicit()), 'setting')} set, the rest have their defaults"))
    return found.settings


def _check_here(settings: "Settings", options: StartOptions) -> Iterator[Finding]:
    from twofold.cli.doctor.folder import IN_MEMORY, check_folder, existing, filesystem, newest_ms
    from twofold.cli.doctor.machine import check_clock, check_limits, check_sync, check_versions
    from twofold.cli.sources import UsageError, data_folder

    yield from check_versions()
    yield from check_limits(settings.int("log.segment.bytes"))
    try:
        path = Path(data_folder(options, settings))
    except UsageError as error:
        yield problem("folder", str(error))
        yield from check_clock(None)
        return
    yield from check_clock(newest_ms(path))
    yield from _seen("folder", check_folder(path, settings))
    here = existing(path)
    if here.is_dir():
        yield from check_sync(here, in_memory=filesystem(here) in IN_MEMORY)


def _seen(check: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """What this user may not look at, or what goes away meanwhile, is a finding and no end of the others."""
    try:
        yield from findings
    except OSError as error:
        yield problem(check, f"{error.filename} cannot be looked at: {error.strerror}", "ask as the broker's user")


def _listeners(settings: "Settings") -> "list[ListenerAddress]":
    from twofold.config.listeners import ListenerError, listen_addresses

    try:
        return listen_addresses(settings)
    except ListenerError:
        return []  # told as a problem of the settings


def _reached(address: "ListenerAddress") -> str:
    from twofold.config.listeners import EVERYWHERE

    host = LOOPBACK if address.host in EVERYWHERE else address.host
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"


async def _check_ports(listeners: "list[ListenerAddress]", timeout_s: float) -> AsyncIterator[Finding]:
    from twofold.cli.doctor.client import cluster_at
    from twofold.runtime.real import check_can_listen

    for address in listeners:
        try:
            check_can_listen(address.host, address.port)
        except OSError as error:
            cluster = await cluster_at(_reached(address), timeout_s) if error.errno == errno.EADDRINUSE else None
            if cluster is not None:
                yield note("ports", f"{address} is in use, by a broker of cluster {cluster}")
            else:
                advice = "stop what listens there, or choose another --listen"
                yield problem("ports", str(error.strerror or error), advice)
        else:
            yield ok("ports", f"{address} is free")


def _print(finding: Finding) -> None:
    print(f"{finding.level.value:<8} {finding.check:<12} {finding.text}", flush=True)
    if finding.advice:
        print(f"{'':<21} {finding.advice}", flush=True)


def _report(found: list[Finding], output: OutputFormat) -> int:
    counts = {level: sum(finding.level is level for finding in found) for level in Grade}
    code = FAILED if counts[Grade.PROBLEM] else OK
    if output is OutputFormat.JSON:
        rows = [finding._asdict() | {"level": finding.level.value} for finding in found]
        print_json({"ok": code == OK, "findings": rows})
    else:
        print(f"\n{plural(counts[Grade.PROBLEM], 'problem')}, {plural(counts[Grade.WARNING], 'warning')}")
    return code
