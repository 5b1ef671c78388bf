"""`twofold topic reassign`, `reassignments`, `elect-leaders`: where replicas are, and which of them leads.

What was shown is what is done: `reassign` reads the replicas again immediately before it writes and stops where they
have changed. The protocol has no field for that, so another administrator can still come between the two.
"""

from collections.abc import Mapping
from typing import Annotated

from twofold.cli import declare
from twofold.cli.admin import connected
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    OK,
    USAGE,
    BootstrapServer,
    CliError,
    Format,
    OutputFormat,
    Timeout,
    Yes,
    confirm,
    plural,
    print_json,
    print_table,
    run_command,
    say_empty,
)
from twofold.cli.topic.errors import report
from twofold.cli.topic.spreading import spread
from twofold.client import Admin, ElectionType, Reassignment, TopicMetadata, TopicPartition
from twofold.wire.errors import ElectionNotNeeded, KafkaError

Move = tuple[tuple[int, ...], tuple[int, ...]]  # the replicas now, and those that are wanted
Moves = dict[TopicPartition, Move]

Topics = Annotated[list[str], declare.Argument(metavar="TOPIC...", help="Names of topics.")]


def reassign(
    topics: Topics,
    to: Annotated[
        str | None, declare.Option("--to", metavar="ID,ID,...", help="The brokers that are to have the replicas.")
    ] = None,
    replication_factor: Annotated[
        int | None, declare.Option("--replication-factor", "-r", min=1, help="Default: as many replicas as now.")
    ] = None,
    partition: Annotated[list[int] | None, declare.Option("--partition", help="Default: all; repeatable.")] = None,
    cancel: Annotated[
        bool, declare.Option("--cancel", help="End the moves that go on; nothing moves any more.")
    ] = False,
    dry_run: Annotated[bool, declare.Option("--dry-run", help="Show what would move, and change nothing.")] = False,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move the replicas of topics to other brokers, or change how many there are."""

    async def main() -> int:
        if cancel == (to is not None) or (cancel and replication_factor is not None):
            raise CliError("where to: give --to ID,ID,..., or --cancel alone to end the moves that go on", USAGE)
        async with connected(bootstrap_server, timeout) as admin:
            if cancel:
                moves = await _cancelled(admin, topics, partition)
            else:
                moves = await _planned(admin, topics, partition, _ids(to or ""), replication_factor)
            if output is OutputFormat.TABLE:
                _print_moves(moves)
            errors: Mapping[TopicPartition, KafkaError] = {}
            if moves and not dry_run:
                if not yes:
                    what = "End the moves of" if cancel else "Move"
                    confirm(f"{what} {plural(len(moves), 'partition')} at {bootstrap_server}?", "nothing was changed")
                errors = await _carry_out(admin, moves, cancel=cancel)
        done = {} if dry_run else {tp: move for tp, move in moves.items() if tp not in errors}
        if output is OutputFormat.JSON:
            print_json({"dry_run": dry_run, "moves": [_move_json(tp, move, tp in done) for tp, move in moves.items()]})
        elif not moves:
            print("no move goes on" if cancel else "nothing to move: all replicas are there already")
        elif cancel and done:
            print(f"ended the moves of {plural(len(done), 'partition')}")
        elif done:
            print(f"began to move {plural(len(done), 'partition')}; `twofold topic reassignments` shows what goes on")
        return report(errors, "reassign", bootstrap_server)

    run_command(main, bootstrap_server, destructive=True)


def reassignments(
    topics: Annotated[list[str] | None, declare.Argument(metavar="[TOPIC...]", help="Default: all.")] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the partitions that are being moved."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            if topics:
                (await admin.describe_topics(topics)).get()
            found = await admin.list_partition_reassignments()
        shown = {tp: row for tp, row in sorted(found.items()) if not topics or tp.topic in topics}
        if output is OutputFormat.JSON:
            print_json([_ongoing_json(tp, row) for tp, row in shown.items()])
        elif shown:
            rows = [(*tp, _text(row.replicas), _text(row.adding), _text(row.removing)) for tp, row in shown.items()]
            print_table(["TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"], rows, right=["PARTITION"])
        else:
            say_empty("no partition is being moved")
        return OK

    run_command(main, bootstrap_server)


def elect_leaders(
    topics: Annotated[list[str] | None, declare.Argument(metavar="[TOPIC...]", help="Default: all.")] = None,
    partition: Annotated[list[int] | None, declare.Option("--partition", help="Default: all; repeatable.")] = None,
    unclean: Annotated[
        bool,
        declare.Option("--unclean", help="Where no replica in sync is left, let another lead: records may be lost."),
    ] = False,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let the preferred replicas lead again; with --unclean, any replica where none in sync is left."""

    async def main() -> int:
        if partition and not topics:
            raise CliError("--partition needs the topics that it is of", USAGE)
        if unclean and not topics:
            raise CliError("--unclean needs the topics: what a replica that is not in sync lacks is lost", USAGE)
        async with connected(bootstrap_server, timeout) as admin:
            wanted = await _chosen(admin, topics, partition)
            if unclean and not yes:
                confirm(
                    f"Let replicas that are not in sync lead {', '.join(topics or ())} at {bootstrap_server}, and lose "
                    "what they lack?",
                    "nothing was changed",
                )
            kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
            results = await admin.elect_leaders(wanted, kind=kind)
            leaders = await _leaders(admin, list(results.values))
        if output is OutputFormat.JSON:
            print_json([{"topic": tp.topic, "partition": tp.partition, "leader": leaders[tp]} for tp in leaders])
        elif leaders:
            rows = [(*tp, leader) for tp, leader in leaders.items()]
            print_table(["TOPIC", "PARTITION", "LEADER"], rows, right=["PARTITION", "LEADER"])
        else:
            say_empty("no partition needed an election")
        return report(results.errors, "elect a leader of", bootstrap_server, (ElectionNotNeeded,))

    run_command(main, bootstrap_server, destructive=True)


async def _planned(
    admin: Admin, topics: list[str], indexes: list[int] | None, targets: list[int], factor: int | None
) -> Moves:
    """What has to move so that the replicas are on the brokers `targets`."""
    alive = {node.node_id: node.rack for node in (await admin.describe_cluster()).brokers}
    if away := [broker for broker in targets if broker not in alive]:
        known = ", ".join(map(str, sorted(alive)))
        raise CliError(f"--to {away[0]}: there is no such broker, or it is not running; there are {known}", USAGE)
    brokers = {broker: alive[broker] for broker in targets}
    moves: Moves = {}
    for name, topic in (await admin.describe_topics(topics)).get().items():
        now = {index: topic.partitions[index].replicas for index in _wanted_indexes(topic, indexes)}
        wanted = factor or max((len(replicas) for replicas in now.values()), default=1)
        if wanted > len(brokers):
            raise CliError(
                f"{name} is to have {plural(wanted, 'replica')}, and --to names {plural(len(brokers), 'broker')}: name "
                "more, or give --replication-factor",
                USAGE,
            )
        for index, replicas in spread(now, brokers, wanted).items():
            if replicas != now[index]:
                moves[TopicPartition(name, index)] = (now[index], replicas)
    return moves


async def _cancelled(admin: Admin, topics: list[str], indexes: list[int] | None) -> Moves:
    wanted = await _chosen(admin, topics, indexes) or []
    going_on = await admin.list_partition_reassignments(wanted)
    return {tp: (row.replicas, _before(row)) for tp, row in going_on.items()}


def _before(row: Reassignment) -> tuple[int, ...]:
    return tuple(broker for broker in row.replicas if broker not in row.adding)


async def _carry_out(admin: Admin, moves: Moves, *, cancel: bool) -> Mapping[TopicPartition, KafkaError]:
    now = (await admin.describe_topics(list(dict.fromkeys(tp.topic for tp in moves)))).get()
    for tp, (shown, _) in moves.items():
        row = now[tp.topic].partitions.get(tp.partition)
        found = () if row is None else row.replicas
        if found != shown:
            raise CliError(
                f"{tp} had the replicas {_text(shown)}, and has {_text(found) or 'none'} now: nothing was changed"
            )
    wanted = {tp: None if cancel else target for tp, (_, target) in moves.items()}
    return (await admin.alter_partition_reassignments(wanted)).errors


async def _chosen(admin: Admin, topics: list[str] | None, indexes: list[int] | None) -> list[TopicPartition] | None:
    """The partitions that the options name; None for all."""
    if not topics:
        return None
    found = (await admin.describe_topics(topics)).get()
    return [TopicPartition(name, index) for name, topic in found.items() for index in _wanted_indexes(topic, indexes)]


def _wanted_indexes(topic: TopicMetadata, indexes: list[int] | None) -> list[int]:
    for index in indexes or ():
        if index not in topic.partitions:
            raise CliError(f"--partition {index}: {topic.name} has {plural(len(topic.partitions), 'partition')}", USAGE)
    return list(dict.fromkeys(indexes)) if indexes else list(topic.partitions)


async def _leaders(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    found = (await admin.describe_topics(list(dict.fromkeys(tp.topic for tp in partitions)))).get()
    return {tp: found[tp.topic].partitions[tp.partition].leader for tp in sorted(partitions)}


def _ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) != len(parts):
        raise CliError(f"--to {text}: give the ids of brokers, each once, as in --to 4,5,6", USAGE)
    return [int(part) for part in parts]


def _print_moves(moves: Moves) -> None:
    if moves:
        rows = [(*tp, _text(now), _text(wanted)) for tp, (now, wanted) in moves.items()]
        print_table(["TOPIC", "PARTITION", "REPLICAS", "WANTED"], rows, right=["PARTITION"])


def _text(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


def _move_json(tp: TopicPartition, move: Move, done: bool) -> dict[str, object]:
    now, wanted = move
    return {"topic": tp.topic, "partition": tp.partition, "replicas": now, "wanted": wanted, "begun": done}


def _ongoing_json(tp: TopicPartition, row: Reassignment) -> dict[str, object]:
    return {
        "topic": tp.topic, "partition": tp.partition, "replicas": row.replicas, "adding": row.adding,
        "removing": row.removing,
    }  # fmt: skip
