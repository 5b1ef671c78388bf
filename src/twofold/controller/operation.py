"""What a request does to the metadata, decided piece by piece.

An operation is a generator on one image: it yields the records to write, one by one, and returns the response. Where it
worked and has nothing to write it yields None, so that its runner can let others go on. A topic of 100,000
partitions is never in memory as records, nor does another request wait until the last of them is decided.

1. An operation sees the same image from its first step to its last: no other operation writes before it is over.
2. The records of a row (a topic, a resource) are yielded once nothing can be wrong with the row any more; a row that is
   refused yields none.
3. An error that is raised is the answer to the whole request, and nothing of the operation happens.
"""

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from twofold.controller.image import MetadataImage
from twofold.controller.records import MetadataRecord

T = TypeVar("T")
Operation: TypeAlias = Generator[MetadataRecord | None, None, T]
Begin: TypeAlias = Callable[[MetadataImage], Operation[T]]


def advance(operation: Operation[T], records: list[MetadataRecord], steps: int) -> tuple[T, bool]:
    """Go on for at most so many steps; (response, True) at the end."""
    try:
        for _ in range(steps):
            record = next(operation)
            if record is not None:
                records.append(record)
    except StopIteration as end:
        return end.value, True
    return None, False  # type: ignore[return-value]  # there is no response yet
