"""Opening a log whose compaction was interrupted while it put new segments in the place of old ones.

1. A `.log.swap` file was complete, synced and had its name for good before the first segment that it replaces was
   removed. So it takes their place now. It replaces the segments that begin within its offsets.
2. Beside a `.cleaned` file with the same or a smaller number a `.log.swap` file did not have its name for good: the old
   segments are all there, and the `.swap` file is removed.
3. Other `.swap` files without their log are removed; indexes are built again.
"""

import logging

from twofold.log.segments.scan import InvalidBatch, iter_headers
from twofold.log.segments.segment import CLEANED_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, SWAP_SUFFIX
from twofold.runtime.api import Disk

log = logging.getLogger("twofold.log")

_DIGITS = 20


def complete_swaps(disk: Disk, directory: str, names: list[str]) -> None:
    """Finish the swaps that were interrupted, as Apache Kafka does; afterwards there are no `.swap` files."""
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    cleaned = [int(name[:_DIGITS]) for name in names if name.endswith(CLEANED_SUFFIX) and name[:_DIGITS].isdigit()]
    bases = sorted(int(name[:_DIGITS]) for name in swaps if name[_DIGITS:] == LOG_SUFFIX + SWAP_SUFFIX)
    valid = [base for base in bases if not cleaned or base < min(cleaned)]
    kept = {f"{base:020d}{kind}{SWAP_SUFFIX}" for base in valid for kind in SEGMENT_SUFFIXES}
    for name in names:
        if (name in swaps and name not in kept) or _is_replaced(disk, directory, name, valid):
            log.warning("%s/%s: removed, left over by an interrupted compaction", directory, name)
            disk.remove(f"{directory}/{name}")
    disk.sync_dir(directory)
    for base in valid:
        log.warning("%s/%020d%s: completing an interrupted compaction", directory, base, LOG_SUFFIX)
        for kind in (*SEGMENT_SUFFIXES[1:], LOG_SUFFIX):
            path = f"{directory}/{base:020d}{kind}"
            if disk.exists(path + SWAP_SUFFIX):
                disk.rename(path + SWAP_SUFFIX, path)
    disk.sync_dir(directory)


def _is_replaced(disk: Disk, directory: str, name: str, swaps: list[int]) -> bool:
    """Whether a file is of a segment that one of the new segments replaces."""
    if name[_DIGITS:] not in SEGMENT_SUFFIXES or not name[:_DIGITS].isdigit():
        return False
    number = int(name[:_DIGITS])
    base = max((base for base in swaps if base <= number), default=None)
    return base is not None and (number == base or number < _end_of_swap(disk, directory, base))


def _end_of_swap(disk: Disk, directory: str, base: int) -> int:
    """The offset after the last that a new segment holds; a segment that begins there or later is not in it."""
    file = disk.open(f"{directory}/{base:020d}{LOG_SUFFIX}{SWAP_SUFFIX}")
    end = base
    try:
        for _, header in iter_headers(file, 0, file.size()):
            end = header.next_offset
    except InvalidBatch as error:
        log.warning("%s: %s", file.path, error)
    finally:
        file.close()
    return end
