"""Snapshots of the metadata log, and starts that begin with one."""

import tarfile
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.metadata.controller import (
    DIRECTORY_ID,
    LOG_DIR,
    create,
    disk_runtime,
    new_controller,
    new_disk,
    register,
    run,
    topic,
)
from twofold.controller.records import FeatureLevel, decode
from twofold.metadata_log.control import Voter, VoterEndPoint, decode_voters, encode_voters
from twofold.metadata_log.errors import CorruptMetadataLog, CorruptSnapshot, ForeignQuorum
from twofold.metadata_log.metadata_log import MetadataLog, ReplayedBatch
from twofold.metadata_log.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from twofold.metadata_log.snapshots import (
    BOOTSTRAP_ID,
    SnapshotId,
    encode_snapshot,
    list_snapshots,
    read_snapshot,
    write_snapshot,
)
from twofold.records.batch import HEADER_SIZE, iter_headers
from twofold.runtime.files import read_file
from twofold.runtime.sim import SimDisk
from twofold.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

DIRECTORY = f"{LOG_DIR}/__cluster_metadata-0"
FROM_KAFKA = Path(__file__).parent.parent / "fixtures" / "folder-kafka-4.3.1.tar.gz"
OWN = Voter(1, DIRECTORY_ID, (VoterEndPoint("CONTROLLER", "localhost", 9093),))


def put(disk: SimDisk, name: str, data: bytes) -> str:
    if not disk.is_dir(DIRECTORY):
        disk.make_dirs(DIRECTORY)
    path = f"{DIRECTORY}/{name}"
    write_snapshot(disk, path, [data])
    return path


def snapshot(*values: bytes, voters: tuple[Voter, ...] | None = (OWN,)) -> bytes:
    return b"".join(encode_snapshot(values, epoch=3, last_contained_timestamp_ms=7, timestamp_ms=8, voters=voters))


def new_log(disk: SimDisk, *, node_id: int = 1, closed_cleanly: bool = False) -> MetadataLog:
    return MetadataLog(
        disk_runtime(disk),
        LOG_DIR,
        node_id=node_id,
        directory_id=DIRECTORY_ID,
        closed_cleanly=closed_cleanly,
    )


async def lives(disk: SimDisk, *lives_of_values: list[bytes]) -> None:
    """A node's lives, each with a batch for every value."""
    for values in lives_of_values:
        log = new_log(disk)
        for _ in log.replay():
            pass
        await log.become_leader()
        for value in values:
            log.append([value], log.epoch)
        await log.wait_committed(log.end_offset - 1)
        await log.close()


def values_in(batches: list[ReplayedBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.values]


# --- the files ---


def kafkas_snapshots() -> dict[str, bytes]:
    with tarfile.open(FROM_KAFKA) as archive:
        files = {one.name.rpartition("/")[2]: archive.extractfile(one) for one in archive if "metadata-0/" in one.name}
        return {name: file.read() for name, file in files.items() if file is not None and name.endswith(".checkpoint")}


def timeless(data: bytes) -> list[tuple[object, ...]]:
    """Every byte but the times at which batches were written, and the checksums over them."""
    return [
        (
            header._replace(crc=0, base_timestamp=0, max_timestamp=0),
            data[position + HEADER_SIZE : position + header.size],
        )
        for position, header in iter_headers(data)
    ]


def test_snapshots_of_apache_kafka_are_read_and_written_byte_for_byte():
    disk = new_disk()
    found = kafkas_snapshots()
    assert BOOTSTRAP_ID.file_name in found and len(found) > 2
    for name, data in found.items():
        path = put(disk, name, data)
        read = read_snapshot(disk, path)
        again = encode_snapshot(
            read.values,
            epoch=int(name[21:31]),
            last_contained_timestamp_ms=read.last_contained_timestamp_ms,
            timestamp_ms=0,
            voters=read.voters,
            kraft_version=read.kraft_version,
        )
        assert timeless(b"".join(again)) == timeless(data), name
    ids = list_snapshots(disk, DIRECTORY)
    assert len(ids) == len(found) - 1 and ids == sorted(ids), "that of an empty log is none"


@given(
    st.lists(st.binary(max_size=50), max_size=20),
    st.none()
    | st.lists(
        st.builds(
            Voter,
            st.integers(0, 2**31 - 1),
            st.uuids(),
            st.lists(
                st.builds(VoterEndPoint, st.text(max_size=9), st.text(max_size=9), st.integers(0, 65535)), max_size=2
            ).map(tuple),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        max_size=3,
    ).map(tuple),
)
def test_a_snapshot_holds_what_was_put_into_it(values: list[bytes], voters: tuple[Voter, ...] | None):
    disk = new_disk()
    read = read_snapshot(disk, put(disk, SnapshotId(5, 2).file_name, snapshot(*values, voters=voters)))
    assert (read.values, read.voters, read.last_contained_timestamp_ms) == (values, voters, 7)
    assert read.kraft_version == (0 if voters is None else 1)


def test_a_large_snapshot_has_many_batches():
    disk = new_disk()
    values = [bytes([number]) * 300_000 for number in range(9)]
    data = snapshot(*values)
    assert len(list(iter_headers(data))) == 2 + 3
    assert read_snapshot(disk, put(disk, SnapshotId(5, 2).file_name, data)).values == values


def test_a_damaged_snapshot_is_refused_by_name():
    disk = new_disk()
    good = snapshot(b"a", b"b")
    starts = [position for position, _ in iter_headers(good)]
    name = SnapshotId(9, 1).file_name
    for bad in (b"", good[:-1], good + b"x", good[: starts[-1]], good[starts[1] :], _flipped(good, starts[1] + 63)):
        with pytest.raises(CorruptSnapshot, match=f"{name} is damaged"):
            read_snapshot(disk, put(disk, name, bad))


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_unknown_tagged_fields_of_voters_are_skipped():
    voter = "00000001" + DIRECTORY_ID.hex + "01" + "00000001" + "00" + "010701ff"
    assert decode_voters(bytes.fromhex("000002" + voter + "010203aabbcc")) == (Voter(1, DIRECTORY_ID),)
    assert decode_voters(encode_voters([OWN])) == (OWN,)


# --- a start with one ---


def test_a_start_reads_the_newest_snapshot_and_the_log_from_its_end():
    async def story() -> None:
        disk = new_disk()
        await lives(disk, [b"a", b"b", b"c"])  # offsets 0 to 2 are control records
        put(disk, SnapshotId(4, 1).file_name, snapshot(b"old"))
        put(disk, SnapshotId(5, 1).file_name, snapshot(b"A", b"B"))
        log = new_log(disk)
        found = list(log.replay())
        assert found == [ReplayedBatch(4, 1, [b"A", b"B"], True), ReplayedBatch(5, 1, [b"c"])]
        assert list(found[0].numbered()) == [(4, b"A"), (4, b"B")]
        assert log.voters == (OWN,) and log.kraft_version == 1

    run(story())


def test_a_log_that_begins_at_its_snapshot_keeps_its_segments():
    async def story() -> None:
        disk = new_disk()
        await lives(disk, [b"a", b"b"], [b"c"])
        _forget_before(disk, 5)
        put(disk, SnapshotId(5, 1).file_name, snapshot(b"A"))
        for _ in range(2):  # the first start must not take away what the second one needs
            log = new_log(disk)
            assert values_in(list(log.replay())) == [b"A", b"c"]
            await log.become_leader()
            await log.wait_committed(log.end_offset - 1)
            await log.close()

    run(story())


def _forget_before(disk: SimDisk, offset: int) -> None:
    """As Kafka's retention leaves it: the first segment begins at a snapshot's end."""
    old = f"{DIRECTORY}/{0:020d}.log"
    data = read_file(disk, old)
    start = next(position for position, header in iter_headers(data) if header.base_offset == offset)
    for name in disk.list(DIRECTORY):
        if name.startswith(f"{0:020d}."):
            disk.remove(f"{DIRECTORY}/{name}")
    write_snapshot(disk, f"{DIRECTORY}/{offset:020d}.log", [data[start:]])


def test_a_gap_between_snapshot_and_log_is_refused():
    async def story() -> None:
        disk = new_disk()
        await lives(disk, [b"a", b"b"], [b"c"])
        _forget_before(disk, 5)
        with pytest.raises(CorruptMetadataLog, match="begins at offset 5 and there is no snapshot"):
            list(new_log(disk).replay())
        put(disk, SnapshotId(4, 1).file_name, snapshot(b"A"))
        with pytest.raises(CorruptMetadataLog, match=r"newest snapshot is 00000000000000000004-0000000001\.checkpoint"):
            list(new_log(disk).replay())
        put(disk, SnapshotId(99, 1).file_name, snapshot(b"A"))
        with pytest.raises(CorruptMetadataLog, match="ends at offset 7, before the snapshot"):
            list(new_log(disk).replay())

    run(story())


# --- voters ---


def test_a_quorum_of_others_is_refused_and_nothing_is_written():
    async def story() -> None:
        disk = new_disk()
        await lives(disk, [b"a"])
        other = Voter(2, UUID(int=2 << 64))
        for voters, reason in (
            ((OWN, other), "the voters 1, 2 .*remove-controller"),
            ((other,), "the voters 2"),
            ((OWN._replace(directory_id=UUID(int=5)),), r"directory id .*meta\.properties"),
        ):
            put(disk, SnapshotId(4, 1).file_name, snapshot(b"A", voters=voters))
            log = new_log(disk)
            list(log.replay())
            before = {name: read_file(disk, f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}
            with pytest.raises(ForeignQuorum, match=reason):
                await log.become_leader()
            log.abandon()
            assert before == {name: read_file(disk, f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}

    run(story())


def test_static_voters_are_those_of_the_quorum_state_and_stay_there():
    async def story() -> None:
        disk = new_disk()
        await lives(disk, [b"a", b"b"], [b"c"])
        _forget_before(disk, 5)  # with it the voters in the log
        put(disk, SnapshotId(5, 1).file_name, snapshot(b"A", voters=None))
        write_quorum_state(disk, DIRECTORY, QuorumState(4, 1, static_voter_ids=(1, 2, 3)))
        log = new_log(disk)
        list(log.replay())
        with pytest.raises(ForeignQuorum, match="quorum-state has the voters 1, 2, 3"):
            await log.become_leader()
        write_quorum_state(disk, DIRECTORY, QuorumState(4, 1, static_voter_ids=(1,)))
        log = new_log(disk)
        list(log.replay())
        assert await log.become_leader() == 5
        assert read_quorum_state(disk, DIRECTORY) == QuorumState(5, 1, static_voter_ids=(1,))

    run(story())


def test_a_formatted_directory_keeps_the_voters_that_it_was_given():
    async def story() -> None:
        disk = new_disk()
        put(disk, BOOTSTRAP_ID.file_name, snapshot())
        write_snapshot(disk, f"{LOG_DIR}/bootstrap.checkpoint", [snapshot(b"feature", voters=None)])
        log = new_log(disk)
        assert list(log.replay()) == []
        assert log.bootstrap_values() == [b"feature"]
        await log.become_leader()
        await log.wait_committed(log.end_offset - 1)
        await log.close()
        again = new_log(disk)
        list(again.replay())
        assert again.voters == (OWN,)

    run(story())


# --- damage ---


@pytest.mark.parametrize("closed_cleanly", [True, False])
def test_a_damaged_batch_before_a_later_epoch_is_never_cut_off(closed_cleanly: bool):
    async def story() -> None:
        for victim in (b"aaaa", b"bbbb"):
            disk = new_disk()
            await lives(disk, [b"aaaa", b"bbbb"], [b"cccc"])
            segment = f"{DIRECTORY}/{0:020d}.log"
            data = read_file(disk, segment)
            write_snapshot(disk, segment, [_flipped(data, data.index(victim))])
            with pytest.raises(CorruptMetadataLog, match=rf"{0:020d}\.log: the batch at offset [34] is damaged"):
                list(new_log(disk, closed_cleanly=closed_cleanly).replay())
            assert len(read_file(disk, segment)) == len(data)

    run(story())


def test_a_damaged_length_does_not_hide_the_epochs_behind_it():
    async def story() -> None:
        disk = new_disk()
        await lives(disk, [b"a"], [b"b"])
        segment = f"{DIRECTORY}/{0:020d}.log"
        data = read_file(disk, segment)
        first = next(header.size for _, header in iter_headers(data))
        for at in (first + 8, first + 11, first + 16):  # the length's highest and lowest byte, the magic byte
            write_snapshot(disk, segment, [_flipped(data, at)])
            with pytest.raises(CorruptMetadataLog, match=r"offset 3 is damaged .*later epochs follow"):
                list(new_log(disk).replay())

    run(story())


def test_damage_in_the_last_epoch_is_a_torn_tail_unless_the_log_was_closed():
    async def story() -> None:
        disk = new_disk()
        await lives(disk, [b"aaaa"], [b"bbbb"])
        segment = f"{DIRECTORY}/{0:020d}.log"
        data = read_file(disk, segment)
        write_snapshot(disk, segment, [_flipped(data, data.index(b"bbbb"))])
        with pytest.raises(CorruptMetadataLog, match="although the log was closed cleanly"):
            list(new_log(disk, closed_cleanly=True).replay())
        assert values_in(list(new_log(disk).replay())) == [b"aaaa"]

    run(story())


# --- written by a controller ---


def test_a_level_that_is_given_up_is_not_met_again_after_the_snapshot():
    async def story() -> None:
        disk = new_disk()
        controller = new_controller(disk)
        await controller.start()
        await register(controller)
        await controller.create_topics(create(topic("a", partitions=3)))
        for level, kind in ((3, 1), (2, 2)):
            update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=kind)
            await controller.update_features(UpdateFeaturesRequest(feature_updates=(update,)))
        image = controller.image
        await controller.stop()
        (written,) = list_snapshots(disk, DIRECTORY)
        assert written.end_offset == image.offset + 1
        log = new_log(disk)
        found = list(log.replay())
        assert found[0].is_snapshot and log.voters == (Voter(1, DIRECTORY_ID),)
        levels = [decode(value) for value in values_in(found)]
        assert FeatureLevel("transaction.version", 2) in levels
        assert FeatureLevel("transaction.version", 3) not in levels
        again = new_controller(disk)
        await again.start()
        assert (again.image.topics, again.image.features) == (image.topics, image.features)
        await again.stop()

    run(story())
