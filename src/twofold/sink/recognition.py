"""Whether a batch is new, or one that was decided, or neither. Pure.

1. A batch of a query is the one that was decided if it has its number and its input. With another input it is refused:
   to skip it would lose rows, and to write it would double those that are in the output already.
2. A writeId is new if there is no trace of it. One that was pruned is refused, and so is a new one when as many are
   remembered as may be.
"""

import json
from datetime import UTC, datetime

from twofold.sink.decided import KEPT_DIGESTS, UNKNOWN, DecidedEntry, Input, Purpose
from twofold.sink.errors import OtherInput, WriteIdRefused
from twofold.sink.register import Register
from twofold.sink.remembered import Remembered

MAX_WRITE_IDS = 10_000


def lacks_digest(entry: DecidedEntry, read: Input) -> bool:
    return entry.digest(read.batch_id) == UNKNOWN


def check_same(entry: DecidedEntry, read: Input, topic: str, where: str) -> None:
    """Raise for a batch that was decided with other input, or so long ago that it cannot be told."""
    known = entry.digest(read.batch_id)
    if known is not None and known in (UNKNOWN, read.digest):
        return
    batch = f"batch {read.batch_id} of query {entry.name}"
    if known is None:
        what = (
            f"{batch} was decided, and the journal {topic} keeps what the last {KEPT_DIGESTS} batches read: whether it "
            f"read the same is not known any more (the last decided batch is {entry.batch_id})"
        )
    else:
        what = (
            f"{batch} was decided with other input: the digest of its end offsets is {read.digest}, and the journal "
            f"{topic} has {known} (the last decided batch is {entry.batch_id}, at {_time(entry.at_ms)})"
        )
    raise OtherInput(
        f"{what}. The checkpoint {where} is older than the output: it was restored from a copy, or has lost its newest "
        "files. Nothing of this batch is written, because rows of it are in the output already. Two ways lead on: put "
        f"back the checkpoint's newest files (offsets/ and commits/ up to {entry.batch_id}); or give this checkpoint "
        f"up and start the query with a new checkpointLocation where the output ends, {_ends(entry)}"
    )


def _ends(entry: DecidedEntry) -> str:
    if not entry.ends:
        return f"which is the end offset of batch {entry.batch_id}"
    shown = " and ".join(_without_marks(line) for line in entry.ends.splitlines())
    return f"with startingOffsets={shown} (for its first start)"


def _without_marks(line: str) -> str:
    """A source of ours notes in the first batch where it began, under a name that no topic has."""
    try:
        found = json.loads(line)
        return json.dumps({name: value for name, value in found.items() if not name.startswith(":")})
    except (ValueError, AttributeError):
        return line


def check_new(prefix: str, name: str, purpose: Purpose, register: Register, remembered: Remembered) -> None:
    """Raise for a name without an entry that is not new, and for a new writeId that there is no room for."""
    pruned_ms = remembered.pruned_at(name)
    if pruned_ms is not None:
        raise WriteIdRefused(
            f"{name!r} was written under transactionalIdPrefix={prefix!r} and pruned at {_time(pruned_ms)}: it is not "
            "written again. If its rows are others than those, give them another writeId"
        )
    if purpose is not Purpose.WRITE:
        return
    names = remembered.names | {entry.name: entry for entry in register.decided}
    count = sum(entry.is_write for entry in names.values())
    if count >= MAX_WRITE_IDS:
        raise WriteIdRefused(
            f"the writeId {name!r} is new, and {count} are remembered under transactionalIdPrefix={prefix!r}, which is "
            f"as many as may be ({MAX_WRITE_IDS}). Nothing was written. `twofold pipeline prune --prefix {prefix} "
            "--keep 1000` makes room: a pruned writeId is refused when it comes again. Or use another prefix"
        )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
