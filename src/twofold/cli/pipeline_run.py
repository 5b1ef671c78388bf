"""`twofold pipeline run` and `init`."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twofold.cli.common import FAILED, INTERRUPTED, OK, USAGE, complain, console, explain, parse_pairs
from twofold.cli.pipeline import connected, recover_left
from twofold.client.connection import parse_addresses
from twofold.wire.errors import KafkaError

if TYPE_CHECKING:
    from twofold.pipeline.config import PipelineConfig
    from twofold.pipeline.display import Display
    from twofold.pipeline.loading import Transformation

OPEN_EVERY_S = 2.0
ASK_TIMEOUT_S = 10.0
END_TIMEOUT_S = 60.0


def run_pipeline(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="Has transform(df) -> df.")],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="Sources, sinks and settings.")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="[NAME=]TOPIC", help="A topic to read; may be repeated.")
    ] = None,
    sink: Annotated[
        list[str] | None, typer.Option("--sink", metavar="[NAME=]TOPIC", help="A topic to write; may be repeated.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="DIRECTORY", help="What was read and written so far.")
    ] = None,
    trigger: Annotated[
        str | None, typer.Option("--trigger", metavar="TIME", help="Such as '5 seconds', or available-now.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="NAME.OPTION=VALUE", help="Of a source or a sink.")
    ] = None,
    master: Annotated[str | None, typer.Option("--master", help="Of a Spark cluster. Default: this machine.")] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT[,...]",
            envvar="TWOFOLD_BOOTSTRAP_SERVER",
            help="Brokers to ask first.",
        ),
    ] = None,
) -> None:
    """Run a Spark pipeline between topics, exactly once, until it is stopped or everything is read."""
    from twofold.cli.common import CliError
    from twofold.pipeline.config import ConfigError, Flags, build
    from twofold.pipeline.loading import load

    try:
        flags = Flags(
            sources=tuple(source or ()),
            sinks=tuple(sink or ()),
            checkpoint=checkpoint,
            trigger=trigger,
            bootstrap_servers=bootstrap_server,
            master=master,
            spark=parse_pairs(conf or (), "--conf"),
            options=parse_pairs(option or (), "--option"),
        )
        wanted = build(file, config, flags)
        transformation = load(file, tuple(entry.name for entry in wanted.sources))
        parse_addresses(wanted.bootstrap_servers)
        code = _run(wanted, transformation)
    except (ConfigError, CliError) as error:
        code = complain(str(error), getattr(error, "code", USAGE))
    except KafkaError as error:
        code = complain(*explain(error, wanted.bootstrap_servers))
    except ValueError as error:
        code = complain(str(error), USAGE)
    raise typer.Exit(code)


def _run(config: "PipelineConfig", transformation: "Transformation") -> int:
    from twofold.pipeline.config import ConfigError
    from twofold.pipeline.display import Display
    from twofold.pipeline.running import PipelineFailed, Stop, end, log_error, start, watch
    from twofold.pipeline.running import explain as explain_spark
    from twofold.pipeline.session import log_path, session

    log = log_path(config.name)
    _check_broker(config)
    with Stop() as stop, Display(console(stderr=True), config) as display:
        display.say(f"{config.name}: starting Spark; what it says goes to {log}")
        try:
            with session(config, log) as spark, _counting_open(config, display):
                queries = start(spark, config, transformation)
                try:
                    watch(queries, stop, display.show)
                finally:
                    end(queries)
                    display.finish()
        except (ConfigError, PipelineFailed) as error:
            log_error(log, error)
            return complain(f"{error}\nSpark's own words are in {log}", FAILED)
        except KeyboardInterrupt:
            return complain("interrupted while it stopped: `twofold pipeline status` shows what is open", INTERRUPTED)
        except Exception as error:
            log_error(log, error)
            return complain(f"{explain_spark(str(error))}\nSpark's own words are in {log}", FAILED)
        finally:
            _end_what_is_left(config, display)
    return INTERRUPTED if stop.asked.is_set() else OK


def _check_broker(config: "PipelineConfig") -> None:
    """Before a JVM is started for nothing."""
    from twofold.runtime.real import run

    async def ask() -> None:
        async with connected(config.bootstrap_servers, ASK_TIMEOUT_S):
            pass

    run(ask())


def _prefixes(config: "PipelineConfig") -> list[tuple[str, str | None]]:
    """Names and journals of the sinks that write in transactions."""
    from twofold.pipeline.running import decision_topic_of, prefix_of

    found = [(prefix_of(config, sink), decision_topic_of(sink)) for sink in config.sinks]
    return [(prefix, topic) for prefix, topic in found if prefix is not None]


@contextmanager
def _counting_open(config: "PipelineConfig", display: "Display") -> Iterator[None]:
    """How many transactions are open, asked now and then beside everything else."""
    from twofold.runtime.real import run

    over = threading.Event()

    async def ask() -> int:
        async with connected(config.bootstrap_servers, ASK_TIMEOUT_S) as session:
            ids = [await session.inspector.open_ids(prefix, session.deadline) for prefix, _ in _prefixes(config)]
            return sum(map(len, ids))

    def look() -> None:
        while not over.wait(OPEN_EVERY_S):
            try:
                display.set_open(run(ask()))
            except KafkaError:
                display.set_open(None)

    thread = threading.Thread(target=look, name="open transactions", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(ASK_TIMEOUT_S)


def _end_what_is_left(config: "PipelineConfig", display: "Display") -> None:
    """A query that was stopped in the middle of a batch may have left something; nobody is to wait for its restart."""
    from twofold.runtime.real import run

    for prefix, topic in _prefixes(config):
        try:
            ended = run(recover_left(config.bootstrap_servers, END_TIMEOUT_S, prefix, topic))
        except KafkaError as error:
            display.say(f"{config.name}: what {prefix} has open could not be looked at: {error}")
            continue
        if ended:
            display.say(f"{config.name}: ended {ended} transactions that were left open")


def init_project(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it.")],
) -> None:
    """Write a small pipeline that runs as it is."""
    from twofold.pipeline.config import ConfigError
    from twofold.pipeline.template import write_project

    try:
        files = write_project(directory)
    except ConfigError as error:
        raise typer.Exit(complain(str(error), FAILED)) from None
    print(f"{', '.join(file.name for file in files)} are in {directory}; its README says how to run it")


def main(file: str, arguments: Sequence[str] | None = None) -> None:
    """For a file that is given to spark-submit or to python: run its pipeline with the arguments of this process."""
    from twofold.cli.main import main as run_command_line

    given = sys.argv[1:] if arguments is None else arguments
    sys.argv = ["twofold", "pipeline", "run", str(Path(file).resolve()), *given]
    run_command_line()
