"""`twofold cluster quorum`: describe."""

from twofold.cli import declare
from twofold.cli.admin import connected
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    EXIT_CODES,
    OK,
    BootstrapServer,
    Format,
    OutputFormat,
    Timeout,
    print_json,
    print_table,
    run_command,
)
from twofold.client import QuorumDescription, QuorumReplica
from twofold.log.recovery.checkpoints import encode_uuid

quorum_app = declare.App(help="Show the controllers and how far others follow them.", no_args_is_help=True)


@quorum_app.command("describe", epilog=EXIT_CODES)
def describe(
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the active controller, the voters, and how far every node is behind in the metadata."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            quorum = await admin.describe_quorum()
        if output is OutputFormat.JSON:
            print_json(_quorum_json(quorum))
        else:
            _print_quorum(quorum)
        return OK

    run_command(main, bootstrap_server)


def _print_quorum(quorum: QuorumDescription) -> None:
    print(f"leader          {quorum.leader_id if quorum.leader_id >= 0 else 'none'}")
    print(f"epoch           {quorum.leader_epoch}")
    print(f"high watermark  {quorum.high_watermark}")
    rows = [
        (one.node_id, _role(quorum, one), one.log_end_offset, one.lag, "" if one.address is None else one.address)
        for one in (*quorum.voters, *quorum.observers)
    ]
    print_table(["NODE", "ROLE", "END", "LAG", "ADDRESS"], rows, right=["NODE", "END", "LAG"])


def _role(quorum: QuorumDescription, one: QuorumReplica) -> str:
    if one.node_id == quorum.leader_id and one in quorum.voters:
        return "leader"
    return "voter" if one in quorum.voters else "observer"


def _quorum_json(quorum: QuorumDescription) -> dict[str, object]:
    return {
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "voters": [_replica_json(one) for one in quorum.voters],
        "observers": [_replica_json(one) for one in quorum.observers],
    }


def _replica_json(one: QuorumReplica) -> dict[str, object]:
    return {
        "node_id": one.node_id,
        "log_end_offset": one.log_end_offset,
        "lag": one.lag,
        "last_fetch_ms": one.last_fetch_ms,
        "last_caught_up_ms": one.last_caught_up_ms,
        "directory_id": None if one.directory_id is None else encode_uuid(one.directory_id),
        "address": None if one.address is None else str(one.address),
    }
