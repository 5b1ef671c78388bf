"""`twofold log dump`: what is in the files of a data folder, Twofold's or Apache Kafka's. No broker is asked."""

import io
import sys
from collections.abc import Iterable
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
    silence_stdout,
)
from twofold.cli.log.dump import DumpOptions, FileKind, dump_file, files_of, kind_of
from twofold.cli.log.values import json_line, text_line

log_app = declare.App(
    help="Look into the files of a data folder, Twofold's or Apache Kafka's.",
    no_args_is_help=True,
)


@log_app.command("dump", epilog=EXIT_CODES)
def dump(
    paths: Annotated[
        list[Path],
        declare.Argument(metavar="FILE...", help="Files, or folders: of a partition, or a whole data folder."),
    ],
    records: Annotated[
        bool, declare.Option("--records", help="Also the records: keys, values, headers; internal topics decoded.")
    ] = False,
    from_offset: Annotated[
        int, declare.Option("--from-offset", metavar="OFFSET", min=0, help="Leave out what ends before this offset.")
    ] = 0,
    limit: Annotated[
        int | None,
        declare.Option("--limit", metavar="COUNT", min=1, help="At most so many batches or entries of a file."),
    ] = None,
    max_bytes: Annotated[
        int, declare.Option("--max-bytes", metavar="BYTES", min=0, help="How much to show of a key or a value.")
    ] = 200,
    kind: Annotated[
        FileKind | None, declare.Option("--as", help="What the files are, where their names do not tell.")
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Print batches, records, markers and the entries of every file beside them; JSON is one object per line.

    What is damaged is told with its position, and reading goes on behind it; the exit code is then 1.
    """
    wanted = DumpOptions(records, from_offset, limit, max_bytes, kind)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _dump_all(_files(paths, wanted), wanted, output)
        sys.stdout.flush()
    except CliError as error:
        code = complain(str(error), error.code)
    except BrokenPipeError:
        code = BROKEN_PIPE
        silence_stdout()
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise declare.Exit(code)


def _files(paths: Iterable[Path], wanted: DumpOptions) -> list[Path]:
    """The files that are asked for; what is not there is told when its turn comes."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            try:
                inside = files_of(path)
            except OSError as error:
                raise CliError(f"{error.filename}: {error.strerror}") from None
            if not inside:
                raise CliError(f"{path}: no file in this folder belongs to a log")
            found += inside
        elif path.exists() and not path.is_file():
            raise CliError(f"{path}: neither a file nor a folder", USAGE)
        elif wanted.kind is None and path.exists() and kind_of(path) is None:
            raise CliError(f"{path}: its name does not tell what it is: say it with --as {'|'.join(FileKind)}", USAGE)
        else:
            found.append(path)
    return found


def _dump_all(files: list[Path], wanted: DumpOptions, output: OutputFormat) -> int:
    line = json_line if output is OutputFormat.JSON else text_line
    code = OK
    total = sum(path.stat().st_size for path in files if path.exists())
    # At a terminal the lines themselves show how it goes on.
    with Progress("bytes", total, when=not sys.stdout.isatty()) as bar:
        for path in files:
            try:
                for row in dump_file(path, wanted, bar.advance):
                    if row["what"] == "damage":
                        code = FAILED
                    sys.stdout.write(line(row) + "\n")
            except BrokenPipeError:
                raise
            except OSError as error:
                code = complain(f"{path}: {error.strerror}", FAILED)
    return code
