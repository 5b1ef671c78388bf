"""The partitioner chooses what Apache Kafka's producer chooses."""

from random import Random

import pytest

from twofold.client.producer.partitioner import StickyPartitioner
from twofold.records.key_hash import murmur2, partition_for_key

# From the tests of Kafka's Java client (UtilsTest.testMurmur2); librdkafka and kafka-python check the same values.
JAVA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]
# From librdkafka's unit test of the same hash.
LIBRDKAFKA_VECTORS = [
    (b"kafka", 0xD067CF64),
    (b"giberish123456789", 0x8F552B0C),
    (b"1234", 0x9FC97B14),
    (b"234", 0xE7C009CA),
    (b"34", 0x873930DA),
    (b"4", 0x5A4B5CA1),
    (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 0x78424F1C),
    (b"reAmbleWillBeRemoved,ThePrePartThatIs", 0x4A62B377),
    (b"eAmbleWillBeRemoved,ThePrePartThatIs", 0xE0E4E09E),
    (b"AmbleWillBeRemoved,ThePrePartThatIs", 0x62B8B43F),
    (b"", 0x106E08D9),
]


@pytest.mark.parametrize(("key", "expected"), JAVA_VECTORS)
def test_hash_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@pytest.mark.parametrize(("key", "expected"), LIBRDKAFKA_VECTORS)
def test_hash_is_that_of_librdkafka(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


def test_negative_hashes_lose_their_sign_bit_and_nothing_else() -> None:
    assert partition_for_key(b"foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000


def choose(sticky: StickyPartitioner, available: tuple[int, ...], size: int, *, full: bool = False) -> int:
    partition = sticky.current(available)
    sticky.on_added(size, batch_is_full=full)
    return partition


def test_records_without_a_key_stay_with_a_partition_until_a_batch_is_full() -> None:
    sticky = StickyPartitioner(Random(1), 100)
    available = tuple(range(50))
    chosen = [choose(sticky, available, 30, full=index % 4 == 3) for index in range(40)]
    runs = [chosen[index : index + 4] for index in range(0, 40, 4)]
    assert all(len(set(run)) == 1 for run in runs)
    assert len({run[0] for run in runs}) > 5


def test_a_partition_whose_batches_are_never_full_is_left_after_two_batches_worth() -> None:
    sticky = StickyPartitioner(Random(1), 100)
    available = tuple(range(50))
    chosen = [choose(sticky, available, 50) for _ in range(40)]
    runs = [chosen[index : index + 4] for index in range(0, 40, 4)]
    assert all(len(set(run)) == 1 for run in runs)
    assert len({run[0] for run in runs}) > 5


def test_a_batch_that_is_full_before_its_time_is_no_reason_to_switch() -> None:
    sticky = StickyPartitioner(Random(1), 1_000)
    available = tuple(range(50))
    assert len({choose(sticky, available, 10, full=True) for _ in range(99)}) == 1


def test_a_partition_that_lost_its_leader_is_left_at_once() -> None:
    sticky = StickyPartitioner(Random(1), 1_000_000)
    first = choose(sticky, (0, 1, 2), 10)
    rest = tuple({0, 1, 2} - {first})
    assert choose(sticky, rest, 10) in rest


def test_the_longer_the_line_the_less_likely_the_choice() -> None:
    """The weights of Kafka's adaptive partitioning: the longest line plus one, less the own line."""
    lines = {0: 9, 1: 5, 2: 0}
    sticky = StickyPartitioner(Random(7), 10, lines.__getitem__)
    chosen = [choose(sticky, (0, 1, 2), 10, full=True) for _ in range(16_000)]
    for partition, weight in ((0, 1), (1, 5), (2, 10)):
        assert chosen.count(partition) == pytest.approx(16_000 * weight / 16, rel=0.15)


def test_equal_lines_are_equally_likely() -> None:
    sticky = StickyPartitioner(Random(7), 10, lambda _: 3)
    chosen = [choose(sticky, (0, 1), 10, full=True) for _ in range(4_000)]
    assert chosen.count(0) == pytest.approx(2_000, rel=0.1)
