"""`twofold recover`: end the two-phase transactions that a database has decided and no writer has completed."""

import asyncio
import json
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from twofold.cli import declare
from twofold.cli.command_config import given_keywords
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    FAILED,
    OK,
    UNREACHABLE,
    USAGE,
    BootstrapServer,
    CliError,
    Format,
    OutputFormat,
    Timeout,
    complain,
    plural,
    print_json,
    print_table,
    run_command,
)
from twofold.cli.recover.source import database_url, make_engine, shown, without_password
from twofold.cli.systemd import READY, STOPPING, tell_systemd
from twofold.extras import MissingExtra, require

if TYPE_CHECKING:
    from twofold.dualwrite.recovery import Recovery, RecoveryFinding, RecoveryLook

DEFAULT_INTERVAL_S = 5.0
COMMITTED, ABORTED, ENDED_MEANWHILE = "committed", "aborted", "ended meanwhile"
DONE = (COMMITTED, ABORTED, ENDED_MEANWHILE)


def recover(
    db: Annotated[
        str | None,
        declare.Option(
            "--db", metavar="URL", help="The database. Other users see a password in it: prefer the next two."
        ),
    ] = None,
    db_env: Annotated[
        str | None, declare.Option("--db-env", metavar="NAME", help="The variable that has the URL of the database.")
    ] = None,
    db_file: Annotated[
        str | None, declare.Option("--db-file", metavar="PATH", help="The file that has the URL of the database.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    table: Annotated[str, declare.Option("--table", help="The table of the dual writes.")] = "twofold_prepared",
    dry_run: Annotated[bool, declare.Option("--dry-run", help="Show what would be ended, and end nothing.")] = False,
    watch: Annotated[
        bool, declare.Option("--watch", help="RecoveryLook again and again, and end only what an expired lease left.")
    ] = False,
    interval: Annotated[
        float, declare.Option("--interval", metavar="SECONDS", min=0.1, help="Between two looks of --watch.")
    ] = DEFAULT_INTERVAL_S,
    metrics: Annotated[
        str | None, declare.Option("--metrics", metavar="HOST:PORT", help="With --watch: serve /metrics there.")
    ] = None,
    accept: Annotated[
        str | None,
        declare.Option(
            "--accept", metavar="ID", help="After a look at a disagreement: go on with what the log says of this id."
        ),
    ] = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    output: Format = OutputFormat.TABLE,
) -> None:
    """End the two-phase transactions that a database has decided and no writer has completed.

    Only transactions that have a row in this table and of this cluster are ended, as the row says: committed if the row
    has their state, aborted otherwise. All others are listed and never ended. A writer that is still alive is fenced,
    and its next transaction fails; --watch leaves it alone until its lease has run out.
    """

    wanted = RecoverOptions(bootstrap_server, table, dry_run, watch, interval, metrics, accept, timeout, output)

    async def main() -> int:
        try:
            require("dualwrite", "twofold recover")
        except MissingExtra as error:
            raise CliError(str(error)) from None
        wanted.check()
        return await _recover(database_url(db, db_env, db_file), wanted)

    run_command(main, bootstrap_server, destructive=not dry_run)


@dataclass(frozen=True, slots=True)
class RecoverOptions:
    bootstrap_server: str
    table: str
    dry_run: bool
    watch: bool
    interval_s: float
    metrics: str | None
    accept: str | None
    timeout_s: float
    output: OutputFormat

    def check(self) -> None:
        if sum((self.dry_run, self.watch, self.accept is not None)) > 1:
            raise CliError("give one of --dry-run, --watch and --accept", USAGE)
        if self.metrics is not None and not self.watch:
            raise CliError("--metrics goes with --watch", USAGE)


async def _recover(url: str, wanted: RecoverOptions) -> int:
    """The work blocks: it has a thread, and the loop has the signals."""
    from sqlalchemy.exc import SQLAlchemyError

    from twofold.dualwrite.errors import DualWriteError
    from twofold.dualwrite.recovery import Recovery

    engine = make_engine(url)
    timeout_ms = int(wanted.timeout_s * 1000)
    recovery = Recovery(
        engine,
        bootstrap_servers=wanted.bootstrap_server,
        table=wanted.table,
        lock_timeout_s=wanted.timeout_s,
        **{"client_id": "twofold-cli", **given_keywords(wanted.bootstrap_server), "max_block_ms": timeout_ms},
    )
    try:
        await asyncio.to_thread(recovery.check)
        if wanted.watch:
            return await _watch(recovery, wanted)
        if wanted.accept is not None:
            return await asyncio.to_thread(_accept, recovery, wanted.accept)
        return await asyncio.to_thread(_once, recovery, wanted)
    except SQLAlchemyError as error:
        message = without_password(str(getattr(error, "orig", None) or error).strip(), engine.url)
        raise CliError(
            f"{shown(engine.url)} does not answer as it should: {message}. Nothing was ended", UNREACHABLE
        ) from None
    except DualWriteError as error:
        raise CliError(without_password(str(error), engine.url)) from None
    finally:
        engine.dispose()


# Once


def _once(recovery: "Recovery", wanted: RecoverOptions) -> int:
    from twofold.dualwrite.recovery import ENDS, Action

    look = recovery.look()
    if look.rows == 0:
        complain(
            f"table {wanted.table} of {shown(recovery.engine.url)} has no rows: no DualWrite has used it, or it is "
            "another database. Nothing was ended",
            FAILED,
        )
    outcomes = {}
    if not wanted.dry_run:
        for finding in look.of(*ENDS):
            outcomes[finding.transactional_id] = _end(recovery, finding)
    _print(look, outcomes, wanted)
    failed = [name for name, outcome in outcomes.items() if outcome not in DONE]
    return FAILED if failed or look.rows == 0 or look.of(Action.DISAGREES) else OK


def _end(recovery: "Recovery", finding: "RecoveryFinding") -> str:
    """How it ended, or why it did not."""
    from twofold.dualwrite.errors import DualWriteError

    try:
        settled = recovery.end(finding)
    except DualWriteError as error:
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        return without_password(f"not ended: {error}{cause}", recovery.engine.url)
    if settled is None:
        return ENDED_MEANWHILE
    return COMMITTED if settled.is_done else ABORTED


def _print(look: "RecoveryLook", outcomes: dict[str, str], wanted: RecoverOptions) -> None:
    now_ms = int(time.time() * 1000)
    rows = [_json_of(finding, outcomes.get(finding.transactional_id), now_ms) for finding in look.findings]
    if wanted.output is OutputFormat.JSON:
        print_json({"cluster_id": look.cluster, "rows": look.rows, "dry_run": wanted.dry_run, "transactions": rows})
        return
    if not rows:
        if look.rows:
            print(f"nothing is open: {plural(look.rows, 'id')} in {wanted.table}, cluster {look.cluster}")
        return
    print_table(
        ["TRANSACTIONAL ID", "OPEN", "IN THE ROW", "OPEN FOR", "OWNER", "RESULT"],
        [
            (
                row["transactional_id"],
                row["state"] or "-",
                "-" if row["row_state"] is None else row["row_state"] or "no state",
                "-" if row["open_for_s"] is None else f"{row['open_for_s']:,.0f} s",
                row["owner"] or "-",
                _result(row, wanted.dry_run),
            )
            for row in rows
        ],
        right=["OPEN FOR"],
    )


def _json_of(finding: "RecoveryFinding", outcome: str | None, now_ms: int) -> dict[str, Any]:
    from twofold.dualwrite.recovery import Action, explain_obstacle

    stored = finding.stored
    is_open = bool(finding.state)
    return {
        "transactional_id": finding.transactional_id,
        "state": str(finding.state),
        "open_for_s": max(0, now_ms - finding.open_since_ms) / 1000 if is_open else None,
        "row_state": None if stored is None else str(stored.row.state),
        "row_cluster": None if stored is None else stored.row.cluster,
        "owner": finding.owner,
        "lease_left_ms": None if stored is None else max(0, stored.lease_left_ms),
        "action": finding.action.value,
        "reason": explain_obstacle(finding) if finding.action is Action.DISAGREES else None,
        "outcome": outcome,
    }


def _result(row: dict[str, Any], dry_run: bool) -> str:
    if row["outcome"] is not None:
        return str(row["outcome"])
    words = {
        "commit": "would be committed" if dry_run else "not ended",
        "abort": "would be aborted" if dry_run else "not ended",
        "no row": "left alone: no row in this table",
        "other cluster": f"left alone: its row belongs to cluster {row['row_cluster']}",
        "disagrees": f"left alone: {row['reason']}",
    }
    return words[row["action"]]


def _accept(recovery: "Recovery", transactional_id: str) -> int:
    from twofold.dualwrite.recovery import explain_obstacle

    finding = recovery.accept(transactional_id)
    print(f"accepted for {transactional_id}: {explain_obstacle(finding)}")
    return OK


# Again and again


async def _watch(recovery: "Recovery", wanted: RecoverOptions) -> int:
    from twofold.cli.recover.watching import Numbers, watch
    from twofold.logging import configure_logging

    configure_logging(level="warning")
    stop = threading.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, stop)
    numbers = Numbers()
    server = None
    if wanted.metrics is not None:
        url, server = numbers.serve(wanted.metrics)
        print(f"{url} has the numbers", file=sys.stderr)

    def tell(finding: "RecoveryFinding", outcome: str) -> None:
        if wanted.output is OutputFormat.JSON:
            print(json.dumps(_json_of(finding, outcome, int(time.time() * 1000))), flush=True)
        else:
            print(f"{finding.transactional_id} {finding.state} {outcome}", flush=True)

    print(f"watching {wanted.table} of {shown(recovery.engine.url)}", file=sys.stderr, flush=True)
    tell_systemd(READY)
    try:
        await asyncio.to_thread(watch, recovery, wanted.interval_s, stop, numbers, tell)
    finally:
        stop.set()
        if server is not None:
            server.shutdown()
    return OK


def _stop(stop: threading.Event) -> None:
    tell_systemd(STOPPING)
    stop.set()
