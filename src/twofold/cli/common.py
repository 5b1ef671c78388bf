"""What the commands share: options, exit codes, errors for people, tables and JSON."""

import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from twofold.cli import declare
from twofold.cli.profile.chosen import in_effect

if TYPE_CHECKING:
    from rich.console import Console

    from twofold.wire.errors import KafkaError

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = (
    "Exit codes: 0 done, 1 the broker refused or a part failed, 2 wrong arguments, 3 no broker answered, "
    "130 interrupted, 141 the reader of the output went away."
)


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


COMMAND_CONFIG = declare.Option(
    "--command-config",
    metavar="FILE",
    envvar="TWOFOLD_COMMAND_CONFIG",
    help="Settings of the client in a properties file, as security.protocol, sasl.* and ssl.*.",
)
"""Every command that asks a broker has it (`cli/command_config.py`)."""
BootstrapServer = Annotated[
    str,
    declare.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT[,...]",
        envvar="TWOFOLD_BOOTSTRAP_SERVER",
        help="Brokers to ask first.",
        beside=COMMAND_CONFIG,
    ),
]
Format = Annotated[OutputFormat, declare.Option("--format", help="How to print: for people, or for programs.")]
Count = Annotated[int | None, declare.Option("--count", "-c", min=1, help="Stop after so many records.")]
RequiredTopic = Annotated[str, declare.Option("--topic", help="The topic.")]
RequiredPartition = Annotated[int, declare.Option("--partition", help="Its partition.")]
Yes = Annotated[bool, declare.Option("--yes", "-y", help="Do not ask.")]
Timeout = Annotated[
    float, declare.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to try before giving up.")
]

DEFAULT_SERVER = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S = 30.0


class CliError(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def run_command(
    main: Callable[[], Coroutine[Any, Any, int]], bootstrap_server: str, *, destructive: bool = False
) -> None:
    """Run a command on an event loop and leave with its exit code; errors become one or two lines on stderr.

    `destructive`: it ends or deletes what cannot be had back, so the user sees first which profile it goes by.
    """
    # Here and below, because help and completion have no use for a client.
    from twofold.connections.connection import parse_addresses
    from twofold.logging import configure_logging
    from twofold.runtime.real import run
    from twofold.wire.errors import KafkaError

    # What the client logs, the command says itself; only what was not expected is shown.
    configure_logging(level="critical")
    profile = in_effect()
    if destructive and profile is not None:
        print(f"profile {profile.name}: {profile.server}", file=sys.stderr)
    try:
        parse_addresses(bootstrap_server)
        code = run(main())
        sys.stdout.flush()
    except CliError as error:
        code = complain(str(error), error.code)
    except KafkaError as error:
        code = complain(*explain(error, bootstrap_server))
    except ValueError as error:
        code = complain(str(error).replace("bootstrap_servers", "--bootstrap-server"), USAGE)
    except BrokenPipeError:
        code = BROKEN_PIPE
        silence_stdout()
    raise declare.Exit(code)


def complain(message: str, code: int) -> int:
    print(f"twofold: {message}", file=sys.stderr)
    return code


def explain(error: "KafkaError", bootstrap_server: str) -> tuple[str, int]:
    """A message that says what to change, and the exit code."""
    from twofold.connections.errors import BrokerUnreachable, ConnectionLost, GaveUp, NoAnswer, SecurityFailed
    from twofold.wire.errors import SaslAuthenticationFailed, UnknownTopicOrPartition

    if isinstance(error, GaveUp) and isinstance(error.last, UnknownTopicOrPartition):
        return f"{error.last.message} at {bootstrap_server}; `twofold topic list` shows those that do", FAILED
    if isinstance(error, BrokerUnreachable | ConnectionLost | NoAnswer | GaveUp):
        profile = in_effect()
        whose = "" if profile is None else f" (profile {profile.name})"
        hint = f"Is a broker running at {bootstrap_server}{whose}? Name another with --bootstrap-server"
        return f"{error}\n{hint}, or allow more time with --timeout.", UNREACHABLE
    if isinstance(error, SaslAuthenticationFailed | SecurityFailed):
        from twofold.cli.command_config import where_from

        return f"{error}\n{where_from()}", FAILED
    return str(error), FAILED


def silence_stdout() -> None:
    """The reader of the pipe is gone: the interpreter's own flush at exit must not complain either."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - stays open until the end
    os.dup2(sys.stdout.fileno(), 1)


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """`key=value` arguments as a mapping."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise CliError(f"{option} {pair!r} is not of the form key=value", USAGE)
        parsed[key.strip()] = value.strip()
    return parsed


def timestamp_ms(text: str, shown: str) -> int:
    """Milliseconds since 1970 or an ISO 8601 moment; `shown` is how the user wrote it."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(
            f"{shown} is neither milliseconds since 1970 nor a time like 2026-07-01T12:00:00", USAGE
        ) from None
    # Without a zone it is the user's own time, which astimezone() assumes. Numbers below zero mean other things.
    return max(0, int(moment.astimezone(UTC).timestamp() * 1000))


def confirm(question: str, otherwise: str) -> None:
    """Ask at a terminal; `otherwise` is what a no leads to."""
    if not sys.stdin.isatty():
        raise CliError("this needs an answer and stdin is not a terminal: add --yes", USAGE)
    if not declare.confirm(question, err=True):
        raise CliError(otherwise, FAILED)


def plural(count: int, noun: str) -> str:
    """1 topic, 2 topics, 1,000 topics."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def say_empty(message: str) -> None:
    """That there is nothing to list; on stderr, because what reads the output may count its lines."""
    print(message, file=sys.stderr)


def print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def console(*, stderr: bool = False) -> "Console":
    """As wide as the terminal, or as wide as needed where there is none: a file must not have cut-off cells."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 100_000, highlight=False, markup=False)


def for_terminal(text: str) -> str:
    """Names are a client's choice: what would steer the terminal, or begin a line of its own, is shown as an escape."""
    if text.isprintable() or not sys.stdout.isatty():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Columns named in `right` hold numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else for_terminal(str(cell)) for cell in row))
    console().print(table)


class Progress:
    """Counts on stderr, for people at a terminal; otherwise silent."""

    def __init__(self, what: str, total: int | None = None, *, when: bool = True) -> None:
        self._advance: Callable[[int], None] | None = None
        self._stop: Callable[[], None] | None = None
        if when and sys.stderr.isatty():
            self._start(what, total)

    def _start(self, what: str, total: int | None) -> None:
        from rich import progress

        columns = [
            progress.TextColumn(what),
            progress.BarColumn(),
            progress.MofNCompleteColumn() if total is not None else progress.TextColumn("{task.completed}"),
            progress.TimeElapsedColumn(),
        ]
        bar = progress.Progress(*columns, console=console(stderr=True), transient=True)
        task = bar.add_task(what, total=total)
        bar.start()
        self._advance = lambda count: bar.advance(task, count)
        self._stop = bar.stop

    def advance(self, count: int) -> None:
        if self._advance is not None:
            self._advance(count)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop()
