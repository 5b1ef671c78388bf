"""`twofold txn fate`: which marker ends which batch."""

from twofold.cli.txn.fate import Fate, Fates
from twofold.records.batch import BatchBuilder, iter_headers
from twofold.records.control import end_transaction_marker, read_control_type


def data(offset: int, pid: int = -1, epoch: int = 0, count: int = 1) -> bytes:
    builder = BatchBuilder()
    if pid >= 0:
        builder = BatchBuilder(producer_id=pid, producer_epoch=epoch, base_sequence=0, transactional=True)
    for _ in range(count):
        builder.add(None, b"v", 1)
    out = bytearray(builder.build())
    out[0:8] = offset.to_bytes(8, "big")
    return bytes(out)


def end(offset: int, pid: int, epoch: int, *, commit: bool) -> bytes:
    return end_transaction_marker(
        commit=commit,
        producer_id=pid,
        producer_epoch=epoch,
        coordinator_epoch=0,
        timestamp_ms=1,
        base_offset=offset,
        leader_epoch=0,
    )


def fates(limit: int, *batches: bytes) -> Fates:
    found = Fates(limit)
    for batch in batches:
        for at, header in iter_headers(batch):
            found.add(header, read_control_type(batch, at) if header.is_control else None)
    return found


def shown(found: Fates) -> list[tuple[int, Fate, int | None]]:
    return [(row.base_offset, row.fate, row.marker_offset) for row in found.rows]


def test_each_batch_meets_the_next_marker_of_its_producer():
    found = fates(
        100,
        data(0),
        data(1, 7, count=3),
        data(4, 8),
        data(5, 7),
        end(6, 7, 1, commit=True),
        data(7, 7, 1),
        end(8, 8, 0, commit=False),
    )
    assert shown(found) == [
        (0, Fate.PLAIN, None),
        (1, Fate.COMMITTED, 6),
        (4, Fate.ABORTED, 8),
        (5, Fate.COMMITTED, 6),
        (6, Fate.CONTROL, 6),
        (7, Fate.OPEN, None),
        (8, Fate.CONTROL, 8),
    ]
    assert [row.ends for row in found.rows if row.fate is Fate.CONTROL] == ["commit", "abort"]
    assert (found.rows[1].last_offset, found.rows[1].records) == (3, 3)


def test_a_late_marker_of_an_earlier_epoch_ends_nothing():
    found = fates(100, data(0, 7, 5), end(1, 7, 4, commit=True), end(2, 7, 5, commit=False))
    assert shown(found)[0] == (0, Fate.ABORTED, 2)


def test_reading_goes_on_past_the_last_row_until_all_of_them_are_ended():
    found = fates(2, data(0, 7), data(1, 8), data(2, 9), end(3, 7, 1, commit=True))
    assert found.is_full and not found.is_done
    assert len(found.rows) == 2
    for at, header in iter_headers(batch := end(4, 8, 1, commit=True)):
        found.add(header, read_control_type(batch, at))
    assert found.is_done
    assert shown(found) == [(0, Fate.COMMITTED, 3), (1, Fate.COMMITTED, 4)]
