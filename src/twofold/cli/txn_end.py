"""`twofold txn abort|complete|terminate`: the ways to end a transaction that its producer does not end.

1. Nothing is ended without a question (`--yes` for scripts), which says what is going to happen.
2. `abort` asks the coordinators first. What one of them has open is ended as a whole, by it. A bare marker, which ends
   the transaction in one partition alone, is written only where no coordinator is going to end it, or with
   `--partition-only`.
3. `complete` ends a prepared transaction as the outside system has decided, or changes nothing.
"""

from collections.abc import Sequence
from typing import Annotated

import typer

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
    confirm,
    print_json,
    run_command,
)
from twofold.cli.topic import connected
from twofold.cli.txn_place import KNOWN_IDS, check_partition
from twofold.client import Admin, TopicPartition
from twofold.client.errors import UnsupportedByBroker
from twofold.client.open_transactions import NO_TIME_MS, OpenTransaction, find_open, owners_of, why_hanging
from twofold.client.prepared import PreparedTxnState
from twofold.client.transaction_model import AbortTransactionSpec, TransactionDescription, TransactionState
from twofold.wire.errors import InvalidTxnState, TransactionalIdNotFound

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NOTHING = "nothing was ended"
NO_OFFSET = -1


def abort(
    topic: Annotated[str, typer.Option("--topic", help="The topic.")],
    partition: Annotated[int, typer.Option("--partition", help="Its partition.")],
    start_offset: Annotated[int | None, typer.Option("--start-offset", help="Where the transaction begins.")] = None,
    producer_id: Annotated[int | None, typer.Option("--producer-id")] = None,
    producer_epoch: Annotated[int | None, typer.Option("--producer-epoch")] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option("--coordinator-epoch", help="With the two above, instead of --start-offset.")
    ] = None,
    partition_only: Annotated[
        bool, typer.Option("--partition-only", help="End it in this partition alone, whatever its coordinator has.")
    ] = False,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort the transaction that begins at an offset of a partition."""

    async def main() -> int:
        tp = TopicPartition(topic, partition)
        triple = (producer_id, producer_epoch, coordinator_epoch)
        given = sum(value is not None for value in triple)
        if given != (0 if start_offset is not None else len(triple)):
            raise CliError(
                "say what to abort: --start-offset, or all of --producer-id, --producer-epoch and --coordinator-epoch; "
                f"`twofold txn producers --topic {topic} --partition {partition}` shows them",
                USAGE,
            )
        async with connected(bootstrap_server, timeout) as admin:
            await check_partition(admin, tp)
            if start_offset is not None:
                found = await _at_offset(admin, tp, start_offset)
            else:
                assert producer_id is not None and producer_epoch is not None and coordinator_epoch is not None
                found = await _by_numbers(admin, tp, producer_id, producer_epoch, coordinator_epoch)
            owner = None if partition_only else await _owner(admin, found.producer_id)
            if owner is not None and why_hanging(found, owner) is None:
                return await _abort_whole(admin, found, owner, yes, output)
            return await _abort_here(admin, _spec(found, start_offset, coordinator_epoch), yes, output)

    run_command(main, bootstrap_server)


async def _at_offset(admin: Admin, tp: TopicPartition, start_offset: int) -> OpenTransaction:
    rows = (await find_open(admin, [tp])).get()[tp]
    for row in rows:
        if row.start_offset == start_offset:
            return row
    raise CliError(f"no open transaction of {tp} begins at offset {start_offset}; {_those(rows)}")


async def _by_numbers(
    admin: Admin, tp: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> OpenTransaction:
    """As the leader has it; where the broker is too old to tell, the caller knows all that is needed."""
    try:
        rows = (await find_open(admin, [tp])).get()[tp]
    except UnsupportedByBroker:
        return OpenTransaction(tp, producer_id, producer_epoch, coordinator_epoch, NO_OFFSET, NO_TIME_MS)
    found = next((row for row in rows if row.producer_id == producer_id), None)
    if found is None:
        raise CliError(f"no open transaction of {tp} belongs to producer {producer_id}; {_those(rows)}")
    if found.producer_epoch != producer_epoch:
        raise CliError(
            f"producer {producer_id} has epoch {found.producer_epoch} in {tp}, not {producer_epoch}: nothing was ended"
        )
    return found


def _those(rows: Sequence[OpenTransaction]) -> str:
    first = ", ".join(f"{row.start_offset} (producer {row.producer_id})" for row in rows[:5])
    more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
    return f"open ones begin at {first}{more}" if rows else "none is open there"


async def _owner(admin: Admin, producer_id: int) -> TransactionDescription | None:
    """None where no coordinator has it, or where they are too old to be asked."""
    try:
        return (await owners_of(admin, {producer_id})).get(producer_id)
    except UnsupportedByBroker:
        return None


def _spec(found: OpenTransaction, start_offset: int | None, coordinator_epoch: int | None) -> AbortTransactionSpec:
    return AbortTransactionSpec(
        tp=found.tp,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        start_offset=start_offset,
        coordinator_epoch=None if coordinator_epoch is None else max(0, coordinator_epoch),
    )


async def _abort_whole(
    admin: Admin, found: OpenTransaction, owner: TransactionDescription, yes: bool, output: OutputFormat
) -> int:
    name = owner.transactional_id
    if owner.state is not TransactionState.ONGOING:
        raise CliError(
            f"{name!r} is decided ({owner.state.value}) and is writing the marker of {found.tp}: "
            "wait, or look why the partition has no leader. --partition-only would break the decision"
        )
    if not yes:
        where = ", ".join(map(str, sorted(owner.partitions)))
        confirm(
            f"The coordinator has it open as {name!r}. Abort the whole transaction ({where}) and fence its producer?",
            NOTHING,
        )
    await admin.force_terminate_transaction(name)
    if output is OutputFormat.JSON:
        partitions = [str(tp) for tp in sorted(owner.partitions)]
        print_json({"how": "terminated", "transactional_id": name, "partitions": partitions})
    else:
        print(f"aborted the transaction of {name} in {_counted(owner)} and fenced its producer")
    return OK


async def _abort_here(admin: Admin, spec: AbortTransactionSpec, yes: bool, output: OutputFormat) -> int:
    if not yes:
        confirm(
            f"Abort what producer {spec.producer_id} (epoch {spec.producer_epoch}) has open in {spec.tp}, and only "
            "there?",
            NOTHING,
        )
    await admin.abort_transaction(spec)
    if output is OutputFormat.JSON:
        print_json({"how": "marker", "producer_id": spec.producer_id, "partitions": [str(spec.tp)]})
    else:
        print(f"aborted what producer {spec.producer_id} had open in {spec.tp}")
    return OK


def complete(
    transactional_id: Annotated[str, typer.Option("--transactional-id", help="Whose transaction is prepared.")],
    state: Annotated[
        str, typer.Option("--state", metavar="PID:EPOCH", help="What the outside system kept: the prepared state.")
    ],
    commit: Annotated[
        bool | None, typer.Option("--commit/--abort", help="What the outside system has decided.", show_default=False)
    ] = None,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Finish a prepared transaction (two-phase commit) with the decision of the outside system."""

    async def main() -> int:
        if commit is None:
            raise CliError("say what was decided: --commit or --abort", USAGE)
        prepared = PreparedTxnState(state)
        if not prepared:
            raise CliError("--state is empty: nothing was prepared under it", USAGE)
        word = "commit" if commit else "abort"
        if not yes:
            confirm(f"{word.capitalize()} what {transactional_id!r} has prepared as {prepared}?", NOTHING)
        async with connected(bootstrap_server, timeout) as admin:
            try:
                await admin.complete_transaction(transactional_id, prepared, commit=commit)
            except TransactionalIdNotFound:
                raise CliError(f"no coordinator knows {transactional_id!r}; {KNOWN_IDS}") from None
            except InvalidTxnState as error:
                raise CliError(error.message) from None
        if output is OutputFormat.JSON:
            print_json({"transactional_id": transactional_id, "state": str(prepared), "decision": word})
        else:
            print(f"{'committed' if commit else 'aborted'} what {transactional_id} had prepared as {prepared}")
        return OK

    run_command(main, bootstrap_server)


def terminate(
    transactional_id: Annotated[str, typer.Option("--transactional-id", help="Whose transaction to end.")],
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort the transaction of an id, prepared or not, and fence its producer."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            described = await admin.describe_transactions([transactional_id])
            error = described.errors.get(transactional_id)
            if isinstance(error, TransactionalIdNotFound):
                raise CliError(f"no coordinator knows {transactional_id!r}; {KNOWN_IDS}")
            if error is not None:
                raise error
            row = described.values[transactional_id]
            if not yes:
                is_open = row.state.is_open
                what = f"abort its transaction in {_counted(row)}" if is_open else "it has none open"
                confirm(f"{transactional_id!r} is {row.state.value}: {what}, and fence its producer?", NOTHING)
            await admin.force_terminate_transaction(transactional_id)
        if output is OutputFormat.JSON:
            print_json({"transactional_id": transactional_id, "state_before": row.state.value})
        else:
            print(f"terminated {transactional_id}, which was {row.state.value}")
        return OK

    run_command(main, bootstrap_server)


def _counted(row: TransactionDescription) -> str:
    count = len(row.partitions)
    return f"{count:,} partition{'' if count == 1 else 's'}"
