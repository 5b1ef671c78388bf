"""The machine as a broker would find it: clock, limits, versions, and how fast its disk confirms a write."""

import ctypes
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from twofold.cli.doctor.findings import Finding, note, ok, problem, warning
from twofold.extras import install_command
from twofold.version import VERSION

FEWEST_FILES = 4096
OLDEST_YEAR = 2024
UNSYNCHRONIZED = 0x40  # STA_UNSYNC of adjtimex
TIMEX_BYTES = 512  # more than any kernel writes
STATUS_AT = 40  # of `status` in struct timex with 64-bit longs
SYNCS = 40
SYNC_BUDGET_S = 1.0
SLOW_SYNC_MS = 20.0
UNBELIEVABLE_SYNC_MS = 0.02
PACKAGES = ("kio", "crc32c", "cramjam", "click", "uvloop", "google-re2")
MISSED = {
    "uvloop": ("uvloop is not installed: the broker runs on the loop of asyncio, which is slower", "server"),
    "google-re2": ("google-re2 is not installed: patterns of topics and of transactional ids are refused", "re2"),
}


# Versions


def check_versions() -> Iterator[Finding]:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    python = sys.version.split()[0]
    yield ok("versions", f"twofold {VERSION}, Python {python}, {platform.system()} {platform.release()}")
    yield ok("versions", ", ".join(found))
    for name in missing:
        if name in MISSED:
            text, extra = MISSED[name]
            yield note("versions", text, install_command(extra))


# Limits


def check_limits(segment_bytes: int) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "no limit of" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    if hard != resource.RLIM_INFINITY and hard < FEWEST_FILES:
        yield warning(
            "limits",
            f"a broker may open {shown} files, and clients and segments need one each",
            f"raise the hard limit to {FEWEST_FILES:,} or more (ulimit -Hn, LimitNOFILE of systemd)",
        )
    else:
        raised = "" if soft == hard else f" (now {soft:,}; a broker raises it)"
        yield ok("limits", f"{shown} open files{raised}")
    largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if largest != resource.RLIM_INFINITY and largest < segment_bytes:
        yield problem(
            "limits",
            f"a file may have {largest:,} bytes, and segments have log.segment.bytes={segment_bytes:,}",
            "raise the limit (ulimit -f), or lower log.segment.bytes",
        )


# The clock


def check_clock(newest_ms: int | None) -> Iterator[Finding]:
    """`newest_ms` is when a file of the data folder was changed last."""
    now_ms = time.time_ns() // 1_000_000
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if time.gmtime().tm_year < OLDEST_YEAR:
        yield problem("clock", f"it is {shown} by this clock", "set the clock: retention goes by it")
    elif newest_ms is not None and newest_ms > now_ms + 60_000:
        ahead_s = (newest_ms - now_ms) // 1000
        yield problem(
            "clock",
            f"it is {shown}, and a file of the data folder was written {ahead_s:,} s after that",
            "set the clock: it is behind, or was ahead when the broker ran last",
        )
    elif (is_synchronized := _is_synchronized()) is None:
        yield ok("clock", shown)
    elif is_synchronized:
        yield ok("clock", f"{shown}, synchronized")
    else:
        yield note(
            "clock",
            f"{shown}, and the kernel does not know that anything synchronizes it",
            "let NTP or chrony set it: timestamps and retention go by it (in a container, look at the host)",
        )


def _is_synchronized() -> bool | None:
    """What adjtimex says; None where it cannot be asked."""
    if platform.system() != "Linux" or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    asked = ctypes.create_string_buffer(TIMEX_BYTES)  # zeros: it changes nothing
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(asked)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    return not int.from_bytes(asked.raw[STATUS_AT : STATUS_AT + 4], sys.byteorder) & UNSYNCHRONIZED


# The disk


class SyncSpeed(NamedTuple):
    median_ms: float
    slowest_ms: float
    syncs: int


def measure_sync(folder: Path) -> SyncSpeed:
    """Write 4 KiB and wait until the disk has it, again and again for at most a second."""
    times: list[float] = []
    sync = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(dir=folder, prefix=".twofold-doctor-") as file:
        descriptor = file.fileno()
        end = time.monotonic() + SYNC_BUDGET_S
        for index in range(SYNCS):
            begin = time.perf_counter()
            os.pwrite(descriptor, b"\0" * 4096, index * 4096)
            sync(descriptor)
            times.append((time.perf_counter() - begin) * 1000)
            if time.monotonic() > end:
                break
    return SyncSpeed(statistics.median(times), max(times), len(times))


def check_sync(folder: Path, *, in_memory: bool) -> Iterator[Finding]:
    try:
        speed = measure_sync(folder)
    except OSError as error:
        yield problem("disk", f"{folder} cannot be written to: {error.strerror}", "give the broker's user the folder")
        return
    text = f"a sync takes {speed.median_ms:.2f} ms, the slowest of {speed.syncs} took {speed.slowest_ms:.1f} ms"
    if speed.median_ms > SLOW_SYNC_MS:
        yield warning(
            "disk",
            text,
            "creating topics, two-phase commits and flush.messages=1 wait for it: use a local SSD",
        )
    elif speed.median_ms < UNBELIEVABLE_SYNC_MS and not in_memory:
        yield note("disk", text, "that is faster than a disk: does the machine confirm before the disk has it?")
    else:
        yield ok("disk", text)
