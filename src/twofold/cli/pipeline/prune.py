"""`twofold pipeline prune`."""

import sys
from typing import Annotated

from twofold.cli import declare
from twofold.cli.common import (
    DEFAULT_SERVER,
    OK,
    BootstrapServer,
    Format,
    OutputFormat,
    Timeout,
    Yes,
    confirm,
    print_json,
    run_command,
)
from twofold.cli.pipeline.commands import (
    PREFIX_HELP,
    RECOVER_TIMEOUT_S,
    DecisionTopic,
    check_prefix,
    connected,
    find_sinks,
    state_of,
)
from twofold.cli.pipeline.report import age, plural
from twofold.sink.decided import DecidedEntry
from twofold.sink.driver import SinkSettings
from twofold.sink.journal import Journal
from twofold.sink.pruning import AtWork, Pruned, prune, written


def prune_writes(
    prefix: Annotated[str, declare.Option("--prefix", help=f"{PREFIX_HELP}.")],
    keep: Annotated[int, declare.Option("--keep", min=0, metavar="N", help="How many writeIds stay, the newest.")],
    decision_topic: DecisionTopic = None,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = RECOVER_TIMEOUT_S,
) -> None:
    """Make room for new writeIds: older ones are kept as numbers only. One of them that comes again is refused."""

    async def main() -> int:
        check_prefix(prefix)
        names = await _choose(bootstrap_server, timeout, prefix, decision_topic, keep)
        done = Pruned((), keep)
        if names:
            if not yes:
                confirm(
                    f"Prune {plural(len(names), 'writeId')} of {prefix} at {bootstrap_server}?", "nothing was pruned"
                )
            async with connected(bootstrap_server, timeout) as session:
                settings = SinkSettings(prefix, decision_topic=decision_topic)
                done = await prune(session.runtime, session.cluster, session.config, settings, names, session.deadline)
        if output is OutputFormat.JSON:
            print_json({"prefix": prefix, "pruned": list(done.names), "remembered": done.left})
        elif not names:
            print(f"nothing to prune: {prefix} remembers no more than {plural(keep, 'writeId')} by name")
        else:
            print(f"{plural(len(done.names), 'writeId')} of {prefix} pruned, {done.left} are remembered by name")
        return OK

    run_command(main, bootstrap_server, destructive=True)


async def _choose(server: str, timeout_s: float, prefix: str, decision_topic: str | None, keep: int) -> frozenset[str]:
    """The names to prune, said on stderr."""
    async with connected(server, timeout_s) as session:
        (found,) = await find_sinks(session, prefix, decision_topic)
        if not (await state_of(session, found)).is_clean:
            raise AtWork(
                f"{prefix} has transactions open: a job is at work, or died; `twofold pipeline status --prefix "
                f"{prefix}` shows which. Let it end, or run `twofold pipeline recover`; nothing was pruned"
            )
        journal = Journal(session.runtime, session.cluster, session.config, prefix, found.topic)
        entries = await written(journal, session.deadline)
        now_ms = session.now_ms
    chosen = entries[: max(0, len(entries) - keep)]
    if chosen:
        first, last = chosen[0], chosen[-1]
        print(
            f"{prefix} remembers {plural(len(entries), 'writeId')}. This prunes {len(chosen)}, from "
            f"{_shown(first, now_ms)} to {_shown(last, now_ms)}. A job that brings one of them again is refused.",
            file=sys.stderr,
        )
    return frozenset(entry.name for entry in chosen)


def _shown(entry: DecidedEntry, now_ms: int) -> str:
    """The version before did not say when."""
    return f"{entry.name} ({age(now_ms - entry.at_ms)} ago)" if entry.at_ms else entry.name
