"""`twofold metadata`: what the metadata log holds, record by record or as an image. No broker is asked."""

import gc
import io
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from twofold.cli import declare
from twofold.cli.common import (
    BROKEN_PIPE,
    EXIT_CODES,
    FAILED,
    INTERRUPTED,
    OK,
    USAGE,
    CliError,
    Format,
    OutputFormat,
    Progress,
    complain,
    print_table,
    silence_stdout,
)
from twofold.cli.log.values import Row, json_line, text_line
from twofold.cli.metadata.dump import (
    HEADING,
    Lines,
    MetadataFilter,
    MetadataTransactions,
    file_rows,
    record_rows,
    record_types,
    transaction_rows,
)
from twofold.cli.metadata.files import Part, open_parts
from twofold.cli.metadata.image import Loaded, load_image
from twofold.cli.metadata.shell import interact, run_script, run_words, warnings

metadata_app = declare.App(
    help="Look into the metadata log and its snapshots, Twofold's or Apache Kafka's.",
    no_args_is_help=True,
)


@metadata_app.command("dump", epilog=EXIT_CODES)
def dump(
    paths: Annotated[
        list[Path],
        declare.Argument(
            metavar="PATH...",
            help="A data folder, its __cluster_metadata-0, segments (.log) or snapshots (.checkpoint).",
        ),
    ],
    from_offset: Annotated[
        int, declare.Option("--from-offset", metavar="OFFSET", min=0, help="Leave out records before this offset.")
    ] = 0,
    to_offset: Annotated[
        int | None, declare.Option("--to-offset", metavar="OFFSET", min=0, help="Leave out records after this offset.")
    ] = None,
    types: Annotated[
        list[str] | None, declare.Option("--type", metavar="TYPE", help="Only records of this type; repeatable.")
    ] = None,
    transactions: Annotated[
        bool, declare.Option("--transactions", help="Only a table of the transactions: where each begins and ends.")
    ] = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Print the records of the metadata log, and how each transaction ended; JSON is one object per line.

    The mark beside a record tells its transaction: "|" committed, "x" aborted, "?" open (not in force); "/" begins one
    and "\\" ends it. What is damaged is told with its place, and the exit code is then 1.
    """

    def main() -> int:
        wanted = MetadataFilter(from_offset, to_offset, record_types(types or []))
        with ExitStack() as stack:
            parts = open_parts(paths, stack)
            # Records are read twice. At a terminal the lines themselves show how it goes on.
            total = sum(part.size for part in parts) * (1 if transactions else 2)
            with Progress("bytes", total, when=not sys.stdout.isatty()) as bar:
                write = _write_transactions if transactions else _write_records
                return max([write(part, wanted, output, bar.advance) for part in parts], default=OK)

    _run(main)


def _write_records(part: Part, wanted: MetadataFilter, output: OutputFormat, advance: Callable[[int], None]) -> int:
    transactions = MetadataTransactions(part, advance)
    as_line = json_line if output is OutputFormat.JSON else Lines(transactions).line
    code = OK
    for row in file_rows(part):
        _print(as_line(row))
    if output is OutputFormat.TABLE:
        _print(HEADING)
    for row in record_rows(part, transactions, wanted, advance):
        code = FAILED if row["what"] == "damage" else code
        _print(as_line(row))
    return code


def _write_transactions(
    part: Part, wanted: MetadataFilter, output: OutputFormat, advance: Callable[[int], None]
) -> int:
    rows = list(transaction_rows(MetadataTransactions(part, advance), wanted))
    told = [row for row in rows if row["what"] == "transaction"]
    problems = [row for row in rows if row["what"] != "transaction"]
    if output is OutputFormat.JSON:
        for row in [*file_rows(part), *rows]:
            _print(json_line(row))
    else:
        for row in file_rows(part):
            _print(text_line(row))
        print_table(
            ["BEGIN", "END", "STATE", "RECORDS", "NAME", "REASON"],
            [_cells(row) for row in told],
            right=["BEGIN", "END", "RECORDS"],
        )
        for row in problems:
            _print(text_line(row))
    return FAILED if any(row["what"] == "damage" for row in problems) else OK


def _cells(row: Row) -> list[object]:
    is_open = row["state"] == "open"
    return [
        "before" if row["begin"] is None else row["begin"],
        "-" if row["end"] is None else row["end"],
        "OPEN" if is_open else row["state"],
        row["records"],
        row["name"],
        row["reason"],
    ]


def _print(line: str | None) -> None:
    if line is not None:
        sys.stdout.write(line + "\n")


@metadata_app.command("shell", epilog=EXIT_CODES)
def shell(
    words: Annotated[
        list[str] | None,
        declare.Argument(
            metavar="PATH [COMMAND...]",
            help="A data folder, its __cluster_metadata-0, a segment or a snapshot; then a command, e.g. ls /image.",
            show_default=False,
        ),
    ] = None,
    snapshot: Annotated[
        Path | None,
        declare.Option("--snapshot", "-s", metavar="FILE", help="Instead of PATH: a snapshot or a segment."),
    ] = None,
    directory: Annotated[
        Path | None, declare.Option("--directory", "-d", metavar="FOLDER", help="Instead of PATH: a folder.")
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Walk through the metadata as through folders and files: ls, cat, cd, pwd, find, tree, history, man, help, exit.

    It shows completed transactions only; one that is open is told at the start and in /local/transaction. Without a
    command it asks for them, or reads them from a pipe, one a line.
    """

    def main() -> int:
        path, command = _path_and_command(words or [], snapshot, directory)
        loaded = _load(path)
        if not command and sys.stdin.isatty() and sys.stdout.isatty():
            return interact(loaded, output)
        for warning in warnings(loaded):
            complain(warning, FAILED)
        code = run_words(loaded, output, command) if command else run_script(loaded, output, sys.stdin)
        return FAILED if loaded.problem is not None else code

    _run(main)


def _load(path: Path) -> Loaded:
    gc.disable()  # an image of 100,000 partitions is many small objects, and none of them ever goes
    try:
        with ExitStack() as stack:
            return load_image(path, lambda total: stack.enter_context(Progress("bytes", total)).advance)
    finally:
        gc.freeze()
        gc.enable()


def _path_and_command(words: list[str], snapshot: Path | None, directory: Path | None) -> tuple[Path, list[str]]:
    if snapshot is not None and directory is not None:
        raise CliError("--snapshot and --directory: one of them is enough", USAGE)
    named = snapshot or directory
    if named is not None:
        return named, words
    if not words:
        raise CliError("name a data folder, a segment or a snapshot: twofold metadata shell PATH", USAGE)
    return Path(words[0]), words[1:]


def _run(main: Callable[[], int]) -> None:
    """Leave with an exit code; what is wrong is one line on stderr."""
    for stream in (sys.stdout, sys.stdin):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main()
        sys.stdout.flush()
    except CliError as error:
        code = complain(str(error), error.code)
    except BrokenPipeError:
        code = BROKEN_PIPE
        silence_stdout()
    except OSError as error:
        code = complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED)
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise declare.Exit(code)
