"""`twofold txn`: what transactions there are, which hold readers back, which hang; and the ways to end them."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from twofold.cli import declare
from twofold.cli.admin import connected
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
    Progress,
    RequiredPartition,
    RequiredTopic,
    Timeout,
    complain,
    console,
    plural,
    print_json,
    print_table,
    run_command,
    say_empty,
)
from twofold.cli.txn.end import abort, complete, terminate
from twofold.cli.txn.fate import fate
from twofold.cli.txn.place import KNOWN_IDS, check_broker, check_partition, chosen_partitions
from twofold.cli.txn.repair import repair
from twofold.cli.txn.shown import (
    NONE,
    STATE_WORDS,
    for_people,
    open_for,
    print_blocked,
    print_described,
    print_listed,
    print_two_phase,
    starts_of,
)
from twofold.cli.txn.words import table
from twofold.client import TopicPartition
from twofold.client.admin.hanging import (
    NO_TIME_MS,
    Began,
    Blocked,
    Hanging,
    find_blocked,
    find_hanging,
    find_two_phase,
)
from twofold.client.admin.transaction_model import TransactionDescription, TransactionListing, TransactionState
from twofold.wire.errors import InvalidRegularExpression, KafkaError, TransactionalIdNotFound

txn_app = declare.App(
    help="See, find and end transactions. Verbs, flags and columns of kafka-transactions.sh work too.",
    no_args_is_help=True,
)

MINUTE_MS = 60_000
DEFAULT_MAX_TIMEOUT_MIN = 15  # as kafka-transactions.sh: transaction.max.timeout.ms of a broker
NO_DURATION_FILTER = -1

BrokerId = Annotated[
    int | None, declare.Option("--broker-id", help="Ask this broker instead of all, or of the leader.")
]
Topic = Annotated[str | None, declare.Option("--topic", help="Only this topic.")]
Partition = Annotated[int | None, declare.Option("--partition", help="Only this partition of the topic.")]


# What there is


@txn_app.command("list", epilog=EXIT_CODES)
def list_transactions(
    state: Annotated[
        list[str] | None, declare.Option("--state", help="Only this state, like Ongoing or open; repeatable.")
    ] = None,
    duration_filter: Annotated[
        int, declare.Option("--duration-filter", metavar="MS", help="Only transactions open for longer.")
    ] = NO_DURATION_FILTER,
    pattern: Annotated[
        str | None, declare.Option("--transactional-id-pattern", metavar="RE", help="Only ids that match (RE2).")
    ] = None,
    two_phase: Annotated[
        bool,
        declare.Option("--two-phase", help="Only open two-phase transactions, the oldest first, and how to name them."),
    ] = False,
    broker_id: BrokerId = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the transactional ids that coordinators know, with their states."""

    async def main() -> int:
        states = [_state(word) for word in state or ()]
        if two_phase and not states:
            states = [known for known in TransactionState if known.is_open]
        async with connected(bootstrap_server, timeout) as admin:
            await check_broker(admin, broker_id)
            results = await admin.list_transactions(
                states=states,
                duration_ms=None if duration_filter < 0 else duration_filter,
                pattern=pattern,
                broker_id=broker_id,
            )
            rows = [row for _, found in sorted(results.values.items()) for row in sorted(found)]
            prepared = await find_two_phase(admin, rows) if two_phase else []
            is_table = output is OutputFormat.TABLE and not two_phase and for_people()
            described = await starts_of(admin, rows) if is_table else {}
        if two_phase:
            _print_two_phase(prepared, output)
        elif output is OutputFormat.JSON:
            print_json([_listed_json(row) for row in rows])
        elif results.values:
            if rows or not is_table:
                print_listed(rows, described, int(time.time() * 1000))
            else:
                say_empty(f"no transactional id at {bootstrap_server}{' that matches' if states or pattern else ''}")
        wrong = f"--transactional-id-pattern {pattern!r} is no regular expression of RE2"
        return failed("list the transactions of broker", results.errors, {InvalidRegularExpression: wrong})

    run_command(main, bootstrap_server)


@txn_app.command("describe", epilog=EXIT_CODES)
def describe(
    transactional_ids: Annotated[
        list[str] | None, declare.Argument(metavar="[ID...]", help="Transactional ids.")
    ] = None,
    transactional_id: Annotated[
        list[str] | None, declare.Option("--transactional-id", help="A transactional id; repeatable.")
    ] = None,
    broker_id: BrokerId = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show what the coordinators of transactional ids have of them."""

    async def main() -> int:
        wanted = [*(transactional_ids or ()), *(transactional_id or ())]
        if not wanted:
            raise CliError("no transactional id: give one, or --transactional-id; `twofold txn list` shows them", USAGE)
        async with connected(bootstrap_server, timeout) as admin:
            await check_broker(admin, broker_id)
            results = await admin.describe_transactions(wanted, broker_id=broker_id)
        now_ms = int(time.time() * 1000)
        if output is OutputFormat.JSON:
            print_json([_described_json(row, now_ms) for row in results.values.values()])
        elif results.values:
            print_described(list(results.values.values()), now_ms)
        return failed("describe", results.errors, {TransactionalIdNotFound: UNKNOWN_ID})

    run_command(main, bootstrap_server)


def _print_two_phase(rows: Sequence[TransactionDescription], output: OutputFormat) -> None:
    now_ms = int(time.time() * 1000)
    if output is OutputFormat.JSON:
        print_json([_described_json(row, now_ms) for row in rows])
    elif rows:
        print_two_phase(rows, now_ms)
    else:
        print("no open two-phase transaction")


UNKNOWN_ID = f"no coordinator knows it; {KNOWN_IDS}"


def describe_producers(
    topic: RequiredTopic,
    partition: RequiredPartition,
    broker_id: BrokerId = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the producers that a partition remembers, and where their open transactions begin."""

    async def main() -> int:
        tp = TopicPartition(topic, partition)
        async with connected(bootstrap_server, timeout) as admin:
            await check_partition(admin, tp)
            await check_broker(admin, broker_id)
            results = await admin.describe_producers([tp], broker_id=broker_id)
        rows = results.values.get(tp, ())
        if output is OutputFormat.JSON:
            print_json([row._asdict() for row in rows])
        else:
            cells = (
                (
                    row.producer_id,
                    row.producer_epoch,
                    row.coordinator_epoch,
                    row.last_sequence,
                    row.last_timestamp,
                    NONE if row.current_txn_start_offset < 0 else row.current_txn_start_offset,
                )
                for row in rows
            )
            print(table(PRODUCERS, cells))
        return failed("describe the producers of", results.errors)

    run_command(main, bootstrap_server)


PRODUCERS = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)
txn_app.command("producers", epilog=EXIT_CODES)(describe_producers)
txn_app.command("describe-producers", epilog=EXIT_CODES, hidden=True)(describe_producers)


# What is wrong


@txn_app.command("hanging", epilog=EXIT_CODES)
def hanging(
    topic: Topic = None,
    partition: Partition = None,
    broker_id: BrokerId = None,
    max_transaction_timeout: Annotated[
        float,
        declare.Option(
            "--max-transaction-timeout", metavar="MINUTES", min=0, help="Only what has been open for longer."
        ),
    ] = 0,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Find open transactions that no coordinator is going to end, each with the reason."""
    _hanging(topic, partition, broker_id, max_transaction_timeout, bootstrap_server, output, timeout, as_kafka=False)


@txn_app.command("find-hanging", epilog=EXIT_CODES, hidden=True)
def find_hanging_as_kafka(
    topic: Topic = None,
    partition: Partition = None,
    broker_id: BrokerId = None,
    max_transaction_timeout: Annotated[
        float, declare.Option("--max-transaction-timeout", metavar="MINUTES", min=0)
    ] = DEFAULT_MAX_TIMEOUT_MIN,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """The same, with the columns and the default of kafka-transactions.sh."""
    _hanging(topic, partition, broker_id, max_transaction_timeout, bootstrap_server, output, timeout, as_kafka=True)


HANGING_AS_KAFKA = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)


def _hanging(
    topic: str | None,
    partition: int | None,
    broker_id: int | None,
    longer_than_min: float,
    bootstrap_server: str,
    output: OutputFormat,
    timeout: float,
    *,
    as_kafka: bool,
) -> None:
    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            chosen = await chosen_partitions(admin, topic, partition, broker_id)
            with Progress("partitions", len(chosen), when=output is OutputFormat.TABLE) as bar:
                found, errors = await find_hanging(admin, chosen, broker_id=broker_id, told=bar.advance)
        now_ms = int(time.time() * 1000)
        found = [row for row in found if _age_ms(row.began, now_ms) >= longer_than_min * MINUTE_MS]
        if output is OutputFormat.JSON:
            print_json([_hanging_json(row, now_ms) for row in found])
        elif as_kafka:
            print(table(HANGING_AS_KAFKA, (_hanging_cells(row, now_ms) for row in found)))
        elif found:
            print_table(
                ["PARTITION", "PRODUCER", "EPOCH", "START OFFSET", "OPEN FOR", "TRANSACTIONAL ID", "REASON"],
                [
                    (
                        row.transaction.tp,
                        row.transaction.producer_id,
                        row.transaction.producer_epoch,
                        row.transaction.start_offset,
                        open_for(row.began, now_ms),
                        row.transactional_id or "-",
                        row.reason.value,
                    )
                    for row in found
                ],
                right=["PRODUCER", "EPOCH", "START OFFSET", "OPEN FOR"],
            )
            print(f"\n{_advice(found)}")
        else:
            print(f"no hanging transaction in {plural(len(chosen), 'partition')}")
        return failed("look at", errors)

    run_command(main, bootstrap_server)


def _advice(found: Sequence[Hanging]) -> str:
    """What to do about the first of each kind."""
    lines = []
    for is_decided, words in ((True, "write the missing marker of one"), (False, "end one")):
        first = next((row.transaction for row in found if row.reason.is_decided == is_decided), None)
        if first is not None:
            verb = "repair" if is_decided else "abort"
            lines.append(
                f"{words} with: twofold txn {verb} --topic {first.tp.topic} --partition {first.tp.partition} "
                f"--start-offset {first.start_offset}"
            )
    return "\n".join(lines)


@txn_app.command("blocked", epilog=EXIT_CODES)
def blocked(
    topic: Topic = None,
    partition: Partition = None,
    broker_id: BrokerId = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the partitions whose readers wait for a transaction, which one, since when, and which groups wait."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            chosen = await chosen_partitions(admin, topic, partition, broker_id)
            with Progress("partitions", len(chosen), when=output is OutputFormat.TABLE) as bar:
                found, errors = await find_blocked(admin, chosen, told=bar.advance)
        now_ms = int(time.time() * 1000)
        if output is OutputFormat.JSON:
            print_json([_blocked_json(row, now_ms) for row in found])
        elif found:
            print_blocked(found, now_ms)
        else:
            print(f"no reader waits in {plural(len(chosen), 'partition')}")
        return failed("see", errors)

    run_command(main, bootstrap_server)


@txn_app.command("watch", epilog=EXIT_CODES)
def watch(
    topic: Topic = None,
    partition: Partition = None,
    interval: Annotated[
        float, declare.Option("--interval", metavar="SECONDS", min=0.1, help="Between two looks.")
    ] = 2.0,
    count: Annotated[int | None, declare.Option("--count", min=1, help="End after so many looks.")] = None,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the open transactions and which readers they hold back, again and again until Ctrl-C."""

    async def main() -> int:
        from twofold.cli.txn.watch import lines, live_table, watch_transactions

        async with connected(bootstrap_server, timeout) as admin:
            chosen = await chosen_partitions(admin, topic, partition, None)
            with lines(_blocked_json) if output is OutputFormat.JSON else live_table(console()) as show:
                return OK if await watch_transactions(admin, chosen, interval, count, show) else FAILED

    run_command(main, bootstrap_server)


txn_app.command("abort", epilog=EXIT_CODES)(abort)
txn_app.command("repair", epilog=EXIT_CODES)(repair)
txn_app.command("complete", epilog=EXIT_CODES)(complete)
txn_app.command("terminate", epilog=EXIT_CODES)(terminate)
txn_app.command("fate", epilog=EXIT_CODES)(fate)


# Common


def failed(verb: str, errors: Mapping[Any, KafkaError], advice: Mapping[type[KafkaError], str] | None = None) -> int:
    """Say what failed; returns the exit code."""
    code = OK
    for name, error in errors.items():
        code = complain(f"cannot {verb} {name}: {(advice or {}).get(type(error), error)}", FAILED)
    return code


def _age_ms(began: Began, now_ms: int) -> int:
    """A transaction whose start is not known sorts as the oldest."""
    age_ms = began.age_ms(now_ms)
    return now_ms if age_ms is None else age_ms


def _state(word: str) -> TransactionState:
    for state in TransactionState:
        if word.replace("_", "").lower() == state.value.lower() or word.lower() == STATE_WORDS[state]:
            return state
    known = ", ".join(state.value for state in TransactionState if state is not TransactionState.UNKNOWN)
    raise CliError(f"--state {word!r} is none of: {known}", USAGE)


def _listed_json(row: TransactionListing) -> dict[str, object]:
    return {
        "transactional_id": row.transactional_id,
        "coordinator": row.coordinator_id,
        "producer_id": row.producer_id,
        "state": row.state.value,
    }


def _described_json(row: TransactionDescription, now_ms: int) -> dict[str, object]:
    begun, ended = row.start_ms >= 0, row.last_two_phase
    return {
        "transactional_id": row.transactional_id,
        "coordinator": row.coordinator_id,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "state": row.state.value,
        "timeout_ms": row.timeout_ms,
        "start_ms": row.start_ms if begun else None,
        "duration_ms": now_ms - row.start_ms if begun else None,
        "partitions": [str(tp) for tp in sorted(row.partitions)],
        "opened_by": row.opened_by or None,
        "last_two_phase": None if ended is None else {"state": str(ended.state), "ending": ended.ending.name.lower()},
    }


def _hanging_cells(row: Hanging, now_ms: int) -> Sequence[object]:
    found = row.transaction
    return (
        found.tp.topic,
        found.tp.partition,
        found.producer_id,
        found.producer_epoch,
        found.coordinator_epoch,
        found.start_offset,
        found.last_timestamp,
        _age_ms(row.began, now_ms) // MINUTE_MS,
    )


def _hanging_json(row: Hanging, now_ms: int) -> dict[str, object]:
    return row.transaction._asdict() | {
        "tp": str(row.transaction.tp),
        "reason": row.reason.value,
        "transactional_id": row.transactional_id,
        "first_timestamp": None if row.first_timestamp == NO_TIME_MS else row.first_timestamp,
        "duration_ms": row.began.age_ms(now_ms),
        "duration_told_by": row.began.told_by.value,
    }


def _blocked_json(row: Blocked, now_ms: int) -> dict[str, object]:
    open_one = row.transaction
    return {
        "partition": str(row.tp),
        "stable_offset": row.stable_offset,
        "high_watermark": row.high_watermark,
        "hidden": row.hidden,
        "producer_id": None if open_one is None else open_one.producer_id,
        "producer_epoch": None if open_one is None else open_one.producer_epoch,
        "transactional_id": row.transactional_id,
        "start_offset": None if open_one is None else open_one.start_offset,
        "first_timestamp": None if row.first_timestamp == NO_TIME_MS else row.first_timestamp,
        "last_timestamp": None if open_one is None else open_one.last_timestamp,
        "duration_ms": row.began.age_ms(now_ms),
        "duration_told_by": row.began.told_by.value,
        "groups": list(row.groups),
        "opened_by": row.opened_by or None,
    }
