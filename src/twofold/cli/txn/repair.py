"""`twofold txn repair`: write markers that partitions have lost, as the transactions were decided.

1. What is repaired is what a coordinator's record shows as decided, commit or abort. The broker compares the two at the
   write, so that nothing is ended otherwise. An Apache Kafka coordinator does not tell, and nothing is repaired there.
2. Nothing is written without a question (`--yes` for scripts), which lists what is going to be written.
3. One transaction is named by the partition and the offset where it begins; otherwise all that lack a marker in a
   topic, in a partition, or with `--all` anywhere.
"""

from collections.abc import Sequence
from typing import Annotated

from twofold.cli import declare
from twofold.cli.admin import connected
from twofold.cli.common import (
    DEFAULT_SERVER,
    DEFAULT_TIMEOUT_S,
    FAILED,
    OK,
    USAGE,
    BootstrapServer,
    CliError,
    Format,
    OutputFormat,
    Progress,
    Timeout,
    Yes,
    complain,
    confirm,
    plural,
    print_json,
    print_table,
    run_command,
)
from twofold.cli.txn.place import chosen_partitions
from twofold.client import Admin
from twofold.client.admin.hanging import Hanging, PartitionTransaction, Reason, find_hanging
from twofold.client.admin.transaction_model import RepairTransactionSpec
from twofold.wire.errors import KafkaError

NOTHING = "nothing was written"


def repair(
    topic: Annotated[str | None, declare.Option("--topic", help="Only this topic.")] = None,
    partition: Annotated[int | None, declare.Option("--partition", help="Only this partition of the topic.")] = None,
    start_offset: Annotated[
        int | None, declare.Option("--start-offset", help="Only the transaction that begins at this offset.")
    ] = None,
    everywhere: Annotated[bool, declare.Option("--all", help="In all partitions of all topics.")] = False,
    yes: Yes = False,
    bootstrap_server: BootstrapServer = DEFAULT_SERVER,
    output: Format = OutputFormat.TABLE,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Write the missing markers of transactions that are decided, as they were decided."""

    async def main() -> int:
        if (topic is None) != everywhere or (start_offset is not None and partition is None):
            raise CliError(
                "say where: --all, or --topic, and with it --partition and --start-offset for one transaction; "
                "`twofold txn hanging` shows what lacks a marker",
                USAGE,
            )
        async with connected(bootstrap_server, timeout) as admin:
            chosen = await chosen_partitions(admin, topic, partition, None)
            with Progress("partitions", len(chosen), when=output is OutputFormat.TABLE) as bar:
                found, errors = await find_hanging(admin, chosen, told=bar.advance)
            missing = [row for row in found if row.reason.is_decided]
            if start_offset is not None:
                missing = [_at_offset(found, start_offset, str(chosen[0]))]
            code = OK
            for tp, error in errors.items():
                code = complain(f"cannot look at {tp}: {error}", FAILED)
            if missing and not yes:
                _show(missing)
                confirm(f"Write {_counted(missing)}?", NOTHING)
            return max(code, await _repair_all(admin, missing, output, len(chosen)))

    run_command(main, bootstrap_server, destructive=True)


def _at_offset(found: Sequence[Hanging], start_offset: int, where: str) -> Hanging:
    row = next((row for row in found if row.transaction.start_offset == start_offset), None)
    if row is None:
        raise CliError(
            f"no transaction that begins at offset {start_offset} of {where} waits for a marker that no coordinator "
            f"writes: it has ended, or its coordinator is going to end it; {NOTHING}"
        )
    if not row.reason.is_decided:
        raise CliError(
            f"what became of the transaction that begins at offset {start_offset} of {where} is not known "
            f"({row.reason.value}); {NOTHING}. `twofold txn abort` ends it, if nothing of it was committed"
        )
    return row


def spec(row: PartitionTransaction, *, commit: bool) -> RepairTransactionSpec:
    return RepairTransactionSpec(
        tp=row.tp,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        start_offset=row.start_offset,
        commit=commit,
    )


async def _repair_all(admin: Admin, missing: Sequence[Hanging], output: OutputFormat, looked_at: int) -> int:
    code = OK
    written: list[Hanging] = []
    for row in missing:
        try:
            await admin.repair_transaction(spec(row.transaction, commit=row.reason is Reason.COMMIT_LOST))
        except KafkaError as error:
            code = complain(f"not repaired: {error}", FAILED)
        else:
            written.append(row)
    if output is OutputFormat.JSON:
        print_json([_json(row) for row in written])
    elif not missing:
        print(f"no decided transaction lacks a marker in {plural(looked_at, 'partition')}")
    for row in written if output is OutputFormat.TABLE else ():
        print(
            f"{row.transaction.tp}: wrote the {_word(row)} marker of {row.transactional_id} "
            f"(producer {row.transaction.producer_id}, epoch {row.transaction.producer_epoch})"
        )
    return code


def _show(missing: Sequence[Hanging]) -> None:
    print_table(
        ["PARTITION", "PRODUCER", "EPOCH", "START OFFSET", "TRANSACTIONAL ID", "MARKER"],
        [
            (
                row.transaction.tp,
                row.transaction.producer_id,
                row.transaction.producer_epoch,
                row.transaction.start_offset,
                row.transactional_id,
                _word(row),
            )
            for row in missing
        ],
        right=["PRODUCER", "EPOCH", "START OFFSET"],
    )


def _counted(missing: Sequence[Hanging]) -> str:
    return "this marker" if len(missing) == 1 else f"these {len(missing):,} markers"


def _word(row: Hanging) -> str:
    return "commit" if row.reason is Reason.COMMIT_LOST else "abort"


def _json(row: Hanging) -> dict[str, object]:
    return {
        "partition": str(row.transaction.tp),
        "producer_id": row.transaction.producer_id,
        "producer_epoch": row.transaction.producer_epoch,
        "start_offset": row.transaction.start_offset,
        "transactional_id": row.transactional_id,
        "marker": _word(row),
    }
