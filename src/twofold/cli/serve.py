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
from typing import TYPE_CHECKING

from twofold.cli.systemd import READY, STOPPING, tell_systemd
from twofold.logging import FORMATS, LEVELS, configure_logging
from twofold.version import VERSION

if TYPE_CHECKING:
    import click

    from twofold.broker.faults.http import FaultServer
    from twofold.broker.faults.local import LocalFaults
    from twofold.config.settings import Settings, Source

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA = "./twofold-data"  # also the default of log.dir

DESCRIPTION = "Run a broker in this process. Prints one line on stdout when it is ready."

EPILOG = """\
Settings are those of Apache Kafka's server.properties. The command line wins over the environment
(TWOFOLD_NUM_PARTITIONS=3 sets num.partitions), the environment over the file.

exit codes: 0 stopped by a signal, 1 the broker could not start or failed, 2 wrong arguments or settings
"""


NO_FULL_COLLECTION = 1_000_000  # of the young ones before an old one


class UsageError(Exception):
    """The command line or a setting is wrong: exit code 2."""


def serve_command(arguments: Sequence[str]) -> int:
    """Parse, run until a signal, and return the exit code."""
    gc.disable()  # until it is ready: starting only makes objects that stay
    options = _parser().parse_args(arguments)
    configure_logging(log_format=options.log_format, level=options.log_level)
    try:
        settings = _settings(_collect_sources(options))
        return _run(settings, _data_dir(options, settings), options.test_faults)
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
    parser.add_argument("--data", metavar="DIR", help=f"where the logs are kept (default {DEFAULT_DATA})")
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve http://HOST:PORT/metrics, /healthz, /readyz")
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
            metavar=action.metavar if isinstance(action.metavar, str) else None,
            help=action.help,
        )
        for action in given
    ]
    return declare.Verb(
        "serve", params=[*options], help=DESCRIPTION, epilog=EPILOG, context_settings=dict(declare.SETTINGS)
    )


def _collect_sources(options: argparse.Namespace) -> "list[Source]":
    """File, then environment, then the command line: the later wins."""
    from twofold.config.settings import Source, data_settings, environment_values

    file = {} if options.config is None else _read_properties(options.config)
    sources = [
        Source(str(options.config), file, lenient=True),
        Source("the environment", environment_values(os.environ)),
    ]
    chosen: dict[str, str] = {}
    for option in options.option:
        key, separator, value = option.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"-o {option!r} is not of the form key=value")
        chosen[key.strip()] = value.strip()
    if options.listen is not None:
        chosen["listeners"] = _listener(options.listen)
    if options.data is not None:
        chosen |= data_settings(options.data)
    if options.metrics is not None:
        chosen["metrics.listener"] = options.metrics
    sources.append(Source("the command line", chosen))
    if not any("listeners" in source.texts for source in sources):
        sources.insert(0, Source("the default", {"listeners": _listener(DEFAULT_LISTEN)}))
    return sources


def _read_properties(path: str) -> dict[str, str]:
    from twofold.config.settings import parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            return parse_properties(file.read())
    except OSError as error:
        raise UsageError(f"cannot read --config {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"cannot read --config {path}: {error}") from None


def _listener(listen: str) -> str:
    host, separator, port = listen.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {listen!r} is not HOST:PORT with a port from 0 to 65535 (0 chooses one)")
    return f"PLAINTEXT://{host}:{port}"


def _settings(sources: "list[Source]") -> "Settings":
    from twofold.config.settings import Settings

    try:
        return Settings.from_sources(*sources)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _data_dir(options: argparse.Namespace, settings: "Settings") -> str:
    from twofold.config.definition import ConfigError
    from twofold.config.settings import data_directory

    if options.data is not None:
        return str(options.data)
    try:
        return data_directory(settings)
    except ConfigError as error:
        raise UsageError(f"{error} with --data") from None


def _run(settings: "Settings", data_dir: str, test_faults: str | None) -> int:
    from twofold.runtime.real import raise_open_file_limit, run

    raise_open_file_limit()
    if test_faults is None:
        return run(_serve(settings, data_dir))
    from twofold.broker.faults.local import LocalFaults

    faults = LocalFaults()
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

    def ready(host: str, port: int) -> None:
        gc.freeze()  # what was made while starting stays: no collection needs to look at it
        gc.enable()
        print(f"twofold {VERSION} ready on {host}:{port}, data in {data_dir}", flush=True)
        tell_systemd(READY)

    def on_metrics(host: str, port: int) -> None:
        where = f"[{host}]" if ":" in host else host
        logging.getLogger(__name__).info("http://%s:%d serves /metrics, /healthz and /readyz", where, port)

    def on_looked() -> None:
        gc.freeze()  # logs that were opened stay open
        gc.set_threshold(young, middle, old)

    await serve(settings, data_dir, ready, stop, on_metrics=on_metrics, on_looked=on_looked, faults=faults)
    return 0


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
