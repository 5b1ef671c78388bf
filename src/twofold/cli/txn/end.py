"""`twofold txn abort|complete|terminate`: the ways to end a transaction that its producer does not end.

1. Nothing is ended without a question (`--yes` for scripts), which says what is going to happen. What was shown is what
   is ended: where it has ended before the answer came, nothing is done. Where the broker cannot compare it at the
   write, it is read again immediately before, and that is said.
2. `abort` asks the coordinators first. What one of them has open is ended as a whole, by it. A bare marker, which ends
   the transaction in one partition alone, is written only where no coordinator is going to end it, or with
   `--partition-only`.
3. `complete` ends a prepared transaction as the outside system has decided, or changes nothing.
"""

import sys
from collections.abc import Collection, Sequence
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
    RequiredPartition,
    RequiredTopic,
    Timeout,
    Yes,
    confirm,
    plural,
    print_json,
    run_command,
)
from twofold.cli.txn.place import KNOWN_IDS, check_partition
from twofold.client import Admin, TopicPartition
from twofold.client.admin.hanging import NO_TIME_MS, PartitionTransaction, find_open, owners_of, why_hanging
from twofold.client.admin.transaction_model import (
    AbortTransactionSpec,
    EndedTransaction,
    TransactionDescription,
    moment,
)
from twofold.client.admin.transactions import check_prepared
from twofold.client.transactions.prepared import PreparedTxnState
from twofold.connections.errors import UnsupportedByBroker
from twofold.wire.errors import InvalidTxnState, TransactionalIdNotFound

NOTHING = "nothing was ended"
NO_OFFSET = -1
MOST_PLACES = 10


def abort(
    topic: RequiredTopic,
    partition: RequiredPartition,
    start_offset: Annotated[int | None, declare.Option("--start-offset", help="Where the transaction begins.")] = None,
    producer_id: Annotated[int | None, declare.Option("--producer-id")] = None,
    producer_epoch: Annotated[int | None, declare.Option("--producer-epoch")] = None,
    coordinator_epoch: Annotated[
        int | None, declare.Option("--coordinator-epoch", help="Older brokers need it, with the two above.")
    ] = None,
    partition_only: Annotated[
        bool, declare.Option("--partition-only", help="End it in this partition alone, whatever its coordinator has.")
    ] = False,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort the transaction that begins at an offset of a partition."""

    async def main() -> int:
        tp = TopicPartition(topic, partition)
        numbers = (producer_id, producer_epoch, coordinator_epoch)
        by_offset = start_offset is not None and numbers == (None, None, None)
        if not by_offset and (start_offset is not None or producer_id is None or producer_epoch is None):
            raise CliError(
                "say what to abort: --start-offset, or both of --producer-id and --producer-epoch (and for an older "
                f"broker --coordinator-epoch); `twofold txn producers --topic {topic} --partition {partition}` shows "
                "them",
                USAGE,
            )
        async with connected(bootstrap_server, timeout) as admin:
            await check_partition(admin, tp)
            if start_offset is not None:
                found = await _at_offset(admin, tp, start_offset)
            else:
                assert producer_id is not None and producer_epoch is not None
                found = await _by_numbers(admin, tp, producer_id, producer_epoch, coordinator_epoch)
            owner = await _owner(admin, found.producer_id)
            await _check_undecided(admin, found, owner)
            if partition_only:
                owner = None
            if owner is not None and why_hanging(found, owner) is None:
                await _check_owner(admin, found)
                return await _abort_whole(admin, found, owner, yes, output)
            return await _abort_here(admin, _spec(found, coordinator_epoch), yes, output)

    run_command(main, bootstrap_server, destructive=True)


async def _at_offset(admin: Admin, tp: TopicPartition, start_offset: int) -> PartitionTransaction:
    rows = (await find_open(admin, [tp])).get()[tp]
    for row in rows:
        if row.start_offset == start_offset:
            return row
    raise CliError(f"no open transaction of {tp} begins at offset {start_offset}; {_those(rows)}")


async def _by_numbers(
    admin: Admin, tp: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int | None
) -> PartitionTransaction:
    """As the leader has it; where the broker is too old to tell, the caller knows all that is needed."""
    try:
        rows = (await find_open(admin, [tp])).get()[tp]
    except UnsupportedByBroker as error:
        if coordinator_epoch is None:
            raise CliError(f"{error}: add --coordinator-epoch (0 if you do not know it)", USAGE) from None
        return PartitionTransaction(tp, producer_id, producer_epoch, coordinator_epoch, NO_OFFSET, NO_TIME_MS)
    found = next((row for row in rows if row.producer_id == producer_id), None)
    if found is None:
        raise CliError(f"no open transaction of {tp} belongs to producer {producer_id}; {_those(rows)}")
    if found.producer_epoch != producer_epoch:
        raise CliError(
            f"producer {producer_id} has epoch {found.producer_epoch} in {tp}, not {producer_epoch}: nothing was ended"
        )
    return found


def _those(rows: Sequence[PartitionTransaction]) -> str:
    first = ", ".join(f"{row.start_offset} (producer {row.producer_id})" for row in rows[:5])
    more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
    return f"open ones begin at {first}{more}" if rows else "none is open there"


async def _owner(admin: Admin, producer_id: int) -> TransactionDescription | None:
    """None where no coordinator has it, or where they are too old to be asked."""
    try:
        return (await owners_of(admin, {producer_id})).get(producer_id)
    except UnsupportedByBroker:
        return None


async def _check_owner(admin: Admin, found: PartitionTransaction) -> None:
    """Still open after its owner was described: so it is the transaction that the coordinator has open."""
    if found.start_offset == NO_OFFSET:
        return
    for row in (await find_open(admin, [found.tp])).get()[found.tp]:
        if (row.producer_id, row.start_offset) == (found.producer_id, found.start_offset):
            return
    raise CliError(
        f"the transaction that began at offset {found.start_offset} of {found.tp} has ended meanwhile: {NOTHING}"
    )


async def _check_undecided(admin: Admin, found: PartitionTransaction, owner: TransactionDescription | None) -> None:
    """Also with --partition-only: to abort what was decided would tear it, or write the wrong marker twice."""
    reason = why_hanging(found, owner)
    if owner is not None and reason is not None and reason.is_decided:
        await _check_owner(admin, found)
        raise CliError(
            f"the transaction of {owner.transactional_id!r} that begins at offset {found.start_offset} of {found.tp}: "
            f"{reason.value}; {NOTHING}. Write the marker with: twofold txn repair --topic {found.tp.topic} "
            f"--partition {found.tp.partition} --start-offset {found.start_offset}"
        )


def _spec(found: PartitionTransaction, coordinator_epoch: int | None) -> AbortTransactionSpec:
    """By its start offset, which `found` has unless the broker was too old to tell it."""
    is_known = found.start_offset != NO_OFFSET
    return AbortTransactionSpec(
        tp=found.tp,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        start_offset=found.start_offset if is_known else None,
        coordinator_epoch=None if is_known else coordinator_epoch,
    )


async def _abort_whole(
    admin: Admin, found: PartitionTransaction, owner: TransactionDescription, yes: bool, output: OutputFormat
) -> int:
    name = owner.transactional_id
    if not owner.is_ongoing:
        raise CliError(
            f"{name!r} is decided ({owner.state.value}) and is writing the marker of {found.tp}: "
            "wait, or look why the partition has no leader. --partition-only would break the decision"
        )
    if not yes:
        where = ", ".join(map(str, sorted(owner.partitions)))
        confirm(
            f"The coordinator has it open as {name!r} ({owner.in_words}). Abort the whole transaction ({where}) and "
            "fence its producer?",
            NOTHING,
        )
    ended = await admin.force_terminate_transaction(name, expected=owner)
    assert ended is not None
    if output is OutputFormat.JSON:
        print_json({"how": "terminated", **_ended_json(ended)})
    else:
        print(f"aborted {_what(ended)} and fenced its producer")
        _say_if_inexact(ended.is_exact)
    return OK


async def _abort_here(admin: Admin, spec: AbortTransactionSpec, yes: bool, output: OutputFormat) -> int:
    since = "" if spec.start_offset is None else f" since offset {spec.start_offset}"
    if not yes:
        confirm(
            f"Abort what producer {spec.producer_id} (epoch {spec.producer_epoch}) has open in {spec.tp}{since}, and "
            "only there?",
            NOTHING,
        )
    ended = await admin.abort_transaction(spec)
    if output is OutputFormat.JSON:
        row = {
            "how": "marker",
            "producer_id": ended.producer_id,
            "producer_epoch": ended.producer_epoch,
            "start_offset": ended.start_offset,
            "partitions": [str(ended.tp)],
            "compared_at_write": ended.is_exact,
        }
        print_json(row)
    else:
        print(f"aborted what producer {ended.producer_id} (epoch {ended.producer_epoch}) had open in {ended.tp}{since}")
        _say_if_inexact(ended.is_exact)
    return OK


def complete(
    transactional_id: Annotated[str, declare.Option("--transactional-id", help="Whose transaction is prepared.")],
    state: Annotated[
        str, declare.Option("--state", metavar="PID:EPOCH", help="What the outside system kept: the prepared state.")
    ],
    commit: Annotated[
        bool | None, declare.Option("--commit/--abort", help="What the outside system has decided.", show_default=False)
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
        async with connected(bootstrap_server, timeout) as admin:
            row = await _described(admin, transactional_id)
            try:
                check_prepared(row, prepared)
            except InvalidTxnState as error:
                raise CliError(error.message) from None
            if not yes:
                what = f"{word.capitalize()} what {transactional_id!r} has prepared as {prepared}"
                confirm(f"{what} ({row.in_words}) in {_places(row.partitions)}?", NOTHING)
            ended = await admin.complete_transaction(transactional_id, prepared, commit=commit, expected=row)
        if output is OutputFormat.JSON:
            print_json({"state": str(prepared), "decision": word, **_ended_json(ended)})
        else:
            print(f"{'committed' if commit else 'aborted'} {_what(ended)}, which was prepared as {prepared}")
            _say_if_inexact(ended.is_exact)
        return OK

    run_command(main, bootstrap_server, destructive=True)


def terminate(
    transactional_id: Annotated[str, declare.Option("--transactional-id", help="Whose transaction to end.")],
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort the transaction of an id, prepared or not, and fence its producer."""

    async def main() -> int:
        async with connected(bootstrap_server, timeout) as admin:
            row = await _described(admin, transactional_id)
            if row.state.is_open and not row.is_ongoing:
                raise CliError(
                    f"{transactional_id!r} is decided ({row.state.value}), and its markers are missing in "
                    f"{_places(row.partitions)}: {NOTHING}. Wait, or look why these partitions have no leader"
                )
            if not yes:
                what = f"abort its transaction in {_places(row.partitions)}" if row.is_ongoing else "it has none open"
                confirm(f"{transactional_id!r} has {row.in_words}: {what}, and fence its producer?", NOTHING)
            ended = await admin.force_terminate_transaction(transactional_id, expected=row)
            assert ended is not None
        if output is OutputFormat.JSON:
            print_json({"state_before": row.state.value, **_ended_json(ended)})
        else:
            what = f"aborted {_what(ended)} and fenced its producer" if row.is_ongoing else f"fenced {_who(ended)}"
            print(f"terminated {transactional_id}, which was {row.state.value}: {what}")
            _say_if_inexact(ended.is_exact)
        return OK

    run_command(main, bootstrap_server, destructive=True)


# Common


async def _described(admin: Admin, transactional_id: str) -> TransactionDescription:
    described = await admin.describe_transactions([transactional_id])
    if isinstance(described.errors.get(transactional_id), TransactionalIdNotFound):
        raise CliError(f"no coordinator knows {transactional_id!r}; {KNOWN_IDS}")
    return described.get()[transactional_id]


def _who(ended: EndedTransaction) -> str:
    return f"producer id {ended.producer_id}, epoch {ended.producer_epoch}"


def _what(ended: EndedTransaction) -> str:
    shown = f"{_who(ended)}, open since {moment(ended.start_ms)}"
    return f"the transaction of {ended.transactional_id} ({shown}) in {_places(ended.partitions)}"


def _places(partitions: Collection[TopicPartition]) -> str:
    count = len(partitions)
    names = ", ".join(map(str, sorted(partitions)[:MOST_PLACES]))
    more = f" and {count - MOST_PLACES:,} more" if count > MOST_PLACES else ""
    return plural(count, "partition") + (f" ({names}{more})" if count else "")


def _ended_json(ended: EndedTransaction) -> dict[str, object]:
    return {
        "transactional_id": ended.transactional_id,
        "producer_id": ended.producer_id,
        "producer_epoch": ended.producer_epoch,
        "start_ms": ended.start_ms if ended.start_ms >= 0 else None,
        "partitions": [str(tp) for tp in sorted(ended.partitions)],
        "compared_at_write": ended.is_exact,
    }


def _say_if_inexact(is_exact: bool) -> None:
    if not is_exact:
        print(
            "note: the broker did not confirm that it compared what was shown with what was open when it wrote. That "
            "was read again immediately before, so the check was not atomic",
            file=sys.stderr,
        )
