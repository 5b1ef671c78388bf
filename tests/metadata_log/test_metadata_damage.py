"""A metadata log that a killed process left: a torn tail is cut at a batch, damage in the middle stops the node."""

import pytest

from kits.metadata.controller import new_disk, run
from kits.metadata.log import DIRECTORY, Node, names_with, options_with
from twofold.metadata_log.committed_offset import encode_committed_offset, read_committed_offset
from twofold.metadata_log.errors import CorruptMetadataLog
from twofold.records.batch import iter_headers
from twofold.runtime.files import read_file
from twofold.runtime.sim import SimDisk

pytestmark = pytest.mark.slow  # it enumerates

KEEP_ALL = options_with(retention_bytes=-1, retention_ms=-1, segment_bytes=10_000)


def overwrite(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(0, data)
    file.sync()
    file.close()


def flipped(data: bytes, at: int, mask: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


class Folder:
    """The files of a log, to be damaged again and again."""

    def __init__(self, disk: SimDisk) -> None:
        self.files = {name: read_file(disk, f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}

    def laid_out(self, **changes: bytes) -> SimDisk:
        disk = new_disk()
        disk.make_dirs(DIRECTORY)
        for name, data in (self.files | changes).items():
            overwrite(disk, f"{DIRECTORY}/{name}", data)
        return disk

    def logs(self) -> list[str]:
        return sorted(name for name in self.files if name.endswith(".log"))

    def batches(self, name: str) -> list[tuple[int, int, int]]:
        """(position, size, base offset) of each batch of a segment."""
        return [(at, header.size, header.base_offset) for at, header in iter_headers(self.files[name])]


async def killed(options=KEEP_ALL, *, snapshots: bool = False, count: int = 12) -> tuple[Folder, dict[bytes, bytes]]:
    """What a process leaves that is killed after everything was acknowledged, and the image without the last batch."""
    disk = new_disk()
    node = Node(disk, options)
    await node.start()
    before: dict[bytes, bytes] = {}
    for number in range(count):
        before = dict(node.image)
        await node.put(b"%d" % (number % 5), b"%d" % number + b"x" * 50)
        if snapshots and number % 4 == 3 and number < count - 1:
            await node.snapshot()
    disk.crash(power_cut=False)
    return Folder(disk), before


@pytest.mark.parametrize("snapshots", [False, True], ids=["log alone", "snapshots and segments"])
def test_a_tail_cut_at_any_byte_of_the_last_batch_is_cut_at_that_batch(snapshots: bool):
    async def story() -> None:
        options = options_with(retention_bytes=2000) if snapshots else KEEP_ALL
        folder, image = await killed(options, snapshots=snapshots, count=15)
        name = folder.logs()[-1]
        at, size, _ = folder.batches(name)[-1]
        for length in range(size):
            disk = folder.laid_out(**{name: folder.files[name][: at + length]})
            node = Node(disk, options)
            assert await node.start() == image, length
            await node.put(b"more", b"1")
            assert Node(disk, options).log.latest_snapshot == node.log.latest_snapshot

    run(story())


@pytest.mark.parametrize("snapshots", [False, True], ids=["log alone", "snapshots and segments"])
def test_a_bit_flipped_in_any_byte_of_the_last_batch_cuts_that_batch(snapshots: bool):
    async def story() -> None:
        options = options_with(retention_bytes=2000) if snapshots else KEEP_ALL
        folder, image = await killed(options, snapshots=snapshots, count=15)
        name = folder.logs()[-1]
        at, size, _ = folder.batches(name)[-1]
        for place in range(size):
            for mask in (0x01, 0x80):
                disk = folder.laid_out(**{name: flipped(folder.files[name], at + place, mask)})
                assert await Node(disk, options).start() == image, (place, mask)

    run(story())


def test_a_bit_flipped_in_any_other_batch_stops_the_node_and_names_file_and_offset():
    async def story() -> None:
        folder, _ = await killed()
        (name,) = folder.logs()
        data = folder.files[name]
        for at, size, offset in folder.batches(name)[:-1]:
            for place in (*range(21), 22, size // 2, size - 1):
                if offset == 0 and 12 <= place < 16:
                    continue  # the epoch of the very first batch: nothing says what it was
                disk = folder.laid_out(**{name: flipped(data, at + place)})
                with pytest.raises(
                    CorruptMetadataLog, match=rf"{name}: the batch at offset {offset} is damaged .*copy"
                ):
                    await Node(disk, KEEP_ALL).start()
                assert read_file(disk, f"{DIRECTORY}/{name}") == flipped(data, at + place), "nothing was changed"

    run(story())


def test_a_batch_that_is_gone_from_the_middle_stops_the_node():
    async def story() -> None:
        folder, _ = await killed()
        (name,) = folder.logs()
        data = folder.files[name]
        for at, size, offset in folder.batches(name)[1:-1]:
            disk = folder.laid_out(**{name: data[:at] + data[at + size :]})
            with pytest.raises(CorruptMetadataLog, match=rf"{name}: the batch at offset {offset} is damaged"):
                await Node(disk, KEEP_ALL).start()

    run(story())


def test_damage_in_the_middle_is_found_among_segments_and_snapshots():
    async def story() -> None:
        options = options_with(retention_bytes=3500)
        folder, _ = await killed(options, snapshots=True, count=23)
        assert len(folder.logs()) > 2 and sum(name.endswith(".checkpoint") for name in folder.files) > 1
        assert int(folder.logs()[0][:20]) > 0, "the log was trimmed"
        for name in folder.logs():
            batches = folder.batches(name)
            for at, size, offset in batches[:-1] if name == folder.logs()[-1] else batches:
                for damaged in (flipped(folder.files[name], at + size - 2), folder.files[name][: at + size - 2]):
                    if name == folder.logs()[-1] and len(damaged) < len(folder.files[name]):
                        continue  # that is a torn tail
                    disk = folder.laid_out(**{name: damaged})
                    with pytest.raises(CorruptMetadataLog, match=rf"{name}: the batch at offset {offset} is damaged"):
                        await Node(disk, options).start()

    run(story())


def test_the_last_batch_is_no_tail_if_a_snapshot_stands_for_it():
    async def story() -> None:
        disk = new_disk()
        node = Node(disk, KEEP_ALL)
        await node.start()
        offset = await node.put(b"a", b"1")
        await node.snapshot()
        disk.crash(power_cut=False)
        folder = Folder(disk)
        (name,) = folder.logs()
        for damaged in (flipped(folder.files[name], len(folder.files[name]) - 2), folder.files[name][:-2]):
            again = folder.laid_out(**{name: damaged})
            with pytest.raises(CorruptMetadataLog, match=rf"{name}: the batch at offset {offset} .*a snapshot stands"):
                await Node(again, KEEP_ALL).start()
            assert read_file(again, f"{DIRECTORY}/{name}") == damaged, "nothing was changed"

    run(story())


def test_a_missing_segment_stops_the_node():
    async def story() -> None:
        options = options_with(retention_bytes=-1)
        folder, _ = await killed(options, count=20)
        names = folder.logs()
        for name in names[1:-1]:
            disk = folder.laid_out()
            disk.remove(f"{DIRECTORY}/{name}")
            with pytest.raises(CorruptMetadataLog, match=rf"offset {int(name[:20])} is damaged .*later segments"):
                await Node(disk, options).start()
        disk = folder.laid_out()
        disk.remove(f"{DIRECTORY}/{names[0]}")
        with pytest.raises(CorruptMetadataLog, match=f"begins at offset {int(names[1][:20])} and there is no snapshot"):
            await Node(disk, options).start()

    run(story())


def test_segments_that_trimming_took_away_and_a_power_cut_brought_back_do_no_harm():
    async def story() -> None:
        options = options_with(retention_bytes=-1)
        disk = new_disk()
        node = Node(disk, options)
        await node.start()
        for number in range(20):
            await node.put(b"%d" % (number % 5), b"%d" % number + b"x" * 50)
        await node.snapshot()
        await node.put(b"last", b"one")
        disk.crash(power_cut=False)
        names = names_with(disk, ".log")
        assert len(names) > 3
        for gone in (names[1:3], names[1:2], names[:2]):
            again = Folder(disk).laid_out()
            for name in gone:
                again.remove(f"{DIRECTORY}/{name}")
            assert await Node(again, options).start() == node.image
            assert names_with(again, ".log")[0] > gone[-1], "what was before the gap is taken away for good"

    run(story())


def test_what_a_power_cut_reordered_is_no_damage_in_the_middle():
    """Two batches that nobody was told of, of which only the second reached the disk."""

    async def story() -> None:
        folder, image = await killed()
        (name,) = folder.logs()
        (at, size, offset), (_, _, last) = folder.batches(name)[-2:]
        data = folder.files[name]
        torn = data[:at] + bytes(size) + data[at + size :]
        known = {"committed-offset": encode_committed_offset(offset - 1)}
        disk = folder.laid_out(**{name: torn}, **known)
        found = await Node(disk, KEEP_ALL).start()
        assert len(found) == 5 and found != image
        disk = folder.laid_out(**{name: torn}, **{"committed-offset": encode_committed_offset(last)})
        with pytest.raises(CorruptMetadataLog, match=rf"acknowledged batches follow it, up to offset {last}"):
            await Node(disk, KEEP_ALL).start()

    run(story())


def test_the_committed_offset_is_believed_only_when_it_is_whole():
    disk = new_disk()
    disk.make_dirs(DIRECTORY)
    assert read_committed_offset(disk, DIRECTORY) == -1
    whole = encode_committed_offset(42)
    overwrite(disk, f"{DIRECTORY}/committed-offset", whole)
    assert read_committed_offset(disk, DIRECTORY) == 42
    for broken in (b"", whole[:-1], flipped(whole, 3), flipped(whole, 25), whole + b"x", bytes(len(whole))):
        overwrite(disk, f"{DIRECTORY}/committed-offset", broken)
        assert read_committed_offset(disk, DIRECTORY) == -1


def test_acknowledged_metadata_that_the_disk_lost_is_told(caplog: pytest.LogCaptureFixture):
    async def story() -> None:
        folder, _ = await killed()
        (name,) = folder.logs()
        at, _, offset = folder.batches(name)[-1]
        disk = folder.laid_out(**{name: folder.files[name][:at]})
        await Node(disk, KEEP_ALL).start()
        assert f"ends at offset {offset}, although all up to offset {offset} was acknowledged" in caplog.text

    run(story())


def test_the_committed_offset_cannot_stop_a_start():
    async def story() -> None:
        disk = new_disk()
        node = Node(disk)
        await node.start()
        disk.fail_writes(match="committed-offset")
        await node.put(b"a", b"1")
        await node.put(b"b", b"2")
        assert not node.failures
        disk.crash(power_cut=False)
        assert await Node(disk).start() == {b"a": b"1", b"b": b"2"}

    run(story())
