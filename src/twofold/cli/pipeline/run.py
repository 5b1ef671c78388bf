"""`twofold pipeline run` and `init`."""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from twofold.cli import declare
from twofold.cli.command_config import settings_by_reference
from twofold.cli.common import (
    COMMAND_CONFIG,
    FAILED,
    INTERRUPTED,
    OK,
    UNREACHABLE,
    USAGE,
    CliError,
    Format,
    OutputFormat,
    complain,
    explain,
    parse_pairs,
    plural,
)
from twofold.cli.pipeline.commands import connected, recover_left
from twofold.connections.connection import parse_addresses
from twofold.wire.errors import KafkaError

if TYPE_CHECKING:
    from twofold.pipeline.config import Flags, PipelineConfig
    from twofold.pipeline.display import Display
    from twofold.pipeline.loading import Transformation
    from twofold.pipeline.running import Stop

OPEN_EVERY_S = 2.0
ASK_TIMEOUT_S = 10.0
END_TIMEOUT_S = 60.0

ChosenServer = Annotated[
    str | None,
    declare.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT[,...]",
        envvar="TWOFOLD_BOOTSTRAP_SERVER",
        help="Brokers to ask first.",
        beside=COMMAND_CONFIG,
    ),
]


def run_pipeline(
    file: Annotated[Path, declare.Argument(metavar="FILE.py", help="Has transform(df) -> df.")],
    config: Annotated[
        Path | None, declare.Option("--config", metavar="FILE.toml", help="Sources, sinks and settings.")
    ] = None,
    source: Annotated[
        list[str] | None, declare.Option("--source", metavar="[NAME=]TOPIC", help="A topic to read; may be repeated.")
    ] = None,
    sink: Annotated[
        list[str] | None, declare.Option("--sink", metavar="[NAME=]TOPIC", help="A topic to write; may be repeated.")
    ] = None,
    checkpoint: Annotated[
        str | None, declare.Option("--checkpoint", metavar="DIRECTORY", help="What was read and written so far.")
    ] = None,
    trigger: Annotated[
        str | None, declare.Option("--trigger", metavar="TIME", help="Such as '5 seconds', or available-now.")
    ] = None,
    option: Annotated[
        list[str] | None, declare.Option("--option", metavar="NAME.OPTION=VALUE", help="Of a source or a sink.")
    ] = None,
    master: Annotated[str | None, declare.Option("--master", help="Of a Spark cluster. Default: this machine.")] = None,
    conf: Annotated[
        list[str] | None, declare.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    metrics: Annotated[
        str | None, declare.Option("--metrics", metavar="[HOST:]PORT", help="Serve metrics there; host: 127.0.0.1.")
    ] = None,
    bootstrap_server: ChosenServer = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Run a Spark pipeline between topics, exactly once, until it is stopped or everything is read."""
    from twofold.logging import configure_logging
    from twofold.pipeline.config import Flags, PipelineConfigError

    configure_logging(level="critical")  # what a client logs while it tries again, the command says itself
    try:
        flags = Flags(
            sources=tuple(source or ()),
            sinks=tuple(sink or ()),
            checkpoint=checkpoint,
            trigger=trigger,
            bootstrap_servers=bootstrap_server,
            master=master,
            spark=parse_pairs(conf or (), "--conf"),
            kafka=settings_by_reference(bootstrap_server),
            options=parse_pairs(option or (), "--option"),
            metrics=metrics,
        )
        code = _run_file(file, config, flags, as_json=output is OutputFormat.JSON)
    except (PipelineConfigError, CliError) as error:
        code = complain(str(error), getattr(error, "code", USAGE))
    except KeyboardInterrupt:
        code = complain("stopped before anything was started", INTERRUPTED)
    raise declare.Exit(code)


def _run_file(file: Path, toml: Path | None, flags: "Flags", *, as_json: bool) -> int:
    """What can be refused without a JVM is; then it runs."""
    from twofold.pipeline.checks import check_checkpoint, check_java, check_metrics, check_options, check_topics
    from twofold.pipeline.config import PipelineConfigError, PipelineFailed, build
    from twofold.pipeline.loading import NeedsSession, check_file, load
    from twofold.pipeline.session import log_path
    from twofold.runtime.real import run

    check_file(file)
    file = file.resolve()
    wanted = build(file, toml, flags)
    log = log_path(wanted.name)
    try:
        parse_addresses(wanted.bootstrap_servers)
        checked = check_options(wanted)
        transformation = None
        with suppress(NeedsSession):
            transformation = load(file, wanted.source_names)
        check_metrics(wanted)
        run(check_topics(checked))
        check_checkpoint(wanted, checked)
        check_java()
    except PipelineFailed as error:
        return complain(str(error), FAILED)
    except KafkaError as error:
        message, code = explain(error, wanted.bootstrap_servers)
        return complain(message.replace(", or allow more time with --timeout", ""), code)
    except PipelineConfigError as error:
        return complain(_with_trace(error, log), USAGE)
    except ValueError as error:
        return complain(str(error).replace("bootstrap_servers", "--bootstrap-server"), USAGE)
    return _run(Task(wanted, file, transformation, log), as_json=as_json)


def _with_trace(error: BaseException, log: Path) -> str:
    """The message; where there is more to know than it says, that is in the log file."""
    from twofold.pipeline.session import log_error

    if error.__cause__ is None:
        return str(error)
    log_error(log, error)
    return f"{error}\nThe full trace is in {log}"


@dataclass(slots=True)
class RunOutcome:
    failure: str | None = None
    is_ours: bool = False
    """Whether this run has the sinks: what is open under a name that another run has is that one's to end."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be run. A file that needs a session to be loaded has no transformation yet."""

    config: "PipelineConfig"
    file: Path
    transformation: "Transformation | None"
    log: Path


def _run(task: Task, *, as_json: bool) -> int:
    """The display is over before anything is complained about."""
    from twofold.pipeline.display import display_for
    from twofold.pipeline.running import Stop
    from twofold.pipeline.session import submitted

    config = task.config
    with Stop() as stop:
        with display_for(config, as_json=as_json) as display:
            where = "Spark's log is spark-submit's" if submitted() else f"what Spark says goes to {task.log}"
            display.say(f"starting; {where}")
            outcome = RunOutcome()
            try:
                _run_queries(task, stop, display, outcome)
            except KeyboardInterrupt:  # a second one, or a first one while Spark was being started
                stop.asked.set()
            finally:
                left = _end_what_is_left(config, display) if outcome.is_ours else None
        if stop.asked.is_set():
            return complain(left, UNREACHABLE) if left else INTERRUPTED
        if outcome.failure is not None or left is not None:
            return complain("\n".join(filter(None, (outcome.failure, left))), FAILED)
    return OK


def _run_queries(task: Task, stop: "Stop", display: "Display", outcome: RunOutcome) -> None:
    from twofold.pipeline.config import PipelineConfigError, PipelineFailed
    from twofold.pipeline.loading import load
    from twofold.pipeline.running import end, frames_of, start, watch
    from twofold.pipeline.session import session

    config, log = task.config, task.log
    try:
        with session(config, log, task.file) as spark, _counting_open(config, display), _telling(task, spark, display):
            stop.listen()
            if stop.asked.is_set():
                return
            frames = frames_of(spark, config, task.transformation or load(task.file, config.source_names))
            if stop.asked.is_set():
                return
            outcome.is_ours = True
            queries = start(config, frames, log)
            try:
                watch(queries, stop, display.show, task.file, log)
            finally:
                if stop.asked.is_set():
                    display.say("stopping: what is being committed is committed, the rest is given up")
                end(queries, log)
                display.finish()
    except (PipelineFailed, PipelineConfigError) as error:
        if getattr(error, "is_taken_over", False):
            outcome.is_ours = False
        if not stop.asked.is_set():  # which reaches Spark's own processes too, and they fail of it
            outcome.failure = f"{error}\nThe full trace is in {log}"


class _Place(NamedTuple):
    """Of a sink that writes in transactions: where its journal is, and how to get there."""

    name: str
    servers: str
    connection: Mapping[str, str]
    prefix: str
    topic: str | None


def _sinks(config: "PipelineConfig") -> list[_Place]:
    from twofold.pipeline.running import decision_topic_of, prefix_of, servers_of

    found = [(sink, prefix_of(config, sink)) for sink in config.sinks]
    return [
        _Place(sink.name, servers_of(config, sink), config.connection_of(sink), prefix, decision_topic_of(sink))
        for sink, prefix in found
        if prefix is not None
    ]


@contextmanager
def _telling(task: Task, spark: Any, display: "Display") -> Iterator[None]:
    """Metrics of the queries, where the user wants them."""
    from twofold.pipeline.config import PipelineFailed
    from twofold.pipeline.live import announced
    from twofold.pipeline.session import log_error

    config = task.config
    if config.metrics is None:
        yield
        return
    from twofold.spark.metrics import MetricsListener

    try:
        listener = MetricsListener(config.metrics, spark)
    except OSError as error:
        raise PipelineFailed(str(error)) from error
    try:
        spark.streams.addListener(listener)
        display.say(f"metrics are at http://{listener.address}/metrics")
        with announced(config.name, listener.address, task.log):
            yield
    finally:
        try:
            listener.close()
        except Exception as error:  # nothing of it may hide why the pipeline ends
            log_error(task.log, error)


@contextmanager
def _counting_open(config: "PipelineConfig", display: "Display") -> Iterator[None]:
    """How many transactions are open, asked now and then beside everything else."""
    from twofold.runtime.real import run

    over = threading.Event()

    async def ask() -> dict[str, int]:
        found = {}
        for sink in _sinks(config):
            async with connected(sink.servers, ASK_TIMEOUT_S, sink.connection) as session:
                found[sink.name] = len(await session.inspector.open_ids(sink.prefix, session.deadline))
        return found

    def look() -> None:
        while not over.wait(OPEN_EVERY_S):
            try:
                display.set_open(run(ask()))
            except KafkaError:
                display.set_open({})

    thread = threading.Thread(target=look, name="open transactions", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(ASK_TIMEOUT_S)


def _end_what_is_left(config: "PipelineConfig", display: "Display") -> str | None:
    """A query that was stopped in the middle of a batch may have left something. Readers are not to wait for its
    restart. The answer is what could not be ended."""
    from twofold.runtime.real import run

    problems = []
    for _, servers, connection, prefix, topic in _sinks(config):
        try:
            ended = run(recover_left(servers, connection, END_TIMEOUT_S, prefix, topic))
        except (KafkaError, CliError, KeyboardInterrupt) as error:
            said = str(error) or "interrupted"
            problems.append(
                f"what {prefix} has open could not be ended: {said}. The next run does it, or `twofold pipeline "
                f"recover --prefix {prefix} -b {servers}`"
            )
            continue
        if ended:
            display.say(f"ended {plural(ended, 'transaction')} left open")
    return "\n".join(problems) or None


def init_project(
    directory: Annotated[Path, declare.Argument(metavar="DIR", help="Where to write it.")],
) -> None:
    """Write a small pipeline that runs as it is."""
    from twofold.pipeline.config import PipelineConfigError
    from twofold.pipeline.template import write_project

    try:
        files = write_project(directory)
    except PipelineConfigError as error:
        raise declare.Exit(complain(str(error), FAILED)) from None
    print(f"{', '.join(file.name for file in files)} are in {directory}; its README.md says how to run it")


def main(file: str, arguments: Sequence[str] | None = None) -> None:
    """For a file that is given to spark-submit or to python: run its pipeline with the arguments of this process."""
    from twofold.cli.main import main as run_command_line

    given = sys.argv[1:] if arguments is None else arguments
    sys.exit(run_command_line(["pipeline", "run", str(Path(file).resolve()), *given]))
