"""What a power cut leaves of a data folder: everything was on the platter but the last batches of some partitions."""

from collections.abc import Mapping
from pathlib import Path

from kits.processes.server import TwofoldServer
from twofold.log.recovery.checkpoints import CLEAN_SHUTDOWN
from twofold.records.batch import iter_headers
from twofold.records.control import ControlType, read_control_type
from twofold.runtime.files import read_file
from twofold.runtime.sim import Simulation
from twofold.runtime.sim.disk import SimDisk
from twofold.types import TopicPartition

MARKERS = (ControlType.COMMIT, ControlType.ABORT)


def start_of_tail(data: bytes, batches: int) -> int:
    """Where the last so many batches of a segment begin; nothing was lost if that is its end."""
    positions = [position for position, _ in iter_headers(data)]
    return positions[-batches] if batches else len(data)


def ends_with_marker(data: bytes) -> bool:
    last = list(iter_headers(data))[-1:]
    return bool(last) and last[0][1].is_control and read_control_type(data, last[0][0]) in MARKERS


# A simulated machine


def last_segment(disk: SimDisk, folder: str) -> str:
    return f"{folder}/{max(name for name in disk.list(folder) if name.endswith('.log'))}"


def lose_batches(sim: Simulation, node: str, lost: Mapping[TopicPartition, int], data: str = "/data") -> None:
    """Cut the power of a node now: partitions lose so many batches, and nothing else is lost."""
    disk = sim.disk(node)
    disk.sync_all()
    for partition, batches in lost.items():
        path = last_segment(disk, f"{data}/{partition}")
        file = disk.open(path)
        file.truncate(start_of_tail(read_file(disk, path), batches))
        file.close()
    disk.sync_all()
    sim.crash(node, power_cut=True)


# `twofold serve`


def lose_markers(server: TwofoldServer, *partitions: TopicPartition) -> None:
    """The power goes, and with it the marker that each of these partitions ends with."""
    server.kill()
    for partition in partitions:
        cut_marker(server.data / str(partition))


def lose_markers_unnoticed(server: TwofoldServer, *partitions: TopicPartition) -> None:
    """The same to a folder that says it was closed cleanly, as one that was copied back from somewhere may. Nothing was
    aborted before in these partitions."""
    assert server.stop() == 0
    assert (server.data / CLEAN_SHUTDOWN).exists()
    for partition in partitions:
        folder = server.data / str(partition)
        cut_marker(folder)
        max(folder.glob("*.snapshot")).unlink()
        for index in folder.glob("*.txnindex"):
            index.unlink()


def cut_marker(folder: Path) -> None:
    segment = max(folder.glob("*.log"))
    data = segment.read_bytes()
    assert ends_with_marker(data), f"{segment} does not end with a marker"
    with segment.open("r+b") as file:
        file.truncate(start_of_tail(data, 1))
