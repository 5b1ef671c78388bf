"""`twofold serve`: run one broker in this process.

Standard output gets exactly one line, when the broker is ready; the log goes to stderr. A failure is one line and an
exit code: 2 for what is wrong on the command line or in the settings, 1 for what went wrong with the machine.
"""

import argparse
import asyncio
import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from twofold.cli.sources import (
    DEFAULT_DATA,
    DEFAULT_LISTEN,
    StartOptions,
    UsageError,
    collect_sources,
    data_folder,
    make_settings,
)
from twofold.cli.systemd import READY, STOPPING, tell_systemd
from twofold.logging import FORMATS, LEVELS, configure_logging
from twofold.version import VERSION

if TYPE_CHECKING:
    import click

    from twofold.broker.broker import Broker
    from twofold.broker.faults.http import FaultServer
    from twofold.broker.faults.local import LocalFaults
    from twofold.config.settings import Settings

DESCRIPTION = "Run a broker in this process. Prints one line on stdout when it is ready."

EPILOG = """\
Settings are those of Apache Kafka's server.properties. The command line wins over the environment
(TWOFOLD_NUM_PARTITIONS=3 sets num.partitions), the environment over the file.

exit codes: 0 stopped by a signal, 1 the broker could not start or failed, 2 wrong arguments or settings
"""


NO_FULL_COLLECTION = 1_000_000  # of the young ones before an old one

_ENDS = {"stop": signal.SIGTERM, "kill": signal.SIGKILL}  # of a broker for tests


def serve_command(arguments: Sequence[str]) -> int:
    """Parse, run until a signal, and return the exit code."""
    gc.disable()  # until it is ready: starting only makes objects that stay
    options = _parser().parse_args(arguments)
    configure_logging(log_format=options.log_format, level=options.log_level)
    try:
        start = StartOptions(
            options.listen, options.advertise, options.data, options.metrics, options.config, options.option,
            options.join, options.coordinators_only,
        )  # fmt: skip
        settings = make_settings(collect_sources(start))
        return _run(settings, data_folder(start, settings), options.test_faults)
    except KeyboardInterrupt:
        return 130  # before the loop took over the signals
    except Exception as error:
        return _fail(*_explain(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="twofold serve",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help=f"where clients connect (default {DEFAULT_LISTEN})")
    parser.add_argument(
        "--advertise", metavar="HOST[:PORT]", help="the address that clients are told (default: that of --listen)"
    )
    parser.add_argument("--data", metavar="DIR", help=f"where the logs are kept (default {DEFAULT_DATA})")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve http://HOST:PORT/metrics, /healthz, /readyz")
    parser.add_argument(
        "--join",
        metavar="HOST:PORT",
        help="be a broker of the cluster whose controllers listen there (default: do not)",
    )
    parser.add_argument(
        "--coordinators-only",
        action="store_true",
        help="with --join: partitions lie here only if they are asked for by name (cordoned.log.dirs=*)",
    )
    parser.add_argument("--config", metavar="FILE", help="a server.properties file")
    parser.add_argument(
        "-o", "--option", metavar="KEY=VALUE", action="append", default=[], help="one setting; may be repeated"
    )
    parser.add_argument("--log-format", choices=FORMATS, default="human", help="how to log (default human)")
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="what to log (default info)")
    parser.add_argument(
        "--test-faults",
        metavar="HOST:PORT",
        help="for tests only: let http://HOST:PORT pause this broker, move its clock, fail requests (default: do not)",
    )
    return parser


def make_help() -> "click.Command":
    """`twofold serve --help` as the other commands have it, and what completion knows of it."""
    import click

    from twofold.cli import declare

    given = [action for action in _parser()._actions if action.option_strings and action.dest != "help"]
    options = [
        click.Option(
            [action.dest, *action.option_strings],
            type=click.Choice(list(action.choices)) if action.choices else None,
            is_flag=action.nargs == 0,
            metavar=action.metavar if isinstance(action.metavar, str) else None,
            help=action.help,
        )
        for action in given
    ]
    return declare.Verb(
        "serve", params=[*options], help=DESCRIPTION, epilog=EPILOG, context_settings=dict(declare.SETTINGS)
    )


def _run(settings: "Settings", data_dir: str, test_faults: str | None) -> int:
    from twofold.runtime.real import raise_open_file_limit, run

    raise_open_file_limit()
    if test_faults is None:
        return run(_serve(settings, data_dir))
    from twofold.broker.faults.local import LocalFaults

    ends = {name: partial(os.kill, os.getpid(), number) for name, number in _ENDS.items()}
    faults = LocalFaults(**ends)
    server = _listen_for_faults(faults, test_faults)
    try:
        return run(_serve(settings, data_dir, faults))
    finally:
        server.stop()


def _listen_for_faults(faults: "LocalFaults", address: str) -> "FaultServer":
    from twofold.broker.faults.http import FaultServer
    from twofold.config.listeners import parse_host_port

    at = parse_host_port(address, "--test-faults")
    try:
        server = FaultServer(faults, at.host, at.port)
    except OSError as error:
        raise OSError(f"--test-faults {address} cannot be listened on: {error.strerror}") from error
    logging.getLogger(__name__).warning(
        "this broker is for tests: every program that reaches http://%s can pause it, move its clock and fail its "
        "requests (--test-faults)", server.address,
    )  # fmt: skip
    return server


async def _serve(settings: "Settings", data_dir: str, faults: "LocalFaults | None" = None) -> int:
    from twofold.broker.run import serve

    stop = asyncio.Event()
    _stop_on_signals(stop)
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NO_FULL_COLLECTION)  # it would hold requests up for the sake of what stays

    told: list[str] = []

    def on_started(broker: "Broker") -> None:
        told.append(_address(broker.advertised[0].host, broker.advertised[0].port))

    def ready(host: str, port: int) -> None:
        gc.freeze()  # what was made while starting stays: no collection needs to look at it
        gc.enable()
        here = _address(host, port)
        elsewhere = [f", advertised as {address}" for address in told if address != here]
        print(f"twofold {VERSION} ready on {here}{''.join(elsewhere)}, data in {data_dir}", flush=True)
        tell_systemd(READY)

    def on_metrics(host: str, port: int) -> None:
        logging.getLogger(__name__).info("http://%s serves /metrics, /healthz and /readyz", _address(host, port))

    def on_looked() -> None:
        gc.freeze()  # logs that were opened stay open
        gc.set_threshold(young, middle, old)

    await serve(
        settings,
        data_dir,
        ready,
        stop,
        on_metrics=on_metrics,
        on_looked=on_looked,
        on_started=on_started,
        faults=faults,
    )
    return 0


def _address(host: str, port: int) -> str:
    """As a client takes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _stop_on_signals(stop: asyncio.Event) -> None:
    """The first signal asks for an orderly end, the second does not ask."""

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        tell_systemd(STOPPING)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)


def _explain(error: Exception) -> tuple[str, int]:
    """One line and an exit code. An unexpected error goes to the log with its trace."""
    from twofold.config.definition import ConfigError
    from twofold.config.listeners import ListenerError
    from twofold.extras import MissingExtra
    from twofold.log.manager import DataDirectoryError

    if isinstance(error, UsageError | ConfigError | ListenerError):
        return str(error), 2
    if isinstance(error, MissingExtra):
        return str(error), 1
    if isinstance(error, DataDirectoryError):
        return f"{error} (--data)", 1
    if isinstance(error, OSError):
        hint = "; choose another port with --listen HOST:PORT" if error.errno == errno.EADDRINUSE else ""
        return _reason(error) + hint, 1
    logging.getLogger(__name__).critical("the broker failed", exc_info=error)
    return f"{type(error).__name__}: {error}", 1


def _reason(error: OSError) -> str:
    parts = (error.filename, error.strerror or str(error))
    return ": ".join(str(part) for part in parts if part)


def _fail(message: str, code: int) -> int:
    print(f"twofold serve: {message}", file=sys.stderr)
    return code
