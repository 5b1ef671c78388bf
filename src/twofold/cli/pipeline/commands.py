"""`twofold pipeline`: status, recover, and what its other commands share."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated

from twofold.cli import declare
from twofold.cli.command_config import make_config
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
    Yes,
    complain,
    confirm,
    print_json,
    run_command,
)
from twofold.cli.pipeline.live import (
    JournalProgress,
    ProcessAnswer,
    Told,
    answer_of,
    ask_processes,
    print_progress,
    progress_json,
    progress_of,
)
from twofold.cli.pipeline.report import (
    Json,
    age,
    nothing_to_do,
    plan,
    print_recovered,
    print_state,
    print_transactions,
    recovered_json,
    state_json,
)
from twofold.client import Admin
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.connections.waiting import Deadline
from twofold.pipeline.live import LiveProcess
from twofold.pipeline.live import processes as known_processes
from twofold.runtime.api import Runtime
from twofold.sink import names
from twofold.sink.errors import Stale
from twofold.sink.inspection import FoundJournal, Inspector, SinkState
from twofold.sink.recovery import Recovered, recover
from twofold.sink.register import Register
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    UnknownTopicOrPartition,
)

pipeline_app = declare.App(
    help="Run Spark pipelines exactly once; show what their sinks have decided, and end what a dead one left open.",
    no_args_is_help=True,
)

REQUEST_TIMEOUT_MS = 30_000
PATIENCE_MS = 2_000
RECOVER_TIMEOUT_S = 120.0
RECENT_MS = 60_000
NAMED = 5
# What a writer of the journal meets when another one has come after it.
TAKEN_OVER = (Stale, ProducerFenced, InvalidProducerEpoch, InvalidTxnState, TransactionAbortable)

DecisionTopic = Annotated[
    str | None,
    declare.Option("--decision-topic", metavar="TOPIC", help="The query's decisionTopic. Default: PREFIX.decisions."),
]
PREFIX_HELP = "The query's transactionalIdPrefix"


@dataclass(frozen=True, slots=True)
class SinkSession:
    """Connections, and how long everything may take."""

    server: str
    runtime: Runtime
    config: ProducerConfig
    cluster: Cluster
    inspector: Inspector
    deadline: Deadline

    @property
    def now_ms(self) -> int:
        return self.runtime.clock.wall_ms()


@asynccontextmanager
async def connected(
    server: str, timeout_s: float, connection: Mapping[str, str] | None = None
) -> AsyncIterator[SinkSession]:
    """`connection` are settings by Kafka's names, such as those of a pipeline; None: those of the command."""
    from twofold.runtime.real import real_runtime

    timeout_ms = int(timeout_s * 1000)
    request_timeout_ms = min(REQUEST_TIMEOUT_MS, timeout_ms)
    values = {
        "request.timeout.ms": request_timeout_ms,
        "default.api.timeout.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        "max.block.ms": timeout_ms,
        "linger.ms": 0,
    }
    config = make_config(ProducerConfig, server, values, from_file=connection)
    runtime = real_runtime()
    cluster = Cluster(runtime, config)
    inspector = Inspector(cluster)
    try:
        await cluster.bootstrap(min(PATIENCE_MS, timeout_ms))
        yield SinkSession(server, runtime, config, cluster, inspector, cluster.deadline(timeout_ms, "--timeout"))
    finally:
        inspector.close()
        await cluster.close()


@pipeline_app.command("status", epilog=EXIT_CODES)
def status(
    name: Annotated[
        str | None, declare.Argument(metavar="[NAME]", help="A pipeline, or one sink of it as NAME.SINK. Default: all.")
    ] = None,
    prefix: Annotated[str | None, declare.Option("--prefix", help=f"{PREFIX_HELP}. Default: all.")] = None,
    decision_topic: DecisionTopic = None,
    metrics: Annotated[
        list[str] | None,
        declare.Option("--metrics", metavar="HOST:PORT", help="Ask the process that serves metrics there, too."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show sinks: how far behind and how fast, the last decided batch, and open transactions. Changes nothing."""

    async def main() -> int:
        check_prefix(prefix)
        processes = [*known_processes(), *(LiveProcess(name or "", address) for address in metrics or ())]
        async with connected(bootstrap_server, timeout) as session:
            found = await find_sinks(session, prefix, decision_topic)
            found = _named(found, name)
            readable = [row for row in found if row.problem is None]
            told = await asyncio.to_thread(ask_processes, processes if readable else [])
            shown = [await _seen(session, row, told) for row in readable]
            now_ms = session.now_ms
        if output is OutputFormat.JSON:
            print_json([state_json(seen.state, now_ms) | seen.progress_json for seen in shown])
        else:
            _print_states(shown, now_ms)
        code = OK
        for row in found:
            if row.problem is not None:
                code = complain(_unreadable(row), FAILED)
        if not found and output is OutputFormat.TABLE:
            print(f"no sink has a journal at {bootstrap_server}; name one with --decision-topic if it has its own")
        return code

    run_command(main, bootstrap_server)


@pipeline_app.command("recover", epilog=EXIT_CODES)
def recover_sink(
    prefix: Annotated[str, declare.Option("--prefix", help=f"{PREFIX_HELP}.")],
    decision_topic: DecisionTopic = None,
    accept_loss: Annotated[
        bool,
        declare.Option(
            "--accept-loss", help="Go on although a part of a decided batch was aborted from outside the query."
        ),
    ] = False,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = RECOVER_TIMEOUT_S,
) -> None:
    """Complete what a dead query decided, and abort what else it left open. A query that still runs is stopped."""

    async def main() -> int:
        check_prefix(prefix)
        state = await _look(bootstrap_server, timeout, prefix, decision_topic)
        done: Recovered | None = None
        if not state.is_clean:
            _announce(state)
            if not yes:
                confirm(f"Go on with {prefix} at {bootstrap_server}?", "nothing was changed")
            # Time has passed since it was looked at, more than a heartbeat or a connection lives.
            async with connected(bootstrap_server, timeout) as session:
                (found,) = await find_sinks(session, prefix, decision_topic)
                state = await state_of(session, found)
                if not state.is_clean:
                    done = await _recover(session, state, accept_loss=accept_loss)
        if output is OutputFormat.JSON:
            print_json(recovered_json(state, done))
        elif done is None:
            print(nothing_to_do(state))
        else:
            print_recovered(done)
        return OK

    run_command(main, bootstrap_server, destructive=True)


async def recover_left(
    server: str, connection: Mapping[str, str], timeout_s: float, prefix: str, decision_topic: str | None
) -> int:
    """End what a query of our own left; how many transactions that was. One that never wrote has left nothing."""
    async with connected(server, timeout_s, connection) as session:
        topic = decision_topic or names.decision_topic(prefix)
        if not await _exists(session, topic):
            return 0
        # Stopped before its first record counted, it has a journal that says nothing.
        found = await session.inspector.find(topic, prefix, session.deadline) or [
            FoundJournal(prefix, topic, Register())
        ]
        if found[0].problem is not None:
            raise CliError(_unreadable(found[0]))
        state = await state_of(session, found[0])
        if state.is_clean:
            return 0
        done = await _recover(session, state, accept_loss=False)
        return len(done.committed) + len(done.aborted)


async def _look(server: str, timeout_s: float, prefix: str, decision_topic: str | None) -> SinkState:
    async with connected(server, timeout_s) as session:
        (found,) = await find_sinks(session, prefix, decision_topic)
        return await state_of(session, found)


async def _recover(session: SinkSession, state: SinkState, *, accept_loss: bool) -> Recovered:
    owner = f"recover-{socket.gethostname()}-{os.getpid()}"
    try:
        return await recover(
            session.runtime, session.cluster, session.config, state, owner, session.deadline, accept_loss=accept_loss
        )
    except TAKEN_OVER as error:
        raise CliError(
            f"another process has taken {state.prefix} over meanwhile: the query was started again and does all this "
            f"itself, or this command runs twice; `twofold pipeline status --prefix {state.prefix}` shows which. "
            f"What was said: {error}"
        ) from error


def _announce(state: SinkState) -> None:
    print(f"{state.prefix}: this", file=sys.stderr)
    for line in plan(state):
        print(f"  - {line}", file=sys.stderr)
    print(
        f"A query that still runs with transactionalIdPrefix={state.prefix} is fenced, and stops with a message that "
        "names this command.",
        file=sys.stderr,
    )
    age_ms = int(time.time() * 1000) - state.register.at_ms
    if age_ms < RECENT_MS:
        print(f"Its last record is {age(age_ms)} old: perhaps it does run.", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class SeenSink:
    """All that is known of a sink at one moment."""

    state: SinkState
    progress: JournalProgress
    answer: ProcessAnswer | None

    @property
    def progress_json(self) -> Json:
        return {"progress": progress_json(self.progress, self.answer)}


async def _seen(session: SinkSession, found: FoundJournal, told: Told) -> SeenSink:
    state = await state_of(session, found)
    progress = await progress_of(found, session.inspector, session.now_ms, session.deadline)
    return SeenSink(state, progress, answer_of(found, told))


def _print_states(shown: list[SeenSink], now_ms: int) -> None:
    for index, seen in enumerate(shown):
        if index:
            print()
        print_state(seen.state, now_ms)
        print_progress(seen.progress, seen.answer)
        print_transactions(seen.state, now_ms)


# Finding sinks


def _named(found: list[FoundJournal], name: str | None) -> list[FoundJournal]:
    """Those of the pipeline, or the one sink of it, that the user names."""
    if name is None:
        return found
    names_of = {row.prefix: row.register.query_name for row in found if row.register is not None}
    meant = [row for row in found if f"{names_of.get(row.prefix, '')}.".startswith(f"{name}.")]
    if meant:
        return meant
    known = sorted(filter(None, names_of.values()))
    near = list(dict.fromkeys([*get_close_matches(name, known, NAMED), *known]))[:NAMED]
    raise CliError(
        f"no pipeline has the name {name!r}. Names that the journals know: {', '.join(near) or 'none'}. A pipeline is "
        "known by its name when it has started with this version; without NAME all are shown"
    )


def check_prefix(prefix: str | None) -> None:
    try:
        if prefix is not None:
            names.check_prefix(prefix)
    except ValueError as error:
        raise CliError(str(error).replace("transactionalIdPrefix=", "--prefix ", 1), USAGE) from None


async def find_sinks(session: SinkSession, prefix: str | None, decision_topic: str | None) -> list[FoundJournal]:
    """One with a prefix; else those of the topic, or of all topics that may be journals."""
    inspector, deadline = session.inspector, session.deadline
    if prefix is None and decision_topic is None:
        topics = await inspector.journals()
        return [row for topic in topics for row in await inspector.find(topic, None, deadline)]
    topic = decision_topic or names.decision_topic(prefix or "")
    if not await _exists(session, topic):
        raise CliError(await _no_topic(session, prefix, decision_topic))
    found = await inspector.find(topic, prefix, deadline, thorough=prefix is None)
    if not found:
        whose = "a sink" if prefix is None else repr(prefix)
        raise CliError(f"topic {topic} is no journal of {whose}: it has no decision. {await _known(session, prefix)}")
    for row in found:
        if prefix is not None and row.problem is not None:
            raise CliError(_unreadable(row))
    return found


async def state_of(session: SinkSession, found: FoundJournal) -> SinkState:
    assert found.register is not None
    return await session.inspector.state(found.prefix, found.topic, found.register, session.deadline)


async def _exists(session: SinkSession, topic: str) -> bool:
    found = await Admin.on(session.cluster).describe_topics([topic])
    for error in found.errors.values():
        if not isinstance(error, UnknownTopicOrPartition):
            raise error
    return not found.errors


async def _no_topic(session: SinkSession, prefix: str | None, decision_topic: str | None) -> str:
    if decision_topic is not None:
        return f"topic {decision_topic!r} does not exist at {session.server}; `twofold topic list` shows those that do"
    return (
        f"no sink with transactionalIdPrefix={prefix} at {session.server}: there is no topic "
        f"{names.decision_topic(prefix or '')}. Has the query another decisionTopic? Then name it with "
        f"--decision-topic. {await _known(session, prefix)}"
    )


async def _known(session: SinkSession, prefix: str | None) -> str:
    """The sinks that there are, the likeliest first."""
    try:
        topics = await session.inspector.journals()
    except KafkaError:
        topics = []
    found = [topic.removesuffix(names.decision_topic("")) for topic in topics]
    near = get_close_matches(prefix or "", found, NAMED)
    shown = list(dict.fromkeys([*near, *found]))
    more = f" and {len(shown) - NAMED} more" if len(shown) > NAMED else ""
    return f"Sinks that have a journal: {', '.join(shown[:NAMED]) or 'none'}{more}"


def _unreadable(row: FoundJournal) -> str:
    return (
        f"topic {row.topic} is no journal of {row.prefix!r} that can be read: {row.problem}. Another program writes to "
        "it, or a newer version of Twofold: nothing is recovered by guessing"
    )
